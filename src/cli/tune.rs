//! `weir tune`: searches the limit, the price of excerpts and the policy at which recorded conversations would
//! have cost least, on one half of them, and measures the choice on the other. `weir_eval::savings` bills them.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::explain;
use super::on_all_cores::on_all_cores;
use super::savings;
use crate::config::Config;
use weir_engine::compact::Policy;
use weir_engine::compact::policy::{Goal, preset};
use weir_eval::savings::{At, Folded, Models, Savings, TrialLimit, examine, limits_below};
use weir_store::budget::NanoUsd;

/// Costs of excerpts to try, in thousandths.
const EXCERPT_COSTS: [u32; 3] = [500, 1000, 2000];
/// Columns of a bar of what is kept.
const BAR_WIDTH: u64 = 24;

const HELP: &str = "\
Examples:
  weir tune
      what coding agents left in your home folder
  weir tune requests.jsonl --model gpt-5.5 --keep 98 --write weir.toml

First all limits are tried, then excerpts of other costs at the best of them,
then other policies. The best is the cheapest that keeps enough of the values
that answers used again from further back, and refuses no request. Every other
conversation is left out of the search, and shows whether the choice holds.

  *  on the front: nothing that was tried costs less and keeps as much";

/// Searches the cheapest settings that keep enough of recorded conversations
///
/// Reads what `weir savings` reads. Nothing is sent, and no model is called.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub(super) struct TuneArgs {
    /// Transcripts, logs, or folders with them [default: those of agents in your home folder]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The model of conversations that name none
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Share of the values used again that must stay, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 95, value_parser = clap::value_parser!(u64).range(..=100))]
    keep: u64,
    /// Writes the settings found to this new file
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// A configuration file in TOML, whose prices and [context] count
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
    /// Hides progress
    #[arg(long)]
    no_progress: bool,
}

/// Settings that are tried, and what they cost.
#[derive(Debug, Clone)]
struct Candidate {
    policy: &'static str,
    excerpt_cost_permille: u32,
    limit: TrialLimit,
    at: At,
    values: u64,
}

/// Runs `weir tune …`.
pub(super) fn run(args: &TuneArgs) -> Result<(), String> {
    let config = explain::configuration(args.config.as_deref())?;
    let mut notes = Vec::new();
    let drafts = savings::folded(&args.files, !args.no_progress, &mut notes)?;
    savings::print_notes(&notes);
    // By size in turn, so that both halves have short and long ones.
    let mut halves = [Vec::new(), Vec::new()];
    for (place, draft) in drafts.into_iter().enumerate() {
        halves[place % 2].push(draft);
    }
    let [searched, other] = halves;
    if other.is_empty() {
        return Err("two conversations are needed at least: one to search, one to check".to_owned());
    }
    let search = Search { args, config: &config, drafts: &searched };
    let (found, was) = search.run();
    let Some(best) = best(&found, args.keep) else {
        return Err(format!("nothing that was tried keeps {} % and saves", args.keep));
    };
    let check = Search { args, config: &config, drafts: &other };
    let checked = check.at(best.policy, best.excerpt_cost_permille, &[best.limit]);
    let mut text = table(&found, was.nano_usd, best);
    let _ = writeln!(
        text,
        "\nOn the half that was searched: {}",
        result(&best.at, best.values, was.nano_usd)
    );
    let _ = writeln!(text, "On the other half:             {}", summed(&checked));
    let toml = best.toml();
    match &args.write {
        None => _ = writeln!(text, "\n{toml}"),
        Some(path) => {
            let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path);
            let written =
                file.and_then(|mut file| std::io::Write::write_all(&mut file, toml.as_bytes()));
            written.map_err(|error| format!("{}: {}", path.display(), super::reason(&error)))?;
            let _ = writeln!(text, "\nThe settings are in {}.", path.display());
        }
    }
    super::print(&text)
}

/// Search over one half of the conversations.
struct Search<'s> {
    args: &'s TuneArgs,
    config: &'s Config,
    drafts: &'s [Folded],
}

impl Search<'_> {
    /// Returns all that was tried, and the figures as they were.
    fn run(&self) -> (Vec<Candidate>, Savings) {
        let largest_tokens = self.drafts.first().map_or(0, Folded::about_tokens);
        let numbers = limits_below(largest_tokens).into_iter();
        let numbers = numbers.flat_map(|tokens| [tokens, tokens * 3 / 4]);
        let mut limits: Vec<TrialLimit> =
            numbers.map(|tokens| TrialLimit::Goal(Goal::Tokens(tokens))).collect();
        limits.extend(TrialLimit::WORDS[..3].iter().map(|(_, tried)| *tried));
        let configured = self.config.context.policy.excerpt_cost_permille;
        let was = self.at("default", configured, &limits);
        let mut found = candidates("default", configured, &limits, &was);
        let limit = |found: &[Candidate]| best(found, self.args.keep).map(|best| best.limit);
        if let Some(limit) = limit(&found) {
            for cost in EXCERPT_COSTS.into_iter().filter(|cost| *cost != configured) {
                let savings = self.at("default", cost, &[limit]);
                found.extend(candidates("default", cost, &[limit], &savings));
            }
            for policy in preset::PRESETS.into_iter().filter(|name| *name != "default") {
                let savings = self.at(policy, configured, &[limit]);
                found.extend(candidates(policy, configured, &[limit], &savings));
            }
        }
        (found, was)
    }

    fn at(&self, policy: &str, excerpt_cost_permille: u32, limits: &[TrialLimit]) -> Savings {
        let name = Some(policy).filter(|name| *name != "default");
        let policy = Policy { excerpt_cost_permille, ..self.config.policy(name, None) };
        let models = Models {
            price: &|model| savings::price(self.config, model),
            window_tokens: &|model| savings::window_tokens(self.config, model),
            default_model: self.args.model.as_deref(),
            draws_pauses: false,
        };
        let examined = |draft: &Folded| examine(draft, &models, &policy, limits);
        let is_shown = !self.args.no_progress;
        let findings = on_all_cores("replaying", is_shown, self.drafts, examined);
        Savings::new(findings, limits, false)
    }
}

fn candidates(
    policy: &'static str,
    excerpt_cost_permille: u32,
    limits: &[TrialLimit],
    savings: &Savings,
) -> Vec<Candidate> {
    let of = |limit: &TrialLimit| {
        let is_own = |at: &&At| at.limit_tokens == limit.tokens() && at.limit == limit.word();
        let at = *savings.limits.iter().find(is_own)?;
        Some(Candidate { policy, excerpt_cost_permille, limit: *limit, at, values: savings.values })
    };
    limits.iter().filter_map(of).collect()
}

/// Returns the cheapest that keeps enough and refuses nothing.
fn best(found: &[Candidate], keep_percent: u64) -> Option<&Candidate> {
    let is_good = |own: &&Candidate| {
        own.at.unfit_requests == 0 && own.at.kept_values * 100 >= own.values * keep_percent
    };
    found.iter().filter(is_good).min_by_key(|own| own.at.nano_usd)
}

/// Draws what was tried, the cheapest first.
fn table(found: &[Candidate], was_nano_usd: u64, best: &Candidate) -> String {
    let mut found: Vec<&Candidate> =
        found.iter().filter(|own| own.at.unfit_requests == 0).collect();
    found.sort_by_key(|own| (own.at.nano_usd, std::cmp::Reverse(own.at.kept_values)));
    let mut text = format!("{:>12}  {:>6}  {:>7}  settings\n", "cost", "saved", "kept");
    let mut most_kept = None;
    for own in found {
        let is_front = Some(own.at.kept_values) > most_kept;
        most_kept = most_kept.max(Some(own.at.kept_values));
        let bar = own
            .at
            .kept_values
            .saturating_mul(BAR_WIDTH)
            .checked_div(own.values)
            .unwrap_or(BAR_WIDTH);
        let mark = if is_front { '*' } else { ' ' };
        let chosen = if std::ptr::eq(own, best) { " <" } else { "" };
        let _ = writeln!(
            text,
            "{:>12}  {:>6}  {:>7} {mark}{:<bar_width$} {}{chosen}",
            NanoUsd(own.at.nano_usd).shown(),
            saved(own.at.nano_usd, was_nano_usd),
            kept(&own.at, own.values),
            "#".repeat(usize::try_from(bar).unwrap_or(0)),
            own.name(),
            bar_width = BAR_WIDTH as usize,
        );
    }
    text
}

fn saved(nano_usd: u64, whole_nano_usd: u64) -> String {
    let saved = 100.0 - nano_usd as f64 / whole_nano_usd.max(1) as f64 * 100.0;
    format!("{saved:.0} %")
}

fn kept(at: &At, values: u64) -> String {
    match values {
        0 => "-".to_owned(),
        _ => format!("{:.1} %", at.kept_values as f64 / values as f64 * 100.0),
    }
}

fn result(at: &At, values: u64, whole_nano_usd: u64) -> String {
    format!(
        "{} saved, {} of {values} values kept",
        saved(at.nano_usd, whole_nano_usd),
        kept(at, values)
    )
}

fn summed(savings: &Savings) -> String {
    let at = savings.limits.first().copied().unwrap_or_default();
    result(&at, savings.values, savings.nano_usd)
}

impl Candidate {
    fn limit_shown(&self) -> String {
        self.limit.word().map_or_else(
            || self.limit.tokens().unwrap_or(0).to_string(),
            |word| format!("{word:?}"),
        )
    }

    fn name(&self) -> String {
        let cost = f64::from(self.excerpt_cost_permille) / 1000.0;
        match self.policy {
            "default" => format!("{}, excerpts {cost}", self.limit_shown()),
            policy => format!("{}, {policy}", self.limit_shown()),
        }
    }

    /// Returns the settings as a configuration.
    fn toml(&self) -> String {
        let limit = self.limit_shown();
        match self.policy {
            "default" => {
                let cost = f64::from(self.excerpt_cost_permille) / 1000.0;
                format!("[context]\nlimit = {limit}\nexcerpt_cost = {cost:?}\n")
            }
            policy => {
                format!(
                    "[context]\npolicy = \"tuned\"\n\n[policies.tuned]\npreset = {policy:?}\nlimit = {limit}\n"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(tokens: u64, nano_usd: u64, kept_values: u64, unfit_requests: u64) -> Candidate {
        let at = At { nano_usd, kept_values, unfit_requests, ..At::default() };
        let limit = TrialLimit::Goal(Goal::Tokens(tokens));
        Candidate { policy: "default", excerpt_cost_permille: 500, limit, at, values: 100 }
    }

    #[test]
    fn the_best_is_the_cheapest_that_keeps_enough() {
        let found = [
            candidate(8000, 10, 90, 0),
            candidate(16_000, 20, 96, 0),
            candidate(4000, 5, 99, 1),
            candidate(32_000, 30, 99, 0),
        ];
        let chosen = |keep| best(&found, keep).map(|own| own.at.nano_usd);
        assert_eq!([90, 95, 99, 100].map(chosen), [Some(10), Some(20), Some(30), None]);
        let best = best(&found, 95).expect("one is good");
        assert_eq!(best.toml(), "[context]\nlimit = 16000\nexcerpt_cost = 0.5\n");
        let text = table(&found, 40, best);
        assert_eq!(
            (text.lines().count(), text.matches('*').count(), text.matches(" <\n").count()),
            (4, 3, 1)
        );
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
