//! Chats of qwen-code and gemini-cli as they lie on the disk.

use crate::recorded::{ReadText, Recorded, TextForm, read};
use weir_engine::wire::{Protocol, Role};

const QWEN: &str = r#"{"uuid":"1","parentUuid":null,"sessionId":"q","timestamp":"1970-01-01T00:00:01.000Z","type":"user","cwd":"/w","version":"0.6.0","message":{"role":"user","parts":[{"text":"Fix it."}]}}
{"uuid":"2","parentUuid":"1","sessionId":"q","timestamp":"1970-01-01T00:00:03.000Z","type":"assistant","cwd":"/w","version":"0.6.0","model":"qwen3-coder-plus","message":{"role":"model","parts":[{"text":"Hm.","thought":true},{"text":"I look."},{"functionCall":{"id":"c1","name":"read_file","args":{"path":"a.rs"}}}]},"usageMetadata":{"promptTokenCount":9000,"candidatesTokenCount":80,"thoughtsTokenCount":30,"totalTokenCount":9080,"cachedContentTokenCount":4000}}
{"uuid":"3","parentUuid":"2","sessionId":"q","timestamp":"1970-01-01T00:00:04.000Z","type":"tool_result","cwd":"/w","version":"0.6.0","message":{"role":"user","parts":[{"functionResponse":{"id":"c1","name":"read_file","response":{"output":"fn a() {}"}}}]},"toolCallResult":{"callId":"c1","status":"success"}}
{"uuid":"4","parentUuid":"3","sessionId":"q","timestamp":"1970-01-01T00:00:05.000Z","type":"system","subtype":"ui_telemetry","systemPayload":{"uiEvent":{}}}
{"uuid":"3","sessionId":"q","type":"tool_result","message":{"role":"user","parts":[{"text":"a repeated line"}]}}
{"uuid":"5","parentUuid":"3","sessionId":"q","timestamp":"1970-01-01T00:00:06.000Z","type":"system","subtype":"chat_compression","systemPayload":{"info":{},"compressedHistory":[{"role":"user","parts":[{"text":"A summary."}]},{"role":"model","parts":[{"text":"Got it."}]}]}}
{"uuid":"6","parentUuid":"5","sessionId":"q","timestamp":"1970-01-01T00:00:07.000Z","type":"user","cwd":"/w","message":{"role":"user","parts":[{"text":"Go on."}]}}
{"uuid":"7","parentUuid":"6","sessionId":"q","timestamp":"1970-01-01T00:00:09.000Z","type":"assistant","cwd":"/w","model":"qwen3-coder-plus","message":{"role":"model","parts":[{"text":"Done."}]},"usageMetadata":{"promptTokenCount":500,"candidatesTokenCount":7,"totalTokenCount":507}}
{"uuid":"8","sessionId":"q","isSidechain":true,"agentId":"k","type":"user","message":{"role":"user","parts":[{"text":"aside"}]}}
"#;

fn roles(own: &Recorded) -> Vec<(Role, usize)> {
    let request = own.protocol.read(own.body.as_bytes(), 100).expect("readable");
    let roles = request.messages.iter().map(|raw| {
        let message = Protocol::Chat.read_message(raw).expect("readable");
        (message.role, message.calls.len())
    });
    roles.collect()
}

/// Messages sent, time, prompt, read from the cache, and output of each request.
type Made = (usize, Option<u64>, [Option<u64>; 3]);

fn made(own: &Recorded) -> Vec<Made> {
    let made = own.exchanges.iter().map(|own| {
        let usage = own.reported.usage.unwrap_or_default();
        let tokens = [usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens];
        (own.sent, own.at_ms, tokens)
    });
    made.collect()
}

#[test]
fn a_chat_of_qwen_code_is_retold_with_times_and_usage() {
    let ReadText { form, recorded: found, left_out } = read(QWEN, None).expect("a chat");
    assert_eq!((form, left_out), (TextForm::QwenCode, None));
    let ids: Vec<&str> = found.iter().map(|own| own.id.as_str()).collect();
    assert_eq!(ids, ["q", "q, after compaction 1", "k"]);
    let first = [(Role::User, 0), (Role::Assistant, 1), (Role::Tool, 0)];
    assert_eq!((roles(&found[0]), found[0].project.as_deref()), (first.to_vec(), Some("/w")));
    assert!(!found[0].body.contains("Hm.") && found[0].body.contains(r#""content":"fn a() {}""#));
    // The output counts thinking already.
    assert_eq!(made(&found[0]), [(1, Some(1000), [Some(9000), Some(4000), Some(80)])]);
    assert_eq!(found[0].exchanges[0].model.as_deref(), Some("qwen3-coder-plus"));
    assert_eq!(made(&found[1]), [(3, Some(7000), [Some(500), Some(0), Some(7)])]);
    assert_eq!(roles(&found[1])[..2], [(Role::User, 0), (Role::Assistant, 0)]);
}

const FIRST: &str =
    r#"{"id":"m1","timestamp":"1970-01-01T00:00:01Z","type":"user","content":"List the files."}"#;
const SECOND: &str = r#"{"id":"m2","timestamp":"1970-01-01T00:00:02Z","type":"gemini","content":"I look.","thoughts":[{"subject":"s","description":"d"}],"tokens":{"input":7000,"output":20,"cached":1000,"thoughts":50,"tool":0,"total":7070},"model":"gemini-2.5-pro","toolCalls":[{"id":"c","name":"list_directory","args":{"path":"."},"result":[{"functionResponse":{"id":"c","name":"list_directory","response":{"output":"a.rs"}}}],"status":"success","timestamp":"1970-01-01T00:00:03Z"}]}"#;
const THIRD: &str = r#"{"id":"m3","timestamp":"1970-01-01T00:00:05Z","type":"gemini","content":[{"text":"One file."}],"tokens":{"input":7100,"output":5,"cached":0,"total":7105},"model":"gemini-2.5-pro"}"#;

#[test]
fn a_session_of_gemini_cli_is_one_object_or_lines() {
    let info = r#"{"id":"m0","timestamp":"1970-01-01T00:00:00Z","type":"info","content":"A new version."}"#;
    let head = r#""sessionId":"g","projectHash":"h","startTime":"1970-01-01T00:00:00Z""#;
    let whole = format!(r#"{{{head},"messages":[{info},{FIRST},{SECOND},{THIRD}]}}"#);
    // A message is written again once its calls have results.
    let half = SECOND.replace(r#""status":"success""#, r#""status":"executing""#);
    let lines = format!(
        "{{{head}}}\n{info}\n{FIRST}\n{half}\n{SECOND}\n{{\"$set\":{{\"lastUpdated\":\"t\"}}}}\n{THIRD}\n"
    );
    for text in [whole, lines] {
        let ReadText { form, recorded: found, .. } = read(&text, None).expect("a session");
        assert_eq!((form, found.len(), found[0].id.as_str()), (TextForm::GeminiCli, 1, "g"));
        let expected =
            [(Role::User, 0), (Role::Assistant, 1), (Role::Tool, 0), (Role::Assistant, 0)];
        assert_eq!(roles(&found[0]), expected, "{text}");
        // The output leaves thinking out.
        let expected = [
            (1, Some(1000), [Some(7000), Some(1000), Some(70)]),
            (3, Some(3000), [Some(7100), Some(0), Some(5)]),
        ];
        assert_eq!(made(&found[0]), expected, "{text}");
    }
}
