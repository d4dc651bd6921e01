//! Judge of whole messages that knows no values: a compressor. It learns a context, and its bits for the
//! recorded answer say how much the context still says about that answer. Reads no file.
//!
//! The model predicts byte after byte by the ten bytes before it, interpolated over all shorter contexts
//! (Witten and Bell), as compressors of the family PPM do. It learns a primer first, the same for all arms,
//! so that grammar and markup cost little and what remains is the content.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use weir_engine::wire::Role;
use weir_eval::conversation::{Conversation, Message};
use weir_eval::questions::Questions;
use weir_eval::sent::SentPiece;

use crate::random::Random;

/// Longest context, in bytes.
const ORDER: usize = 10;
/// Samples of conversations for the interval of a share.
const RESAMPLES: usize = 1000;
/// What stands for an old result that is masked.
const MASK: &str = "[old tool result left out]";

/// Contexts of one request, all but the first of the same size in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// All messages.
    Full,
    /// What weir sends.
    Weir,
    /// System messages, the first user message, and as much of the newest text as fits.
    Newest,
    /// All messages, the oldest results masked until they fit; then as `Newest`.
    Masked,
}

impl Arm {
    /// All arms, each at the index of its number.
    pub const ALL: [Self; 4] = [Self::Full, Self::Weir, Self::Newest, Self::Masked];
}

/// Bits of one answer under each arm: of all its bytes, of those of values that occurred before, and of those
/// of values that occurred only before the last four messages.
pub type Bits = [[f64; 3]; Arm::ALL.len()];

/// Hashes that are used as they are.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type ByHash<V> = HashMap<u64, V, BuildHasherDefault<AsIs>>;

/// What was seen behind a context.
#[derive(Clone, Default)]
struct Seen {
    times: u32,
    /// Bit for each byte seen.
    bytes: [u64; 4],
}

/// Model of one answer: counts of those contexts alone that occur in it, so that a long text is learned fast.
#[derive(Clone)]
struct Model {
    contexts: ByHash<Seen>,
    /// Times that a byte of the answer was seen behind a context.
    pairs: ByHash<u32>,
}

impl Model {
    fn of(answer: &[u8]) -> Self {
        let mut own = Self { contexts: HashMap::default(), pairs: HashMap::default() };
        for at in 0..answer.len() {
            for context in contexts(answer, at) {
                own.contexts.entry(context).or_default();
                own.pairs.entry(joined(context, answer[at])).or_default();
            }
        }
        own
    }

    fn learn(&mut self, text: &[u8]) {
        (0..text.len()).for_each(|at| self.learn_at(text, at));
    }

    fn learn_at(&mut self, text: &[u8], at: usize) {
        let byte = text[at];
        for context in contexts(text, at) {
            // If a context does not occur in the answer, no longer one does.
            let Some(seen) = self.contexts.get_mut(&context) else { break };
            seen.times += 1;
            seen.bytes[usize::from(byte >> 6)] |= 1 << (byte & 63);
            if let Some(times) = self.pairs.get_mut(&joined(context, byte)) {
                *times += 1;
            }
        }
    }

    /// Returns the bits of each byte of the answer, which is learned on the way.
    fn bits(mut self, answer: &[u8]) -> Vec<f64> {
        let mut bits = Vec::with_capacity(answer.len());
        for at in 0..answer.len() {
            let mut probability = 1.0 / 256.0;
            for context in contexts(answer, at) {
                let seen = &self.contexts[&context];
                if seen.times == 0 {
                    break;
                }
                let times = f64::from(self.pairs[&joined(context, answer[at])]);
                let kinds = f64::from(seen.bytes.iter().map(|own| own.count_ones()).sum::<u32>());
                probability = (times + kinds * probability) / (f64::from(seen.times) + kinds);
            }
            bits.push(-probability.log2());
            self.learn_at(answer, at);
        }
        bits
    }
}

/// Returns the hash of each context before a place, the shortest first.
fn contexts(text: &[u8], at: usize) -> impl Iterator<Item = u64> + use<'_> {
    let mut hash = 0x9e37_79b9_7f4a_7c15;
    (0..=ORDER.min(at)).map(move |length| {
        if length > 0 {
            hash = joined(hash, text[at - length]);
        }
        hash
    })
}

fn joined(hash: u64, byte: u8) -> u64 {
    let mixed = (hash ^ (u64::from(byte) + 1)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}

/// Returns a message as the model reads it.
fn rendered(message: &Message) -> String {
    let texts: Vec<&str> = message.texts.iter().map(|text| text.text.as_str()).collect();
    format!("\n<{:?}>\n{}", message.role, texts.join("\n"))
}

/// Returns the beginning of conversations as a primer of so many bytes in all.
pub fn primer(conversations: &[&Conversation], bytes: usize) -> String {
    let own_bytes = bytes / conversations.len().max(1);
    let own = |conversation: &&Conversation| {
        let mut text: String = conversation.messages.iter().map(rendered).collect();
        text.truncate(text.floor_char_boundary(own_bytes));
        text
    };
    conversations.iter().map(own).collect()
}

/// Returns the bits of the answer to turn `place`, for which weir sent `sent`.
pub fn judged(
    conversation: &Conversation,
    questions: &Questions,
    place: usize,
    sent: &[SentPiece],
    primer: &str,
) -> Bits {
    let length = conversation.turns[place];
    let answer = rendered(&conversation.messages[length]);
    let columns = columns(conversation, questions, place, &answer);
    let mut primed = Model::of(answer.as_bytes());
    primed.learn(primer.as_bytes());
    let tokens = sent.iter().map(|piece| piece.tokens(conversation)).sum();
    Arm::ALL.map(|arm| {
        let mut model = primed.clone();
        let context = match arm {
            Arm::Full => conversation.messages[..length].iter().map(rendered).collect(),
            Arm::Weir => sent.iter().map(|piece| rendered(piece.message(conversation))).collect(),
            Arm::Newest => fitted(conversation, length, tokens, false),
            Arm::Masked => fitted(conversation, length, tokens, true),
        };
        model.learn(context.as_bytes());
        let bits = model.bits(answer.as_bytes());
        [0, 1, 2].map(|column| {
            bits.iter().zip(&columns).filter(|(_, own)| **own >= column).map(|(own, _)| own).sum()
        })
    })
}

/// Returns for each byte of the answer the last column that counts it.
fn columns(
    conversation: &Conversation,
    questions: &Questions,
    place: usize,
    answer: &str,
) -> Vec<usize> {
    let length = conversation.turns[place];
    let texts = &conversation.messages[length].texts;
    let mut columns = vec![0; answer.len()];
    let far: HashSet<u32> =
        questions.turns[place].references.iter().map(|own| own.needle).collect();
    let others = questions.actions.iter().chain(&questions.users).map(|(_, needle)| *needle);
    let others: HashSet<u32> = others.collect();
    for (number, needle) in (0..).zip(&questions.needles).filter(|(own, _)| !others.contains(own)) {
        let is_known = needle.places.first().is_some_and(|own| (own.message as usize) < length);
        let column = 1 + usize::from(far.contains(&number));
        for own in needle.places.iter().filter(|own| is_known && own.message as usize == length) {
            let text = own.text as usize;
            let all: usize = texts.iter().map(|text| text.text.len() + 1).sum();
            let before: usize = texts[..text].iter().map(|text| text.text.len() + 1).sum();
            let start = answer.len() + 1 - all + before + own.start as usize;
            for column_of in &mut columns[start..start + needle.text.len()] {
                *column_of = column.max(*column_of);
            }
        }
    }
    columns
}

/// Returns the messages, shortened to so many tokens: of the one at the border as much as fits.
fn fitted(conversation: &Conversation, length: usize, tokens: u64, masks: bool) -> String {
    let messages = &conversation.messages[..length];
    let mut left = conversation.full_tokens(length) as f64 - tokens as f64;
    let mut texts: Vec<String> = messages.iter().map(rendered).collect();
    let first = conversation.first_user();
    let stays = |at: usize| messages[at].role == Role::System || Some(at) == first;
    let is_result = |at: usize| messages[at].role == Role::Tool;
    let mut cut = |at: usize, left: &mut f64, tokens: f64, instead: &str| {
        let bytes = texts[at].len() as f64 * (*left / tokens.max(1.0)).clamp(0.0, 1.0);
        let end = texts[at].floor_char_boundary(bytes as usize);
        texts[at].replace_range(..end, instead);
        *left -= tokens;
    };
    let all = || (0..length).filter(|at| !stays(*at));
    for at in all().filter(|at| masks && is_result(*at)) {
        if left > 0.0 {
            cut(at, &mut left, messages[at].fact.tokens as f64, MASK);
        }
    }
    for at in all().filter(|at| !masks || !is_result(*at)) {
        if left > 0.0 {
            cut(at, &mut left, messages[at].fact.tokens as f64, "");
        }
    }
    texts.concat()
}

/// Returns the share of bits that an arm needs more than the full context, by column, with the bounds of its
/// 95 % interval over conversations.
pub fn extra(judged: &[Vec<Bits>], arm: Arm, column: usize) -> [f64; 3] {
    let sums = |own: &Vec<Bits>| {
        let of = |arm: Arm| own.iter().map(|bits| bits[arm as usize][column]).sum::<f64>();
        [of(arm), of(Arm::Full)]
    };
    let all: Vec<[f64; 2]> = judged.iter().map(sums).collect();
    let share = |own: &mut dyn Iterator<Item = &[f64; 2]>| {
        let [arm, full] = own.fold([0.0, 0.0], |sum, own| [sum[0] + own[0], sum[1] + own[1]]);
        if full > 0.0 { arm / full - 1.0 } else { 0.0 }
    };
    let mut random = Random::new(1, 0);
    let mut resampled: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            share(&mut (0..all.len()).map(|_| random.pick(&all)).collect::<Vec<_>>().into_iter())
        })
        .collect();
    resampled.sort_by(f64::total_cmp);
    [share(&mut all.iter()), resampled[RESAMPLES / 40], resampled[RESAMPLES - 1 - RESAMPLES / 40]]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(context: &str, answer: &str) -> f64 {
        let mut model = Model::of(answer.as_bytes());
        model.learn(context.as_bytes());
        model.bits(answer.as_bytes()).iter().sum()
    }

    #[test]
    fn what_a_context_says_costs_little() {
        let answer = "close the gate at pond_4711";
        let (told, untold) =
            ("we must close the gate at pond_4711 soon", "nothing of the kind here");
        assert!(bits(told, answer) < bits(untold, answer) / 3.0);
        assert!((bits("", "a") - 8.0).abs() < 1e-9);
    }
}
