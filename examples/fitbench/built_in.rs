//! Conversations from files and from the project's samples. Knows nothing of proxies.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use serde_json::{Value, json};
use weir_bench::Case;

const SAMPLE: &[u8] = include_bytes!("../../tests/data/traces/sample.jsonl.gz");
const DIALOGUES: [(&str, &str); 2] = [
    ("english", include_str!("../../tests/data/dialogues/english.txt")),
    ("german", include_str!("../../tests/data/dialogues/german.txt")),
];

/// Returns the project's recorded samples.
pub fn samples() -> Result<Vec<Case>, String> {
    let mut text = String::new();
    MultiGzDecoder::new(SAMPLE).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let mut cases = read_cases(&text)?;
    for (name, text) in DIALOGUES {
        cases.push(Case::read(&dialogue(name, text).to_string(), 1)?);
    }
    Ok(cases)
}

/// Reads a file of JSON lines, plain or gzip.
pub fn read_file(path: &Path) -> Result<Vec<Case>, String> {
    let place = |error: String| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(|error| place(error.to_string()))?;
    let mut plain: Box<dyn Read> = match path.extension() {
        Some(extension) if extension == "gz" => Box::new(MultiGzDecoder::new(file)),
        _ => Box::new(file),
    };
    let mut text = String::new();
    plain.read_to_string(&mut text).map_err(|error| place(error.to_string()))?;
    read_cases(&text).map_err(place)
}

/// Reads conversations from JSON lines. Lines in which no assistant answers are left out.
fn read_cases(text: &str) -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let value: Value =
            serde_json::from_str(line).map_err(|error| format!("line {}: {error}", index + 1))?;
        let is_long = value["messages"].as_array().is_none_or(|messages| messages.len() > 2);
        match Case::read(line, index + 1) {
            Ok(case) => cases.push(case),
            Err(error) if is_long => return Err(format!("line {}: {error}", index + 1)),
            Err(_) => {}
        }
    }
    Ok(cases)
}

/// Returns a dialogue as a conversation: its turns, then its questions, each answered with the message
/// that mentions the fact.
fn dialogue(name: &str, text: &str) -> Value {
    let mut messages = vec![json!({"role": "system", "content": "You are an assistant."})];
    let mut facts: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        let Some((head, said)) = line.split_once(": ") else { continue };
        if let Some(fact) = head.strip_prefix("Q ") {
            let answer = facts.iter().find(|(own, _)| own == fact).map_or("", |(_, said)| said);
            messages.push(json!({"role": "user", "content": said}));
            messages.push(json!({"role": "assistant", "content": format!("You said: {answer}")}));
            continue;
        }
        if let Some(fact) = head.strip_prefix("U[").and_then(|rest| rest.strip_suffix(']')) {
            facts.push((fact.to_owned(), said.to_owned()));
        }
        let role = if head.starts_with('A') { "assistant" } else { "user" };
        messages.push(json!({"role": role, "content": said}));
    }
    json!({"id": name, "source": "dialogues", "messages": messages})
}
