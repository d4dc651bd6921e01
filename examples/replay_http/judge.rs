//! Judges one conversation at one budget, request by request, by what the caller was answered and
//! what the upstream received.
//!
//! It sends nothing itself.

use super::conversation::{Conversation, Role};
use super::scripted_upstream::Seen;
use super::sent::{Piece, Tracer, callers, whole};
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
            // Calls' arguments and short results may have been clipped, which the least does not know of:
            // whether the answered request fits is judged by the upstream's count.
            self.tally.infeasible += 1;
            let is_clipped = answer.status == 200 && answer.action.contains("fit");
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

    /// By how much weir's own size may lie above the judge's: it takes tools in steps of a fiftieth
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
        let shared = |before: &[Piece]| {
            let pairs = before.iter().zip(pieces);
            pairs.take_while(|(old, new)| old.is_same(new, conversation)).count()
        };
        // What bore on the last question is no part of what is to be repeated, but was paid for.
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
        let is_cut = shared < before.len();
        let outcome = if is_cut {
            let new = conversation.full_tokens(length) - conversation.full_tokens(before_length);
            let is_forced = tokens(before) + new + self.slack_tokens() > self.budget_tokens;
            explain_cut(conversation, (before, before_length), (pieces, length), is_forced)
        } else {
            Ok(())
        };
        // A first request that was cut down broke no prefix, but is a cut all the same.
        let is_first_cut = self.previous.is_none() && callers(pieces) < length;
        self.tally.cuts += u64::from(is_cut || is_first_cut);
        self.check(Check::PrefixHeld, length, outcome);
    }
}

/// Whether what broke the prefix was a real cut, given the messages sent and how many there were,
/// before and now: something more is gone, clipped or told in a note, or what was sent before does
/// not fit any more; nothing that had gone has come back, and notes of earlier cuts stay as they are
/// but where all of them are written anew.
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
        return Err(format!("no more is gone ({} messages), clipped or told", gone.0));
    }
    check_notes(conversation, before, pieces)?;
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

/// Whether the notes in messages of their own were added to, or are all new.
fn check_notes(
    conversation: &Conversation,
    before: &[Piece],
    pieces: &[Piece],
) -> Result<(), String> {
    let notes = |pieces: &[Piece]| -> Vec<Piece> {
        let quotes = |piece: &&Piece| {
            piece.is_apart()
                && piece.change.as_ref().is_some_and(|change| !change.note.quoted.is_empty())
        };
        pieces.iter().filter(quotes).cloned().collect()
    };
    let (old, new) = (notes(before), notes(pieces));
    let is_same = |(old, new): (&Piece, &Piece)| old.is_same(new, conversation);
    // The last note is provisional if it was written beside an outsized turn.
    let settled = old.len().saturating_sub(1);
    let is_added_to = settled <= new.len() && old[..settled].iter().zip(&new).all(is_same);
    let stayed = new.iter().any(|new| old.iter().any(|old| old.is_same(new, conversation)));
    if is_added_to || !stayed {
        Ok(())
    } else {
        Err("some notes of earlier cuts changed, others did not".to_owned())
    }
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

    /// System, question, call, result, answer, question, answer; each its own letter.
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
    const APART: &str = r##"{"role":"user","content":"[weir: 2 earlier messages, shortened to fit; … = left out]\n#3 f:\nhead … tail"}"##;
    const APART_MORE: &str = r##"{"role":"user","content":"[weir: 1 earlier message, shortened to fit; … = left out]\n#4 assistant:\nanswer"}"##;
    const APART_ANEW: &str = r##"{"role":"user","content":"[weir: 3 earlier messages, shortened to fit; … = left out]\n#3 f:\ntail\n#4 assistant:\nanswer"}"##;
    const CLIPPED: &str = r#"{"role":"tool","tool_call_id":"1","content":"head\n[weir: 7 of 16 bytes left out]\n tail"}"#;
    const MISCLIPPED: &str = r#"{"role":"tool","tool_call_id":"1","content":"head\n[weir: 8 of 16 bytes left out]\n tail"}"#;

    fn conversation() -> Conversation {
        let messages = [SYSTEM, FIRST, CALL, RESULT, ANSWER, SECOND, ANSWER, THIRD, ANSWER];
        let messages = messages.join(",");
        read_line(&format!(r#"{{"id":"c","source":"s","messages":[{messages}]}}"#))
            .expect("it is sound")
    }

    /// An answer, and what the upstream saw, of a request of which `sent` was sent.
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

    /// Which checks the exchanges fail, each of the first so many messages.
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
            judge.judge(Exchange { length, body: body.as_bytes(), frame, answer, seen });
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
            // It quotes what is sent, tells of more than is gone, quotes what was never said.
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
        // Nothing so small is judged infeasible, but for a long last message.
        let long = format!(r#"{{"role":"user","content":"{}"}}"#, "word ".repeat(100));
        let line = format!(r#"{{"id":"c","source":"s","messages":[{SYSTEM},{long},{ANSWER}]}}"#);
        let conversation = read_line(&line).expect("it is sound");
        for (answer, failures) in [(refusal(), 0), (exchanged("pass", 50, &[]).0, 1)] {
            let mut judge = Judge::new(&conversation, 20, 0);
            let frame = (&b""[..], &b""[..]);
            let answer = Ok(answer);
            judge.judge(Exchange { length: 2, body: b"", frame, answer, seen: None });
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
        // What bears on a question is gone with the next request.
        let tailed = THIRD.replace("third", &format!("third{TAIL}"));
        assert_eq!(run(&[SYSTEM, NOTED, SECOND, ANSWER, &tailed]), []);
        // The note went and nothing else did, though all of it would have fitted.
        assert_eq!(run(&[SYSTEM, FIRST, SECOND, ANSWER, THIRD]), broken);
        // What had gone came back.
        assert_eq!(run(&[SYSTEM, CALL, RESULT, THIRD]), broken);
    }

    #[test]
    fn notes_change_only_all_at_once() {
        let run = |first: &[&str], second: &[&str]| {
            let (first_answer, first) = exchanged("evict", 101, first);
            let (answer, seen) = exchanged("evict", 120, second);
            failed(1000, vec![(6, first_answer, Some(first)), (8, answer, Some(seen))])
        };
        let broken = [(Check::PrefixHeld, 1)];
        let apart = [SYSTEM, FIRST, APART, ANSWER, SECOND];
        assert_eq!(run(&apart, &[SYSTEM, FIRST, APART, APART_MORE, THIRD]), []);
        assert_eq!(run(&apart, &[SYSTEM, FIRST, APART_ANEW, SECOND, ANSWER, THIRD]), []);
        assert_eq!(run(&apart, &[SYSTEM, FIRST, APART, APART_MORE, SECOND, ANSWER, THIRD]), []);
        assert_eq!(run(&apart, &[SYSTEM, FIRST, ANSWER, SECOND, ANSWER, THIRD]), broken);
        let two = [SYSTEM, FIRST, APART, APART_MORE, SECOND];
        assert_eq!(run(&two, &[SYSTEM, FIRST, APART_MORE, THIRD]), broken);
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
            judge.judge(Exchange { length, body: b"", frame, answer, seen: Some(seen) });
        }
        assert_eq!(judge.tally.cuts, 1);
        let full = |length| conversation.full_tokens(length);
        assert_eq!(judge.tally.full.tokens, full(2) + full(6) + full(8));
        assert_eq!(judge.tally.sent.cached_tokens, 0, "nothing so short is cached");
        assert_eq!(judge.tally.growth_quarters, (full(8) - full(6)) as f64 / 5.0);
    }
}
