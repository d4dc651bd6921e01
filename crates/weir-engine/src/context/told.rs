//! Model's summary in a compaction's note: whether to request one, and whether it fits. Writes
//! none.

use super::cut::Cut;
use super::history::SummaryUse;
use super::note::Note;
use super::source::Source;
use super::summary::{Space, Summary, block, clean};

/// Returns the maximum size of a summary in a note.
pub(super) fn most_tokens(room_tokens: u64) -> u64 {
    room_tokens / 2
}

/// Summary that fits in a note.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) summary: Summary,
    /// Its form in the note.
    pub(super) block: String,
    /// Size of that form, including the line end behind it.
    pub(super) tokens: u64,
}

impl Cut<'_> {
    /// Returns the summary of `span` for a note that covers `messages`, if it is smaller than the
    /// replaced messages and takes at most half of `room_tokens`.
    pub(super) fn told(
        &mut self,
        span: &[usize],
        messages: usize,
        room_tokens: u64,
        source: &dyn Source,
    ) -> Option<Told> {
        let all = span.iter().map(|message| self.fold.facts[*message].tokens);
        let space = Space { note_tokens: most_tokens(room_tokens), replaced_tokens: all.sum() };
        let given = source.summary(span, space)?;
        let covers = given.covers.min(span.len());
        let summary = Summary { covers, text: clean(&given.text).into() };
        let covered = span[..covers].iter().map(|message| self.fold.facts[*message].tokens);
        let replaced_tokens: u64 = covered.sum();
        let told = self.fitting(summary, messages, most_tokens(room_tokens).min(replaced_tokens));
        self.fold.history.summary = match &told {
            Some(_) => SummaryUse::Used { messages: covers },
            None => SummaryUse::Unfit,
        };
        told
    }

    fn fitting(&self, summary: Summary, messages: usize, most_tokens: u64) -> Option<Told> {
        let block = block(&summary, messages)?;
        let tokens = self.fold.profile.measure.encoding.count(&block) + 1;
        (tokens <= most_tokens).then_some(Told { summary, block, tokens })
    }

    /// Joins the summaries of two notes that are merged, as far as there is room: the older one is
    /// dropped first. Each was written from the messages themselves and stays unchanged.
    pub(super) fn both_told(&self, notes: [&Note; 2], room_tokens: u64) -> Option<Told> {
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
