//! `weir budgets`: sets, lists and removes budgets in the store, whether or not a weir serves from
//! it. `proxy::hold::budgets` applies them to requests.

use clap::{Args, Subcommand};

use super::colours::Colours;
use super::moments::moment;
use super::print;
use super::store_path::{self, StoreArgs};
use super::table::left_aligned;
use crate::config::Config;
use crate::proxy::hold::budgets::scope::resolve;
use weir_store::budget::{Budget, BudgetId, Measure, NanoUsd, Scope, Window};
use weir_store::counters::{BudgetStatus, Counters, Listed};
use weir_store::{Store, now_ms};

const EXAMPLES: &str = "\
Examples:
  weir budgets set all --usd 20 --per day
      all callers together spend at most 20 dollars a day
  weir budgets set team:research --usd 500 --per month --warn-at 0.9
  weir budgets set 'key:*' --tokens 2000000 --per 24h
      each key by itself, within any 24 hours
  weir budgets set model:gpt-5 --usd 50 --per week
  weir budgets list
  weir budgets remove team:research/usd/month

A request counts in every budget whose scope it matches, and is sent only if it fits into all of \
them; otherwise the caller gets 429 insufficient_quota and nothing is sent. Hours, days, weeks and \
months follow budgets.time_zone. A change counts from the next request on. Give these \
commands the same --config or --store as the weir that serves.";

/// Sets, lists and removes budgets
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(super) struct BudgetsArgs {
    #[command(subcommand)]
    command: BudgetsCommand,
    #[command(flatten)]
    store: StoreArgs,
    /// Prints JSON, in the form of the admin API
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum BudgetsCommand {
    /// Sets a budget, or replaces the one with the same scope, measure and window
    #[command(
        after_help = EXAMPLES,
        override_usage = "weir budgets set [OPTIONS] SCOPE --per WINDOW <--usd AMOUNT|--tokens N>"
    )]
    Set {
        /// all, organisation:NAME, team:NAME, user:NAME, key:NAME, model:NAME, conversation:*, agent:*
        /// or tag:*; * instead of a name is a separate budget for each
        #[arg(value_parser = Scope::parse)]
        scope: Scope,
        #[command(flatten)]
        amount: Amount,
        /// minute, hour, day, week, month, total, or a rolling window such as 24h or 30d
        #[arg(long, value_name = "WINDOW", value_parser = Window::parse)]
        per: Window,
        /// Share at which answers, the log and the webhook start to warn; 0 for never
        #[arg(long, value_name = "SHARE", default_value = "0.8", value_parser = share)]
        warn_at: u16,
    },
    /// Lists budgets: the limit, amounts spent and left, and the time of reset
    #[command(after_help = EXAMPLES)]
    List,
    /// Removes a budget
    #[command(after_help = EXAMPLES)]
    Remove {
        /// As `weir budgets list` names it, such as team:research/usd/month
        #[arg(value_parser = BudgetId::parse)]
        budget: BudgetId,
    },
}

/// Limit of a budget.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Amount {
    /// Dollars, such as 12.50
    #[arg(long, value_name = "AMOUNT", value_parser = dollars, allow_negative_numbers = true)]
    usd: Option<NanoUsd>,
    /// Tokens of prompts and answers together
    #[arg(long, value_name = "N", value_parser = whole, allow_negative_numbers = true)]
    tokens: Option<u64>,
}

fn dollars(text: &str) -> Result<NanoUsd, String> {
    NanoUsd::parse(text).ok_or_else(|| format!("write {}, such as 20 or 0.50", NanoUsd::FORM))
}

fn whole(text: &str) -> Result<u64, String> {
    text.replace('_', "").parse().map_err(|_| "write a number, such as 1_000_000".to_owned())
}

/// Parses a share from 0 to 1, in thousandths.
fn share(text: &str) -> Result<u16, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    let share = share.ok_or_else(|| "write a share from 0 to 1, such as 0.8".to_owned())?;
    // At most 1000, with no fraction left.
    Ok((share * 1000.0).round() as u16)
}

/// Runs `weir budgets …`.
pub(super) fn run(args: &BudgetsArgs) -> Result<(), String> {
    let config = args.store.configuration()?;
    let store = store_path::kept(&config)?;
    super::block_on(act(args, &config, &store))
}

async fn act(args: &BudgetsArgs, config: &Config, store: &Store) -> Result<(), String> {
    let shown = match &args.command {
        BudgetsCommand::Set { scope, amount, per, warn_at } => {
            let (measure, limit) = match amount.usd {
                Some(NanoUsd(amount)) => (Measure::NanoUsd, amount),
                None => (Measure::Tokens, amount.tokens.unwrap_or(0)),
            };
            let scope = resolve(scope.clone(), &config.models, &config.routes, store).await?;
            let id = BudgetId { scope, measure, window: *per };
            let warn_permille = Some(*warn_at).filter(|permille| *permille > 0);
            let budget = Budget { id, limit, warn_permille };
            let set = store.set_budget(budget.clone(), now_ms()).await;
            set.map_err(|error| error.to_string())?;
            vec![budget]
        }
        BudgetsCommand::List => store.budgets().await.map_err(|error| error.to_string())?.1,
        BudgetsCommand::Remove { budget } => {
            let is_removed =
                store.remove_budget(budget).await.map_err(|error| error.to_string())?;
            if !is_removed {
                return Err(format!("there is no budget {budget}; `weir budgets list` lists them"));
            }
            return print(&format!("removed {budget}\n"));
        }
    };
    let listed = listed(config, store, shown).await?;
    if args.json {
        let rows: Vec<_> = listed.iter().map(Listed::json).collect();
        return print(&(serde_json::Value::from(rows).to_string() + "\n"));
    }
    print(&table(listed))
}

/// Computes the state of budgets from the store. Only the weirs that serve know their requests in
/// flight.
async fn listed(
    config: &Config,
    store: &Store,
    budgets: Vec<Budget>,
) -> Result<Vec<Listed>, String> {
    let counters = Counters::in_memory(store.clone(), config.budgets.time_zone.clone());
    let listed = counters.listed(store, budgets, now_ms()).await;
    listed.map_err(|error| format!("the journal cannot be read: {error}"))
}

/// Describes when all or part of a budget becomes available again.
fn resets(status: &BudgetStatus) -> String {
    let window = status.budget.id.window;
    match (status.count.resets_ms, window) {
        (_, Window::Total) => "never".to_owned(),
        (Some(freed_ms), Window::Hours(_) | Window::Days(_)) => {
            format!("gradually from {} UTC on", moment(freed_ms))
        }
        (Some(freed_ms), _) => format!("{} UTC", moment(freed_ms)),
        (None, _) => format!("{window} after it is spent"),
    }
}

fn table(listed: Vec<Listed>) -> String {
    let statuses: Vec<BudgetStatus> = listed.into_iter().flat_map(Listed::all).collect();
    if statuses.is_empty() {
        return "there are no budgets; `weir budgets set --help` explains how to set one\n"
            .to_owned();
    }
    let rows = statuses.iter().map(|one| {
        let shown = |amount| one.budget.id.measure.shown(amount);
        let (spent, left) = match one.scope.is_each() {
            true => ("each by itself".to_owned(), String::new()),
            false => (shown(one.count.spent), shown(one.left())),
        };
        let resets = resets(one);
        let is_member = one.scope != one.budget.id.scope;
        let name = if is_member { format!("  {}", one.scope) } else { one.name() };
        [name, shown(one.budget.limit), spent, left, resets]
    });
    Colours::of_stdout().head(&left_aligned(["BUDGET", "LIMIT", "SPENT", "LEFT", "RESETS"], rows))
}
