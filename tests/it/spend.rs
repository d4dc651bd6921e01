//! Reported usage: over HTTP each caller's own, and all of it by `weir usage`.

use std::process::Command;

use serde_json::{Value, json};
use weir::config::{Config, Mode};
use weir_store::Store;
use weir_store::ledger::{Totals, UsageQuery};

use crate::cli::isolate;
use crate::folder::Folder;
use crate::scripted_upstream::{Options, Server};
use crate::server::harness::{self, Weir, ask, bare, chat};

fn body(model: &str, more: &Value) -> Vec<u8> {
    let mut body = json!({"model": model, "messages": [{"role": "user", "content": "hello"}]});
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more.clone());
    }
    body.to_string().into_bytes()
}

async fn weir(store: &Store, change: impl FnOnce(&mut Config)) -> (Server, Weir) {
    let upstream = Server::start(Options::default()).await.expect("a free port");
    let weir = harness::start_with(store.clone(), &upstream.addr.to_string(), change).await;
    (upstream, weir)
}

/// Returns the answer's rows by model.
async fn told(weir: &Weir, credential: &str, query: &str) -> Value {
    let headers = format!("authorization: Bearer {credential}\r\n");
    let answer = ask(weir.address, bare("GET", &format!("/weir/v1/usage{query}"), &headers)).await;
    assert_eq!(answer.status(), 200, "{answer:?}");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    serde_json::from_slice(&answer.body).expect("JSON")
}

#[tokio::test]
async fn days_are_those_of_the_budgets_zone() {
    // Their dates always differ: they are 26 hours apart.
    for name in ["Pacific/Kiritimati", "Etc/GMT+12"] {
        let zone = jiff::tz::TimeZone::get(name).expect("it is shipped");
        let today = || jiff::Timestamp::now().to_zoned(zone.clone()).date().to_string();
        let store = Store::in_memory().expect("there is memory");
        let (_upstream, weir) =
            weir(&store, |config| config.budgets.time_zone = zone.clone()).await;
        let before = today();
        let answer =
            ask(weir.address, chat("authorization: Bearer sk\r\n", body("gpt-4o", &json!({}))))
                .await;
        assert_eq!(answer.status(), 200);
        let rows = told(&weir, "sk", "?by=day").await;
        let day = rows["data"][0]["day"].as_str().expect("a day").to_owned();
        assert!([before, today()].contains(&day), "{name} {day}");
        let of_month = told(&weir, "sk", &format!("?month={}", &day[..7])).await;
        assert_eq!(of_month["total"]["requests"], 1, "{name}");
    }
}

#[tokio::test]
async fn a_caller_is_told_its_own_usage_and_nobody_elses() {
    let store = Store::in_memory().expect("there is memory");
    let (upstream, weir) = weir(&store, |_| {}).await;
    for (credential, model, more) in [
        ("sk-one", "gpt-4o", json!({})),
        ("sk-one", "gpt-4o", json!({"stream": true})),
        ("sk-one", "gpt-4o-mini", json!({})),
        ("sk-two", "gpt-4o", json!({})),
    ] {
        let headers = format!("authorization: Bearer {credential}\r\n");
        let answer = ask(weir.address, chat(&headers, body(model, &more))).await;
        assert_eq!(answer.status(), 200);
    }
    let seen = upstream.requests();
    let used = |of: &[usize]| -> (u64, u64) {
        let tokens = |index: &usize| (seen[*index].prompt_tokens, seen[*index].completion_tokens);
        let both = of.iter().map(tokens);
        both.fold((0, 0), |sum, (prompt, output)| {
            (sum.0 + prompt.unwrap_or(0), sum.1 + output.unwrap_or(0))
        })
    };
    let one = told(&weir, "sk-one", "?by=model").await;
    assert_eq!(one["data"].as_array().map(Vec::len), Some(2), "{one}");
    assert_eq!(one["total"]["requests"], 3);
    let row = |told: &Value, model: &str| {
        let rows = told["data"].as_array().expect("rows").clone();
        rows.into_iter().find(|row| row["model"] == model).expect("a row")
    };
    let (prompt, output) = used(&[0, 1]);
    let both = row(&one, "gpt-4o");
    assert_eq!(both["requests"], 2);
    assert_eq!(
        (&both["prompt_tokens"], &both["completion_tokens"]),
        (&json!(prompt), &json!(output))
    );
    // $2.50 and $10 per million tokens.
    let micros = 2.5 * prompt as f64 + 10.0 * output as f64;
    let told_usd: f64 = both["cost_usd"].as_str().expect("text").parse().expect("a number");
    assert!((told_usd * 1e6 - micros).abs() < 0.01, "{both} {micros}");
    let two = told(&weir, "sk-two", "").await;
    assert_eq!(two["total"]["requests"], 1);
    let nobody = ask(weir.address, bare("GET", "/weir/v1/usage", "")).await;
    nobody.assert_error(403, "credential_required");
    let wrong = bare("GET", "/weir/v1/usage?by=week", "authorization: Bearer sk-one\r\n");
    assert!(ask(weir.address, wrong).await.assert_error(400, "invalid_request").contains("model"));
    let posted = bare("POST", "/weir/v1/usage", "authorization: Bearer sk-one\r\n");
    ask(weir.address, posted).await.assert_error(405, "method_not_allowed");
}

/// Returns the output of a `weir` command on the store in this file.
fn printed(file: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments);
    isolate(&mut command);
    command.args(["--store", file]);
    let output = command.output().expect("weir starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test]
async fn the_command_tells_what_the_journal_has() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let store = Store::open(&path).expect("the file can be written");
    let (upstream, weir) = weir(&store, |_| {}).await;
    let headers = "authorization: Bearer sk-one\r\n";
    for more in [json!({}), json!({"stream": true})] {
        assert_eq!(ask(weir.address, chat(headers, body("gpt-4o", &more))).await.status(), 200);
    }
    let unknown = ask(weir.address, chat(headers, body("=cmd,\"x\"", &json!({})))).await;
    assert_eq!(unknown.status(), 200);
    let file = path.display().to_string();
    let table = printed(&file, &["usage"]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[0].starts_with("model") && lines[3].starts_with("total"), "{table}");
    assert!(table.contains("1 unpriced"), "{table}");
    // All amounts have four decimals and end at one column.
    let ends = |line: &&str| -> Vec<usize> {
        let amounts = line.match_indices('$').map(|(start, _)| {
            let rest = &line[start + 1..];
            let end = rest.find(' ').unwrap_or(rest.len());
            let (_, decimals) = rest[..end].split_once('.').expect("decimals");
            assert_eq!(decimals.len(), 4, "{line}");
            start + end
        });
        amounts.collect()
    };
    let columns: Vec<_> = lines[1..].iter().map(ends).collect();
    assert!(columns.iter().all(|own| own.len() == 1 && *own == columns[0]), "{table}");
    let csv = printed(&file, &["usage", "--csv", "--by", "model"]);
    assert!(csv.contains("\"'=cmd,\"\"x\"\"\",1,"), "{csv}");
    let json = printed(&file, &["usage", "--json", "--by", "day,model", "--model", "gpt-4o"]);
    let row: Value = serde_json::from_str(json.trim()).expect("one line of JSON");
    assert_eq!(row["requests"], 2);
    let requests = printed(&file, &["usage", "--requests", "--json"]);
    let rows: Vec<Value> =
        requests.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rows.len(), 3);
    let seen = upstream.requests();
    for (row, seen) in rows.iter().rev().zip(&seen) {
        assert_eq!(row["prompt_tokens"], json!(seen.prompt_tokens));
        assert_eq!(row["completion_tokens"], json!(seen.completion_tokens));
    }
    assert!(printed(&file, &["usage", "--requests", "--flagged"]).contains("unpriced"));
    let listed = printed(&file, &["usage", "--requests"]);
    let last = listed.lines().last().expect("a line").to_owned();
    let prompt: u64 = seen.iter().filter_map(|seen| seen.prompt_tokens).sum();
    assert!(last.starts_with("total ") && last.contains(&format!(" {prompt} ")), "{listed}");
    let nothing = printed(&file, &["usage", "--month", "2020-01", "--model", "x"]);
    assert!(nothing.starts_with("no requests match --month, --model\n"), "{nothing}");
    assert!(nothing.contains("has 3 in all; leave out a filter"), "{nothing}");
    let none = printed(&file, &["usage", "--month", "2020-01", "--csv"]);
    assert_eq!(none.lines().count(), 1, "{none}");

    let copy = folder.file("copy.db").display().to_string();
    assert!(printed(&file, &["backup", &copy]).contains("bytes"));
    assert_eq!(printed(&copy, &["usage"]), table);
}

/// Sends a conversation that grows, under a limit. Returns the sizes that weir reports: planned if any, else
/// sent; how many were planned, and what the store has of them all.
async fn grown(mode: Mode, path: &std::path::Path) -> (Vec<String>, usize, Totals) {
    let store = Store::open(path).expect("the file can be written");
    let (upstream, weir) = weir(&store, |config| config.context.mode = mode).await;
    let (mut messages, mut sizes, mut planned) = (Vec::new(), Vec::new(), 0);
    for turn in 0..30 {
        let text = format!("part_{turn} says {}", format!("word_{turn} ").repeat(90));
        messages.push(json!({"role": "user", "content": text}));
        let body = json!({"model": "gpt-4o", "messages": messages}).to_string();
        let headers = "authorization: Bearer sk-one\r\nx-weir-max-input-tokens: 4000\r\n";
        let answer = ask(weir.address, chat(headers, &body)).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        let of_plan = answer.header("x-weir-planned-tokens");
        assert_eq!(of_plan.is_some(), answer.header("x-weir-planned-saved-usd").is_some());
        planned += usize::from(of_plan.is_some());
        sizes.push(of_plan.or(answer.header("x-weir-sent-tokens")).expect("a size").to_owned());
        if mode == Mode::Observe {
            let seen = upstream.requests().pop().expect("it was sent");
            assert_eq!(seen.body, body.as_bytes(), "turn {turn}");
        }
        messages.push(json!({"role": "assistant", "content": format!("I read part {turn}.")}));
    }
    let usage = store.usage(UsageQuery::default()).await.expect("it can be read");
    (sizes, planned, usage[0].totals)
}

#[tokio::test]
async fn a_plan_that_is_only_observed_is_stated_apart_from_what_was_saved() {
    let folder = Folder::new();
    let [made, observed] = ["made.db", "observed.db"].map(|name| folder.file(name));
    let (sizes, none, compacted) = grown(Mode::Compact, &made).await;
    let (planned_sizes, planned, whole) = grown(Mode::Observe, &observed).await;
    assert_eq!(planned_sizes, sizes, "a plan has the size of what compaction sends");
    assert!(none == 0 && planned > 10, "{planned}");
    assert_eq!((whole.saved_nano_usd, compacted.planned_saved_nano_usd), (0, 0));
    assert_eq!(whole.received_tokens, whole.sent_tokens);
    let real = i64::try_from(whole.cost_nano_usd).expect("it is small")
        - i64::try_from(compacted.cost_nano_usd).expect("it is small");
    let plan = whole.planned_saved_nano_usd;
    assert!((plan - real).abs() < real / 4, "{plan} planned, {real} saved");
    let [made, observed] = [made, observed].map(|path| path.display().to_string());
    assert!(!printed(&made, &["usage"]).contains("planned"));
    let table = printed(&observed, &["usage"]);
    assert!(table.contains("planned savings $0."), "{table}");
    let json = printed(&observed, &["usage", "--json", "--by", "conversation"]);
    let row: Value = serde_json::from_str(json.trim()).expect("one line of JSON");
    assert_eq!((&row["saved_usd"], row["planned_saved_usd"] != "0.00"), (&json!("0.00"), true));
}

#[test]
fn a_store_without_requests_says_what_to_do() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    drop(Store::open(&path).expect("the file can be written"));
    let file = path.display().to_string();
    for arguments in [&["usage"][..], &["usage", "--requests"]] {
        let said = printed(&file, arguments);
        assert!(said.starts_with(&format!("no requests yet in {file}\n")), "{said}");
        assert!(said.contains("Start `weir serve`"), "{said}");
    }
}

#[test]
fn a_store_that_is_not_there_is_not_made() {
    let folder = Folder::new();
    let file = folder.file("nothing.db");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    isolate(command.arg("usage"));
    let output = command.arg("--store").arg(&file).output().expect("weir starts");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("there is no store at"), "{said}");
    assert!(!file.exists());
}
