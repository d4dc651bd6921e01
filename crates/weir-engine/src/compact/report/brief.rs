//! Short form of a report: one row per run of messages with the same treatment, the next compaction
//! and the warnings. `display` prints the full form. Plain text without colours.

use super::display::{aligned, head, shortened};
use super::members::{MessageRow, NoteRow, Report};
use super::shown::{counted, tokens};

/// Maximum number of table rows; those in the middle are left out.
const MAX_ROWS: usize = 24;
/// Number of rows kept from the start.
const FIRST_ROWS: usize = 10;
const HEADS: [&str; 6] = ["#", "role", "before", "after", "fate", "why"];
/// Right-aligned columns.
const AT_THE_RIGHT: [usize; 2] = [2, 3];

type Cells = [String; HEADS.len()];

/// Formats the short report, with table lines of at most `width` characters if possible.
pub fn brief(report: &Report, width: usize) -> String {
    let mut text = head(report, width);
    text.push('\n');
    let rows = rows(report);
    let left_out = rows.len().saturating_sub(MAX_ROWS);
    let mut shown = vec![HEADS.map(str::to_owned)];
    for (place, row) in rows.into_iter().enumerate() {
        let is_left_out = left_out > 0 && (FIRST_ROWS..=FIRST_ROWS + left_out).contains(&place);
        if !is_left_out {
            shown.push(row);
        } else if place == FIRST_ROWS {
            let about = format!("{} more rows", left_out + 1);
            shown.push(["…", &about, "", "", "", ""].map(str::to_owned));
        }
    }
    text.push_str(&aligned(&shown, &AT_THE_RIGHT, width));
    text.push('\n');
    for (name, said) in lines(report) {
        text.push_str(&format!("{name:<10}{said}\n"));
    }
    text
}

/// Returns a row for each run of messages with one fate and one reason, and for each note in its
/// place.
fn rows(report: &Report) -> Vec<Cells> {
    let mut rows = Vec::new();
    let mut run: Vec<&MessageRow> = Vec::new();
    for message in &report.messages {
        let own = || report.notes.iter().filter(|note| note.message == message.index);
        let is_before = |note: &&NoteRow| note.place.contains("before");
        let is_alike = |last: &&MessageRow| last.fate == message.fate && why(last) == why(message);
        if !run.last().is_some_and(is_alike) || own().any(|note| is_before(&note)) {
            rows.extend(run_cells(&std::mem::take(&mut run)));
        }
        rows.extend(own().filter(is_before).map(note_cells));
        run.push(message);
        let mut behind = own().filter(|note| !is_before(note)).peekable();
        if behind.peek().is_some() {
            rows.extend(run_cells(&std::mem::take(&mut run)));
            rows.extend(behind.map(note_cells));
        }
    }
    rows.extend(run_cells(&run));
    rows
}

/// Returns the reason without the conversation's size, which differs from message to message.
fn why(row: &MessageRow) -> String {
    let text = row.why.text();
    match text.split_once(" (at ").and_then(|(before, rest)| Some((before, rest.split_once(')')?)))
    {
        Some((before, (_, behind))) => format!("{before}{behind}"),
        None => text,
    }
}

fn run_cells(run: &[&MessageRow]) -> Option<Cells> {
    let (first, last) = (run.first()?, run.last()?);
    let (place, role) = match run {
        [only] => {
            let tool = only.tool.as_deref().map(|tool| format!(" {}", shortened(tool, 16)));
            (only.index.to_string(), format!("{}{}", only.role.word(), tool.unwrap_or_default()))
        }
        _ => (format!("{}-{}", first.index, last.index), counted(run.len(), "message")),
    };
    let sum = |tokens: fn(&MessageRow) -> u64| run.iter().map(|row| tokens(row)).sum::<u64>();
    Some([
        place,
        role,
        tokens(sum(|row| row.received_tokens)),
        tokens(sum(|row| row.sent_tokens)),
        first.fate.word().to_owned(),
        why(first),
    ])
}

fn note_cells(row: &NoteRow) -> Cells {
    let about = counted(row.left_out_messages, "message");
    [
        String::new(),
        format!("note {}", row.number),
        String::new(),
        tokens(row.sent_tokens),
        "added".to_owned(),
        format!("in compaction {}, for {about}", row.compaction),
    ]
}

/// Returns the lines under the table.
fn lines(report: &Report) -> Vec<(&'static str, String)> {
    let compaction = &report.compaction;
    let next = match compaction.enabled {
        false => "no compaction: it is off".to_owned(),
        true => format!(
            "compaction above {} tokens, to at most {}; now {} ({} %)",
            tokens(compaction.trigger_tokens),
            tokens(compaction.low_tokens),
            tokens(compaction.tokens),
            compaction.percent
        ),
    };
    let last = compaction.last_compaction.map(|last| {
        let (before, after) = (tokens(last.before_tokens), tokens(last.after_tokens));
        let (at, so_far) = (last.messages, compaction.compactions);
        let said =
            format!("compaction from {before} to {after} tokens at message {at}; {so_far} so far");
        ("last", said)
    });
    let warnings = report.warnings.iter().map(|warning| ("warning", warning.text.clone()));
    let mut lines = vec![("next", next)];
    lines.extend(last);
    lines.extend(warnings);
    lines
        .push(("more", "--all shows each message and tokens by role, section and file".to_owned()));
    lines
}
