//! Stub summaries without content, instead of a model's: measures their cost, and how much excerpts
//! lose through the room they take. A stub is requested past the prefetch mark, for the messages
//! that the next compaction would take, and is ready at the next request. Calls no model.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use serde::Serialize;

use super::conversation::MEASURE;
use weir_engine::compact::summary::{Size, appended, rounds};
use weir_engine::compact::{Prefetch, PrefetchSettings, Summary};
use weir_engine::tokens::MESSAGE_FRAMING;
use weir_engine::wire::Protocol;

/// Share of the way to the hard mark at which a summary is requested.
pub const PREFETCH_PERMILLE: u32 = 800;
/// Cost of an output token, in input tokens.
const ANSWER_PRICE: f64 = 4.0;
/// Cost of a cached input token.
const CACHED_PRICE: f64 = 0.1;
/// Window large enough to need no rounds.
const AMPLE_TOKENS: u64 = 1 << 40;

/// Settings of stub summaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stub {
    /// Maximum size of each; the size requested is the room in its note.
    pub cap_tokens: u64,
    pub price: Price,
}

/// Model that writes the summaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Price {
    /// The conversation's own model, called with the conversation as sent, which it finds in its
    /// cache.
    Same,
    /// Another model, whose price is this share of it, in thousandths. It reads only the messages
    /// to summarise.
    Permille(u32),
}

/// Request as it was sent, for whose messages a summary is requested.
pub struct Sent<'a> {
    pub raws: &'a [&'a str],
    pub tokens: u64,
    /// Whether all messages to be removed are sent whole.
    pub is_whole: bool,
}

/// Totals of a conversation's summaries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Summaries {
    /// Requested summaries.
    pub calls: u64,
    /// Compactions whose note begins with one, and all compactions.
    pub used: u64,
    pub cuts: u64,
    /// Tokens that the summariser read and wrote.
    pub prompt_tokens: u64,
    pub answer_tokens: u64,
    /// Their cost, in input tokens of the conversation's model.
    pub billed_tokens: f64,
}

impl Summaries {
    /// Adds the totals of another conversation.
    pub fn merge(&mut self, other: Self) {
        self.calls += other.calls;
        self.used += other.used;
        self.cuts += other.cuts;
        self.prompt_tokens += other.prompt_tokens;
        self.answer_tokens += other.answer_tokens;
        self.billed_tokens += other.billed_tokens;
    }
}

/// Stub summaries of one conversation.
pub struct Stubs {
    stub: Stub,
    /// Summaries requested so far.
    asked: RefCell<Vec<Prefetch>>,
    /// Permanent record for each span that was compacted.
    records: RefCell<BTreeMap<Vec<usize>, Option<Summary>>>,
    figures: Cell<Summaries>,
}

impl Stubs {
    /// Creates an empty set.
    pub fn new(stub: Stub) -> Self {
        Self {
            stub,
            asked: RefCell::default(),
            records: RefCell::default(),
            figures: Cell::default(),
        }
    }

    /// Returns the summary of the messages `gone`, if any.
    pub fn of(&self, gone: &[usize]) -> Option<Summary> {
        let mut records = self.records.borrow_mut();
        if let Some(known) = records.get(gone) {
            return known.clone();
        }
        let found = self.ready(gone).map(|prefetch| Summary {
            covers: prefetch.span.len(),
            text: filler(prefetch.summary_tokens).into(),
        });
        records.insert(gone.to_vec(), found.clone());
        found
    }

    /// Returns the settings for requesting them.
    pub fn prefetch_settings(&self) -> PrefetchSettings {
        PrefetchSettings { mark_permille: PREFETCH_PERMILLE, summary_tokens: self.stub.cap_tokens }
    }

    /// Returns the summary of the beginning of `span`.
    fn ready(&self, span: &[usize]) -> Option<Prefetch> {
        let asked = self.asked.borrow();
        let serving = asked.iter().filter(|prefetch| span.starts_with(&prefetch.span));
        serving.max_by_key(|prefetch| prefetch.span.len()).cloned()
    }

    /// Requests a summary for the next compaction, unless there is one already.
    pub fn prefetch(&self, prefetch: Prefetch, sent: &Sent<'_>) {
        if self.ready(&prefetch.span).is_some_and(|own| own.span.len() >= prefetch.least_covers) {
            return;
        }
        let cap_tokens = prefetch.summary_tokens;
        let (cached_tokens, new_tokens, price) = match self.stub.price {
            Price::Same if sent.is_whole => {
                let asked = MEASURE.encoding.count(&appended(cap_tokens)) + MESSAGE_FRAMING;
                (sent.tokens, asked, 1.0)
            }
            Price::Same => (0, asked_apart(&prefetch, sent.raws), 1.0),
            Price::Permille(share) => {
                (0, asked_apart(&prefetch, sent.raws), f64::from(share) / 1000.0)
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
        self.asked.borrow_mut().push(prefetch);
    }

    /// Records how many of the compactions so far have a summary.
    pub fn count(&self, used: u64, cuts: u64) {
        self.figures.set(Summaries { used, cuts, ..self.figures.get() });
    }

    /// Returns the totals so far.
    pub fn figures(&self) -> Summaries {
        self.figures.get()
    }
}

/// Counts the input if a summary is requested with its messages alone.
fn asked_apart(prefetch: &Prefetch, raws: &[&str]) -> u64 {
    let cap_tokens = prefetch.summary_tokens;
    let size = Size { encoding: MEASURE.encoding, window_tokens: AMPLE_TOKENS, cap_tokens };
    let rounds = rounds(Protocol::Chat, raws, &prefetch.span, &size).unwrap_or_default();
    let prompts = rounds.iter().map(|round| round.prompt(None, cap_tokens));
    let texts = prompts.flat_map(|prompt| [prompt.system, prompt.user]);
    texts.map(|text| MEASURE.encoding.count(&text) + MESSAGE_FRAMING).sum()
}

/// Returns filler of exactly so many tokens that names nothing.
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

    fn prefetch(span: &[usize], least_covers: usize) -> Prefetch {
        Prefetch { span: span.to_vec(), summary_tokens: 10, least_covers }
    }

    #[test]
    fn what_stands_for_a_span_stays() {
        let stubs = Stubs::new(Stub { cap_tokens: 10, price: Price::Permille(500) });
        let raw = r#"{"role":"user","content":"one two three"}"#;
        let sent = Sent { raws: &[raw; 9], tokens: 90, is_whole: true };
        assert_eq!(stubs.of(&[1, 2, 3]), None);
        stubs.prefetch(prefetch(&[1, 2], 1), &sent);
        assert_eq!(stubs.of(&[1, 2, 3]), None, "it came too late");
        assert_eq!(stubs.of(&[1, 2, 4]).map(|summary| summary.covers), Some(2));
        assert_eq!(stubs.of(&[0, 1, 2]), None, "it is of other messages");
        // Enough messages are covered, then too few.
        stubs.prefetch(prefetch(&[1, 2, 3, 4], 2), &sent);
        assert_eq!(stubs.figures().calls, 1);
        stubs.prefetch(prefetch(&[1, 2, 3, 4, 5], 3), &sent);
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
            stubs.prefetch(prefetch(&[1, 2], 1), &Sent { raws: &[raw; 9], tokens: 1000, is_whole });
            let Summaries { prompt_tokens, billed_tokens, .. } = stubs.figures();
            (prompt_tokens as f64, billed_tokens)
        };
        let (read, cost) = billed(true);
        assert!((cost - (read - 900.0 + 40.0)).abs() < 1e-9, "{cost} for {read}");
        let (read, cost) = billed(false);
        assert!((cost - (read + 40.0)).abs() < 1e-9 && read < 1000.0, "{cost} for {read}");
    }
}
