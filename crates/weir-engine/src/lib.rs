//! Context engine of weir: reads a request (chat completions, Responses or Messages), compacts its
//! conversation to a limit, and writes the body to send.
//!
//! No I/O, no clock, no randomness and no logging: the same request always gives the same plan. Decisions
//! are never taken back, so the plan of a longer conversation extends that of the shorter one, and a
//! provider's prompt cache stays warm.
//!
//! [`plan()`] is the front door. It takes a request as the caller sent it and returns the bytes to send:
//!
//! ```
//! use weir_engine::{Encoding, NoSummaries, PlanError, PlanOptions, Protocol, plan};
//!
//! // A conversation of 41 messages, longer than its model's window of 2,000 tokens.
//! let turn = |nth: usize| {
//!     let (role, text) = if nth % 2 == 0 { ("user", "Open") } else { ("assistant", "I opened") };
//!     format!(r#"{{"role":"{role}","content":"{text} lock {nth}. {}"}}"#, "The level rose again. ".repeat(20))
//! };
//! let turns: Vec<String> = (0..41).map(turn).collect();
//! let body = format!(r#"{{"model":"gpt-4o","messages":[{}]}}"#, turns.join(","));
//!
//! let request = Protocol::Chat.read(body.as_bytes(), 1000).expect("a chat request");
//! let options = PlanOptions::new("gpt-4o", Encoding::O200kBase, 2_000);
//! let plan = plan(&request, &options, &NoSummaries)?;
//!
//! assert_eq!(plan.action, "evict");
//! assert!(plan.received_tokens > plan.limit_tokens && plan.sent_tokens <= plan.limit_tokens);
//! let sent = plan.body.expect("it is shorter than what was received");
//! // A note of excerpts stands for what was removed; the newest message is sent as received.
//! assert!(sent.contains("[weir: ") && sent.ends_with(&format!("{}]}}", turns[40])));
//! # Ok::<(), PlanError>(())
//! ```
//!
//! [`PlanOptions`] hold the limits, the [`Policy`] and the handling of the conversation; all sizes are in
//! tokens of the model's [`Encoding`]. A [`SummarySource`] provides summaries that a model wrote of
//! removed messages, if there are any. A caller that plans each request of a conversation implements
//! [`Known`] to continue where the last plan ended, and asks [`cost()`] whether a plan is long work.
//! [`Plan::report`] explains a plan message by message.
//!
//! Below it lie three modules: [`wire`] reads bodies and splices edits into them, [`tokens`] counts, and
//! [`compact`] decides what of a conversation is sent.

pub mod compact;
pub mod plan;
pub mod tokens;
pub mod wire;

pub use compact::{Limits, Measure, Policy, Report};
pub use plan::{
    CannotFit, Decisions, Known, Mode, NoSummaries, NothingKnown, Plan, PlanCost, PlanError,
    PlanOptions, SummarySource, cost, plan, plan_with,
};
pub use tokens::Encoding;
pub use wire::{Protocol, Request};
