//! `weir budgets` and the admin API's budgets.

use jiff::tz::TimeZone;
use serde_json::{Value, json};
use weir_store::counters::{Counters, Listed};
use weir_store::{Store, now_ms};

use super::setting::Budgeted;
use crate::cli::weir;
use crate::folder::Folder;
use crate::store::places::{Place as _, Postgres};

fn run(arguments: &[&str], store: &std::path::Path) -> (bool, String) {
    let mut command = weir(&["budgets"]);
    let output = command.args(arguments).arg("--store").arg(store).output().expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).expect("text"))
}

/// Creates a key of the team `a`.
fn a_key(arguments: &[&str], env: &[(&str, Option<&str>)]) -> String {
    let mut command = weir(&["keys", "create", "--team", "a", "--json"]);
    for (name, value) in env {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.args(arguments).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let created: Value = serde_json::from_str(&text).expect("JSON");
    created["id"].as_str().expect("an ID").to_owned()
}

#[test]
fn scopes_are_resolved_by_the_names_that_count() {
    let folder = Folder::new();
    let store = folder.file("weir.db");
    let key = |name: &str| a_key(&[name, "--store", store.to_str().expect("text")], &[]);
    let (id, _) = (key("ci"), [key("twice"), key("twice")]);
    let set = |scope: &str| run(&["set", scope, "--usd", "1", "--per", "month"], &store);
    for (scope, counted) in [
        ("key:ci", format!("key:{id}/usd/month")),
        (&format!("key:{id}"), format!("key:{id}/usd/month")),
        ("model:OpenAI/GPT-4o-Mini", "model:gpt-4o-mini/usd/month".to_owned()),
        ("model: My-Model ", "model:my-model/usd/month".to_owned()),
        ("user:*", "user:*/usd/month".to_owned()),
    ] {
        let (is_set, said) = set(scope);
        assert!(is_set && said.contains(&format!("{counted} ")), "{scope}: {said}");
    }
    for (scope, part) in [
        ("key:other", "no key has the ID or name"),
        ("key:twice", "several keys are named"),
        ("team:b", "no key has the team"),
        ("user:ada", "no key has the user"),
        ("organisation:x", "weir keys create"),
        ("model:gpt-*", "is a pattern"),
    ] {
        let (is_set, said) = set(scope);
        assert!(!is_set && said.contains(part), "{scope}: {said}");
    }
}

#[test]
fn budgets_are_set_listed_and_removed() {
    let folder = Folder::new();
    let store = folder.file("weir.db");
    assert_eq!(run(&["list"], &store).1.lines().count(), 1, "it says how to set one");
    a_key(&["ci", "--store", store.to_str().expect("text")], &[]);
    let (is_set, said) = run(&["set", "team:a", "--usd", "12.50", "--per", "month"], &store);
    assert!(is_set && said.contains("team:a/usd/month  12.50 USD  0.00 USD  12.50 USD"), "{said}");
    assert!(
        run(&["set", "key:*", "--tokens", "1_000", "--per", "24h", "--warn-at", "0"], &store).0
    );
    assert!(run(&["set", "team:a", "--usd", "13", "--per", "month"], &store).0);
    assert!(run(&["set", "all", "--usd", "9", "--per", "total"], &store).0);
    let (_, listed) = run(&["list"], &store);
    let resets = listed.lines().next().and_then(|head| head.find("RESETS")).expect("a column");
    let resets: Vec<&str> = listed.lines().skip(1).map(|line| &line[resets..]).collect();
    let [total, rolling, month] = resets[..] else { panic!("three rows: {listed}") };
    assert_eq!((total, rolling), ("never", "24h after it is spent"), "{listed}");
    assert!(month.ends_with("-01 00:00 UTC"), "{listed}");
    assert!(run(&["remove", "all/usd/total"], &store).0);
    let (_, listed) = run(&["list", "--json"], &store);
    let rows: Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!(rows[0]["budget"], "key:*/tokens/24h");
    assert_eq!((&rows[0]["limit"], &rows[0]["warn_at"]), (&json!(1000), &Value::Null));
    assert_eq!((&rows[1]["limit"], &rows[1]["warn_at"]), (&json!("13.00"), &json!(0.8)));
    assert_eq!(rows.as_array().map(Vec::len), Some(2));
    assert_eq!(
        run(&["remove", "team:a/usd/month"], &store),
        (true, "removed team:a/usd/month\n".into())
    );
    let (is_removed, said) = run(&["remove", "team:a/usd/month"], &store);
    assert!(!is_removed && said.contains("there is no budget team:a/usd/month"), "{said}");
}

#[test]
#[ignore = "needs PostgreSQL"]
fn budgets_of_a_server_are_set_listed_and_removed() {
    let postgres = Postgres::new();
    a_key(&["ci"], &[("WEIR_STORE__PATH", None), ("WEIR_STORE__URL", Some(&postgres.url()))]);
    let run = |arguments: &[&str]| {
        let mut command = weir(&["budgets"]);
        command.env_remove("WEIR_STORE__PATH").env("WEIR_STORE__URL", postgres.url());
        let output = command.args(arguments).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).expect("text"))
    };
    let (is_set, said) = run(&["set", "team:a", "--usd", "12.50", "--per", "month"]);
    assert!(is_set && said.contains("team:a/usd/month  12.50 USD  0.00 USD  12.50 USD"), "{said}");
    let (_, listed) = run(&["list", "--json"]);
    let rows: Value = serde_json::from_str(&listed).expect("JSON");
    assert_eq!((rows.as_array().map(Vec::len), &rows[0]["limit"]), (Some(1), &json!("12.50")));
    assert_eq!(run(&["remove", "team:a/usd/month"]), (true, "removed team:a/usd/month\n".into()));
    assert!(run(&["list"]).1.contains("there are no budgets"));
}

#[test]
fn what_is_no_budget_is_refused_with_what_to_write() {
    let folder = Folder::new();
    let store = folder.file("weir.db");
    for (arguments, part) in [
        (&["set", "everyone", "--usd", "1", "--per", "day"][..], "write all, organisation:NAME"),
        (&["set", "all", "--usd", "-1", "--per", "day"], "--usd"),
        (
            &["set", "all", "--usd", "1", "--per", "year"],
            "write minute, hour, day, week, month or total",
        ),
        (&["set", "all", "--per", "day"], "--usd <AMOUNT>|--tokens <N>"),
        (&["set", "all", "--usd", "1", "--tokens", "1", "--per", "day"], "cannot be used with"),
        (&["set", "all", "--usd", "99999999", "--per", "day"], "the limit exceeds"),
        (&["set", "all", "--usd", "1", "--per", "day", "--warn-at", "2"], "a share from 0 to 1"),
        (&["remove", "all"], "is not a budget"),
    ] {
        let (is_done, said) = run(arguments, &store);
        assert!(!is_done && said.contains(part), "{arguments:?}: {said}");
    }
}

#[tokio::test]
async fn another_process_sets_a_budget_for_the_next_request_on() {
    let folder = Folder::new();
    let path = folder.file("weir.db");
    let store = Store::open(&path).expect("a new file");
    let upstream = crate::server::harness::Upstream::always(crate::server::harness::FINE).await;
    let weir = crate::server::harness::start_with(store, &upstream, |_| {}).await;
    let request = super::setting::chat("authorization: Bearer k\r\n", 1, json!({}));
    let ask = || crate::server::harness::ask(weir.address, request.clone());
    assert_eq!(ask().await.status(), 200);
    let set = |limit: &str| {
        let arguments = ["set", "all", "--tokens", limit, "--per", "day"];
        assert!(run(&arguments, &path).0);
    };
    set("0");
    assert_eq!(ask().await.status(), 429);
    set("1000000");
    assert_eq!(ask().await.status(), 200);
    assert!(run(&["remove", "all/tokens/day"], &path).0);
    let answer = ask().await;
    assert_eq!((answer.status(), answer.header("x-weir-budget-left-tokens")), (200, None));
}

#[tokio::test]
async fn a_caller_sees_its_own_budgets_alone() {
    let budgeted = Budgeted::start(|_| {}).await;
    budgeted.set("team:sales/usd/day", "1").await;
    budgeted.set("team:research/usd/day", "2").await;
    budgeted.set("key:*/usd/day", "3").await;
    let scopes: Vec<Value> =
        budgeted.statuses().await.iter().map(|one| one["scope"].clone()).collect();
    assert_eq!(scopes, [json!("team:research"), json!(format!("key:{}", budgeted.key.id))]);
}

/// A budget for each shows the state of each, the nearest to its limit first; a member can be raised.
#[tokio::test]
async fn members_of_a_budget_are_listed_by_nearness() {
    let budgeted = Budgeted::start(|_| {}).await;
    let other = budgeted.weir.key("research", r#"{"user":"ben"}"#).await;
    budgeted.set("user:*/tokens/month", "10000").await;
    for _ in 0..3 {
        assert_eq!(budgeted.chat(5, json!({})).await.status(), 200);
    }
    let asked = super::setting::chat(&other.header(), 300, json!({}));
    assert_eq!(budgeted.weir.ask(asked).await.status(), 200);
    let members = async || -> Vec<(String, u64)> {
        let (_, budgets) = budgeted.weir.store.budgets().await.expect("they are read");
        let counters = Counters::in_memory(budgeted.weir.store.clone(), TimeZone::UTC);
        let listed = counters.listed(&budgeted.weir.store, budgets, now_ms()).await.expect("read");
        let each = listed.iter().map(Listed::json).find(|row| row["members"].is_array());
        let members = each.expect("one")["members"].as_array().expect("a list").clone();
        let member = |row: &Value| {
            (
                row["scope"].as_str().expect("text").to_owned(),
                row["spent"].as_u64().expect("tokens"),
            )
        };
        members.iter().map(member).collect()
    };
    let listed = members().await;
    let names: Vec<&str> = listed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["user:ben", "user:ada"], "{listed:?}");
    assert!(listed[0].1 > 300 && listed[1].1 > 0);
    budgeted.set("user:*/tokens/month", "200").await;
    let ask = || budgeted.weir.ask(super::setting::chat(&other.header(), 5, json!({})));
    assert_eq!(ask().await.status(), 429);
    budgeted.set("user:ben/tokens/month", "20000").await;
    assert_eq!(ask().await.status(), 200, "its own budget is higher");
    let names: Vec<String> = members().await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["user:ada"]);
}
