//! Sessions of opencode as its export prints them.

use crate::recorded::{ReadText, TextForm, read};
use weir_engine::wire::{Protocol, Role};

const EXPORT: &str = r#"{
"info": {"id":"ses_1","projectID":"p","directory":"/w","title":"t","time":{"created":1767225601000,"updated":1767225609000}},
"messages": [
 {"info":{"id":"msg_1","sessionID":"ses_1","role":"user","time":{"created":1767225601000},"agent":"build","model":{"providerID":"anthropic","modelID":"claude-sonnet-4-5"}},
  "parts":[{"id":"prt_1","type":"text","text":"Fix it."},{"id":"prt_2","type":"text","text":"hidden","ignored":true}]},
 {"info":{"id":"msg_2","sessionID":"ses_1","role":"assistant","time":{"created":1767225601500,"completed":1767225603000},"parentID":"msg_1","modelID":"claude-sonnet-4-5","providerID":"anthropic","mode":"build","path":{"cwd":"/w","root":"/w"},"cost":0.1,"tokens":{"input":10,"output":80,"reasoning":0,"cache":{"read":9000,"write":2000}}},
  "parts":[{"id":"prt_3","type":"step-start"},{"id":"prt_4","type":"reasoning","text":"Hm."},{"id":"prt_5","type":"text","text":"I look."},
   {"id":"prt_6","type":"tool","callID":"c1","tool":"read","state":{"status":"completed","input":{"filePath":"a.rs"},"output":"fn a() {}","title":"a.rs","metadata":{},"time":{"start":1767225602000,"end":1767225602500}}},
   {"id":"prt_7","type":"step-finish","reason":"tool-calls","cost":0.1,"tokens":{"input":10,"output":80,"reasoning":0,"cache":{"read":9000,"write":2000}}},
   {"id":"prt_8","type":"patch","hash":"h","files":[]}]},
 {"info":{"id":"msg_3","sessionID":"ses_1","role":"assistant","time":{"created":1767225602600},"modelID":"claude-sonnet-4-5","providerID":"anthropic","cost":0,"tokens":{"input":0,"output":0,"reasoning":0,"cache":{"read":0,"write":0}},"error":{"name":"MessageAbortedError","data":{}}},"parts":[]},
 {"info":{"id":"msg_4","sessionID":"ses_1","role":"user","time":{"created":1767225604000}},"parts":[{"id":"prt_9","type":"compaction","auto":true}]},
 {"info":{"id":"msg_5","sessionID":"ses_1","role":"assistant","summary":true,"time":{"created":1767225604100},"modelID":"claude-sonnet-4-5","tokens":{"input":500,"output":60,"reasoning":10,"cache":{"read":11000,"write":0}}},
  "parts":[{"id":"prt_a","type":"text","text":"A summary."}]},
 {"info":{"id":"msg_6","sessionID":"ses_1","role":"user","time":{"created":1767225605000}},"parts":[{"id":"prt_b","type":"text","text":"Go on."}]}
]}"#;

#[test]
fn a_session_is_retold_with_times_and_usage() {
    let line = EXPORT.replace('\n', " ");
    for text in [EXPORT.to_owned(), format!("{line}\n{line}\n")] {
        let ReadText { form, recorded: found, left_out } = read(&text, None).expect("a session");
        assert_eq!((form, left_out), (TextForm::Opencode, None));
        let ids: Vec<&str> = found.iter().take(2).map(|own| own.id.as_str()).collect();
        assert_eq!(ids, ["ses_1", "ses_1, after compaction 1"]);
        assert_eq!(found[0].project.as_deref(), Some("/w"));
        let request = Protocol::Chat.read(found[0].body.as_bytes(), 100).expect("readable");
        let roles = request.messages.iter().map(|raw| {
            let message = Protocol::Chat.read_message(raw).expect("readable");
            (message.role, message.calls.len())
        });
        let expected =
            [(Role::User, 0), (Role::Assistant, 1), (Role::Tool, 0), (Role::Assistant, 0)];
        assert_eq!(roles.collect::<Vec<_>>(), expected);
        assert!(!found[0].body.contains("hidden"));
        let made = found[0].exchanges.iter().map(|own| {
            let usage = own.reported.usage.expect("each has one");
            let tokens = [usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens];
            (
                own.sent,
                own.at_ms.map(|at| at - 1_767_225_600_000),
                tokens.map(Option::unwrap_or_default),
            )
        });
        let expected = [(1, Some(1000), [11_010, 9000, 80]), (3, Some(2500), [11_500, 11_000, 70])];
        assert_eq!(made.collect::<Vec<_>>(), expected);
        assert_eq!(found[1].exchanges, []);
        assert!(found[1].body.contains("A summary.") && found[1].body.contains("Go on."));
    }
}
