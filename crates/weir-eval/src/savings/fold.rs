//! Conversations from what was recorded: requests that extend one another are one conversation, and what a
//! transcript copies from another one counts once. Counts no tokens.

use std::collections::{HashMap, HashSet};

use xxhash_rust::xxh3::xxh3_64;

use crate::recorded::{Recorded, RecordedExchange};
use crate::retold;

/// Bytes of a body for each token, about.
const BYTES_A_TOKEN: u64 = 4;

/// Conversation, and which of its beginnings were sent.
#[derive(Debug)]
pub struct Folded {
    pub(super) recorded: Recorded,
    /// Number of messages in each request; `None` if each answer had one.
    pub(super) lengths: Option<Vec<usize>>,
    /// Requests that were sent twice, by their place.
    pub(super) repeats: Vec<usize>,
    /// Number of first messages that another transcript has, too. Answers in them were given there.
    pub(super) copied: usize,
}

impl Folded {
    /// Size of its largest prompt in tokens: as reported, or about that of its body.
    pub fn about_tokens(&self) -> u64 {
        let exchanges = self.recorded.exchanges.iter();
        let reported = exchanges.filter_map(|own| own.usage?.prompt_tokens).max();
        reported.unwrap_or(self.recorded.body.len() as u64 / BYTES_A_TOKEN)
    }
}

/// Returns the conversations of all that was recorded, in its order, and the names of those that cannot be
/// read, with the reason.
pub fn fold(all: Vec<Recorded>) -> (Vec<Folded>, Vec<String>) {
    let (mut requests, mut others, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for recorded in all {
        match chain(&recorded) {
            Ok(chain) if recorded.is_request => requests.push((recorded, chain)),
            Ok(chain) => others.push((recorded, chain)),
            Err(error) => refused.push(format!("{}: {error}", recorded.id)),
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

/// Returns a digest of each beginning of the messages, the shortest first. Marks for the cache, which move
/// from request to request, are not part of it.
fn chain(recorded: &Recorded) -> Result<Vec<u64>, String> {
    let request = recorded.protocol.read(recorded.body.as_bytes(), usize::MAX);
    let request = request.map_err(|error| format!("{error:?}"))?;
    let mut before = 0_u64;
    let digests = request.messages.iter().map(|raw| {
        let text = retold::retold(recorded.protocol, raw);
        let own = xxh3_64(text.as_deref().unwrap_or(raw).as_bytes());
        before = xxh3_64(&[before.to_le_bytes(), own.to_le_bytes()].concat());
        before
    });
    Ok(digests.collect())
}

/// Finds what transcripts have in common: agents copy a session to resume or to fork it. Leaves out those that
/// are copied whole.
fn without_repeated(all: Vec<(Recorded, Vec<u64>)>) -> Vec<Folded> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|place| std::cmp::Reverse(all[*place].1.len()));
    let mut known = HashSet::new();
    let mut copied = vec![0; all.len()];
    for place in order {
        let (recorded, chain) = &all[place];
        // Conversations of a data set may well begin alike; only transcripts report their requests.
        if !recorded.exchanges.is_empty() {
            copied[place] = chain.partition_point(|digest| known.contains(digest));
            known.extend(chain.iter().copied());
        }
    }
    let all = all.into_iter().zip(copied);
    let kept = all.filter(|((_, chain), copied)| *copied < chain.len());
    let draft =
        |((recorded, _), copied)| Folded { recorded, lengths: None, repeats: Vec::new(), copied };
    kept.map(draft).collect()
}

/// Joins each request to the conversation whose last request it extends the furthest.
fn folded(requests: Vec<(Recorded, Vec<u64>)>) -> Vec<Folded> {
    let mut drafts: Vec<Folded> = Vec::new();
    let mut tips: HashMap<u64, usize> = HashMap::new();
    for (recorded, chain) in requests {
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
                drafts.push(Folded { recorded, lengths, repeats, copied: 0 });
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
        let exchanges = vec![RecordedExchange { at_ms, ..RecordedExchange::default() }];
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

    #[test]
    fn a_repeated_transcript_counts_once() {
        let transcript = |id: &str, messages: &[&str]| Recorded {
            is_request: false,
            ..request(id, messages, None)
        };
        let all = vec![
            transcript("before", &["x", "p"]),
            transcript("resumed", &["x", "p", "q", "r"]),
            transcript("other", &["y", "p"]),
            transcript("forked", &["x", "p", "z"]),
        ];
        let own = fold(all).0.into_iter().map(|own| (own.recorded.id, own.copied));
        let expected = [("resumed", 0), ("other", 0), ("forked", 2)];
        let expected = expected.map(|(id, copied)| (id.to_owned(), copied));
        assert_eq!(own.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let broken = Recorded { id: "x".to_owned(), body: "{".to_owned(), ..Recorded::default() };
        let (drafts, refused) = fold(vec![broken]);
        assert!(drafts.is_empty() && refused[0].starts_with("x: "), "{refused:?}");
    }
}
