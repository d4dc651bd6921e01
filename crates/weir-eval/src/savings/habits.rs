//! Habits that make a conversation dear, and the cost of each. The costs overlap: a repeated call may also be
//! what takes a prompt above a price step.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use super::history::{History, Made};
use crate::bill::BilledTokens;
use weir_engine::wire::{Protocol, Role, json};
use weir_store::budget::Price;

/// Maximum length of an argument that may name a file.
const MOST_PATH_BYTES: usize = 300;
/// Parts of the names of tools that show the content of a file.
const READING: [&str; 2] = ["read", "view"];

/// How often something was done, and its cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Habit {
    pub count: u64,
    /// Cost in nano-dollars that would not be there without it.
    pub nano_usd: u64,
}

impl Habit {
    fn add(&mut self, nano_usd: u64) {
        self.count += 1;
        self.nano_usd = self.nano_usd.saturating_add(nano_usd);
    }

    fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.nano_usd = self.nano_usd.saturating_add(other.nano_usd);
    }
}

/// The habits of one conversation, or of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Habits {
    /// Requests after a pause longer than the cache's lifetime, most of whose prompt is written or read at the full price.
    pub cold_caches: Habit,
    /// Requests above a size from which each token costs more.
    pub price_steps: Habit,
    /// Calls with the name, arguments and result of an earlier one.
    pub repeated_calls: Habit,
    /// Other reads of a file that was read before.
    pub files_read_again: Habit,
    /// Requests that equal the one before.
    pub repeated_requests: Habit,
}

impl Habits {
    /// Adds those of another conversation.
    pub fn merge(&mut self, other: &Self) {
        self.cold_caches.merge(other.cold_caches);
        self.price_steps.merge(other.price_steps);
        self.repeated_calls.merge(other.repeated_calls);
        self.files_read_again.merge(other.files_read_again);
        self.repeated_requests.merge(other.repeated_requests);
    }

    /// Finds the habits of a conversation.
    pub(super) fn of(history: &History) -> Self {
        let mut found = Self::default();
        for made in &history.made {
            let nano_usd = made.nano_usd();
            if made.is_repeated {
                found.repeated_requests.add(nano_usd);
            }
            if let Some(warm) = warm(made) {
                let warm_nano_usd = warm.nano_usd(&made.price);
                found.cold_caches.add(nano_usd.saturating_sub(warm_nano_usd));
            }
            let step = made.price.tiers.first().map(|tier| tier.above_prompt_tokens);
            if step.is_some_and(|step| made.billed.prompt_tokens > step) {
                let flat = Price { tiers: Vec::new(), ..(*made.price).clone() };
                let flat_nano_usd = made.billed.nano_usd(&flat);
                found.price_steps.add(nano_usd.saturating_sub(flat_nano_usd));
            }
        }
        let [same_results, same_files] = results(history);
        for (places, habit) in
            [(same_results, &mut found.repeated_calls), (same_files, &mut found.files_read_again)]
        {
            habit.count = places.len() as u64;
            habit.nano_usd = carried_nano_usd(history, &places);
        }
        found
    }
}

/// Returns the bill of a request whose cache was dropped in the pause before it, had it not been; `None` if
/// it was not.
fn warm(made: &Made) -> Option<BilledTokens> {
    let own = made.billed;
    let is_cold = made.rules.is_cold(made.pause_ms) && own.read_tokens * 2 < made.base_tokens;
    let kept_tokens = made.base_tokens.checked_sub(own.read_tokens).filter(|_| is_cold)?;
    (made.base_tokens >= made.rules.least_tokens).then(|| BilledTokens {
        read_tokens: made.base_tokens,
        written_tokens: own.written_tokens.saturating_sub(kept_tokens),
        written_1h_tokens: own.written_1h_tokens.saturating_sub(kept_tokens),
        ..own
    })
}

/// Returns the messages with results that were there before, with their tokens: results of equal calls, and
/// files that were read before.
fn results(history: &History) -> [Vec<(usize, u64)>; 2] {
    /// Call that waits for its result: its digest, and the file that it reads.
    type Open = HashMap<String, (u64, Option<String>)>;
    let mut open: Open = HashMap::new();
    let mut results: HashMap<u64, u64> = HashMap::new();
    let mut files = HashSet::new();
    let [mut same_results, mut same_files] = [Vec::new(), Vec::new()];
    for (place, message) in history.conversation.messages.iter().enumerate() {
        if let Ok(read) = Protocol::Chat.read_message(&message.raw)
            && !message.calls.is_empty()
        {
            for call in &read.calls {
                let [id, name] =
                    [call.id, call.name].map(|raw| json::string(raw).unwrap_or_default());
                let arguments = call.text();
                let digest = xxh3_64(format!("{name}\n{arguments}").as_bytes());
                open.insert(id.into_owned(), (digest, file(&name, &arguments)));
            }
        }
        let answers = message.answers.as_ref().filter(|_| message.role == Role::Tool);
        let Some((call, file)) = answers.and_then(|id| open.remove(id)) else { continue };
        let content = xxh3_64(message.content.as_bytes());
        let is_same = results.insert(call, content) == Some(content);
        let is_known_file = file.is_some_and(|file| !files.insert(file));
        if is_same {
            same_results.push((place, message.fact.tokens));
        } else if is_known_file {
            same_files.push((place, message.fact.tokens));
        }
    }
    [same_results, same_files]
}

/// Returns the file that a call reads, by its first argument.
fn file(tool: &str, arguments: &str) -> Option<String> {
    let tool = tool.to_ascii_lowercase();
    if !READING.iter().any(|word| tool.contains(word)) {
        return None;
    }
    let (_, first) = json::members(arguments)?.into_iter().next()?;
    let name = json::string(first).filter(|name| name.len() <= MOST_PATH_BYTES)?;
    let is_path = name.contains(['/', '.', '\\']) && !name.contains(char::is_whitespace);
    is_path.then(|| name.into_owned())
}

/// Returns the cost of some messages in all requests: new in the first that has them, and as a part of what
/// was sent before in the later ones.
fn carried_nano_usd(history: &History, places: &[(usize, u64)]) -> u64 {
    let mut places = places.iter().peekable();
    let (mut before_tokens, mut all_nano_usd) = (0_u64, 0_u64);
    for (made, length) in history.made.iter().zip(&history.conversation.turns) {
        let mut new_tokens = 0;
        while let Some((_, tokens)) = places.next_if(|(message, _)| message < length) {
            new_tokens += tokens;
        }
        if before_tokens + new_tokens > 0 {
            let sent_tokens = made.messages_tokens.saturating_sub(before_tokens + new_tokens);
            let base_tokens = made.base_tokens.saturating_sub(made.in_prompt(before_tokens));
            let without = made.without(sent_tokens, base_tokens).nano_usd(&made.price);
            all_nano_usd = all_nano_usd.saturating_add(made.nano_usd().saturating_sub(without));
        }
        before_tokens += new_tokens;
    }
    all_nano_usd
}
