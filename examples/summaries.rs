//! Plays recorded conversations through a weir with a scripted summariser, and through one without.
//! Reports the cost of summaries: time at compactions, calls and tokens, and how many are found
//! after a restart and by a second process.

#[expect(dead_code, reason = "the server has more to offer than is used here")]
#[path = "scripted_upstream/server.rs"]
mod scripted_upstream;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use flate2::read::MultiGzDecoder;
use scripted_upstream::{Options, Server as Upstream};
use tokio::time::Instant;
use weir::config::{Config, SummaryMode};
use weir::proxy::Proxy;
use weir::proxy::summaries::Summaries;
use weir::server::Server;
use weir::upstream::Client;
use weir_eval::conversation::Conversation;
use weir_store::Store;

/// A summary of its maximum size would contain more; this one has the sections.
const SAID: &str = "## Task\nGo on with what was asked.\n## Decisions\nNumber {id} was chosen.";

#[derive(Parser)]
#[command(about = "Plays recorded conversations through weir with a scripted summariser")]
struct Flags {
    /// Conversations, one JSON object per line, plain or gzip
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Each conversation's limit, as a share of its last request
    #[arg(long, default_value_t = 0.5)]
    limit: f64,
    /// Number of longest conversations to play
    #[arg(long, default_value_t = 20)]
    longest: usize,
    /// Maximum size of a summary
    #[arg(long, default_value_t = 800)]
    max_tokens: u64,
    /// Send each request as soon as the previous one is answered. By default, background summaries
    /// finish in between, as they would during a model's own time.
    #[arg(long)]
    at_once: bool,
}

type Problem = Box<dyn std::error::Error>;

/// Weir in this process.
struct Weir {
    url: String,
    summaries: Option<Arc<Summaries>>,
    client: reqwest::Client,
}

/// One answer, as far as it is examined.
struct Answer {
    look: Option<String>,
    taken: Duration,
}

impl Weir {
    async fn start(
        store: &Path,
        model: &Upstream,
        summariser: Option<&Upstream>,
        flags: &Flags,
    ) -> Result<Self, Problem> {
        let mut config = Config::default();
        config.server.listen = ([127, 0, 0, 1], 0).into();
        config.upstream.url = model.base_url();
        config.summaries.mode = SummaryMode::Off;
        if let Some(summariser) = summariser {
            config.summaries.mode = SummaryMode::Background;
            config.summaries.model = "gpt-4o-mini".to_owned();
            config.summaries.url = summariser.base_url();
            config.summaries.summary_tokens = flags.max_tokens;
        }
        let config = Arc::new(config);
        let client = Client::new(&config.upstream)?;
        let proxy = Proxy::new(Arc::clone(&config), client, Store::open(store)?)?;
        let summaries = proxy.summaries().cloned();
        let server = Server::bind(&config, proxy).await?;
        let url = format!("http://{}/v1/chat/completions", server.address());
        tokio::spawn(server.run());
        Ok(Self { url, summaries, client: reqwest::Client::builder().no_proxy().build()? })
    }

    async fn send(&self, body: &str, limit_tokens: u64) -> Result<Answer, Problem> {
        let request = self.client.post(&self.url).header("authorization", "Bearer sk-replayed");
        let request = request
            .header("content-type", "application/json")
            .header("x-weir-max-input-tokens", limit_tokens);
        let begun = Instant::now();
        let answer = request.body(body.to_owned()).send().await?;
        let look = answer.headers().get("x-weir-summary").and_then(|look| look.to_str().ok());
        let (look, status) = (look.map(str::to_owned), answer.status());
        let said = answer.text().await?;
        let taken = begun.elapsed();
        if !status.is_success() {
            return Err(format!("{status}: {said}").into());
        }
        Ok(Answer { look, taken })
    }

    async fn settle(&self) {
        if let Some(summaries) = &self.summaries {
            summaries.finish().await;
        }
    }

    fn figure(&self, name: &str) -> u64 {
        let figures = self.summaries.as_ref().map(|summaries| summaries.figures());
        let found = figures.into_iter().flatten().find(|(other, _)| *other == name);
        found.map_or(0, |(_, figure)| figure)
    }
}

fn read(files: &[PathBuf]) -> Result<Vec<Conversation>, Problem> {
    let mut conversations = Vec::new();
    for path in files {
        let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let lines: Box<dyn std::io::BufRead> = match path.extension() {
            Some(end) if end == "gz" => Box::new(BufReader::new(MultiGzDecoder::new(file))),
            _ => Box::new(BufReader::new(file)),
        };
        for (number, line) in lines.lines().enumerate() {
            let read = Conversation::read(&line?, number + 1, None);
            conversations.push(read.map_err(|error| format!("{}: {error}", path.display()))?);
        }
    }
    Ok(conversations)
}

/// Returns the body of a conversation's request with this many messages.
fn body(conversation: &Conversation, messages: usize) -> String {
    let raws: Vec<&str> =
        conversation.messages[..messages].iter().map(|message| &*message.raw).collect();
    format!("{{\"model\":\"gpt-4o\",\"messages\":[{}]}}", raws.join(","))
}

fn median(mut taken: Vec<Duration>) -> f64 {
    taken.sort_unstable();
    taken.get(taken.len() / 2).map_or(f64::NAN, |middle| middle.as_secs_f64() * 1e3)
}

/// Times of compactions with a ready summary, and of all other requests, with summaries and
/// without.
#[derive(Default)]
struct Times {
    ready: Vec<[Duration; 2]>,
    other: Vec<[Duration; 2]>,
}

impl Times {
    fn print(&self) {
        println!("\ncuts whose summary was ready: {}", Self::told(&self.ready));
        println!("all other requests:           {}", Self::told(&self.other));
    }

    fn told(pairs: &[[Duration; 2]]) -> String {
        let [with, without] =
            [0, 1].map(|side| median(pairs.iter().map(|pair| pair[side]).collect()));
        format!("{:>6} requests, median {with:.2} ms with and {without:.2} ms without", pairs.len())
    }
}

#[tokio::main]
async fn main() -> Result<(), Problem> {
    let flags = Flags::parse();
    let folder = std::env::temp_dir().join(format!("weir-summaries-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let played = play(&flags, &folder).await;
    std::fs::remove_dir_all(&folder)?;
    played
}

async fn play(flags: &Flags, folder: &Path) -> Result<(), Problem> {
    let mut conversations = read(&flags.files)?;
    conversations.sort_by_key(|one| std::cmp::Reverse(one.last_request_tokens()));
    conversations.truncate(flags.longest);
    let model = Upstream::start(Options { log_entries: 4, ..Options::default() }).await?;
    let say = Some(SAID.to_owned());
    let summariser = Upstream::start(Options { say, ..Options::default() }).await?;
    let store = folder.join("with.db");
    let with = Weir::start(&store, &model, Some(&summariser), flags).await?;
    let without = Weir::start(&folder.join("without.db"), &model, None, flags).await?;
    let mut times = Times::default();
    let mut last = Vec::new();
    println!(
        "{:<44} {:>9} {:>9} {:>5} {:>5} {:>5} {:>12}",
        "conversation", "tokens", "limit", "cuts", "ready", "calls", "call tokens"
    );
    for one in &conversations {
        let limit_tokens = (one.last_request_tokens() as f64 * flags.limit) as u64;
        let names = ["cuts_ready", "cuts_late", "calls", "tokens"];
        let before = names.map(|name| with.figure(name));
        for (turn, &messages) in one.turns.iter().enumerate() {
            let body = body(one, messages);
            // In turn, since the second one finds the model's own counts at hand.
            let early = match turn % 2 {
                0 => None,
                _ => Some(without.send(&body, limit_tokens).await),
            };
            // Both refuse a request that cannot fit.
            let Ok(first) = with.send(&body, limit_tokens).await else { continue };
            let sent = model.requests().last().map(|seen| seen.body.clone());
            if !flags.at_once {
                with.settle().await;
            }
            let second = match early {
                Some(early) => early?,
                None => without.send(&body, limit_tokens).await?,
            };
            let pair = [first.taken, second.taken];
            match first.look.as_deref() {
                Some("ready") => times.ready.push(pair),
                _ => times.other.push(pair),
            }
            if one.turns.last() == Some(&messages) {
                last.push((body, limit_tokens, sent));
            }
        }
        let [ready, late, calls, tokens] = {
            let after = names.map(|name| with.figure(name));
            [0, 1, 2, 3].map(|index| after[index] - before[index])
        };
        let name: String = one.id.chars().take(44).collect();
        println!(
            "{name:<44} {:>9} {limit_tokens:>9} {:>5} {ready:>5} {calls:>5} {tokens:>12}",
            one.last_request_tokens(),
            ready + late
        );
    }
    with.settle().await;
    times.print();
    let (ready, late) = (with.figure("cuts_ready"), with.figure("cuts_late"));
    println!("cuts: {ready} with a summary that was ready, {late} with the extract");
    again(
        "after a restart",
        &Weir::start(&store, &model, Some(&summariser), flags).await?,
        &model,
        &last,
    )
    .await?;
    shared(flags, folder, &model, &conversations).await
}

/// Sends each conversation's last request once more, to a weir that has seen none of them.
async fn again(
    when: &str,
    weir: &Weir,
    model: &Upstream,
    last: &[(String, u64, Option<bytes::Bytes>)],
) -> Result<(), Problem> {
    let mut same = 0;
    for (body, limit_tokens, sent) in last {
        weir.send(body, *limit_tokens).await?;
        same += usize::from(model.requests().last().map(|seen| seen.body.clone()) == *sent);
    }
    let names = ["records_in_memory", "records_in_store", "records_nowhere"];
    let [memory, store, nowhere] = names.map(|name| weir.figure(name));
    println!(
        "{when}: {same} of {} requests sent as before, byte for byte; cuts' records: {store} from \
         the store, {memory} from memory, {nowhere} nowhere",
        last.len()
    );
    Ok(())
}

/// Runs two processes on one store, with the requests of each conversation alternating between
/// them.
async fn shared(
    flags: &Flags,
    folder: &Path,
    model: &Upstream,
    conversations: &[Conversation],
) -> Result<(), Problem> {
    let say = Some(SAID.to_owned());
    let summariser = Upstream::start(Options { say, ..Options::default() }).await?;
    let store = folder.join("shared.db");
    let pair = [
        Weir::start(&store, model, Some(&summariser), flags).await?,
        Weir::start(&store, model, Some(&summariser), flags).await?,
    ];
    for one in conversations {
        let limit_tokens = (one.last_request_tokens() as f64 * flags.limit) as u64;
        for (turn, &messages) in one.turns.iter().enumerate() {
            let weir = &pair[turn % 2];
            // Both refuse a request that cannot fit.
            let _ = weir.send(&body(one, messages), limit_tokens).await;
            if !flags.at_once {
                weir.settle().await;
            }
        }
    }
    let sum = |name| pair.iter().map(|weir| weir.figure(name)).sum::<u64>();
    let [memory, store, nowhere] =
        ["records_in_memory", "records_in_store", "records_nowhere"].map(sum);
    let [ready_memory, ready_store] = ["ready_in_memory", "ready_in_store"].map(sum);
    let [ready, late, calls] = ["cuts_ready", "cuts_late", "calls"].map(sum);
    println!(
        "two processes on one store: {calls} calls; new cuts: {ready} ready, {late} late; cuts' records: \
         {memory} from memory, {store} from the store, {nowhere} new; summaries: {ready_memory} from \
         memory, {ready_store} from the store"
    );
    Ok(())
}
