//! Text form of a report: a table with a summary under it, or one line. Plain text without colours,
//! so that it is the same in a terminal and in a file.

use super::members::{MessageRow, NoteRow, Report};
use super::preflight::Preflight;
use super::shown::{counted, first_words, percent, tokens};

/// Minimum width of a table.
const LEAST_WIDTH: usize = 60;
/// Maximum width of the tool column.
const MOST_TOOL_WIDTH: usize = 16;
const HEADS: [&str; 8] = ["#", "role", "tool", "before", "after", "fate", "why", "first words"];
/// Right-aligned columns.
const AT_THE_RIGHT: [usize; 3] = [0, 3, 4];

/// Formats the report as one line.
pub fn compact(report: &Report) -> String {
    let (window, compaction) = (&report.window, &report.compaction);
    let messages = counted(window.messages, "message");
    if report.refusal.is_some() {
        let (needed, limit) = (tokens(window.sent_tokens), tokens(window.limit_tokens));
        return format!(
            "{}: {}, {needed} tokens needed, the limit is {limit}, {messages}\n",
            model(report),
            report.action
        );
    }
    let read = if window.messages == 0 { " (no messages to read)" } else { "" };
    format!(
        "{}: {}{read}, {} → {} of {} tokens ({} %), {} left, {} gone, {} masked, {} clipped of {}, {}, {}\n",
        model(report),
        report.action,
        tokens(window.received_tokens),
        tokens(window.sent_tokens),
        tokens(window.limit_tokens),
        window.used_percent,
        tokens(report.budget.remaining_tokens),
        compaction.gone_messages,
        compaction.masked_messages,
        compaction.clipped_messages,
        messages,
        counted(compaction.compactions as usize, "compaction"),
        report.verbosity.word(),
    )
}

/// Formats the report as a table, with lines of at most `width` characters if possible.
pub fn table(report: &Report, width: usize) -> String {
    let width = width.max(LEAST_WIDTH);
    let mut text = head(report, width);
    text.push('\n');
    text.push_str(&aligned(&cells(report), &AT_THE_RIGHT, width));
    text.push('\n');
    text.push_str(&summary(report));
    text
}

/// Formats the model, the action and how full the context is.
pub(crate) fn head(report: &Report, width: usize) -> String {
    let width = width.max(LEAST_WIDTH);
    let window = &report.window;
    let (model, policy) = (model(report), &report.policy);
    let mut text = format!("{model}: {} ({}, policy {policy})\n", report.action, report.mode);
    let (sent, limit) = (tokens(window.sent_tokens), tokens(window.limit_tokens));
    let received = tokens(window.received_tokens);
    text.push_str(&match &report.refusal {
        Some(refusal) => format!("nothing is sent: {refusal}\n"),
        None => {
            let left = tokens(report.budget.remaining_tokens);
            format!(
                "{sent} of {limit} tokens are sent, {received} were received; {left} are left\n"
            )
        }
    });
    text.push_str(&bar(window.sent_tokens, window.limit_tokens, width));
    text
}

/// Returns the model's name, or says that the request has none.
pub fn model(report: &Report) -> &str {
    if report.model.is_empty() { "no model" } else { &report.model }
}

/// Draws a bar over the whole width.
fn bar(part: u64, whole: u64, width: usize) -> String {
    let label = format!(" {} %", percent(part, whole));
    let room = width.saturating_sub(label.len() + 2);
    let full = u128::from(part) * room as u128 / u128::from(whole.max(1));
    let full = usize::try_from(full).unwrap_or(usize::MAX).min(room);
    format!("[{}{}]{label}\n", "#".repeat(full), ".".repeat(room - full))
}

type Cells = [String; HEADS.len()];

/// Returns the rows under their heads, with notes in their places.
fn cells(report: &Report) -> Vec<Cells> {
    let mut rows = vec![HEADS.map(str::to_owned)];
    for message in &report.messages {
        let own = || report.notes.iter().filter(|note| note.message == message.index);
        let is_before = |note: &&NoteRow| note.place.contains("before");
        rows.extend(own().filter(is_before).map(note_cells));
        rows.push(message_cells(message));
        rows.extend(own().filter(|note| !is_before(note)).map(note_cells));
    }
    rows
}

fn message_cells(row: &MessageRow) -> Cells {
    [
        row.index.to_string(),
        row.role.word().to_owned(),
        shortened(row.tool.as_deref().unwrap_or_default(), MOST_TOOL_WIDTH),
        tokens(row.received_tokens),
        tokens(row.sent_tokens),
        row.fate.word().to_owned(),
        row.why_text.clone(),
        row.first_words.clone(),
    ]
}

fn note_cells(row: &NoteRow) -> Cells {
    let mut about = counted(row.left_out_messages, "message");
    if row.summarised_messages > 0 {
        about.push_str(&format!(", a model's summary of {}", row.summarised_messages));
    }
    [
        String::new(),
        "note".to_owned(),
        format!("note {}", row.number),
        String::new(),
        tokens(row.sent_tokens),
        "added".to_owned(),
        format!("in compaction {}, for {about}", row.compaction),
        row.first_words.clone(),
    ]
}

/// Aligns cells in columns as wide as necessary; the last one gets the rest of `width`.
pub(crate) fn aligned<const COLUMNS: usize>(
    rows: &[[String; COLUMNS]],
    at_the_right: &[usize],
    width: usize,
) -> String {
    let widths: Vec<usize> = (0..COLUMNS)
        .map(|column| rows.iter().map(|row| length(&row[column])).max().unwrap_or_default())
        .collect();
    let before: usize = widths[..COLUMNS - 1].iter().map(|own| own + 2).sum();
    let room = width.saturating_sub(before);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            if column == COLUMNS - 1 {
                line.push_str(&shortened(cell, room));
                continue;
            }
            let pad = " ".repeat(widths[column] - length(cell));
            match at_the_right.contains(&column) {
                true => line.extend([&*pad, cell, "  "]),
                false => line.extend([cell, &*pad, "  "]),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Returns `text`, shortened to `most` characters.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if length(text) <= most {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Returns the summary under the table.
fn summary(report: &Report) -> String {
    let mut lines = sizes(report);
    lines.extend(parts(report));
    let files = report.files.iter().map(|file| {
        let (sent, received) = (tokens(file.sent_tokens), tokens(file.received_tokens));
        ("file", format!("{}: {sent} of {received}", first_words(&file.path, 100)))
    });
    lines.extend(files);
    if !report.restoration_hint.is_empty() {
        lines.push(("hint", report.restoration_hint.clone()));
    }
    lines.extend(report.warnings.iter().map(|warning| ("warning", warning.text.clone())));
    lines.iter().map(|(name, said)| format!("{name:<12}{said}\n")).collect()
}

type Line = (&'static str, String);

/// Returns lines on how full the context is, and on compaction.
fn sizes(report: &Report) -> Vec<Line> {
    let (window, budget, compaction) = (&report.window, &report.budget, &report.compaction);
    let summary = if budget.needs_summary { "; the next compaction is near" } else { "" };
    let last = compaction.last_compaction.map_or(String::new(), |compaction| {
        let (before, after) = (tokens(compaction.before_tokens), tokens(compaction.after_tokens));
        format!(", the last at turn {} from {before} to {after}", compaction.turn)
    });
    let window_line = format!(
        "{}; limit {}, tools {}, {} in {}",
        tokens(window.window_tokens),
        tokens(window.limit_tokens),
        tokens(window.overhead_tokens),
        counted(window.messages, "message"),
        counted(window.turns, "turn"),
    );
    let budget_line = format!(
        "{} used of {}, {} left; history {}{summary}",
        tokens(budget.used_tokens),
        tokens(budget.limit_tokens),
        tokens(budget.remaining_tokens),
        tokens(budget.history_budget_tokens),
    );
    let compaction_line = format!(
        "{}; {} of {} ({} %), a compaction reduces to {}; {}{last}",
        if compaction.enabled { "on" } else { "off" },
        tokens(compaction.tokens),
        tokens(compaction.trigger_tokens),
        compaction.percent,
        tokens(compaction.low_tokens),
        counted(compaction.compactions as usize, "compaction"),
    );
    vec![
        ("window", window_line),
        ("budget", budget_line),
        ("compaction", compaction_line),
        ("zone", report.zone.word().to_owned()),
        ("verbosity", report.verbosity.word().to_owned()),
    ]
}

/// Returns lines with the sizes of the prompt's parts.
fn parts(report: &Report) -> Vec<Line> {
    let roles = report.roles.iter().map(|row| {
        let (sent, received) = (tokens(row.sent_tokens), tokens(row.received_tokens));
        let of = format!("{} of {}", row.sent_messages, row.received_messages);
        format!("{} {of}, {sent} of {received}", row.role.word())
    });
    let sections = report.sections.iter().filter(|row| row.received_tokens + row.sent_tokens > 0);
    let sections =
        sections.map(|row| format!("{} {}", row.section.word(), tokens(row.sent_tokens)));
    let shares = report.shares.iter().map(|row| {
        let (used, share) = (tokens(row.used_tokens), tokens(row.share_tokens));
        format!("{} {used} of {share}", row.section.word())
    });
    vec![
        ("by role", roles.collect::<Vec<_>>().join("; ")),
        ("by section", sections.collect::<Vec<_>>().join(", ")),
        ("shares", shares.collect::<Vec<_>>().join(", ")),
    ]
}

/// Formats the assessment of possible further content.
pub fn judged(preflight: &Preflight) -> String {
    let (content, room) = (tokens(preflight.content_tokens), tokens(preflight.room_tokens));
    format!(
        "{:<12}{} of {content} tokens, room {room}: {}\n",
        "content",
        preflight.category.word(),
        preflight.text
    )
}
