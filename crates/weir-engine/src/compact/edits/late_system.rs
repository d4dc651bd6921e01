//! Conversion of system messages behind other messages to user messages, for models whose templates
//! refuse them. Changes nothing else.

use crate::compact::source::Source;
use crate::compact::state::Compactor;
use crate::wire::{Edit, Role, json};

/// Returns the edits that turn late system messages into user text. `is_sent` returns whether a
/// message is sent.
///
/// If the model accepts two user messages in a row, each keeps its place under another role, so
/// that the sent prefix does not change. If roles must alternate, its text moves to the front of
/// the next user message, or else to the end of the one before it.
pub(crate) fn edits(
    state: &Compactor,
    source: &dyn Source,
    is_sent: impl Fn(usize) -> bool,
) -> Vec<(usize, Edit)> {
    let facts = state.facts();
    let is_late =
        |message: usize| facts[message].role == Role::System && message >= state.turns.system_run;
    let sent: Vec<usize> = (0..facts.len()).filter(|message| is_sent(*message)).collect();
    let mut edits = Vec::new();
    let mut at = 0;
    while at < sent.len() {
        if !is_late(sent[at]) {
            at += 1;
            continue;
        }
        let end = at + sent[at..].iter().take_while(|message| is_late(**message)).count();
        let run = &sent[at..end];
        let before = at.checked_sub(1).map(|place| sent[place]);
        edits.extend(match state.profile.policy.strict_alternation {
            false => run.iter().map(|message| (*message, Edit::SpeakAsUser)).collect(),
            true => merged(state, source, run, before, sent.get(end).copied()),
        });
        at = end;
    }
    edits
}

/// Returns the edits of one run of late system messages among alternating roles.
fn merged(
    state: &Compactor,
    source: &dyn Source,
    run: &[usize],
    before: Option<usize>,
    behind: Option<usize>,
) -> Vec<(usize, Edit)> {
    let takes_text = |message: &usize| {
        state.facts()[*message].role == Role::User && state.facts()[*message].takes_note
    };
    let texts = run.iter().filter_map(|message| source.message(*message)).flat_map(|message| {
        let texts = message.texts().into_iter().filter_map(json::string);
        texts.map(std::borrow::Cow::into_owned).collect::<Vec<_>>()
    });
    let text = texts.collect::<Vec<_>>().join("\n\n");
    let mut edits: Vec<(usize, Edit)> =
        run.iter().map(|message| (*message, Edit::Remove)).collect();
    if let Some(behind) = behind.filter(takes_text) {
        edits.push((behind, Edit::Prepend(format!("{text}\n\n"))));
    } else if let Some(before) = before.filter(takes_text) {
        edits.insert(0, (before, Edit::Append(format!("\n\n{text}"))));
    } else {
        edits[0] = (run[0], Edit::SpeakAsUser);
        if run.len() > 1 {
            edits.insert(1, (run[0], Edit::Replace(text)));
        }
    }
    edits
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::compact::{Limits, Measure, Policy, RequestSource};
    use crate::tokens::Encoding;
    use crate::tokens::media::ImageRule;
    use crate::wire::{Protocol, splice};

    /// Returns the sent form of messages given by role and text.
    fn sent(messages: &str, strict_alternation: bool) -> String {
        let raws: Vec<String> = messages
            .split(' ')
            .map(|word| {
                let role = match &word[..1] {
                    "s" => "system",
                    "u" => "user",
                    _ => "assistant",
                };
                format!(r#"{{"role":"{role}","content":"{word}"}}"#)
            })
            .collect();
        let body = format!(r#"{{"messages":[{}]}}"#, raws.join(","));
        let request = Protocol::Chat.read(body.as_bytes(), 100).expect("readable");
        let measure =
            Measure { encoding: Encoding::O200kBase, images: ImageRule::of_model("gpt-4o") };
        let policy = Policy { strict_alternation, ..Policy::default() };
        let limits = Limits {
            window_tokens: 10_000,
            max_input_tokens: None,
            max_output_tokens: None,
            operator_tokens: None,
            header_tokens: None,
            asked_output_tokens: None,
            counting: policy.counting,
        };
        let mut state = Compactor::new(Arc::new(limits.profile(0, policy, measure)));
        let source = RequestSource::new(Protocol::Chat, &request.messages, measure.encoding);
        for raw in &request.messages {
            let message = Protocol::Chat.read_message(raw).expect("readable");
            state.push(measure.fact(&message), &source);
        }
        let edits = edits(&state, &source, |_| true);
        let spliced = splice::apply(Protocol::Chat, &request, &edits);
        let request = Protocol::Chat.read(spliced.as_bytes(), 100).expect("readable");
        let words = request.messages.iter().map(|raw| {
            let message = Protocol::Chat.read_message(raw).expect("readable");
            let texts = message.texts().concat().replace('"', "").replace("\\n\\n", "/");
            format!("{:.1}:{texts}", format!("{:?}", message.role).to_lowercase())
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn late_system_messages_become_a_users() {
        for (messages, free, strict) in [
            ("s1 u1 a1 u2", "s:s1 u:u1 a:a1 u:u2", "s:s1 u:u1 a:a1 u:u2"),
            ("s1 u1 a1 s2 u2", "s:s1 u:u1 a:a1 u:s2 u:u2", "s:s1 u:u1 a:a1 u:s2/u2"),
            ("u1 s1 s2 a1", "u:u1 u:s1 u:s2 a:a1", "u:u1/s1/s2 a:a1"),
            ("u1 a1 s1 s2 a2", "u:u1 a:a1 u:s1 u:s2 a:a2", "u:u1 a:a1 u:s1/s2 a:a2"),
            ("u1 a1 s1", "u:u1 a:a1 u:s1", "u:u1 a:a1 u:s1"),
        ] {
            assert_eq!(sent(messages, false), free);
            assert_eq!(sent(messages, true), strict);
        }
    }
}
