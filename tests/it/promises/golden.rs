//! Whole requests beside what is sent in their place: `tests/golden/<case>/` holds `request.json`,
//! `limit` (tokens), `expected.json` (the body sent, or the error) and `told` (the report of the
//! headers). `UPDATE_GOLDEN=1` writes the last two anew.

use std::fs;
use std::path::{Path, PathBuf};

use weir::proxy::planner::Planned;

use super::harness::Weir;
use super::judge::{Body, compare};
use super::valid;

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = fs::read_dir(folder).expect("the cases are there");
    let mut cases: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    cases.sort();
    cases
}

/// What is wrong with what is sent of a request.
fn fault(request: &str, planned: &Planned, sent: &str) -> Result<(), String> {
    let (received, sent) = (Body::read(request)?, Body::read(sent)?);
    let verdict = compare(&received, &sent)?;
    if verdict.kept.last().map(|(own, _)| own + 1) != Some(received.messages().len()) {
        return Err("the last message is gone".to_owned());
    }
    let tokens = sent.tokens() + planned.received_tokens - received.tokens();
    if tokens > planned.limit_tokens {
        return Err(format!("{tokens} tokens under {}", planned.limit_tokens));
    }
    valid::fault(&received).or_else(|| valid::fault(&sent)).map_or(Ok(()), Err)
}

/// What is sent, or the error, and what is told.
fn outcome(request: &str, limit_tokens: u64) -> Result<(String, String), String> {
    match Weir::new().plan(request, limit_tokens) {
        Ok(planned) => {
            let bytes = planned.body.as_deref().unwrap_or(request.as_bytes());
            let sent = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
            fault(request, &planned, sent)?;
            let Planned { action, edits, received_tokens, sent_tokens, limit_tokens, .. } =
                &planned;
            let told = format!(
                "action: {action}\nedits: {edits}\nreceived tokens: {received_tokens}\n\
                 sent tokens: {sent_tokens}\nlimit tokens: {limit_tokens}\ncuts: {}\n",
                planned.cuts
            );
            Ok((sent.to_owned(), told))
        }
        Err(error) => {
            let kind = error.kind;
            let message = serde_json::Value::from(error.message);
            let body = format!("{{\n  \"message\": {message}\n}}\n");
            Ok((body, format!("error: {}\n", kind.code())))
        }
    }
}

#[test]
fn golden_requests_are_sent_as_written_down() {
    let is_update = std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1");
    let mut differing = Vec::new();
    for case in cases() {
        let read = |name: &str| fs::read_to_string(case.join(name)).unwrap_or_default();
        let limit = read("limit").trim().parse().expect("a limit in tokens");
        let (body, told) = outcome(&read("request.json"), limit)
            .unwrap_or_else(|error| panic!("{}: {error}", case.display()));
        for (name, found) in [("expected.json", body), ("told", told)] {
            if is_update {
                fs::write(case.join(name), found).expect("the case can be written");
            } else if read(name) != found {
                differing.push(format!("{}/{name} is now:\n{found}", case.display()));
            }
        }
    }
    assert!(differing.is_empty(), "UPDATE_GOLDEN=1 accepts:\n{}", differing.join("\n"));
}
