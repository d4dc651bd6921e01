//! Results of a run as Markdown.

use std::fmt::Write as _;

use super::scores::{Decay, Row};

/// Columns of the first table.
const HEADS: [&str; 26] = [
    "proxy",
    "limit",
    "turns",
    "failed",
    "same",
    "valid",
    "over",
    "sent",
    "prefix",
    "hits",
    "billed",
    "deep",
    "ctx",
    "5-gram",
    "action",
    "user",
    "edits",
    "reach",
    "rules",
    "crowded",
    "second",
    "restart",
    "ms",
    "cut ms",
    "calls",
    "calls' bill",
];

/// Explanation of the columns, for the end of the page.
pub const LEGEND: &str = "\
Shares are from 0 to 1. Lower is better for failed, over, sent, billed, ms, cut ms, calls and calls' bill;
higher for the others.

- turns: requests above the limit that can be brought within it. The columns are about these, except same
  (requests within the limit), failed (both), hits, billed and calls (all requests). Valid, over and prefix are
  about those that arrived.
- failed: no request reached the upstream, or the client got an error. same: messages unchanged.
- valid: each call has its result, no result comes first, no two assistant messages in a row, no empty
  assistant message, the last message is whole. OpenAI accepts some of these forms; stricter providers do not.
- over: above the limit as sent. sent: tokens of messages, relative to sending everything.
- prefix: requests that begin with all messages of the request before. hits: input tokens from the provider's
  cache. Tools count in hits and billed.
- billed: bill relative to sending everything (1), extra calls included; above 1 costs more than that.
- deep, ctx, 5-gram, action, user, edits: items of earlier messages that can still be read.
- reach: ctx, and values that up to three rounds of calls of a recall tool return to a model that knows what is
  missing: an upper bound. The bench knows tools named recall or weir_recall that take a message number or
  words; without one, reach equals ctx.
- rules, crowded, decay: planted texts, in the planted conversations alone.
- second, restart: same bytes from a second instance, and after a restart (a few turns of every fourth
  conversation).
- ms: median of the time added to a turn; cut ms: the same, of turns that do not begin with all of the
  request before. A real model's time for extra calls is not in it.
- calls: extra model calls of the proxy. calls' bill: their part of billed.
- nothing forwards everything. oracle knows the next answer: no proxy can keep more, but its over and its
  bill are no bounds. drop-all sends the system messages and the last turn: never over.";

/// Returns the table of the rows.
pub fn table(rows: &[Row]) -> String {
    let mut text = head();
    for row in rows {
        text += &line_of(row);
    }
    text
}

/// Returns the lines above the rows.
pub fn head() -> String {
    line(HEADS.iter().map(|head| (*head).to_owned())) + &rule(HEADS.len(), 2)
}

/// Returns the line of a row.
pub fn line_of(row: &Row) -> String {
    let failed = row.answered.map(|share| 1.0 - share);
    let shares = [
        failed,
        row.unchanged,
        row.valid,
        row.over,
        row.sent_per_full,
        row.prefix,
        row.cache_hit,
        row.billed,
        row.deep,
        row.ctx,
        row.gram5,
        row.action,
        row.user,
        row.edits,
        row.reach,
        row.rules,
        row.rules_crowded,
        row.second,
        row.restarted,
    ];
    let head = [row.proxy.clone(), row.limit.clone(), row.turns.to_string()];
    let ms = |ms: Option<f64>| ms.map_or("–".to_owned(), |ms| format!("{ms:.1}"));
    let times = [ms(row.added_ms_p50), ms(row.compaction_ms_p50)];
    let tail = [row.extra.calls.to_string(), share(row.extra_billed)];
    line(head.into_iter().chain(shares.map(share)).chain(times).chain(tail))
}

/// Returns the table of planted facts and rules over growth, one row for each proxy.
pub fn decay(rows: &[(String, Vec<Decay>)]) -> String {
    let steps = rows.iter().map(|(_, decay)| decay.len()).max().unwrap_or_default();
    let kinds = ["value", "fact", "rule"];
    let heads = kinds.iter().flat_map(|kind| (1..=steps).map(move |step| format!("{kind} {step}")));
    let heads = std::iter::once("proxy".to_owned()).chain(heads).chain(["compactions".to_owned()]);
    let mut text = line(heads);
    text += &rule(steps * kinds.len() + 2, 1);
    for (proxy, decay) in rows {
        let values = decay.iter().map(|step| share(step.values.value()));
        let facts = decay.iter().map(|step| share(step.facts.value()));
        let rules = decay.iter().map(|step| share(step.rules.value()));
        let compactions: Vec<String> = decay
            .iter()
            .map(|step| step.compactions.first().map_or("–".to_owned(), u64::to_string))
            .collect();
        let cells = std::iter::once(proxy.clone()).chain(values).chain(facts).chain(rules);
        text += &line(cells.chain([compactions.join(", ")]));
    }
    text
}

fn share(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), |value| format!("{value:.3}"))
}

fn line(cells: impl Iterator<Item = String>) -> String {
    let mut text = "|".to_owned();
    for cell in cells {
        // Writing to a string does not fail.
        write!(text, " {} |", cell.replace('|', "\\|")).unwrap_or_default();
    }
    text + "\n"
}

/// Returns the line under the heads: the first `texts` columns to the left, numbers to the right.
fn rule(columns: usize, texts: usize) -> String {
    let mut text = "|".to_owned();
    for column in 0..columns {
        text += if column < texts { "---|" } else { "---:|" };
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scores::Results;
    use weir_eval::tally::Share;

    #[test]
    fn each_line_has_all_columns() {
        let row = Row::new("a|b", "50%", &Results::default(), 1.0);
        let text = table(&[row]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[2].starts_with("| a\\|b | 50% | 0 | – |"), "{}", lines[2]);
        for line in lines {
            let separators = line.replace("\\|", "").matches('|').count();
            assert_eq!(separators, HEADS.len() + 1, "{line}");
        }
        let step =
            Decay { values: Share { kept: 1, of: 2 }, compactions: vec![3], ..Decay::default() };
        let text = decay(&[("p".to_owned(), vec![step])]);
        assert_eq!(
            text,
            "| proxy | value 1 | fact 1 | rule 1 | compactions |\n|---|---:|---:|---:|---:|\n\
             | p | 0.500 | – | – | 3 |\n"
        );
    }
}
