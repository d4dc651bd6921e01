//! Names of metrics: those of the page are those of the reference, and the dashboard, the alerts and
//! the configuration of Prometheus use no others.

use std::collections::BTreeSet;
use std::path::Path;

use saphyr::{LoadableYamlNode, Yaml};
use serde_json::Value;
use weir_store::Store;

use super::protocols::run;
use crate::budgeted::setting::set;

const REFERENCE: &str = "docs/reference/metrics.md";
const DASHBOARD: &str = "deploy/grafana/weir.json";
const ALERTS: &str = "deploy/prometheus/alerts.yml";
const CONFIGURATION: &str = "deploy/prometheus/prometheus.yml";

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

fn yaml(text: &str) -> Yaml<'_> {
    let documents = Yaml::load_from_str(text).expect("YAML");
    documents.into_iter().next().expect("a document")
}

/// Returns the names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !is_part(letter));
    let is_name = |word: &&str| word.starts_with("weir_") || word.starts_with("process_");
    words.filter(is_name).map(str::to_owned).collect()
}

/// Returns the names of all samples of a page, with their suffixes.
fn of_page(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split(['{', ' ']).next()).map(str::to_owned).collect()
}

/// Returns the page of a weir with a budget, after requests of all kinds.
async fn page() -> String {
    let store = Store::in_memory().expect("there is memory");
    set(&store, "all/usd/day", "20").await;
    set(&store, "all/tokens/day", "20000000").await;
    run(&store, |_| {}).await.1
}

/// Names without samples in that run: nothing was learned, and no summariser is configured.
fn is_rare(name: &str) -> bool {
    name.starts_with("weir_learned_") || name.starts_with("weir_summaries_")
}

#[tokio::test]
async fn the_reference_lists_every_metric_and_no_other() {
    let page = of_page(&page().await);
    let without_parts = |name: &String| {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        base.filter(|base| page.contains(&format!("{base}_bucket"))).unwrap_or(name).to_owned()
    };
    let shown: BTreeSet<String> = page.iter().map(without_parts).collect();
    let documented = names(&file(REFERENCE));
    let missing: Vec<_> = shown.iter().filter(|name| !documented.contains(*name)).collect();
    assert!(missing.is_empty(), "{REFERENCE} lacks {missing:?}");
    let made_up: Vec<_> =
        documented.iter().filter(|name| !shown.contains(*name) && !is_rare(name)).collect();
    assert!(made_up.is_empty(), "no page has {made_up:?} of {REFERENCE}");
}

/// Asserts that a page has each name of a text.
fn assert_exist(place: &str, text: &str, page: &BTreeSet<String>, documented: &BTreeSet<String>) {
    let used = names(text);
    let missing: Vec<_> = used
        .iter()
        .filter(|name| !page.contains(*name))
        .filter(|name| !(is_rare(name) && documented.contains(*name)))
        .collect();
    assert!(missing.is_empty(), "{place}: no page has {missing:?}");
    // Prometheus' own metric says whether weir is scraped at all.
    assert!(!used.is_empty() || text.starts_with("up{"), "{place} uses metrics");
}

#[tokio::test]
async fn the_dashboard_and_the_alerts_use_metrics_that_exist() {
    let (page, documented) = (of_page(&page().await), names(&file(REFERENCE)));
    let dashboard: Value = serde_json::from_str(&file(DASHBOARD)).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut ids = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64()), "{title} has an ID of its own");
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["description"].as_str().is_some_and(|text| text.len() > 20), "{title}");
        let targets = panel["targets"].as_array().expect("queries");
        assert!(!targets.is_empty(), "{title} has queries");
        for target in targets {
            assert_exist(title, target["expr"].as_str().expect("a query"), &page, &documented);
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        if let Some(query) = variable["query"]["query"].as_str().filter(|query| query.contains('('))
        {
            assert_exist("a variable", query, &page, &documented);
        }
    }
    let text = file(ALERTS);
    let alerts = yaml(&text);
    let mut count = 0;
    for group in alerts["groups"].as_sequence().expect("groups") {
        for rule in group["rules"].as_sequence().expect("rules") {
            let name = rule["alert"].as_str().expect("an alert");
            assert_exist(name, rule["expr"].as_str().expect("a query"), &page, &documented);
            for (annotation, least) in [("summary", 20), ("description", 40), ("runbook", 60)] {
                let text = rule["annotations"][annotation].as_str();
                assert!(text.is_some_and(|text| text.len() >= least), "{name} has a {annotation}");
            }
            let severity = rule["labels"]["severity"].as_str();
            assert!(matches!(severity, Some("critical" | "warning")), "{name}: {severity:?}");
            count += 1;
        }
    }
    assert!(count >= 10, "{count} alerts");
    let text = file(CONFIGURATION);
    let configuration = yaml(&text);
    let files = configuration["rule_files"].as_sequence().expect("files");
    assert_eq!(files[0].as_str(), Some("alerts.yml"));
    assert_eq!(configuration["scrape_configs"][0]["job_name"].as_str(), Some("weir"));
}
