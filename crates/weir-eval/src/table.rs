//! Figures as a plain text table.

use super::tally::{Fault, MEASURES, Recall, Row};

const BEFORE: [&str; 3] = ["conv", "turns", "infeas"];
const AFTER: [&str; 7] = ["valid", "over", "sent/full", "cache", "billed", "rewrites", "rewr/¼B"];

/// Returns the column titles, from left to right.
pub fn heads() -> impl Iterator<Item = &'static str> {
    let recall = MEASURES.into_iter().map(|(_, title, _)| title);
    BEFORE.into_iter().chain(recall).chain(AFTER)
}

/// Formats the figures of a row, in the order of [`heads`].
pub fn figures(row: &Row) -> Vec<String> {
    let share = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
    let mut cells =
        vec![row.compacted.to_string(), row.turns.to_string(), row.infeasible.to_string()];
    cells.extend(row.recall().map(|figure| share(figure.value)));
    cells.extend([row.valid, row.over].map(share));
    cells.extend([row.sent_per_full, row.cache_hit, row.billed_per_none].map(share));
    cells.push(row.cuts.to_string());
    cells.push(row.cuts_per_quarter.map_or("-".to_owned(), |value| format!("{value:.2}")));
    cells
}

/// Columns of figures of the short table.
const SHORT: [&str; 6] = ["requests", "values", "context", "sent", "bill", "rewrites"];
/// Maximum width of a name in the short table.
const NAME_WIDTH: usize = 16;
const LEGEND: &str = "\
values: those that answers used again from further back and that are still sent;
context: with the text around them; sent, bill: of sending everything.
";

/// Formats all figures of the rows under their titles, in columns as wide as they need.
pub fn table(rows: &[&Row]) -> String {
    columns(rows, heads().map(str::to_owned).collect(), |text| text.to_owned(), figures)
}

/// Formats the figures that most people want, in 80 columns, and says what they mean and which rules are broken.
pub fn short(rows: &[&Row]) -> String {
    let percent = |value: Option<f64>| {
        value.map_or("-".to_owned(), |value| format!("{:.0} %", value * 100.0))
    };
    let figures = |row: &Row| {
        let [values, context] =
            [Recall::Ref, Recall::Context].map(|of| row.recall()[of as usize].value);
        let shares = [values, context, row.sent_per_full, row.billed_per_none];
        let mut cells = vec![row.turns.to_string()];
        cells.extend(shares.map(percent));
        cells.push(row.cuts.to_string());
        cells
    };
    let text = columns(rows, SHORT.map(str::to_owned).to_vec(), clipped, figures);
    let totals = || rows.iter().filter(|row| row.source.is_none());
    let over: u64 = totals().map(|row| row.faults[Fault::Over as usize]).sum();
    let broken = totals().flat_map(|row| row.faults).sum::<u64>() - over;
    let infeasible: u64 = totals().map(|row| row.infeasible).sum();
    let mut notes = match (over, broken) {
        (0, 0) => "No request is above its budget, and none breaks a rule.".to_owned(),
        _ => format!("{over} requests are above their budget, {broken} rules are broken."),
    };
    if infeasible > 0 {
        notes += &format!(
            "\n{infeasible} more fit only by clipping, or not at all; they count for the bill alone."
        );
    }
    format!("{text}\n{LEGEND}{notes}\n--all has all figures.\n")
}

/// Shortens a name to the room that the short table has for it.
fn clipped(name: &str) -> String {
    match name.chars().count() <= NAME_WIDTH {
        true => name.to_owned(),
        false => name.chars().take(NAME_WIDTH - 1).chain(['…']).collect(),
    }
}

fn columns(
    rows: &[&Row],
    heads: Vec<String>,
    name: impl Fn(&str) -> String,
    figures: impl Fn(&Row) -> Vec<String>,
) -> String {
    let by_source = rows.iter().any(|row| row.source.is_some());
    let texts = if by_source { 3 } else { 2 };
    let mut head = vec!["policy".to_owned(), "budget".to_owned(), "source".to_owned()];
    head.truncate(texts);
    head.extend(heads);
    let mut lines = vec![head];
    for row in rows {
        let source = row.source.as_deref().unwrap_or("all");
        let mut cells = vec![name(&row.policy), row.budget.clone(), name(source)];
        cells.truncate(texts);
        cells.extend(figures(row));
        lines.push(cells);
    }
    aligned(&lines, |column| column < texts)
}

/// Aligns columns of texts to the left, others to the right.
pub fn aligned(rows: &[Vec<String>], is_text: impl Fn(usize) -> bool) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if is_text(column) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}
