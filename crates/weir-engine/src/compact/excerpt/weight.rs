//! Probability that each value of a conversation is used again, estimated from the conversation
//! itself: the assistant reuses values that it used before. Pure.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use crate::compact::message::reading::{Mention, Reading};
use crate::compact::message::values::ValueKind;
use crate::wire::Role;

/// Share of its first weight that a value which nobody cited never loses, however old.
const OLD_SHARE: f64 = 0.1;
/// Expected later use of a plain uncited value.
const UNCITED_WEIGHT: f64 = 0.09;
/// Values of results that are taken to be used as expected, before the conversation itself says how many are.
const PRIOR_VALUES: f64 = 10.0;

/// Values of a conversation, numbered in order of appearance.
#[derive(Debug, Clone, Default)]
pub struct Lexicon {
    ids: HashMap<u64, u32, Seeded>,
    stats: Vec<Stats>,
    /// Numbers of each message's values, in order of position.
    of_message: Vec<Vec<u32>>,
    /// Messages that contain each value, as a chain per value, the newest first.
    holders: Vec<Holder>,
    /// Whether each message still has neighbours of cited values to mark.
    is_unmarked: Vec<bool>,
    /// Number of values that the assistant used after others had brought them.
    taken_up: u32,
    /// How many of the values in results it was expected to use.
    expected: f64,
}

/// Hasher for keys that are hashes already, with a secret seed, so that values cannot be chosen to
/// collide. Its output only affects positions in a map.
#[derive(Debug, Clone)]
pub(crate) struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Self {
        // The seed that each map of the standard library has; no result depends on it.
        Self(HashMap::<u64, u32>::new().hasher().hash_one(0_u64))
    }
}

impl BuildHasher for Seeded {
    type Hasher = Folded;

    fn build_hasher(&self) -> Folded {
        Folded(self.0)
    }
}

/// Both halves of a product, folded into one.
pub(crate) struct Folded(u64);

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, key: u64) {
        let product = u128::from(self.0 ^ key) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Message that contains a value.
#[derive(Debug, Clone, Copy)]
struct Holder {
    message: u32,
    /// Index of the one before it, if any.
    before: Option<u32>,
}

#[derive(Debug, Clone)]
struct Stats {
    /// Number of assistant messages that contain it.
    cited: u32,
    /// Number of other messages that contain it.
    others: u32,
    /// Last message that contains it.
    last: u32,
    /// Index of its last holder.
    last_holder: Option<u32>,
    /// Share of a name's later use that values of its form have.
    form: f64,
    /// Whether a message of others than the assistant has it more than once.
    is_repeated: bool,
    /// Whether it has been the name of a record's member.
    is_member: bool,
    /// Whether it is a datum of a record: a code, a date, an amount, all with digits.
    is_datum: bool,
    /// Number of values in the smallest message that contains it.
    company: u32,
    /// Whether it is in or next to a unit with a cited value.
    is_near_cited: bool,
    kind: ValueKind,
    /// Last message counted for it.
    seen_in: u32,
}

impl Stats {
    /// Returns whether both the assistant and others used it.
    fn is_taken_up(&self) -> bool {
        self.cited > 0 && self.others > 0
    }
}

impl Lexicon {
    /// Adds messages from the first unseen one on. `reading` returns a message.
    pub fn take_up_to(&mut self, messages: usize, reading: impl Fn(usize) -> Arc<Reading>) {
        let new: usize =
            (self.messages()..messages).map(|message| reading(message).values.len()).sum();
        self.holders.reserve(new);
        self.stats.reserve(new / 2);
        self.ids.reserve(new / 2);
        for message in self.messages()..messages {
            self.push(&reading(message));
        }
        for message in 0..messages {
            if std::mem::take(&mut self.is_unmarked[message]) {
                self.mark_neighbours(message, &reading(message));
            }
        }
    }

    /// Returns the number of messages seen.
    pub fn messages(&self) -> usize {
        self.of_message.len()
    }

    /// Returns the numbers of a message's values, in order of position.
    pub fn ids_of(&self, message: usize) -> &[u32] {
        &self.of_message[message]
    }

    fn push(&mut self, reading: &Reading) {
        let (message, company) = (self.messages() as u32, reading.values.len() as u32);
        let mut ids = Vec::with_capacity(reading.values.len());
        let is_record = reading.text.starts_with(['{', '[']);
        for mention in &reading.values {
            let next = self.stats.len() as u32;
            let id = *self.ids.entry(mention.key).or_insert(next);
            ids.push(id);
            if id == next {
                self.stats.push(Stats {
                    cited: 0,
                    others: 0,
                    last: message,
                    last_holder: None,
                    is_member: false,
                    is_datum: false,
                    form: form(reading, mention),
                    is_repeated: false,
                    company: u32::MAX,
                    is_near_cited: false,
                    kind: mention.kind,
                    seen_in: u32::MAX,
                });
            }
            let stats = &mut self.stats[id as usize];
            stats.is_member |= mention.names_member;
            if stats.seen_in == message {
                stats.is_repeated |= reading.role != Role::Assistant;
                continue;
            }
            stats.seen_in = message;
            stats.is_datum |= is_record && mention.has_digit;
            let was_taken_up = stats.is_taken_up();
            match reading.role {
                Role::Assistant => {
                    self.taken_up += u32::from(stats.cited == 0 && stats.others > 0);
                    stats.cited += 1;
                }
                role => {
                    let is_new = role == Role::Tool && stats.cited + stats.others == 0;
                    let expected = UNCITED_WEIGHT * company_share(company) * stats.form;
                    self.expected += if is_new { expected } else { 0.0 };
                    stats.others += 1;
                }
            }
            stats.last = message;
            stats.company = stats.company.min(company);
            let before = stats.last_holder.replace(self.holders.len() as u32);
            self.holders.push(Holder { message, before });
            if stats.is_taken_up() && !was_taken_up {
                let mut next = before;
                while let Some(holder) = next.map(|place| self.holders[place as usize]) {
                    self.is_unmarked[holder.message as usize] = true;
                    next = holder.before;
                }
            }
        }
        self.of_message.push(ids);
        self.is_unmarked.push(true);
    }

    /// Marks values next to cited ones, after all messages are added. Citations and marks are
    /// permanent, so a message only needs new marks if one of its values was taken up since.
    fn mark_neighbours(&mut self, message: usize, reading: &Reading) {
        let (ids, stats) = (&self.of_message[message], &mut self.stats);
        let is_cited = |place: usize| stats[ids[place] as usize].is_taken_up();
        let cited: Vec<bool> =
            reading.units.iter().map(|unit| reading.places_in(unit).any(is_cited)).collect();
        for (index, unit) in reading.units.iter().enumerate() {
            let from = index.saturating_sub(1);
            let to = (index + 2).min(cited.len());
            if cited[from..to].contains(&true) {
                for place in reading.places_in(unit) {
                    stats[ids[place] as usize].is_near_cited = true;
                }
            }
        }
    }

    pub fn id(&self, key: u64) -> Option<u32> {
        self.ids.get(&key).copied()
    }

    /// Returns whether the assistant has used it.
    pub fn is_cited(&self, id: u32) -> bool {
        self.stats[id as usize].cited > 0
    }

    pub fn len(&self) -> usize {
        self.stats.len()
    }

    /// Returns the expected later use of a value.
    ///
    /// The assistant reuses values that it has used, more likely after two uses; further uses add
    /// little. An unused value is more likely to be used the more recent it is and the fewer values
    /// arrived with it, and if it came again: in two to four messages, or twice in one. What comes with
    /// every result is a fixture of them. All weigh less if the assistant uses fewer of them than usual.
    /// The figures are rates of later use in recorded runs of coding agents, research and customer service,
    /// rounded.
    pub fn weight(&self, id: u32) -> f64 {
        let stats = &self.stats[id as usize];
        if stats.cited > 0 {
            // A value that only the assistant used may be its own wording instead of a thing.
            let own = if stats.others == 0 { 0.2 } else { 0.45 };
            let kind = match stats.kind {
                ValueKind::Name => 1.0,
                ValueKind::Phrase | ValueKind::Word => 0.6,
            };
            return (own + 0.25 * f64::from(stats.cited.min(2))) * kind;
        }
        let age_messages = (self.messages() - stats.last as usize) as f64;
        let recency = OLD_SHARE + (1.0 - OLD_SHARE) * 40.0 / (40.0 + age_messages);
        let company = company_share(stats.company);
        let near = if stats.is_near_cited { 2.0 } else { 1.0 };
        let again = [1.0, 1.0, 2.2, 1.9, 1.9, 1.1][stats.others.min(5) as usize];
        let repeated = if stats.is_repeated { 1.5 } else { 1.0 };
        let form = match stats.kind {
            // The names of members are the same in every record; their values are not.
            ValueKind::Name if stats.is_member => 0.5,
            ValueKind::Name if stats.is_datum => 3.0,
            _ => stats.form,
        };
        UNCITED_WEIGHT * self.usage() * recency * company * near * again * repeated * form
    }

    /// Returns the share of the usual weight that uncited values have: 1, or less if the assistant uses few of
    /// the values that results bring. In nineteen of twenty recorded conversations it is above 0.9.
    fn usage(&self) -> f64 {
        let used = f64::from(self.taken_up);
        ((PRIOR_VALUES + used) / (PRIOR_VALUES + self.expected)).sqrt().min(1.0)
    }
}

/// Returns the share of its weight that a value keeps among so many of its smallest message.
fn company_share(company: u32) -> f64 {
    (1000.0 / (1000.0 + f64::from(company))).sqrt()
}

/// Returns the share of a name's later use that values of the same form have.
fn form(reading: &Reading, mention: &Mention) -> f64 {
    let said = reading.said(mention).as_bytes();
    let is_number = said.iter().all(|own| matches!(own, b'!'..=b'@'));
    match mention.kind {
        ValueKind::Phrase if said.ends_with(b")") || said.contains(&b'=') => 0.4,
        ValueKind::Phrase | ValueKind::Word => 0.2,
        // A path that was listed and not opened, or a bare number.
        ValueKind::Name if mention.has_slash || is_number => 0.4,
        ValueKind::Name if said.iter().all(|own| own.is_ascii_lowercase() || *own == b'-') => 0.5,
        ValueKind::Name => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adding messages one by one, with marks after each, gives the same result as adding all at
    /// once.
    #[test]
    fn neighbours_are_marked_whenever_a_value_is_taken_up() {
        let said = [
            (Role::User, "open gate_1 beside wall_2\n\nmill_3 far below\n\npond_4 at last"),
            (Role::Tool, "{\"pond_4\": \"deep_5\"}\nfar_9\nwall_2\nmill_3\n\nroad_6"),
            (Role::Assistant, "I look at road_6"),
            (Role::User, "road_6 and gate_1"),
            (Role::Assistant, "then wall_2"),
            (Role::Assistant, "own_7 beside own_8"),
            (Role::User, "own_8 it is, near deep_5"),
        ];
        let readings = said.map(|(role, text)| Arc::new(Reading::of_text(role, text)));
        let reading = |message: usize| Arc::clone(&readings[message]);
        let mut by_one = Lexicon::default();
        for end in 1..=readings.len() {
            by_one.take_up_to(end, reading);
            let mut at_once = Lexicon::default();
            at_once.take_up_to(end, reading);
            // Everything to mark, regardless of earlier marks.
            let mut again = at_once.clone();
            (0..end).for_each(|message| again.mark_neighbours(message, &reading(message)));
            for id in 0..by_one.len() as u32 {
                assert_eq!(by_one.weight(id), at_once.weight(id), "value {id} of {end}");
                assert_eq!(by_one.weight(id), again.weight(id), "value {id} of {end}, again");
            }
        }
        let near = |name: &str| {
            let id = by_one.ids[&xxhash_rust::xxh3::xxh3_64(name.as_bytes())];
            by_one.stats[id as usize].is_near_cited
        };
        assert!(near("gate_1") && near("mill_3") && near("deep_5") && !near("pond_4"));
    }

    /// Uncited values weigh less if the assistant uses none of what results bring.
    #[test]
    fn values_weigh_less_where_none_is_used() {
        let weight = |answer: &str| {
            let mut lexicon = Lexicon::default();
            let names = |from: usize| (from..from + 60).map(|own| format!("gate_{own} "));
            lexicon.take_up_to(40, |message| {
                let (role, text) = match message % 2 {
                    0 => (Role::Tool, names(message * 60).collect()),
                    _ => (Role::Assistant, answer.replace('N', &(message * 60 - 60).to_string())),
                };
                Arc::new(Reading::of_text(role, &text))
            });
            lexicon.weight(lexicon.ids[&xxhash_rust::xxh3::xxh3_64(b"gate_2299")])
        };
        let used: String = "gate_N ".into();
        assert!(weight("I go on.") < weight(&used) * 0.8);
        assert_eq!(weight(&used), weight(&used.repeat(2)));
    }

    /// A value that came again weighs more, unless it comes with every result.
    #[test]
    fn a_value_that_came_again_weighs_more() {
        let weight = |messages: usize, text: &str| {
            let mut lexicon = Lexicon::default();
            let own = Arc::new(Reading::of_text(Role::Tool, text));
            let other = Arc::new(Reading::of_text(Role::Tool, "other_9"));
            lexicon.take_up_to(6, |message| {
                Arc::clone(if message < 6 - messages { &other } else { &own })
            });
            lexicon.weight(lexicon.ids[&xxhash_rust::xxh3::xxh3_64(b"gate_1")])
        };
        let once = weight(1, "gate_1");
        assert!(weight(2, "gate_1") > once && weight(4, "gate_1") > once);
        assert!(weight(6, "gate_1") < weight(4, "gate_1"));
        assert!(weight(1, "gate_1 and gate_1") > once);
    }
}
