//! Conversations from what was recorded: requests that extend one another are one conversation, and what a
//! transcript copies from another one counts once. Counts no tokens.

use std::collections::{HashMap, HashSet};

use xxhash_rust::xxh3::xxh3_64;

use crate::conversation::Conversation;
use crate::recorded::{Recorded, RecordedExchange};
use crate::retold;
use weir_engine::wire::json;

/// Bytes of a body for each token, about.
const BYTES_A_TOKEN: u64 = 4;

/// Conversation, and which of its beginnings were sent.
#[derive(Debug)]
pub struct Folded {
    pub(super) recorded: Recorded,
    /// Number of messages in each request, one for each exchange; `None` if each answer had one.
    pub(super) lengths: Option<Vec<usize>>,
    /// Requests that were sent twice, by their place.
    pub(super) repeats: Vec<usize>,
}

/// Digests of each beginning of a conversation's messages, the shortest first, and the number of messages in
/// each request that it reports.
struct Beginnings {
    digests: Vec<u64>,
    lengths: Vec<usize>,
}

impl Folded {
    /// Size of its largest prompt in tokens: as reported, or about that of its body.
    pub fn about_tokens(&self) -> u64 {
        let exchanges = self.recorded.exchanges.iter();
        let reported = exchanges.filter_map(RecordedExchange::prompt_tokens).max();
        reported.unwrap_or(self.recorded.body.len() as u64 / BYTES_A_TOKEN)
    }

    /// Reads it as a conversation; its turns are the requests that were made.
    ///
    /// # Errors
    ///
    /// If a message of it cannot be read; the text names it.
    pub fn conversation(&self) -> Result<Conversation, String> {
        let Self { recorded, lengths, .. } = self;
        let read = Conversation::read(&recorded.body, 1, Some(recorded.protocol));
        let mut own = read.map_err(|error| recorded.refusal(&error))?;
        own.id.clone_from(&recorded.id);
        if let Some(lengths) = lengths {
            own.turns.clone_from(lengths);
        }
        match own.turns.iter().any(|length| *length > own.messages.len()) {
            true => Err(recorded.refusal("its messages are given twice")),
            false => Ok(own),
        }
    }
}

/// Returns the conversations of all that was recorded, in its order, and the names of those that cannot be
/// read, with the reason.
pub fn fold(all: Vec<Recorded>) -> (Vec<Folded>, Vec<String>) {
    let (mut requests, mut others, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for recorded in all {
        // A log that is rotated or exported again has the same requests twice.
        let named = recorded.exchanges.first().filter(|_| recorded.is_request);
        let named = named.and_then(|own| Some((own.id.clone()?, own.at_ms?)));
        let is_free = recorded.exchanges.first().is_some_and(|own| own.is_free);
        if is_free || named.is_some_and(|own| !seen.insert(own)) {
            continue;
        }
        match chain(&recorded) {
            Ok(chain) if recorded.is_request => requests.push((recorded, chain)),
            Ok(chain) => others.push((recorded, chain)),
            Err(error) => refused.push(recorded.refusal(&error)),
        }
    }
    let mut drafts = without_repeated(others);
    // A log may be in the order of the answers. Without times it is in that of the requests.
    if requests.iter().all(|(own, _)| sent_ms(own).is_some()) {
        requests.sort_by_key(|(own, _)| sent_ms(own));
    }
    drafts.extend(folded(requests));
    (drafts, refused)
}

fn sent_ms(recorded: &Recorded) -> Option<u64> {
    recorded.exchanges.first()?.at_ms
}

/// Follows a conversation. Marks for the cache, which move from request to request, are not part of digests.
fn chain(recorded: &Recorded) -> Result<Beginnings, String> {
    let request = recorded.protocol.read(recorded.body.as_bytes(), usize::MAX);
    let request = request.map_err(|error| format!("{error:?}"))?;
    let mut before = 0_u64;
    let digests = request.messages.iter().map(|raw| {
        let text = retold::retold(recorded.protocol, raw);
        let own = xxh3_64(text.as_deref().unwrap_or(raw).as_bytes());
        before = xxh3_64(&[before.to_le_bytes(), own.to_le_bytes()].concat());
        before
    });
    let digests = digests.collect();
    // A message of the assistant may be several items, and one of a user several messages.
    let list = ["messages", "input"].into_iter().find_map(|name| json::member(request.text, name));
    let listed = list.and_then(json::elements).unwrap_or_default();
    let start = |raw: &str| raw.as_ptr() as usize;
    let length = |own: &RecordedExchange| match listed.get(own.sent) {
        Some(answer) => {
            request.messages.partition_point(|raw| start(raw) + raw.len() <= start(answer))
        }
        None => request.messages.len(),
    };
    // What began with an answer was sent with something that is not there.
    let lengths = recorded.exchanges.iter().map(|own| length(own).max(1)).collect();
    Ok(Beginnings { digests, lengths })
}

/// Leaves out what transcripts have in common: agents copy a session to resume or to fork it. Answers without
/// a name are the same if all before them and their usage is. Conversations of a data set may well be alike;
/// only transcripts report their requests.
fn without_repeated(all: Vec<(Recorded, Beginnings)>) -> Vec<Folded> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(all[*place].1.digests.len()));
    let mut all: Vec<_> = all.into_iter().map(Some).collect();
    let mut known = HashSet::new();
    let mut drafts: Vec<(usize, Folded)> = Vec::new();
    for place in order {
        let Some((mut recorded, chain)) = all[place].take() else { continue };
        let exchanges = std::mem::take(&mut recorded.exchanges).into_iter().zip(chain.lengths);
        let named = exchanges.map(|(own, length)| {
            let name = own.id.clone().unwrap_or_else(|| {
                format!("{:?} {:?}", chain.digests.get(length), own.reported.usage)
            });
            (xxh3_64(name.as_bytes()), own, length)
        });
        let named: Vec<_> = named.collect();
        let is_reported = !named.is_empty();
        let names: Vec<u64> = named.iter().map(|(name, _, _)| *name).collect();
        let new = named.into_iter().filter(|(name, _, _)| !known.contains(name));
        let (exchanges, lengths): (Vec<_>, Vec<_>) =
            new.map(|(_, own, length)| (own, length)).unzip();
        known.extend(names);
        if !is_reported || !exchanges.is_empty() {
            recorded.exchanges = exchanges;
            let lengths = is_reported.then_some(lengths);
            drafts.push((place, Folded { recorded, lengths, repeats: Vec::new() }));
        }
    }
    drafts.sort_by_key(|(place, _)| *place);
    drafts.into_iter().map(|(_, own)| own).collect()
}

/// Joins each request to the conversation whose last request it extends the furthest.
fn folded(requests: Vec<(Recorded, Beginnings)>) -> Vec<Folded> {
    let mut drafts: Vec<Folded> = Vec::new();
    let mut tips: HashMap<u64, usize> = HashMap::new();
    for (recorded, Beginnings { digests: chain, .. }) in requests {
        let Some(tip) = chain.last() else { continue };
        let exchange =
            recorded.exchanges.first().cloned().unwrap_or_else(RecordedExchange::default);
        let extended = chain.iter().rev().find_map(|digest| Some((digest, tips.remove(digest)?)));
        let place = match extended {
            Some((digest, place)) => {
                let own = &mut drafts[place];
                let lengths = own.lengths.get_or_insert_default();
                if digest == tip {
                    own.repeats.push(lengths.len());
                }
                lengths.push(chain.len());
                own.recorded.body = recorded.body;
                own.recorded.protocol = recorded.protocol;
                own.recorded.exchanges.push(exchange);
                place
            }
            None => {
                let exchanges = vec![exchange];
                let recorded = Recorded { exchanges, ..recorded };
                let (lengths, repeats) = (Some(vec![chain.len()]), Vec::new());
                drafts.push(Folded { recorded, lengths, repeats });
                drafts.len() - 1
            }
        };
        tips.insert(*tip, place);
    }
    drafts
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::wire::Protocol;

    fn request(id: &str, messages: &[&str], at_ms: Option<u64>) -> Recorded {
        let messages: Vec<String> = messages
            .iter()
            .enumerate()
            .map(|(place, text)| {
                let role = if place % 2 == 0 { "user" } else { "assistant" };
                format!(r#"{{"role":"{role}","content":"{text}"}}"#)
            })
            .collect();
        let body = format!(r#"{{"model":"m","messages":[{}]}}"#, messages.join(","));
        let sent = messages.len() - 1;
        let exchanges = vec![RecordedExchange { at_ms, sent, ..RecordedExchange::default() }];
        Recorded { id: id.to_owned(), body, is_request: true, exchanges, ..Recorded::default() }
    }

    /// Name, lengths of requests and places of repeated ones.
    type Shown<'a> = (&'a str, Option<&'a [usize]>, &'a [usize]);

    fn shown(drafts: &[Folded]) -> Vec<Shown<'_>> {
        let shown = drafts
            .iter()
            .map(|own| (own.recorded.id.as_str(), own.lengths.as_deref(), own.repeats.as_slice()));
        shown.collect()
    }

    #[test]
    fn requests_that_extend_one_another_are_one_conversation() {
        let all = vec![
            request("a1", &["x"], None),
            request("b1", &["y"], None),
            request("a2", &["x", "p", "q"], None),
            request("b2", &["y"], None),
            request("a3", &["x", "p", "q", "r", "s"], None),
            request("c", &["x", "other", "q"], None),
        ];
        let (drafts, refused) = fold(all);
        let expected: [Shown<'_>; 3] =
            [("a1", Some(&[1, 3, 5]), &[]), ("b1", Some(&[1, 1]), &[1]), ("c", Some(&[3]), &[])];
        assert_eq!((shown(&drafts), refused.len()), (expected.to_vec(), 0));
        assert_eq!(drafts[0].recorded.exchanges.len(), 3);
        assert!(drafts[0].recorded.body.contains("\"s\""), "the longest body");
    }

    #[test]
    fn requests_with_times_are_read_in_their_order() {
        let all =
            vec![request("late", &["x", "p", "q"], Some(9)), request("early", &["x"], Some(1))];
        assert_eq!(shown(&fold(all).0), [("early", Some(&[1, 3][..]), &[][..])]);
    }

    #[test]
    fn marks_for_the_cache_divide_no_conversation() {
        let body = |first: &str, rest: &str| Recorded {
            protocol: Protocol::Messages,
            body: format!(
                r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"text","text":"x"{first}}}]}}{rest}]}}"#
            ),
            is_request: true,
            ..Recorded::default()
        };
        let mark = r#","cache_control":{"type":"ephemeral"}"#;
        let rest = r#",{"role":"assistant","content":"p"},{"role":"user","content":"q"}"#;
        let (drafts, _) = fold(vec![body(mark, ""), body("", rest)]);
        assert_eq!(shown(&drafts)[0].1, Some(&[1, 3][..]));
    }

    /// Transcript whose answers have these names, each to a request of all before it.
    fn transcript(id: &str, messages: &[&str], names: &[Option<&str>]) -> Recorded {
        let exchange = |(place, name): (usize, &Option<&str>)| RecordedExchange {
            sent: 2 * place + 1,
            id: name.map(str::to_owned),
            ..RecordedExchange::default()
        };
        let exchanges = names.iter().enumerate().map(exchange).collect();
        Recorded { is_request: false, exchanges, ..request(id, messages, None) }
    }

    #[test]
    fn a_repeated_answer_counts_once() {
        let all = vec![
            transcript("before", &["x", "p"], &[None]),
            transcript("resumed", &["x", "p", "q", "r"], &[None, None]),
            transcript("other", &["y", "p"], &[None]),
            transcript("forked", &["x", "p", "z", "p"], &[None, None]),
        ];
        let drafts = fold(all).0;
        let expected: [Shown<'_>; 3] = [
            ("resumed", Some(&[1, 3]), &[]),
            ("other", Some(&[1]), &[]),
            ("forked", Some(&[3]), &[]),
        ];
        assert_eq!(shown(&drafts), expected);
    }

    #[test]
    fn answers_with_names_are_known_by_them_alone() {
        let all = vec![
            transcript("monday", &["x", "yes"], &[Some("m1")]),
            transcript("tuesday", &["x", "yes"], &[Some("m2")]),
            transcript("forked", &["x", "no", "y", "yes"], &[Some("m2"), Some("m3")]),
        ];
        let drafts = fold(all).0;
        assert_eq!(
            shown(&drafts),
            [("monday", Some(&[1][..]), &[][..]), ("forked", Some(&[1, 3]), &[])]
        );
    }

    #[test]
    fn requests_of_a_log_that_is_given_twice_count_once() {
        let named = |id: &str, at_ms: Option<u64>| {
            let mut own = request(id, &["x"], at_ms);
            own.exchanges[0].id = Some(id.to_owned());
            own
        };
        let all = vec![
            named("a", Some(1)),
            named("a", Some(1)),
            named("a", Some(2)),
            named("b", None),
            named("b", None),
        ];
        let count: usize = fold(all).0.iter().map(|own| own.recorded.exchanges.len()).sum();
        assert_eq!(count, 4, "a name without a time may be given again");
        let free = RecordedExchange { is_free: true, ..RecordedExchange::default() };
        let all = vec![Recorded { exchanges: vec![free], ..request("a", &["x"], None) }];
        assert!(fold(all).0.is_empty(), "nobody bills it");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let broken = Recorded { id: "x".to_owned(), body: "{".to_owned(), ..Recorded::default() };
        let (drafts, refused) = fold(vec![broken.clone()]);
        assert!(drafts.is_empty() && refused[0].starts_with("x: "), "{refused:?}");
        // The commands name the file of what has no project.
        let project = Some("log.json".to_owned());
        let broken = Recorded { body: r#"{"messages":[7]}"#.to_owned(), project, ..broken };
        let (drafts, _) = fold(vec![broken]);
        let error = drafts[0].conversation().expect_err("a number is no message");
        assert!(error.starts_with("log.json: x: message 0"), "{error}");
    }
}
