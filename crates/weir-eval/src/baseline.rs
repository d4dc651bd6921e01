//! Baseline policies in common use, for comparison with the engine. Each works on whole turns (a
//! call with its results, or one message), and keeps the system messages and the first user
//! message.

use std::rc::Rc;

use super::conversation::{Conversation, Message};
use super::sent::{Other, SentPiece};
use weir_engine::tokens::MESSAGE_FRAMING;
use weir_engine::wire::Role;

/// Number of newest tool results that masking keeps.
const UNMASKED_RESULTS: usize = 5;
const MASK: &str = "[old tool result left out]";
/// Results of at most this size are not worth masking.
const MASKED_TOKENS: u64 = MESSAGE_FRAMING + 8;

/// Baseline policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    /// Sends everything.
    None,
    /// For each request separately, drops the oldest turns until the rest fits.
    DropOldest,
    /// If the size exceeds the budget, drops the oldest turns permanently, down to 0.6 of it.
    StickyDrop,
    /// If the size exceeds the budget, replaces all but the newest tool results with a short
    /// placeholder.
    MaskResults,
}

impl Baseline {
    /// Names of the baselines on the command line.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("none", Self::None),
        ("drop_oldest", Self::DropOldest),
        ("sticky_drop", Self::StickyDrop),
        ("mask_obs", Self::MaskResults),
    ];

    /// Returns the baseline called `name`, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(own, _)| *own == name).map(|(_, baseline)| *baseline)
    }
}

/// Replay of a conversation under a baseline, request by request.
pub struct Course<'a> {
    conversation: &'a Conversation,
    budget_tokens: u64,
    baseline: Baseline,
    is_gone: Vec<bool>,
    sent: Vec<SentPiece>,
    masks: Vec<Option<Rc<Other>>>,
}

impl<'a> Course<'a> {
    /// Starts the replay of `conversation`.
    pub fn new(conversation: &'a Conversation, budget_tokens: u64, baseline: Baseline) -> Self {
        Self {
            conversation,
            budget_tokens,
            baseline,
            is_gone: vec![false; conversation.messages.len()],
            sent: Vec::new(),
            masks: vec![None; conversation.messages.len()],
        }
    }

    /// Returns the messages sent for the first `length` messages.
    pub fn send(&mut self, length: usize) -> &[SentPiece] {
        match self.baseline {
            Baseline::None => {}
            Baseline::DropOldest => {
                self.is_gone.fill(false);
                self.drop_to(length, self.budget_tokens);
            }
            Baseline::StickyDrop => {
                if self.size_tokens(length) > self.budget_tokens {
                    self.drop_to(length, self.budget_tokens * 6 / 10);
                }
            }
            Baseline::MaskResults => return self.mask(length),
        }
        let kept = (0..length).filter(|index| !self.is_gone[*index]);
        self.sent = kept.map(SentPiece::Verbatim).collect();
        &self.sent
    }

    fn size_tokens(&self, length: usize) -> u64 {
        let messages = self.conversation.messages[..length].iter().zip(&self.is_gone);
        messages.filter(|(_, gone)| !**gone).map(|(message, _)| message.fact.tokens).sum()
    }

    /// Drops the oldest turns until the size is `most_tokens` or nothing more may be dropped.
    fn drop_to(&mut self, length: usize, most_tokens: u64) {
        let messages = &self.conversation.messages;
        let first_user = self.conversation.first_user();
        let newest = self.conversation.last_turn(length);
        let mut size = self.size_tokens(length);
        let mut index = 0;
        while index < newest && size > most_tokens {
            let results = messages[index + 1..newest].iter();
            let end = index + 1 + results.take_while(|message| message.role == Role::Tool).count();
            if messages[index].role != Role::System && Some(index) != first_user {
                for (message, gone) in messages[index..end].iter().zip(&mut self.is_gone[index..]) {
                    size -= if *gone { 0 } else { message.fact.tokens };
                    *gone = true;
                }
            }
            index = end;
        }
    }

    fn mask(&mut self, length: usize) -> &[SentPiece] {
        let conversation = self.conversation;
        let is_above = conversation.full_tokens(length) > self.budget_tokens;
        let messages = conversation.messages[..length].iter().enumerate();
        let is_result = |(_, message): &(usize, &Message)| message.role == Role::Tool;
        let results: Vec<usize> =
            messages.clone().filter(is_result).map(|(index, _)| index).collect();
        let old = if is_above { results.len().saturating_sub(UNMASKED_RESULTS) } else { 0 };
        self.sent.clear();
        for (index, message) in messages {
            let is_old = results[..old].binary_search(&index).is_ok();
            let piece = match is_old && message.fact.tokens > MASKED_TOKENS {
                true => SentPiece::Other(self.masked(index)),
                false => SentPiece::Verbatim(index),
            };
            self.sent.push(piece);
        }
        &self.sent
    }

    fn masked(&mut self, index: usize) -> Rc<Other> {
        let answers = self.conversation.messages[index].answers.as_deref().unwrap_or_default();
        let raw = serde_json::json!({"role": "tool", "tool_call_id": answers, "content": MASK});
        let read = || {
            let other = Other::read(&raw.to_string(), Some(index));
            Rc::new(other.expect("a tool's message is one"))
        };
        Rc::clone(self.masks[index].get_or_insert_with(read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// System, user, then four turns of a call and its result, about 100 tokens each.
    fn conversation() -> Conversation {
        let words = "word ".repeat(90);
        let mut messages = vec![
            r#"{"role":"system","content":"s"}"#.to_owned(),
            r#"{"role":"user","content":"u"}"#.to_owned(),
        ];
        for call in 0..4 {
            messages.push(format!(
                r#"{{"role":"assistant","tool_calls":[{{"id":"{call}","function":{{"name":"f","arguments":"{{}}"}}}}]}}"#
            ));
            messages
                .push(format!(r#"{{"role":"tool","tool_call_id":"{call}","content":"{words}"}}"#));
        }
        messages.push(r#"{"role":"assistant","content":"done"}"#.to_owned());
        let line = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
        Conversation::read(&line, 1, None).expect("it is a conversation")
    }

    #[test]
    fn each_baseline_drops_what_it_is_known_for() {
        let conversation = conversation();
        let all: Vec<usize> = (0..10).collect();
        // At 350 tokens three of the four turns fit; 0.6 of that holds one.
        for (baseline, at_8, at_10) in [
            (Baseline::None, &all[..8], &all[..]),
            (Baseline::DropOldest, &all[..8], &[0, 1, 4, 5, 6, 7, 8, 9]),
            (Baseline::StickyDrop, &all[..8], &[0, 1, 8, 9]),
        ] {
            let mut course = Course::new(&conversation, 350, baseline);
            for (length, kept) in [(8, at_8), (10, at_10)] {
                let index = |piece: &SentPiece| match piece {
                    SentPiece::Verbatim(index) => *index,
                    SentPiece::Other(_) => panic!("nothing is changed"),
                };
                let sent: Vec<usize> = course.send(length).iter().map(index).collect();
                assert_eq!(sent, kept, "{baseline:?} at {length}");
            }
        }
    }

    #[test]
    fn masking_leaves_the_newest_results() {
        let line = |calls: usize| {
            let turns: Vec<String> = (0..calls)
                .map(|call| {
                    format!(
                        r#"{{"role":"assistant","tool_calls":[{{"id":"{call}","function":{{"name":"f","arguments":"{{}}"}}}}]}},
                           {{"role":"tool","tool_call_id":"{call}","content":"{}"}}"#,
                        "word ".repeat(50)
                    )
                })
                .collect();
            format!(r#"{{"messages":[{{"role":"user","content":"u"}},{}]}}"#, turns.join(","))
        };
        let conversation = Conversation::read(&line(7), 1, None).expect("it is a conversation");
        let mut course = Course::new(&conversation, 100, Baseline::MaskResults);
        let masked = |piece: &SentPiece| matches!(piece, SentPiece::Other(_));
        let sent: Vec<bool> = course.send(15).iter().map(masked).collect();
        let places: Vec<usize> = (0..15).filter(|place| sent[*place]).collect();
        assert_eq!(places, [2, 4]);
    }
}
