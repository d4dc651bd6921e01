//! Figures of all conversations as lines of at most 80 columns.

use std::fmt::Write as _;

use super::report::{At, Group, LEAST_KEPT_PERCENT, Savings};
use weir_store::budget::NanoUsd;
use weir_store::budget::calendar::{DAY_MS, shown_day};
use weir_store::budget::money::grouped;

/// Number of models and projects that are shown.
const MOST_GROUPS: usize = 5;
/// Columns of a name.
const NAME_WIDTH: usize = 34;

impl Savings {
    /// Renders the figures for people; empty without any.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if self.conversations > 0 {
            self.write_head(&mut text);
            self.write_limits(&mut text);
            self.write_habits(&mut text);
            self.write_groups("by model", &self.models, &mut text);
            self.write_groups("by project", &self.projects, &mut text);
        }
        text
    }

    /// Says which conversations the figures leave out; empty if none.
    pub fn left_out(&self) -> String {
        let mut text = String::new();
        if self.unnamed > 0 {
            let unnamed = counted(self.unnamed, "conversation");
            let _ = writeln!(text, "Left out: {unnamed} without a model; --model NAME bills them.");
        }
        for (model, count) in &self.unpriced {
            let count = counted(*count, "conversation");
            let _ = writeln!(text, "Left out: {count} of {model:?}, whose price is not known.");
        }
        text
    }

    fn write_head(&self, text: &mut String) {
        let conversations = counted(self.conversations, "conversation");
        let requests = counted(self.requests, "request");
        let tokens = grouped(self.prompt_tokens);
        let _ = write!(text, "{conversations}, {requests}, {tokens} prompt tokens");
        if let (Some(first), Some(last)) = (self.first_ms, self.last_ms) {
            let [first, last] = [first, last].map(|own| shown_day(own / DAY_MS).to_string());
            let _ = match first == last {
                true => write!(text, ", {first}"),
                false => write!(text, ", {first} to {last}"),
            };
        }
        text.push('\n');
        let basis = match self.reported_requests {
            0 => "Usage is computed: the files report none, or no cached tokens.".to_owned(),
            all if all == self.requests => "Usage is as the providers reported it.".to_owned(),
            some => format!("Usage is as reported for {some}, computed for the others."),
        };
        let _ = writeln!(text, "{basis}\n");
    }

    fn write_limits(&self, text: &mut String) {
        let _ = writeln!(text, "{:16}{:>12}  {:>6}", "", "cost", "saved");
        let _ = writeln!(text, "{:16}{:>12}", "as it was", NanoUsd(self.nano_usd).shown());
        let is_below = |at: &At| at.limit_tokens < Some(self.largest_prompt_tokens);
        // What stands outside the messages may alone exceed a limit that is tried.
        let is_shown = |at: &&At| !self.is_search || (is_below(at) && at.shortened_requests > 0);
        for at in self.limits.iter().filter(is_shown) {
            let word = if self.best == Some(*at) { "best:" } else { "limit" };
            self.write_limit(&format!("{word} {}", named(at)), at, text);
        }
        if self.is_search && self.best.is_none() {
            let _ = match self.most_kept() {
                Some(at) => writeln!(
                    text,
                    "No tried limit keeps {LEAST_KEPT_PERCENT} % of the values; {} keeps {} of {}.",
                    named(at),
                    grouped(at.kept_values),
                    grouped(self.values)
                ),
                None => writeln!(
                    text,
                    "No limit is worth it. The largest prompt has {} tokens.",
                    grouped(self.largest_prompt_tokens)
                ),
            };
        }
    }

    fn write_limit(&self, name: &str, at: &At, text: &mut String) {
        let (cost, saved) = (NanoUsd(at.nano_usd).shown(), self.saved(at.nano_usd, self.nano_usd));
        let _ = write!(text, "{name:16}{cost:>12}  {saved:>6}  ");
        let _ = match (self.values, at.shortened_requests) {
            _ if at.limit == Some("optimum") => {
                write!(text, "an estimate: cuts to 16k, by sizes alone")
            }
            (_, 0) => write!(text, "no request is shortened"),
            (0, _) => write!(text, "no value was used again"),
            (values, _) => {
                write!(text, "of {values} values used again, {} stay", at.kept_values)
            }
        };
        text.push('\n');
        if at.unfit_requests > 0 {
            let unfit = counted(at.unfit_requests, "request");
            let _ = writeln!(text, "{:38}{unfit} cannot fit, billed whole", "");
        }
        if at.dearer_conversations > 0 && !self.is_search {
            let dearer = counted(at.dearer_conversations, "conversation");
            let most = at.most_dearer_permille as f64 / 10.0;
            let _ = writeln!(text, "{:38}{dearer} dearer, by up to {most:.1} %", "");
        }
    }

    fn saved(&self, nano_usd: u64, whole_nano_usd: u64) -> String {
        if whole_nano_usd == 0 {
            return "-".to_owned();
        }
        let saved = (whole_nano_usd as f64 - nano_usd as f64) / whole_nano_usd as f64 * 100.0;
        format!("{saved:.0} %")
    }

    fn write_habits(&self, text: &mut String) {
        let habits = &self.habits;
        let mut all = [
            (habits.cold_caches, "request", "after a pause longer than the cache's lifetime"),
            (habits.price_steps, "request", "above a size from which tokens cost more"),
            (habits.repeated_calls, "call", "made again, with the same result"),
            (habits.files_read_again, "result", "of reading a file again"),
            (habits.repeated_requests, "request", "sent again as it was"),
        ];
        all.sort_by_key(|(habit, _, _)| std::cmp::Reverse(habit.nano_usd));
        let is_found = |(habit, _, _): &&(super::Habit, &str, &str)| habit.count > 0;
        let mut found = all.iter().filter(is_found).peekable();
        if found.peek().is_some() {
            let _ = writeln!(text, "\nWhat costs most (one may be part of another):");
        }
        for (habit, noun, what) in found {
            let _ = writeln!(
                text,
                "{:>12}  {} {what}",
                NanoUsd(habit.nano_usd).shown(),
                counted(habit.count, noun)
            );
        }
    }

    fn write_groups(&self, title: &str, groups: &[Group], text: &mut String) {
        if groups.len() < 2 {
            return;
        }
        let limit = self.grouped.map(|at| format!("{:>12}", format!("at {}", named(&at))));
        let limit = limit.unwrap_or_default();
        let _ = writeln!(text, "\n{title:NAME_WIDTH$}{:>10}{:>12}{limit}", "requests", "as it was");
        for group in groups.iter().take(MOST_GROUPS) {
            let (name, was) = (ending(&group.name), NanoUsd(group.nano_usd).shown());
            let limited = group.limited_nano_usd.map(|own| format!("{:>12}", NanoUsd(own).shown()));
            let limited = limited.unwrap_or_default();
            let _ = writeln!(text, "{name:NAME_WIDTH$}{:>10}{was:>12}{limited}", group.requests);
        }
        if groups.len() > MOST_GROUPS {
            let _ = writeln!(text, "and {} more (--json has all)", groups.len() - MOST_GROUPS);
        }
    }
}

/// Returns the name of a limit, or its tokens.
fn named(at: &At) -> String {
    at.limit.map_or_else(|| short(at.limit_tokens.unwrap_or(0)), str::to_owned)
}

/// Returns the end of a name, as much as there is room for, without control characters.
fn ending(name: &str) -> String {
    let name: Vec<char> = name.chars().filter(|own| !own.is_control()).collect();
    match name.len() < NAME_WIDTH {
        true => name.into_iter().collect(),
        false => ['…'].iter().chain(&name[name.len() - NAME_WIDTH + 2..]).collect(),
    }
}

fn counted(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", grouped(count))
}

fn short(tokens: u64) -> String {
    match tokens % 1000 {
        0 => format!("{}k", tokens / 1000),
        _ => tokens.to_string(),
    }
}
