//! `weir reconcile`: compares the ledger with a provider's own exports of usage and cost. `weir_eval::reconcile`
//! reads and compares them. Sends nothing, and writes nothing.

use std::path::PathBuf;

use clap::Args;

use super::recordings::{self, shown};
use super::store_path::StoreArgs;
use weir_eval::reconcile::{self, Export, ModelDay};
use weir_store::Store;
use weir_store::ledger::{Column, Filter, MAX_ROWS, UsageQuery, UsageRow};

const EXAMPLES: &str = "\
Examples:
  curl -s -H \"Authorization: Bearer $OPENAI_ADMIN_KEY\" \\
    'https://api.openai.com/v1/organization/usage/completions?start_time=1796083200&group_by=model' > usage.json
  weir reconcile usage.json
  weir reconcile usage.json costs.json --provider-key key_abc --key key_0123456789ab
      with the costs, which show a price that moved; only what this API key of
      the provider's was used for, and that virtual key of weir's

Exports it understands: answers of OpenAI's APIs of usage (completions) and
costs, of Anthropic's usage report (messages) and cost report, in JSON, one
answer or several; and tables (CSV) with the same columns.

Each day, model and kind is compared: requests, prompt tokens that were new,
read from the cache and written to it, output, and cost, as far as the exports
have this kind of the model. A model's name counts without its provider and its
date.

  missing in the ledger    requests went past weir
  missing at the provider  it is not billed, or not yet; days are UTC
  twice                    one side has twice as much as the other
  price moved              the tokens agree, the cost does not
  not in these exports     no export names the model, so nothing is compared:
                           it is another provider's, or embeddings, say

The exit code is 1 if a figure does not agree, or none is compared.";

/// Compares the ledger with a provider's exports of usage and cost
///
/// Nothing is sent. Differences are listed by day, model and kind.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(super) struct ReconcileArgs {
    /// Exports of one provider
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Only lines of this API key of the provider's, by the name that its export has
    #[arg(long, value_name = "ID")]
    provider_key: Option<String>,
    /// Only what this virtual key was used for, by its ID
    #[arg(long, value_name = "ID")]
    key: Option<String>,
    /// Difference, in thousandths, up to which figures agree
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(..1000))]
    tolerance: u64,
    /// Also lists what agrees
    #[arg(long)]
    all: bool,
    /// Prints all figures as JSON, one comparison a line, costs in nano-dollars
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Runs `weir reconcile …`.
pub(super) fn run(args: &ReconcileArgs) -> Result<(), String> {
    let mut exports = Vec::new();
    for path in &args.files {
        let read = recordings::text(path)
            .and_then(|text| reconcile::read(&text, args.provider_key.as_deref()));
        exports.push(read.map_err(|error| format!("{}: {error}", shown(path)))?);
    }
    let store = args.store.existing()?;
    let ledger = super::block_on(ledger(args, &store, &exports))?;
    let models = args.store.configuration()?.models;
    let one_name = |model: &str| models.billed_name(model);
    let compared = reconcile::compare(&ledger, &exports, args.tolerance, &one_name);
    if !compared.iter().any(|own| own.verdict.is_compared()) {
        return Err(match &args.provider_key {
            Some(key) => format!(
                "no figure is compared: no line of the exports is of the key {key:?}; ask the provider for \
                 them by key (group_by=api_key_id)"
            ),
            None => "no figure is compared: the exports have no amounts; export days with usage, by model"
                .to_owned(),
        });
    }
    let text = match args.json {
        true => {
            let lines = compared.iter().map(serde_json::to_string);
            let lines: Vec<String> =
                lines.collect::<Result<_, _>>().map_err(|own| own.to_string())?;
            lines.iter().map(|line| format!("{line}\n")).collect()
        }
        false => reconcile::text(&compared, args.all),
    };
    super::print(&text)?;
    match compared.iter().filter(|own| own.verdict.differs()).count() {
        0 => Ok(()),
        differing => Err(format!("{differing} figures do not agree")),
    }
}

/// Returns the ledger's sums on the days of the exports.
async fn ledger(
    args: &ReconcileArgs,
    store: &Store,
    exports: &[Export],
) -> Result<Vec<ModelDay>, String> {
    let days = reconcile::days(exports);
    let query = UsageQuery {
        by: vec![Column::Day, Column::Model],
        from_day: Some(days.start),
        until_day: Some(days.end),
        only: Filter { key: args.key.clone(), ..Filter::default() },
        ..UsageQuery::default()
    };
    let rows =
        store.usage(query).await.map_err(|error| format!("the store cannot be read: {error}"))?;
    if rows.len() == MAX_ROWS {
        return Err(format!("the ledger has more than {MAX_ROWS} rows; export fewer days at once"));
    }
    Ok(rows.into_iter().map(counted).collect())
}

fn counted(row: UsageRow) -> ModelDay {
    let totals = &row.totals;
    let cached = totals.cached_tokens.saturating_add(totals.cache_write_tokens);
    let amounts = [
        totals.requests,
        totals.prompt_tokens.saturating_sub(cached),
        totals.cached_tokens,
        totals.cache_write_tokens,
        totals.completion_tokens,
        totals.cost_nano_usd,
    ];
    ModelDay {
        day: row.day.unwrap_or(0),
        model: row.shown(Column::Model),
        amounts: amounts.map(Some),
    }
}
