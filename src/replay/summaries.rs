//! Summaries that say nothing, in the place of a model's: what having them costs, and what excerpts
//! lose by the room that they take. A summary is asked for at a request past the announce mark, of
//! what the next cut would take then, and is there at the next request. Asks no model.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use serde::Serialize;

use super::conversation::MEASURE;
use crate::context::summary::{Size, appended, rounds};
use crate::context::{Ahead, Asking, Summary};
use crate::tokens::MESSAGE_FRAMING;
use crate::wire::Protocol;

/// Where, on the way to the hard mark, a summary is asked for.
pub const ANNOUNCE_PERMILLE: u32 = 800;
/// What a token that a model writes costs, in tokens that it reads.
const ANSWER_PRICE: f64 = 4.0;
/// What a token costs that the model finds in its cache.
const CACHED_PRICE: f64 = 0.1;
/// A window that needs no rounds.
const AMPLE_TOKENS: u64 = 1 << 40;

/// How summaries are stubbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stub {
    /// What each takes at most; so many tokens are asked for as its note has room for.
    pub cap_tokens: u64,
    pub price: Price,
}

/// Who sums up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Price {
    /// The conversation's own model, which is asked behind the conversation as it was sent and finds
    /// that in its cache.
    Same,
    /// Another model, whose price is this share of it, in thousandths. It reads the messages alone.
    Permille(u32),
}

/// A request as it was sent, of which a summary is asked for.
pub struct Sent<'a> {
    pub raws: &'a [&'a str],
    pub tokens: u64,
    /// Whether all messages that go are sent whole.
    pub is_whole: bool,
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
    /// What was asked for.
    asked: RefCell<Vec<Ahead>>,
    /// What stands for each span that was cut, for ever.
    records: RefCell<BTreeMap<Vec<usize>, Option<Summary>>>,
    figures: Cell<Summaries>,
}

impl Stubs {
    /// None so far.
    pub fn new(stub: Stub) -> Self {
        Self {
            stub,
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
        let found = self.ready(gone).map(|ahead| Summary {
            covers: ahead.span.len(),
            text: filler(ahead.summary_tokens).into(),
        });
        records.insert(gone.to_vec(), found.clone());
        found
    }

    /// How they are asked for.
    pub fn asking(&self) -> Asking {
        Asking { announce_permille: ANNOUNCE_PERMILLE, summary_tokens: self.stub.cap_tokens }
    }

    /// The summary of the beginning of `span`.
    fn ready(&self, span: &[usize]) -> Option<Ahead> {
        let asked = self.asked.borrow();
        let serving = asked.iter().filter(|ahead| span.starts_with(&ahead.span));
        serving.max_by_key(|ahead| ahead.span.len()).cloned()
    }

    /// Asks for a summary for the next cut, where there is none yet.
    pub fn announce(&self, ahead: Ahead, sent: &Sent<'_>) {
        if self.ready(&ahead.span).is_some_and(|own| own.span.len() >= ahead.least_covers) {
            return;
        }
        let cap_tokens = ahead.summary_tokens;
        let (cached_tokens, new_tokens, price) = match self.stub.price {
            Price::Same if sent.is_whole => {
                let asked = MEASURE.encoding.count(&appended(cap_tokens)) + MESSAGE_FRAMING;
                (sent.tokens, asked, 1.0)
            }
            Price::Same => (0, asked_apart(&ahead, sent.raws), 1.0),
            Price::Permille(share) => {
                (0, asked_apart(&ahead, sent.raws), f64::from(share) / 1000.0)
            }
        };
        let prompt_tokens = cached_tokens + new_tokens;
        let read = CACHED_PRICE * cached_tokens as f64 + new_tokens as f64;
        let mut figures = self.figures.get();
        figures.calls += 1;
        figures.prompt_tokens += prompt_tokens;
        figures.answer_tokens += cap_tokens;
        figures.billed_tokens += price * (read + ANSWER_PRICE * cap_tokens as f64);
        self.figures.set(figures);
        self.asked.borrow_mut().push(ahead);
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

/// What is read where a summary is asked for by the messages alone.
fn asked_apart(ahead: &Ahead, raws: &[&str]) -> u64 {
    let cap_tokens = ahead.summary_tokens;
    let size = Size { encoding: MEASURE.encoding, window_tokens: AMPLE_TOKENS, cap_tokens };
    let rounds = rounds(Protocol::Chat, raws, &ahead.span, &size).unwrap_or_default();
    let prompts = rounds.iter().map(|round| round.prompt(None, cap_tokens));
    let texts = prompts.flat_map(|prompt| [prompt.system, prompt.user]);
    texts.map(|text| MEASURE.encoding.count(&text) + MESSAGE_FRAMING).sum()
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

    fn ahead(span: &[usize], least_covers: usize) -> Ahead {
        Ahead { span: span.to_vec(), summary_tokens: 10, least_covers }
    }

    #[test]
    fn what_stands_for_a_span_stays() {
        let stubs = Stubs::new(Stub { cap_tokens: 10, price: Price::Permille(500) });
        let raw = r#"{"role":"user","content":"one two three"}"#;
        let sent = Sent { raws: &[raw; 9], tokens: 90, is_whole: true };
        assert_eq!(stubs.of(&[1, 2, 3]), None);
        stubs.announce(ahead(&[1, 2], 1), &sent);
        assert_eq!(stubs.of(&[1, 2, 3]), None, "it came too late");
        assert_eq!(stubs.of(&[1, 2, 4]).map(|summary| summary.covers), Some(2));
        assert_eq!(stubs.of(&[0, 1, 2]), None, "it is of other messages");
        // Enough is covered, then too little.
        stubs.announce(ahead(&[1, 2, 3, 4], 2), &sent);
        assert_eq!(stubs.figures().calls, 1);
        stubs.announce(ahead(&[1, 2, 3, 4, 5], 3), &sent);
        let figures = stubs.figures();
        assert_eq!((figures.calls, figures.answer_tokens), (2, 20));
        let billed = 0.5 * (figures.prompt_tokens as f64 + 80.0);
        assert!((figures.billed_tokens - billed).abs() < 1e-9);
        assert_eq!(stubs.of(&[1, 2, 3, 4, 5, 6]).map(|summary| summary.covers), Some(5));
        assert_eq!(stubs.of(&[1, 2, 4]).map(|summary| summary.covers), Some(2), "as it was");
    }

    #[test]
    fn the_same_model_reads_what_it_has_in_its_cache() {
        let raw = r#"{"role":"user","content":"one two three"}"#;
        let billed = |is_whole| {
            let stubs = Stubs::new(Stub { cap_tokens: 10, price: Price::Same });
            stubs.announce(ahead(&[1, 2], 1), &Sent { raws: &[raw; 9], tokens: 1000, is_whole });
            let Summaries { prompt_tokens, billed_tokens, .. } = stubs.figures();
            (prompt_tokens as f64, billed_tokens)
        };
        let (read, cost) = billed(true);
        assert!((cost - (read - 900.0 + 40.0)).abs() < 1e-9, "{cost} for {read}");
        let (read, cost) = billed(false);
        assert!((cost - (read + 40.0)).abs() < 1e-9 && read < 1000.0, "{cost} for {read}");
    }
}
