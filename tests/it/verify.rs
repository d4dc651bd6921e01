//! Receipts and `weir verify`: they agree with every golden request, and a changed message, excerpt, note or
//! rule is found.

use std::path::Path;

use serde_json::{Value, json};
use weir_engine::compact::receipt::{Fate, ProblemKind, Receipt, check};
use weir_engine::wire::Protocol;

use crate::cli::weir;
use crate::folder::Folder;
use crate::server::harness::{FINE, Upstream, ask, bare, start};
use crate::store::originals::{self, ALICE};

/// Golden cases whose notes are no excerpts: extracts of actions and requests, a line each.
const EXTRACTS: &str = "extract_";

/// Returns the golden requests with the bodies that are sent for them, by name.
fn golden() -> Vec<(String, String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the golden cases") {
        let path = entry.expect("a case").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let read = |file: &str| std::fs::read_to_string(path.join(file));
        if let (Ok(request), Ok(sent)) = (read("request.json"), read("expected.json")) {
            cases.push((name, request, sent));
        }
    }
    cases.sort();
    cases
}

#[test]
fn receipts_agree_with_every_golden_request() {
    let mut excerpts = 0;
    for (name, request, sent) in golden() {
        let protocol = Protocol::recognise(&request);
        let read = |body: &str| -> Option<Vec<String>> {
            let request = protocol.read(body.as_bytes(), usize::MAX).ok()?;
            Some(request.messages.iter().map(|raw| (*raw).to_owned()).collect())
        };
        let (Some(received), Some(sent)) = (read(&request), read(&sent)) else { continue };
        // Nothing is sent for a request that cannot fit.
        if sent.is_empty() {
            continue;
        }
        let received: Vec<&str> = received.iter().map(String::as_str).collect();
        let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
        let (receipt, unknown_lines) = Receipt::with_unknown_lines(protocol, &received, &sent);
        assert!(receipt.added.is_empty(), "{name}: {:?} of {}", receipt.added, sent.len());
        if name.starts_with(EXTRACTS) {
            continue;
        }
        assert_eq!(unknown_lines, Vec::<String>::new(), "{name}");
        let checked = check(&receipt, protocol, &received);
        assert_eq!(checked.problems, [], "{name}");
        excerpts += checked.excerpts;
        let written = serde_json::to_string(&receipt).expect("it is data");
        let read: Receipt = serde_json::from_str(&written).expect("it is a receipt");
        assert_eq!(read, receipt, "{name}");
    }
    assert!(excerpts > 100, "{excerpts} excerpts");
}

/// A long conversation with a rule in a long message.
fn conversation() -> String {
    let mut messages = vec![json!({"role": "system", "content": "You read logs."})];
    messages.push(json!({"role": "user", "content": "Which gate leaks?"}));
    let filler = "We walked along the river on a quiet day.\n".repeat(20);
    messages.push(json!({"role": "assistant", "content": "I begin."}));
    let rule = "Never open gate_17 at night.";
    messages.push(json!({"role": "user", "content": format!("{filler}{rule}\n{filler}")}));
    for round in 0..60 {
        let said = format!("Gauge g_{round} reads {} cm; it is in order.", round * 7);
        messages.push(json!({"role": "assistant", "content": said.repeat(8)}));
        messages.push(json!({"role": "user", "content": format!("Go on with gauge {round}.")}));
    }
    json!({"model": "gpt-4o", "messages": messages}).to_string()
}

/// Runs `weir`; returns its exit code and output.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = weir(arguments).output().expect("weir starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).expect("text"))
}

#[test]
fn a_receipt_is_checked_against_a_transcript() {
    let folder = Folder::new();
    let body = conversation();
    let request = folder.write("request.json", &body);
    let limit = ["--max-input-tokens", "3000"];
    let (code, receipt) = run(&[&["explain", &request, "--receipt"], &limit[..]].concat());
    assert_eq!(code, Some(0), "{receipt}");
    let made: Receipt = serde_json::from_str(&receipt).expect("a receipt");
    assert_eq!((made.messages[0].fate, made.messages[3].fate), (Fate::Kept, Fate::Excerpted));
    assert_eq!((made.noted_rules, made.lost_rules.len()), (1, 0));
    assert!(made.count(Fate::Gone) + made.count(Fate::Excerpted) > 20);
    let own = folder.write("receipt.json", &receipt);

    let (code, shown) = run(&["verify", &request, &own]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("ok") && shown.contains("rules 1 noted, 0 lost"), "{shown}");

    // The transcript goes on.
    let longer = body.replace("]}", r#",{"role":"assistant","content":"Done."}]}"#);
    let longer = folder.write("longer.json", &longer);
    assert_eq!(run(&["verify", &longer, &own]).0, Some(0));

    let changed =
        folder.write("changed.json", &body.replace("gate_17 at night", "gate_18 at night"));
    let (code, shown) = run(&["verify", &changed, &own, "--json"]);
    assert_eq!(code, Some(1), "{shown}");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown["problems"], json!([{"kind": "digest_mismatch", "message": 3}]));
    assert_eq!(shown["ok"], false);
    assert_eq!(shown["rules"], Value::Null, "rules were not checked");
    let (code, shown) = run(&["verify", &changed, &own]);
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("problems found") && shown.contains("rules not checked"), "{shown}");

    let mut added = made.clone();
    added.added.push(1);
    let added = serde_json::to_string(&added).expect("it is data");
    let (code, shown) = run(&["verify", &request, &folder.write("added.json", &added)]);
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains("sent message 1: it is neither received nor a note"), "{shown}");

    assert_eq!(run(&["verify", &request, &folder.path("none.json")]).0, Some(2));
    assert_eq!(run(&["verify", &request, &request]).0, Some(2), "a request is no receipt");
    assert_eq!(run(&["verify", &request, &own, "--none"]).0, Some(2), "there is no such option");
}

/// The client does not have the profile text, which extends its system message or is one.
#[test]
fn a_receipt_of_a_request_with_a_profile_text_is_checked() {
    let folder = Folder::new();
    let config = folder.write("weir.toml", "[context]\nprofile = \"Be brief.\"\n");
    let profile = folder.write("profile.txt", "Be brief.\n");
    let body = conversation();
    let mut bare: Value = serde_json::from_str(&body).expect("JSON");
    bare["messages"].as_array_mut().expect("a list").remove(0);
    for (name, body) in [("system", body), ("bare", bare.to_string())] {
        let request = folder.write("request.json", &body);
        let limited =
            ["explain", request.as_str(), "--config", &config, "--max-input-tokens", "3000"];
        let (code, receipt) = run(&[&limited[..], &["--receipt"]].concat());
        assert_eq!(code, Some(0), "{name}: {receipt}");
        assert!(run(&[&limited[..], &["--text"]].concat()).1.contains("Be brief."), "{name}");
        let own = folder.write("receipt.json", &receipt);
        let verify = |rest: &[&str]| run(&[&["verify", &request, &own], rest].concat());
        assert_eq!(verify(&[]).0, Some(1), "{name}: the text is not known");
        for rest in [["--config", &config], ["--profile-file", &profile]] {
            let (code, shown) = verify(&rest);
            assert_eq!(code, Some(0), "{name} {rest:?}: {shown}");
            assert!(shown.contains("rules 1 noted, 0 lost"), "{name}: {shown}");
        }
        let changed = body.replace("gate_17 at night", "gate_18 at night");
        let message = changed.split(r#"{"content""#).position(|own| own.contains("gate_18 at"));
        folder.write("request.json", &changed);
        let (code, shown) = verify(&["--config", &config, "--json"]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        let number = message.map(|place| place - 1);
        let expected = json!([{"kind": "digest_mismatch", "message": number}]);
        assert_eq!((code, &shown["problems"]), (Some(1), &expected), "{name}");
        // Receipts of bypassed requests, and those from before it was set.
        folder.write("request.json", &body);
        let plain = run(&["explain", &request, "--max-input-tokens", "3000", "--receipt"]).1;
        folder.write("receipt.json", &plain);
        assert_eq!(verify(&["--config", &config]).0, Some(0), "{name}");
    }
}

#[test]
fn a_lost_rule_is_named_if_none_may_be_lost() {
    let folder = Folder::new();
    let body = conversation();
    let request = folder.write("request.json", &body);
    let all = Protocol::Chat.read(body.as_bytes(), usize::MAX).expect("a request");
    let sent: Vec<&str> = [&all.messages[..2], &all.messages[100..]].concat();
    let receipt = Receipt::of(Protocol::Chat, &all.messages, &sent);
    let own = folder.write("receipt.json", &serde_json::to_string(&receipt).expect("a receipt"));
    let rule = "Never open gate_17 at night.";
    let hash = blake3::hash(rule.as_bytes()).to_hex();
    let digest = &hash[..32];

    let (code, shown) = run(&["verify", &request, &own]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("rules 0 noted, 1 lost") && !shown.contains(rule), "{shown}");
    let (code, shown) = run(&["verify", &request, &own, "--strict"]);
    assert_eq!(code, Some(1), "{shown}");
    assert!(shown.contains(&format!("message 3: a rule was lost ({digest}): {rule}")), "{shown}");
    let json = |arguments: &[&str]| {
        let (code, shown) = run(&[&["verify", &request, &own, "--json"], arguments].concat());
        (code, serde_json::from_str::<Value>(&shown).expect("JSON"))
    };
    let (code, shown) = json(&[]);
    assert_eq!((code, &shown["problems"], &shown["lost_rules"]), (Some(0), &json!([]), &json!(1)));
    let (code, shown) = json(&["--strict"]);
    let gone = json!({"kind": "lost_rule", "message": 3, "digest": digest, "text": rule});
    assert_eq!((code, &shown["problems"]), (Some(1), &json!([gone])));
}

/// Receipts number messages with the recalls that weir has put in; problems have the transcript's numbers.
#[test]
fn problems_have_the_numbers_of_the_transcript_behind_a_recall() {
    let folder = Folder::new();
    let body = conversation();
    let request = folder.write("request.json", &body);
    let all = Protocol::Chat.read(body.as_bytes(), usize::MAX).expect("a request").messages;
    let recall = [
        r#"{"role":"assistant","content":null,"tool_calls":[{"id":"r1","type":"function","function":{"name":"recall","arguments":"{\"messages\":[1]}"}}]}"#,
        r#"{"role":"tool","tool_call_id":"r1","content":"Which gate leaks?"}"#,
    ];
    let received = [&all[..2], &recall[..], &all[2..]].concat();
    let problems = |sent: &[&str]| {
        let receipt = Receipt::with_recalls(Protocol::Chat, &all, &received, sent);
        assert!(receipt.messages[2].recall && receipt.messages[3].recall);
        let receipt = serde_json::to_string(&receipt).expect("a receipt");
        let own = folder.write("receipt.json", &receipt);
        let (code, shown) = run(&["verify", &request, &own, "--strict", "--json"]);
        assert_eq!(code, Some(1), "{shown}");
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        let list = shown["problems"].as_array().expect("a list").clone();
        let own = |problem: &Value| (problem["kind"].clone(), problem["message"].clone());
        list.iter().map(own).collect::<Vec<(Value, Value)>>()
    };
    let end = received.len() - 1;
    let without_rule = [&received[..4], &received[100..]].concat();
    assert_eq!(problems(&without_rule), [(json!("lost_rule"), json!(3))]);
    let without_last = &received[..end];
    assert_eq!(problems(without_last), [(json!("last_left_out"), json!(all.len() - 1))]);
}

#[test]
fn a_body_as_sent_is_checked_against_the_received_one() {
    let folder = Folder::new();
    let body = conversation();
    let request = folder.write("request.json", &body);
    let (_, plan) = run(&["explain", &request, "--json", "--max-input-tokens", "3000"]);
    let plan: Value = serde_json::from_str(&plan).expect("a plan");
    let sent = plan["body"].to_string();
    assert!(sent.contains("Never open gate_17 at night."), "the rule is in the note");
    let verify = |sent: &str| {
        let sent = folder.write("sent.json", sent);
        run(&["verify", "--request", &request, "--sent", &sent])
    };
    let (code, shown) = verify(&sent);
    assert_eq!(code, Some(0), "{shown}");
    for (from, to, wanted) in [
        (
            "Never open gate_17 at night.",
            "Always open gate_17 at night.",
            "in no message: Always open",
        ),
        ("Go on with gauge 59.", "Forget gauge 59.", "the last message was not sent"),
        ("You read logs.", "You write logs.", "sent message 0"),
    ] {
        assert!(sent.contains(from), "{from}");
        let (code, shown) = verify(&sent.replace(from, to));
        assert_eq!(code, Some(1), "{from}: {shown}");
        assert!(shown.contains(wanted), "{from}: {shown}");
    }
}

#[test]
fn problems_of_a_receipt_are_found() {
    let body = conversation();
    let request = Protocol::Chat.read(body.as_bytes(), usize::MAX).expect("a request");
    let sent: Vec<&str> = [&request.messages[..2], &request.messages[100..]].concat();
    let honest = Receipt::of(Protocol::Chat, &request.messages, &sent);
    assert_eq!(honest.lost_rules.len(), 1, "the rule is in no message sent");
    assert_eq!(check(&honest, Protocol::Chat, &request.messages).problems, []);
    type Change = fn(&mut Receipt);
    let changes: [(Change, ProblemKind); 11] = [
        (|receipt| receipt.version = 9, ProblemKind::Unsupported),
        (|receipt| receipt.protocol = "messages".to_owned(), ProblemKind::Unsupported),
        (|receipt| receipt.messages.extend(receipt.messages.clone()), ProblemKind::Missing),
        (|receipt| receipt.messages[5].digest.push('0'), ProblemKind::DigestMismatch),
        (|receipt| receipt.lost_rules.clear(), ProblemKind::UnlistedLostRule),
        (
            |receipt| receipt.messages[5].excerpts.push((7, 3, "0".repeat(32))),
            ProblemKind::NotVerbatim,
        ),
        (
            |receipt| {
                let empty = "af1349b9f5f9a1a6a0404dea36dcc949".to_owned();
                receipt.messages[5].excerpts.push((0, 0, empty));
            },
            ProblemKind::NotVerbatim,
        ),
        (|receipt| receipt.messages.clear(), ProblemKind::Inconsistent),
        (|receipt| receipt.messages[5].fate = Fate::Excerpted, ProblemKind::Inconsistent),
        (|receipt| receipt.messages[5].fate = Fate::Summarised, ProblemKind::Inconsistent),
        (
            |receipt| receipt.messages.last_mut().expect("a message").fate = Fate::Gone,
            ProblemKind::LastLeftOut,
        ),
    ];
    for (change, kind) in changes {
        let mut receipt = honest.clone();
        change(&mut receipt);
        let checked = check(&receipt, Protocol::Chat, &request.messages);
        assert_eq!(checked.problems.first().map(|own| own.kind), Some(kind), "{checked:?}");
    }
}

#[tokio::test]
async fn a_running_weir_keeps_receipts_if_asked_to() {
    for is_asked in [true, false] {
        let mut upstream = Upstream::start().await;
        let weir = start(&upstream.address, |config| config.ledger.receipts = is_asked).await;
        let messages = originals::conversation(60);
        let (address, request) = (weir.address, originals::limited(ALICE, &messages));
        let asking = tokio::spawn(async move { ask(address, request).await });
        let seen = upstream.next().await;
        let sent = String::from_utf8(seen.body.clone()).expect("text");
        seen.answer(FINE);
        let answered = asking.await.expect("it is answered");
        let id = answered.header("x-weir-request-id").expect("it has an ID");
        let path = format!("/weir/v1/receipts/{id}");
        let found = ask(address, bare("GET", &path, ALICE)).await;
        if !is_asked {
            found.assert_error(404, "not_found");
            continue;
        }
        assert_eq!(found.status(), 200);
        let receipt: Receipt = serde_json::from_slice(&found.body).expect("a receipt");
        let received: Vec<&str> = messages.iter().map(String::as_str).collect();
        assert_eq!(check(&receipt, Protocol::Chat, &received).problems, []);
        assert_eq!(receipt.messages.len(), messages.len());
        let read = Protocol::Chat.read(sent.as_bytes(), usize::MAX).expect("a request");
        assert_eq!(receipt, Receipt::of(Protocol::Chat, &received, &read.messages));
        ask(address, bare("GET", &path, "authorization: Bearer bob\r\n"))
            .await
            .assert_error(404, "not_found");
        ask(address, bare("GET", &path, "")).await.assert_error(403, "credential_required");
        ask(address, bare("GET", "/weir/v1/receipts/", ALICE)).await.assert_error(404, "not_found");
        let posted = bare("POST", &path, ALICE);
        assert_eq!(ask(address, posted).await.status(), 405);
    }
}
