//! Figures as a table of plain text.

use super::tally::{Figure, Recall, Row};

const BEFORE: [&str; 5] = ["policy", "budget", "conv", "turns", "infeas"];
const AFTER: [&str; 7] = ["valid", "over", "sent/full", "cache", "billed", "cuts", "cuts/¼B"];

/// The rows under a head, in columns as wide as they need.
pub fn table(rows: &[Row]) -> String {
    let recall = Recall::ALL.iter().map(|recall| recall.title());
    let by_source = rows.iter().any(|row| row.source.is_some());
    let mut head: Vec<String> =
        BEFORE.into_iter().chain(recall).chain(AFTER).map(str::to_owned).collect();
    if by_source {
        head.insert(2, "source".to_owned());
    }
    let mut lines = vec![head];
    for row in rows {
        let mut cells = cells(row);
        if by_source {
            cells.insert(2, row.source.clone().unwrap_or_else(|| "all".to_owned()));
        }
        lines.push(cells);
    }
    let columns = lines[0].len();
    let width = |column: usize| {
        lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let texts = if by_source { 3 } else { 2 };
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

fn cells(row: &Row) -> Vec<String> {
    let share = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
    let mut cells = vec![
        row.policy.clone(),
        row.budget.clone(),
        row.compacted.to_string(),
        row.turns.to_string(),
        row.infeasible.to_string(),
    ];
    cells.extend(row.recall().map(|figure: Figure| share(figure.value)));
    cells.extend([row.valid, row.over].map(share));
    cells.extend([row.sent_per_full, row.cache_hit, row.billed_per_none].map(share));
    cells.push(row.cuts.to_string());
    cells.push(row.cuts_per_quarter.map_or("-".to_owned(), |value| format!("{value:.2}")));
    cells
}
