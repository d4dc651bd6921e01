//! Tables of `weir top`: requests, conversations, budgets and upstreams. Draws nothing.

use super::cells::{Cell, Column, Line, Table, Tone, bar, tokens};
use super::data::{BudgetRow, Conversation, EndedRequest, Known, Running, nano_usd};
use crate::cli::table::signed_dollars;
use weir_engine::compact::report::shown::percent;

/// Widths of bars, and maximum length of IDs.
const BAR_WIDTH: usize = 12;
const WIDE_BAR_WIDTH: usize = 20;
const MAX_ID_CHARS: usize = 14;
const MAX_NAME_CHARS: usize = 28;

/// Table on the screen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum View {
    #[default]
    Requests,
    Conversations,
    Budgets,
    Upstreams,
}

impl View {
    pub(super) const ALL: [Self; 4] =
        [Self::Requests, Self::Conversations, Self::Budgets, Self::Upstreams];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Conversations => "conversations",
            Self::Budgets => "budgets",
            Self::Upstreams => "upstreams",
        }
    }

    /// Returns the view's table.
    pub(super) fn table(self, known: &Known) -> Table {
        match self {
            Self::Requests => requests(known),
            Self::Conversations => conversations(known),
            Self::Budgets => budgets(known),
            Self::Upstreams => upstreams(known),
        }
    }
}

const fn left(head: &'static str) -> Column {
    Column { head, is_right: false }
}

const fn right(head: &'static str) -> Column {
    Column { head, is_right: true }
}

/// Creates an ID, without its middle if it is long: IDs often begin alike.
fn id(text: Option<&str>) -> Cell {
    let text = text.unwrap_or("-");
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= MAX_ID_CHARS {
        return Cell::text(Tone::Plain, text);
    }
    let (start, end) = ((MAX_ID_CHARS - 1) / 2, MAX_ID_CHARS / 2);
    let start: String = characters[..start].iter().collect();
    let end: String = characters[characters.len() - end..].iter().collect();
    Cell::text(Tone::Plain, &format!("{start}…{end}"))
}

/// Creates a name, without its end if it is long.
fn name(text: Option<&str>) -> Cell {
    let text = text.unwrap_or("-");
    match text.chars().count() > MAX_NAME_CHARS {
        true => {
            let start: String = text.chars().take(MAX_NAME_CHARS - 1).collect();
            Cell::text(Tone::Plain, &format!("{start}…"))
        }
        false => Cell::text(Tone::Plain, text),
    }
}

/// Creates the bar of a prompt's share of its limit, with the share in figures.
fn fill(sent: Option<u64>, limit: Option<u64>, width: usize) -> Cell {
    match (sent, limit.filter(|limit| *limit > 0)) {
        (Some(sent), Some(limit)) => {
            let used = percent(sent, limit);
            let label = format!(" {used:>3} %");
            Cell::line(bar(sent, limit, width).and(Tone::Plain, &label), i128::from(used))
        }
        _ => Cell::figure(Tone::Dim, None, ""),
    }
}

fn cost(text: Option<&str>) -> Cell {
    let amount = nano_usd(text);
    Cell::figure(Tone::Plain, amount, &amount.map(signed_dollars).unwrap_or_default())
}

/// Formats a duration in whole seconds.
fn span(duration_ms: u64) -> String {
    match duration_ms {
        0..60_000 => format!("{} s", duration_ms / 1000),
        longer => duration(longer),
    }
}

/// Formats a duration in the unit that fits.
pub(super) fn duration(duration_ms: u64) -> String {
    match duration_ms {
        0..1000 => format!("{duration_ms} ms"),
        1000..60_000 => format!("{:.1} s", duration_ms as f64 / 1000.0),
        60_000..3_600_000 => format!("{} min {} s", duration_ms / 60_000, duration_ms / 1000 % 60),
        3_600_000..86_400_000 => {
            format!("{} h {} min", duration_ms / 3_600_000, duration_ms / 60_000 % 60)
        }
        _ => format!("{} d {} h", duration_ms / 86_400_000, duration_ms / 3_600_000 % 24),
    }
}

fn lasted(duration_ms: Option<u64>) -> Cell {
    let text = duration_ms.map(duration).unwrap_or_default();
    Cell::figure(Tone::Plain, duration_ms.map(i128::from), &text)
}

/// Formats the time of day, UTC.
pub(super) fn time_of_day(moment_ms: u64) -> String {
    let seconds = moment_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn requests(known: &Known) -> Table {
    let columns = vec![
        left("ended"),
        left("state"),
        left("model"),
        left("action"),
        left("prompt of limit"),
        right("received"),
        right("sent"),
        right("cached"),
        right("output"),
        right("cost"),
        right("time"),
        left("caller"),
        left("agent"),
        left("conversation"),
    ];
    let mut running: Vec<&Running> = known.live.running.iter().collect();
    running.sort_by_key(|own| std::cmp::Reverse(own.begun_ms));
    let mut rows: Vec<Vec<Cell>> =
        running.into_iter().map(|own| running_row(own, known.live.now_ms)).collect();
    rows.extend(known.ended.iter().rev().map(ended_row));
    Table { columns, rows, empty: "no request yet; send one to weir, and it appears here" }
}

fn running_row(own: &Running, now_ms: u64) -> Vec<Cell> {
    let none = || Cell::figure(Tone::Dim, None, "");
    let caller = own.team.as_deref().or(own.key.as_deref());
    vec![
        Cell::figure(Tone::Accent, Some(i128::MAX), "running"),
        Cell::text(Tone::Accent, "…"),
        name(own.model.as_deref().or(Some(&own.route))),
        Cell::text(Tone::Dim, "-"),
        none(),
        Cell::tokens(own.received_tokens),
        Cell::tokens(own.sent_tokens),
        none(),
        none(),
        none(),
        lasted(Some(now_ms.saturating_sub(own.begun_ms))),
        name(caller),
        id(own.agent.as_deref()),
        id(own.conversation.as_deref()),
    ]
}

fn ended_row(own: &EndedRequest) -> Vec<Cell> {
    let action = own.action.as_deref().unwrap_or("-");
    let action_tone = if matches!(action, "pass" | "-") { Tone::Dim } else { Tone::Accent };
    let cached = own.cached_tokens.zip(own.prompt_tokens.filter(|prompt| *prompt > 0));
    let cached = cached.map(|(cached, prompt)| percent(cached, prompt));
    let shown = cached.map(|cached| format!("{cached} %")).unwrap_or_default();
    let caller = own.team.as_deref().or(own.key.as_deref());
    vec![
        Cell::figure(Tone::Dim, Some(i128::from(own.ended_ms)), &time_of_day(own.ended_ms)),
        state(own),
        name(own.model.as_deref().or(Some(&own.route))),
        Cell::text(action_tone, action),
        fill(own.sent_tokens, own.limit_tokens, BAR_WIDTH),
        Cell::tokens(own.received_tokens),
        Cell::tokens(own.sent_tokens),
        Cell::figure(Tone::Plain, cached.map(i128::from), &shown),
        Cell::tokens(own.completion_tokens),
        cost(own.cost_usd.as_deref()),
        lasted(Some(own.duration_ms)),
        name(caller),
        id(own.agent.as_deref()),
        id(own.conversation.as_deref()),
    ]
}

/// Creates the status, with the error or outcome if it is no plain success.
fn state(own: &EndedRequest) -> Cell {
    let status = own.status.map_or_else(|| "---".to_owned(), |status| status.to_string());
    let tone = match own.status {
        Some(200..400) if !own.is_failed() => Tone::Good,
        Some(200..500) => Tone::Near,
        _ => Tone::Full,
    };
    let outcome = Some(own.outcome.as_str()).filter(|outcome| *outcome != "complete");
    match own.error.as_deref().or(outcome) {
        Some(said) => Cell::text(tone, &format!("{status} {said:.24}")),
        None => Cell::text(tone, &status),
    }
}

fn conversations(known: &Known) -> Table {
    let columns = vec![
        left("conversation"),
        left("agent"),
        left("model"),
        left("prompt of limit"),
        right("received"),
        right("sent"),
        right("limit"),
        right("requests"),
        right("shortened"),
        right("cached"),
        right("cost"),
        right("last"),
    ];
    let rows = known.conversations();
    let rows = rows.iter().map(|own| conversation_row(own, known.live.now_ms));
    let empty = "no request has named its conversation yet; agents do, and others with the header \
                 x-conversation-id";
    Table { columns, rows: rows.collect(), empty }
}

fn conversation_row(own: &Conversation, now_ms: u64) -> Vec<Cell> {
    let count = |number: u64| {
        let tone = if number == 0 { Tone::Dim } else { Tone::Plain };
        Cell::figure(tone, Some(i128::from(number)), &number.to_string())
    };
    let cached = (own.prompt_tokens > 0).then(|| percent(own.cached_tokens, own.prompt_tokens));
    let shown = cached.map(|cached| format!("{cached} %")).unwrap_or_default();
    let age_ms = now_ms.saturating_sub(own.last_ms);
    let last = match own.running {
        0 => {
            Cell::figure(Tone::Dim, Some(i128::from(own.last_ms)), &format!("{} ago", span(age_ms)))
        }
        _ => Cell::figure(Tone::Accent, Some(i128::MAX), "running"),
    };
    vec![
        id(Some(&own.id)),
        id(own.agent.as_deref()),
        name(own.model.as_deref()),
        fill(own.sent_tokens, own.limit_tokens, WIDE_BAR_WIDTH),
        Cell::tokens(own.received_tokens),
        Cell::tokens(own.sent_tokens),
        Cell::tokens(own.limit_tokens),
        count(own.requests),
        count(own.compacted),
        Cell::figure(Tone::Plain, cached.map(i128::from), &shown),
        Cell::figure(Tone::Plain, Some(own.cost_nano_usd), &signed_dollars(own.cost_nano_usd)),
        last,
    ]
}

fn budgets(known: &Known) -> Table {
    let columns = vec![
        left("budget"),
        left("used"),
        right("limit"),
        right("spent"),
        right("held"),
        right("left"),
        left("resets"),
    ];
    let rows = known.budgets.iter().map(budget_row).collect();
    Table { columns, rows, empty: "no budgets; `weir budgets set --help` explains how to set one" }
}

fn budget_row(own: &BudgetRow) -> Vec<Cell> {
    let used = own.used_percent();
    let full = match used {
        Some(used) => {
            let label = format!(" {used:>3} %");
            Cell::line(bar(used, 100, WIDE_BAR_WIDTH).and(Tone::Plain, &label), i128::from(used))
        }
        None => Cell::figure(Tone::Dim, Some(-1), "each by itself"),
    };
    let amount = |amount: &serde_json::Value| {
        let shown = own.shown(amount);
        let figure = (!shown.is_empty()).then_some(0);
        Cell::figure(Tone::Plain, figure, &shown)
    };
    let budget = if own.scope.ends_with(":*") || own.scope.is_empty() {
        own.budget.clone()
    } else {
        // The scope names the member of a budget for each.
        let window = own.budget.split_once('/').map_or("", |(_, window)| window);
        format!("{}/{window}", own.scope)
    };
    vec![
        Cell::text(Tone::Plain, &budget),
        full,
        amount(&own.limit),
        amount(&own.spent),
        amount(&own.held),
        amount(&own.left),
        Cell::text(Tone::Dim, own.resets_at.as_deref().unwrap_or("-")),
    ]
}

fn upstreams(known: &Known) -> Table {
    let columns =
        vec![left("upstream"), left("state"), right("failures in a row"), left("address")];
    let rows = known.upstreams().into_iter().map(|own| {
        let tone = match own.state.as_str() {
            "ready" => Tone::Good,
            "troubled" => Tone::Near,
            _ => Tone::Full,
        };
        let failures = own.failures_in_a_row;
        vec![
            Cell::text(Tone::Plain, &own.name),
            Cell::text(tone, &own.state),
            Cell::figure(Tone::Plain, Some(i128::from(failures)), &failures.to_string()),
            Cell::text(Tone::Dim, &own.origin),
        ]
    });
    Table { columns, rows: rows.collect(), empty: "weir reports no upstreams" }
}

/// Returns the figures above the tables.
pub(super) fn header(known: &Known, place: &str) -> Vec<Line> {
    let (totals, rates) = (&known.live.totals, known.rates());
    let version = known.status["version"].as_str().unwrap_or_default();
    let up = span(known.live.now_ms.saturating_sub(known.live.started_ms));
    let title = Line::new(Tone::Bold, &format!("weir {version}"))
        .and(Tone::Dim, &format!("  {place}  up {up}  {} UTC", time_of_day(known.live.now_ms)));
    let title = match known.status["mode"]["conversations"].as_str() {
        Some("observe") => title.and(Tone::Near, "  observing: nothing is compacted"),
        _ => title,
    };
    let compactions = match totals.observed {
        0 => format!("compactions {}", totals.compactions),
        observed => format!("compactions {} (and {observed} only reported)", totals.compactions),
    };
    let failed_tone = if rates.failed > 0 { Tone::Near } else { Tone::Dim };
    let refused_tone = if rates.refused > 0 { Tone::Near } else { Tone::Dim };
    let requests = Line::new(Tone::Bold, "requests ")
        .and(Tone::Plain, &format!("{} ({:.1}/s)", totals.requests, rates.requests_per_s))
        .and(Tone::Plain, &format!("   in flight {}", known.live.running.len()))
        .and(failed_tone, &format!("   failed {}", rates.failed))
        .and(refused_tone, &format!("   refused {}", rates.refused))
        .and(Tone::Dim, &format!(" of the last {}", rates.requests))
        .and(Tone::Plain, &format!("   {compactions}"));
    let removed = totals.received_tokens.saturating_sub(totals.sent_tokens);
    let removed = match percent(removed, totals.received_tokens) {
        0 => String::new(),
        percent => format!("   -{percent} %"),
    };
    let cache_hits = rates.cache_percent.map_or("-".to_owned(), |share| format!("{share} %"));
    let tokens_line = Line::new(Tone::Bold, "tokens   ")
        .and(Tone::Plain, &format!("received {}", tokens(totals.received_tokens)))
        .and(Tone::Plain, &format!("   sent {}", tokens(totals.sent_tokens)))
        .and(Tone::Good, &removed)
        .and(Tone::Plain, &format!("   {}/s", tokens(rates.sent_tokens_per_s as u64)))
        .and(Tone::Plain, &format!("   cache hits {cache_hits}"));
    let amount = |text: Option<&str>| nano_usd(text).map_or("-".to_owned(), signed_dollars);
    let planned = (totals.observed > 0)
        .then(|| format!("   planned {}", amount(totals.planned_saved_usd.as_deref())));
    let unpriced =
        (totals.unpriced > 0).then(|| format!("   {} requests without a price", totals.unpriced));
    let median = rates.median_ms.map(|own| format!("   median time {}", duration(own)));
    let money = Line::new(Tone::Bold, "money    ")
        .and(Tone::Plain, &format!("spent {}", amount(totals.cost_usd.as_deref())))
        .and(Tone::Good, &format!("   saved {}", amount(totals.saved_usd.as_deref())))
        .and(Tone::Near, &planned.unwrap_or_default())
        .and(Tone::Near, &unpriced.unwrap_or_default())
        .and(Tone::Dim, &median.unwrap_or_default());
    vec![title, requests, tokens_line, money]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (duration_ms, expected) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1849, "1.8 s"),
            (61_000, "1 min 1 s"),
            (3_600_000, "1 h 0 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(duration_ms), expected);
        }
        assert_eq!(time_of_day(45_296_789), "12:34:56");
    }
}
