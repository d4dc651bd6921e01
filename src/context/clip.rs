//! The last resort: contents clipped head and tail to a fixed ladder of sizes.

use crate::tokens::Encoding;
use crate::wire::splice::{Clip, clipped};
use crate::wire::{Protocol, json};

/// The sizes, in tokens, that a content may be clipped to.
pub const LADDER_TOKENS: [u64; 6] = [32_768, 16_384, 8_192, 4_096, 2_048, 1_024];

/// What the fold asks when it must clip: the texts of one message brought to a size.
pub trait ClipSource {
    /// Clips the texts of `message` to at most `level_tokens` together.
    fn clip(&self, message: usize, level_tokens: u64) -> Clipped;
}

/// A message's texts after clipping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clipped {
    /// One entry for each text, `None` where it stayed whole.
    pub clips: Vec<Option<Clip>>,
    /// What the texts take now.
    pub text_tokens: u64,
}

/// Clips messages of a request as received.
pub struct RequestClips<'a> {
    pub protocol: Protocol,
    pub messages: &'a [&'a str],
    pub encoding: Encoding,
}

impl ClipSource for RequestClips<'_> {
    fn clip(&self, message: usize, level_tokens: u64) -> Clipped {
        let Ok(message) = self.protocol.read_message(self.messages[message]) else {
            return Clipped { clips: Vec::new(), text_tokens: 0 };
        };
        let texts: Vec<_> =
            message.texts().into_iter().map(|raw| json::string(raw).unwrap_or_default()).collect();
        clip_texts(self.encoding, &texts, level_tokens)
    }
}

/// Clips `texts` so that together they take at most `level_tokens`, each in proportion to its size.
fn clip_texts<T: AsRef<str>>(encoding: Encoding, texts: &[T], level_tokens: u64) -> Clipped {
    let sizes: Vec<u64> = texts.iter().map(|text| encoding.count(text.as_ref())).collect();
    let total: u64 = sizes.iter().sum();
    let mut clipped = Clipped { clips: Vec::new(), text_tokens: 0 };
    for (text, size) in texts.iter().zip(sizes) {
        let share = (u128::from(level_tokens) * u128::from(size) / u128::from(total.max(1))) as u64;
        let (clip, tokens) = if total <= level_tokens {
            (None, size)
        } else {
            clip_text(encoding, text.as_ref(), size, share)
        };
        clipped.text_tokens += tokens;
        clipped.clips.push(clip);
    }
    clipped
}

/// Clips one text of `size_tokens` to at most `most_tokens`: two thirds head, one third tail.
fn clip_text(
    encoding: Encoding,
    text: &str,
    size_tokens: u64,
    most_tokens: u64,
) -> (Option<Clip>, u64) {
    // A text that is no larger than its marker would be is left alone.
    let marker_tokens = encoding.count(&marker(text.len(), text.len())) + 4;
    if size_tokens <= marker_tokens {
        return (None, size_tokens);
    }
    let mut room = most_tokens.saturating_sub(marker_tokens);
    loop {
        let head = encoding.head_bytes(text, room - room / 3);
        let tail = encoding.tail_bytes(&text[head..], room / 3);
        let left_out = text.len() - head - tail;
        let clip =
            Clip { head_bytes: head, tail_bytes: tail, marker: marker(left_out, text.len()) };
        let tokens = encoding.count(&clipped(text, &clip));
        if tokens <= most_tokens || room == 0 {
            return (Some(clip), tokens);
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
                    assert_eq!(clipped.clips[0].is_some(), size > level);
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

    #[test]
    fn several_texts_share_the_level() {
        let texts = ["alpha beta ".repeat(3000), "short".into(), "gamma delta ".repeat(1000)];
        let clipped = clip_texts(Encoding::O200kBase, &texts, 1024);
        assert!(clipped.text_tokens <= 1024 + 1);
        assert!(clipped.clips[0].is_some() && clipped.clips[1].is_none());
        let clip = clipped.clips[0].as_ref().expect("clipped");
        assert!(clip.head_bytes > clip.tail_bytes);
    }
}
