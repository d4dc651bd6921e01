//! Counts compared with tiktoken-rs, the reference: on hostile strings, on random ones, and on all
//! texts of recorded agents if `WEIR_TRACES` names a folder of conversations.

use proptest::prelude::*;
use tiktoken_rs::CoreBPE;
use weir_engine::tokens::Encoding;

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

/// Uniform texts longer than the merge limit, each a single piece.
#[test]
fn long_pieces_count_as_the_reference_does() {
    let mut random = Random(7);
    let mut texts = Vec::new();
    let alphabets: [&[&str]; 9] = [
        &["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "t", "x"],
        &["x", "q", "z"],
        &["a", "A"],
        &["=", "-", "*", "#", "/", "\\", "<", ">", "|"],
        &[" ", "\t", "\n", "\u{a0}", "\u{3000}"],
        &["漢", "字", "的", "一", "是", "不", "了", "人", "龘", "我", "在", "有", "他", "这"],
        &["é", "ß", "å", "ø", "ı"],
        &["\u{301}", "\u{335}", "e", "\u{20dd}"],
        &["ก", "า", "ร", "ม", "น", "้", "่"],
    ];
    for alphabet in alphabets {
        for bytes in [129, 1000, 2100, 9000, 60_000] {
            texts.push(random.text(alphabet, bytes));
        }
    }
    for text in texts {
        for (encoding, reference) in &pairs()[..2] {
            let expected = reference.encode_ordinary(&text).len() as u64;
            assert_eq!(encoding.count(&text), expected, "{encoding:?} {:?}", text.get(..30));
        }
    }
}

/// Everything that the split patterns match, in any order.
#[test]
fn texts_of_all_that_parts_them_count_as_the_reference_does() {
    let pieces = [
        "\n",
        "\r\n",
        "\r",
        "\n\n",
        " ",
        "    ",
        "\t",
        "/",
        "//",
        "'s",
        "'",
        "'LL",
        "'Re",
        "'ſ",
        "a",
        "Word",
        "CAPS",
        "été",
        "É",
        "ǅ",
        "ʰ",
        "…",
        "漢",
        "Я",
        "я",
        "12345",
        "Ⅷ",
        "½",
        ",",
        "--",
        "\u{2028}",
        "\u{b}",
        "\u{85}",
        "\u{a0}",
        "\u{3000}",
        "{\"a\":",
        "#",
        "👩‍👩‍👧",
        "\u{301}",
        "\u{0}",
        "<|endoftext|>",
        "<|im_start|>",
    ];
    let mut random = Random(1);
    for round in 0..6000 {
        let bytes = round % 120;
        let text = random.text(&pieces, bytes);
        for (encoding, reference) in &pairs()[..2] {
            let expected = reference.encode_ordinary(&text).len() as u64;
            assert_eq!(encoding.count(&text), expected, "{encoding:?} {text:?}");
        }
    }
}

/// Each character alone, after a letter and before one.
#[test]
fn characters_count_as_the_reference_does() {
    for start in (0..0x11_0000_u32).step_by(64) {
        let characters = (start..start + 64).filter_map(char::from_u32);
        let text: String =
            characters.flat_map(|own| ['a', own, 'B', own, ' ', own, own, '.']).collect();
        for (encoding, reference) in &pairs()[..2] {
            let expected = reference.encode_ordinary(&text).len() as u64;
            assert_eq!(encoding.count(&text), expected, "{encoding:?} from {start:#x}");
        }
    }
}

/// Deterministic random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn text(&mut self, pieces: &[&str], bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < bytes {
            text.push_str(pieces[self.below(pieces.len())]);
        }
        text
    }
}

/// The vocabulary files of the program, written by this test with `UPDATE_GOLDEN=1`.
#[test]
fn vocabulary_files_are_those_of_the_reference() {
    let is_update = std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1");
    for (name, count, reference) in [
        ("o200k_base", 199_998_u32, tiktoken_rs::o200k_base_singleton()),
        ("cl100k_base", 100_256, tiktoken_rs::cl100k_base_singleton()),
    ] {
        let tokens = (0..count).map(|rank| reference.decode_bytes(&[rank]).expect("a token"));
        let tokens: Vec<Vec<u8>> = tokens.collect();
        let lengths = tokens.iter().map(|token| u8::try_from(token.len()).expect("a short token"));
        let mut file = count.to_le_bytes().to_vec();
        file.extend(lengths);
        file.extend(tokens.iter().flatten());
        let path = format!(
            "{}/crates/weir-engine/src/tokens/bpe/{name}.tokens",
            env!("CARGO_MANIFEST_DIR")
        );
        if is_update {
            std::fs::write(&path, &file).expect("it can be written");
        }
        assert!(std::fs::read(&path).expect("it is there") == file, "{name} differs");
    }
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
