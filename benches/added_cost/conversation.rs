//! Bodies of the load: an agent's conversations in English, code, logs and JSON, generated from a
//! seed, so that every run sends the same bytes. Conversations must not repeat each other: a cache
//! may only contain text that a real conversation would have shown it.

use std::fmt::Write;

const WORDS: &[&str] = &[
    "the",
    "the",
    "the",
    "of",
    "and",
    "a",
    "to",
    "in",
    "is",
    "that",
    "it",
    "for",
    "this",
    "when",
    "with",
    "request",
    "server",
    "because",
    "value",
    "first",
    "second",
    "result",
    "we",
    "should",
    "error",
    "before",
    "after",
    "every",
    "connection",
    "limit",
    "message",
    "buffer",
    "returns",
    "expected",
    "number",
    "which",
    "between",
    "configuration",
    "already",
    "without",
    "another",
    "function",
    "deployment",
    "customer",
    "invoice",
    "schedule",
    "measured",
    "pipeline",
    "worker",
    "throughput",
    "regression",
    "remove",
    "keep",
    "write",
    "read",
    "change",
    "failing",
    "cache",
    "timeout",
    "latency",
    "parser",
    "directory",
    "branch",
    "review",
    "not",
    "only",
    "can",
    "must",
];
const NOUNS: &[&str] = &[
    "session", "order", "token", "record", "route", "packet", "batch", "ledger", "window", "shard",
    "header", "policy", "account", "cursor", "segment", "index", "worker", "bucket", "span",
    "lease",
];
const VERBS: &[&str] = &[
    "load", "merge", "parse", "flush", "apply", "select", "verify", "resolve", "append", "collect",
    "encode", "refresh", "attach", "reduce", "acquire", "release",
];

/// Output limit of each request: small, to leave the window to the conversation.
const MAX_TOKENS: u32 = 1024;

/// SplitMix64 generator: small, seeded and identical on all platforms.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

/// Creates a request of about 1 KB: a system prompt and one question.
pub fn small(random: &mut Random, streamed: bool) -> Vec<u8> {
    let mut body = opening(streamed, false);
    push_message(&mut body, "system", &prose(random, 300));
    body.push(',');
    push_message(&mut body, "user", &prose(random, 400));
    body.push_str("]}");
    body.into_bytes()
}

/// Creates a growing conversation: the first body has about `start_bytes`; each of the `steps` that
/// follow adds an assistant message and the reply to it.
pub fn growing(
    random: &mut Random,
    streamed: bool,
    start_bytes: usize,
    steps: usize,
) -> Vec<Vec<u8>> {
    let mut body = opening(streamed, true);
    push_message(&mut body, "system", &prose(random, 3000));
    body.push(',');
    push_message(&mut body, "user", &format!("{}\n\n{}", prose(random, 900), code(random, 1500)));
    let mut turn = 0;
    while body.len() < start_bytes {
        push_turn(random, &mut body, turn);
        turn += 1;
    }
    let mut bodies = vec![closed(&body)];
    for _ in 0..steps {
        push_turn(random, &mut body, turn);
        turn += 1;
        bodies.push(closed(&body));
    }
    bodies
}

fn closed(body: &str) -> Vec<u8> {
    [body.as_bytes(), b"]}"].concat()
}

fn opening(streamed: bool, with_tools: bool) -> String {
    let mut body = String::from(r#"{"model":"gpt-4o","#);
    if streamed {
        body.push_str(r#""stream":true,"stream_options":{"include_usage":true},"#);
    }
    push(&mut body, format_args!(r#""temperature":0.2,"max_tokens":{MAX_TOKENS},"#));
    if with_tools {
        body.push_str(r#""tools":["#);
        for (index, name) in ["read_file", "run_command", "query_records"].iter().enumerate() {
            body.push_str(if index > 0 { "," } else { "" });
            push(
                &mut body,
                format_args!(
                    r#"{{"type":"function","function":{{"name":"{name}","description":"Runs {name} in the workspace and returns its output as text.","parameters":{{"type":"object","properties":{{"target":{{"type":"string","description":"What to act on."}},"limit":{{"type":"integer"}}}},"required":["target"]}}}}}}"#
                ),
            );
        }
        body.push_str("],");
    }
    body.push_str(r#""messages":["#);
    body
}

/// Adds about 5 KB: three times in four a tool call and its result, otherwise prose and the user's
/// next request.
fn push_turn(random: &mut Random, body: &mut String, turn: usize) {
    if turn % 4 == 3 {
        body.push(',');
        push_message(body, "assistant", &prose(random, 2400));
        body.push(',');
        let wish = format!("{}\n\n```rust\n{}```", prose(random, 800), code(random, 1600));
        push_message(body, "user", &wish);
        return;
    }
    let id = format!("call_{:016x}", random.next());
    let (tool, output) = match turn % 4 {
        0 => ("read_file", code(random, 4300)),
        1 => ("run_command", log(random, 4300)),
        _ => ("query_records", records(random, 4300)),
    };
    let target = format!("src/{}/{}.rs", random.pick(NOUNS), random.pick(NOUNS));
    let arguments = quoted(&format!(r#"{{"target":"{target}","limit":{}}}"#, random.below(500)));
    let thought = quoted(&prose(random, 300));
    push(
        body,
        format_args!(
            r#",{{"role":"assistant","content":{thought},"tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"{tool}","arguments":{arguments}}}}}]}},{{"role":"tool","tool_call_id":"{id}","content":{}}}"#,
            quoted(&output)
        ),
    );
}

fn push_message(body: &mut String, role: &str, content: &str) {
    push(body, format_args!(r#"{{"role":"{role}","content":{}}}"#, quoted(content)));
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a String cannot fail");
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn prose(random: &mut Random, bytes: usize) -> String {
    let mut text = String::new();
    while text.len() < bytes {
        let start = text.len();
        for index in 0..6 + random.below(14) {
            text.push_str(if index > 0 { " " } else { "" });
            text.push_str(random.pick(WORDS));
        }
        text[start..=start].make_ascii_uppercase();
        text.push_str(if random.below(5) == 0 { ".\n\n" } else { ". " });
    }
    text
}

fn code(random: &mut Random, bytes: usize) -> String {
    let mut text = String::new();
    while text.len() < bytes {
        let (verb, noun) = (random.pick(VERBS), random.pick(NOUNS));
        let (other, third) = (random.pick(NOUNS), random.pick(VERBS));
        let number = random.below(4096);
        push(
            &mut text,
            format_args!(
                "/// {}\npub fn {verb}_{noun}({other}: &mut {}, limit: usize) -> Result<usize, Error> {{\n    \
             let mut count = {number};\n    for item in {other}.{third}_all(limit)? {{\n        \
             if item.{noun}_id() == {} {{\n            return Err(Error::new(\"{noun} {}\"));\n        \
             }}\n        count += item.len();\n    }}\n    Ok(count)\n}}\n\n",
                prose(random, 60).trim(),
                capital(other),
                random.below(100_000),
                prose(random, 20).trim(),
            ),
        );
    }
    text
}

fn log(random: &mut Random, bytes: usize) -> String {
    let mut text = String::new();
    while text.len() < bytes {
        let level = random.pick(&["INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR"]);
        push(
            &mut text,
            format_args!(
                "2026-03-{:02}T{:02}:{:02}:{:02}Z {level} {}::{}: {} in {} ms\n",
                1 + random.below(28),
                random.below(24),
                random.below(60),
                random.below(60),
                random.pick(NOUNS),
                random.pick(VERBS),
                prose(random, 60).trim(),
                random.below(900),
            ),
        );
    }
    text
}

fn records(random: &mut Random, bytes: usize) -> String {
    let mut text = String::from("[");
    while text.len() < bytes {
        text.push_str(if text.len() > 1 { ",\n " } else { "" });
        push(
            &mut text,
            format_args!(
                r#"{{"id": {}, "kind": "{}", "state": "{}", "note": "{}"}}"#,
                random.below(1_000_000),
                random.pick(NOUNS),
                random.pick(VERBS),
                prose(random, 90).trim().replace('\n', " "),
            ),
        );
    }
    text.push(']');
    text
}

fn capital(word: &str) -> String {
    let mut word = word.to_owned();
    word[..1].make_ascii_uppercase();
    word
}
