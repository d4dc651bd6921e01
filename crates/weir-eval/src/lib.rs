//! Replay of recorded conversations under policies and budgets, and how much each keeps of the
//! content that the real answers later used. Reads no file, prints nothing, calls no model.
//!
//! A conversation is replayed at each assistant message that follows a user or tool message: the
//! request is everything before it. Recall is the share of the real answer's values that can still
//! be read in the request. Cost is the bill of a provider with a prefix cache.
//!
//! [`savings`] bills the requests that conversations really had, by their models' prices, and the same requests
//! under limits.
//!
//! [`reconcile`] compares a journal with what providers export of usage and cost.
//!
//! The crate `weir-bench` judges the requests of any proxy by the same measures.

#![warn(unreachable_pub)]

pub mod baseline;
pub mod bill;
pub mod conversation;
mod engine;
mod grams;
pub mod html;
pub mod judge;
pub mod questions;
pub mod reconcile;
pub mod recorded;
pub mod report;
mod retold;
pub mod savings;
pub mod sent;
pub mod show;
pub mod summaries;
pub mod table;
pub mod tally;
pub mod text;
mod transcripts;
mod values;

use std::fmt;

use baseline::{Baseline, Course};
use conversation::Conversation;
use engine::Engine;
use judge::{Judge, Lost};
use questions::Questions;
use sent::SentPiece;
use summaries::{Stub, Summaries};
use tally::Tally;
use weir_engine::compact::Policy;

/// Token budget of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// Share of each conversation's last request, in percent.
    Percent(u64),
    /// Number of tokens, for conversations whose last request has at least a quarter more.
    Tokens(u64),
}

impl Budget {
    /// Parses `30%`, `8k` or `8000`.
    pub fn read(text: &str) -> Result<Self, String> {
        let (digits, make): (&str, fn(u64) -> Option<Self>) =
            if let Some(digits) = text.strip_suffix('%') {
                (digits, |percent| (1..100).contains(&percent).then_some(Self::Percent(percent)))
            } else if let Some(digits) = text.strip_suffix(['k', 'K']) {
                (digits, |number| number.checked_mul(1000).map(Self::Tokens))
            } else {
                (text, |number| Some(Self::Tokens(number)))
            };
        let number = digits.parse().ok().filter(|number| *number > 0);
        number
            .and_then(make)
            .ok_or_else(|| "write a share, such as 30%, or tokens, such as 8k or 8000".to_owned())
    }

    /// Returns a conversation's budget in tokens; `None` if the conversation is too short for it.
    pub fn tokens(self, conversation: &Conversation) -> Option<u64> {
        let last = conversation.last_request_tokens();
        match self {
            Self::Percent(percent) => Some(last * percent / 100).filter(|tokens| *tokens > 0),
            Self::Tokens(tokens) => (last >= tokens + tokens / 4).then_some(tokens),
        }
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

/// Policy with its name in the table.
#[derive(Debug, Clone)]
pub struct Named {
    pub name: String,
    pub kind: Kind,
}

/// Implementation that selects the messages to send.
#[derive(Debug, Clone)]
pub enum Kind {
    /// weir's engine, with summaries that contain nothing if they are wanted.
    Engine(Box<Policy>, Option<Stub>),
    Baseline(Baseline),
}

/// Replay of a conversation under one policy, request by request.
enum Sender<'a> {
    Engine(Box<Engine<'a>>),
    Baseline(Course<'a>),
}

impl<'a> Sender<'a> {
    fn new(conversation: &'a Conversation, policy: &Kind, budget_tokens: u64) -> Self {
        match policy {
            Kind::Engine(policy, stub) => {
                Self::Engine(Box::new(Engine::new(conversation, budget_tokens, policy, *stub)))
            }
            Kind::Baseline(baseline) => {
                Self::Baseline(Course::new(conversation, budget_tokens, *baseline))
            }
        }
    }

    fn send(&mut self, length: usize) -> &[SentPiece] {
        match self {
            Self::Engine(engine) => engine.send(length),
            Self::Baseline(course) => course.send(length),
        }
    }

    fn summaries(&self) -> Summaries {
        match self {
            Self::Engine(engine) => engine.summaries(),
            Self::Baseline(_) => Summaries::default(),
        }
    }
}

/// Results of one conversation under one policy at one budget.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub tally: Tally,
    pub lost: Vec<Lost>,
    /// Tokens of each request, whole and as sent.
    pub sizes: Vec<(u64, u64)>,
}

/// Replays a conversation under each policy at each budget, policies first. Entries are `None` if
/// the budget does not apply to this conversation.
pub fn replay(
    conversation: &Conversation,
    policies: &[Named],
    budgets: &[Budget],
) -> Vec<Option<Outcome>> {
    let questions = Questions::new(conversation);
    let mut outcomes = Vec::with_capacity(policies.len() * budgets.len());
    for policy in policies {
        for budget in budgets {
            let run = |tokens| run(conversation, &questions, &policy.kind, tokens);
            outcomes.push(budget.tokens(conversation).map(run));
        }
    }
    outcomes
}

fn run(
    conversation: &Conversation,
    questions: &Questions,
    policy: &Kind,
    budget_tokens: u64,
) -> Outcome {
    let mut judge = Judge::new(conversation, questions, budget_tokens);
    let judged = |place: usize, sent: &[SentPiece]| judge.judge(place, sent);
    let summaries = each_request(conversation, policy, budget_tokens, judged);
    judge.tally.summaries = summaries;
    Outcome { tally: judge.tally, lost: judge.lost, sizes: judge.sizes }
}

/// Calls `work` with the number of each turn and its request as a policy sends it. Returns the totals of its
/// summaries.
pub fn each_request(
    conversation: &Conversation,
    policy: &Kind,
    budget_tokens: u64,
    mut work: impl FnMut(usize, &[SentPiece]),
) -> Summaries {
    let mut sender = Sender::new(conversation, policy, budget_tokens);
    for (place, length) in conversation.turns.iter().enumerate() {
        work(place, sender.send(*length));
    }
    sender.summaries()
}
