//! Compaction state: a fold over the messages of a transcript. A fate once assigned never changes
//! back.
//!
//! The state after a transcript depends only on the profile and the messages, never on earlier
//! requests or caches.
//!
//! `messages` are the messages and the forms in which they are sent, `turns` group them, `note` has
//! the notes between them, `history` the compactions, `rereads` results that an agent
//! asked for again, `marks` the sizes that trigger a compaction.

pub mod history;
pub(super) mod marks;
pub(super) mod messages;
pub(super) mod note;
mod rereads;
pub(super) mod turns;

use std::sync::Arc;

use crate::compact::limits::Profile;
use crate::compact::message::measure::Fact;
use crate::compact::policy::clearing::Cleared;
use crate::wire::Edit;
use history::History;
use messages::{Fate, Messages, Rewrite};
use note::{Note, SentNotes};
pub use rereads::Repeated;
use rereads::Rereads;
use turns::Turns;

/// Compaction state of a conversation: its messages so far, and the form in which they are sent.
#[derive(Debug, Clone)]
pub struct Compactor {
    pub(crate) profile: Arc<Profile>,
    pub(crate) messages: Messages,
    pub(crate) turns: Turns,
    pub(crate) notes: SentNotes,
    pub(crate) masking: Masking,
    pub(crate) rereads: Rereads,
    pub(crate) restarts: Restarts,
    pub(crate) requests: Requests,
    pub(crate) sizes: Sizes,
    pub(crate) rests: Rests,
    pub(crate) changes: Changes,
    pub(crate) history: History,
}

/// Masked content, and its effect on what is masked next.
#[derive(Debug, Clone, Default)]
pub(crate) struct Masking {
    /// Number of times the protected window grew.
    pub(crate) widenings: u32,
    /// Whether a result was reduced because of its own size alone.
    pub(crate) has_oversized: bool,
    /// Amounts that the caller's own rules cleared.
    pub(crate) cleared: Cleared,
}

/// Restarts from pins, the note and the last turns.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Restarts {
    pub(crate) count: u32,
    /// Number of times the size exceeded the hard mark since the last one.
    pub(crate) hard_crossings: u32,
}

/// Points where a request could have ended.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Requests {
    /// Number of requests that have ended so far.
    pub(crate) ended: u32,
    /// Whether the last message ends a possible request that has not been examined.
    pub(crate) is_pending: bool,
    /// Whether the last message ends a possible request that has been examined.
    pub(crate) is_settled: bool,
    /// Whether the last message is a system's behind one that ends a possible request: the same one ends here.
    pub(crate) is_continued: bool,
}

/// Sizes of the conversation, in tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Size of the request as sent, including overhead.
    pub(crate) request_tokens: u64,
    /// Size of the messages as received.
    pub(crate) received_tokens: u64,
    /// Size of the leading system messages.
    pub(crate) system_run_tokens: u64,
}

/// Sizes at or below which nothing is compacted: a compaction that could not reach its mark waits
/// for growth.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rests {
    pub(crate) soft_tokens: u64,
    pub(crate) hard_tokens: u64,
    pub(crate) clear_tokens: u64,
    /// Compactions in a row that ended above the limit while this many turns were there.
    pub(crate) failures: u32,
    pub(crate) failed_turns: usize,
    /// Number of messages from which on the next one is tried, if there were many.
    pub(crate) next_messages: usize,
}

/// Compactions in a row above the limit, within one turn, after which only growth of the conversation by a
/// part of it brings another: each looks at all messages.
const MOST_FAILURES: u32 = 32;
const FAILURE_PARTS: usize = 8;

impl Rests {
    /// Whether a conversation of so many turns and messages still cannot fit, most likely.
    pub(crate) fn waits(&self, turns: usize, messages: usize) -> bool {
        self.failures >= MOST_FAILURES
            && turns == self.failed_turns
            && messages < self.next_messages
    }

    /// Takes note of the end of a compaction.
    pub(crate) fn ended(&mut self, is_above_limit: bool, turns: usize, messages: usize) {
        let is_same = is_above_limit && turns == self.failed_turns;
        self.failures = if is_same { self.failures + 1 } else { is_above_limit.into() };
        self.failed_turns = turns;
        self.next_messages = messages + messages / FAILURE_PARTS;
    }
}

/// Changes to the sent form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Changes {
    /// Their number, so that only a compaction that changed something counts.
    pub(crate) count: u64,
    /// First message that the current compaction changes.
    pub(crate) from: usize,
}

impl Changes {
    /// Counts a change at `message`.
    pub(crate) fn add(&mut self, message: usize) {
        self.count += 1;
        self.touch(message);
    }

    /// Records that the current compaction changes `message`.
    pub(crate) fn touch(&mut self, message: usize) {
        self.from = self.from.min(message);
    }
}

impl Compactor {
    /// Creates the state of an empty transcript.
    pub(crate) fn new(profile: Arc<Profile>) -> Self {
        Self {
            sizes: Sizes {
                request_tokens: profile.overhead_tokens,
                received_tokens: 0,
                system_run_tokens: 0,
            },
            turns: Turns::new(profile.limit_tokens / 2),
            profile,
            messages: Messages::default(),
            notes: SentNotes::default(),
            masking: Masking::default(),
            rereads: Rereads::default(),
            restarts: Restarts::default(),
            requests: Requests::default(),
            rests: Rests::default(),
            changes: Changes { count: 0, from: usize::MAX },
            history: History::default(),
        }
    }

    /// Replaces a message by its rewritten form. One whose blocks lack their calls or results stays without
    /// them.
    pub(crate) fn set_rewrite(&mut self, message: usize, rewrite: Rewrite) {
        let is_without = |own: &Rewrite| matches!(own.edit, Edit::DropBlocks(_));
        if self.messages.rewrites.get(&message).is_some_and(is_without) && !is_without(&rewrite) {
            return;
        }
        let after = rewrite.tokens - self.messages.uncounted_tokens(message);
        self.resize(message, self.messages.current_tokens(message), after);
        self.messages.clips.remove(&message);
        self.messages.fates[message] = Fate::Masked;
        self.changes.count += 1;
        self.messages.rewrites.insert(message, rewrite);
    }

    /// Leaves out the thinking of all messages before `message`, in all later requests too.
    pub(crate) fn drop_thinking_before(&mut self, message: usize) {
        for own in self.messages.thinking_from..message {
            let tokens = self.messages.facts[own].thinking_tokens;
            if tokens > 0 && self.messages.fates[own] != Fate::Gone {
                if self.messages.uncounted_tokens(own) == 0 {
                    self.free(own, tokens);
                }
                self.changes.add(own);
            }
        }
        self.messages.thinking_from = self.messages.thinking_from.max(message);
    }

    /// Stops counting the thinking of all messages before `message`, which the provider leaves out.
    pub(crate) fn leave_thinking_unread(&mut self, message: usize) {
        for own in self.messages.unread_thinking..message {
            let tokens = self.messages.facts[own].thinking_tokens;
            self.sizes.received_tokens -= tokens;
            if self.messages.uncounted_tokens(own) == 0 && self.messages.fates[own] != Fate::Gone {
                self.free(own, tokens);
            }
        }
        self.messages.unread_thinking = self.messages.unread_thinking.max(message);
    }

    /// Stops counting all messages before `message` but the system's at the front: the provider leaves them
    /// out. No compaction looks at them any more.
    pub(crate) fn leave_unread(&mut self, message: usize) {
        let Some(turn) = self.turns.of_message[message] else { return };
        let first = self.turns.list[turn].first;
        self.leave_thinking_unread(first);
        for own in self.turns.system_run.max(self.messages.unread.end)..first {
            let fact = &self.messages.facts[own];
            self.sizes.received_tokens -= fact.tokens - fact.thinking_tokens;
            self.free(own, self.messages.sent_tokens(own));
        }
        self.messages.unread = self.turns.system_run..first;
        self.sizes.request_tokens -= self.notes_tokens();
        self.notes = SentNotes { work_tokens: self.notes.work_tokens, ..SentNotes::default() };
        self.rests = Rests::default();
        self.turns.begin_with(turn);
    }

    /// Whether any message is sent without its thinking.
    pub(crate) fn has_dropped_thinking(&self) -> bool {
        (0..self.messages.thinking_from).any(|message| self.messages.dropped_tokens(message) > 0)
    }

    /// Counts a message that takes `after` tokens instead of `before`.
    pub(crate) fn resize(&mut self, message: usize, before: u64, after: u64) {
        self.sizes.request_tokens = self.sizes.request_tokens + after - before;
        if let Some(turn) = self.turns.of_message[message] {
            let tokens = &mut self.turns.list[turn].tokens;
            *tokens = *tokens + after - before;
        }
    }

    /// Subtracts tokens that a message no longer takes.
    pub(crate) fn free(&mut self, message: usize, tokens: u64) {
        self.resize(message, tokens, 0);
    }

    /// Returns the size of the messages as received, without overhead.
    pub fn received_tokens(&self) -> u64 {
        self.sizes.received_tokens - self.spare_tokens()
    }

    /// Returns the size of the first messages if they are the system's, as they are.
    pub(crate) fn head_tokens(&self) -> u64 {
        self.messages.facts[..self.turns.system_run].iter().map(|fact| fact.tokens).sum()
    }

    /// Returns the number of first messages that are the system's.
    pub(crate) fn system_run(&self) -> usize {
        self.turns.system_run
    }

    /// Returns the tokens that marks count for them in addition.
    pub(crate) fn spare_tokens(&self) -> u64 {
        let head = &self.messages.facts[..self.turns.system_run];
        head.iter().map(|fact| fact.form_tokens - fact.tokens).sum()
    }

    /// Returns the size of the messages as sent, without overhead.
    pub fn sent_tokens(&self) -> u64 {
        self.sizes.request_tokens - self.profile.overhead_tokens - self.spare_tokens()
    }

    /// Returns the size of the messages as sent by another way of counting, without overhead. `whole`
    /// counts a message by it as received; what is sent otherwise follows in proportion.
    pub fn sent_tokens_by(&self, mut whole: impl FnMut(usize) -> u64) -> u64 {
        let (mut own_tokens, mut by_tokens) = (0, 0);
        for message in 0..self.messages() {
            let is_whole = self.messages.uncounted_tokens(message) == 0
                && !self.messages.unread.contains(&message);
            if self.messages.fates[message] == Fate::Kept && is_whole {
                own_tokens += self.messages.sent_tokens(message);
                by_tokens += whole(message);
            }
        }
        let rest = u128::from(self.sent_tokens().saturating_sub(own_tokens));
        let scaled = (rest * u128::from(by_tokens)).div_ceil(u128::from(own_tokens.max(1)));
        by_tokens + u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    /// Returns the amounts that the caller's own rules cleared.
    pub(crate) fn cleared(&self) -> Cleared {
        self.masking.cleared
    }

    /// Returns the size of all notes.
    pub(crate) fn notes_tokens(&self) -> u64 {
        self.notes.tokens()
    }

    /// Returns the size of a message as it is sent, without its notes; 0 if it is removed.
    pub(crate) fn sent_size(&self, message: usize) -> u64 {
        self.messages.sent_tokens(message)
    }

    /// Returns the first message of the last turn if its calls still wait for results.
    pub(crate) fn open_turn(&self) -> Option<usize> {
        let turn = self.turns.list.get(self.turns.newest_from())?;
        turn.is_open().then_some(turn.first)
    }

    /// Returns the number of compactions so far.
    pub fn compactions(&self) -> u32 {
        self.history.count()
    }

    /// Returns the number of restarts among the compactions.
    pub fn restarts(&self) -> u32 {
        self.restarts.count
    }

    /// Returns the number of sent notes that begin with a model's summary.
    pub fn summaries(&self) -> usize {
        self.notes.list.iter().filter(|note| note.summary.is_some()).count()
    }

    /// Returns whether the last compaction happened at the last message.
    pub fn is_compacted_here(&self) -> bool {
        self.history.last().is_some_and(|compaction| compaction.messages == self.messages())
    }

    /// Returns the history of compactions.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Makes room for `more` messages, and for no others.
    pub(crate) fn expect(&mut self, more: usize) {
        self.messages.expect(more);
        self.turns.of_message.reserve_exact(more);
        self.turns.list.reserve_exact(more);
    }

    /// Returns the number of messages.
    pub fn messages(&self) -> usize {
        self.messages.count()
    }

    /// Returns the fate of each message.
    pub fn fates(&self) -> &[Fate] {
        &self.messages.fates
    }

    /// Returns the facts of each message.
    pub fn facts(&self) -> &[Fact] {
        &self.messages.facts
    }

    /// Returns whether every message is sent as received.
    pub fn is_untouched(&self) -> bool {
        let is_kept = |(message, fate): (usize, &Fate)| {
            *fate == Fate::Kept && self.messages.dropped_tokens(message) == 0
        };
        self.notes.list.is_empty() && self.fates().iter().enumerate().all(is_kept)
    }

    /// Estimates the memory of the state, in bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.messages.memory_bytes()
            + self.turns.memory_bytes()
            + self.rereads.memory_bytes()
            + self.notes.list.iter().map(Note::memory_bytes).sum::<usize>()
            + self.history.memory_bytes()
    }
}
