//! Forms of texts with conversations: which is recognised, and what is left out.

use super::*;

#[test]
fn each_form_is_recognised() {
    let said = r#"{"role":"user","content":"x"}"#;
    let chat = format!(r#"{{"model":"m","messages":[{said}]}}"#);
    let line = format!(r#"{{"id":"a","messages":[{said}]}}"#);
    let item = r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]}"#;
    for (text, form, ids, protocol) in [
        (chat.clone(), TextForm::Request, "line-1", Protocol::Chat),
        (line.clone(), TextForm::Request, "a", Protocol::Chat),
        (format!("[\n{said}\n]"), TextForm::Request, "request", Protocol::Chat),
        (format!("[{item}]"), TextForm::Request, "request", Protocol::Responses),
        (format!("{line}\n\n{chat}\n"), TextForm::Trace, "a,line-3", Protocol::Chat),
        (
            format!(
                "{{\"type\":\"summary\",\"summary\":\"s\"}}\n{}",
                format_args!(r#"{{"type":"user","sessionId":"s1","message":{said}}}"#)
            ),
            TextForm::ClaudeCode,
            "s1",
            Protocol::Messages,
        ),
        (
            format!(r#"{{"timestamp":"t","type":"response_item","payload":{item}}}"#),
            TextForm::Codex,
            "rollout",
            Protocol::Responses,
        ),
        (
            format!("{{\"id\":\"old\",\"instructions\":\"Be brief.\"}}\n{item}"),
            TextForm::Codex,
            "old",
            Protocol::Responses,
        ),
    ] {
        let found = read(&text, None).unwrap_or_else(|error| panic!("{text}: {error}"));
        let (found, all) = (found.form, found.recorded);
        let own: Vec<&str> = all.iter().map(|own| own.id.as_str()).collect();
        assert_eq!((found, own.join(",").as_str()), (form, ids), "{text}");
        assert_eq!(all[0].protocol, protocol, "{text}");
        let request = protocol.read(all[0].body.as_bytes(), 100).expect("readable");
        assert_eq!(request.messages.len() - request.outside, 1, "{}", all[0].body);
    }
}

#[test]
fn other_texts_are_refused_with_the_reason() {
    for (text, reason) in [
        ("", "neither"),
        ("hello", "neither"),
        ("{}", "neither"),
        ("7", "neither"),
        (
            "{\"request\":7}\n{\"request\":8}\n",
            "Line 1 has neither messages nor input; it is left out with 1 more",
        ),
        ("{\"type\":\"user\",\"message\":{}}\n{\"type\":\"user\"}", "no messages yet"),
        ("{\"type\":\"user\",\"message\":{}}\n{\"type\":", "Line 2 is not JSON"),
    ] {
        let error = read(text, None).expect_err(text);
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn lines_that_cannot_be_read_are_left_out_and_named() {
    let line = r#"{"id":"a","messages":[{"role":"user","content":"x"}]}"#;
    let said = r#"{"type":"user","message":{"role":"user","content":"x"}}"#;
    let other = "{\"type\":\"queue-operation\"}\n".repeat(100);
    let empty = "\0".repeat(512);
    for (text, conversations, left_out) in [
        (format!("{line}\nx\n{{}}\n{line}"), 2, Some("Line 2 is not JSON")),
        (format!("{line}\n{{\"id\":\"b\"}}\n"), 1, Some("Line 2 has neither")),
        (format!("{said}\n{empty}\n{said}\n"), 1, Some("Line 2 is not JSON")),
        (format!("{said}\n{{\"type\":"), 1, Some("Line 2 is not JSON")),
        (format!("\u{feff}{said}\n{said}\n"), 1, None),
        (format!("{other}{said}\n"), 1, None),
    ] {
        let found = read(&text, None).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(found.recorded.len(), conversations, "{text}");
        let said = found.left_out.as_deref();
        let is_named = said.zip(left_out).is_some_and(|(said, own)| said.starts_with(own));
        assert!(is_named || said == left_out, "{text}: {said:?}");
    }
}
