//! Judge of one conversation at one budget, request by request. Uses the answers to the caller and
//! the bytes that the upstream received.
//!
//! Sends nothing itself.

use super::conversation::{Conversation, Role};
use super::rewritten::{Notes, Sizes};
use super::scripted_upstream::Seen;
use super::sent::{Piece, Tracer, callers, whole};
use super::tally::{Check, Tally};
use super::weir::{Answer, Plan};

/// Within this distance of the budget, the judge's count and another one may lead to different
/// decisions.
const BORDERLINE_TOKENS: u64 = 60;
/// Tokens that prime the reply, part of every request.
const PRIMING_TOKENS: u64 = 3;
const CONTEXT_LENGTH_EXCEEDED: &str = "context_length_exceeded";

/// State of one conversation so far.
pub struct Judge<'a> {
    conversation: &'a Conversation,
    /// Budget for the messages alone.
    budget_tokens: u64,
    /// Tokens of the tools by the upstream's count.
    tools_tokens: u64,
    tracer: Tracer<'a>,
    /// The last forwarded request, and its number of messages on arrival.
    previous: Option<(Vec<Piece>, usize)>,
    /// Size at which the conversation first exceeded the budget.
    exceeded_at_tokens: Option<u64>,
    /// Whether weir has reported a request as larger than its limit.
    said_above: bool,
    /// Bytes of the previous request, up to the end of its messages.
    opening: Vec<u8>,
    /// Number of compactions that weir has reported so far.
    compactions: u64,
    /// Whether the last note was written next to an outsized turn.
    is_last_thin: Option<bool>,
    pub tally: Tally,
}

/// One request, its answer and its effects.
pub struct Exchange<'a> {
    /// Number of the caller's messages in it.
    pub length: usize,
    pub body: &'a [u8],
    /// Bytes of the body before and after its messages.
    pub frame: (&'a [u8], &'a [u8]),
    pub answer: Result<Answer, String>,
    /// The upstream's view of it; `None` if it never arrived there.
    pub seen: Option<Seen>,
    /// Weir's explanation of it, if one was requested.
    pub plan: Option<Plan>,
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
            opening: Vec::new(),
            compactions: 0,
            is_last_thin: None,
            tally: Tally { conversations: 1, ..Tally::default() },
        }
    }

    /// Whether weir's explanation of a request is needed: the sent request does not extend the
    /// previous one.
    pub fn asks_for_plan(&self, exchange: &Exchange<'_>) -> bool {
        let is_changed = exchange.answer.as_ref().is_ok_and(|answer| answer.action != "pass");
        let goes_on = |seen: &Seen| seen.body.starts_with(&self.opening);
        let seen = exchange.seen.as_ref();
        seen.is_some_and(|seen| (is_changed && self.opening.is_empty()) || !goes_on(seen))
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
        self.judge_answer(length, answer, exchange.seen.as_ref());
        if let Some(seen) = &exchange.seen {
            self.judge_upstream(length, answer, seen);
            self.judge_sent(&exchange, answer, seen);
            let end = seen.body.len().saturating_sub(exchange.frame.1.len());
            self.opening = seen.body[..end].to_vec();
        }
        let is_above = |(received, limit)| received > limit;
        self.said_above |= answer.own_error.as_deref() == Some(CONTEXT_LENGTH_EXCEEDED)
            || answer.received_tokens.zip(answer.limit_tokens).is_some_and(is_above);
    }

    fn check(&mut self, check: Check, length: usize, outcome: Result<(), String>) {
        self.tally.check(check, self.conversation, length, outcome);
    }

    /// Checks that the request was answered if it could fit the budget, and refused otherwise.
    fn judge_answer(&mut self, length: usize, answer: &Answer, seen: Option<&Seen>) {
        let least_tokens = self.conversation.least_tokens(length);
        let told = || format!("{} {}", answer.status, answer.message);
        let is_refusal = answer.status == 400
            && answer.own_error.as_deref() == Some(CONTEXT_LENGTH_EXCEEDED)
            && !answer.message.is_empty();
        if is_refusal {
            self.tally.refused += 1;
            let is_barely = too_many(&answer.message).is_some_and(|own| own <= PRIMING_TOKENS);
            self.tally.refused_by_priming += u64::from(is_barely);
        }
        if least_tokens.abs_diff(self.budget_tokens) <= BORDERLINE_TOKENS {
            self.tally.borderline += 1;
            self.tally.borderline_refused += u64::from(is_refusal);
            let is_either = is_refusal || answer.status == 200;
            self.check(Check::Answered, length, require(is_either, told));
        } else if least_tokens > self.budget_tokens {
            // Clipped arguments of the newest turn's calls are not part of the minimum. In that
            // case the upstream's count has to fit.
            self.tally.infeasible += 1;
            let most_tokens = self.budget_tokens + self.tools_tokens;
            let fits =
                seen.and_then(|seen| seen.prompt_tokens).is_some_and(|own| own <= most_tokens);
            let is_clipped = answer.status == 200 && answer.action.contains("fit") && fits;
            self.check(Check::Refused, length, require(is_refusal || is_clipped, told));
        } else {
            let reason = || {
                let (budget, tools) = (self.budget_tokens, self.tools_tokens);
                format!("least {least_tokens} of {budget} (+ {tools} for tools): {}", told())
            };
            let outcome = require(answer.status == 200, reason);
            self.check(Check::Answered, length, outcome);
        }
    }

    /// Checks the upstream's verdict on the request.
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

    /// Checks the bytes that the upstream received.
    fn judge_sent(&mut self, exchange: &Exchange<'_>, answer: &Answer, seen: &Seen) {
        let length = exchange.length;
        let is_identical = seen.body == exchange.body;
        if answer.action == "pass" {
            let reason = || "the upstream received different bytes".to_owned();
            self.check(Check::PassIdentical, length, require(is_identical, reason));
        }
        let traced = if is_identical {
            Ok(whole(length))
        } else {
            let (before, after) = exchange.frame;
            let framed = seen.body.starts_with(before) && seen.body.ends_with(after);
            require(framed, || "something other than the messages changed".to_owned())
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
        self.compare(exchange, &pieces);
        self.previous = Some((pieces, length));
    }

    /// Maximum excess of weir's own size over the judge's. Weir rounds tools in steps of a fiftieth
    /// of the limit, and counts a few tokens for the seam of each note.
    fn slack_tokens(&self) -> u64 {
        (self.budget_tokens + self.tools_tokens) / 50 + BORDERLINE_TOKENS
    }

    fn judge_pieces(&mut self, length: usize, answer: &Answer, pieces: &[Piece]) {
        let conversation = self.conversation;
        let messages = &conversation.messages[..length];
        let role = |piece: &Piece| piece.role(conversation);
        let is_last_right = match (pieces.last().map(Piece::without_tail), messages.last()) {
            (Some(last), Some(own)) => {
                *last.raw(conversation) == *own.raw
                    || (last.is_clipped() && answer.action.contains("fit"))
            }
            _ => false,
        };
        let reason = || format!("it differs, with action {}", answer.action);
        self.check(Check::LastVerbatim, length, require(is_last_right, reason));

        // In the newest turn, only results and the arguments of calls can be shortened.
        let newest_from = conversation.newest_from(length);
        let is_newest = |piece: &&Piece| piece.index.is_some_and(|index| index >= newest_from);
        let mut newest = pieces.iter().filter(is_newest);
        let is_infeasible =
            conversation.least_tokens(length) > self.budget_tokens + BORDERLINE_TOKENS;
        if is_infeasible {
            let is_clipped =
                newest.any(|piece| piece.is_clipped() && role(piece) == Role::Assistant);
            let reason =
                || "it is sent, and no arguments of its newest calls are clipped".to_owned();
            self.check(Check::Refused, length, require(is_clipped, reason));
        }

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

    /// Compares the sent request with the previous one: cost, compactions, whether each is
    /// justified, and their notes.
    fn compare(&mut self, exchange: &Exchange<'_>, pieces: &[Piece]) {
        let (conversation, length) = (self.conversation, exchange.length);
        let tokens = |pieces: &[Piece]| -> u64 {
            pieces.iter().map(|piece| piece.tokens(conversation)).sum()
        };
        let (before, before_length) = match &self.previous {
            Some((pieces, length)) => (pieces.as_slice(), *length),
            None => (&[][..], 0),
        };
        let shared = |before: &[Piece]| {
            let pairs = before.iter().zip(pieces);
            pairs.take_while(|(old, new)| old.is_same(new, conversation)).count()
        };
        // Recalled text for the last question need not be repeated, but was paid for.
        let paid = shared(before);
        let before: Vec<Piece> = before.iter().map(Piece::without_tail).collect();
        let (before, shared) = (before.as_slice(), shared(&before));
        let (sent_tokens, full_tokens) = (tokens(pieces), conversation.full_tokens(length));
        self.tally.sent.add(sent_tokens, tokens(&pieces[..paid]));
        self.tally.full.add(full_tokens, conversation.full_tokens(before_length));
        if full_tokens > self.budget_tokens {
            self.tally.above_sent_tokens += sent_tokens;
            self.tally.above_full_tokens += full_tokens;
        }
        let is_compacted = shared < before.len();
        let outcome = if is_compacted {
            let new = conversation.full_tokens(length) - conversation.full_tokens(before_length);
            let is_forced = tokens(before) + new + self.slack_tokens() > self.budget_tokens;
            explain_cut(conversation, (before, before_length), (pieces, length), is_forced)
        } else {
            Ok(())
        };
        // A compacted first request breaks no prefix, but is a compaction, too.
        let is_first_compaction = self.previous.is_none() && callers(pieces) < length;
        self.tally.cuts += u64::from(is_compacted || is_first_compaction);
        let before = before.to_vec();
        let noted = match exchange.plan {
            Some(plan) => {
                self.judge_notes((&before, before_length), (pieces, length), is_compacted, plan)
            }
            None if is_compacted => {
                Err("what was sent changed, and weir was not asked why".to_owned())
            }
            None => Ok(()),
        };
        self.check(Check::PrefixHeld, length, outcome);
        self.check(Check::NotesHeld, length, noted);
    }

    /// Checks that a changed request comes with a compaction in weir's own account, and that notes
    /// are rewritten only if the sizes permit it.
    fn judge_notes(
        &mut self,
        (before, before_length): (&[Piece], usize),
        (pieces, length): (&[Piece], usize),
        is_compacted: bool,
        plan: Plan,
    ) -> Result<(), String> {
        let conversation = self.conversation;
        let earlier = std::mem::replace(&mut self.compactions, plan.compactions);
        if plan.compactions <= earlier {
            return require(!is_compacted, || {
                "what was sent changed without a compaction".to_owned()
            });
        }
        let is_same = |old: &Piece, new: &Piece| old.is_same(new, conversation);
        let (old, new) = (notes_of(before), notes_of(pieces));
        let is_new = new.last().is_some_and(|new| !old.iter().any(|old| is_same(old, new)));
        // The sizes are unknown after several compactions, or after one at a point that is no
        // request here.
        if plan.compactions > earlier + 1 || plan.messages != length {
            if is_new {
                self.is_last_thin = None;
            }
            return Ok(());
        }
        let is_sent = |pieces: &[Piece], own| pieces.iter().any(|piece| piece.index == Some(own));
        let stood = |own: &usize| *own >= before_length || is_sent(before, *own);
        let sizes = self.sizes(length, stood, plan.low_tokens);
        let first_user = conversation.messages.iter().position(|own| own.role == Role::User);
        let takes_first_user =
            first_user.is_some_and(|own| own < length && stood(&own) && !is_sent(pieces, own));
        let is_last_thin = self.is_last_thin;
        if is_new {
            self.is_last_thin = sizes.is_outsized().filter(|_| !takes_first_user);
        }
        let notes = Notes { old: &old, new: &new, is_last_thin, takes_first_user };
        notes.check(&sizes, is_same, |note| note.tokens(conversation))
    }

    /// Returns the sizes at a compaction of the first `length` messages; `stood` selects those sent
    /// before it.
    fn sizes(&self, length: usize, stood: impl Fn(&usize) -> bool, low_tokens: u64) -> Sizes {
        let messages = &self.conversation.messages[..length];
        let is_system = |index: &usize| messages[*index].role == Role::System;
        let is_user = |index: &usize| messages[*index].role == Role::User;
        let tokens = |index: usize| messages[index].tokens;
        let newest_from = self.conversation.newest_from(length);
        let system_run = (0..length).take_while(is_system).count();
        let first_user = (0..newest_from).find(is_user).filter(&stood);
        let fixed_tokens = self.tools_tokens
            + PRIMING_TOKENS
            + (0..system_run).chain(first_user).map(tokens).sum::<u64>();
        let newest_turn_tokens =
            (newest_from..length).filter(|own| !is_system(own)).map(tokens).sum();
        let question = match messages[newest_from].role {
            Role::User => None,
            _ => (0..newest_from).rfind(is_user).filter(&stood),
        };
        let question = question.filter(|own| Some(*own) != first_user);
        let late_systems = (system_run..length).filter(is_system);
        Sizes {
            limit_tokens: self.budget_tokens + self.tools_tokens,
            low_tokens,
            fixed_tokens,
            newest_turn_tokens,
            staying_tokens: fixed_tokens
                + newest_turn_tokens
                + late_systems.chain(question).map(tokens).sum::<u64>(),
            slack_tokens: self.slack_tokens(),
        }
    }
}

/// Returns the number of excess tokens that a refusal reports.
fn too_many(message: &str) -> Option<u64> {
    let (before, _) = message.split_once(" too many")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Whether a justified compaction broke the prefix, given the messages and their number before and
/// now. Something more is removed, clipped or counted in a note, or the previous messages no longer
/// fit; and no removed message has returned.
fn explain_cut(
    conversation: &Conversation,
    (before, before_length): (&[Piece], usize),
    (pieces, length): (&[Piece], usize),
    is_forced: bool,
) -> Result<(), String> {
    let gone = (before_length - callers(before), length - callers(pieces));
    let was_sent = |piece: &Piece| before.iter().any(|old| old.is_same(piece, conversation));
    let is_new = |piece: &Piece| {
        (piece.is_clipped() || piece.is_noted()) && !piece.has_tail() && !was_sent(piece)
    };
    if gone.1 <= gone.0 && !is_forced && !pieces.iter().any(is_new) {
        return Err(format!("no more is gone ({} messages), clipped or noted", gone.0));
    }
    let own = |piece: &&Piece| piece.index.map(|index| &conversation.messages[index].raw);
    let mut old = before.iter().filter_map(|piece| own(&piece));
    let callers: Vec<_> = pieces.iter().filter_map(|piece| own(&piece)).collect();
    let kept = callers.iter().take_while(|raw| old.any(|old| old == **raw)).count();
    let mut new = conversation.messages[before_length..length].iter();
    if callers[kept..].iter().all(|raw| new.any(|new| new.raw == **raw)) {
        Ok(())
    } else {
        Err("a message that had gone came back".to_owned())
    }
}

/// Returns the notes of excerpts that are messages of their own.
fn notes_of(pieces: &[Piece]) -> Vec<Piece> {
    let quotes = |piece: &&Piece| {
        piece.is_apart()
            && piece.change.as_ref().is_some_and(|change| !change.note.quoted.is_empty())
    };
    pieces.iter().filter(quotes).cloned().collect()
}

fn require(holds: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(reason()) }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use reqwest::{Method, Version};

    use super::super::conversation::read_line;
    use super::*;

    /// System, question, call, result, answer, question, answer; one letter each.
    const SYSTEM: &str = r#"{"role":"system","content":"s"}"#;
    const FIRST: &str = r#"{"role":"user","content":"first"}"#;
    const CALL: &str = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}"#;
    const RESULT: &str = r#"{"role":"tool","tool_call_id":"1","content":"head middle tail"}"#;
    const ANSWER: &str = r#"{"role":"assistant","content":"answer"}"#;
    const SECOND: &str = r#"{"role":"user","content":"second"}"#;
    const THIRD: &str = r#"{"role":"user","content":"third"}"#;
    const NOTED: &str = r#"{"role":"user","content":"first\n\n[weir: 2 earlier messages were left out here to fit the context window]"}"#;
    const NOTED_BEFORE: &str = r#"{"role":"user","content":"[weir: 2 earlier messages were left out here to fit the context window]\n\nsecond"}"#;
    const TAIL: &str =
        r"\n\n[weir: earlier messages that may bear on this; … = left out]\n#3 f:\ntail";
    const TAILED: &str = r##"{"role":"user","content":"second\n\n[weir: earlier messages that may bear on this; … = left out]\n#3 f:\ntail"}"##;
    const APART: &str = r##"{"role":"user","content":"[weir: 2 earlier messages (#2-#3), shortened to fit; … = left out]\n#3 f:\nhead … tail"}"##;
    const APART_MORE: &str = r##"{"role":"user","content":"[weir: 1 earlier message (#4), shortened to fit; … = left out]\n#4 assistant:\nanswer"}"##;
    const APART_ANEW: &str = r##"{"role":"user","content":"[weir: 3 earlier messages (#2-#4), shortened to fit; … = left out]\n#3 f:\ntail\n#4 assistant:\nanswer"}"##;
    const CLIPPED: &str = r#"{"role":"tool","tool_call_id":"1","content":"head\n[weir: 7 of 16 bytes left out]\n tail"}"#;
    const MISCLIPPED: &str = r#"{"role":"tool","tool_call_id":"1","content":"head\n[weir: 8 of 16 bytes left out]\n tail"}"#;

    fn conversation() -> Conversation {
        let messages = [SYSTEM, FIRST, CALL, RESULT, ANSWER, SECOND, ANSWER, THIRD, ANSWER];
        let messages = messages.join(",");
        read_line(&format!(r#"{{"id":"c","source":"s","messages":[{messages}]}}"#))
            .expect("it is sound")
    }

    /// Builds an answer, and the upstream's view, for a request whose sent messages are `sent`.
    fn exchanged(action: &str, received: u64, sent: &[&str]) -> (Answer, Seen) {
        let body = format!(r#"{{"messages":[{}]}}"#, sent.join(","));
        let seen = Seen {
            number: 1,
            connection: 1,
            version: Version::HTTP_11,
            method: Method::POST,
            path: String::new(),
            headers: Default::default(),
            body_bytes: body.len(),
            body: Bytes::from(body),
            prompt_tokens: Some(10),
            cached_tokens: Some(0),
            completion_tokens: Some(0),
            status: 200,
            completed: true,
            client_left: false,
            cut: false,
        };
        let answer = Answer {
            status: 200,
            action: action.to_owned(),
            received_tokens: Some(received),
            limit_tokens: Some(100),
            ..Answer::default()
        };
        (answer, seen)
    }

    /// Judges an exchange. If weir's explanation is needed, it reports one more compaction, down to
    /// 75 tokens, and at least one for each note.
    fn judged(judge: &mut Judge<'_>, exchange: Exchange<'_>) {
        let is_asked = judge.asks_for_plan(&exchange);
        let sent = exchange.seen.as_ref().map(|seen| String::from_utf8_lossy(&seen.body));
        let notes = sent.map_or(0, |sent| sent.matches("[weir: ").count()) as u64;
        let compactions = notes.max(judge.compactions + 1);
        let plan = Plan { compactions, messages: exchange.length, low_tokens: 75 };
        judge.judge(Exchange { plan: is_asked.then_some(plan), ..exchange });
    }

    /// Returns the checks that the exchanges fail; each exchange has the first `length` messages.
    fn failed(
        budget_tokens: u64,
        exchanges: Vec<(usize, Answer, Option<Seen>)>,
    ) -> Vec<(Check, u64)> {
        let conversation = conversation();
        let mut judge = Judge::new(&conversation, budget_tokens, 0);
        for (length, answer, seen) in exchanges {
            let own: Vec<&str> =
                conversation.messages[..length].iter().map(|message| &*message.raw).collect();
            let body = format!(r#"{{"messages":[{}]}}"#, own.join(","));
            let frame = (&br#"{"messages":["#[..], &b"]}"[..]);
            let answer = Ok(answer);
            let body = body.as_bytes();
            judged(&mut judge, Exchange { length, body, frame, answer, seen, plan: None });
        }
        let failures = Check::ALL.map(|check| (check, judge.tally.of(check).failed));
        failures.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    #[track_caller]
    fn check_sent(length: usize, action: &str, received: u64, sent: &[&str], expected: &[Check]) {
        let (answer, seen) = exchanged(action, received, sent);
        let failed = failed(1000, vec![(length, answer, Some(seen))]);
        let expected: Vec<_> = expected.iter().map(|check| (*check, 1)).collect();
        assert_eq!(failed, expected);
    }

    #[test]
    fn what_was_sent_is_judged_by_its_bytes() {
        let all = [SYSTEM, FIRST, CALL, RESULT, ANSWER, SECOND];
        check_sent(6, "pass", 50, &all, &[]);
        check_sent(6, "evict", 50, &all, &[Check::PassBelowLimit]);
        check_sent(6, "evict", 101, &[SYSTEM, NOTED, SECOND], &[]);
        check_sent(6, "pass", 101, &[SYSTEM, NOTED, SECOND], &[Check::PassIdentical]);
        check_sent(6, "evict", 101, &[NOTED, SECOND], &[Check::SystemKept]);
        check_sent(6, "evict", 101, &[SYSTEM, FIRST, TAILED], &[]);
        let before = FIRST.replace("first", &format!("first{TAIL}"));
        let known = [Check::OnlyKnownChanges];
        check_sent(6, "evict", 101, &[SYSTEM, &before, SECOND], &known);
        check_sent(6, "evict", 101, &[SYSTEM, RESULT, ANSWER, SECOND], &[Check::Opening]);
        check_sent(6, "evict", 101, &[SYSTEM, FIRST, ANSWER], &[Check::LastVerbatim]);
        check_sent(6, "evict", 101, &[SYSTEM, NOTED_BEFORE], &[Check::LastVerbatim]);
        check_sent(6, "evict", 101, &[SYSTEM, FIRST, APART, SECOND], &[]);
        check_sent(6, "evict", 101, &[SYSTEM, APART, APART_MORE, SECOND], &[]);
        check_sent(6, "fit", 101, &[SYSTEM, FIRST, CALL, CLIPPED, ANSWER, SECOND], &[]);
        check_sent(4, "fit", 101, &[SYSTEM, FIRST, CALL, CLIPPED], &[]);
        check_sent(4, "evict", 101, &[SYSTEM, FIRST, CALL, CLIPPED], &[Check::LastVerbatim]);
        for changed in [MISCLIPPED, THIRD, "{}", &RESULT.replace("tail", "tai1")] {
            let sent = [SYSTEM, FIRST, CALL, changed, ANSWER, SECOND];
            check_sent(6, "fit", 101, &sent, &[Check::OnlyKnownChanges]);
        }
        check_sent(6, "fit", 101, &[SYSTEM, SECOND, FIRST], &[Check::OnlyKnownChanges]);
        for wrong in [
            // The notes quote a sent message, claim more messages than are removed, and quote text
            // that nobody said.
            &[SYSTEM, FIRST, APART, CALL, RESULT, SECOND][..],
            &[SYSTEM, FIRST, APART, APART_ANEW, SECOND],
            &[SYSTEM, FIRST, &APART.replace("tail", "other"), SECOND],
            &[SYSTEM, FIRST, &NOTED.replace("first", "other"), SECOND],
        ] {
            check_sent(6, "evict", 101, wrong, &[Check::OnlyKnownChanges]);
        }
    }

    #[test]
    fn the_upstream_has_its_say() {
        let (answer, mut seen) = exchanged("pass", 50, &[SYSTEM, FIRST]);
        seen.prompt_tokens = Some(1001);
        assert_eq!(failed(1000, vec![(2, answer, Some(seen))]), [(Check::Fits, 1)]);
        let (mut answer, mut seen) = exchanged("pass", 50, &[SYSTEM, FIRST]);
        (answer.status, seen.status, seen.prompt_tokens) = (400, 400, None);
        let expected = [(Check::Answered, 1), (Check::Valid, 1)];
        assert_eq!(failed(1000, vec![(2, answer, Some(seen))]), expected);
    }

    #[test]
    fn a_refusal_must_be_due() {
        let refusal = || Answer {
            status: 400,
            own_error: Some("context_length_exceeded".to_owned()),
            message: "too long".to_owned(),
            ..Answer::default()
        };
        let conversation = conversation();
        let least_tokens = conversation.least_tokens(2);
        assert_eq!(failed(1000, vec![(2, refusal(), None)]), [(Check::Answered, 1)]);
        assert_eq!(failed(least_tokens + BORDERLINE_TOKENS, vec![(2, refusal(), None)]), []);
        let other = Answer { own_error: Some("internal".to_owned()), ..refusal() };
        assert_eq!(failed(1000, vec![(2, other, None)]), [(Check::Answered, 1)]);
        // Nothing this small is judged infeasible, except a long last message.
        let long = format!(r#"{{"role":"user","content":"{}"}}"#, "word ".repeat(100));
        let line = format!(r#"{{"id":"c","source":"s","messages":[{SYSTEM},{long},{ANSWER}]}}"#);
        let conversation = read_line(&line).expect("it is sound");
        for (answer, failures) in [(refusal(), 0), (exchanged("pass", 50, &[]).0, 1)] {
            let mut judge = Judge::new(&conversation, 20, 0);
            let frame = (&b""[..], &b""[..]);
            let answer = Ok(answer);
            judge.judge(Exchange { length: 2, body: b"", frame, answer, seen: None, plan: None });
            assert_eq!(judge.tally.of(Check::Refused).failed, failures);
            assert_eq!(judge.tally.infeasible, 1);
        }
    }

    #[test]
    fn a_prefix_breaks_at_cuts_alone() {
        let run = |second: &[&str]| {
            let (first_answer, first) = exchanged("evict", 101, &[SYSTEM, NOTED, SECOND]);
            let (answer, seen) = exchanged("evict", 120, second);
            failed(1000, vec![(6, first_answer, Some(first)), (8, answer, Some(seen))])
        };
        let broken = [(Check::PrefixHeld, 1)];
        assert_eq!(run(&[SYSTEM, NOTED, SECOND, ANSWER, THIRD]), []);
        assert_eq!(run(&[SYSTEM, NOTED, THIRD]), []);
        // Recalled text for a question is gone with the next request.
        let tailed = THIRD.replace("third", &format!("third{TAIL}"));
        assert_eq!(run(&[SYSTEM, NOTED, SECOND, ANSWER, &tailed]), []);
        // Only the note was removed, though everything would have fitted.
        assert_eq!(run(&[SYSTEM, FIRST, SECOND, ANSWER, THIRD]), broken);
        // A removed message returned.
        assert_eq!(run(&[SYSTEM, CALL, RESULT, THIRD]), broken);
    }

    #[test]
    fn notes_are_judged_by_the_sizes_at_their_compaction() {
        let run = |budget_tokens: u64, first: &[&str], second: &[&str]| {
            let (first_answer, first) = exchanged("evict", 101, first);
            let (answer, seen) = exchanged("evict", 120, second);
            failed(budget_tokens, vec![(6, first_answer, Some(first)), (8, answer, Some(seen))])
        };
        let apart = [SYSTEM, FIRST, APART, ANSWER, SECOND];
        let two = [SYSTEM, FIRST, APART, APART_MORE, SECOND];
        // Only sizes outside the slack are certain to differ.
        assert_eq!(run(1000, &apart, &[SYSTEM, FIRST, APART, APART_MORE, THIRD]), []);
        let broken = [(Check::NotesHeld, 1)];
        assert_eq!(run(1000, &two, &[SYSTEM, FIRST, APART_MORE, THIRD]), broken);
    }

    #[test]
    fn what_changes_without_a_compaction_is_found() {
        let conversation = conversation();
        let mut judge = Judge::new(&conversation, 1000, 0);
        let frame = (&br#"{"messages":["#[..], &b"]}"[..]);
        for (length, sent) in [
            (6, &[SYSTEM, FIRST, APART, SECOND][..]),
            (8, &[SYSTEM, FIRST, APART_MORE, SECOND, ANSWER, THIRD]),
        ] {
            let (answer, seen) = exchanged("evict", 101, sent);
            let plan = Some(Plan { compactions: 1, messages: 6, low_tokens: 75 });
            let (answer, seen) = (Ok(answer), Some(seen));
            judge.judge(Exchange { length, body: b"", frame, answer, seen, plan });
        }
        assert_eq!(judge.tally.of(Check::NotesHeld).failed, 1);
    }

    #[test]
    fn cost_and_cuts_add_up() {
        let conversation = conversation();
        let mut judge = Judge::new(&conversation, 20, 0);
        let frame = (&br#"{"messages":["#[..], &b"]}"[..]);
        for (length, sent) in [
            (2, &[SYSTEM, FIRST][..]),
            (6, &[SYSTEM, NOTED, SECOND]),
            (8, &[SYSTEM, NOTED, SECOND, ANSWER, THIRD]),
        ] {
            let (answer, seen) = exchanged("evict", 101, sent);
            let answer = Ok(answer);
            let seen = Some(seen);
            judged(&mut judge, Exchange { length, body: b"", frame, answer, seen, plan: None });
        }
        assert_eq!(judge.tally.cuts, 1);
        let full = |length| conversation.full_tokens(length);
        assert_eq!(judge.tally.full.tokens, full(2) + full(6) + full(8));
        assert_eq!(judge.tally.sent.cached_tokens, 0, "nothing so short is cached");
        assert_eq!(judge.tally.growth_quarters, (full(8) - full(6)) as f64 / 5.0);
    }
}
