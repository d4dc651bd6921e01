//! `weir savings` on small files of each form: the bill by hand, what it finds, and what it refuses.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::cli::weir;
use crate::folder::Folder;

/// Prices in nano-dollars of a token: fresh, read, written, written for an hour, output.
const SONNET: [u64; 5] = [3000, 300, 3750, 6000, 15_000];
const GPT_5_5: [u64; 5] = [5000, 500, 0, 0, 30_000];
const GPT_4O: [u64; 5] = [2500, 1250, 0, 0, 10_000];

/// Returns the cost of requests with these tokens.
fn bill(prices: [u64; 5], requests: &[[u64; 5]]) -> u64 {
    requests
        .iter()
        .flat_map(|tokens| tokens.iter().zip(prices))
        .map(|(own, price)| own * price)
        .sum()
}

fn savings(arguments: &[&str]) -> Command {
    let mut command = weir(&["savings"]);
    for name in [
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "PI_CODING_AGENT_DIR",
        "QWEN_HOME",
        "GEMINI_CLI_HOME",
        "XDG_DATA_HOME",
    ] {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

/// Returns exit code, output and messages.
fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().expect("weir starts");
    let [out, error] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    (output.status.code(), out, error)
}

fn figures(arguments: &[&str]) -> Value {
    let (code, out, error) = run(savings(arguments).arg("--json"));
    assert_eq!((code, error.as_str()), (Some(0), ""), "{arguments:?}");
    serde_json::from_str(&out).expect("JSON")
}

fn lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}

/// Transcript of Claude Code: an answer in two lines, then a second one to the result of a tool.
fn claude_code() -> String {
    let answer = |id: &str, block: Value, usage: &Value| {
        json!({"type": "assistant", "sessionId": "s", "cwd": "/code/a",
            "timestamp": "2026-03-01T10:00:09.000Z",
            "message": {"id": id, "role": "assistant", "model": "claude-sonnet-4-5",
                "content": [block], "usage": usage}})
    };
    let user = |content: Value, at: &str| {
        json!({"type": "user", "sessionId": "s", "cwd": "/code/a", "timestamp": at,
            "message": {"role": "user", "content": content}})
    };
    let usage = |input: u64, read: u64, short: u64, long: u64, output: u64| {
        json!({"input_tokens": input, "cache_read_input_tokens": read,
            "cache_creation_input_tokens": short + long, "output_tokens": output,
            "cache_creation": {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}})
    };
    let call = json!({"type": "tool_use", "id": "t", "name": "Read", "input": {"file_path": "/x"}});
    let result = json!([{"type": "tool_result", "tool_use_id": "t", "content": "x"}]);
    lines(&[
        json!({"type": "summary", "summary": "A title", "leafUuid": "z"}),
        user(json!("Fix it."), "2026-03-01T10:00:00.000Z"),
        answer("m1", json!({"type": "text", "text": "I look."}), &usage(10, 9000, 2000, 0, 1)),
        answer("m1", call, &usage(10, 9000, 2000, 0, 80)),
        user(result, "2026-03-01T10:00:12.000Z"),
        answer("m2", json!({"type": "text", "text": "Done."}), &usage(5, 11_000, 0, 400, 30)),
    ])
}

/// Rollout of codex with two answers.
fn codex() -> String {
    let event = |at: u8, kind: &str, payload: Value| json!({"timestamp": format!("2026-03-02T10:00:{at:02}Z"), "type": kind, "payload": payload});
    let count = |input: u64, cached: u64, output: u64| {
        json!({"type": "token_count", "info": {"last_token_usage": {"input_tokens": input,
            "cached_input_tokens": cached, "output_tokens": output, "reasoning_output_tokens": 7}}})
    };
    lines(&[
        event(0, "session_meta", json!({"id": "r", "cwd": "/code/b"})),
        event(0, "turn_context", json!({"model": "gpt-5.5", "cwd": "/code/b"})),
        event(
            1,
            "response_item",
            json!({"type": "message", "role": "user",
            "content": [{"type": "input_text", "text": "Look."}]}),
        ),
        event(
            2,
            "response_item",
            json!({"type": "function_call", "name": "exec_command",
            "arguments": "{\"cmd\":\"ls\"}", "call_id": "c"}),
        ),
        event(2, "event_msg", count(12_880, 9600, 328)),
        event(
            3,
            "response_item",
            json!({"type": "function_call_output", "call_id": "c", "output": "x"}),
        ),
        event(
            4,
            "response_item",
            json!({"type": "message", "role": "assistant",
            "content": [{"type": "output_text", "text": "Done."}]}),
        ),
        event(4, "event_msg", count(13_120, 12_800, 40)),
    ])
}

/// Session of pi with one answer.
fn pi() -> String {
    lines(&[
        json!({"type": "session", "version": 3, "id": "p", "cwd": "/code/c",
            "timestamp": "2026-03-03T10:00:00Z"}),
        json!({"type": "message", "id": "a", "timestamp": "2026-03-03T10:00:01Z",
            "message": {"role": "user", "content": "Hello"}}),
        json!({"type": "message", "id": "b", "timestamp": "2026-03-03T10:00:02Z",
            "message": {"role": "assistant", "model": "claude-sonnet-4-5",
                "content": [{"type": "text", "text": "Hi"}],
                "usage": {"input": 20, "output": 6, "cacheRead": 3000, "cacheWrite": 500}}}),
    ])
}

fn body(model: &str, texts: &[&str]) -> Value {
    let messages: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(place, text)| {
            let role = if place % 2 == 0 { "user" } else { "assistant" };
            json!({"role": role, "content": text})
        })
        .collect();
    json!({"model": model, "messages": messages})
}

#[test]
fn usage_is_billed_by_hand_for_each_form() {
    let folder = Folder::new();
    let usage = json!({"prompt_tokens": 5000, "completion_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 4000}});
    let litellm = |id: &str, at: f64, texts: &[&str]| {
        json!({"id": id, "call_type": "acompletion", "model": "gpt-4o", "startTime": at,
            "messages": body("", texts)["messages"], "response": {"usage": usage},
            "prompt_tokens": 5000, "completion_tokens": 100})
    };
    let posted = body("gpt-4o", &["Hello"]).to_string();
    let answer = json!({"usage": usage}).to_string();
    let har = json!({"log": {"version": "1.2", "entries": [
        {"startedDateTime": "2026-03-01T10:00:00Z", "request": {"url": "https://x/v1/chat/completions",
            "postData": {"mimeType": "application/json", "text": posted}},
         "response": {"content": {"mimeType": "application/json", "text": answer}}},
        {"startedDateTime": "2026-03-01T10:00:00Z", "request": {"url": "https://x/style.css"}}]}});
    let logged = [1000, 4000, 0, 0, 100];
    for (name, text, conversations, requests, expected) in [
        (
            "claude.jsonl",
            claude_code(),
            1,
            2,
            bill(SONNET, &[[10, 9000, 2000, 0, 80], [5, 11_000, 0, 400, 30]]),
        ),
        (
            "codex.jsonl",
            codex(),
            1,
            2,
            bill(GPT_5_5, &[[3280, 9600, 0, 0, 328], [320, 12_800, 0, 0, 40]]),
        ),
        ("pi.jsonl", pi(), 1, 1, bill(SONNET, &[[20, 3000, 500, 0, 6]])),
        (
            "litellm.jsonl",
            lines(&[
                litellm("a", 60.0, &["x"]),
                litellm("b", 70.0, &["x", "y", "z"]),
                litellm("c", 80.0, &["other"]),
            ]),
            2,
            3,
            bill(GPT_4O, &[logged; 3]),
        ),
        ("archive.har", har.to_string(), 1, 1, bill(GPT_4O, &[logged])),
    ] {
        let found = figures(&[&folder.write(name, &text)]);
        assert_eq!(found["nano_usd"], expected, "{name}: {found}");
        assert_eq!(found["conversations"], conversations, "{name}");
        assert_eq!(
            [&found["requests"], &found["reported_requests"]],
            [requests, requests],
            "{name}"
        );
    }
}

#[test]
fn requests_without_usage_are_billed_by_the_rules_of_the_cache() {
    let folder = Folder::new();
    let long = "word ".repeat(2000);
    let first = body("gpt-4o", &[&long]);
    let second = body("gpt-4o", &[&long, "yes", "go on"]);
    let alone = figures(&[&folder.write("alone.json", &first.to_string())]);
    let one = alone["prompt_tokens"].as_u64().expect("a number");
    assert!(one > 2000, "{alone}");
    assert_eq!(alone["nano_usd"], one * GPT_4O[0], "nothing is cached, and no answer is known");

    // The answer to the first request stands in the second one. A message takes four tokens besides its text.
    let prompt_tokens = |texts: &[&str]| {
        let path = folder.write("short.json", &body("gpt-4o", texts).to_string());
        figures(&[&path])["prompt_tokens"].as_u64().expect("a number")
    };
    let output = 4 + prompt_tokens(&["x", "yes"]) - prompt_tokens(&["x", ""]);
    let bodies = lines(&[first.clone(), second.clone()]);
    let batch = |id: &str, body: &Value| {
        json!({"custom_id": id, "method": "POST",
        "url": "/v1/chat/completions", "body": body})
    };
    let batch = lines(&[batch("a", &first), batch("b", &second)]);
    for (name, text) in [("bodies.jsonl", bodies), ("batch.jsonl", batch)] {
        let found = figures(&[&folder.write(name, &text)]);
        let two = found["prompt_tokens"].as_u64().expect("a number") - one;
        let tokens = [[one, 0, 0, 0, output], [two - one, one, 0, 0, 0]];
        // OpenAI bills batches at half the price.
        let part = if name == "batch.jsonl" { 2 } else { 1 };
        assert_eq!(found["nano_usd"], bill(GPT_4O, &tokens) / part, "{name}: {found}");
        assert_eq!([&found["conversations"], &found["requests"]], [1, 2], "{name}");
        assert_eq!(found["reported_requests"], 0, "{name}");
    }
}

#[test]
fn a_limit_saves_and_says_what_stays() {
    let folder = Folder::new();
    let texts: Vec<String> = (0..41)
        .map(|place| match place % 2 {
            0 => format!("file src/part_{place}.rs: {}", "some words ".repeat(400)),
            _ => format!("I read src/part_{}.rs", if place > 12 { place - 11 } else { 0 }),
        })
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut trace = body("gpt-4o", &texts);
    trace["id"] = json!("x");
    trace.as_object_mut().expect("an object").remove("model");
    let path = folder.write("trace.jsonl", &trace.to_string());
    let (code, _, error) = run(&mut savings(&[&path]));
    assert_eq!(code, Some(1));
    assert!(error.contains("1 conversation without a model; --model NAME"), "{error}");

    let found = figures(&[&path, "--model", "gpt-4o", "--limit", "5k", "--limit", "900k"]);
    let [whole, limited] = &found["limits"].as_array().expect("a list")[..] else {
        panic!("two limits: {found}")
    };
    assert_eq!((&whole["nano_usd"], &whole["kept_values"]), (&found["nano_usd"], &found["values"]));
    assert!(limited["nano_usd"].as_u64() < found["nano_usd"].as_u64(), "{found}");
    assert!(limited["shortened_requests"].as_u64() > Some(5), "{found}");
    assert!(found["values"].as_u64() > Some(5), "{found}");

    let (code, text, error) = run(&mut savings(&[&path, "--model", "gpt-4o", "--limit", "5k"]));
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(text.starts_with("1 conversation, 20 requests, "), "{text}");
    assert!(text.contains("limit 5k") && text.contains(" values used again, "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn transcripts_are_found_in_the_home_folder() {
    let folder = Folder::new();
    let write = |path: &str, text: &str| {
        let path = folder.file(path);
        let parent = path.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(parent).expect("it can be written");
        std::fs::write(path, text).expect("it can be written");
    };
    let cut = claude_code() + r#"{"type":"user","mess"#;
    write(".claude/projects/-code-a/s.jsonl", &cut);
    write(".claude/projects/-code-a/notes.jsonl", "hello\n");
    write(".codex/sessions/2026/03/02/rollout.jsonl", &codex());
    let home = |arguments: &[&str]| {
        let mut command = savings(arguments);
        run(command.env("HOME", folder.as_ref()))
    };
    let (code, text, error) = home(&["--find"]);
    assert_eq!(code, Some(0), "{error}");
    let rows: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().take(2).collect()).collect();
    assert_eq!(rows, [["format", "conversations"], ["claude_code", "1"], ["codex", "1"]], "{text}");
    assert!(error.contains("notes.jsonl is left out: ") && error.contains("\"hello\""), "{error}");
    assert!(error.contains("s.jsonl: Line 7 is not JSON"), "{error}");

    let (code, text, error) = home(&[]);
    assert_eq!(code, Some(0), "{error}");
    for part in ["2 conversations, 4 requests, ", "2026-03-01 to 2026-03-02", "/code/b", "gpt-5.5"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }

    let empty = Folder::new();
    let (code, _, error) = run(savings(&[]).env("HOME", empty.as_ref()));
    assert_eq!(code, Some(1));
    assert!(error.starts_with("weir: no transcripts are in "), "{error}");
}

/// Session, message and part of opencode, each by its path below the storage.
fn opencode() -> Vec<(&'static str, Value)> {
    let tokens = json!({"input": 10, "output": 80, "reasoning": 0,
        "cache": {"read": 9000, "write": 2000}});
    vec![
        (
            "session/p/ses_1.json",
            json!({"id": "ses_1", "projectID": "p", "directory": "/code/o",
            "time": {"created": 1000, "updated": 2000}}),
        ),
        (
            "message/ses_1/msg_1.json",
            json!({"id": "msg_1", "sessionID": "ses_1", "role": "user",
            "time": {"created": 1000}}),
        ),
        (
            "part/msg_1/prt_1.json",
            json!({"id": "prt_1", "messageID": "msg_1", "type": "text",
            "text": "Fix\nit."}),
        ),
        (
            "message/ses_1/msg_2.json",
            json!({"id": "msg_2", "sessionID": "ses_1",
            "role": "assistant", "time": {"created": 1500}, "modelID": "claude-sonnet-4-5",
            "tokens": tokens}),
        ),
        (
            "part/msg_2/prt_2.json",
            json!({"id": "prt_2", "messageID": "msg_2", "type": "text",
            "text": "Done."}),
        ),
        (
            "part/msg_2/prt_3.json",
            json!({"id": "prt_3", "messageID": "msg_2",
            "type": "step-finish", "tokens": tokens}),
        ),
    ]
}

#[test]
fn sessions_of_opencode_are_read_from_files_and_from_its_database() {
    let folder = Folder::new();
    let storage = folder.file("opencode/storage");
    for (path, value) in opencode() {
        let path = storage.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("it can be written");
        let text = serde_json::to_string_pretty(&value).expect("JSON");
        std::fs::write(path, text).expect("it can be written");
    }
    // One that is still written to.
    std::fs::write(storage.join("part/msg_2/prt_4.json"), "{\"id\":").expect("it can be written");
    let storage = storage.to_string_lossy().into_owned();
    let database = folder.file("opencode/opencode.db");
    let made = rusqlite::Connection::open(&database).expect("a database");
    made.execute_batch(
        "create table session (id text primary key, project_id text, directory text not null);
         create table message (id text primary key, session_id text not null,
             time_created integer not null, time_updated integer not null, data text not null);
         create table part (id text primary key, message_id text not null, session_id text not null,
             time_created integer not null, time_updated integer not null, data text not null);
         insert into session values ('ses_1', 'p', '/code/o');",
    )
    .expect("tables");
    for (path, mut value) in opencode() {
        let object = value.as_object_mut().expect("an object");
        let id = object.remove("id").expect("a name");
        let id = id.as_str().expect("text").to_owned();
        let of_message = object.remove("messageID");
        object.remove("sessionID");
        let data = value.to_string();
        if path.starts_with("message/") {
            let at = if id == "msg_1" { 1000 } else { 1500 };
            let sql = "insert into message values (?, 'ses_1', ?, 0, ?)";
            made.execute(sql, rusqlite::params![id, at, data]).expect("a message");
        } else if let Some(message) = of_message {
            let sql = "insert into part values (?, ?, 'ses_1', 0, 0, ?)";
            let message = message.as_str().expect("text");
            made.execute(sql, rusqlite::params![id, message, data]).expect("a part");
        }
    }
    drop(made);
    let database = database.to_string_lossy().into_owned();
    let expected = bill(SONNET, &[[10, 9000, 2000, 0, 80]]);
    for files in [vec![storage.as_str()], vec![&database], vec![&storage, &database]] {
        let found = figures(&files);
        assert_eq!(found["nano_usd"], expected, "{files:?}: {found}");
        assert_eq!([&found["conversations"], &found["requests"]], [1, 1], "{files:?}");
        assert_eq!(found["projects"][0]["name"], "/code/o", "{files:?}");
    }
    let mut find = savings(&["--find"]);
    find.env("HOME", folder.as_ref()).env("XDG_DATA_HOME", folder.as_ref());
    let (code, text, error) = run(&mut find);
    assert_eq!((code, error.as_str()), (Some(0), ""), "{text}");
    assert_eq!(text.matches("opencode  ").count(), 2, "{text}");
}

#[test]
fn an_export_of_helicone_is_read_as_lines_and_as_a_table() {
    let folder = Folder::new();
    let request = body("gpt-4o", &["Say \"x\", please"]);
    let answer = json!({"usage": {"prompt_tokens": 5000, "completion_tokens": 100,
        "prompt_tokens_details": {"cached_tokens": 4000}}});
    let record = json!({"request_id": "r", "request_created_at": "2026-03-01T10:00:00Z",
        "response_status": 200, "request_model": "gpt-4o", "provider": "OPENAI",
        "request_body": request, "response_body": answer});
    let quoted = |value: &Value| value.to_string().replace('"', "\"\"");
    let table = format!(
        "request_id,request_created_at,response_status,request_body,response_body\n\
         r,2026-03-01T10:00:00Z,200,\"{}\",\"{}\"\n",
        quoted(&request),
        quoted(&answer)
    );
    for (name, text) in [("export.jsonl", record.to_string()), ("export.csv", table)] {
        let found = figures(&[&folder.write(name, &text)]);
        assert_eq!(found["nano_usd"], bill(GPT_4O, &[[1000, 4000, 0, 0, 100]]), "{name}: {found}");
        assert_eq!(found["requests"], 1, "{name}");
    }
    let bare = json!({"request_id": "r", "request_created_at": "2026-03-01T10:00:00Z"});
    let (code, _, error) = run(&mut savings(&[&folder.write("bare.jsonl", &bare.to_string())]));
    assert_eq!(code, Some(1));
    assert!(error.contains("has no bodies: Helicone exports them with --include-body"), "{error}");
}

#[test]
fn a_comparison_with_nothing_fails() {
    let folder = Folder::new();
    let store = folder.path("weir.db");
    let (code, _, error) = run(&mut weir(&["keys", "create", "ci", "--store", &store]));
    assert_eq!(code, Some(0), "{error}");
    let export = json!({"data": [{"start_time": 1_796_083_200, "results": [
        {"num_model_requests": 9, "input_tokens": 5, "api_key_id": "key_a", "model": "gpt-4o"}]}]});
    let export = folder.write("usage.json", &export.to_string());
    for (key, expected) in [("key_a", "2 figures do not agree"), ("key_b", "no figure is compared")]
    {
        let arguments = ["reconcile", &export, "--provider-key", key, "--store", &store];
        let (code, text, error) = run(&mut weir(&arguments));
        assert_eq!(code, Some(1), "{key}: {text}");
        assert!(error.contains(expected), "{key}: {error}");
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_or_passed_over() {
    let folder = Folder::new();
    let pipe = folder.file("pipe.jsonl");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo starts");
    assert!(made.success());
    let pipe = pipe.to_string_lossy().into_owned();
    for command in ["savings", "replay", "reconcile", "explain", "tokens"] {
        let (code, _, error) = run(&mut weir(&[command, &pipe]));
        assert_eq!(code, Some(1), "{command}");
        assert!(error.contains("pipe.jsonl: it is no file"), "{command}: {error}");
    }
    folder.write("pi.jsonl", &pi());
    let (code, _, error) = run(&mut savings(&[&folder.as_ref().to_string_lossy()]));
    assert_eq!((code, error.as_str()), (Some(0), ""));
}

#[test]
fn a_file_unpacks_to_a_bounded_multiple_of_its_size() {
    let folder = Folder::new();
    let write = |name: &str, text: &str| {
        let path = folder.file(name);
        let file = std::fs::File::create(&path).expect("the folder can be written");
        let mut packed = GzEncoder::new(file, Compression::default());
        packed.write_all(text.as_bytes()).and_then(|()| packed.finish()).expect("a file");
        path.to_string_lossy().into_owned()
    };
    let small = write("small.jsonl.gz", &pi());
    let (code, _, error) = run(&mut savings(&[&small]));
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let large = write("large.jsonl.gz", &" ".repeat(20 << 20));
    let (code, _, error) = run(&mut savings(&[&large]));
    assert_eq!(code, Some(1));
    assert!(
        error.contains("large.jsonl.gz: it unpacks to more than 100 times its size"),
        "{error}"
    );
}

#[test]
fn limits_with_a_name_stand_beside_the_optimum() {
    let folder = Folder::new();
    let texts: Vec<String> = (0..81)
        .map(|place| match place % 2 {
            0 => format!("file src/part_{place}.rs: {}", "some words ".repeat(1000)),
            _ => format!("I read src/part_{}.rs", place - 1),
        })
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut trace = body("claude-sonnet-4-5", &texts);
    trace["id"] = json!("x");
    let path = folder.write("trace.jsonl", &trace.to_string());
    let arguments = [path.as_str(), "--compare", "--draw-pauses"];
    let found = figures(&arguments);
    let cost = |name: &str| {
        let limits = found["limits"].as_array().expect("a list");
        let own = limits.iter().find(|own| own["limit"] == name).expect("it was tried");
        own["nano_usd"].as_u64().expect("a number")
    };
    assert!(cost("optimum") <= cost("economic"), "{found}");
    assert!(cost("economic") < found["nano_usd"].as_u64().expect("a number"), "{found}");
    assert_eq!(figures(&arguments), found, "pauses are the same each time");
    let (_, text, _) = run(&mut savings(&arguments));
    assert!(text.contains("limit optimum") && text.contains("an estimate: "), "{text}");
    assert!(!text.contains("1970"), "drawn pauses are no dates: {text}");
    let found = figures(&[path.as_str()]);
    let names = found["limits"].as_array().expect("a list").iter().map(|own| &own["limit"]);
    assert!(names.into_iter().any(|own| own == "economic"), "{found}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_session_that_was_copied_to_resume_it_counts_once() {
    let folder = Folder::new();
    let later =
        json!({"type": "user", "sessionId": "s2", "message": {"role": "user", "content": "More."}});
    let [first, second] = [
        folder.write("first.jsonl", &claude_code()),
        folder.write("second.jsonl", &(claude_code() + &lines(&[later]))),
    ];
    let found = figures(&[&first, &second]);
    assert_eq!([&found["conversations"], &found["requests"]], [1, 2], "{found}");
}

#[test]
fn sessions_with_the_same_words_are_billed_each() {
    let folder = Folder::new();
    let usage =
        json!({"input_tokens": 5, "cache_creation_input_tokens": 2000, "output_tokens": 10});
    let session = |number: u8| {
        let line = |kind: &str, message: Value| {
            json!({"type": kind, "sessionId": number.to_string(), "uuid": format!("{kind}{number}"),
                "timestamp": format!("2026-03-01T10:{number:02}:00Z"), "message": message})
        };
        let answer = json!({"id": format!("m{number}"), "role": "assistant",
            "model": "claude-sonnet-4-5", "content": [{"type": "text", "text": "yes"}], "usage": usage});
        let text = lines(&[
            line("user", json!({"role": "user", "content": "Is the build green?"})),
            line("assistant", answer),
        ]);
        folder.write(&format!("{number}.jsonl"), &text)
    };
    let files: Vec<String> = (0..10).map(session).collect();
    let found = figures(&files.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(found["nano_usd"], bill(SONNET, &[[5, 0, 2000, 0, 10]; 10]), "{found}");
    assert_eq!([&found["conversations"], &found["requests"]], [10, 10], "{found}");
}

#[test]
fn what_cannot_be_done_is_said() {
    let folder = Folder::new();
    let csv = folder.write("table.csv", "name,tokens\n");
    let coloured = folder.write("\u{1b}[31mred.csv", "name,tokens\n");
    let broken = folder.write("broken.jsonl", "{\"a\":1}\n{\"b\"");
    for (arguments, reason) in [
        (&["/nowhere.jsonl"][..], "/nowhere.jsonl: there is no such file"),
        (&[&csv], "table.csv: This is neither"),
        (&[&csv], "It begins with \"name,tokens\". Known are request bodies"),
        (&[&broken], "broken.jsonl: This is neither"),
        (&[&coloured], "/?[31mred.csv: This is neither"),
        (&[&csv, "--model", "nobody/knows-me"], "the price of \"nobody/knows-me\" is not known"),
        (&[&csv, "--limit", "much"], "write tokens, such as 64k"),
    ] {
        let (code, out, error) = run(&mut savings(arguments));
        assert!(code != Some(0) && out.is_empty(), "{arguments:?}: {out}");
        assert!(error.contains(reason), "{arguments:?}: {error}");
    }
}
