//! Usage and costs of the organization in OpenAI's form, on the admin listener: equal to the journal.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use weir_store::Store;
use weir_store::ledger::{
    Caller, Column, DAY_MS, Intent, KeyNames, RequestId, Settlement, Totals, UsageQuery,
};

use super::admin::Api;
use crate::store::journal::{complete, intent};

/// First moment of the days that the journal of this test covers.
const FIRST_MS: u64 = 20_700 * DAY_MS;
const FIRST: u64 = FIRST_MS / 1000;
const DAY: u64 = 86_400;
const USAGE: &str = "/v1/organization/usage/completions";
const COSTS: &str = "/v1/organization/costs";

/// Records a request at a moment, by team, key, user and model.
async fn record(store: &Store, number: u64, after_ms: u64, names: [&str; 4]) {
    let [team, key, user, model] = names;
    let begun_ms = FIRST_MS + after_ms;
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    let key = KeyNames {
        key: key.to_owned(),
        team: team.to_owned(),
        organisation: "acme".to_owned(),
        user: user.to_owned(),
    };
    let intent = Intent {
        id: RequestId::new(begun_ms, random),
        begun_ms,
        caller: Caller { key: Some(Arc::new(key)), ..intent(number).caller },
        model: model.to_owned(),
        ..intent(number)
    };
    let settlement = Settlement {
        prompt_tokens: Some(1000 + number),
        completion_tokens: Some(number),
        cached_tokens: Some(3 * number),
        cache_write_tokens: Some(1),
        cost_nano_usd: Some(1_000_000 * number + 1),
        ..complete()
    };
    let settled = store.settle_request(Arc::new(intent), settlement).await;
    assert_eq!(settled, Ok(true));
}

/// Fills a journal with requests of nine days.
async fn filled() -> (Store, Api) {
    let store = Store::in_memory().expect("there is memory");
    for number in 0..180 {
        let team = ["search", "docs"][number as usize % 2];
        let key = ["key_a", "key_b", "key_c"][number as usize % 3];
        let user = ["", "ann"][number as usize / 2 % 2];
        let model = ["gpt-4o", "o3"][number as usize / 3 % 2];
        let after_ms = number / 20 * DAY_MS + number % 20 * 3_000_000;
        record(&store, number, after_ms, [team, key, user, model]).await;
    }
    let api = Api::over(store.clone()).await;
    (store, api)
}

async fn page(api: &Api, path: &str, query: &str) -> Value {
    let (status, page) = api.ask("GET", &format!("{path}?{query}"), None).await;
    assert_eq!((status, &page["object"]), (200, &json!("page")), "{page}");
    page
}

/// Returns the results of all pages of a query, each with the start of its bucket.
async fn results(api: &Api, path: &str, query: &str) -> Vec<(u64, Value)> {
    let mut all = Vec::new();
    let mut next = String::new();
    let mut starts = BTreeSet::new();
    loop {
        let page = page(api, path, &format!("{query}{next}")).await;
        for bucket in page["data"].as_array().expect("buckets") {
            assert_eq!(bucket["object"], "bucket");
            let start = bucket["start_time"].as_u64().expect("a time");
            assert!(starts.insert(start), "each bucket once");
            assert!(bucket["end_time"].as_u64() > Some(start));
            for result in bucket["results"].as_array().expect("results") {
                all.push((start, result.clone()));
            }
        }
        let has_more = page["has_more"].as_bool().expect("a switch");
        match page["next_page"].as_str() {
            Some(name) => next = format!("&page={name}"),
            None => {
                assert!(!has_more);
                return all;
            }
        }
        assert!(has_more);
    }
}

fn sum(results: &[(u64, Value)], member: &str) -> u64 {
    results.iter().map(|(_, result)| result[member].as_u64().expect(member)).sum()
}

/// Returns the dollars of costs in nano-dollars.
fn nano_usd(results: &[(u64, Value)]) -> u64 {
    let amount = |(_, result): &(u64, Value)| {
        assert_eq!(result["amount"]["currency"], "usd");
        (result["amount"]["value"].as_f64().expect("dollars") * 1e9).round() as u64
    };
    results.iter().map(amount).sum()
}

async fn totals(store: &Store, only: weir_store::ledger::Filter) -> Totals {
    let query = UsageQuery { only, ..UsageQuery::default() };
    let rows = store.usage(query).await.expect("it can be read");
    rows.first().map(|row| row.totals).expect("a sum")
}

#[tokio::test]
async fn sums_equal_the_journal_in_every_width_and_group() {
    let (store, api) = filled().await;
    let expected = totals(&store, weir_store::ledger::Filter::default()).await;
    let end = FIRST + 9 * DAY;
    for query in [
        format!("start_time={FIRST}&end_time={end}"),
        format!("start_time={FIRST}&end_time={end}&limit=2"),
        format!("start_time={FIRST}&end_time={end}&bucket_width=1h&limit=168"),
        format!("start_time={FIRST}&end_time={end}&bucket_width=1m&limit=1440"),
        format!("start_time={FIRST}&end_time={end}&group_by[]=model&group_by[]=project_id"),
        format!("start_time={FIRST}&group_by=user_id&group_by=api_key_id&bucket_width=1h"),
        format!("start_time={FIRST}&group_by=batch&batch=false&limit=31"),
    ] {
        let all = results(&api, USAGE, &query).await;
        assert_eq!(sum(&all, "num_model_requests"), expected.requests, "{query}");
        assert_eq!(sum(&all, "input_tokens"), expected.prompt_tokens, "{query}");
        assert_eq!(sum(&all, "input_cached_tokens"), expected.cached_tokens, "{query}");
        assert_eq!(sum(&all, "input_cache_write_tokens"), expected.cache_write_tokens);
        assert_eq!(sum(&all, "output_tokens"), expected.completion_tokens, "{query}");
    }
    for query in
        ["", "&limit=1", "&group_by=line_item", "&group_by[]=project_id&group_by[]=api_key_id"]
    {
        let all = results(&api, COSTS, &format!("start_time={FIRST}{query}")).await;
        assert_eq!(nano_usd(&all), expected.cost_nano_usd, "{query}");
    }
}

#[tokio::test]
async fn groups_and_filters_are_those_asked_for() {
    let (store, api) = filled().await;
    let end = FIRST + 9 * DAY;
    let range = format!("start_time={FIRST}&end_time={end}&limit=31");
    let query = format!("{range}&group_by[]=model&group_by[]=project_id");
    let all = results(&api, USAGE, &query).await;
    let query =
        UsageQuery { by: vec![Column::Day, Column::Team, Column::Model], ..UsageQuery::default() };
    let rows = store.usage(query).await.expect("it can be read");
    assert_eq!(all.len(), rows.len());
    for row in rows {
        let start = row.day.expect("a day") * DAY;
        let is_own = |(own, result): &&(u64, Value)| {
            *own == start
                && result["project_id"].as_str() == row.name(Column::Team)
                && result["model"].as_str() == row.name(Column::Model)
        };
        let (_, result) = all.iter().find(is_own).expect("its result");
        assert_eq!(result["object"], "organization.usage.completions.result");
        assert_eq!(result["input_tokens"], row.totals.prompt_tokens);
        assert_eq!((&result["user_id"], &result["api_key_id"]), (&Value::Null, &Value::Null));
    }
    let only = |team: Option<&str>, key: Option<&str>| weir_store::ledger::Filter {
        team: team.map(str::to_owned),
        key: key.map(str::to_owned),
        ..Default::default()
    };
    let (search, a, b) = (
        totals(&store, only(Some("search"), None)).await,
        totals(&store, only(None, Some("key_a"))).await,
        totals(&store, only(None, Some("key_b"))).await,
    );
    for (path, filter, expected) in [
        (USAGE, "project_ids[]=search", search.requests),
        (USAGE, "project_ids=search&project_ids=none", search.requests),
        (USAGE, "api_key_ids[]=key_a&api_key_ids[]=key_b", a.requests + b.requests),
        (USAGE, "models=none", 0),
        (USAGE, "batch=true", 0),
    ] {
        let all = results(&api, path, &format!("{range}&{filter}")).await;
        assert_eq!(sum(&all, "num_model_requests"), expected, "{filter}");
    }
    let all = results(&api, COSTS, &format!("{range}&project_ids[]=search")).await;
    assert_eq!(nano_usd(&all), search.cost_nano_usd);
    let all = results(&api, COSTS, &format!("{range}&line_items=o3&group_by=line_item")).await;
    assert!(all.iter().all(|(_, result)| result["line_item"] == "o3") && !all.is_empty());
    // Requests of no user are grouped under none.
    let all = results(&api, USAGE, &format!("{range}&group_by=user_id")).await;
    let users: BTreeSet<String> =
        all.iter().map(|(_, result)| result["user_id"].to_string()).collect();
    assert_eq!(users, ["\"ann\"", "null"].map(str::to_owned).into());
}

#[tokio::test]
async fn buckets_without_requests_are_listed() {
    let (_, api) = filled().await;
    let query = format!("start_time={}&end_time={}&limit=5", FIRST - 2 * DAY, FIRST + 20 * DAY);
    let first = page(&api, USAGE, &query).await;
    let buckets = first["data"].as_array().expect("buckets");
    let results: Vec<usize> =
        buckets.iter().map(|bucket| bucket["results"].as_array().map_or(9, Vec::len)).collect();
    assert_eq!(results, [0, 0, 1, 1, 1]);
    assert_eq!(first["next_page"], format!("page_{}", FIRST + 3 * DAY));
}

#[tokio::test]
async fn mistakes_are_named_and_the_token_is_needed() {
    let (_, api) = filled().await;
    for (path, query, part) in [
        (USAGE, "", "start_time is missing"),
        (USAGE, "start_time=1&tier=x", "Unknown parameter"),
        (USAGE, "start_time=1&group_by=service_tier", "group_by must be"),
        (USAGE, "start_time=1&bucket_width=1m&limit=1441", "from 1 to 1440"),
        (COSTS, "start_time=1&bucket_width=1h", "must be 1d"),
        (COSTS, "start_time=9&end_time=8", "after start_time"),
    ] {
        let (status, answer) = api.ask("GET", &format!("{path}?{query}"), None).await;
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && said.contains(part), "{path} {query}: {answer}");
    }
    let (status, _) = api.ask("POST", COSTS, Some(json!({}))).await;
    assert_eq!(status, 405);
    let (status, _) = api.ask("GET", "/v1/organization/usage/embeddings?start_time=1", None).await;
    assert_eq!(status, 404);
    let bare = crate::server::harness::bare("GET", &format!("{COSTS}?start_time=1"), "");
    assert_eq!(crate::server::harness::ask(api.address, bare).await.status(), 401);
}
