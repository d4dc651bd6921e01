//! Counts against tiktoken-rs, the reference: on hostile strings, on random ones, and, where
//! `WEIR_TRACES` names a folder of conversations, on all that real agents said.

use proptest::prelude::*;
use tiktoken_rs::CoreBPE;
use weir::tokens::Encoding;

use crate::traces;

fn pairs() -> [(Encoding, &'static CoreBPE); 5] {
    [
        (Encoding::O200kBase, tiktoken_rs::o200k_base_singleton()),
        (Encoding::Cl100kBase, tiktoken_rs::cl100k_base_singleton()),
        (Encoding::P50kBase, tiktoken_rs::p50k_base_singleton()),
        (Encoding::P50kEdit, tiktoken_rs::p50k_edit_singleton()),
        (Encoding::R50kBase, tiktoken_rs::r50k_base_singleton()),
    ]
}

fn assert_exact(text: &str) {
    for (encoding, reference) in pairs() {
        let expected = reference.encode_ordinary(text).len() as u64;
        assert_eq!(encoding.count(text), expected, "{encoding:?} {:?}", text.get(..80));
    }
}

#[test]
fn hostile_strings_count_as_the_reference_does() {
    let mut texts: Vec<String> = [
        "",
        " ",
        "\n",
        "\r\n\r\n \t ",
        "<|endoftext|>",
        "<|im_start|>system<|im_sep|>",
        "I'll they've IT'S don'T 'ſ",
        "a\u{0}b\u{0}",
        "e\u{301}\u{301}\u{301} Z\u{335}\u{336}\u{337}",
        "👩‍👩‍👧‍👦👨🏽‍🚀🏳️‍🌈",
        "ﷺ﷽𒐫𒈙꧅",
        "  indented\n    more\n\t\ttabs\n",
        "1234567890123456789012345678901234567890",
        "https://example.com/a/b?c=d&e=%20f#g",
        "日本語とEnglishの混ざった文章。",
        "Привет, мир! Γειά σου Κόσμε! مرحبا بالعالم",
        "\u{feff}\u{200b}\u{202e}abc\u{2028}",
        "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    ]
    .map(String::from)
    .to_vec();
    for unit in ["a", " ", "\n", "=", "ab", "é", "中", "😀", " \n", "\t ", "0", "A1!"] {
        texts.extend([1, 2, 3, 7, 100, 1000, 5000].map(|times| unit.repeat(times)));
    }
    texts.iter().for_each(|text| assert_exact(text));
}

#[test]
fn real_conversations_count_as_the_reference_does() {
    let mut texts = 0;
    for conversation in traces::all() {
        for message in &conversation.messages {
            for text in traces::texts(message) {
                for (encoding, reference) in &pairs()[..2] {
                    let expected = reference.encode_ordinary(&text).len() as u64;
                    assert_eq!(encoding.count(&text), expected, "in {}", conversation.id);
                }
                texts += 1;
            }
        }
    }
    assert!(texts > 100, "only {texts} texts were compared");
}

proptest! {
    #[test]
    fn random_strings_count_as_the_reference_does(text in "\\PC{0,200}|[ \\t\\r\\n'a-zA-Z0-9]{0,200}|.{0,60}") {
        assert_exact(&text);
    }
}
