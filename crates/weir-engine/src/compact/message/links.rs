//! Blocks that a message names by their IDs: its own calls, and those of earlier messages.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::wire::message::Naming;
use crate::wire::{Edit, Message, Protocol, Role, json, repeats};

/// Number of names that a fact holds; those of a message with more are read again when needed.
pub(crate) const INLINE: usize = 4;

/// One name: a hash of the ID. Two IDs with the same hash only keep more messages together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub naming: Naming,
    pub id: u32,
    /// Hash of a call's tool and arguments, or of a result's texts; 0 if there is nothing to compare.
    pub key: u32,
}

/// Names in a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Links {
    inline: [Option<Link>; INLINE],
    has_more: bool,
    /// Number of calls that wait for a result from a later message.
    pub waits: u32,
}

impl Links {
    /// Returns the names in a message. A result in the message of its call leaves nothing to wait for.
    pub(crate) fn of(message: &Message<'_>) -> Self {
        let mut links = Self { waits: message.calls.len() as u32, ..Self::default() };
        let is_small = message.names.is_empty() && message.calls.len() < INLINE;
        if is_small {
            let all = client_links(message).map(Some);
            links.inline.iter_mut().zip(all).for_each(|(own, link)| *own = link);
            return links;
        }
        let all = all(message);
        let waiting = |link: &&Link| link.naming == Naming::Call;
        let without_id = message.calls.iter().filter(|call| hash(call.id).is_none()).count();
        links.waits = (all.iter().filter(waiting).count() + without_id) as u32;
        links.has_more = all.len() > INLINE;
        links.inline.iter_mut().zip(all).for_each(|(own, link)| *own = Some(link));
        links
    }

    /// Returns the names, if all are held here.
    pub(crate) fn held(&self) -> Option<impl Iterator<Item = Link> + '_> {
        (!self.has_more).then(|| self.inline.iter().flatten().copied())
    }

    #[cfg(test)]
    pub(crate) fn waiting(calls: u32) -> Self {
        Self { waits: calls, ..Self::default() }
    }
}

/// Returns the names of a client's calls and results.
fn client_links<'m>(message: &'m Message<'_>) -> impl Iterator<Item = Link> + 'm {
    let calls = message.calls.iter().filter_map(|call| {
        let key = key(&[call.name, call.arguments]);
        link((Naming::Call, call.id)).map(|link| Link { key, ..link })
    });
    // Providers read the ID that a result answers in no other message.
    let answers = message.answers.filter(|_| message.role == Role::Tool);
    let answers = answers.and_then(|id| link((Naming::Answer, id)));
    let result = || repeats::result(message).map_or(0, |texts| key(&texts));
    calls.chain(answers.map(move |link| Link { key: result(), ..link }))
}

/// Hashes JSON texts; 0 only if all are empty.
fn key(texts: &[&str]) -> u32 {
    if texts.iter().all(|text| text.is_empty()) {
        return 0;
    }
    let mut hasher = Xxh3::new();
    for text in texts {
        hasher.update(text.as_bytes());
        hasher.update(&[0]);
    }
    (hasher.digest() as u32).max(1)
}

/// Returns all names in a message, each ID once: a call that is answered in it is only there. A program that
/// waits for its result is also named by the calls that it makes.
pub(crate) fn all(message: &Message<'_>) -> Vec<Link> {
    let mut all: Vec<Link> = client_links(message).collect();
    let mut places: std::collections::BTreeMap<u32, usize> =
        all.iter().enumerate().map(|(place, link)| (link.id, place)).collect();
    let mut mentioned = std::collections::BTreeSet::new();
    for link in message.names.iter().copied().filter_map(link) {
        let Some(place) = places.get(&link.id) else {
            places.insert(link.id, all.len());
            all.push(link);
            continue;
        };
        let own = &mut all[*place].naming;
        match (*own, link.naming) {
            (Naming::Call, Naming::Answer) => *own = Naming::Own,
            (Naming::Call, Naming::Mention) if mentioned.insert(link.id) => all.push(link),
            (Naming::Call, Naming::Inner) => all.push(link),
            _ => {}
        }
    }
    all
}

/// Returns the edit that sends a message of Messages without the blocks that have these IDs.
pub(crate) fn without(message: &Message<'_>, ids: &[u32]) -> Option<Edit> {
    if message.protocol != Protocol::Messages {
        return None;
    }
    let names = message.names.iter().map(|(_, raw)| *raw);
    let names = names.filter(|raw| hash(raw).is_some_and(|id| ids.contains(&id)));
    let names: Vec<String> = names.filter_map(json::string).map(|id| id.into_owned()).collect();
    (!names.is_empty()).then_some(Edit::DropBlocks(names))
}

fn link((naming, id): (Naming, &str)) -> Option<Link> {
    Some(Link { naming, id: hash(id)?, key: 0 })
}

/// Returns the hash of an ID; `None` for an empty one.
pub(crate) fn hash(id: &str) -> Option<u32> {
    let id = json::string(id).filter(|id| !id.is_empty())?;
    Some(xxh3_64(id.as_bytes()) as u32)
}
