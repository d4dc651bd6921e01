//! `weir explain`: its table, its other forms, and its error texts.
//! `UPDATE_GOLDEN=1` regenerates the tables.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use weir_store::Store;

use crate::cli::weir;
use crate::folder::Folder;
use crate::protocols::service;
use crate::protocols::through::post;
use crate::server::harness::{self, Upstream, ask};

/// Runs the command; returns its output or its error text.
fn explained(arguments: &[&str], input: &str) -> Result<String, String> {
    let mut command = weir(&["explain"]);
    let mut process = command.args(arguments).stdin(Stdio::piped()).spawn().expect("weir starts");
    let mut standard_input = process.stdin.take().expect("it is piped");
    // It may have ended before it read anything.
    let _ = standard_input.write_all(input.as_bytes());
    drop(standard_input);
    let output = process.wait_with_output().expect("it ends");
    let [out, error] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    if output.status.success() {
        assert_eq!(error, "", "nothing but the report");
        Ok(out)
    } else {
        assert_eq!(output.status.code(), Some(1));
        Err(error)
    }
}

const BODY: &str = r#"{"model":"gpt-4o","messages":[{"role":"system","content":"Be\u001b[31m brief."},
    {"role":"user","content":"hello world"}]}"#;

#[test]
fn tables_are_as_written_down() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let is_update = std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1");
    let cases = [
        "agent_loop_cut",
        "chat_cut",
        "clip_string",
        "cannot_fit",
        "pins",
        "zones_mask_three_oldest_first",
        "zones_warn_and_restart",
        "shares_refer_to_what_is_large",
    ];
    for case in cases {
        let read =
            |name: &str| std::fs::read_to_string(folder.join(case).join(name)).unwrap_or_default();
        let limit = read("limit");
        let mut arguments =
            vec!["-", "--all", "--width", "140", "--max-input-tokens", limit.trim()];
        let config = folder.join(case).join("config");
        if config.is_file() {
            arguments.extend(["--config", config.to_str().expect("text")]);
        }
        let table = explained(&arguments, &read("request.json")).expect("it is explained");
        if is_update {
            std::fs::write(folder.join(case).join("explained"), table)
                .expect("the case can be written");
        } else {
            assert_eq!(table, read("explained"), "{case}: UPDATE_GOLDEN=1 accepts");
        }
    }
}

#[test]
fn it_is_short_unless_asked_for_all() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/agent_loop_cut");
    let request = std::fs::read_to_string(folder.join("request.json")).expect("a request");
    let limit = std::fs::read_to_string(folder.join("limit")).expect("a limit");
    let arguments = ["-", "--width", "80", "--max-input-tokens", limit.trim()];
    let brief = explained(&arguments, &request).expect("it is explained");
    let expected = "\
gpt-4o: evict (compact, policy default)
195 of 300 tokens are sent, 548 were received; 105 are left
[###############################################..........................] 65 %

#      role        before  after  fate   why
0      system           9      9  kept   system message
1      user            12     12  kept   first user message
       note 1                 48  added  in compaction 1, for 6 messages
       note 2                 49  added  in compaction 2, for 6 messages
2-7    6 messages     222      0  gone   left out in compaction 1, see note 1
8-13   6 messages     228      0  gone   left out in compaction 2, see note 2
14-15  2 messages      74     74  kept   newest turn

next      compaction above 300 tokens, to at most 225; now 195 (65 %)
last      compaction from 374 to 195 tokens at message 16; 2 so far
warning   548 tokens as received are above the limit of 300; 195 are sent
more      --all shows each message and tokens by role, section and file
";
    assert_eq!(brief, expected);
    let all = explained(&[&arguments[..], &["--all"]].concat(), &request).expect("it is explained");
    let verbose = explained(&[&arguments[..], &["--verbose"]].concat(), &request);
    assert_eq!(verbose.as_ref(), Ok(&all));
    assert!(all.contains("by section  tools 3") && all.lines().count() > brief.lines().count());
    // The table stays short even for a conversation of many kinds.
    let message = |number: usize| match number % 2 {
        0 => r#"{"role":"user","content":"x"}"#.to_owned(),
        _ => r#"{"role":"assistant","content":"y"}"#.to_owned(),
    };
    let pinned = r#"{"role":"user","content":"z","weir":{"pin":true}}"#.to_owned();
    let mut messages: Vec<String> = (0..200).map(message).collect();
    for place in (0..200).step_by(4) {
        messages[place].clone_from(&pinned);
    }
    let body = format!(r#"{{"model":"gpt-4o","messages":[{}]}}"#, messages.join(","));
    let long = explained(&["-", "--max-input-tokens", "700"], &body).expect("it is explained");
    assert!(long.lines().count() < 40, "{long}");
}

#[test]
fn other_protocols_are_recognised_or_named() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for case in ["responses_note_behind_instructions", "messages_note_behind_system_blocks"] {
        let read =
            |name: &str| std::fs::read_to_string(folder.join(case).join(name)).expect("text");
        let (request, limit, protocol) = (read("request.json"), read("limit"), read("protocol"));
        let arguments = ["-", "--json", "--max-input-tokens", limit.trim()];
        let recognised = explained(&arguments, &request).expect("it is explained");
        let named = [&arguments[..], &["--protocol", protocol.trim()]].concat();
        assert_eq!(explained(&named, &request).as_ref(), Ok(&recognised), "{case}");
        let report: Value = serde_json::from_str(&recognised).expect("JSON");
        let expected: Value = serde_json::from_str(&read("expected.json")).expect("JSON");
        assert_eq!(report["body"], expected, "{case}: what is sent");
        let table = explained(&["-", "--max-input-tokens", limit.trim()], &request);
        assert!(table.expect("it is explained").contains("note 1"), "{case}");
    }
    let items = r#"[{"role":"user","content":"x"},{"type":"reasoning","summary":[]},
        {"role":7,"content":"x"}]"#;
    let error = explained(&["-", "--model", "gpt-4o", "--protocol", "responses"], items);
    let expected = "'input[2].role' has the wrong type: expected a string.";
    assert!(error.as_ref().expect_err("unreadable").contains(expected), "{error:?}");
    let blocks = r#"{"model":"gpt-4o","system":"s","messages":[{"role":"user","content":[
        {"type":"tool_result","tool_use_id":"a","content":"x"},{"type":"text","text":"y"}]},
        {"role":7,"content":"x"}]}"#;
    let error = explained(&["-"], blocks);
    assert!(error.as_ref().expect_err("unreadable").contains("'messages[1].role'"), "{error:?}");
}

#[test]
fn it_has_other_forms() {
    let compact = explained(&["-", "--compact"], BODY).expect("it is explained");
    assert_eq!(
        compact,
        "gpt-4o: pass, 20 → 20 of 112K tokens (0 %), 112K left, 0 gone, 0 masked, 0 clipped of 2 messages, \
         0 compactions, full\n"
    );
    let refused = explained(&["-", "--compact", "--max-input-tokens", "19"], BODY);
    let expected = "gpt-4o: refuse, 20 tokens needed, the limit is 19, 2 messages\n";
    assert_eq!(refused.as_deref(), Ok(expected));
    let other = explained(
        &["-", "--compact", "--protocol", "chat"],
        r#"{"model":"gpt-4o","input":"hello"}"#,
    );
    let other = other.expect("it is explained");
    assert!(other.starts_with("gpt-4o: pass (no messages to read), "), "{other}");
    let text = explained(&["-", "--text"], BODY).expect("it is explained");
    assert_eq!(text, "System: Be[31m brief.\n\nUser: hello world\n");
    let json = explained(&["-", "--json", "--model", "gpt-4"], BODY).expect("it is explained");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["object"], &json["model"]), (&"weir.plan".into(), &"gpt-4".into()));
    assert_eq!(json["body"]["model"], "gpt-4o", "what is sent is not touched");
    let messages = r#" [{"role":"user","content":"hello"}]"#;
    let table = explained(&["-", "--all", "--model", "gpt-4o"], messages).expect("it is explained");
    assert!(table.contains("hello") && !table.contains("newest turn"), "{table}");
}

#[test]
fn a_table_holds_no_signs_that_a_terminal_acts_on() {
    let table = explained(&["-", "--all"], BODY).expect("it is explained");
    assert!(table.contains("Be [31m brief."), "{table}");
    assert!(!table.contains(|own: char| own.is_control() && own != '\n'), "{table:?}");
    let wide = explained(&["-", "--width", "70"], BODY).expect("it is explained");
    let bar = wide.lines().find(|line| line.starts_with('[')).expect("a bar");
    let in_file = explained(&["-"], BODY).expect("it is explained");
    assert!(in_file.lines().all(|line| line.chars().count() <= 100), "{in_file}");
    assert_eq!(bar.chars().count(), 70);
}

#[test]
fn a_content_is_judged() {
    let folder = std::env::temp_dir();
    let file = folder.join(format!("weir-content-{}", std::process::id()));
    std::fs::write(&file, "word ".repeat(3000)).expect("the temporary directory can be written");
    let path = file.to_str().expect("text");
    let arguments =
        ["-", "--max-input-tokens", "2000", "--content", path, "--category", "tool_result"];
    let table = explained(&arguments, BODY);
    std::fs::remove_file(&file).expect("it was just written");
    let last = table.expect("it is explained");
    let last = last.lines().last().expect("a line").to_owned();
    assert!(last.starts_with("content     tool result of 3K tokens, room 2K"), "{last}");
    assert!(last.contains("shorten it to 2K: of 3K tokens 1.9K would be sent"), "{last}");
}

#[test]
fn mistakes_are_said_in_one_line() {
    for (arguments, input, expected) in [
        (&["/nowhere/request.json"][..], "", "/nowhere/request.json: "),
        (&["-"], "", "-: The body cannot be read as a JSON object"),
        (&["-"], "{\"messages\":7}", "-: 'messages' has the wrong type"),
        (&["-"], "[{}]", "-: 'messages[0].role' has the wrong type"),
        (&["-", "--policy", "none"], BODY, "--policy: \"none\" is not a policy"),
        (&["-", "--config", "/nowhere.toml"], BODY, "/nowhere.toml: cannot be read"),
    ] {
        let error = explained(arguments, input).expect_err("it is wrong");
        assert!(error.starts_with(&format!("weir: {expected}")), "{error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }
}

#[test]
fn help_teaches() {
    let help = explained(&["--help"], "").expect("it is help");
    for word in ["before, after", "--category", "tool_result", "/weir/v1/plan", "--compact"] {
        assert!(help.contains(word), "{word}: {help}");
    }
}

/// Returns a request of Responses with a compaction item that weir sealed for `key`, whose store is in a
/// file.
async fn sealed(folder: &Folder, key: &str) -> String {
    let upstream = Upstream::start().await;
    let store = Store::open(&folder.file("weir.db")).expect("a new file");
    let weir = harness::start_with(store, &upstream.address, |_| {}).await;
    let list = service::conversation(40);
    let asked = post(service::COMPACT, &service::caller(key), &service::body(&list));
    let answer = ask(weir.address, asked).await;
    let answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
    let mut list = answer["output"].as_array().expect("a list").clone();
    list.push(service::message("user", "And now?"));
    service::body(&list).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn compaction_items_are_opened_with_the_key_that_they_were_made_for() {
    let folder = Folder::new();
    let body = sealed(&folder, "one").await;
    let file = folder.file("request.json");
    std::fs::write(&file, &body).expect("it can be written");
    let lines = folder.file("requests.jsonl");
    std::fs::write(&lines, body.clone() + "\n" + &body).expect("it can be written");
    let run = |command: &str, file: &Path, more: &[&str], key: &str| {
        let mut weir = weir(&[command]);
        weir.arg(file).args(more);
        weir.env("WEIR_STORE__PATH", folder.file("weir.db")).env("THE_KEY", key);
        let output = weir.output().expect("weir starts");
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"))
    };
    let shown = ["--text", "--key-env", "THE_KEY"];
    let [text, said] = run("explain", &file, &shown, "sk-one");
    assert!(text.contains("QX-7741") && text.contains("[weir: "), "{text:.2000}");
    assert_eq!(said, "");
    let [text, said] = run("explain", &file, &shown, "sk-two");
    assert!(!text.contains("QX-7741"), "{text:.2000}");
    assert!(said.contains("a request has sealed compaction items"), "{said}");
    assert!(said.contains("another API key"), "{said}");
    let [_, said] = run("explain", &file, &["--text"], "");
    assert!(said.contains("--key-env NAME"), "{said}");
    // A replay says the same of all lines.
    let budget = ["--budget", "1k", "--policy", "none"];
    let [_, said] = run("replay", &lines, &budget, "");
    assert!(said.contains("2 requests have sealed compaction items"), "{said}");
    let [_, said] = run("replay", &lines, &[&budget[..], &shown[1..]].concat(), "sk-one");
    assert_eq!(said, "");
}

#[test]
fn a_key_that_cannot_be_read_is_named() {
    let said = explained(&["-", "--key-env", "NO_SUCH_VARIABLE"], BODY).expect_err("it is not set");
    assert!(said.contains("NO_SUCH_VARIABLE"), "{said}");
}
