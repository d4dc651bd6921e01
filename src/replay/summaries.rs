//! Summaries that say nothing, in the place of a model's: what having them costs, and what excerpts
//! lose by the room that they take. A summary is asked for at a request past the announce mark, of
//! what the next cut would take then, and is there at the next request. Asks no model.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::conversation::MEASURE;
use crate::context::Summary;
use crate::context::summary::{Size, rounds};
use crate::tokens::MESSAGE_FRAMING;
use crate::wire::Protocol;

/// Where, on the way to the hard mark, a summary is asked for.
pub const ANNOUNCE_PERMILLE: u32 = 800;
/// What a token that a model writes costs, in tokens that it reads.
const ANSWER_PRICE: f64 = 4.0;
/// A window that needs no rounds.
const AMPLE_TOKENS: u64 = 1 << 40;

/// How summaries are stubbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stub {
    /// What each takes, exactly.
    pub cap_tokens: u64,
    /// The summariser's price, as a share of the conversation's own model's.
    pub price_permille: u32,
}

/// What the summaries of a conversation came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Summaries {
    /// Summaries asked for.
    pub calls: u64,
    /// Cuts whose note begins with one, of how many.
    pub used: u64,
    pub cuts: u64,
    /// What the summariser read and wrote.
    pub prompt_tokens: u64,
    pub answer_tokens: u64,
    /// What that costs, in tokens that the conversation's model reads.
    pub billed_tokens: f64,
}

impl Summaries {
    /// Takes those of another conversation.
    pub fn merge(&mut self, other: Self) {
        self.calls += other.calls;
        self.used += other.used;
        self.cuts += other.cuts;
        self.prompt_tokens += other.prompt_tokens;
        self.answer_tokens += other.answer_tokens;
        self.billed_tokens += other.billed_tokens;
    }
}

/// The summaries of one conversation.
pub struct Stubs {
    stub: Stub,
    text: Arc<str>,
    /// The spans that were asked for.
    asked: RefCell<Vec<Vec<usize>>>,
    /// What stands for each span that was cut, for ever.
    records: RefCell<BTreeMap<Vec<usize>, Option<Summary>>>,
    figures: Cell<Summaries>,
}

impl Stubs {
    /// None so far.
    pub fn new(stub: Stub) -> Self {
        Self {
            stub,
            text: filler(stub.cap_tokens).into(),
            asked: RefCell::default(),
            records: RefCell::default(),
            figures: Cell::default(),
        }
    }

    /// What stands for the messages `gone`.
    pub fn of(&self, gone: &[usize]) -> Option<Summary> {
        let mut records = self.records.borrow_mut();
        if let Some(known) = records.get(gone) {
            return known.clone();
        }
        let covers = self.covered(gone);
        let found = (covers > 0).then(|| Summary { covers, text: Arc::clone(&self.text) });
        records.insert(gone.to_vec(), found.clone());
        found
    }

    /// How many of the messages of `span`, from the front, the longest summary speaks of.
    fn covered(&self, span: &[usize]) -> usize {
        let asked = self.asked.borrow();
        asked.iter().filter(|own| span.starts_with(own)).map(Vec::len).max().unwrap_or(0)
    }

    /// Asks for the summary of what the next cut will take, where none covers half of it.
    pub fn announce(&self, span: Vec<usize>, raws: &[&str], tokens: impl Fn(usize) -> u64) {
        let sum = |messages: &[usize]| messages.iter().map(|own| tokens(*own)).sum::<u64>();
        if sum(&span[..self.covered(&span)]) * 2 >= sum(&span) {
            return;
        }
        let cap_tokens = self.stub.cap_tokens;
        let size = Size { encoding: MEASURE.encoding, window_tokens: AMPLE_TOKENS, cap_tokens };
        let rounds = rounds(Protocol::Chat, raws, &span, &size).unwrap_or_default();
        let prompt_tokens: u64 = rounds
            .iter()
            .map(|round| round.prompt(None, cap_tokens))
            .flat_map(|prompt| [prompt.system, prompt.user])
            .map(|text| MEASURE.encoding.count(&text) + MESSAGE_FRAMING)
            .sum();
        let price = f64::from(self.stub.price_permille) / 1000.0;
        let mut figures = self.figures.get();
        figures.calls += 1;
        figures.prompt_tokens += prompt_tokens;
        figures.answer_tokens += cap_tokens;
        figures.billed_tokens += price * (prompt_tokens as f64 + ANSWER_PRICE * cap_tokens as f64);
        self.figures.set(figures);
        self.asked.borrow_mut().push(span);
    }

    /// Notes how many of the cuts so far have one.
    pub fn count(&self, used: u64, cuts: u64) {
        self.figures.set(Summaries { used, cuts, ..self.figures.get() });
    }

    /// What they came to so far.
    pub fn figures(&self) -> Summaries {
        self.figures.get()
    }
}

/// Words that name nothing, of exactly so many tokens.
fn filler(tokens: u64) -> String {
    let mut text = "and".to_owned();
    text.push_str(&" so on".repeat(tokens as usize / 2 + 1));
    while MEASURE.encoding.count(&text) > tokens {
        let end = text.rfind(' ').unwrap_or(0);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stub_takes_exactly_its_tokens() {
        for tokens in [1, 2, 255, 1000] {
            assert_eq!(MEASURE.encoding.count(&filler(tokens)), tokens);
        }
    }

    #[test]
    fn what_stands_for_a_span_stays() {
        let stubs = Stubs::new(Stub { cap_tokens: 10, price_permille: 500 });
        let raw = r#"{"role":"user","content":"one two three"}"#;
        let raws = [raw; 9];
        assert_eq!(stubs.of(&[1, 2, 3]), None);
        stubs.announce(vec![1, 2], &raws, |_| 3);
        assert_eq!(stubs.of(&[1, 2, 3]), None, "it came too late");
        assert_eq!(stubs.of(&[1, 2, 4]).map(|summary| summary.covers), Some(2));
        assert_eq!(stubs.of(&[0, 1, 2]), None, "it is of other messages");
        // Half is covered, then less.
        stubs.announce(vec![1, 2, 3, 4], &raws, |_| 3);
        assert_eq!(stubs.figures().calls, 1);
        stubs.announce(vec![1, 2, 3, 4, 5], &raws, |_| 3);
        let figures = stubs.figures();
        assert_eq!((figures.calls, figures.answer_tokens), (2, 20));
        let billed = 0.5 * (figures.prompt_tokens as f64 + 80.0);
        assert!((figures.billed_tokens - billed).abs() < 1e-9);
        assert_eq!(stubs.of(&[1, 2, 3, 4, 5, 6]).map(|summary| summary.covers), Some(5));
        assert_eq!(stubs.of(&[1, 2, 4]).map(|summary| summary.covers), Some(2), "as it was");
    }
}
