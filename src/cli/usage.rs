//! `weir usage`: lists the usage of requests from the store, whether or not a weir serves from it.
//! The store computes the sums.

use clap::Args;
use jiff::tz::TimeZone;

use super::colours::Colours;
use super::focus;
use super::moments::moment;
use super::store_path::{StoreArgs, existing_of};
use super::table::{aligned, signed_dollars};
use crate::proxy::hold::budgets::scope;
use weir_store::Store;
use weir_store::budget::NanoUsd;
use weir_store::budget::calendar::{read_day, read_month, start_of_day_ms};
use weir_store::budget::money::grouped;
use weir_store::ledger::{
    Column, Filter, Flags, MAX_ROWS, RequestQuery, RequestRow, UsageQuery, UsageRow,
};

const EXAMPLES: &str = "\
Examples:
  weir usage
      usage per model since the first day
  weir usage --month 2026-11 --by team,model
  weir usage --since 2026-11-01 --by day --csv > november.csv
  weir usage --key key_0123456789ab --by day
  weir usage --by agent,class --since 2026-11-20
  weir usage --conversation ID --by model
  weir usage --requests 20
      the last twenty requests, one by one
  weir usage --requests 100 --flagged
      those whose usage or price is not exactly known, and why

Costs are the tokens that the provider reported at the known prices. `estimated` counts requests \
whose end was not seen, `unpriced` those of models without a known price ([prices] and \
[models.\"NAME\"] in the configuration set them). Days begin in budgets.time_zone.";

/// Shows usage and cost of requests: by key, team, user, model and day
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(super) struct UsageArgs {
    /// Columns to group by: day, organisation, team, key, user, model, tenant; conversation, agent,
    /// parent, class and tag of requests whose rows are kept
    #[arg(long, value_name = "COLUMNS", default_value = "model", value_parser = Column::read_list)]
    by: ::std::vec::Vec<Column>,
    /// The first day, such as 2026-11-01
    #[arg(long, value_name = "DAY", value_parser = day)]
    since: Option<u64>,
    /// The last day
    #[arg(long, value_name = "DAY", value_parser = day)]
    until: Option<u64>,
    /// One month, such as 2026-11
    #[arg(long, value_name = "MONTH", value_parser = month, conflicts_with_all = ["since", "until"])]
    month: Option<(u64, u64)>,
    /// Only this key's, by its ID or name
    #[arg(long)]
    key: Option<String>,
    /// Only this team's
    #[arg(long)]
    team: Option<String>,
    /// Only this organisation's
    #[arg(long)]
    organisation: Option<String>,
    /// Only this user's
    #[arg(long)]
    user: Option<String>,
    /// Only this model's
    #[arg(long)]
    model: Option<String>,
    /// Only this conversation's, by its ID
    #[arg(long, value_name = "ID")]
    conversation: Option<String>,
    /// Only this agent's, by its ID or program
    #[arg(long)]
    agent: Option<String>,
    /// Only requests of this class: main, subagent, compaction, auxiliary
    #[arg(long)]
    class: Option<String>,
    /// Only requests with this tag
    #[arg(long)]
    tag: Option<String>,
    /// Lists single requests instead, newest first
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "50")]
    requests: Option<usize>,
    /// With --requests: only those of this route, such as chat/completions; `summary` is for
    /// summaries that weir requested
    #[arg(long, requires = "requests")]
    route: Option<String>,
    /// With --requests: only flagged ones
    #[arg(long, requires = "requests")]
    flagged: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    /// Prints comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Prints a table of cost by FOCUS, in comma-separated values: a row for each day, model, team and key
    #[arg(long, conflicts_with_all = ["json", "csv", "by", "requests"])]
    focus: bool,
    #[command(flatten)]
    store: StoreArgs,
}

fn day(text: &str) -> Result<u64, String> {
    read_day(text).ok_or_else(|| "write a day such as 2026-11-01".to_owned())
}

fn month(text: &str) -> Result<(u64, u64), String> {
    read_month(text).ok_or_else(|| "write a month such as 2026-11".to_owned())
}

/// Runs `weir usage`.
pub(super) fn run(args: &UsageArgs) -> Result<(), String> {
    let config = args.store.configuration()?;
    let store = existing_of(&config)?;
    let zone = config.budgets.time_zone;
    let table = super::block_on(async {
        match args.requests {
            Some(limit) => requests(args, limit, &zone, &store).await,
            None => sums(args, &zone, &store).await,
        }
    })?;
    super::print(&table)
}

/// Returns the first day, and the first day after the last.
fn days(args: &UsageArgs) -> (Option<u64>, Option<u64>) {
    match args.month {
        Some((from, until)) => (Some(from), Some(until)),
        None => (args.since, args.until.map(|day| day + 1)),
    }
}

/// Returns the filter that the flags set.
async fn filter(args: &UsageArgs, store: &Store) -> Result<Filter, String> {
    let key = match &args.key {
        Some(name) => scope::key_id(name, store).await?.or_else(|| Some(name.clone())),
        None => None,
    };
    Ok(Filter {
        tenant: None,
        key,
        team: args.team.clone(),
        organisation: args.organisation.clone(),
        user: args.user.clone(),
        model: args.model.clone(),
        conversation: args.conversation.clone(),
        agent: args.agent.clone(),
        class: args.class.clone(),
        tag: args.tag.clone(),
    })
}

async fn sums(args: &UsageArgs, zone: &TimeZone, store: &Store) -> Result<String, String> {
    let (from_day, until_day) = days(args);
    let by = if args.focus { focus::BY.to_vec() } else { args.by.clone() };
    // The table by FOCUS names its moments in UTC.
    let zone = Some(zone.clone()).filter(|_| !args.focus);
    let query =
        UsageQuery { by, from_day, until_day, zone, only: filter(args, store).await?, limit: None };
    let total = UsageQuery { by: Vec::new(), ..query.clone() };
    let said = |error| format!("the store cannot be read: {error}");
    let rows = store.usage(query).await.map_err(said)?;
    let total = store.usage(total).await.map_err(said)?;
    if rows.len() == MAX_ROWS {
        eprintln!("weir: only the first {MAX_ROWS} rows are shown; select fewer days or columns");
    }
    if rows.is_empty()
        && let Some(note) = nothing(args, store).await?
    {
        return Ok(note);
    }
    if args.focus {
        return Ok(focus::table(&rows));
    }
    if args.json {
        let rows: Vec<_> = rows.iter().map(|row| row.json(&args.by)).collect();
        return lines_of(&rows);
    }
    let heads = args.by.iter().map(|column| column.name());
    if args.csv {
        let figures = UsageRow::default().figures().map(|(name, _)| name);
        let head = heads.chain(figures).map(str::to_owned).collect();
        let rows = rows.iter().map(|row| {
            let names = args.by.iter().map(|column| row.shown(*column));
            names.chain(row.figures().map(|(_, figure)| figure)).collect()
        });
        return Ok(csv(std::iter::once(head).chain(rows)));
    }
    let mut table = vec![heads.map(str::to_owned).chain(HEADS.map(str::to_owned)).collect()];
    table.extend(rows.iter().map(|row| line(row, &args.by, "")));
    table.extend(total.first().map(|total| line(total, &args.by, "total")));
    let table = without_empty(table, args.by.len());
    let table = Colours::of_stdout().head(&aligned(&table, args.by.len()));
    let planned = match total.first().map_or(0, |total| total.totals.planned_saved_nano_usd) {
        0 => String::new(),
        planned => {
            let planned = signed_dollars(planned.into());
            format!("planned savings {planned}, by compactions that observe mode left out\n")
        }
    };
    Ok(table + &planned)
}

/// Leaves out columns of figures that are zero or empty in all rows. The last one is text.
fn without_empty(mut table: Vec<Vec<String>>, names: usize) -> Vec<Vec<String>> {
    let is_empty = |cell: &String| ["", "0", "$0.0000"].contains(&cell.as_str());
    let columns = table.first().map_or(0, Vec::len);
    for column in (names..columns).rev() {
        if !table.iter().skip(1).all(|row| is_empty(&row[column])) {
            continue;
        }
        for row in &mut table {
            match column + 1 == columns {
                true => row[column].clear(),
                false => drop(row.remove(column)),
            }
        }
    }
    table
}

/// Columns of a table; JSON and CSV have more.
const HEADS: [&str; 8] =
    ["requests", "failed", "prompt", "cached", "output", "cost", "saved", "not exact"];

fn line(row: &UsageRow, by: &[Column], first: &str) -> Vec<String> {
    let names = by.iter().enumerate().map(|(place, column)| match (first, place) {
        ("", _) => Some(row.shown(*column)).filter(|name| !name.is_empty()).unwrap_or("-".into()),
        (first, 0) => first.to_owned(),
        _ => String::new(),
    });
    let totals = &row.totals;
    let figures = [
        grouped(totals.requests),
        grouped(totals.failed),
        grouped(totals.prompt_tokens),
        grouped(totals.cached_tokens),
        grouped(totals.completion_tokens),
        dollars(totals.cost_nano_usd),
        signed_dollars(totals.saved_nano_usd.into()),
        not_exact(row),
    ];
    names.chain(figures).collect()
}

fn dollars(nano_usd: u64) -> String {
    NanoUsd(nano_usd).shown()
}

/// Explains an empty result: to the user, or aside if programs read the result.
async fn nothing(args: &UsageArgs, store: &Store) -> Result<Option<String>, String> {
    let all = store.usage(UsageQuery::default()).await;
    let all = all.map_err(|error| format!("the store cannot be read: {error}"))?;
    let place = store.file().map_or("the store".to_owned(), |file| file.display().to_string());
    let filters = [
        ("--since", args.since.is_some()),
        ("--until", args.until.is_some()),
        ("--month", args.month.is_some()),
        ("--key", args.key.is_some()),
        ("--team", args.team.is_some()),
        ("--organisation", args.organisation.is_some()),
        ("--user", args.user.is_some()),
        ("--model", args.model.is_some()),
        ("--conversation", args.conversation.is_some()),
        ("--agent", args.agent.is_some()),
        ("--class", args.class.is_some()),
        ("--tag", args.tag.is_some()),
        ("--route", args.route.is_some()),
        ("--flagged", args.flagged),
    ];
    let given = filters.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name);
    let given = given.collect::<Vec<_>>().join(", ");
    let note = match all.first().map_or(0, |all| all.totals.requests) {
        0 => format!(
            "no requests yet in {place}\n\
             Start `weir serve`, send requests to the address that it prints, and run this\n\
             again. If weir serves with another store, name it with --store FILE.\n"
        ),
        requests => format!(
            "no requests match {given}\n\
             {place} has {requests} in all; leave out a filter to see more.\n"
        ),
    };
    if !args.json && !args.csv && !args.focus {
        return Ok(Some(note));
    }
    eprint!("weir: {note}");
    Ok(None)
}

/// Counts the requests that are estimated, and those without a price or with a partial one.
fn not_exact(row: &UsageRow) -> String {
    let totals = &row.totals;
    let parts = [
        (totals.estimated, "estimated"),
        (totals.partly_priced, "partly priced"),
        (totals.unpriced, "unpriced"),
    ];
    let said: Vec<String> = parts
        .iter()
        .filter(|(requests, _)| *requests > 0)
        .map(|(requests, what)| format!("{requests} {what}"))
        .collect();
    said.join(", ")
}

async fn requests(
    args: &UsageArgs,
    limit: usize,
    zone: &TimeZone,
    store: &Store,
) -> Result<String, String> {
    let (from_day, until_day) = days(args);
    let all = Flags::NAMES.into_iter().fold(Flags::default(), |all, (flag, _)| all | flag);
    let query = RequestQuery {
        from_ms: from_day.map(|day| start_of_day_ms(zone, day)),
        until_ms: until_day.map(|day| start_of_day_ms(zone, day)),
        only: filter(args, store).await?,
        route: args.route.clone(),
        flags: if args.flagged { all } else { Flags::default() },
        limit: Some(limit),
    };
    let rows = store
        .requests(query)
        .await
        .map_err(|error| format!("the store cannot be read: {error}"))?;
    if rows.is_empty()
        && let Some(note) = nothing(args, store).await?
    {
        return Ok(note);
    }
    let json: Vec<_> = rows.iter().map(RequestRow::json).collect();
    if args.json {
        return lines_of(&json);
    }
    if args.csv {
        let head = json.first().and_then(|row| row.as_object());
        let head: Vec<String> = head.map(|row| row.keys().cloned().collect()).unwrap_or_default();
        let rows = json.iter().map(|row| {
            let cell = |name: &String| match &row[name] {
                serde_json::Value::Null => String::new(),
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            head.iter().map(cell).collect()
        });
        return Ok(csv(std::iter::once(head.clone()).chain(rows)));
    }
    let heads = [
        "begun", "key", "model", "outcome", "action", "prompt", "cached", "output", "cost", "flags",
    ];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    table.extend(rows.iter().map(|row| {
        let ended = &row.settlement;
        let number = |figure: Option<u64>| figure.map_or("-".to_owned(), grouped);
        vec![
            moment(row.begun_ms),
            row.caller.key.as_ref().map_or("-".to_owned(), |key| key.key.clone()),
            row.model.clone(),
            ended.outcome.clone(),
            row.action.clone(),
            number(ended.prompt_tokens),
            number(ended.cached_tokens),
            number(ended.completion_tokens),
            ended.cost_nano_usd.map_or("-".to_owned(), dollars),
            ended.flags.names().collect::<Vec<_>>().join(","),
        ]
    }));
    table.push(total_of(&rows));
    Ok(Colours::of_stdout().head(&aligned(&table, 5)))
}

/// Sums up a list of requests for its last line.
fn total_of(rows: &[RequestRow]) -> Vec<String> {
    let sum = |figure: fn(&RequestRow) -> Option<u64>| -> u64 {
        rows.iter().filter_map(figure).fold(0, u64::saturating_add)
    };
    let mut line = vec![String::new(); 5];
    line[0] = "total".to_owned();
    line.extend([
        grouped(sum(|row| row.settlement.prompt_tokens)),
        grouped(sum(|row| row.settlement.cached_tokens)),
        grouped(sum(|row| row.settlement.completion_tokens)),
        dollars(sum(|row| row.settlement.cost_nano_usd)),
        String::new(),
    ]);
    line
}

/// Formats one JSON value per line.
fn lines_of(rows: &[serde_json::Value]) -> Result<String, String> {
    Ok(rows.iter().map(|row| format!("{row}\n")).collect())
}

/// Formats rows by RFC 4180, but with plain line ends. A cell that a spreadsheet would take for a
/// formula gets an apostrophe: names in it come from callers.
pub(super) fn csv(rows: impl Iterator<Item = Vec<String>>) -> String {
    let cell = |text: &String| {
        let is_formula = text.starts_with(['=', '+', '@', '\t', '\r'])
            || (text.starts_with('-') && text.parse::<f64>().is_err());
        let text = if is_formula { format!("'{text}") } else { text.clone() };
        match text.contains(['"', ',', '\n', '\r']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text,
        }
    };
    rows.map(|row| row.iter().map(cell).collect::<Vec<_>>().join(",") + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_callers_stay_cells() {
        let rows = [["a,b", "say \"x\"", "=1+1", "-0.5", "-x", "plain"]];
        let rows = rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect());
        assert_eq!(csv(rows), "\"a,b\",\"say \"\"x\"\"\",'=1+1,-0.5,'-x,plain\n");
    }
}
