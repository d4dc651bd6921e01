//! Calls at the end of a conversation that were made again and again with the same results. Decides nothing.

use std::borrow::Cow;

use super::{Message, Request, Role, json};

/// Call with its result, as JSON texts: name, arguments, texts of the result.
type Done<'a> = (&'a str, &'a str, Vec<&'a str>);

/// Returns how often in a row the last calls of a conversation were made with the same arguments and the same
/// results, at most `most` times, and the name of the first of them. 0 if it does not end with results. A
/// user's words between them end the count, the assistant's own do not; results that are not text alone are not
/// compared.
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
            Role::Tool => match message.answers.filter(|_| message.is_text()) {
                Some(id) => results.push((id, message.texts())),
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
    let name = newest.last().and_then(|(name, _, _)| json::string(name));
    (count, name.unwrap_or_default())
}

/// Moves the results of a message's calls into its round. Returns whether each call has one.
fn take_calls<'a>(
    message: &Message<'a>,
    results: &mut Vec<(&'a str, Vec<&'a str>)>,
    round: &mut Vec<Done<'a>>,
) -> bool {
    message.calls.iter().rev().all(|call| {
        let place = results.iter().position(|(id, _)| *id == call.id);
        let done = place.map(|place| (call.name, call.arguments, results.remove(place).1));
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
}
