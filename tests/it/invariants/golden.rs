//! Golden cases of whole requests. Each folder `tests/golden/<case>/` holds the input:
//! `request.json`, `limit` (tokens), `config` (TOML) if the case needs more than the defaults, and
//! `protocol` if it is not chat completions. It also holds the expected result: `expected.json` (the sent body, or the error) and the report
//! in the headers. `UPDATE_GOLDEN=1` regenerates the result.

use std::fs;
use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::{Format, Toml};
use weir::proxy::plan::Planned;
use weir_engine::wire::Protocol;

use super::harness::Weir;
use super::judge::{Body, compare};
use super::valid;
use crate::protocols::validity;

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = fs::read_dir(folder).expect("the cases are there");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let mut cases: Vec<_> = paths.filter(|path| path.join("request.json").is_file()).collect();
    cases.sort();
    cases
}

/// Creates a planner with a case's `config`.
fn weir(toml: &str) -> Weir {
    let loaded = weir::config::load(Figment::from(Toml::string(toml)));
    let (loaded, _) = loaded.unwrap_or_else(|problems| panic!("{problems:?}"));
    Weir::with(|config| {
        config.context = loaded.context;
        config.model_settings = loaded.model_settings;
    })
}

/// Returns the fault of a sent request of another protocol, if it has one.
fn fault_in(protocol: Protocol, sent: &str) -> Result<(), String> {
    let sent = serde_json::from_str(sent).map_err(|error| error.to_string())?;
    match protocol {
        Protocol::Responses => validity::responses(&sent),
        _ => validity::messages(&sent),
    }
}

/// Returns the fault of a sent request, if it has one.
fn fault(request: &str, planned: &Planned, sent: &str, is_default: bool) -> Result<(), String> {
    let (received, sent) = (Body::read(request)?, Body::read(sent)?);
    if !is_default {
        let last =
            |body: &Body<'_>| body.messages().last().map(|own| own.raw(body.text).to_owned());
        let (before, after) = (last(&received), last(&sent));
        let role = |body: &Body<'_>| body.role(body.messages().len() - 1).to_owned();
        if before != after && role(&received) != role(&sent) {
            return Err("the last message is gone".to_owned());
        }
        return valid::fault(&sent).map_or(Ok(()), Err);
    }
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

/// Returns the sent body or the error, and the report in the headers.
fn outcome(
    protocol: Protocol,
    request: &str,
    limit_tokens: u64,
    config: &str,
) -> Result<(String, String), String> {
    match weir(config).plan_as(protocol, request, limit_tokens) {
        Ok(planned) => {
            let bytes = planned.body.as_deref().unwrap_or(request.as_bytes());
            let sent = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
            match protocol {
                Protocol::Chat => fault(request, &planned, sent, config.is_empty())?,
                protocol => fault_in(protocol, sent)?,
            }
            let Planned { action, edits, received_tokens, sent_tokens, limit_tokens, .. } =
                &planned;
            let outcome = format!(
                "action: {action}\nedits: {edits}\nreceived tokens: {received_tokens}\n\
                 sent tokens: {sent_tokens}\nlimit tokens: {limit_tokens}\ncompactions: {}\n",
                planned.compactions
            );
            Ok((sent.to_owned(), outcome))
        }
        Err(error) => {
            let kind = error.kind;
            let message = serde_json::Value::from(error.message);
            let body = format!("{{\n  \"message\": {message}\n}}\n");
            Ok((body, format!("error: {}\n", kind.word())))
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
        let protocol = match read("protocol").trim() {
            "" => Protocol::Chat,
            name => Protocol::from_name(name).expect("a protocol"),
        };
        let (body, found) = outcome(protocol, &read("request.json"), limit, &read("config"))
            .unwrap_or_else(|error| panic!("{}: {error}", case.display()));
        for (name, found) in [("expected.json", body), ("outcome", found)] {
            if is_update {
                fs::write(case.join(name), found).expect("the case can be written");
            } else if read(name) != found {
                differing.push(format!("{}/{name} is now:\n{found}", case.display()));
            }
        }
    }
    assert!(differing.is_empty(), "UPDATE_GOLDEN=1 accepts:\n{}", differing.join("\n"));
}
