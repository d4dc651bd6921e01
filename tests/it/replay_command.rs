//! `weir replay` on the sample conversations: its output, the same on every run.

use serde_json::Value;

use crate::cli::weir;
use crate::folder::Folder;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/traces/sample.jsonl.gz");

/// Returns the output of `weir replay` on the sample, or its error text.
fn replayed(arguments: &[&str]) -> Result<String, String> {
    let output = weir(&["replay", SAMPLE]).args(arguments).output().expect("weir starts");
    let [out, error] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    match output.status.success() {
        true => {
            assert_eq!(error, "", "nothing but results, where no terminal is there");
            Ok(out)
        }
        false => Err(error),
    }
}

fn json(arguments: &[&str]) -> Vec<Value> {
    let text = replayed(arguments).expect("it runs");
    let mut value: Value = serde_json::from_str(&text).expect("JSON");
    value["runs"].take().as_array().expect("a list").clone()
}

#[test]
fn a_table_has_a_row_for_each_policy_and_budget() {
    let arguments =
        ["--policy", "default", "--policy", "none", "--budget", "40%", "--budget", "4k"];
    let table = replayed(&arguments).expect("it runs");
    let first: Vec<(&str, &str)> = table
        .lines()
        .take(5)
        .map(|line| {
            let mut cells = line.split_whitespace();
            (cells.next().unwrap_or_default(), cells.next().unwrap_or_default())
        })
        .collect();
    let rows = [("default", "40%"), ("default", "4k"), ("none", "40%"), ("none", "4k")];
    assert_eq!(first, [&[("policy", "budget")], &rows[..]].concat());
    assert_eq!(replayed(&arguments).as_ref(), Ok(&table), "the same each time");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let all = replayed(&[&arguments[..], &["--all", "--by-source"]].concat()).expect("it runs");
    for column in ["policy", "source", "infeas", "ctx/ln", "sent/full", "rewr/¼B"] {
        assert!(all.lines().next().is_some_and(|head| head.contains(column)), "{column}: {all}");
    }
}

#[test]
fn requests_of_a_log_that_extend_one_another_are_one_conversation() {
    let folder = Folder::new();
    let message = |place: usize| {
        let role = if place.is_multiple_of(2) { "user" } else { "assistant" };
        serde_json::json!({"role": role, "content": format!("{place} {}", "word ".repeat(100))})
    };
    let body = |count: usize| {
        let messages: Vec<Value> = (0..count).map(message).collect();
        serde_json::json!({"model": "gpt-4o", "messages": messages}).to_string()
    };
    let lines: Vec<String> = (0..6).map(|turn| body(2 * turn + 1)).collect();
    let file = folder.write("log.jsonl", &lines.join("\n"));
    let output = weir(&["replay", &file, "--json", "--budget", "50%"]).output();
    let report: Value = serde_json::from_slice(&output.expect("weir starts").stdout).expect("JSON");
    let total = &report["runs"][0]["total"];
    assert_eq!([&total["conversations"], &total["requests"]], [1, 6], "{total}");
}

#[test]
fn sending_everything_keeps_everything_at_full_price_and_over_budget() {
    let runs = json(&["--policy", "none", "--budget", "50%", "--json"]);
    let total = &runs[0]["total"];
    assert!(total["turns"].as_u64() > Some(20), "{total}");
    assert!(total["deep"]["cases"].as_u64() > Some(20), "{total}");
    for (figure, value) in
        [("billed_per_none", 1.0), ("sent_per_full", 1.0), ("over", 1.0), ("valid", 0.0)]
    {
        assert_eq!(total[figure], value, "{figure}");
    }
    let sources = runs[0]["sources"].as_array().expect("a list");
    for source in sources.iter().filter(|source| source["deep"]["cases"] != 0) {
        for recall in ["ref", "deep", "ctx", "ctx_line"] {
            assert_eq!(source[recall]["value"], 1.0, "{recall} of {source}");
        }
    }
}

#[test]
fn the_engine_keeps_within_budget_for_less() {
    let runs =
        json(&["--json", "--budget", "50%", "--policy", "default", "--policy", "drop_oldest"]);
    let [own, oldest] = [&runs[0]["total"], &runs[1]["total"]];
    assert_eq!((&own["turns"], &own["infeasible"]), (&oldest["turns"], &oldest["infeasible"]));
    assert_eq!(own["faults"]["over"], 0);
    assert_eq!(own["faults"]["unpaired"], 0);
    assert!(own["billed_per_none"].as_f64() < oldest["billed_per_none"].as_f64());
    assert_eq!(runs[0]["conversations"].as_array().map(Vec::len), Some(10));
}

#[test]
fn conversations_can_be_chosen() {
    for (arguments, conversations) in [
        (&["--source", "tau2"][..], 2),
        (&["--limit", "3"], 3),
        (&["--source", "tau", "--limit", "1"], 1),
    ] {
        let chosen = [arguments, &["--json", "--budget", "50%"]].concat();
        assert_eq!(json(&chosen)[0]["total"]["conversations"], conversations, "{arguments:?}");
    }
}

#[test]
fn settings_change_the_policy() {
    let sent = |low: &str| {
        let runs = json(&["--json", "--budget", "50%", "--set", low]);
        runs[0]["total"]["sent_tokens"].as_u64().expect("a number")
    };
    assert!(sent("low=0.3") < sent("low=0.9"));
}

#[test]
fn what_is_kept_and_what_is_lost_can_be_read() {
    let budget = ["--budget", "50%"];
    let shown = replayed(&[&budget[..], &["--show", "tau-airline-0-0"]].concat());
    let shown = shown.expect("it runs");
    assert!(shown.starts_with("==== tau-airline-0-0 under default at 50%: "), "{shown}");
    assert!(shown.contains("\n---- #0: system, ") && shown.contains(" left out\n"), "{shown}");
    let earlier = replayed(&[&budget[..], &["--show", "tau-airline-0-0", "--turn", "4"]].concat());
    assert!(earlier.expect("it runs").contains("at 50%: 4 messages, "));
    let lost = replayed(&["--budget", "50%", "--policy", "sticky_drop", "--lost", "3"]);
    let lost = lost.expect("it runs");
    assert_eq!(lost.lines().count(), 4, "{lost}");
    assert!(lost.lines().skip(1).all(|line| line.contains("last seen in #")), "{lost}");
}

#[test]
fn a_budget_above_every_conversation_is_told() {
    let arguments = ["--budget", "999999999999k", "--budget", "40%"];
    let table = replayed(&arguments).expect("it runs");
    let said: Vec<&str> = table.lines().filter(|line| line.starts_with("no figures")).collect();
    let begins = "no figures at 999999999999k: a conversation's last request must have a quarter \
                  more, and the longest has ";
    assert!(said.len() == 1 && said[0].starts_with(begins), "{table}");
}

#[test]
fn the_page_needs_nothing_else() {
    let path = std::env::temp_dir().join(format!("weir-replay-{}.html", std::process::id()));
    let name = path.to_str().expect("text");
    let table = replayed(&["--budget", "50%", "--policy", "none", "--html", name]);
    let page = std::fs::read_to_string(&path);
    std::fs::remove_file(&path).expect("it was written");
    assert!(table.expect("it runs").starts_with("policy"));
    let page = page.expect("it was written");
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    for outside in ["<script", "<link", "<img", "http:", "https:", "NaN", "inf"] {
        let text = page.replace("infeas", "");
        assert!(!text.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(page.matches("<svg").count() > 3 && page.matches("<circle").count() == 2);
}

#[test]
fn what_cannot_be_done_is_said() {
    let missing = weir(&["replay", "/nowhere.jsonl"]).output().expect("weir starts");
    assert_eq!(missing.status.code(), Some(1));
    let said = String::from_utf8(missing.stderr).expect("text");
    assert!(said.starts_with("weir: /nowhere.jsonl: "), "{said}");
    for (arguments, reason) in [
        (&["--set", "lwo=1"][..], "context.lwo (--set): there is no such key"),
        (&["--set", "low"], "KEY=VALUE"),
        (&["--budget", "0"], "such as 30%"),
        (&["--budget", "100%"], "such as 30%"),
        (
            &["--policy", "best"],
            "\"best\" is not a policy; the policies are \"default\", \"scored\"",
        ),
        (&["--source", "nobody"], "no conversation in the files matches"),
        (&["--show", "nobody"], "no conversation \"nobody\""),
        (&["--turn", "3"], "--show"),
    ] {
        let error = replayed(arguments).expect_err("it cannot be done");
        assert!(error.contains(reason), "{arguments:?}: {error}");
    }
}

#[test]
fn summaries_that_say_nothing_show_their_price() {
    let plain = json(&["--json", "--budget", "50%"]);
    let runs = json(&["--json", "--budget", "50%", "--summaries", "60"]);
    let [own, told] = [&runs[0]["total"], &runs[1]["total"]];
    assert_eq!((plain.len(), runs.len()), (1, 2));
    assert_eq!(own, &plain[0]["total"], "the extract is as it is without");
    assert_eq!((&own["policy"], &told["policy"]), (&"default".into(), &"default+summaries".into()));
    assert_eq!(told["faults"]["over"], 0);
    let count = |figure: &str| told["summaries"][figure].as_u64().expect("a number");
    assert!(count("used") > 0 && count("used") <= count("cuts"), "{told}");
    assert_eq!(count("answer_tokens"), 60 * count("calls"));
    assert!(count("prompt_tokens") > 100 * count("calls"), "{told}");
    let billed = |run: &Value| run["billed_tokens"].as_f64().expect("a number");
    let for_them = told["summaries"]["billed_tokens"].as_f64().expect("a number");
    let free = json(&["--json", "--budget", "50%", "--summaries", "60", "--summary-price", "0"]);
    assert!((billed(&free[1]["total"]) - (billed(told) - for_them)).abs() < 1e-6);
    let table = replayed(&["--budget", "50%", "--summaries", "60"]).expect("it runs");
    assert!(table.contains("default+summaries at 50%: "), "{table}");
    assert!(replayed(&["--summary-price", "2"]).is_err_and(|said| said.contains("--summaries")));
}

#[test]
fn recorded_requests_of_other_protocols_are_the_same_conversation() {
    let golden = |case: &str| {
        let path = format!("{}/tests/golden/{case}/request.json", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("a request");
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.concat()
    };
    let folder = Folder::new();
    let cases =
        ["coding_loop", "responses_note_behind_instructions", "messages_note_behind_system_blocks"];
    let file = folder.write("recorded.jsonl", &cases.map(golden).join("\n"));
    let replayed = |arguments: &[&str]| {
        let mut command = weir(&["replay", &file, "--json"]);
        command.args(arguments).output().expect("weir starts")
    };
    let output = replayed(&["--budget", "50%"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let conversations = report["runs"][0]["conversations"].as_array().expect("a list");
    let figures: Vec<Value> = conversations
        .iter()
        .map(|own| {
            let figures = &own["figures"];
            let names = ["turns", "sent_tokens", "full_tokens", "deep"];
            names.iter().map(|name| figures[*name].clone()).collect()
        })
        .collect();
    assert_eq!(figures.len(), 3, "{report}");
    assert!(figures[0][0].as_u64() > Some(1), "{figures:?}");
    assert_eq!((&figures[0], &figures[0]), (&figures[1], &figures[2]));
    let output = replayed(&["--protocol", "responses"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("recorded.jsonl, line 1: "), "{error}");
}
