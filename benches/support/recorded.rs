//! Text of the recorded conversations in `tests/data`, with other names and numbers in repetitions.
//! Shared by several benches.

use std::io::Read as _;

use flate2::read::GzDecoder;
use serde_json::Value;

/// Returns the messages of each conversation.
pub fn conversations() -> Vec<Vec<Value>> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/traces/sample.jsonl.gz");
    let bytes = std::fs::File::open(file).expect("the sample is there");
    let mut text = String::new();
    GzDecoder::new(bytes).read_to_string(&mut text).expect("compressed text");
    let messages = |line: &str| -> Vec<Value> {
        let mut record: Value = serde_json::from_str(line).expect("a record a line");
        match record["messages"].take() {
            Value::Array(messages) => messages,
            _ => Vec::new(),
        }
    };
    text.lines().map(messages).collect()
}

/// Replaces names and numbers consistently.
pub fn vary(value: Value, round: u8) -> Value {
    match value {
        Value::String(text) => {
            let vary = |letter: char| match letter {
                '1'..='9' => char::from(b'1' + (letter as u8 - b'1' + round) % 9),
                'e' => char::from(b'a' + (4 + round) % 26),
                other => other,
            };
            // Plain words stay; other words are part of values.
            let words = text.split(' ').map(|word| {
                let is_name = word.contains(['_', '.', '/', '='])
                    || word.contains(|letter: char| letter.is_ascii_digit());
                if is_name { word.chars().map(vary).collect() } else { word.to_owned() }
            });
            words.collect::<Vec<String>>().join(" ").into()
        }
        Value::Array(items) => items.into_iter().map(|item| vary(item, round)).collect(),
        Value::Object(members) => {
            let members = members.into_iter().map(|(key, value)| match key.as_str() {
                "role" | "type" => (key, value),
                _ => (key, vary(value, round)),
            });
            Value::Object(members.collect())
        }
        other => other,
    }
}
