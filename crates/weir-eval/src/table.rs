//! Figures as a plain text table.

use super::tally::{Recall, Row};

const BEFORE: [&str; 3] = ["conv", "turns", "infeas"];
const AFTER: [&str; 7] = ["valid", "over", "sent/full", "cache", "billed", "rewrites", "rewr/¼B"];

/// Returns the column titles, from left to right.
pub fn heads() -> impl Iterator<Item = &'static str> {
    let recall = Recall::ALL.iter().map(|recall| recall.title());
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

/// Formats the rows under their titles, in columns as wide as they need.
pub fn table(rows: &[&Row]) -> String {
    let by_source = rows.iter().any(|row| row.source.is_some());
    let texts = if by_source { 3 } else { 2 };
    let mut head = vec!["policy".to_owned(), "budget".to_owned(), "source".to_owned()];
    head.truncate(texts);
    head.extend(heads().map(str::to_owned));
    let mut lines = vec![head];
    for row in rows {
        let source = row.source.as_deref().unwrap_or("all");
        let mut cells = vec![row.policy.clone(), row.budget.clone(), source.to_owned()];
        cells.truncate(texts);
        cells.extend(figures(row));
        lines.push(cells);
    }
    let width = |column: usize| {
        lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for cells in &lines {
        let mut line = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            match column < texts {
                true => line.extend([cell, &*pad, "  "]),
                false => line.extend([&*pad, cell, "  "]),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
