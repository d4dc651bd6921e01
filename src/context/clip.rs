//! The last resort: contents clipped head and tail to a fixed ladder of sizes.

use crate::tokens::Encoding;
use crate::wire::splice::{Clip, TextCut, clipped};

/// The sizes, in tokens, that a content may be clipped to.
pub const LADDER_TOKENS: [u64; 6] = [32_768, 16_384, 8_192, 4_096, 2_048, 1_024];

/// The most that a marker takes, numbers of any size included.
const MARKER_TOKENS: u64 = 40;

/// A message's texts after clipping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clipped {
    /// One entry for each text.
    pub cuts: Vec<TextCut>,
    /// What the texts take now.
    pub text_tokens: u64,
}

/// Clips `texts` so that together they take at most `level_tokens`: whole texts from the front up to
/// two thirds of that, and from the back up to one third; the two in which these run out are
/// clipped, and what stands between goes.
pub fn clip_texts<T: AsRef<str>>(encoding: Encoding, texts: &[T], level_tokens: u64) -> Clipped {
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

/// Clips one text to at most `most_tokens`: two thirds head, one third tail. The marker speaks of
/// the `gone_bytes` of the texts that go behind it, too.
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
        // Pieces cut in two took more than they did whole: leave that much more out.
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

    /// The bytes that the cuts leave out of `texts`.
    fn left_out(texts: &[String], clipped: &Clipped) -> usize {
        let own = |(text, cut): (&String, &TextCut)| match cut {
            TextCut::Whole => 0,
            TextCut::Clip(clip) => text.len() - clip.head_bytes - clip.tail_bytes,
            TextCut::Gone => text.len(),
        };
        texts.iter().zip(&clipped.cuts).map(own).sum()
    }

    /// The bytes that the marker says are left out.
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
}
