//! Random conversations: valid by OpenAI's rules, and arbitrary ones.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::harness::{MODEL, STRICT_MODEL};
use super::transcript::{Calls, Content, Message, Part, Style, TOOLS, Text, TextKind, Transcript};

/// A conversation and its limit.
#[derive(Clone)]
pub struct Case {
    pub transcript: Transcript,
    pub limit: Limit,
}

#[derive(Debug, Clone, Copy)]
pub enum Limit {
    Tokens(u64),
    /// Share of the conversation's tokens, in thousandths.
    Share(u64),
}

impl std::fmt::Debug for Case {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let messages: Vec<String> =
            self.transcript.messages.iter().map(|message| format!("{message:?}")).collect();
        let Transcript { style, tools, model, .. } = &self.transcript;
        writeln!(formatter, "{:?}, {model}, tools {tools}, {style:?}", self.limit)?;
        write!(formatter, "{}", messages.join("\n"))
    }
}

/// Valid conversations under limits that usually require a compaction.
pub fn valid() -> impl Strategy<Value = Case> {
    let limit = prop_oneof![
        6 => (50u64..1300).prop_map(Limit::Share),
        1 => (1u64..200).prop_map(Limit::Tokens),
        2 => (200u64..8000).prop_map(Limit::Tokens),
        1 => (8000u64..200_000).prop_map(Limit::Tokens),
    ];
    (valid_messages(), style(), 0..TOOLS.len(), limit).prop_map(
        |(messages, style, tools, limit)| Case {
            transcript: Transcript { messages, style, tools, model: MODEL },
            limit,
        },
    )
}

/// Valid conversations with strictly alternating users and assistants, for a model that requires
/// this.
pub fn alternating() -> impl Strategy<Value = Case> {
    let exchange = (user(), vec(loop_turn(false), 0..4), option::weighted(0.9, assistant()));
    let messages = (vec(system(), 0..2), vec(exchange, 1..9), user(), vec(loop_turn(false), 0..3));
    (messages, style(), 50u64..1200).prop_map(|((system, exchanges, last, tail), style, share)| {
        let mut messages = system;
        for (user, turns, answer) in exchanges {
            // An exchange without its own answer gets the tool loop's answer.
            let answer = answer.unwrap_or_else(|| Message::new("assistant", Content::Null));
            messages.push(user);
            messages.extend(turns.into_iter().flatten());
            messages.push(answer);
        }
        messages.push(last);
        messages.extend(tail.into_iter().flatten());
        number_calls(&mut messages);
        let style = Style { is_numbered: true, ..style };
        let transcript = Transcript { messages, style, tools: 0, model: STRICT_MODEL };
        Case { transcript, limit: Limit::Share(share) }
    })
}

/// Long dialogues with facts and later questions about them; some with a few calls, some in words
/// that look like weir's own.
pub fn dialogues() -> impl Strategy<Value = Case> {
    use TextKind::{Code, Facts, Forged, Question};
    let told = || {
        let kind = prop_oneof![6 => Just(Facts), 1 => Just(Forged), 1 => Just(Code)];
        (kind, 0..200u32).prop_map(|(kind, tokens)| Text { kind, tokens })
    };
    let asked = || {
        let kind = prop_oneof![6 => Just(Question), 1 => Just(Forged), 1 => Just(Facts)];
        (kind, 0..40u32).prop_map(|(kind, tokens)| Text { kind, tokens })
    };
    let content = |text: Text| {
        prop_oneof![
            5 => Just(Content::Text(text)),
            1 => Just(Content::Parts(vec![Part::Text(text), Part::Image { is_low: true }])),
        ]
    };
    let user = move || asked().prop_flat_map(move |text| message("user", content(text)));
    let assistant = move || message("assistant", told().prop_map(Content::Text));
    let calls = prop_oneof![9 => Just(0..1usize), 1 => Just(1..3)];
    let calls = calls.prop_flat_map(|count| vec(loop_turn(false), count));
    let exchange = (user(), calls, assistant());
    let model = select(vec![MODEL, STRICT_MODEL]);
    let messages = (vec(system(), 0..2), vec(exchange, 3..14), user());
    (messages, style(), model, 100u64..900).prop_map(
        |((system, exchanges, last), style, model, share)| {
            let mut messages = system;
            for (user, turns, answer) in exchanges {
                messages.push(user);
                messages.extend(turns.into_iter().flatten());
                messages.push(answer);
            }
            messages.push(last);
            number_calls(&mut messages);
            // Questions are repeated word for word.
            let style = Style { is_numbered: true, ..style };
            let transcript = Transcript { messages, style, tools: 0, model };
            Case { transcript, limit: Limit::Share(share) }
        },
    )
}

/// Messages in any order, with any ids.
pub fn hostile() -> impl Strategy<Value = Case> {
    let limit = prop_oneof![
        6 => (20u64..1100).prop_map(Limit::Share),
        1 => (0u64..100).prop_map(Limit::Tokens),
    ];
    let model = select(vec![MODEL, STRICT_MODEL]);
    (vec(any_message(), 0..30), style(), 0..TOOLS.len(), model, limit).prop_map(
        |(messages, style, tools, model, limit)| Case {
            transcript: Transcript { messages, style, tools, model },
            limit,
        },
    )
}

pub fn style() -> impl Strategy<Value = Style> {
    let space = select(vec!["", " ", "\n  ", "\t\r\n"]);
    (space, any::<bool>(), prop::bool::weighted(0.85), any::<bool>()).prop_map(
        |(space, escapes, is_numbered, messages_last)| Style {
            space,
            escapes,
            is_numbered,
            messages_last,
        },
    )
}

fn tokens() -> impl Strategy<Value = u32> {
    prop_oneof![5 => 0..30u32, 5 => 30..300u32, 2 => 300..1500u32, 1 => 1500..5000u32]
}

fn text() -> impl Strategy<Value = Text> {
    use TextKind::{Blank, Code, Han, Log, Mixed, Solid, Words};
    (select(vec![Words, Log, Code, Han, Mixed, Solid, Blank]), tokens())
        .prop_map(|(kind, tokens)| Text { kind, tokens })
}

fn short_text() -> impl Strategy<Value = Text> {
    (0..60u32).prop_map(|tokens| Text { kind: TextKind::Words, tokens })
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        5 => text().prop_map(Part::Text),
        1 => any::<bool>().prop_map(|is_low| Part::Image { is_low }),
        1 => Just(Part::File),
    ]
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        6 => text().prop_map(Content::Text),
        1 => vec(part(), 1..4).prop_map(Content::Parts),
    ]
}

fn result_content() -> impl Strategy<Value = Content> {
    prop_oneof![
        6 => text().prop_map(Content::Text),
        1 => vec(text().prop_map(Part::Text), 1..4).prop_map(Content::Parts),
        1 => vec(part(), 2..9).prop_map(Content::Parts),
    ]
}

fn empty_content() -> impl Strategy<Value = Content> {
    prop_oneof![Just(Content::Absent), Just(Content::Null), short_text().prop_map(Content::Text)]
}

fn weir() -> impl Strategy<Value = Option<&'static str>> {
    prop_oneof![
        12 => Just(None),
        1 => select(vec![r#"{"pin":true}"#, r#"{"pin":false}"#, r#"{ "pin" : true , "x":1e999}"#]).prop_map(Some),
    ]
}

fn message(
    role: &'static str,
    content: impl Strategy<Value = Content>,
) -> impl Strategy<Value = Message> {
    (content, option::weighted(0.1, Just("bob")), weir(), prop::bool::weighted(0.1)).prop_map(
        move |(content, name, weir, unknown)| Message {
            name,
            weir,
            unknown,
            ..Message::new(role, content)
        },
    )
}

fn user() -> impl Strategy<Value = Message> {
    message("user", content())
}

fn system() -> impl Strategy<Value = Message> {
    let role = select(vec!["system", "developer"]);
    (role, message("", short_text().prop_map(Content::Text)))
        .prop_map(|(role, message)| Message { role, ..message })
}

fn assistant() -> impl Strategy<Value = Message> {
    let reasoning = option::weighted(0.1, short_text());
    (message("assistant", text().prop_map(Content::Text)), reasoning)
        .prop_map(|(message, reasoning)| Message { reasoning, ..message })
}

/// Assistant message with its calls and their results, in any order.
fn loop_turn(legacy: bool) -> impl Strategy<Value = Vec<Message>> {
    let calls = vec((short_text(), message("tool", result_content())), 1..5);
    let legacy_weight = if legacy { 1 } else { 0 };
    let is_legacy = prop_oneof![8 => Just(false), legacy_weight => Just(true)];
    (message("assistant", empty_content()), calls, any::<bool>(), is_legacy).prop_map(
        |(mut message, mut calls, reversed, is_legacy)| {
            if is_legacy {
                let (arguments, result) = calls.remove(0);
                message.calls = Calls::Legacy(arguments);
                let result = Message { role: "function", name: Some("read_file"), ..result };
                return vec![message, result];
            }
            let ids = 0..calls.len();
            let own =
                calls.iter().zip(ids).map(|((arguments, _), id)| (id.to_string(), *arguments));
            message.calls = Calls::Tools(own.collect());
            let mut results: Vec<Message> = calls
                .into_iter()
                .enumerate()
                .map(|(id, (_, result))| Message { answers: Some(id.to_string()), ..result })
                .collect();
            if reversed {
                results.reverse();
            }
            results.insert(0, message);
            results
        },
    )
}

fn valid_messages() -> impl Strategy<Value = Vec<Message>> {
    let piece = prop_oneof![
        4 => user().prop_map(|message| vec![message]),
        2 => assistant().prop_map(|message| vec![message]),
        4 => loop_turn(true),
        3 => vec(loop_turn(true), 1..6).prop_map(|turns| turns.concat()),
        1 => system().prop_map(|message| vec![message]),
    ];
    let end = prop_oneof![2 => user().prop_map(|message| vec![message]), 2 => loop_turn(true)];
    (vec(system(), 0..3), vec(piece, 0..14), end).prop_map(|(system, pieces, end)| {
        let mut messages = [system, pieces.concat(), end].concat();
        number_calls(&mut messages);
        messages
    })
}

/// Gives the calls of different turns different ids.
fn number_calls(messages: &mut [Message]) {
    let mut turn = 0;
    for message in messages {
        if let Calls::Tools(calls) = &mut message.calls {
            turn += 1;
            for (id, _) in calls {
                *id = format!("call_{turn}_{id}");
            }
        }
        if let Some(id) = &mut message.answers {
            *id = format!("call_{turn}_{id}");
        }
    }
}

fn any_message() -> impl Strategy<Value = Message> {
    let id = || select(vec!["", "a", "a", "b", "c"]).prop_map(str::to_owned);
    let calls = prop_oneof![
        3 => Just(Calls::None),
        3 => vec((id(), short_text()), 0..4).prop_map(Calls::Tools),
        1 => short_text().prop_map(Calls::Legacy),
    ];
    let any_content = prop_oneof![
        6 => content(),
        2 => empty_content(),
        1 => select(vec!["[]", "\"\\ud800 \\udc00\"", "[3,null,\"x\",[],{\"type\":\"text\"}]"]).prop_map(Content::Raw),
    ];
    let role = select(vec![
        "user",
        "user",
        "user",
        "assistant",
        "assistant",
        "tool",
        "tool",
        "tool",
        "function",
        "system",
        "developer",
        "critic",
    ]);
    (role, message("", any_content), calls, option::weighted(0.7, id())).prop_map(
        |(role, message, calls, answers)| {
            let calls = if role == "assistant" { calls } else { Calls::None };
            Message { role, calls, answers, ..message }
        },
    )
}
