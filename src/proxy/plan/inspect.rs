//! Inspection of a recorded conversation: the plans of its requests in order, under several policies, as
//! weir would have made them. Plans as for sending; sends nothing, and keeps nothing.

mod bill;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use self::bill::{Before, Bill, Total, TurnFacts, TurnRow, Whole};
pub use self::turns::MAX_TURNS;
use self::turns::{Turns, refused};
use super::draft::{Draft, Drafted, Given, Step};
use super::effort::Effort;
use super::planned::Job;
use super::shared::{PlanState, Shared};
use super::{explain, planner};
use crate::config::{self, Config, Priced};
use crate::proxy::admit::request::RequestOptions;
use crate::proxy::error::{ErrorKind, Proxied, ProxyError};
use crate::proxy::upstreams::routes::{Routes, UpstreamKnowledge};
use weir_engine::compact::report::{Appearance, Report};
use weir_engine::plan::Plan;
use weir_engine::wire::{Protocol, Request};
use weir_store::Tenant;

/// Maximum number of policies in an inspection.
pub const MAX_POLICIES: usize = 4;
/// Maximum bytes of a text that is not asked for whole.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// Maximum time of an inspection.
const DEADLINE: Duration = Duration::from_secs(30);

/// Limit of an inspection's prompts. None raises a limit of the model or the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InspectionLimit {
    /// That of the model.
    Model,
    Tokens(u64),
    /// Share of the last request as received.
    Percent(u64),
}

/// Text to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// Message, by its index.
    Message(usize),
    /// Note of each policy's plan, by its number from 1.
    Note(usize),
}

/// Wanted inspection.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub protocol: Protocol,
    /// Request body that holds the conversation.
    pub body: Bytes,
    /// Whether the body as a whole is one of the requests, even if it ends with an answer.
    pub is_request: bool,
    /// Model instead of the body's.
    pub model: Option<String>,
    pub limit: InspectionLimit,
    /// Names of the policies.
    pub policies: Vec<String>,
    /// Request to describe, counted from 1; the last if absent.
    pub turn: Option<usize>,
    /// Whether all requests are planned, or only the described one.
    pub wants_turns: bool,
    pub opened: Option<Opened>,
    /// Whether opened texts are shown whole, however long.
    pub is_whole: bool,
}

/// Plans of a conversation's requests.
#[derive(Debug, Serialize)]
pub struct Inspection {
    model: String,
    is_model_known: bool,
    /// Whether the model's price is known.
    is_priced: bool,
    /// Limit of the inspection in tokens, if one was given.
    max_input_tokens: Option<u64>,
    /// Described request, counted from 1.
    turn: usize,
    /// Number of messages in each request.
    turns: Vec<usize>,
    /// The same requests sent whole; absent unless all are planned.
    whole: Option<Whole>,
    policies: Vec<Inspected>,
}

/// Plans under one policy.
#[derive(Debug, Serialize)]
struct Inspected {
    policy: String,
    total: Option<Total>,
    turns: Option<Vec<TurnRow>>,
    plan: Described,
    opened: Option<OpenedText>,
}

/// Plan of the described request.
#[derive(Debug, Serialize)]
struct Described {
    #[serde(flatten)]
    report: Report,
    /// Appearance of each message.
    appearances: Vec<Appearance>,
}

/// Opened message or note.
#[derive(Debug, Serialize)]
struct OpenedText {
    message: Option<usize>,
    /// Number of the note that the text or the excerpts are in.
    note: Option<usize>,
    received: Option<Shown>,
    sent: Option<Shown>,
    /// Excerpts of a message, or the whole note.
    excerpts: Option<Shown>,
}

/// Text, possibly only its beginning.
#[derive(Debug, Serialize)]
struct Shown {
    text: String,
    bytes: usize,
    is_whole: bool,
}

impl Shown {
    fn new(mut text: String, is_whole: bool) -> Self {
        let bytes = text.len();
        if !is_whole {
            text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
        }
        Self { is_whole: text.len() == bytes, bytes, text }
    }
}

/// Runs inspections under a configuration, one after the other.
pub struct Inspector {
    config: Arc<Config>,
    place: Arc<Semaphore>,
}

/// Sets its flag when the caller of an inspection leaves.
impl Inspector {
    /// Creates an inspector under a configuration; inspections wait for a permit of `place`.
    pub fn new(config: &Config, place: Arc<Semaphore>) -> Self {
        // Of an observed conversation it shows the effect that compaction would have.
        let mut config = config.clone();
        config.context.mode = config::Mode::Compact;
        config.context.originals = config::Originals::Off;
        Self { config: Arc::new(config), place }
    }

    /// Runs `work` off the async threads. It ends early if the caller leaves.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Plans) -> Proxied<T> + Send + 'static,
    ) -> Proxied<T> {
        let place = Arc::clone(&self.place).acquire_owned().await;
        let (effort, _left) = Effort::begin();
        let config = Arc::clone(&self.config);
        let done = tokio::task::spawn_blocking(move || {
            let _place = place;
            work(&Plans::new(config, effort.within(DEADLINE)))
        });
        done.await.unwrap_or_else(|_| Err(fault()))
    }
}

fn fault() -> ProxyError {
    tracing::error!(target: "weir::fault", "an inspection failed");
    let message = "the conversation could not be inspected because of a bug in weir";
    ProxyError::new(ErrorKind::Internal, message)
}

/// Planner of one inspection. Its caches end with it.
pub struct Plans {
    shared: Shared,
    effort: Effort,
}

impl Plans {
    fn new(config: Arc<Config>, effort: Effort) -> Self {
        let nothing = |name: &str| Arc::new(UpstreamKnowledge::nothing(name, &config));
        let routes = Arc::new(Routes::new(Arc::clone(&config), nothing));
        let state = Arc::new(PlanState::examined(&config.cache));
        let shared = Shared { config, summaries: None, routes, state };
        Self { shared, effort }
    }

    /// Plans the requests of a conversation.
    pub fn inspect(&self, wanted: &Wanted) -> Proxied<Inspection> {
        let whole = self.job(wanted);
        let turns = {
            let (_, request) = planner::read(&self.shared, &whole, None)?;
            Turns::of(&request, wanted.is_request)?
        };
        let turn = wanted.turn.unwrap_or(turns.len());
        if !(1..=turns.len()).contains(&turn) {
            let all = turns.len();
            return Err(refused(format!("turn is {turn}; the conversation has turns 1 to {all}.")));
        }
        let max_input_tokens = self.limit_tokens(wanted, &whole)?;
        let mut runs: Vec<Run> = wanted.policies.iter().map(|name| Run::new(name)).collect();
        let mut bill = Bill::default();
        let mut facts = None;
        for place in self.planned_turns(wanted, &whole, &turns, turn)? {
            self.check()?;
            let job = Job { body: turns.body(&whole.body, place), ..whole.clone() };
            for run in &mut runs {
                let mut job = job.clone();
                job.options.policy = Some(run.policy.clone());
                job.options.max_input_tokens = max_input_tokens;
                let opened = (place + 1 == turn).then_some(wanted);
                let own = self.step(run, &job, place + 1, opened)?;
                bill.whole(place, &own);
                facts = Some(own);
            }
        }
        let facts = facts.ok_or_else(fault)?;
        let policies = runs.into_iter().map(|run| run.inspected(wanted.wants_turns));
        Ok(Inspection {
            is_model_known: facts.is_model_known,
            is_priced: facts.price.is_some(),
            max_input_tokens,
            model: facts.model,
            turn,
            turns: turns.lengths(),
            whole: wanted.wants_turns.then_some(bill.total()),
            policies: policies.collect::<Option<Vec<_>>>().ok_or_else(fault)?,
        })
    }

    /// Returns the places of the requests to plan.
    fn planned_turns(
        &self,
        wanted: &Wanted,
        whole: &Job,
        turns: &Turns,
        turn: usize,
    ) -> Proxied<std::ops::Range<usize>> {
        if wanted.wants_turns {
            return Ok(0..turns.len());
        }
        // If a model binds its thinking, the decisions of earlier requests count.
        let (draft, _) = planner::read(&self.shared, whole, None)?;
        Ok(if draft.has_decisions() { 0..turn } else { turn - 1..turn })
    }

    /// Creates the job of the conversation as a whole.
    fn job(&self, wanted: &Wanted) -> Job {
        let options = RequestOptions::default();
        let mut job = Job::new(Tenant::ANONYMOUS, wanted.protocol, wanted.body.clone(), options);
        job.path_model.clone_from(&wanted.model);
        let mut job = explain::routed(&self.shared.routes, job);
        job.body = explain::with_messages(job.protocol, job.body);
        job
    }

    /// Returns the limit on prompts in tokens.
    fn limit_tokens(&self, wanted: &Wanted, whole: &Job) -> Proxied<Option<u64>> {
        let percent = match wanted.limit {
            InspectionLimit::Model => return Ok(None),
            InspectionLimit::Tokens(tokens) => return Ok(Some(tokens)),
            InspectionLimit::Percent(percent) => percent,
        };
        let (mut draft, request) = planner::read(&self.shared, whole, None)?;
        let drafted = self.plan(&mut draft, whole, &request)?;
        let received_tokens = drafted.plan.ok_or_else(fault)?.received_tokens;
        let tokens = u128::from(received_tokens) * u128::from(percent) / 100;
        Ok(Some(u64::try_from(tokens).unwrap_or(u64::MAX).max(1)))
    }

    /// Fails if the inspection must end.
    fn check(&self) -> Proxied<()> {
        if self.effort.is_over() {
            let seconds = DEADLINE.as_secs();
            return Err(refused(format!(
                "Planning takes more than {seconds} seconds. Inspect fewer policies at once, or a \
                 part of the conversation."
            )));
        }
        Ok(())
    }

    fn plan(&self, draft: &mut Draft, job: &Job, request: &Request<'_>) -> Proxied<Drafted> {
        let given = Given { shared: &self.shared, job, request };
        let mut drafted = match planner::plan(draft, given)? {
            Step::Done(drafted) => *drafted,
            Step::Long | Step::Again | Step::Waits(_) => return Err(fault()),
        };
        match &mut drafted.planned {
            Ok(planned) => {
                if let Some(begun) = planned.begun.take() {
                    // No other process decides for an inspection.
                    Handle::current().block_on(self.shared.state.decisions.settle(begun));
                }
            }
            Err(error) if error.kind == ErrorKind::ContextLengthExceeded => {}
            Err(error) => return Err(error.clone()),
        }
        Ok(drafted)
    }

    /// Plans one request under the policy of `run`, and describes it for `wanted` if that is given.
    fn step(
        &self,
        run: &mut Run,
        job: &Job,
        turn: usize,
        wanted: Option<&Wanted>,
    ) -> Proxied<TurnFacts> {
        let (mut draft, request) =
            planner::read(&self.shared, job, planner::look(&self.shared, job))?;
        let Drafted { planned, plan } = self.plan(&mut draft, job, &request)?;
        let mut plan = plan.ok_or_else(fault)?;
        let describe =
            |plan: &Plan| plan.report(&request, &draft.names(&self.shared, job, &planned));
        if let Some(wanted) = wanted {
            let report = describe(&plan);
            let appearances = report.messages.iter().map(|row| plan.end.appearance(row)).collect();
            run.opened = wanted.opened.map(|opened| open(&plan, &request, opened, wanted.is_whole));
            run.plan = Some(Described { report, appearances });
        }
        let route = job.route.as_ref().unwrap_or_else(|| self.shared.routes.unmatched());
        let price = route.row.price.as_ref().or(match self.shared.config.price(&draft.model) {
            Priced::Known(price) | Priced::Default(price) => Some(price),
            Priced::Unpriced | Priced::Refused => None,
        });
        let row = run.before.row(turn, &mut plan, planned.is_err(), price, describe);
        run.total.add(&row);
        let facts = TurnFacts {
            received_tokens: row.received_tokens,
            max_input_tokens: plan.limits.max_input_tokens.unwrap_or(plan.limits.window_tokens),
            price: price.cloned(),
            model: draft.model.clone(),
            is_model_known: draft.is_model_known,
        };
        run.rows.push(row);
        Ok(facts)
    }
}

/// Returns the texts of a message or a note.
fn open(plan: &Plan, request: &Request<'_>, opened: Opened, is_whole: bool) -> OpenedText {
    let shown = |text: Option<String>| text.map(|text| Shown::new(text, is_whole));
    match opened {
        Opened::Message(message) => {
            let excerpts = plan.end.excerpts_of(message);
            let sent = plan.sent_text(request, message);
            let excerpts = excerpts.filter(|_| sent.is_none());
            OpenedText {
                message: Some(message),
                note: excerpts.map(|(note, _)| note),
                received: shown(plan.received_text(request, message)),
                sent: shown(sent),
                excerpts: shown(excerpts.map(|(_, said)| said.to_owned())),
            }
        }
        Opened::Note(note) => OpenedText {
            message: None,
            note: Some(note),
            received: None,
            sent: None,
            excerpts: shown(plan.note_text(note)),
        },
    }
}

/// Plans so far under one policy.
struct Run {
    policy: String,
    before: Before,
    total: Total,
    rows: Vec<TurnRow>,
    plan: Option<Described>,
    opened: Option<OpenedText>,
}

impl Run {
    fn new(policy: &str) -> Self {
        Self {
            policy: policy.to_owned(),
            before: Before::default(),
            total: Total::default(),
            rows: Vec::new(),
            plan: None,
            opened: None,
        }
    }

    fn inspected(self, wants_turns: bool) -> Option<Inspected> {
        Some(Inspected {
            policy: self.policy,
            total: wants_turns.then_some(self.total),
            turns: wants_turns.then_some(self.rows),
            plan: self.plan?,
            opened: self.opened,
        })
    }
}
