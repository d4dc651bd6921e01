//! Real conversations for tests: the project's small sample, or all those in the folder that
//! `WEIR_TRACES` names.

use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use serde_json::Value;

/// Recorded conversation.
pub struct Conversation {
    pub id: String,
    pub messages: Vec<Value>,
    /// Tools offered in it, if any.
    pub tools: Value,
}

/// Returns all available conversations, in order of file and line.
pub fn all() -> Vec<Conversation> {
    let folder = std::env::var_os("WEIR_TRACES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces"),
        PathBuf::from,
    );
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with(".jsonl.gz"))
        .collect();
    files.sort();
    files.iter().flat_map(|file| read(file)).collect()
}

fn read(file: &Path) -> Vec<Conversation> {
    let mut text = String::new();
    let bytes = std::fs::File::open(file).expect("the file was just listed");
    GzDecoder::new(bytes).read_to_string(&mut text).expect("compressed text");
    text.lines()
        .map(|line| {
            let mut record: Value = serde_json::from_str(line).expect("a record a line");
            let messages = match record["messages"].take() {
                Value::Array(messages) => messages,
                _ => Vec::new(),
            };
            let id = record["id"].as_str().unwrap_or_default().to_owned();
            Conversation { id, messages, tools: record["tools"].take() }
        })
        .collect()
}

/// Returns a message's texts and the arguments of its calls.
pub fn texts(message: &Value) -> Vec<String> {
    let mut texts: Vec<String> =
        message["content"].as_str().map(String::from).into_iter().collect();
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        texts.extend(call["function"]["arguments"].as_str().map(String::from));
    }
    texts
}
