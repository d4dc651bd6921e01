//! System messages inside a conversation: reminders and notices, which some agents add to each request, and
//! tools that codex declares again after each change of model. They have the bound of callers' pins.

use std::collections::BTreeSet;

use super::Compaction;
use crate::compact::policy::share;
use crate::compact::state::Compactor;
use crate::compact::state::messages::Fate;
use crate::wire::Role;

impl Compactor {
    /// Returns the system messages that may be removed and are still sent, the newest first: those behind
    /// another message, and tools.
    fn notices(&self) -> impl Iterator<Item = usize> + '_ {
        let is_notice = |message: &usize| {
            let fact = &self.messages.facts[*message];
            let is_loose = *message >= self.turns.system_run || fact.declares_tools;
            fact.form > 0 && is_loose && self.messages.fates[*message] != Fate::Gone
        };
        (0..self.messages.count()).rev().filter(is_notice)
    }

    /// Returns the system messages that a later one of the same form has replaced.
    pub(crate) fn superseded(&self) -> BTreeSet<usize> {
        let mut forms = BTreeSet::new();
        let run = self.turns.system_run;
        let is_old = |message: &usize| {
            let form = self.messages.facts[*message].form;
            form > 0 && !forms.insert(form)
        };
        (run..self.messages.count()).rev().filter(is_old).collect()
    }
}

impl Compaction<'_> {
    /// Removes system messages inside the conversation. The newest stay within the share of pins, and of a
    /// repeated form only the newest. The newest declaration of tools stays in any case, since calls need it.
    pub(crate) fn retire_notices(&mut self) {
        let state = &*self.state;
        let most_tokens = share(state.goal_tokens(), state.profile.policy.pinned_permille);
        let newest_from = self.turn(self.newest).first;
        let (mut forms, mut tokens, mut has_tools) = (BTreeSet::new(), 0, false);
        let mut gone = Vec::new();
        for message in state.notices() {
            let fact = &state.messages.facts[message];
            let is_first = tokens == 0;
            let is_new = forms.insert(fact.form);
            if message >= newest_from || (fact.declares_tools && is_new && !has_tools) {
                has_tools |= fact.declares_tools;
            } else if is_new && (is_first || tokens + fact.tokens <= most_tokens) {
                tokens += fact.tokens;
            } else {
                gone.push(message);
            }
        }
        gone.into_iter().rev().for_each(|message| self.evict_message(message));
    }

    /// Removes system messages inside the conversation, the oldest first, until the size is within the
    /// limit. The newest declaration of tools and those in the newest turn stay.
    pub(crate) fn release_notices(&mut self) {
        let state = &*self.state;
        let newest_from = self.turn(self.newest).first;
        let is_tools = |message: &usize| state.messages.facts[*message].declares_tools;
        let tools = state.notices().find(is_tools);
        let loose: Vec<usize> = state
            .notices()
            .filter(|message| *message < newest_from && tools != Some(*message))
            .collect();
        for message in loose.into_iter().rev() {
            if self.state.sizes.request_tokens <= self.state.profile.limit_tokens {
                return;
            }
            self.evict_message(message);
        }
    }

    /// Removes system messages that do not stand before an answer any more. Providers of Messages refuse
    /// them elsewhere than between a user's message and an answer, or at the end.
    ///
    /// Source: Anthropic's guide to system messages in the middle of a conversation.
    pub(crate) fn drop_stranded_notices(&mut self) {
        if !self.state.profile.policy.begins_with_user {
            return;
        }
        let newest_from = self.turn(self.newest).first;
        let run = self.state.turns.system_run;
        let mut next = Role::Assistant;
        for message in (run..self.state.messages.count()).rev() {
            if self.state.messages.fates[message] == Fate::Gone {
                continue;
            }
            let role = self.state.messages.facts[message].role;
            let is_stranded = role == Role::System && next != Role::Assistant;
            match is_stranded && message < newest_from {
                true => self.evict_message(message),
                false => next = role,
            }
        }
    }
}
