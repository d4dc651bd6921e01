//! Parts of messages besides their texts: images, sound, calls, reasoning. A message whose text was sent is
//! kept only if these were sent, too. Pure.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::Fate;
use crate::compact::excerpt::weight::Seeded;
use crate::wire::Protocol;
use crate::wire::message::{Content, Message, Part};

/// Corrects the fates of kept messages that were sent without a part, or with a changed one: they are clipped.
pub(super) fn check(protocol: Protocol, received: &[&str], sent: &[&str], fates: &mut [Fate]) {
    let mut places: HashMap<u64, Vec<usize>, Seeded> = HashMap::default();
    let all: Vec<u64> = sent.iter().flat_map(|raw| parts(protocol, raw)).collect();
    for (place, key) in all.iter().enumerate().rev() {
        places.entry(*key).or_default().push(place);
    }
    // First part that none of the messages so far has.
    let mut next = 0;
    let all = received.iter().zip(fates);
    for (raw, fate) in all.filter(|(_, fate)| **fate == Fate::Kept) {
        let mut from = next;
        let mut is_sent = |key: &u64| {
            let list = places.get_mut(key)?;
            while list.pop_if(|place| *place < from).is_some() {}
            from = list.pop()? + 1;
            Some(())
        };
        match parts(protocol, raw).iter().try_for_each(&mut is_sent) {
            Some(()) => next = from,
            None => *fate = Fate::Clipped,
        }
    }
}

/// Returns the parts of a message, in order, as hashes.
fn parts(protocol: Protocol, raw: &str) -> Vec<u64> {
    let raw = protocol.identity(raw);
    let Ok(message) = protocol.read_message(&raw) else { return Vec::new() };
    let Message { content, calls, inner_outputs, side_texts, others, .. } = &message;
    let inside = match content {
        Content::Parts(parts) => parts.as_slice(),
        Content::None | Content::Text(_) => &[],
    };
    let inside = inside.iter().filter(|part| !matches!(part, Part::Text(_)));
    let parts = inside.chain(others).map(|part| match part {
        Part::Image { url, .. } => hash("image", url),
        Part::Audio { data, .. } => hash("audio", data),
        Part::Text(raw)
        | Part::Thinking(raw)
        | Part::Sealed(raw)
        | Part::Ambiguous(raw)
        | Part::Tools(raw)
        | Part::Other(raw) => hash("part", raw),
    });
    let calls = calls.iter().map(|call| hash(call.name, call.arguments));
    let texts = inner_outputs.iter().chain(side_texts).map(|raw| hash("text", raw));
    parts.chain(calls).chain(texts).collect()
}

fn hash(kind: &str, value: &str) -> u64 {
    xxh3_64(format!("{kind}\0{value}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_its_image_or_with_another_call_is_clipped() {
        let image = |url: &str| {
            format!(
                r#"{{"role":"user","content":[{{"type":"text","text":"see"}},{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}"#
            )
        };
        let call = |name: &str, arguments: &str| {
            format!(
                r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"c","type":"function","function":{{"name":"{name}","arguments":"{arguments}"}}}}]}}"#
            )
        };
        let text = r#"{"role":"user","content":"see"}"#.to_owned();
        let received = [text.clone(), image("a"), call("rm", "1"), image("b")];
        let fates = |sent: &[String]| {
            let received: Vec<&str> = received.iter().map(String::as_str).collect();
            let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
            let mut fates = [Fate::Kept, Fate::Kept, Fate::Kept, Fate::Kept];
            check(Protocol::Chat, &received, &sent, &mut fates);
            fates.map(|fate| fate == Fate::Kept)
        };
        assert_eq!(fates(&received), [true; 4]);
        let marked = r#"{"role":"user","content":[{"type":"text","text":"see"}]}"#.to_owned();
        for (place, other, wanted) in [
            (0, marked, [true, true, true, true]),
            (1, text.clone(), [true, false, true, true]),
            (1, image("c"), [true, false, true, true]),
            (2, call("ls", "1"), [true, true, false, true]),
            (2, call("rm", "2"), [true, true, false, true]),
            (3, image("a"), [true, true, true, false]),
        ] {
            let mut sent = received.clone();
            sent[place] = other;
            assert_eq!(fates(&sent), wanted, "{place} {}", sent[place]);
        }
    }
}
