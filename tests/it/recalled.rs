//! Long dialogues with early facts and late questions, in four languages: the share of facts that
//! is readable when the question comes, with recall and without.

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::cli::weir;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");
const LANGUAGES: [&str; 4] = ["chinese", "english", "german", "japanese"];

/// Dialogue as written: `U:` and `A:` speak, `U[name]:` states a fact, and `Q name:` asks for it.
#[derive(Default)]
struct Dialogue {
    said: Vec<Value>,
    told: Vec<(String, usize)>,
    asked: Vec<(String, String)>,
}

impl Dialogue {
    fn read(language: &str) -> Self {
        let path = format!("{DATA}/dialogues/{language}.txt");
        let text = std::fs::read_to_string(&path).expect("the dialogue is there");
        let mut own = Self::default();
        for line in text.lines() {
            let (who, said) = line.split_once(": ").expect("a line says who speaks");
            if let Some(name) = who.strip_prefix("Q ") {
                own.asked.push((name.to_owned(), said.to_owned()));
                continue;
            }
            if let Some(name) = who.strip_prefix("U[").and_then(|rest| rest.strip_suffix(']')) {
                own.told.push((name.to_owned(), own.said.len()));
            }
            let role = if who.starts_with('U') { "user" } else { "assistant" };
            own.said.push(json!({"role": role, "content": said}));
        }
        own
    }

    /// Returns a conversation for each question with all of `between`, in the input format of `weir
    /// replay`.
    fn lines(&self, language: &str, between: &[[Value; 2]]) -> Vec<String> {
        let exchanges = self.said.len() / 2;
        let mut messages: Vec<Value> = Vec::new();
        let mut places = Vec::new();
        for exchange in 0..exchanges {
            places.extend([messages.len(), messages.len() + 1]);
            messages.extend_from_slice(&self.said[2 * exchange..2 * exchange + 2]);
            let [from, to] = [exchange, exchange + 1].map(|own| own * between.len() / exchanges);
            messages.extend(between[from..to].iter().flatten().cloned());
        }
        let line = |(name, question): &(String, String)| {
            let told = self.told.iter().find(|(own, _)| own == name).expect("it was told");
            let mut messages = messages.clone();
            messages.push(json!({"role": "user", "content": question}));
            messages.push(json!({"role": "assistant", "content": "."}));
            let id = format!("{language}-{name}");
            let evidence = [places[told.1]];
            json!({"id": id, "source": language, "evidence": evidence, "messages": messages})
                .to_string()
        };
        self.asked.iter().map(line).collect()
    }
}

/// Returns the exchanges between users and assistants in the recorded conversations that run no
/// code.
fn talk() -> Vec<[Value; 2]> {
    let path = Path::new(DATA).join("traces/sample.jsonl.gz");
    let mut text = String::new();
    let file = std::fs::File::open(path).expect("the sample is there");
    GzDecoder::new(file).read_to_string(&mut text).expect("compressed text");
    let mut talk = Vec::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).expect("a record a line");
        let id = record["id"].as_str().unwrap_or_default();
        if !id.starts_with("tau") && !id.starts_with("aider") {
            continue;
        }
        let said =
            |message: &&Value| message["content"].as_str().is_some_and(|own| !own.is_empty());
        let spoken: Vec<(&str, &str)> = record["messages"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(said)
            .map(|own| {
                (own["role"].as_str().unwrap_or_default(), own["content"].as_str().unwrap_or(""))
            })
            .filter(|(role, _)| matches!(*role, "user" | "assistant"))
            .collect();
        for pair in spoken.windows(2) {
            if (pair[0].0, pair[1].0) == ("user", "assistant") {
                let message = |(role, text): (&str, &str)| json!({"role": role, "content": text});
                talk.push([message(pair[0]), message(pair[1])]);
            }
        }
    }
    talk
}

/// Returns the figures of each language by name, and of all.
fn figures(file: &Path, tail: &str) -> (Vec<(String, f64)>, Value) {
    let file = file.to_str().expect("text");
    let arguments = ["replay", file, "--json", "--budget", "10%", "--set", tail];
    let output = weir(&arguments).output().expect("weir starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let run = value["runs"][0].take();
    let recall = |row: &Value| {
        let name = row["source"].as_str().unwrap_or_default().to_owned();
        (name, row["evidence"]["value"].as_f64().expect("each language has questions"))
    };
    let rows = run["sources"].as_array().expect("a list").iter().map(recall).collect();
    (rows, run["total"].clone())
}

#[test]
fn what_was_told_early_can_be_read_when_it_is_asked_for_late() {
    let talk = talk();
    let lines: Vec<String> = LANGUAGES
        .iter()
        .flat_map(|language| Dialogue::read(language).lines(language, &talk))
        .collect();
    let path = std::env::temp_dir().join(format!("weir-recalled-{}.jsonl", std::process::id()));
    std::fs::write(&path, lines.join("\n")).expect("it can be written");
    let [without, with] = ["recall.share=0", "recall.share=0.1"].map(|tail| figures(&path, tail));
    std::fs::remove_file(&path).expect("it was written");
    for ((language, before), (_, after)) in without.0.iter().zip(&with.0) {
        println!("{language}: {before:.2} without, {after:.2} with");
        assert!(*after >= 0.8 && *after > before + 0.3, "{language}: {before} to {after}");
    }
    let number = |total: &Value, name: &str| total[name].as_f64().expect("a number");
    for figure in ["valid", "over"] {
        let [before, after] = [&without.1, &with.1].map(|total| number(total, figure));
        assert_eq!(before.to_bits(), after.to_bits(), "{figure}");
    }
    let [before, after] = [&without.1, &with.1].map(|total| number(total, "billed_per_none"));
    println!("billed: {before:.3} without, {after:.3} with");
    assert!(after < before * 1.15, "billed {before} to {after}");
    // Dialogues reserve room for recall: both marks are lower by it, with the same distance. So
    // compactions come earlier and no more often: at most one more up to a conversation's end.
    let [before, after] = [&without.1, &with.1].map(|total| number(total, "cuts"));
    let conversations = number(&with.1, "conversations");
    println!("{before} compactions without, {after} with, in {conversations} conversations");
    assert!(after <= before + conversations, "{before} compactions without, {after} with");
}
