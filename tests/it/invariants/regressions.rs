//! Minimal conversations that once broke an invariant.

use super::generate::{Case, Limit};
use super::harness::{MODEL, STRICT_MODEL};
use super::judge::{Body, compare};
use super::presets;
use super::transcript::{Calls, Content, Message, PLAIN, Part, Style, Text, TextKind, Transcript};
use super::{fits, frozen, left_alone, reported, valid};

/// Builds a conversation from words such as `u30`: a message's kind and its approximate tokens.
/// `s`ystem, `u`ser, `a`ssistant, `c` an assistant with a call, `t` its result.
fn transcript(words: &str, model: &'static str) -> Transcript {
    let message = |word: &str| {
        let (kind, tokens) = word.split_at(1);
        let tokens = tokens.parse().expect("a number of tokens");
        let text = Text { kind: TextKind::Words, tokens };
        let content = Content::Text(text);
        let call = ("a".to_owned(), text);
        match kind {
            "s" => Message::new("system", content),
            "u" => Message::new("user", content),
            "a" => Message::new("assistant", content),
            "c" => Message {
                calls: Calls::Tools(vec![call]),
                ..Message::new("assistant", Content::Null)
            },
            "t" => Message { answers: Some("a".to_owned()), ..Message::new("tool", content) },
            _ => panic!("no message is called {kind}"),
        }
    };
    Transcript {
        messages: words.split_whitespace().map(message).collect(),
        style: Style { is_numbered: true, ..PLAIN },
        tools: 0,
        model,
    }
}

fn keeps_promises(words: &str, model: &'static str, limit: u64) {
    let case = Case { transcript: transcript(words, model), limit: Limit::Tokens(limit) };
    for property in [
        left_alone::is_left_alone,
        fits::valid_fits,
        valid::stays_valid,
        valid::keeps_alternating,
        reported::is_reported,
        frozen::is_frozen,
        frozen::is_pure,
    ] {
        if let Err(reason) = property(&case) {
            panic!("{words} under {limit}: {reason}");
        }
    }
}

/// A compaction that removes nothing leaves the notes in place: moving them would change the sent
/// request for nothing.
#[test]
fn a_cut_without_effect_moves_no_note() {
    let policy = weir_engine::compact::Policy { hard_permille: 500, ..Default::default() };
    let words = "c5 t300 c5 t1000 u100 c5 t1200";
    let case = Case { transcript: transcript(words, MODEL), limit: Limit::Tokens(2000) };
    if let Err(reason) = frozen::is_frozen_by(&presets::weir(&policy), &case) {
        panic!("{words}: {reason}");
    }
}

/// Soft compactions leave their own notes next to excerpts. Any number of them displaces no
/// excerpt: removed messages stay counted.
#[test]
fn the_policys_words_push_out_no_excerpts() {
    let mut policy = weir_engine::compact::Policy::default();
    (policy.low_permille, policy.zones.soft_permille) = (300, 500);
    policy.zones.notices.mask = Some("Old results were masked".into());
    policy.mask.results = true;
    policy.mask.batch = 1;
    let transcript = transcript(&format!("u30 {}", "c20 t400 ".repeat(200)), MODEL);
    let weir = presets::weir(&policy);
    let mut most_notices = 0;
    for end in (3..=transcript.messages.len()).step_by(6) {
        let body = transcript.body_of(end);
        let planned = weir.plan(&body, 8000).expect("it fits");
        let bytes = planned.body.as_deref().unwrap_or(body.as_bytes());
        let sent = std::str::from_utf8(bytes).expect("weir sends UTF-8");
        let told: usize = sent
            .split("[weir: ")
            .filter_map(|note| note.split_once(" earlier message")?.0.parse::<usize>().ok())
            .sum();
        let gone = end - sent.matches("x_number").count();
        assert_eq!(told, gone, "request of {end} messages");
        most_notices = most_notices.max(sent.matches("Old results were masked").count());
    }
    assert!((2..=4).contains(&most_notices), "{most_notices} notices");
}

/// The remainder of the newest exchange, without its question, answers the first user message; it
/// must not be removed whole later.
#[test]
fn an_exchange_that_lost_its_question_keeps_users_apart() {
    keeps_promises("u5 a5 u2500 c1 t850 a5 u2300", STRICT_MODEL, 3000);
}

/// A request of system messages alone has no removable turn.
#[test]
fn system_messages_alone_are_refused_where_they_do_not_fit() {
    keeps_promises("s200", MODEL, 100);
}

#[test]
fn no_messages_at_all_beside_tools_that_do_not_fit() {
    let mut transcript = transcript("", MODEL);
    transcript.tools = 3;
    let case = Case { transcript, limit: Limit::Tokens(20) };
    fits::fits(&case, false).expect("refused in order");
}

/// weir's own member is removed even if it has no effect.
#[test]
fn a_mark_that_is_null_is_not_forwarded() {
    let mut transcript = transcript("u5 a5 u5", MODEL);
    transcript.messages[0].weir = Some("null");
    let case = Case { transcript, limit: Limit::Tokens(1000) };
    left_alone::is_left_alone(&case).expect("the mark is removed");
}

/// Many pieces, each shorter than any marker, still make a large result.
#[test]
fn a_result_in_many_small_parts_can_be_clipped() {
    for (parts, tokens) in [(200, 12), (100, 40)] {
        let mut transcript = transcript("u5 c1 t1", MODEL);
        let text = Text { kind: TextKind::Words, tokens };
        transcript.messages[2].content = Content::Parts(vec![Part::Text(text); parts]);
        let case = Case { transcript, limit: Limit::Tokens(1500) };
        if let Err(reason) = fits::valid_fits(&case) {
            panic!("{parts} parts of {tokens} tokens: {reason}");
        }
    }
}

/// A placeholder that repeats the beginning of a large result can itself be too large.
#[test]
fn a_large_result_behind_a_placeholder_can_be_clipped() {
    let mut transcript = transcript("c1 t1", MODEL);
    transcript.messages[1].content = Content::Text(Text { kind: TextKind::Log, tokens: 600 });
    let (_, policy) = presets::policies().into_iter().find(|(name, _)| name == "all").expect("it");
    for (limit, is_clipped) in [(400, false), (200, true), (120, true)] {
        let body = transcript.body();
        let planned = presets::weir(&policy).plan(&body, limit).expect("it can be made to fit");
        assert_eq!(planned.action.contains("fit"), is_clipped, "{} under {limit}", planned.action);
        let case = Case { transcript: transcript.clone(), limit: Limit::Tokens(limit) };
        if let Err(reason) = presets::fits(&policy, &case, true) {
            panic!("under {limit}: {reason}");
        }
    }
}

/// A caller's mark is removed from a message whose arguments are clipped.
#[test]
fn clipped_arguments_and_a_mark_go_together() {
    let mut transcript = transcript("s5 c1 t30 t200 u1", MODEL);
    let arguments = |tokens| Text { kind: TextKind::Words, tokens };
    let calls = vec![("a".to_owned(), arguments(60)), ("b".to_owned(), arguments(60))];
    transcript.messages[1].calls = Calls::Tools(calls);
    transcript.messages[3].answers = Some("b".to_owned());
    for (mark, place) in [(true, 1), (false, 1), (true, 2)] {
        let mut transcript = transcript.clone();
        let weir = if mark { r#"{"pin":true}"# } else { r#"{"pin":false}"# };
        transcript.messages[place].weir = Some(weir);
        let body = transcript.body_of(4);
        let planned = super::harness::Weir::new().plan(&body, 180).expect("it can be made to fit");
        let sent = planned.body.expect("it is changed");
        let sent = std::str::from_utf8(&sent).expect("weir sends UTF-8");
        assert!(!sent.contains("pin") && sent.contains("left out here"), "{sent}");
        let (received, sent) = (Body::read(&body), Body::read(sent));
        let verdict = compare(&received.expect("JSON"), &sent.expect("JSON")).expect("a clip");
        assert!(verdict.any(|change| change.clipped && change.unmarked), "{verdict:?}");
    }
}

/// Results of one turn are clipped down to a few words each.
#[test]
fn many_parallel_results_are_clipped_far_enough() {
    for limit in [3000, 5000, 9000] {
        let mut transcript = transcript("s50 u100 c1", MODEL);
        let id = |number: usize| format!("call_{number}");
        let arguments = Text { kind: TextKind::Words, tokens: 5 };
        let calls = (0..40).map(|number| (id(number), arguments)).collect();
        transcript.messages[2].calls = Calls::Tools(calls);
        for number in 0..40 {
            let content = Content::Text(Text { kind: TextKind::Words, tokens: 900 });
            let result = Message { answers: Some(id(number)), ..Message::new("tool", content) };
            transcript.messages.push(result);
        }
        let case = Case { transcript, limit: Limit::Tokens(limit) };
        if let Err(reason) = fits::valid_fits(&case) {
            panic!("under {limit}: {reason}");
        }
    }
}

/// Builds a conversation in which an assistant writes a long file, followed by `more` messages.
fn written_file(more: usize) -> String {
    use serde_json::json;
    let code = "fn weir() -> u64 {\n    \"level\".len() as u64\n}\n".repeat(500);
    let arguments = json!({"path": "src/weir.rs", "content": code, "mode": "create"}).to_string();
    let call = |id: &str, arguments: &str| {
        let function = json!({"name": "write_file", "arguments": arguments});
        json!({"role": "assistant", "content": null,
            "tool_calls": [{"id": id, "type": "function", "function": function}]})
    };
    let mut messages = vec![
        json!({"role": "system", "content": "You write code."}),
        json!({"role": "user", "content": "Write the file."}),
        call("call_1", &arguments),
        json!({"role": "tool", "tool_call_id": "call_1", "content": "written"}),
    ];
    for number in 0..more {
        let id = format!("call_more_{number}");
        messages.push(call(&id, r#"{"path":"a"}"#));
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": "written, too"}));
    }
    json!({"model": MODEL, "messages": messages}).to_string()
}

/// Arguments of an answered call are clipped inside their strings, and then stay unchanged.
#[test]
fn large_arguments_are_clipped_and_stay_so() {
    let weir = super::harness::Weir::new();
    let sent = |more: usize| -> Vec<serde_json::Value> {
        let body = written_file(more);
        let planned = weir.plan(&body, 6000).expect("it can be made to fit");
        assert!(planned.sent_tokens <= 6000 && planned.action.contains("fit"), "{planned:?}");
        let sent = planned.body.expect("it is changed");
        let sent: serde_json::Value = serde_json::from_slice(&sent).expect("JSON");
        sent["messages"].as_array().expect("messages").clone()
    };
    let first = sent(0);
    let call = &first[2]["tool_calls"][0];
    assert_eq!((&call["id"], &first[3]["tool_call_id"]), (&"call_1".into(), &"call_1".into()));
    let arguments = call["function"]["arguments"].as_str().expect("a text");
    let arguments: serde_json::Value = serde_json::from_str(arguments).expect("JSON still");
    assert_eq!((&arguments["path"], &arguments["mode"]), (&"src/weir.rs".into(), &"create".into()));
    let content = arguments["content"].as_str().expect("a text");
    assert!(content.starts_with("fn weir()") && content.contains("bytes left out here]"));
    // Later requests have room, and begin with the previous sent request.
    let mut before = first;
    for more in 1..4 {
        let next = sent(more);
        assert_eq!(next[..before.len()], before[..], "after {more} more");
        before = next;
    }
    let cold = super::harness::Weir::new().plan(&written_file(3), 6000).expect("it fits").body;
    assert_eq!(cold, weir.plan(&written_file(3), 6000).expect("it fits").body, "warm as cold");
}

/// The first user message is never clipped, regardless of its length.
#[test]
fn a_users_text_is_refused_rather_than_clipped() {
    let weir = super::harness::Weir::new();
    let text = "What runs over the wall? ".repeat(2000);
    let body = serde_json::json!({"model": MODEL, "max_tokens": 700,
        "messages": [{"role": "system", "content": "Short."}, {"role": "user", "content": text}]});
    let error = weir.plan(&body.to_string(), 6000).expect_err("it is too long");
    let said = &error.message;
    for part in [
        "This model's maximum context length is 6000 tokens. However, your messages resulted in ",
        "window is 128000 tokens, with 700 reserved for the answer (the request asks for 700)",
        "x-weir-max-input-tokens",
        "the newest turn ",
        "shorten the last message",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let body = serde_json::json!({"error": {"message": said, "code": "context_length_exceeded"}});
    let read = weir_engine::wire::overflow::recognise(400, body.to_string().as_bytes(), None);
    let read = read.expect("a weir in front of this one reads it");
    assert_eq!(read.window_tokens, Some(6000), "{read:?}");
}
