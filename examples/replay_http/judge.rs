//! Judges one conversation at one budget, request by request, by what the caller was answered and
//! what the upstream received.
//!
//! It sends nothing itself.

use super::conversation::{Conversation, Role};
use super::scripted_upstream::Seen;
use super::sent::{Piece, Tracer, whole};
use super::tally::{Check, Tally};
use super::weir::Answer;

/// So near to the budget the judge's count and another's may come to different ends.
const BORDERLINE_TOKENS: u64 = 60;
const CONTEXT_LENGTH_EXCEEDED: &str = "context_length_exceeded";

/// The course of one conversation so far.
pub struct Judge<'a> {
    conversation: &'a Conversation,
    /// For the messages alone.
    budget_tokens: u64,
    /// By the upstream's count.
    tools_tokens: u64,
    tracer: Tracer<'a>,
    /// The last request that was sent on, and how many messages it had when it came.
    previous: Option<(Vec<Piece>, usize)>,
    /// The size at which the conversation first exceeded the budget.
    exceeded_at_tokens: Option<u64>,
    /// Whether weir said of a request so far that it is larger than its limit.
    said_above: bool,
    pub tally: Tally,
}

/// One request and all that came of it.
pub struct Exchange<'a> {
    /// How many of the caller's messages it has.
    pub length: usize,
    pub body: &'a [u8],
    /// The body's bytes before and after its messages.
    pub frame: (&'a [u8], &'a [u8]),
    pub answer: Result<Answer, String>,
    /// What the upstream saw of it; nothing where it never came there.
    pub seen: Option<Seen>,
}

impl<'a> Judge<'a> {
    pub fn new(conversation: &'a Conversation, budget_tokens: u64, tools_tokens: u64) -> Self {
        Self {
            conversation,
            budget_tokens,
            tools_tokens,
            tracer: Tracer::new(conversation),
            previous: None,
            exceeded_at_tokens: None,
            said_above: false,
            tally: Tally { conversations: 1, ..Tally::default() },
        }
    }

    pub fn judge(&mut self, exchange: Exchange<'_>) {
        let length = exchange.length;
        let full_tokens = self.conversation.full_tokens(length);
        self.tally.requests += 1;
        if full_tokens > self.budget_tokens {
            self.tally.above += 1;
            let first = *self.exceeded_at_tokens.get_or_insert(full_tokens);
            let grown = (full_tokens - first) as f64;
            self.tally.growth_quarters = grown / (self.budget_tokens as f64 / 4.0);
        }
        let answer = match &exchange.answer {
            Ok(answer) => answer,
            Err(problem) => return self.check(Check::Answered, length, Err(problem.clone())),
        };
        self.judge_answer(length, answer);
        if let Some(seen) = &exchange.seen {
            self.judge_upstream(length, answer, seen);
            self.judge_sent(&exchange, answer, seen);
        }
        let is_above = |(received, limit)| received > limit;
        self.said_above |= answer.own_error.as_deref() == Some(CONTEXT_LENGTH_EXCEEDED)
            || answer.received_tokens.zip(answer.limit_tokens).is_some_and(is_above);
    }

    fn check(&mut self, check: Check, length: usize, outcome: Result<(), String>) {
        self.tally.check(check, self.conversation, length, outcome);
    }

    /// Whether it was answered where it could be brought within the budget, and refused where not.
    fn judge_answer(&mut self, length: usize, answer: &Answer) {
        let least_tokens = self.conversation.least_tokens(length);
        let told = || format!("{} {}", answer.status, answer.message);
        let is_refusal = answer.status == 400
            && answer.own_error.as_deref() == Some(CONTEXT_LENGTH_EXCEEDED)
            && !answer.message.is_empty();
        if least_tokens.abs_diff(self.budget_tokens) <= BORDERLINE_TOKENS {
            self.tally.borderline += 1;
            self.tally.borderline_refused += u64::from(is_refusal);
            let is_either = is_refusal || answer.status == 200;
            self.check(Check::Answered, length, require(is_either, told));
        } else if least_tokens > self.budget_tokens {
            self.tally.infeasible += 1;
            self.check(Check::Refused, length, require(is_refusal, told));
        } else {
            let reason = || {
                let (budget, tools) = (self.budget_tokens, self.tools_tokens);
                format!("least {least_tokens} of {budget} (+ {tools} for tools): {}", told())
            };
            let outcome = require(answer.status == 200, reason);
            self.check(Check::Answered, length, outcome);
        }
    }

    /// What the upstream says of the request.
    fn judge_upstream(&mut self, length: usize, answer: &Answer, seen: &Seen) {
        let is_size = seen.prompt_tokens.is_some() && seen.status != 200;
        let is_valid = seen.status == 200 || is_size;
        self.check(Check::Valid, length, require(is_valid, || answer.message.clone()));
        if let Some(prompt_tokens) = seen.prompt_tokens {
            let most_tokens = self.budget_tokens + self.tools_tokens;
            let reason = || format!("{prompt_tokens} of {most_tokens}");
            self.check(Check::Fits, length, require(prompt_tokens <= most_tokens, reason));
            self.tally.upstream_prompt_tokens += prompt_tokens;
            self.tally.upstream_cached_tokens += seen.cached_tokens.unwrap_or(0);
        }
        if let Some((received, limit)) = answer.received_tokens.zip(answer.limit_tokens)
            && received <= limit
            && !self.said_above
        {
            let reason = || format!("{} at {received} of {limit}", answer.action);
            self.check(Check::PassBelowLimit, length, require(answer.action == "pass", reason));
        }
    }

    /// What the bytes say that the upstream received.
    fn judge_sent(&mut self, exchange: &Exchange<'_>, answer: &Answer, seen: &Seen) {
        let length = exchange.length;
        let is_identical = seen.body == exchange.body;
        if answer.action == "pass" {
            let reason = || "the upstream received other bytes".to_owned();
            self.check(Check::PassIdentical, length, require(is_identical, reason));
        }
        let traced = if is_identical {
            Ok(whole(length))
        } else {
            let (before, after) = exchange.frame;
            let framed = seen.body.starts_with(before) && seen.body.ends_with(after);
            require(framed, || "something beside the messages changed".to_owned())
                .and_then(|()| self.tracer.trace(&seen.body, length))
        };
        let pieces = match traced {
            Ok(pieces) => pieces,
            Err(reason) => {
                self.previous = None;
                return self.check(Check::OnlyKnownChanges, length, Err(reason));
            }
        };
        self.check(Check::OnlyKnownChanges, length, Ok(()));
        self.judge_pieces(length, answer, &pieces);
        self.compare(length, &pieces);
        self.previous = Some((pieces, length));
    }

    fn judge_pieces(&mut self, length: usize, answer: &Answer, pieces: &[Piece]) {
        let conversation = self.conversation;
        let messages = &conversation.messages[..length];
        let role = |piece: &Piece| messages[piece.index].role;
        let last_sent = pieces.last().map(|piece| (piece.raw(conversation), piece.is_clipped()));
        let is_last_right = match (last_sent, messages.last()) {
            (Some((raw, is_clipped)), Some(own)) => {
                *raw == *own.raw || (is_clipped && answer.action.contains("fit"))
            }
            _ => false,
        };
        let reason = || format!("it differs, with action {}", answer.action);
        self.check(Check::LastVerbatim, length, require(is_last_right, reason));

        let is_spoken = |role: &Role| *role != Role::System;
        let sent_first = pieces.iter().map(role).find(is_spoken);
        let own_first = messages.iter().map(|message| message.role).find(is_spoken);
        let opening = sent_first != Some(Role::Tool) || own_first == Some(Role::Tool);
        let reason = || "the first message after the system's is a tool result".to_owned();
        self.check(Check::Opening, length, require(opening, reason));

        let own = messages.iter().filter(|message| message.role == Role::System).count();
        let sent = pieces.iter().filter(|piece| role(piece) == Role::System).count();
        let reason = || format!("{sent} of {own}");
        self.check(Check::SystemKept, length, require(own == sent, reason));
        self.tally.clipped += u64::from(pieces.iter().any(Piece::is_clipped));
    }

    /// Compares what was sent with what was sent before: cost, cuts and whether they are real.
    fn compare(&mut self, length: usize, pieces: &[Piece]) {
        let conversation = self.conversation;
        let tokens = |pieces: &[Piece]| -> u64 {
            pieces.iter().map(|piece| piece.tokens(conversation)).sum()
        };
        let (before, before_length) = match &self.previous {
            Some((pieces, length)) => (pieces.as_slice(), *length),
            None => (&[][..], 0),
        };
        let pairs = before.iter().zip(pieces);
        let shared = pairs.take_while(|(old, new)| old.is_same(new, conversation)).count();
        let (sent_tokens, full_tokens) = (tokens(pieces), conversation.full_tokens(length));
        self.tally.sent.add(sent_tokens, tokens(&pieces[..shared]));
        self.tally.full.add(full_tokens, conversation.full_tokens(before_length));
        if full_tokens > self.budget_tokens {
            self.tally.above_sent_tokens += sent_tokens;
            self.tally.above_full_tokens += full_tokens;
        }
        let is_cut = shared < before.len();
        let outcome = if is_cut {
            explain_cut(conversation, before, before_length, pieces, length)
        } else {
            Ok(())
        };
        // A first request that was cut down broke no prefix, but is a cut all the same.
        let is_first_cut = self.previous.is_none() && pieces.len() < length;
        self.tally.cuts += u64::from(is_cut || is_first_cut);
        self.check(Check::PrefixHeld, length, outcome);
    }
}

/// Whether what broke the prefix was a real cut: something more is gone or clipped, and nothing
/// that had gone has come back.
fn explain_cut(
    conversation: &Conversation,
    before: &[Piece],
    before_length: usize,
    pieces: &[Piece],
    length: usize,
) -> Result<(), String> {
    let gone = (before_length - before.len(), length - pieces.len());
    let was_clipped = |piece: &Piece| before.iter().any(|old| old.is_same(piece, conversation));
    let newly_clipped = pieces.iter().any(|piece| piece.is_clipped() && !was_clipped(piece));
    if gone.1 <= gone.0 && !newly_clipped {
        return Err(format!("no more is gone ({} messages) and nothing is clipped", gone.0));
    }
    let own = |piece: &Piece| &conversation.messages[piece.index].raw;
    let mut old = before.iter();
    let kept = pieces.iter().take_while(|piece| old.any(|old| own(old) == own(piece))).count();
    let mut new = conversation.messages[before_length..length].iter();
    let mut rest = pieces[kept..].iter();
    if rest.all(|piece| new.any(|new| new.raw == *own(piece))) {
        Ok(())
    } else {
        Err("a message that had gone came back".to_owned())
    }
}

fn require(holds: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(reason()) }
}
