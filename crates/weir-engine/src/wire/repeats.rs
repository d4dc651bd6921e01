//! Calls at the end of a conversation that were made again and again with the same results. Decides nothing.

use std::borrow::Cow;

use serde_json::Value;

use super::message::{Content, Part};
use super::{Message, Request, Role, json};

/// Call with its result, as JSON texts.
#[derive(Clone)]
struct Done<'a> {
    name: &'a str,
    arguments: Cow<'a, str>,
    /// Parts of the result.
    result: Vec<&'a str>,
}

impl PartialEq for Done<'_> {
    fn eq(&self, other: &Self) -> bool {
        let value = |own: &Self| serde_json::from_str::<Value>(&own.arguments).ok();
        // Spaces and the order of members say nothing.
        let is_equal = || value(self).is_some_and(|own| Some(own) == value(other));
        self.name == other.name
            && self.result == other.result
            && (self.arguments == other.arguments || is_equal())
    }
}

/// Returns how often in a row the last calls of a conversation were made with the same arguments and the same
/// results, at most `most` times, and the name of the first of them. 0 if it does not end with results. A
/// user's words between them end the count, the assistant's own do not; results with images, sound or sealed parts
/// are not compared.
pub fn repeats<'a>(request: &Request<'a>, most: usize) -> (usize, Cow<'a, str>) {
    let mut results: Vec<(&str, Vec<&str>)> = Vec::new();
    let (mut round, mut newest): (Vec<Done<'_>>, Vec<Done<'_>>) = Default::default();
    let mut count = 0;
    // Ends a round of calls; returns whether it equals the newest.
    let mut end = |round: &mut Vec<Done<'a>>| {
        let own = std::mem::take(round);
        if count == 0 {
            newest = own;
        } else if newest != own {
            return false;
        }
        count += 1;
        count < most
    };
    for raw in request.messages.iter().rev() {
        let Ok(message) = request.protocol.read_message(raw) else { break };
        let is_round_over = !round.is_empty() && matches!(message.role, Role::Tool | Role::User);
        if is_round_over && !message.is_aside && !end(&mut round) {
            break;
        }
        match message.role {
            Role::System => {}
            Role::User if message.is_aside => {}
            Role::Tool => match message.answers.zip(result(&message)) {
                Some(answer) => results.push(answer),
                None => break,
            },
            Role::Assistant => {
                if !take_calls(&message, &mut results, &mut round) {
                    round.clear();
                    break;
                }
            }
            Role::User | Role::Other => break,
        }
    }
    if !round.is_empty() {
        end(&mut round);
    }
    let name = newest.last().and_then(|own| json::string(own.name));
    (count, name.unwrap_or_default())
}

/// Returns the parts of a result as JSON texts, such as a shell's outputs with their exit codes; `None` if some
/// cannot be compared.
pub(crate) fn result<'a>(message: &Message<'a>) -> Option<Vec<&'a str>> {
    let content = match &message.content {
        Content::Parts(parts) => parts.as_slice(),
        Content::None | Content::Text(_) => &[],
    };
    let mut result = message.texts();
    for part in content.iter().chain(&message.others) {
        match part {
            Part::Text(_) => {}
            Part::Ambiguous(raw) | Part::Tools(raw) | Part::Other(raw) => result.push(*raw),
            Part::Image { .. } | Part::Audio { .. } | Part::Thinking(_) | Part::Sealed(_) => {
                return None;
            }
        }
    }
    (message.opaque_members == 0).then_some(result)
}

/// Moves the results of a message's calls into its round. Returns whether each call has one.
fn take_calls<'a>(
    message: &Message<'a>,
    results: &mut Vec<(&'a str, Vec<&'a str>)>,
    round: &mut Vec<Done<'a>>,
) -> bool {
    message.calls.iter().rev().all(|call| {
        let place = results.iter().position(|(id, _)| *id == call.id);
        let done = place.map(|place| Done {
            name: call.name,
            arguments: call.text(),
            result: results.remove(place).1,
        });
        round.extend(done.clone());
        done.is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Protocol;

    fn counted(protocol: Protocol, messages: &[&str]) -> (usize, String) {
        let list = if protocol == Protocol::Responses { "input" } else { "messages" };
        let body = format!(r#"{{"model":"m","{list}":[{}]}}"#, messages.join(","));
        let request = protocol.read(body.as_bytes(), 100).expect("a request");
        let (count, name) = repeats(&request, 9);
        (count, name.into_owned())
    }

    fn chat(calls: &[(&str, &str)]) -> Vec<String> {
        let each = |(place, (arguments, result)): (usize, &(&str, &str))| {
            format!(
                r#"{{"role":"assistant","content":"{place}","tool_calls":[{{"id":"c{place}","type":"function","function":{{"name":"bash","arguments":"{arguments}"}}}}]}},{{"role":"tool","tool_call_id":"c{place}","content":"{result}"}}"#
            )
        };
        calls.iter().enumerate().map(each).collect()
    }

    #[test]
    fn the_last_calls_are_compared_with_those_before() {
        let user = r#"{"role":"user","content":"go"}"#;
        for (calls, count) in [
            (&[("ls", "a")][..], 1),
            (&[("ls", "a"), ("ls", "a"), ("ls", "a")], 3),
            (&[("ls", "a"), ("ls", "b"), ("ls", "b")], 2),
            (&[("ls", "a"), ("pwd", "a"), ("ls", "a")], 1),
        ] {
            let chat = chat(calls);
            let mut messages: Vec<&str> = chat.iter().map(String::as_str).collect();
            messages.insert(0, user);
            assert_eq!(counted(Protocol::Chat, &messages), (count, "bash".to_owned()), "{calls:?}");
            messages.push(user);
            assert_eq!(counted(Protocol::Chat, &messages).0, 0, "a user asks");
            messages.extend(chat.iter().map(String::as_str));
            assert_eq!(counted(Protocol::Chat, &messages).0, count, "no further than the user");
        }
    }

    #[test]
    fn every_protocol_has_calls() {
        let user = r#"{"role":"user","content":"go"}"#;
        let items: Vec<String> = (0..3)
            .map(|place| {
                format!(
                    r#"{{"type":"function_call","call_id":"c{place}","name":"a","arguments":"{{}}"}},{{"type":"function_call","call_id":"d{place}","name":"b","arguments":"{{}}"}},{{"type":"function_call_output","call_id":"c{place}","output":"x"}},{{"type":"function_call_output","call_id":"d{place}","output":"y"}}"#
                )
            })
            .collect();
        let blocks: Vec<String> = (0..3)
            .map(|place| {
                format!(
                    r#"{{"role":"assistant","content":[{{"type":"tool_use","id":"c{place}","name":"a","input":{{"x":1}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c{place}","content":"x"}}]}}"#
                )
            })
            .collect();
        for (protocol, rounds) in [(Protocol::Responses, items), (Protocol::Messages, blocks)] {
            let mut messages: Vec<&str> = rounds.iter().map(String::as_str).collect();
            messages.insert(0, user);
            assert_eq!(counted(protocol, &messages), (3, "a".to_owned()), "{protocol:?}");
        }
    }

    /// Arguments may be lists and objects, and so may results. Their spaces and the order of their members do
    /// not count, their values do.
    #[test]
    fn arguments_and_results_of_any_form_are_compared() {
        let shell = |nth: usize, command: &str, code: &str| {
            format!(
                r#"{{"type":"shell_call","call_id":"c{nth}","action":{{"commands":["{command}"],"timeout_ms":9}},"status":"completed"}},{{"type":"shell_call_output","call_id":"c{nth}","output":[{{"stdout":"a","stderr":"","outcome":{{"type":"exit","exit_code":{code}}}}}]}}"#
            )
        };
        let local = |nth: usize, action: &str| {
            format!(
                r#"{{"type":"local_shell_call","id":"l{nth}","call_id":"c{nth}","action":{action}}},{{"type":"local_shell_call_output","call_id":"c{nth}","output":"a"}}"#
            )
        };
        let custom = |nth: usize, input: &str| {
            format!(
                r#"{{"type":"custom_tool_call","call_id":"c{nth}","name":"n","input":{input}}},{{"type":"custom_tool_call_output","call_id":"c{nth}","output":[{{"type":"input_text","text":"a"}}]}}"#
            )
        };
        let used = |nth: usize, input: &str| {
            format!(
                r#"{{"role":"assistant","content":[{{"type":"tool_use","id":"c{nth}","name":"n","input":{input}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c{nth}","content":"a"}}]}}"#
            )
        };
        let called = |nth: usize, arguments: &str| {
            format!(
                r#"{{"role":"assistant","tool_calls":[{{"id":"c{nth}","type":"function","function":{{"name":"n","arguments":{}}}}}]}},{{"role":"tool","tool_call_id":"c{nth}","content":"a"}}"#,
                Value::from(arguments)
            )
        };
        let (one, two, other) = (
            r#"{"a":[1,{"b":2}],"c":3}"#,
            r#"{"c": 3, "a": [1, {"b": 2}]}"#,
            r#"{"a":[{"b":2},1],"c":3}"#,
        );
        for (protocol, first, second, count) in [
            (Protocol::Responses, shell(1, "ls", "0"), shell(2, "ls", "0"), 2),
            (Protocol::Responses, shell(1, "ls", "0"), shell(2, "ls", "1"), 1),
            (Protocol::Responses, shell(1, "ls", "0"), shell(2, "pwd", "0"), 1),
            (Protocol::Responses, local(1, one), local(2, two), 2),
            (Protocol::Responses, custom(1, "\"*** Begin\""), custom(2, "\"*** Begin\""), 2),
            (Protocol::Messages, used(1, one), used(2, two), 2),
            (Protocol::Messages, used(1, one), used(2, other), 1),
            (Protocol::Chat, called(1, one), called(2, two), 2),
            (Protocol::Chat, called(1, one), called(2, "no JSON"), 1),
        ] {
            let messages = [r#"{"role":"user","content":"go"}"#, &first, &second];
            assert_eq!(counted(protocol, &messages).0, count, "{protocol:?} {second}");
        }
    }
}
