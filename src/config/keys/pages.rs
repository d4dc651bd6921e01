//! Documents generated from the declared keys: the file of defaults and the reference page.

use std::fmt::Write as _;

use super::{Effect, Key, Kind, SECTIONS, Sample, Section, decimal, quoted};

/// Widths of the two documents, in characters.
const TOML_WIDTH: usize = 100;
const PAGE_WIDTH: usize = 130;

const TOML_HEAD: &str = "weir's configuration: every key with its default. Copy the keys that you \
change into your own file and pass it with --config FILE. Environment variables WEIR_SECTION__KEY \
(WEIR_SERVER__LISTEN) override the file; flags override both. Keys end in their unit; shares are \
decimals from 0 to 1. Generated from src/config/keys.";

const PAGE_HEAD: [&str; 4] = [
    "weir reads TOML from the file that `--config FILE` or `WEIR_CONFIG` names. Every key has a \
     default, and no file is needed.",
    "A flag comes before the environment, the environment before the file, and the file before \
     `OPENAI_BASE_URL` and the defaults. The variable of a key is `WEIR_SECTION__KEY`, such as \
     `WEIR_SERVER__LISTEN`. Names end in their unit. Shares are decimals from 0 to 1 with at most \
     three digits after the point. Unknown keys are errors. `weir check --config FILE` reports \
     every problem with its line. `config/default.toml` in the repository has the same keys as a \
     file to copy from.",
    "A reload applies a changed key from the next request on, except for marked keys. If a key \
     marked *compactions* changes, live conversations may be compacted elsewhere, which costs each \
     one rewrite of the provider's cache. A change of a key marked *restart* waits for a restart.",
    "This page is generated from `src/config/keys`.",
];

/// Returns the contents of `config/default.toml`.
pub fn default_toml() -> String {
    let mut text = String::new();
    comment(&mut text, TOML_HEAD);
    for section in SECTIONS.iter().filter(|section| section.sample != Sample::Nothing) {
        text.push('\n');
        comment(&mut text, section.doc);
        match section.sample {
            Sample::Defaults => {
                line(&mut text, &format!("[{}]", section.path));
                for key in section.keys.iter().copied().flatten() {
                    comment(&mut text, &joined(key.doc));
                    line(&mut text, &format!("{} = {}", key.name, key.value));
                }
            }
            Sample::Examples(header) => {
                commented(&mut text, &format!("\n{header}"));
                for key in section.keys.iter().copied().flatten() {
                    let mut own = String::new();
                    comment(&mut own, &joined(key.doc));
                    match key.value {
                        "_" => line(&mut own, &format!("# {} = \"...\"", key.name)),
                        value => line(&mut own, &format!("{} = {value}", key.name)),
                    }
                    commented(&mut text, own.trim_end());
                }
            }
            Sample::Text(sample) => commented(&mut text, &format!("\n{sample}")),
            Sample::Nothing => {}
        }
    }
    text
}

/// Returns the contents of `docs/reference/configuration.md`.
pub fn reference() -> String {
    let mut text = "# Configuration\n".to_owned();
    for paragraph in PAGE_HEAD {
        text.push('\n');
        wrap(&mut text, paragraph, "", "", PAGE_WIDTH);
    }
    for section in SECTIONS {
        let keys: Vec<&Key> = section.keys.iter().copied().flatten().collect();
        if section.doc.is_empty() && keys.is_empty() {
            continue;
        }
        let heading = match section.heading {
            "" => format!("`[{}]`", section.path),
            heading if heading.starts_with('[') => format!("`{heading}`"),
            heading => heading.to_owned(),
        };
        let _ = write!(text, "\n## {heading}\n\n");
        if !section.doc.is_empty() {
            wrap(&mut text, section.doc, "", "", PAGE_WIDTH);
            text.push_str(if keys.is_empty() { "" } else { "\n" });
        }
        for key in keys {
            wrap(&mut text, &item(section, key), "- ", "  ", PAGE_WIDTH);
        }
    }
    text
}

/// Returns the entry of a key in the reference.
fn item(section: &Section, key: &Key) -> String {
    let default = match section.sample {
        _ if matches!(key.kind, Kind::Inner(_)) => String::new(),
        Sample::Examples(_) => String::new(),
        _ if section.path.contains('*') && key.value != "false" => String::new(),
        _ => format!(", default `{}`", key.value),
    };
    let effect = match key.effect {
        Effect::NextRequest => "",
        Effect::MovesCompactions => ", *compactions*",
        Effect::Restart => ", *restart*",
    };
    format!("`{}` — {}{default}{effect}. {}", key.name, described(key.kind), joined(key.doc))
}

/// Describes the values of a key.
fn described(kind: Kind) -> String {
    match kind {
        Kind::Whole(from, super::MAX_TOKENS) => format!("integer from {from}"),
        Kind::Whole(from, to) => format!("integer from {from} to {to}"),
        Kind::Share(0, 1000) => "share".to_owned(),
        Kind::Share(from, to) if to > 1000 => {
            format!("number from {} to {}", decimal(from), decimal(to))
        }
        Kind::Share(from, to) => format!("share from {} to {}", decimal(from), decimal(to)),
        Kind::Dollars { .. } => "decimal text".to_owned(),
        Kind::Switch => "boolean".to_owned(),
        Kind::Choice(words) => {
            let words: Vec<_> = quoted(&words()).iter().map(|word| format!("`{word}`")).collect();
            let (last, others) = words.split_last().expect("a choice has words");
            format!("{} or {last}", others.join(", "))
        }
        Kind::Text(noun) | Kind::TextOrWhole(noun) | Kind::Inner(noun) => noun.to_owned(),
        Kind::List(noun) => format!("list of {noun}"),
        Kind::Table => "table".to_owned(),
        Kind::Members(members) => {
            let members = members.iter();
            let members = members.map(|(name, kind)| format!("`{name}` ({})", described(*kind)));
            format!("table of {}", members.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Joins the lines of a description.
fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// Adds a comment of TOML.
fn comment(text: &mut String, words: &str) {
    if !words.is_empty() {
        wrap(text, words, "# ", "# ", TOML_WIDTH);
    }
}

/// Adds lines as comments.
fn commented(text: &mut String, lines: &str) {
    for own in lines.split('\n') {
        line(text, format!("# {own}").trim_end());
    }
}

/// Adds a paragraph, wrapped at `width`.
fn wrap(text: &mut String, words: &str, first: &str, others: &str, width: usize) {
    let mut current = first.to_owned();
    let mut is_empty = true;
    for word in words.split(' ') {
        if !is_empty && current.chars().count() + 1 + word.chars().count() > width {
            line(text, &current);
            current = others.to_owned();
            is_empty = true;
        }
        current.push_str(if is_empty { "" } else { " " });
        current.push_str(word);
        is_empty = false;
    }
    line(text, &current);
}
