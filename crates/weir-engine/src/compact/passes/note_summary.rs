//! Model's summary in a compaction's note: whether to request one, and whether it fits. Writes
//! none.

use super::Compaction;
use crate::compact::source::Source;
use crate::compact::state::history::SummaryUse;
use crate::compact::state::note::Note;
use crate::compact::summary::{Space, Summary, block, clean, most_tokens};

/// Summary that fits in a note.
#[derive(Debug, Clone)]
pub(crate) struct NoteSummary {
    pub(crate) summary: Summary,
    /// Its form in the note.
    pub(crate) block: String,
    /// Size of that form, including the line end behind it.
    pub(crate) tokens: u64,
}

impl Compaction<'_> {
    /// Returns the summary of `span` for a note that covers `messages`, if it is smaller than the
    /// replaced messages and takes at most half of `room_tokens`.
    pub(crate) fn note_summary(
        &mut self,
        span: &[usize],
        messages: usize,
        room_tokens: u64,
        source: &dyn Source,
    ) -> Option<NoteSummary> {
        let all = span.iter().map(|message| self.state.messages.facts[*message].tokens);
        let space = Space { note_tokens: most_tokens(room_tokens), replaced_tokens: all.sum() };
        let given = source.summary(span, space)?;
        let covers = given.covers.min(span.len());
        let summary = Summary { covers, text: clean(&given.text).into() };
        let covered =
            span[..covers].iter().map(|message| self.state.messages.facts[*message].tokens);
        let replaced_tokens: u64 = covered.sum();
        let fitted = self.fitting(summary, messages, most_tokens(room_tokens).min(replaced_tokens));
        self.state.history.summary = match &fitted {
            Some(_) => SummaryUse::Used { messages: covers },
            None => SummaryUse::Unfit,
        };
        fitted
    }

    fn fitting(&self, summary: Summary, messages: usize, most_tokens: u64) -> Option<NoteSummary> {
        let block = block(&summary, messages)?;
        let tokens = self.state.profile.measure.encoding.count(&block) + 1;
        (tokens <= most_tokens).then_some(NoteSummary { summary, block, tokens })
    }

    /// Joins the summaries of two notes that are merged, as far as there is room: the older one is
    /// dropped first. Each was written from the messages themselves and stays unchanged.
    pub(crate) fn merged_summaries(
        &self,
        notes: [&Note; 2],
        room_tokens: u64,
    ) -> Option<NoteSummary> {
        let messages = notes.iter().map(|note| note.left_out).sum();
        let [first, second] = notes.map(|note| note.summary.as_ref());
        let both = first.zip(second).map(|(first, second)| Summary {
            covers: first.covers + second.covers,
            text: format!("{}\n\n{}", first.text, second.text).into(),
        });
        [both, second.cloned(), first.cloned()]
            .into_iter()
            .flatten()
            .find_map(|summary| self.fitting(summary, messages, most_tokens(room_tokens)))
    }
}
