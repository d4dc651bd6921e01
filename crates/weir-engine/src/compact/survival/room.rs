//! Room for what must survive, shared among kinds and messages: a message that claims little has all of it
//! before one that claims much has more. Decides no message's claims.

use std::collections::BTreeSet;

use super::parts::Claim;
use super::rules::RulesOf;
use crate::compact::excerpt::subject::Subject;
use crate::compact::excerpt::worth::{GAP_TOKENS, HEADER_TOKENS, SHORT_TOKENS};
use crate::wire::Role;

/// Maximum part of the room for the rules of one message while others claim, in hundredths, and for its other
/// sentences: next to a log they look longer than they are. An instruction file that a tool has read has half of it.
/// With a small room, at least these tokens.
pub(super) const RULES_PERCENT: f64 = 20.0;
pub(super) const PROSE_PERCENT: f64 = 50.0;
const LEAST_MESSAGE_TOKENS: f64 = 48.0;

/// Room, and the claims that it has been given to.
pub(super) struct Room<'a> {
    subject: &'a Subject<'a>,
    all_tokens: f64,
    left_tokens: f64,
    claims: Vec<Claim>,
    /// Messages and first units of the claims.
    taken: BTreeSet<(usize, usize)>,
}

impl<'a> Room<'a> {
    pub(super) fn new(subject: &'a Subject<'a>, room_tokens: f64) -> Self {
        let (claims, taken) = (Vec::new(), BTreeSet::new());
        Self { subject, all_tokens: room_tokens, left_tokens: room_tokens, claims, taken }
    }

    /// Gives at most `share_tokens` to rules or sentences: the first of each message, then the second of each, and so
    /// on, within the maximum of each message. Older messages come first in each round, so a rule that
    /// has survived one compaction survives the next.
    pub(super) fn share_fairly(
        &mut self,
        rules: &mut [RulesOf],
        share_tokens: f64,
        message_percent: f64,
    ) {
        let least_tokens = (self.left_tokens - share_tokens).max(0.0);
        let all_tokens = self.all_tokens;
        self.in_rounds(rules, least_tokens, |own| {
            let percent = if own.is_read { message_percent / 2.0 } else { message_percent };
            (all_tokens * percent / 100.0).max(LEAST_MESSAGE_TOKENS)
        });
    }

    /// Gives the room that nobody has claimed to further rules of users' messages, in the same rounds. It
    /// must come last. Instruction files that tools have read keep to their maximum: nobody in the
    /// conversation wrote them.
    pub(super) fn share_surplus(&mut self, rules: &mut [RulesOf]) {
        self.in_rounds(rules, 0.0, |own| if own.is_read { 0.0 } else { f64::INFINITY });
    }

    /// Gives room to rules in rounds, and leaves at least `least_tokens`. `most_tokens` returns the maximum
    /// of a message.
    fn in_rounds(
        &mut self,
        rules: &mut [RulesOf],
        least_tokens: f64,
        most_tokens: impl Fn(&RulesOf) -> f64,
    ) {
        let longest = rules.iter().map(|own| own.units.len()).max().unwrap_or_default();
        for round in 0..longest {
            for own in &mut *rules {
                let Some(unit) = own.units.get(round) else { continue };
                let (claim, tokens) = self.priced(own.message, *unit);
                let is_within = own.taken_tokens + tokens <= most_tokens(own)
                    && self.left_tokens - tokens >= least_tokens;
                if is_within && self.add(claim, tokens) {
                    own.taken_tokens += tokens;
                }
            }
        }
    }

    /// Gives at most `share_tokens` to claims in order, each of a message and one of its units.
    pub(super) fn take(&mut self, wanted: Vec<(usize, usize)>, share_tokens: f64) {
        let mut left = share_tokens.min(self.left_tokens);
        for (message, unit) in wanted {
            let (claim, tokens) = self.priced(message, unit);
            if tokens <= left && self.add(claim, tokens) {
                left -= tokens;
            }
        }
    }

    /// Returns the claim of a unit with its size: short user messages stay whole.
    fn priced(&self, message: usize, unit: usize) -> (Claim, f64) {
        let reading = &self.subject.readings[message];
        let text_tokens = self.subject.text_tokens[message] as f64;
        let is_whole = reading.role == Role::User
            && text_tokens <= SHORT_TOKENS
            && self.subject.first_user != Some(message);
        let units = if is_whole { 0..reading.units.len() } else { unit..unit + 1 };
        let per_byte = (text_tokens / reading.text.len().max(1) as f64).min(1.0);
        let own = match is_whole {
            true => text_tokens,
            false => reading.units[unit].span.len() as f64 * per_byte,
        };
        let is_new = self.taken.range((message, 0)..=(message, usize::MAX)).next().is_none();
        let follows =
            unit.checked_sub(1).is_some_and(|before| self.taken.contains(&(message, before)));
        let mark = match (is_new, follows) {
            (true, _) => HEADER_TOKENS,
            (false, true) => 0.0,
            (false, false) => GAP_TOKENS,
        };
        (Claim { message, units }, own + mark)
    }

    fn add(&mut self, claim: Claim, tokens: f64) -> bool {
        if !self.taken.insert((claim.message, claim.units.start)) {
            return false;
        }
        self.left_tokens -= tokens;
        self.claims.push(claim);
        true
    }

    pub(super) fn taken_tokens(&self) -> f64 {
        self.all_tokens - self.left_tokens
    }

    pub(super) fn into_claims(self) -> Vec<Claim> {
        self.claims
    }
}
