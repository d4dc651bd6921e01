//! What a model wrote of messages that a cut takes, as the cut's note may have it: whether it is
//! asked for, whether there is room for it. Writes none.

use super::cut::Cut;
use super::history::SummaryUse;
use super::note::Note;
use super::source::Source;
use super::summary::{Space, Summary, block, clean};

/// What a summary may take of a note's room.
pub(super) fn most_tokens(room_tokens: u64) -> u64 {
    room_tokens / 2
}

/// A summary that a note has room for.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) summary: Summary,
    /// How it stands in the note.
    pub(super) block: String,
    /// What that takes, with the line end behind it.
    pub(super) tokens: u64,
}

impl Cut<'_> {
    /// What a model wrote of `span`, where that takes less than what it stands for and no more than
    /// half of `room_tokens`, for a note that speaks of `messages`.
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

    /// The summaries of two notes that become one, side by side as far as there is room: the older
    /// one goes first. Each was written from the messages themselves and stays as it is.
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
