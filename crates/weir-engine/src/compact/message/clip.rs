//! Clipping, the last resort: texts keep head and tail at a fixed ladder of sizes.

use crate::tokens::Encoding;
use crate::wire::json;
use crate::wire::message::arguments_text;
use crate::wire::splice::{Clip, TextCut, clipped};
use crate::wire::walk::Walk;

/// Sizes, in tokens, that a text may be clipped to.
pub(crate) const LADDER_TOKENS: [u64; 6] = [32_768, 16_384, 8_192, 4_096, 2_048, 1_024];
/// Sizes below these: for parallel results before pins give way, for all other contents after that.
pub(crate) const SHORT_TOKENS: [u64; 2] = [512, 256];
/// The last sizes, for requests that would otherwise be refused.
pub(crate) const LAST_TOKENS: [u64; 3] = [128, 64, 32];

/// Maximum size of a marker, with numbers of any size.
const MARKER_TOKENS: u64 = 40;

/// Maximum rounds of clipping the strings of a call's arguments again because they were too large.
const MAX_ROUNDS: usize = 8;

/// Texts of a message after clipping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clipped {
    /// One entry per text.
    pub cuts: Vec<TextCut>,
    /// Total size of the clipped texts.
    pub text_tokens: u64,
}

/// Clips `texts` to at most `level_tokens` in total: whole texts from the front up to two thirds of
/// that, and from the back up to one third. The two texts where these run out are clipped; texts
/// between them are removed.
pub(crate) fn clip_texts<T: AsRef<str>>(
    encoding: Encoding,
    texts: &[T],
    level_tokens: u64,
) -> Clipped {
    let sizes: Vec<u64> = texts.iter().map(|text| encoding.count(text.as_ref())).collect();
    let total: u64 = sizes.iter().sum();
    let mut clipped = Clipped { cuts: vec![TextCut::Whole; texts.len()], text_tokens: total };
    if total <= level_tokens {
        return clipped;
    }
    let shared_tokens = level_tokens.saturating_sub(MARKER_TOKENS);
    let (mut front, mut front_tokens) = (0, 0);
    while front_tokens + sizes[front] <= shared_tokens * 2 / 3 {
        front_tokens += sizes[front];
        front += 1;
    }
    let (mut back, mut back_tokens) = (texts.len(), 0);
    while back > front + 1 && back_tokens + sizes[back - 1] <= shared_tokens / 3 {
        back -= 1;
        back_tokens += sizes[back];
    }
    let room = level_tokens - front_tokens - back_tokens;
    let gone_bytes = texts[front + 1..back].iter().map(|text| text.as_ref().len()).sum();
    let (clip, tokens) = clip_text(encoding, texts[front].as_ref(), gone_bytes, room);
    clipped.cuts[front] = TextCut::Clip(clip);
    clipped.cuts[front + 1..back].fill(TextCut::Gone);
    clipped.text_tokens = front_tokens + back_tokens + tokens;
    clipped
}

/// Clips the arguments of a call, given as JSON text, to about `level_tokens`. `None` if they are
/// small enough, are neither a string nor an object, or would not become shorter.
///
/// JSON arguments stay JSON with the same members: long texts in them are clipped, the longest
/// first. Other arguments are one text.
pub(crate) fn clip_arguments(
    encoding: Encoding,
    arguments: &str,
    level_tokens: u64,
) -> Option<String> {
    let text = arguments_text(arguments)?;
    let whole_tokens = encoding.count(&text);
    if whole_tokens <= level_tokens {
        return None;
    }
    let mut walk = Walk::new(&text);
    let is_json = walk.value().is_some() && walk.peek().is_none();
    if !is_json {
        let (clip, tokens) = clip_text(encoding, &text, 0, level_tokens);
        return (tokens < whole_tokens).then(|| clipped(&text, &clip));
    }
    let literals = json::value_strings(&text);
    let sizes: Vec<u64> =
        literals.iter().map(|raw| encoding.count(&raw[1..raw.len() - 1])).collect();
    let fixed_tokens = whole_tokens.saturating_sub(sizes.iter().sum());
    let mut most_tokens = even_share(&sizes, level_tokens.saturating_sub(fixed_tokens));
    let mut best: Option<(u64, String)> = None;
    for _ in 0..MAX_ROUNDS {
        most_tokens = most_tokens.max(MARKER_TOKENS);
        let short = with_short_strings(encoding, &text, &literals, &sizes, most_tokens);
        let tokens = encoding.count(&short);
        if best.as_ref().is_none_or(|(least, _)| tokens < *least) {
            best = Some((tokens, short));
        }
        if tokens <= level_tokens || most_tokens == MARKER_TOKENS {
            break;
        }
        // Escapes and split tokens take more than their earlier count.
        most_tokens -= most_tokens / 4;
    }
    best.filter(|(tokens, _)| *tokens < whole_tokens).map(|(_, short)| short)
}

/// Returns the size that the largest of `sizes` must shrink to, so that all fit in `room` together.
fn even_share(sizes: &[u64], room: u64) -> u64 {
    let mut sorted = sizes.to_vec();
    sorted.sort_unstable();
    let mut left = room;
    for (place, size) in sorted.iter().enumerate() {
        let share = left / (sorted.len() - place) as u64;
        if *size > share {
            return share;
        }
        left -= size;
    }
    sorted.last().copied().unwrap_or(0)
}

/// Returns `text` with each string of `literals` clipped that exceeds `most_tokens`.
fn with_short_strings(
    encoding: Encoding,
    text: &str,
    literals: &[&str],
    sizes: &[u64],
    most_tokens: u64,
) -> String {
    let mut out = String::new();
    let mut written = 0;
    for (literal, _) in literals.iter().zip(sizes).filter(|(_, size)| **size > most_tokens) {
        let Some(value) = json::string(literal) else { continue };
        let start = literal.as_ptr() as usize - text.as_ptr() as usize;
        let (clip, _) = clip_text(encoding, &value, 0, most_tokens);
        out.push_str(&text[written..=start]);
        json::escape_into(&clipped(&value, &clip), &mut out);
        written = start + literal.len() - 1;
    }
    out.push_str(&text[written..]);
    out
}

/// Clips one text to at most `most_tokens`: two thirds head, one third tail. The marker also counts
/// `gone_bytes`, the bytes of the texts removed behind it.
fn clip_text(encoding: Encoding, text: &str, gone_bytes: usize, most_tokens: u64) -> (Clip, u64) {
    let whole_bytes = text.len() + gone_bytes;
    let mut room = most_tokens.saturating_sub(encoding.count(&marker(whole_bytes, whole_bytes)));
    loop {
        let head_bytes = encoding.head_bytes(text, room - room / 3);
        let tail_bytes = encoding.tail_bytes(&text[head_bytes..], room / 3);
        let left_out = whole_bytes - head_bytes - tail_bytes;
        let clip = Clip { head_bytes, tail_bytes, marker: marker(left_out, whole_bytes) };
        let tokens = encoding.count(&clipped(text, &clip));
        if tokens <= most_tokens || room == 0 {
            return (clip, tokens);
        }
        // Split tokens take more than they did whole: leave out that much more.
        room = room.saturating_sub(tokens - most_tokens);
    }
}

fn marker(left_out_bytes: usize, whole_bytes: usize) -> String {
    format!("\n[weir: {left_out_bytes} of {whole_bytes} bytes left out here]\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipped_texts_stay_within_the_level() {
        let log =
            "2024-05-01 12:00:00 INFO worker-7 handled request id=9f3a in 12ms\n".repeat(2000);
        let one_line = "x".repeat(200_000);
        let han = "测试文本，".repeat(20_000);
        for encoding in [Encoding::O200kBase, Encoding::Cl100kBase, Encoding::Estimate] {
            for text in [&log, &one_line, &han] {
                for level in LADDER_TOKENS {
                    let clipped = clip_texts(encoding, &[text], level);
                    assert!(clipped.text_tokens <= level, "{encoding:?} {level}");
                    let size = encoding.count(text);
                    assert_eq!(clipped.cuts[0] != TextCut::Whole, size > level);
                    if size > level {
                        assert!(
                            clipped.text_tokens * 10 >= level * 8,
                            "{} of {level}",
                            clipped.text_tokens
                        );
                    }
                }
            }
        }
    }

    /// Returns the number of bytes left out of `texts`.
    fn left_out(texts: &[String], clipped: &Clipped) -> usize {
        let own = |(text, cut): (&String, &TextCut)| match cut {
            TextCut::Whole => 0,
            TextCut::Clip(clip) => text.len() - clip.head_bytes - clip.tail_bytes,
            TextCut::Gone => text.len(),
        };
        texts.iter().zip(&clipped.cuts).map(own).sum()
    }

    /// Returns the number of bytes that the marker reports as left out.
    fn said_to_be_left_out(clipped: &Clipped) -> usize {
        let marker = clipped.cuts.iter().find_map(|cut| match cut {
            TextCut::Clip(clip) => Some(&clip.marker),
            _ => None,
        });
        let words = marker.map(|marker| marker.split_whitespace().nth(1));
        words.flatten().and_then(|bytes| bytes.parse().ok()).expect("a marker with a number")
    }

    #[test]
    fn several_texts_share_the_level() {
        let many: Vec<String> =
            (0..400).map(|part| format!("part {part} says a few words")).collect();
        let few = vec!["alpha beta ".repeat(3000), "short".into(), "gamma delta ".repeat(1000)];
        let ends = vec!["first".into(), "x y ".repeat(9000), "last".into()];
        for texts in [many, few, ends] {
            let clipped = clip_texts(Encoding::O200kBase, &texts, 1024);
            assert!(clipped.text_tokens <= 1024 && clipped.text_tokens > 800);
            let clips = clipped.cuts.iter().filter(|cut| matches!(cut, TextCut::Clip(_)));
            assert_eq!(clips.count(), 1, "one marker says what is left out");
            assert_eq!(said_to_be_left_out(&clipped), left_out(&texts, &clipped));
        }
        let ends = ["first".to_owned(), "x y ".repeat(9000), "last".to_owned()];
        let clipped = clip_texts(Encoding::O200kBase, &ends, 1024);
        assert_eq!((&clipped.cuts[0], &clipped.cuts[2]), (&TextCut::Whole, &TextCut::Whole));
    }

    #[test]
    fn short_steps_are_kept_to_as_well() {
        let log = "2024-05-01 12:00:00 INFO worker-7 handled request in 12ms\n".repeat(2000);
        for level in SHORT_TOKENS.into_iter().chain(LAST_TOKENS) {
            let clipped = clip_texts(Encoding::O200kBase, &[&log], level);
            assert!(clipped.text_tokens <= level, "{} of {level}", clipped.text_tokens);
        }
    }

    /// Clips the arguments `value`, as they stand in a call, to `level_tokens`.
    fn clipped_arguments(value: &serde_json::Value, level_tokens: u64) -> Option<String> {
        let literal = serde_json::Value::from(value.to_string()).to_string();
        clip_arguments(Encoding::O200kBase, &literal, level_tokens)
    }

    #[test]
    fn clipped_arguments_are_json_with_the_same_members() {
        let long = "def é(\"line\"):\n\treturn {1: '\u{1F980}'}\n".repeat(900);
        let arguments = serde_json::json!({
            "path": "src/a \"b\".rs", "line": 17, "\"key\": ": true, "text": long,
            "edits": [{"old": "x", "new": long}, {"old": "short", "new": ""}], "none": null,
        });
        for level in LADDER_TOKENS.into_iter().chain(SHORT_TOKENS) {
            let Some(short) = clipped_arguments(&arguments, level) else {
                assert!(level > 16_384, "{level}");
                continue;
            };
            let tokens = Encoding::O200kBase.count(&short);
            assert!(tokens <= level && tokens * 2 > level, "{tokens} of {level}");
            let mut read: serde_json::Value = serde_json::from_str(&short).expect("JSON");
            for place in ["/text", "/edits/0/new"] {
                let text = read.pointer_mut(place).expect("it is there");
                let said = text.as_str().expect("a text");
                assert!(said.starts_with("def é(\"line\"") && said.ends_with("'}\n"), "{said}");
                assert!(said.contains("bytes left out here]"), "{said}");
                *text = long.clone().into();
            }
            assert_eq!(read, arguments, "all else is as it was");
        }
        assert_eq!(clipped_arguments(&arguments, 1024), clipped_arguments(&arguments, 1024));
    }

    #[test]
    fn the_longest_texts_of_arguments_are_clipped_first() {
        let (long, short) = ("one two three ".repeat(800), "four five six ".repeat(30));
        let arguments = serde_json::json!({"a": short, "b": long, "c": short});
        let clipped = clipped_arguments(&arguments, 1024).expect("there is something to clip");
        let read: serde_json::Value = serde_json::from_str(&clipped).expect("JSON");
        assert_eq!((&read["a"], &read["c"]), (&arguments["a"], &arguments["c"]));
        assert!(read["b"].as_str().is_some_and(|text| text.len() < long.len() / 2));
    }

    #[test]
    fn other_arguments_are_one_text_and_small_ones_stay() {
        let broken = format!("\"{{\\\"text\\\": \\\"{}\"", "torn off ".repeat(500));
        let clipped = clip_arguments(Encoding::O200kBase, &broken, 256).expect("it is long");
        assert!(clipped.starts_with("{\"text\": \"torn off") && clipped.contains("left out here"));
        assert!(Encoding::O200kBase.count(&clipped) <= 256);
        let numbers = serde_json::json!({"rows": (0..2000).collect::<Vec<_>>()});
        assert_eq!(clipped_arguments(&numbers, 256), None, "there is no text in it");
        for same in ["\"{}\"", "{\"a\": 1}", "", "\"{\\\"a\\\":\\\"b\\\"}\""] {
            assert_eq!(clip_arguments(Encoding::O200kBase, same, 256), None, "{same}");
        }
    }
}
