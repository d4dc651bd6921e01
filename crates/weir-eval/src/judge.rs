//! Judge of the requests that a policy sends for one conversation. Sends nothing itself.

use super::conversation::{Conversation, Message};
use super::questions::{Questions, Reference};
use super::sent::{Other, SentPiece, common_tokens};
use super::tally::{Fault, Recall, Tally};
use super::text::Border;
use weir_engine::wire::Role;

/// Number of characters around a value that form its context.
const CONTEXT_CHARACTERS: usize = 30;

/// State of one conversation under one policy at one budget.
pub struct Judge<'a> {
    conversation: &'a Conversation,
    questions: &'a Questions,
    budget_tokens: u64,
    previous: Vec<SentPiece>,
    previous_tokens: u64,
    /// Size of the previous request, all of it sent.
    previous_full_tokens: u64,
    /// Tools of the request judged next, which the cache holds before its messages.
    pub tools: Tools,
    exceeded_at_tokens: Option<u64>,
    /// Whether each message is sent byte for byte.
    is_kept: Vec<bool>,
    pub tally: Tally,
    /// Values that could not be read, or not in their context.
    pub lost: Vec<Lost>,
    /// Size of each request, whole and as sent.
    pub sizes: Vec<(u64, u64)>,
    /// Tokens with which each request and the one before it begin alike.
    pub shared_tokens: Vec<u64>,
}

/// Tools of a request, as far as they cost. Without any, the bill is that of the messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tools {
    pub sent_tokens: u64,
    /// Those of the client's own request.
    pub full_tokens: u64,
    /// Whether no request was sent with them just before: the cache has nothing of this one.
    pub has_changed: bool,
}

/// Value that an answer used and that was not sent, or sent without its context.
#[derive(Debug, Clone)]
pub struct Lost {
    pub conversation: String,
    /// Number of messages in the request.
    pub turn: usize,
    pub value: String,
    /// Whether the value itself was sent.
    pub has_value: bool,
    /// Message in which it was last seen.
    pub last_seen: usize,
    pub last_seen_by: Role,
    /// Its context there.
    pub around: String,
}

impl<'a> Judge<'a> {
    /// Starts a conversation at a budget.
    pub fn new(
        conversation: &'a Conversation,
        questions: &'a Questions,
        budget_tokens: u64,
    ) -> Self {
        Self {
            conversation,
            questions,
            budget_tokens,
            previous: Vec::new(),
            previous_tokens: 0,
            previous_full_tokens: 0,
            tools: Tools::default(),
            exceeded_at_tokens: None,
            is_kept: vec![false; conversation.messages.len()],
            tally: Tally { conversations: 1, ..Tally::default() },
            lost: Vec::new(),
            sizes: Vec::new(),
            shared_tokens: Vec::new(),
        }
    }

    /// Judges the request of turn `place` as it was sent. Its content counts if that can fit without clipping,
    /// so that all policies are judged by the same requests.
    pub fn judge(&mut self, place: usize, sent: &[SentPiece]) {
        let least_tokens = self.conversation.least_tokens(self.conversation.turns[place]);
        self.judge_fitting(place, sent, least_tokens <= self.budget_tokens);
    }

    /// Judges the request of turn `place`, and its content if `fits`.
    pub(crate) fn judge_fitting(&mut self, place: usize, sent: &[SentPiece], fits: bool) {
        let conversation = self.conversation;
        let full_tokens = conversation.full_tokens(conversation.turns[place]);
        let sent_tokens = sent.iter().map(|piece| piece.tokens(conversation)).sum();
        self.judge_cost(full_tokens, sent_tokens, sent);
        self.sizes.push((full_tokens, sent_tokens));
        self.judge_content(place, sent, sent_tokens, fits);
        // The next request continues from the last message without its recall.
        self.previous = sent.to_vec();
        self.previous_tokens = sent_tokens;
        if let Some(last) = self.previous.last_mut()
            && let Some(index) = last.under_tail(conversation)
        {
            self.previous_tokens -= last.tokens(conversation);
            *last = SentPiece::Verbatim(index);
            self.previous_tokens += last.tokens(conversation);
        }
        self.previous_full_tokens = full_tokens;
    }

    /// Judges a request that did not arrive: nothing of it can be read, it costs nothing, and the next one
    /// continues from the one before it.
    pub fn judge_lost(&mut self, place: usize) {
        self.tally.requests += 1;
        let least_tokens = self.conversation.least_tokens(self.conversation.turns[place]);
        self.judge_content(place, &[], 0, least_tokens <= self.budget_tokens);
    }

    /// Judges what can be read, if the whole request exceeds the budget.
    fn judge_content(&mut self, place: usize, sent: &[SentPiece], sent_tokens: u64, fits: bool) {
        let conversation = self.conversation;
        let length = conversation.turns[place];
        let full_tokens = conversation.full_tokens(length);
        if full_tokens > self.budget_tokens {
            let first = *self.exceeded_at_tokens.get_or_insert(full_tokens);
            let grown = (full_tokens - first) as f64;
            self.tally.growth_quarters = grown / (self.budget_tokens as f64 / 4.0);
            self.tally.compacted = 1;
            if !fits {
                self.tally.infeasible += 1;
            } else {
                self.tally.turns += 1;
                self.tally.sent_tokens += sent_tokens;
                self.tally.full_tokens += full_tokens;
                self.judge_rules(length, sent, sent_tokens > self.budget_tokens);
                self.judge_recall(place, length, sent);
            }
        }
    }

    fn judge_cost(&mut self, full_tokens: u64, sent_tokens: u64, sent: &[SentPiece]) {
        self.tally.requests += 1;
        let common_tokens = common_tokens(self.conversation, &self.previous, sent);
        self.shared_tokens.push(common_tokens);
        let tools = self.tools;
        let cached_tokens = if tools.has_changed { 0 } else { common_tokens + tools.sent_tokens };
        self.tally.cost.add(sent_tokens + tools.sent_tokens, cached_tokens);
        let full_cached_tokens = match self.previous_full_tokens {
            0 => 0,
            tokens => tokens + tools.full_tokens,
        };
        self.tally.full_cost.add(full_tokens + tools.full_tokens, full_cached_tokens);
        self.tally.cuts += u64::from(common_tokens < self.previous_tokens);
    }

    fn judge_rules(&mut self, length: usize, sent: &[SentPiece], is_over: bool) {
        let faults = faults(self.conversation, length, sent, is_over);
        self.tally.valid.add(!faults.contains(&true));
        for (own, is_broken) in self.tally.faults.iter_mut().zip(faults) {
            *own += u64::from(is_broken);
        }
    }

    fn judge_recall(&mut self, place: usize, length: usize, sent: &[SentPiece]) {
        self.is_kept.fill(false);
        let mut others = Vec::new();
        for piece in sent {
            match piece {
                SentPiece::Verbatim(index) => self.is_kept[*index] = true,
                SentPiece::Other(other) => others.push(&**other),
            }
        }
        let questions = self.questions;
        for reference in &questions.turns[place].references {
            self.judge_reference(reference, length, &others);
        }
        for gram in &questions.turns[place].grams {
            let gram = &questions.grams[*gram as usize];
            let can_be_read = gram.messages.iter().any(|own| self.is_kept[*own as usize])
                || others.iter().any(|other| other.has_gram(gram.run));
            self.add(Recall::Gram, can_be_read);
        }
        for (recall, asked) in
            [(Recall::Action, &questions.actions), (Recall::User, &questions.users)]
        {
            for (message, needle) in asked.iter().take_while(|(message, _)| *message < length) {
                let can_be_read = self.is_kept[*message] || self.shows(*needle, &others);
                self.add(recall, can_be_read);
            }
        }
        if place + 1 == questions.turns.len() {
            self.judge_evidence(length, &others);
        }
    }

    fn add(&mut self, recall: Recall, is_kept: bool) {
        self.tally.recall[recall as usize].add(is_kept);
    }

    /// Whether a needle can be read anywhere in the sent messages.
    fn shows(&self, needle: u32, others: &[&Other]) -> bool {
        let own = &self.questions.needles[needle as usize];
        own.places.iter().any(|place| self.is_kept[place.message as usize])
            || others.iter().any(|other| other.shows(needle, &own.text))
    }

    fn judge_reference(&mut self, reference: &Reference, length: usize, others: &[&Other]) {
        let has_value = self.shows(reference.needle, others);
        self.add(Recall::Ref, has_value);
        if !reference.is_deep {
            return;
        }
        self.add(Recall::Deep, has_value);
        if reference.is_far {
            self.add(Recall::Far, has_value);
        }
        let by_text = has_value && self.has_context(reference.needle, length, others, Border::Text);
        let by_line = has_value
            && (by_text || self.has_context(reference.needle, length, others, Border::Line));
        self.add(Recall::Context, by_text);
        self.add(Recall::Line, by_line);
        if !by_text {
            self.lose(reference, length, has_value);
        }
    }

    /// Whether some occurrence of the needle can be read together with its context.
    fn has_context(&self, needle: u32, length: usize, others: &[&Other], by: Border) -> bool {
        let needle = &self.questions.needles[needle as usize];
        let before = needle.places.iter().take_while(|place| (place.message as usize) < length);
        let is_verbatim = before.clone().any(|place| self.is_kept[place.message as usize]);
        is_verbatim
            || before.into_iter().any(|place| {
                let text =
                    &self.conversation.messages[place.message as usize].texts[place.text as usize];
                let (start, end) = (place.start as usize, place.start as usize + needle.text.len());
                let (left, right) = text.window(start, end, CONTEXT_CHARACTERS, by);
                others.iter().any(|other| other.shows_between(left, &needle.text, right))
            })
    }

    fn lose(&mut self, reference: &Reference, length: usize, has_value: bool) {
        let needle = &self.questions.needles[reference.needle as usize];
        let seen = &self.conversation.messages[reference.last_seen];
        let places = needle.places.iter();
        let last = places.take_while(|place| place.message as usize <= reference.last_seen).last();
        let around = last.map_or_else(String::new, |place| {
            let start = place.start as usize;
            let end = start + needle.text.len();
            let text = &seen.texts[place.text as usize];
            let (left, right) = text.window(start, end, 2 * CONTEXT_CHARACTERS, Border::Line);
            format!("{left}«{}»{right}", needle.text)
        });
        self.lost.push(Lost {
            conversation: self.conversation.id.clone(),
            turn: length,
            value: needle.text.clone(),
            has_value,
            last_seen: reference.last_seen,
            last_seen_by: seen.role,
            around,
        });
    }

    /// Judges whether the evidence messages are kept, or at least half of each can be read.
    fn judge_evidence(&mut self, length: usize, others: &[&Other]) {
        let conversation = self.conversation;
        for message in conversation.evidence.iter().filter(|message| **message < length) {
            let texts = &conversation.messages[*message].texts;
            let grams: Vec<u64> =
                texts.iter().flat_map(|text| super::grams::of(&text.text)).collect();
            let read = |gram: &&u64| others.iter().any(|other| other.has_gram(**gram));
            let readable = grams.iter().filter(read).count();
            let can_be_read = match grams.len() {
                // Too short, or in a script without spaces.
                0 => texts.iter().all(|text| others.iter().any(|other| other.says(&text.text))),
                all => readable * 2 >= all,
            };
            let is_kept = self.is_kept[*message] || (!texts.is_empty() && can_be_read);
            self.add(Recall::Evidence, is_kept);
        }
    }
}

/// Lists the rules that a request breaks. Each call is answered at once, and each result has a
/// call. No result comes first. The last message is the caller's, apart from recall. Tokens stay
/// within the budget.
fn faults(
    conversation: &Conversation,
    length: usize,
    sent: &[SentPiece],
    is_over: bool,
) -> [bool; Fault::ALL.len()] {
    let messages: Vec<&Message> = sent.iter().map(|piece| piece.message(conversation)).collect();
    let first = messages.iter().find(|message| message.role != Role::System);
    let last = sent.last().and_then(|piece| piece.under_tail(conversation));
    let is_last_kept = last.is_some_and(|index| index + 1 == length);
    Fault::ALL.map(|fault| match fault {
        Fault::Over => is_over,
        Fault::Unpaired => !is_paired(&messages),
        Fault::OpensWithResult => first.is_none_or(|message| message.role == Role::Tool),
        Fault::LastChanged => !is_last_kept,
    })
}

pub fn is_paired(messages: &[&Message]) -> bool {
    let mut open: Vec<&str> = Vec::new();
    for message in messages {
        if message.role == Role::Tool {
            let answers = message.answers.as_deref().unwrap_or_default();
            let Some(place) = open.iter().position(|call| *call == answers) else { return false };
            open.swap_remove(place);
        } else {
            if !open.is_empty() {
                return false;
            }
            open.extend(message.calls.iter().map(String::as_str));
        }
    }
    open.is_empty()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::tally::Share;

    /// Values that the last answer uses, and their sources: `deep_one_1` (#3 alone), `deep_two_2`
    /// (#4), `first_value_1` (the first user message), `system_value` (the system), `near_value`
    /// (#9).
    const LINE: &str = r#"{"source":"s","evidence":[3],"messages":[
        {"role":"system","content":"about system_value"},
        {"role":"user","content":"please look at first_value_1 for me"},
        {"role":"assistant","content":"","tool_calls":[{"id":"a","function":{"name":"run","arguments":"{\"command\":\"\\n ls -l src/deep.rs\\n pwd\"}"}}]},
        {"role":"tool","tool_call_id":"a","content":"one two three four deep_one_1 five six seven eight"},
        {"role":"user","content":"and then\nsee deep_two_2 too"},
        {"role":"assistant","content":"fine"},
        {"role":"user","content":"go on"},
        {"role":"assistant","content":"I go on"},
        {"role":"user","content":"more"},
        {"role":"assistant","content":"near_value"},
        {"role":"user","content":"now answer"},
        {"role":"assistant","content":"three four deep_one_1 five six, deep_two_2, first_value_1, near_value, system_value"}]}"#;

    fn other(raw: &str, of: Option<usize>) -> SentPiece {
        SentPiece::Other(Rc::new(Other::read(raw, of).expect("a message")))
    }

    fn note(text: &str) -> SentPiece {
        other(&serde_json::json!({"role": "user", "content": text}).to_string(), None)
    }

    /// Returns the figures of the last request, sent as these pieces.
    fn judged(sent: &[SentPiece]) -> Tally {
        let conversation = Conversation::read(LINE, 1, None).expect("it is one");
        let questions = Questions::new(&conversation);
        let last = questions.turns.len() - 1;
        let budget_tokens = conversation.last_request_tokens() - 1;
        let mut judge = Judge::new(&conversation, &questions, budget_tokens);
        judge.judge(last, sent);
        judge.tally
    }

    fn verbatim(messages: impl IntoIterator<Item = usize>) -> Vec<SentPiece> {
        messages.into_iter().map(SentPiece::Verbatim).collect()
    }

    fn shares(tally: &Tally) -> Vec<(u64, u64)> {
        tally.recall.iter().map(|share| (share.kept, share.of)).collect()
    }

    #[test]
    fn all_that_is_sent_is_found() {
        let tally = judged(&verbatim(0..11));
        // ref, deep, far10, ctx, ctx/ln, 5gram, action, user, evidence.
        let all = [(3, 3), (2, 2), (0, 0), (2, 2), (2, 2), (1, 1), (1, 1), (4, 4), (1, 1)];
        assert_eq!(shares(&tally), all);
        assert_eq!((tally.turns, tally.infeasible, tally.valid), (1, 0, Share { kept: 0, of: 1 }));
        assert_eq!(tally.faults, [1, 0, 0, 0]);
    }

    #[test]
    fn what_is_left_out_is_missed() {
        let tally = judged(&verbatim([0, 1, 4, 5, 6, 7, 8, 9, 10]));
        let left = [(2, 3), (1, 2), (0, 0), (1, 2), (1, 2), (0, 1), (0, 1), (4, 4), (0, 1)];
        assert_eq!(shares(&tally), left);
        assert_eq!(tally.valid, Share { kept: 1, of: 1 });
    }

    #[test]
    fn a_list_of_names_restores_no_context() {
        let mut sent = verbatim([0, 1]);
        sent.push(note("[left out: deep_one_1 deep_two_2]"));
        sent.extend(verbatim([10]));
        let tally = judged(&sent);
        let left = [(3, 3), (2, 2), (0, 0), (0, 2), (0, 2), (0, 1), (0, 1), (1, 4), (0, 1)];
        assert_eq!(shares(&tally), left);
    }

    #[test]
    fn an_excerpt_restores_what_it_shows() {
        let mut sent = verbatim([0, 1]);
        // The line is the context up to the line's ends, not that of the whole text.
        sent.push(note("$ ls -l src/deep.rs\n…one two three four deep_one_1 five six seven eight\n…\nsee deep_two_2 too\n> go on"));
        sent.extend(verbatim([10]));
        let tally = judged(&sent);
        let left = [(3, 3), (2, 2), (0, 0), (1, 2), (2, 2), (1, 1), (1, 1), (2, 4), (1, 1)];
        assert_eq!(shares(&tally), left);
    }

    #[test]
    fn names_inside_longer_words_are_not_found() {
        let mut sent = verbatim([0, 1]);
        sent.push(note("xdeep_one_1 deep_two_23"));
        sent.extend(verbatim([10]));
        assert_eq!(judged(&sent).recall[Recall::Deep as usize], Share { kept: 0, of: 2 });
    }

    #[test]
    fn broken_rules_are_counted() {
        let result = r#"{"role":"tool","tool_call_id":"a","content":"x"}"#;
        for (sent, faults) in [
            (verbatim([0, 1, 2, 10]), [0, 1, 0, 0]),
            (verbatim([0, 3, 10]), [0, 1, 1, 0]),
            (verbatim([0, 1]), [0, 0, 0, 1]),
            (vec![SentPiece::Verbatim(1), other(result, Some(3))], [0, 1, 0, 1]),
            (verbatim([0, 1, 2, 3, 10]), [0, 0, 0, 0]),
        ] {
            let tally = judged(&sent);
            assert_eq!(tally.faults, faults, "{sent:?}");
            assert_eq!(tally.valid.kept, u64::from(faults == [0; 4]));
        }
    }

    #[test]
    fn a_tail_behind_the_last_message_changes_it_not() {
        let tail = "[weir: earlier messages that may bear on this; … = left out]\n#3 run:\none";
        for (role, text, is_right) in [
            ("user", format!("now answer\n\n{tail}"), true),
            ("user", format!("now answer\n\nplease. {tail}"), false),
            ("user", format!("now\n\n{tail}"), false),
            ("user", format!("{tail}\n\nnow answer"), false),
            ("assistant", format!("now answer\n\n{tail}"), false),
        ] {
            let raw = serde_json::json!({"role": role, "content": text}).to_string();
            let mut sent = verbatim([0, 1]);
            sent.push(other(&raw, Some(10)));
            let faults = judged(&sent).faults;
            assert_eq!(faults == [0; 4], is_right, "{role} {text}");
        }
        let conversation = Conversation::read(LINE, 1, None).expect("it is one");
        let questions = Questions::new(&conversation);
        let mut judge = Judge::new(&conversation, &questions, 10);
        let text = format!("more\n\n{tail}");
        let raw = serde_json::json!({"role": "user", "content": text}).to_string();
        let mut sent = verbatim([0, 1]);
        sent.push(other(&raw, Some(8)));
        let place = |length| questions_of(&conversation, length);
        judge.judge(place(9), &sent);
        judge.judge(place(11), &verbatim([0, 1, 8, 9, 10]));
        assert_eq!(judge.tally.cuts, 0, "the next request goes on without it");
        let cached: u64 = [0, 1, 8].iter().map(|own| conversation.messages[*own].fact.tokens).sum();
        assert_eq!(judge.tally.cost.cached_tokens, if cached < 1024 { 0 } else { cached });
    }

    fn questions_of(conversation: &Conversation, length: usize) -> usize {
        let found = conversation.turns.iter().position(|own| *own == length);
        found.expect("a request has as many messages")
    }

    #[test]
    fn a_cache_holds_what_requests_begin_with_alike() {
        let words = "word ".repeat(2000);
        let line = format!(
            r#"{{"messages":[{{"role":"user","content":"{words}"}},{{"role":"assistant","content":"a"}},{{"role":"user","content":"b"}},{{"role":"assistant","content":"c"}},{{"role":"user","content":"d"}},{{"role":"assistant","content":"e"}}]}}"#
        );
        let conversation = Conversation::read(&line, 1, None).expect("it is one");
        let questions = Questions::new(&conversation);
        let first = conversation.full_tokens(1);
        for (last, cached, cuts) in [
            (&[0, 1, 2, 3, 4][..], first + conversation.full_tokens(3), 0),
            (&[0, 3, 4], first * 2, 1),
            (&[4], first, 1),
        ] {
            let mut judge = Judge::new(&conversation, &questions, 1_000_000);
            for (place, sent) in [&[0][..], &[0, 1, 2], last].into_iter().enumerate() {
                judge.judge(place, &verbatim(sent.iter().copied()));
            }
            assert_eq!(
                (judge.tally.cost.cached_tokens, judge.tally.cuts),
                (cached, cuts),
                "{last:?}"
            );
            let full: u64 = [1, 3, 5].iter().map(|length| conversation.full_tokens(*length)).sum();
            assert_eq!(judge.tally.full_cost.tokens, full);
        }
    }
}
