//! `weir top`: requests, conversations and budgets of a running weir, as they change. Asks the admin
//! API, and changes nothing.

mod cells;
mod data;
mod feed;
mod screen;
mod ui;
mod views;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::sync::mpsc;

use self::data::{Known, Snapshot};
use self::feed::{Feed, FeedError, Place};
use self::screen::{Input, Screen, inputs};
use self::ui::{Reaction, Ui};
use self::views::View;
use super::colours::Colours;
use super::{block_on, every, explain, print};
use crate::server::{Hangups, Signals};

/// Number of answers after which budgets and the status are asked for again.
const FULL_EVERY: u64 = 5;
/// Interval at which running times are drawn.
const TICK: Duration = Duration::from_millis(500);
/// Maximum number of rows of a table in plain text.
const MAX_ROWS: usize = 20;

const EXAMPLES: &str = "\
Examples:
  weir top
      the weir of this user on this machine
  weir top --config weir.toml
  weir top --url https://weir.example:8410 --token-file admin.token
      a weir on another machine
  weir top --once
      prints one frame as plain text, for scripts and tickets
  weir top --once --view budgets
  weir top --json | jq .live.totals

Keys: Tab or 1 to 4 select the view, s sorts, r reverses, / filters, p pauses, ? shows all keys, q \
quits.

The figures come from the admin API, which `weir serve --open` or admin.listen starts, with its \
token. No text of a conversation is part of them.";

/// Shows requests, conversations and budgets of a running weir as they change
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(super) struct TopArgs {
    #[command(flatten)]
    place: Place,
    /// The view to begin with, or the only one that --once prints
    #[arg(long, value_enum, value_name = "NAME")]
    view: Option<View>,
    /// Only rows that contain this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Seconds between two answers
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Prints one frame as plain text, and needs no terminal
    #[arg(long)]
    once: bool,
    /// Prints one answer of the admin API as JSON
    #[arg(long, conflicts_with_all = ["once", "view", "filter"])]
    json: bool,
}

/// Parses an interval of 0.2 seconds to an hour.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|seconds| (0.2..=3600.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "write seconds from 0.2 to 3600, such as 2".to_owned())
}

/// Runs `weir top`.
pub(super) fn run(args: &TopArgs) -> Result<(), String> {
    let feed = Feed::open(&args.place)?;
    if !args.once && !args.json {
        let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
        let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        if !is_terminal || is_dumb {
            return Err(
                "weir top needs a terminal with a screen; --once prints one frame as text, and --json one \
                        answer as JSON"
                    .to_owned(),
            );
        }
        return block_on(live(args, feed));
    }
    let first = async { feed.snapshot(0, true).await.map_err(|error| error.to_string()) };
    let snapshot = block_on(first)?;
    match args.json {
        true => print(&in_json(&snapshot)),
        false => print(&in_text(args, snapshot, &feed.shown())),
    }
}

fn in_json(snapshot: &Snapshot) -> String {
    let Snapshot { live, budgets, status } = snapshot;
    format!("{:#}\n", json!({ "live": live, "budgets": budgets, "status": status }))
}

/// Formats one frame: the figures, and the tables with their first rows.
fn in_text(args: &TopArgs, snapshot: Snapshot, place: &str) -> String {
    let mut known = Known::default();
    known.take(snapshot);
    let colours = Colours::of_stdout();
    let width = explain::width(None);
    let mut lines = views::header(&known, place);
    let all = args.view.map_or(View::ALL.to_vec(), |view| vec![view]);
    for view in all {
        let mut table = view.table(&known);
        if let Some(filter) = &args.filter {
            table.filter(filter);
        }
        let more = table.rows.len().saturating_sub(MAX_ROWS);
        table.rows.truncate(MAX_ROWS);
        lines.push(cells::Line::default());
        lines.push(cells::Line::new(cells::Tone::Accent, view.name()));
        lines.extend(table.lines(cells::Order::default(), width));
        if more > 0 {
            lines.push(cells::Line::new(cells::Tone::Dim, &format!("{more} more")));
        }
    }
    let text = lines.iter().map(|line| line.cut(width).render(colours));
    text.map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Shows the screen until the user quits or a signal ends it.
async fn live(args: &TopArgs, feed: Feed) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the terminal cannot be used: {error}");
    // Before the screen is taken over, so that the reason can be read.
    let first = feed.snapshot(0, true).await.map_err(|error| error.to_string())?;
    let place = feed.shown();
    let mut known = Known::default();
    let after = first.live.next;
    known.take(first);
    let mut ui = Ui::new(args.view.unwrap_or_default(), args.filter.clone().unwrap_or_default());
    let (sender, mut answers) = mpsc::channel(1);
    tokio::spawn(poll(feed, after, known.live.started_ms, args.interval, sender));
    let mut ending = std::pin::pin!(ended());
    let mut screen = Screen::take_over(Colours::of_stdout()).map_err(failed)?;
    let mut inputs = inputs();
    let mut ticks = every(TICK);
    // Figures at the time of a pause.
    let mut frozen: Option<Known> = None;
    loop {
        if !ui.is_paused {
            frozen = None;
        } else if frozen.is_none() {
            frozen = Some(known.clone());
        }
        let shown = frozen.as_ref().unwrap_or(&known);
        screen.show(&ui.frame(shown, &place, Screen::size())).map_err(failed)?;
        tokio::select! {
            biased;
            () = &mut ending => return Ok(()),
            input = inputs.recv() => match input {
                Some(Input::Key(key)) => {
                    if ui.press(key, shown) == Reaction::Quit {
                        return Ok(());
                    }
                }
                Some(Input::Resized) => screen.forget(),
                None => return Ok(()),
            },
            Some(answer) = answers.recv() => match answer {
                Ok(snapshot) => {
                    ui.problem = None;
                    known.take(snapshot);
                }
                Err(problem) => ui.problem = Some(problem.to_string()),
            },
            _ = ticks.tick() => {
                if ui.problem.is_none() {
                    known.live.now_ms += TICK.as_millis() as u64;
                }
            }
        }
    }
}

/// Asks again and again, from the last answer on.
async fn poll(
    feed: Feed,
    mut after: u64,
    mut started_ms: u64,
    pause: Duration,
    sender: mpsc::Sender<Result<Snapshot, FeedError>>,
) {
    let mut ticks = every(pause);
    let mut count = 0_u64;
    loop {
        ticks.tick().await;
        count += 1;
        let mut answer = feed.snapshot(after, count.is_multiple_of(FULL_EVERY)).await;
        if answer.as_ref().is_ok_and(|answer| answer.live.started_ms != started_ms) {
            // Another weir began, and counts from the start.
            answer = feed.snapshot(0, true).await;
        }
        if let Ok(answer) = &answer {
            (after, started_ms) = (answer.live.next, answer.live.started_ms);
        }
        if sender.send(answer).await.is_err() {
            return;
        }
    }
}

/// Waits for a signal that ends the process. Ctrl-C is a key while the screen is taken over.
async fn ended() {
    match (Signals::listen(), Hangups::listen()) {
        (Ok(mut signals), Ok(mut hangups)) => tokio::select! {
            () = signals.next() => {}
            () = hangups.next() => {}
        },
        _ => std::future::pending().await,
    }
}
