//! Replay of recorded conversations, turn by turn, through a weir process to the scripted upstream,
//! and the findings of its judge.
//!
//! Root of one module tree: the example's `main.rs` runs it as a command and the integration tests
//! include it in their own. It shares no code with the proxy it judges and must never import from
//! it. If included elsewhere, `scripted_upstream` must be next to it.

pub mod conversation;
mod judge;
mod notes;
pub mod rewritten;
mod sent;
pub mod tally;
pub mod weir;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::scripted_upstream;
use conversation::Conversation;
use judge::{Exchange, Judge};
use scripted_upstream::{Options, Seen, Server};
use tally::Tally;
use weir::{Answer, Asked, Weir};
use xxhash_rust::xxh3::xxh3_128;

pub const MODEL: &str = "gpt-4o";
/// Entries of the upstream's log: more than simultaneous callers, so that each finds its own.
const LOG_ENTRIES: usize = 1024;
const LOG_BODY_BYTES: usize = 128 * 1024 * 1024;

/// Token budget for the messages of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// Share of the conversation's last request, in percent.
    Percent(u64),
    /// Number of tokens, for conversations whose last request is at least a quarter larger.
    Tokens(u64),
}

impl Budget {
    /// Returns the budget of a conversation in tokens, if it applies to it.
    pub fn tokens(self, conversation: &Conversation) -> Option<u64> {
        let last_tokens = conversation.last_tokens();
        match self {
            Self::Percent(percent) => {
                Some(last_tokens * percent / 100).filter(|tokens| *tokens > 0)
            }
            Self::Tokens(tokens) => (last_tokens * 4 >= tokens * 5).then_some(tokens),
        }
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |digits: &str| digits.parse::<u64>().ok().filter(|number| *number > 0);
        let budget = match (text.strip_suffix('%'), text.strip_suffix('k')) {
            (Some(digits), _) => number(digits).map(Self::Percent),
            (_, Some(digits)) => number(digits).map(|number| Self::Tokens(number * 1000)),
            _ => number(text).map(Self::Tokens),
        };
        budget.ok_or_else(|| "a budget is written as 50%, 8k or 8192".to_owned())
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(formatter, "{percent}%"),
            Self::Tokens(tokens) if tokens % 1000 == 0 => write!(formatter, "{}k", tokens / 1000),
            Self::Tokens(tokens) => write!(formatter, "{tokens}"),
        }
    }
}

pub struct Plan {
    pub program: PathBuf,
    /// Keys of weir's configuration, and their values.
    pub settings: Vec<(String, String)>,
    pub budgets: Vec<Budget>,
    pub concurrency: usize,
}

/// Results at one budget.
pub struct Found {
    pub budget: Budget,
    pub sources: BTreeMap<String, Tally>,
    pub pooled: Tally,
}

pub struct Outcome {
    pub found: Vec<Found>,
    /// One line per request, in order of budgets and conversations.
    pub lines: Vec<String>,
    pub peak_memory_kib: Option<u64>,
    pub complaints: Vec<String>,
}

/// The scripted upstream in this process, with weir in front of it in another.
pub struct Stage {
    upstream: Server,
    pub weir: Weir,
}

impl Stage {
    pub async fn set(program: &Path, settings: &[(String, String)]) -> Result<Self, String> {
        let options = Options {
            log_entries: LOG_ENTRIES,
            log_body_bytes: LOG_BODY_BYTES,
            ..Options::default()
        };
        let upstream = Server::start(options).await.map_err(|error| error.to_string())?;
        let weir = Weir::start(program, &upstream.base_url(), settings)?;
        Ok(Self { upstream, weir })
    }

    /// Returns the upstream's view of an answered request.
    pub async fn seen(&self, request: &str) -> Option<Seen> {
        let found = Mutex::new(None);
        let is_it = |seen: &&Seen| {
            let name = seen.headers.get(weir::REQUEST_NAME);
            name.is_some_and(|name| name.as_bytes() == request.as_bytes())
        };
        let look = |log: &[Seen]| {
            let seen = log.iter().rev().find(is_it).cloned();
            *found.lock().unwrap_or_else(PoisonError::into_inner) = seen;
            true
        };
        self.upstream.wait_for(look).await;
        found.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replays all conversations at all budgets. Calls `progress` after each request.
pub async fn replay(
    conversations: Arc<Vec<Conversation>>,
    plan: &Plan,
    progress: impl Fn() + Send + Sync + 'static,
) -> Result<Outcome, String> {
    let stage = Arc::new(Stage::set(&plan.program, &plan.settings).await?);
    let jobs = Arc::new(jobs(&conversations, &plan.budgets));
    let (next, progress) = (Arc::new(AtomicUsize::new(0)), Arc::new(progress));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..plan.concurrency.max(1) {
        let (stage, conversations) = (stage.clone(), conversations.clone());
        let (jobs, next, progress) = (jobs.clone(), next.clone(), progress.clone());
        workers.spawn(async move {
            let caller = weir::caller()?;
            let mut done = Vec::new();
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let scene = Scene {
                    stage: &stage,
                    caller: &caller,
                    conversation: &conversations[job.conversation],
                    name: format!("{}-{}", job.budget, job.conversation),
                };
                done.push((*job, scene.play(job.budget_tokens, &*progress).await?));
            }
            Ok::<_, String>(done)
        });
    }
    let mut done = Vec::new();
    while let Some(joined) = workers.join_next().await {
        done.extend(joined.map_err(|error| error.to_string())??);
    }
    done.sort_by_key(|(job, _)| (job.budget, job.conversation));
    let found = plan.budgets.iter().enumerate().map(|(index, budget)| {
        let own = done.iter().filter(|(job, _)| job.budget == index);
        add_up(*budget, own.map(|(job, played)| (&conversations[job.conversation], &played.tally)))
    });
    let line = |job: &Job, own: &str| {
        format!("{}\t{}\t{own}", plan.budgets[job.budget], conversations[job.conversation].id)
    };
    let lines =
        done.iter().flat_map(|(job, played)| played.lines.iter().map(move |own| line(job, own)));
    Ok(Outcome {
        lines: lines.collect(),
        found: found.collect(),
        peak_memory_kib: stage.weir.peak_memory_kib(),
        complaints: stage.weir.complaints(),
    })
}

/// Number of requests in a replay.
pub fn request_count(conversations: &[Conversation], budgets: &[Budget]) -> usize {
    let jobs = jobs(conversations, budgets);
    jobs.iter().map(|job| conversations[job.conversation].turns.len()).sum()
}

/// One conversation at one budget, each by its index.
#[derive(Clone, Copy)]
struct Job {
    budget: usize,
    conversation: usize,
    budget_tokens: u64,
}

/// Returns all jobs, the longest first, so that no long one is left at the end.
fn jobs(conversations: &[Conversation], budgets: &[Budget]) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (budget, kind) in budgets.iter().enumerate() {
        for (index, conversation) in conversations.iter().enumerate() {
            if let Some(budget_tokens) = kind.tokens(conversation) {
                jobs.push(Job { budget, conversation: index, budget_tokens });
            }
        }
    }
    let work = |job: &Job| {
        let conversation = &conversations[job.conversation];
        conversation.last_tokens() * conversation.turns.len() as u64
    };
    jobs.sort_by_key(|job| std::cmp::Reverse(work(job)));
    jobs
}

fn add_up<'a>(
    budget: Budget,
    tallies: impl Iterator<Item = (&'a Conversation, &'a Tally)>,
) -> Found {
    let mut found = Found { budget, sources: BTreeMap::new(), pooled: Tally::default() };
    for (conversation, tally) in tallies {
        found.sources.entry(conversation.source.clone()).or_default().merge(tally);
        found.pooled.merge(tally);
    }
    found
}

/// One conversation with everything that its replay needs.
struct Scene<'a> {
    stage: &'a Stage,
    caller: &'a reqwest::Client,
    conversation: &'a Conversation,
    /// Unique name in this run; also its key, so that it shares no cache.
    name: String,
}

/// Results of one conversation at one budget.
struct Played {
    tally: Tally,
    /// One line per request: its number of messages, and the outcome.
    lines: Vec<String>,
}

impl Scene<'_> {
    async fn play(
        &self,
        budget_tokens: u64,
        progress: &(dyn Fn() + Sync),
    ) -> Result<Played, String> {
        let conversation = self.conversation;
        let tools_tokens = self.tools_tokens().await?;
        let mut judge = Judge::new(conversation, budget_tokens, tools_tokens);
        let mut lines = Vec::new();
        let base_url = self.stage.weir.base_url();
        let (before, after) = frame(conversation.tools.as_deref());
        // Grows by the messages that each request adds to the one before.
        let mut opened = before.clone();
        let mut written = 0;
        for length in conversation.turns.iter().copied() {
            for message in &conversation.messages[written..length] {
                if opened.len() > before.len() {
                    opened.push(b',');
                }
                opened.extend_from_slice(message.raw.as_bytes());
            }
            written = length;
            let body = [opened.as_slice(), after.as_slice()].concat();
            let request = format!("{}-{length}", self.name);
            let limit_tokens = Some(budget_tokens + tools_tokens);
            let answer = self.ask(&base_url, &request, limit_tokens, body.clone()).await;
            if let Some(end) = answer.as_ref().err().and_then(|_| self.stage.weir.ended()) {
                return Err(end);
            }
            let seen = self.stage.seen(&request).await;
            lines.push(format!("{length}\t{}", result(&answer, seen.as_ref())));
            let frame = (before.as_slice(), after.as_slice());
            let mut exchange = Exchange { length, body: &body, frame, answer, seen, plan: None };
            if judge.asks_for_plan(&exchange) {
                let asked = self.asked(&base_url, &request, limit_tokens, body.clone());
                exchange.plan = Some(weir::explain(self.caller, asked).await?);
            }
            judge.judge(exchange);
            progress();
        }
        Ok(Played { tally: judge.tally, lines })
    }

    async fn ask(
        &self,
        base_url: &str,
        request: &str,
        limit_tokens: Option<u64>,
        body: Vec<u8>,
    ) -> Result<Answer, String> {
        weir::ask(self.caller, self.asked(base_url, request, limit_tokens, body)).await
    }

    fn asked<'a>(
        &'a self,
        base_url: &'a str,
        request: &'a str,
        limit_tokens: Option<u64>,
        body: Vec<u8>,
    ) -> Asked<'a> {
        Asked { base_url, key: &self.name, request, limit_tokens, body }
    }

    /// Measures the tools' tokens by the upstream's own count: the first request with them, less
    /// the same without.
    async fn tools_tokens(&self) -> Result<u64, String> {
        let conversation = self.conversation;
        let (Some(tools), Some(length)) = (&conversation.tools, conversation.turns.first()) else {
            return Ok(0);
        };
        let base_url = self.stage.upstream.base_url();
        let mut counts = [0; 2];
        for (count, tools) in counts.iter_mut().zip([Some(&**tools), None]) {
            let body = body(conversation, *length, tools);
            let request = format!("{}-tools-{}", self.name, tools.is_some());
            self.ask(&base_url, &request, None, body).await?;
            let seen = self.stage.seen(&request).await;
            let tokens = seen.and_then(|seen| seen.prompt_tokens);
            *count = tokens.ok_or_else(|| {
                format!("{}: the upstream refuses its first request as it is", conversation.id)
            })?;
        }
        Ok(counts[0] - counts[1])
    }
}

/// Describes the result of a request: the hash of the body that reached the upstream, or the refusal.
fn result(answer: &Result<Answer, String>, seen: Option<&Seen>) -> String {
    match (seen, answer) {
        (Some(seen), _) => format!("{:032x}", xxh3_128(&seen.body)),
        (None, Ok(answer)) => {
            let code = answer.own_error.as_deref().unwrap_or("no error of weir");
            format!("refused {} {code}", answer.status)
        }
        (None, Err(problem)) => format!("failed {problem}"),
    }
}

/// Returns a request's bytes before and after its messages.
fn frame(tools: Option<&str>) -> (Vec<u8>, Vec<u8>) {
    let before = format!(r#"{{"model":"{MODEL}","messages":["#);
    let after = match tools {
        Some(tools) => format!(r#"],"tools":{tools}}}"#),
        None => "]}".to_owned(),
    };
    (before.into_bytes(), after.into_bytes())
}

/// Builds the request of the first `length` messages.
pub fn body(conversation: &Conversation, length: usize, tools: Option<&str>) -> Vec<u8> {
    let messages: Vec<&str> =
        conversation.messages[..length].iter().map(|message| &*message.raw).collect();
    let (before, after) = frame(tools);
    [before, messages.join(",").into_bytes(), after].concat()
}
