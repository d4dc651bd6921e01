//! Replays recorded conversations through weir to an upstream with an unknown tokenizer and an
//! unknown window. Measures how many requests did not fit, and how much room caution left unused.
//!
//! `cargo run --release --example calibration -- --tokenizer tekken_240911.json TRACES.jsonl.gz …`
//! Without a tokenizer the upstream counts with a variant of `cl100k_base`.

#[expect(dead_code, reason = "tests use more of it")]
#[path = "../scripted_upstream/server.rs"]
mod scripted_upstream;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Parser;
use flate2::read::MultiGzDecoder;
use scripted_upstream::{Options, Seen, Server};
use serde_json::{Value, json};
use weir::config::{Config, ModelEntry};
use weir::proxy::Proxy;
use weir::proxy::learned::ratio_rows;
use weir::server;
use weir::upstream::Client;
use weir_engine::tokens::Encoding;
use weir_store::Store;

/// Number of first requests of a model, from which weir learns to measure the others.
const FIRST: usize = 10;
/// Model whose tokenizer weir does not have.
const MODEL: &str = "foreign-model";

#[derive(Parser)]
#[command(
    about = "Measures the remaining errors of calibration: overflows, and room lost to caution"
)]
struct Flags {
    /// Conversations, one JSON object per line, compressed with gzip.
    files: Vec<PathBuf>,
    /// The upstream's vocabulary: one of Mistral's tekken_….json.
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// Window of the upstream's model.
    #[arg(long, default_value_t = 16_384)]
    window: u64,
    /// Output limit of each request; the upstream counts it in.
    #[arg(long)]
    max_tokens: Option<u64>,
    /// Do not configure the window in weir; weir learns it from the first refusal.
    #[arg(long)]
    unknown_window: bool,
    /// Let weir learn ratios; without it, its estimates stay unchanged.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    calibrate: bool,
}

/// Results of one file.
#[derive(Default)]
struct Figures {
    requests: usize,
    /// Refused requests: the first of all, others of the first ten, and those after them.
    taught: usize,
    healed_first: usize,
    healed_after: usize,
    failed: usize,
    /// Prompts above the window itself, without the output.
    above_window: usize,
    /// Sums, over requests after the first ten, of the tokens that weir counted too many and too
    /// few, as shares of the true count.
    over: f64,
    under: f64,
    worst_under: f64,
    counted: usize,
}

#[tokio::main]
async fn main() -> Result<(), String> {
    let flags = Flags::parse();
    // As `weir serve` does; otherwise the tables load during the first requests.
    Encoding::O200kBase.warm();
    println!(
        "{:<28} {:>8} {:>6} {:>6} {:>6} {:>6} {:>6} {:>8} {:>8} {:>8}  ratio",
        "file", "requests", "taught", "first", "later", "above", "failed", "over", "under", "worst"
    );
    let mut all = Figures::default();
    for file in &flags.files {
        let (figures, ratio) = measure(&flags, file).await?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        show(name.trim_end_matches(".jsonl.gz"), &figures, &ratio);
        all.add(&figures);
    }
    show("all", &all, "");
    Ok(())
}

fn show(name: &str, figures: &Figures, ratio: &str) {
    let mean = |sum: f64| 100.0 * sum / figures.counted.max(1) as f64;
    println!(
        "{name:<28} {:>8} {:>6} {:>6} {:>6} {:>6} {:>6} {:>7.2}% {:>7.2}% {:>7.2}%  {ratio}",
        figures.requests,
        figures.taught,
        figures.healed_first,
        figures.healed_after,
        figures.above_window,
        figures.failed,
        mean(figures.over),
        mean(figures.under),
        100.0 * figures.worst_under,
    );
}

impl Figures {
    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.taught += other.taught;
        self.healed_first += other.healed_first;
        self.healed_after += other.healed_after;
        self.failed += other.failed;
        self.above_window += other.above_window;
        self.over += other.over;
        self.under += other.under;
        self.worst_under = self.worst_under.max(other.worst_under);
        self.counted += other.counted;
    }

    /// Adds one request: weir's report on it, and how the upstream saw each attempt.
    fn take(&mut self, status: u16, sent_tokens: Option<u64>, seen: &[Seen], window: u64) {
        self.requests += 1;
        let is_first = self.requests <= FIRST;
        let refused = seen.iter().filter(|seen| seen.status == 400).count();
        let place = match (is_first, self.taught) {
            (_, 0) => &mut self.taught,
            (true, _) => &mut self.healed_first,
            (false, _) => &mut self.healed_after,
        };
        *place += usize::from(refused > 0);
        self.failed += usize::from(status != 200);
        let prompts = seen.iter().filter_map(|seen| seen.prompt_tokens);
        self.above_window += usize::from(!is_first && prompts.clone().any(|own| own > window));
        if let (false, Some(sent), Some(truth)) = (is_first, sent_tokens, prompts.last()) {
            let off = sent as f64 / truth as f64 - 1.0;
            self.over += off.max(0.0);
            self.under += (-off).max(0.0);
            self.worst_under = self.worst_under.max(-off);
            self.counted += 1;
        }
    }
}

/// Sends every request that the conversations of a file imply through a fresh weir.
async fn measure(flags: &Flags, file: &Path) -> Result<(Figures, String), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let options = Options {
        context_tokens: flags.window,
        tokenizer: flags.tokenizer.clone(),
        overflow_style: "vllm".to_owned(),
        allow_unknown: true,
        log_body_bytes: 0,
        ..Options::default()
    };
    let upstream = Server::start(options).await.map_err(|error| said(&error))?;
    let store = Store::in_memory().map_err(|error| said(&error))?;
    let weir = weir(&upstream, &store, flags).await?;
    let caller = reqwest::Client::builder().no_proxy().build().map_err(|error| said(&error))?;
    let mut figures = Figures::default();
    let mut logged = 0;
    for conversation in read(file)? {
        let messages = conversation["messages"].as_array().cloned().unwrap_or_default();
        for end in 1..=messages.len() {
            if !is_asked(&messages, end) {
                continue;
            }
            let mut body = json!({"model": MODEL, "messages": messages[..end]});
            for (name, value) in [
                ("tools", conversation["tools"].clone()),
                ("max_tokens", flags.max_tokens.map_or(Value::Null, Value::from)),
            ] {
                if !value.is_null() {
                    body[name] = value;
                }
            }
            let url = format!("http://{weir}/v1/chat/completions");
            let request = caller.post(url).body(body.to_string()).send();
            let answer = request.await.map_err(|error| said(&error))?;
            let status = answer.status().as_u16();
            let sent = answer.headers().get("x-weir-sent-tokens");
            let sent = sent.and_then(|value| value.to_str().ok()?.parse().ok());
            let answer = answer.text().await.map_err(|error| said(&error))?;
            if status != 200 {
                eprintln!("{}: {answer:.300}", conversation["id"]);
            }
            let seen = upstream.requests();
            figures.take(status, sent, &seen[logged..], flags.window);
            logged = seen.len();
        }
    }
    let rows = ratio_rows(&store, 1).await.map_err(|error| said(&error))?;
    let ratio = rows.first().map(|row| {
        format!("{:.3} (version {})", f64::from(row.value.permille) / 1000.0, row.value.version)
    });
    upstream.stop().await;
    Ok((figures, ratio.unwrap_or_else(|| "none".to_owned())))
}

/// Whether a request could have ended before `end`.
fn is_asked(messages: &[Value], end: usize) -> bool {
    let role = |at: usize| messages.get(at).and_then(|message| message["role"].as_str());
    match role(end - 1) {
        Some("user") => true,
        Some("tool") => role(end) != Some("tool"),
        _ => false,
    }
}

fn read(file: &Path) -> Result<Vec<Value>, String> {
    let shown = file.display();
    let bytes = std::fs::File::open(file).map_err(|error| format!("{shown}: {error}"))?;
    let mut text = String::new();
    let read = MultiGzDecoder::new(bytes).read_to_string(&mut text);
    read.map_err(|error| format!("{shown}: {error}"))?;
    let lines = text.lines().map(serde_json::from_str::<Value>);
    lines.collect::<Result<_, _>>().map_err(|error| format!("{shown}: {error}"))
}

/// Starts a weir in front of the upstream and returns its address.
async fn weir(upstream: &Server, store: &Store, flags: &Flags) -> Result<String, String> {
    let mut config = Config::default();
    if !flags.unknown_window {
        let known = ModelEntry {
            window_tokens: flags.window,
            max_input_tokens: None,
            max_output_tokens: None,
            encoding: Encoding::Estimate,
            strict_alternation: false,
        };
        config.models.insert(MODEL, known);
    }
    config.server.listen = ([127, 0, 0, 1], 0).into();
    config.upstream.url = upstream.base_url();
    config.learning.calibrate = flags.calibrate;
    let config = Arc::new(config);
    let client = Client::new(&config.upstream).map_err(|error| error.to_string())?;
    let proxy = Proxy::new(Arc::clone(&config), client, store.clone());
    let proxy = proxy.map_err(|error| error.to_string())?;
    let server = server::Server::bind(&config, proxy).await.map_err(|error| error.to_string())?;
    let address = server.address().to_string();
    tokio::spawn(server.run());
    Ok(address)
}
