//! Masking: replaces old, bulky content of messages that stay by placeholders, oldest first and
//! several at a time. Removes no message.

use std::collections::{BTreeSet, HashMap};

use super::Compaction;
use super::calls::{self, AnsweredTools};
use crate::compact::message::placeholder::{self, Reason};
use crate::compact::policy::share;
use crate::compact::source::Source;
use crate::compact::state::history::Pin;
use crate::compact::state::messages::Rewrite;
use crate::wire::{Content, Edit, Role, message::Part};

/// Minimum size of a message worth a placeholder.
const LEAST_TOKENS: u64 = 64;
/// Maximum number of times the protected window grows by its own size for an agent that reads
/// masked content again.
pub(crate) const MAX_WIDENINGS: u32 = 3;

impl Compaction<'_> {
    /// Masks down to `mark_tokens` if possible, unless it would free less than `least_tokens`.
    /// Returns whether anything was masked.
    pub(crate) fn mask(
        &mut self,
        mark_tokens: u64,
        least_tokens: u64,
        source: &dyn Source,
    ) -> bool {
        let mask = self.state.profile.policy.mask;
        if !(mask.results || mask.repeats || mask.images || mask.arguments) {
            return false;
        }
        let rewrites = self.rewrites(mark_tokens, source);
        let freed = |(message, rewrite): &(usize, Rewrite)| {
            self.state.messages.current_tokens(*message).saturating_sub(rewrite.tokens)
        };
        let freed_tokens: u64 = rewrites.iter().map(freed).sum();
        if rewrites.is_empty() || freed_tokens < least_tokens {
            return false;
        }
        for (message, rewrite) in rewrites {
            self.set_rewrite(message, rewrite);
        }
        true
    }

    /// Returns the rewrites that masking down to `mark_tokens` makes.
    fn rewrites(&self, mark_tokens: u64, source: &dyn Source) -> Vec<(usize, Rewrite)> {
        let policy = &self.state.profile.policy;
        let mut found: Vec<(usize, Rewrite)> = Vec::new();
        let (mut seen, answered) = (BTreeSet::new(), AnsweredTools::default());
        let mut size_tokens = self.state.sizes.request_tokens;
        let batch = policy.mask.batch.max(1) as usize;
        let mut take = |message: usize, rewrite: Option<Rewrite>| {
            let before = self.state.messages.current_tokens(message);
            if let Some(rewrite) = rewrite.filter(|own| own.tokens < before)
                && seen.insert(message)
            {
                size_tokens -= before - rewrite.tokens;
                found.push((message, rewrite));
            }
            // Whole batches, so that the next compaction finds as many again.
            size_tokens > mark_tokens || !found.len().is_multiple_of(batch)
        };
        if policy.mask.repeats {
            for message in self.repeated(source) {
                if !take(message, self.masked_result(message, Reason::Repeated, &answered, source))
                {
                    break;
                }
            }
        }
        for message in self.old_messages() {
            let fact = &self.state.messages.facts[message];
            let rewrite = match fact.role {
                Role::Tool if policy.mask.results => {
                    self.masked_result(message, Reason::Old, &answered, source)
                }
                Role::Assistant if policy.mask.arguments && fact.calls > 0 => {
                    self.shortened_calls(message, source)
                }
                Role::Tool | Role::User if policy.mask.images && fact.tokens > fact.text_tokens => {
                    self.masked_images(message, usize::MAX, source)
                }
                _ => None,
            };
            if !take(message, rewrite) {
                break;
            }
        }
        if found.len() < batch {
            found.clear();
        }
        found
    }

    /// Returns the messages that may be masked, oldest first: not rewritten yet, in turns that are
    /// neither pinned nor in the protected window.
    fn old_messages(&self) -> Vec<usize> {
        let policy = &self.state.profile.policy;
        let (base, _) = self.state.base_tokens();
        let window = share(base, policy.mask.window_permille);
        let widened = window.saturating_mul(u64::from(1 + self.state.masking.widenings));
        // Widened or not, half of the base can always be masked.
        let most_tokens = widened.min(base / 2).max(window.min(base));
        let mut tokens: u64 =
            self.state.turns.list[self.newest..].iter().map(|turn| turn.tokens).sum();
        let mut end = self.older().len();
        while end > 0 {
            tokens += self.turn(self.older()[end - 1]).tokens;
            if tokens > most_tokens {
                break;
            }
            end -= 1;
        }
        let is_load = |turn: &usize| self.pins.get(turn) == Some(&Pin::Load);
        let own = |turn: &usize| !self.turn(*turn).is_pinned_by_caller && !is_load(turn);
        self.older()[..end]
            .iter()
            .filter(|turn| own(turn))
            .flat_map(|turn| self.own(*turn))
            .collect()
    }

    /// Returns the messages of a turn that are worth masking.
    fn own(&self, turn: usize) -> Vec<usize> {
        let own = self.turn(turn);
        (own.first..=own.last)
            .filter(|message| {
                self.state.turns.of_message[*message] == Some(turn)
                    && self.state.messages.current_tokens(*message) >= LEAST_TOKENS
                    && !self.state.messages.rewrites.contains_key(message)
            })
            .collect()
    }

    /// Returns the results before the newest turn whose content occurs again in a later sent
    /// message.
    fn repeated(&self, source: &dyn Source) -> Vec<usize> {
        let mut last: HashMap<[u8; 32], usize> = HashMap::new();
        let mut contents: Vec<(usize, [u8; 32])> = Vec::new();
        for turn in &self.state.turns.live {
            for message in self.own(*turn) {
                if self.state.messages.facts[message].role != Role::Tool {
                    continue;
                }
                let Some(key) = content_key(message, source) else { continue };
                contents.push((message, key));
                last.insert(key, message);
            }
        }
        let end = self.turn(self.newest).first;
        contents
            .into_iter()
            .filter(|(message, key)| *message < end && last.get(key) != Some(message))
            .filter(|(message, _)| {
                let turn = self.state.turns.of_message[*message];
                turn.is_some_and(|turn| !self.pins.contains_key(&turn))
            })
            .map(|(message, _)| message)
            .collect()
    }

    fn masked_result(
        &self,
        message: usize,
        reason: Reason,
        answered: &AnsweredTools,
        source: &dyn Source,
    ) -> Option<Rewrite> {
        let tool = answered.tool(self.state, message, source).unwrap_or_default();
        let said = placeholder::of_result(&source.message(message)?, &tool, reason)?;
        self.rewrite(message, Edit::Replace(said), source)
    }

    fn shortened_calls(&self, message: usize, source: &dyn Source) -> Option<Rewrite> {
        let own = source.message(message)?;
        let texts: Vec<Option<String>> =
            own.calls.iter().map(|call| calls::shortened(call.arguments)).collect();
        let is_any = texts.iter().any(Option::is_some);
        is_any.then(|| self.rewrite(message, Edit::Arguments(texts), source)).flatten()
    }

    /// Returns a message without its first images, at most `most_images`.
    pub(super) fn masked_images(
        &self,
        message: usize,
        most_images: usize,
        source: &dyn Source,
    ) -> Option<Rewrite> {
        if self.state.messages.clips.contains_key(&message) {
            return None;
        }
        let own = source.message(message)?;
        // Texts in structured parts are no parts of their own.
        if own.role == Role::Tool && !own.others.is_empty() {
            return None;
        }
        let Content::Parts(parts) = &own.content else { return None };
        let mut images = 0;
        let masked = |part: &Part<'_>| {
            images += usize::from(matches!(part, Part::Image { .. }));
            let is_meant = matches!(part, Part::Image { .. }) && images <= most_images;
            is_meant.then(|| placeholder::of_image(&own))
        };
        let texts: Vec<Option<String>> = parts.iter().map(masked).collect();
        let is_any = texts.iter().any(Option::is_some);
        is_any.then(|| self.rewrite(message, Edit::Parts(texts), source)).flatten()
    }

    pub(crate) fn rewrite(
        &self,
        message: usize,
        edit: Edit,
        source: &dyn Source,
    ) -> Option<Rewrite> {
        let tokens = source.tokens_after(message, &edit, &self.state.profile.measure)?;
        Some(Rewrite { edit, tokens })
    }

    fn set_rewrite(&mut self, message: usize, rewrite: Rewrite) {
        self.touch(message);
        self.state.set_rewrite(message, rewrite);
    }
}

impl super::Compactor {
    /// Replaces a result above the policy's bound by a reference on arrival, regardless of the
    /// conversation's size.
    pub(crate) fn refer_to_oversized(&mut self, message: usize, source: &dyn Source) {
        let fact = &self.messages.facts[message];
        let most_tokens = self.profile.policy.shares.oversize_tokens;
        if most_tokens == 0 || fact.role != Role::Tool || fact.text_tokens <= most_tokens {
            return;
        }
        let tool = AnsweredTools::default().tool(self, message, source);
        let Some(said) = source.message(message).and_then(|own| {
            placeholder::of_result(&own, &tool.unwrap_or_default(), Reason::Oversized)
        }) else {
            return;
        };
        let edit = Edit::Replace(said);
        let Some(tokens) = source.tokens_after(message, &edit, &self.profile.measure) else {
            return;
        };
        if tokens < self.messages.facts[message].tokens {
            self.set_rewrite(message, Rewrite { edit, tokens });
            self.masking.has_oversized = true;
        }
    }

    /// Notes a result that was there before and is not sent whole any more. The protected window becomes wider:
    /// it is too small for this agent.
    pub(crate) fn watch_for_rereading(&mut self, message: usize) {
        let keys = self.turns.keys_of(&self.messages.facts[message]);
        if keys.is_some_and(|keys| self.rereads.take(message, keys)) {
            self.masking.widenings = (self.masking.widenings + 1).min(MAX_WIDENINGS);
        }
    }
}

/// Returns a hash of a result's content, if it is text alone.
fn content_key(message: usize, source: &dyn Source) -> Option<[u8; 32]> {
    let own = source.message(message)?;
    let is_text = match &own.content {
        Content::None => false,
        Content::Text(_) => true,
        Content::Parts(parts) => {
            !parts.is_empty() && parts.iter().all(|part| matches!(part, Part::Text(_)))
        }
    };
    is_text.then(|| *blake3::hash(own.texts().join(",").as_bytes()).as_bytes())
}
