//! `weir models learned`: lists the limits and ratios that weir has learned of models, their
//! sources and expiry. `weir models forget` removes limits.

use super::colours::Colours;
use super::moments::moment;
use super::store_path::StoreArgs;
use super::table::aligned;
use crate::proxy::upstreams::learned::{self, LimitsRow, RatioRow};
use crate::proxy::upstreams::learned_store::Stored;
use weir_store::Store;

/// Maximum number of rows of each kind.
const MAX_ROWS: usize = 10_000;

const EXAMPLES: &str = "\
Examples:
  weir models learned
      windows and token ratios learned from upstreams' answers
  weir models learned --json";

/// Lists facts about models learned from upstreams' answers
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(super) struct LearnedArgs {
    /// Prints JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Runs `weir models learned`.
pub(super) fn run(args: &LearnedArgs) -> Result<(), String> {
    let store = args.store.existing()?;
    super::print(&super::block_on(listing(&store, args.json))?)
}

/// Removes limits that were learned from upstreams' refusals
///
/// A weir that serves from the same store uses the configured limits again within a second.
#[derive(Debug, clap::Args)]
pub(super) struct ForgetArgs {
    /// The model, as `weir models learned` shows it
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    name: Option<String>,
    /// All models
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Runs `weir models forget`.
pub(super) fn forget(args: &ForgetArgs) -> Result<(), String> {
    let store = args.store.existing()?;
    super::print(&super::block_on(forgotten(&store, args.name.as_deref()))?)
}

/// Removes the limits of the model `name`, or of all models, and lists them.
async fn forgotten(store: &Store, name: Option<&str>) -> Result<String, String> {
    let is_meant = |model: &str| name.is_none_or(|name| name == model);
    let mut models = learned::forget_limits(store, is_meant, MAX_ROWS)
        .await
        .map_err(|error| format!("the store cannot be written: {error}"))?;
    models.sort_unstable();
    match (models.as_slice(), name) {
        ([], Some(name)) => Err(format!(
            "no limit was learned of a model called {name}; `weir models learned` lists them"
        )),
        ([], None) => Ok("No limits had been learned.\n".to_owned()),
        (models, _) => {
            Ok(models.iter().map(|model| format!("forgot the limit of {model}\n")).collect())
        }
    }
}

async fn listing(store: &Store, as_json: bool) -> Result<String, String> {
    let said = |error| format!("the store cannot be read: {error}");
    let limits = learned::limits_rows(store, MAX_ROWS).await.map_err(said)?;
    let ratios = learned::ratio_rows(store, MAX_ROWS).await.map_err(said)?;
    if as_json {
        return Ok(format!("{}\n", learned::rows_json(&limits, &ratios)));
    }
    if limits.is_empty() && ratios.is_empty() {
        return Ok("Nothing has been learned of any model yet.\n".to_owned());
    }
    let head = ["model", "upstream", "learned", "value", "until (UTC)", "from"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    table.extend(limits.iter().map(limits_line));
    table.extend(ratios.iter().map(ratio_line));
    Ok(Colours::of_stdout().head(&aligned(&table, 5)))
}

fn source(row: &LimitsRow) -> &'static str {
    if row.raised_ms.is_some() {
        return "a longer prompt that was accepted after a refusal";
    }
    if row.limits.is_reported { "stated in a refusal" } else { "stepping down after a refusal" }
}

fn limits_line(row: &Stored<LimitsRow>) -> Vec<String> {
    let limits = row.value.limits;
    let parts = [(limits.window_tokens, "window"), (limits.max_input_tokens, "input")];
    let shown = parts.iter().filter_map(|(tokens, what)| Some(format!("{what} {}", (*tokens)?)));
    let mut value = shown.collect::<Vec<_>>().join(", ");
    if limits.counts_output {
        value += " (output counted in)";
    }
    [
        row.model.clone(),
        row.upstream.clone(),
        "limit".to_owned(),
        value,
        moment(row.expires_ms),
        source(&row.value).to_owned(),
    ]
    .to_vec()
}

fn ratio_line(row: &Stored<RatioRow>) -> Vec<String> {
    [
        row.model.clone(),
        row.upstream.clone(),
        "ratio".to_owned(),
        format!("{:.3}{} (version {})", row.value.ratio(), digits(&row.value), row.value.version),
        moment(row.expires_ms),
        "reported prompt tokens".to_owned(),
    ]
    .to_vec()
}

/// Describes how the model counts digits, if not one by one.
fn digits(row: &RatioRow) -> &'static str {
    if row.has_digits_in_threes { ", digits by threes" } else { "" }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Learning;
    use crate::proxy::Tenant;
    use crate::proxy::upstreams::learned::Learned;
    use weir_engine::compact::{Configured, LearnedLimits};

    #[tokio::test]
    async fn learned_values_are_listed_with_their_source_and_end() {
        let store = Store::in_memory().expect("there is memory");
        let empty = listing(&store, false).await.expect("readable");
        assert_eq!(empty, "Nothing has been learned of any model yet.\n");
        let learned =
            Learned::new(Some((store.clone(), "http://up:1".into())), false, Learning::default());
        for (model, is_told) in [("one", true), ("two", false)] {
            let limits = LearnedLimits {
                window_tokens: Some(8192),
                counts_output: is_told,
                is_reported: is_told,
                ..LearnedLimits::default()
            };
            let configured = Configured { window_tokens: 128_000, max_input_tokens: None };
            learned.keep_limits(Tenant([1; 16]), model, limits, configured).await;
        }
        let text = listing(&store, false).await.expect("readable");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[1].starts_with("one") && lines[1].ends_with("stated in a refusal"), "{text}");
        assert!(lines[1].contains("http://up:1") && lines[1].contains("(output counted in)"));
        assert!(lines[2].ends_with("stepping down after a refusal"), "{text}");
        let json: Value =
            serde_json::from_str(&listing(&store, true).await.expect("readable")).expect("JSON");
        assert_eq!(json["limits"][0]["window_tokens"], 8192);
        assert_eq!(json["limits"][1]["source"], "stepped");
        assert_eq!(json["ratios"], json!([]));
        assert_eq!(
            forgotten(&store, Some("one")).await.expect("writable"),
            "forgot the limit of one\n"
        );
        let text = listing(&store, false).await.expect("readable");
        assert!(!text.contains("\none") && text.contains("\ntwo"), "{text}");
        assert!(forgotten(&store, Some("one")).await.is_err(), "it is gone");
        assert_eq!(forgotten(&store, None).await.expect("writable"), "forgot the limit of two\n");
        assert_eq!(listing(&store, false).await.expect("readable"), empty);
    }
}
