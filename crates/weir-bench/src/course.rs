//! Course of one case through one proxy at one limit: judges the body of each turn.

use std::collections::HashMap;
use std::rc::Rc;

use serde_json::Value;

use super::scores::{MOST_DECAY, Scores};
use super::valid::{self, BrokenRule};
use super::{CaseItems, Plant, Planted, edits, forwarded, tools_tokens};
use weir_eval::conversation::Message;
use weir_eval::judge::{Judge, Tools};
use weir_eval::sent::{Other, SentPiece};
use weir_eval::text::{self, Border};

/// Characters of context around a value, as the measure of context has them.
const CONTEXT_CHARACTERS: usize = 30;

/// Maximum number of contexts of a value that are looked for.
const MAX_CONTEXTS: usize = 1000;

/// State of one case under one proxy at one limit.
pub struct Course<'a> {
    asked: &'a CaseItems,
    limit_tokens: u64,
    judge: Judge<'a>,
    /// Messages of the conversation by their canonical text.
    own: HashMap<String, Vec<usize>>,
    others: HashMap<String, Option<Rc<Other>>>,
    /// Tools of the request that arrived last; `None` before the first one.
    previous_tools: Option<Option<Box<str>>>,
    /// Steps of growth past the limit that are judged already.
    decay: usize,
    /// Whether the request judged last does not begin with all of the one before.
    is_compaction: bool,
    scores: Scores,
}

/// Value that an answer uses and that a request does not show in its context.
#[derive(Debug, Clone)]
pub struct Missing {
    /// Message in which it was last seen.
    pub message: usize,
    pub value: String,
    /// Text before and behind each of its occurrences, the newest first.
    pub contexts: Vec<(String, String)>,
}

impl Missing {
    /// Whether a text, such as an answer of the recall tool, shows the value in a context that it had.
    /// Arguments of calls may be shown as JSON strings.
    pub fn is_in(&self, raw: &str) -> bool {
        let is_shown = |raw: &str| {
            let read = text::Text::new(raw).text;
            let shows = |at: usize| {
                let (before, after) = (&read[..at], &read[at + self.value.len()..]);
                let mut contexts = self.contexts.iter();
                contexts.any(|own| before.ends_with(&own.0) && after.starts_with(&own.1))
            };
            text::find_all(&read, &self.value).any(shows)
        };
        let decoded = || {
            let text = raw.replace("\\n", "\n").replace("\\t", "\t");
            text.replace("\\\"", "\"").replace("\\\\", "\\")
        };
        is_shown(raw) || is_shown(&decoded())
    }

    /// The words around the value, without it: a tool that repeats the question has not answered.
    pub fn words(&self) -> String {
        let (before, after) = self.contexts.first().cloned().unwrap_or_default();
        format!("{} {}", before.trim(), after.trim()).trim().to_owned()
    }
}

impl<'a> Course<'a> {
    /// Starts the course of a case at a limit for the whole request.
    pub fn new(asked: &'a CaseItems, limit_tokens: u64) -> Self {
        let case = &*asked.case;
        let budget_tokens = limit_tokens.saturating_sub(case.tools_tokens);
        let mut own: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, message) in case.conversation.messages.iter().enumerate() {
            own.entry(canonical(&message.raw)).or_default().push(index);
        }
        Self {
            asked,
            limit_tokens,
            judge: Judge::new(&case.conversation, &asked.questions, budget_tokens),
            own,
            others: HashMap::new(),
            previous_tools: None,
            decay: 0,
            is_compaction: false,
            scores: Scores::default(),
        }
    }

    /// Whether the request of turn `place` exceeds the limit and can be brought within it.
    pub fn is_judged(&self, place: usize) -> bool {
        let case = &*self.asked.case;
        let length = case.conversation.turns[place];
        let tools_tokens = case.tools_tokens;
        case.conversation.full_tokens(length) + tools_tokens > self.limit_tokens
            && case.conversation.least_tokens(length) + tools_tokens <= self.limit_tokens
    }

    /// Judges the body that reached the upstream for turn `place`; `None` if none did. Returns the values
    /// that it does not show.
    pub fn judge(&mut self, place: usize, body: Option<&[u8]>) -> Vec<Missing> {
        let case = &*self.asked.case;
        let length = case.conversation.turns[place];
        let read = body.and_then(forwarded);
        let raws: Vec<&str> =
            read.iter().flat_map(|read| &read.messages).map(|raw| raw.get()).collect();
        let pieces = self.pieces(&raws, length);
        let tokens: u64 = pieces.iter().map(|piece| piece.tokens(&case.conversation)).sum();
        let sent_tools_tokens = match read.as_ref().and_then(|read| read.tools) {
            Some(tools) if Some(tools.get()) == case.tools.as_deref() => case.tools_tokens,
            Some(tools) => tools_tokens(tools.get()),
            None => 0,
        };
        let is_within =
            case.conversation.full_tokens(length) + case.tools_tokens <= self.limit_tokens;
        if is_within || self.is_judged(place) {
            self.scores.answered.add(read.is_some());
        }
        self.scores.same_bytes.add(body.is_some_and(|body| body == case.body(length)));
        let (lost, cuts) = (self.judge.lost.len(), self.judge.tally.cuts);
        let is_first = self.previous_tools.is_none();
        match &read {
            Some(read) => {
                let tools = Some(read.tools.map(|tools| Box::from(tools.get())));
                self.judge.tools = Tools {
                    sent_tokens: sent_tools_tokens,
                    full_tokens: case.tools_tokens,
                    has_changed: self.previous_tools != tools,
                };
                self.previous_tools = tools;
                self.judge.judge(place, &pieces);
            }
            None => self.judge.judge_lost(place),
        }
        self.is_compaction = self.judge.tally.cuts > cuts;
        if is_within {
            let is_whole = pieces.len() == length
                && pieces.iter().enumerate().all(
                    |(index, piece)| matches!(piece, SentPiece::Verbatim(own) if *own == index),
                );
            self.scores.unchanged.add(is_whole);
        }
        if self.is_judged(place) {
            if read.is_some() {
                self.judge_form(length, &pieces, pieces.len() == raws.len());
                self.scores.fits.add(tokens + sent_tools_tokens <= self.limit_tokens);
                if !is_first {
                    self.scores.prefix.add(!self.is_compaction);
                }
            }
            self.judge_texts(length, &pieces);
        }
        self.judge.lost[lost..]
            .iter()
            .filter_map(|own| self.missing(own.last_seen, &own.value))
            .collect()
    }

    /// Whether the request judged last was compacted: it does not begin with all of the one before.
    pub fn is_compaction(&self) -> bool {
        self.is_compaction
    }

    /// Returns the results of the course.
    pub fn finish(mut self) -> Scores {
        self.scores.tally = self.judge.tally;
        self.scores
    }

    /// Reads messages as pieces of the conversation; those that cannot be read are left out.
    fn pieces(&mut self, raws: &[&str], length: usize) -> Vec<SentPiece> {
        let mut pieces = Vec::with_capacity(raws.len());
        let mut next = 0;
        for (number, raw) in raws.iter().enumerate() {
            let key = canonical(raw);
            let places = self.own.get(&key).map_or(&[][..], Vec::as_slice);
            let known = places.iter().filter(|own| **own < length);
            // The last message is the client's last one, even if an earlier one equals it.
            let found = match number + 1 == raws.len() {
                true => known.clone().next_back(),
                false => known.clone().find(|own| **own >= next).or_else(|| known.clone().next()),
            };
            if let Some(index) = found {
                next = index + 1;
                pieces.push(SentPiece::Verbatim(*index));
                continue;
            }
            // Made from no message: text that any proxy adds to one is a change.
            let other =
                self.others.entry(key).or_insert_with(|| Other::read(raw, None).map(Rc::new));
            pieces.extend(other.clone().map(SentPiece::Other));
        }
        pieces
    }

    /// Judges whether a request that arrived keeps the rules.
    fn judge_form(&mut self, length: usize, pieces: &[SentPiece], is_readable: bool) {
        let conversation = &self.asked.case.conversation;
        let messages: Vec<&Message> =
            pieces.iter().map(|piece| piece.message(conversation)).collect();
        let problem = match is_readable {
            true => valid::problem(conversation, length, &messages),
            false => Some(BrokenRule::Unreadable),
        };
        self.scores.valid.add(problem.is_none());
        if let Some(problem) = problem {
            *self.scores.problems.entry(format!("{problem:?}")).or_default() += 1;
        }
    }

    /// Judges edits and planted texts.
    fn judge_texts(&mut self, length: usize, pieces: &[SentPiece]) {
        let conversation = &self.asked.case.conversation;
        let mut is_kept = vec![false; conversation.messages.len()];
        let mut others: Vec<&Other> = Vec::new();
        for piece in pieces {
            match piece {
                SentPiece::Verbatim(index) => is_kept[*index] = true,
                SentPiece::Other(other) => others.push(other),
            }
        }
        for edit in edits::last(&self.asked.edits, length) {
            self.scores.edits.add(edit.is_readable(&is_kept, &others));
        }
        let shows = |plant: &Plant| {
            is_kept[plant.message] || others.iter().any(|other| other.says(&plant.text))
        };
        match &self.asked.case.planted {
            Planted::Nothing => {}
            Planted::Rules { plants, is_crowded } => {
                for plant in plants.iter().filter(|plant| plant.message < length) {
                    let is_readable = shows(plant);
                    self.scores.rules[usize::from(*is_crowded)].add(is_readable);
                    let by_depth = &mut self.scores.rules_by_depth[usize::from(*is_crowded)];
                    by_depth.entry(plant.depth).or_default().add(is_readable);
                }
            }
            Planted::Facts { facts, rules } => {
                let full_tokens = conversation.full_tokens(length) + self.asked.case.tools_tokens;
                // Each step is half a limit of growth: one compaction of a proxy that cuts to half.
                let is_due = full_tokens * 2 >= self.limit_tokens * (3 + self.decay as u64);
                if !is_due || self.decay >= MOST_DECAY {
                    return;
                }
                let scores = &mut self.scores.decay[self.decay];
                for fact in facts {
                    let has_value = is_kept[fact.message]
                        || others.iter().any(|other| shows_word(other, &fact.value));
                    scores.values.add(has_value);
                    scores.facts.add(shows(fact));
                }
                rules.iter().for_each(|rule| scores.rules.add(shows(rule)));
                scores.compactions.push(self.judge.tally.cuts);
                self.decay += 1;
            }
        }
    }

    /// Finds the contexts of a value up to the message where it was last seen.
    fn missing(&self, message: usize, value: &str) -> Option<Missing> {
        let messages = self.asked.case.conversation.messages[..=message].iter().rev();
        let texts = messages.flat_map(|own| &own.texts);
        let contexts = texts.flat_map(|own| {
            let found = text::find_all(&own.text, value);
            found.map(|start| {
                let end = start + value.len();
                let (before, after) = own.window(start, end, CONTEXT_CHARACTERS, Border::Text);
                (before.to_owned(), after.to_owned())
            })
        });
        let contexts: Vec<(String, String)> = contexts.take(MAX_CONTEXTS).collect();
        let is_there = !contexts.is_empty();
        is_there.then(|| Missing { message, value: value.to_owned(), contexts })
    }
}

fn shows_word(other: &Other, value: &str) -> bool {
    let mut texts = other.message.texts.iter();
    texts.any(|own| text::find_all(&own.text, value).next().is_some())
}

/// Returns a message's JSON text in one form: members sorted, without `null`, a lone part of text as a
/// string. Providers do not see these differences.
fn canonical(raw: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(raw) else { return raw.to_owned() };
    let mut out = String::with_capacity(raw.len());
    write(&value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().filter(|(_, own)| !own.is_null()).collect();
            members.sort_by_key(|(name, _)| name.as_str());
            out.push('{');
            for (name, own) in members {
                out.push_str(&format!("{}:", Value::from(name.as_str())));
                match lone_text(own).filter(|_| name == "content") {
                    Some(text) => write(text, out),
                    None => write(own, out),
                }
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(list) => {
            out.push('[');
            for own in list {
                write(own, out);
                out.push(',');
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

fn lone_text(value: &Value) -> Option<&Value> {
    let [part] = value.as_array()?.as_slice() else { return None };
    (part["type"] == "text").then(|| &part["text"])
}

#[cfg(test)]
mod tests {
    use crate::bounds::Bound;
    use crate::{Case, generated};
    use std::sync::Arc;

    use super::*;
    use weir_eval::Budget;
    use weir_eval::tally::Recall;

    /// Plays a case through a bound.
    fn played(case: &Arc<Case>, bound: Bound, budget: Budget) -> Scores {
        let asked = CaseItems::new(Arc::clone(case));
        let limit_tokens = case.limit_tokens(budget).expect("it is long enough");
        let mut course = Course::new(&asked, limit_tokens);
        for place in 0..case.conversation.turns.len() {
            let body = bound.body(&asked, place, limit_tokens);
            course.judge(place, Some(&body));
        }
        course.finish()
    }

    fn cases() -> Vec<Arc<Case>> {
        let mut cases = generated::conversations(5, 1);
        cases.extend([
            generated::ruled(5, false),
            generated::ruled(5, true),
            generated::decaying(5),
        ]);
        cases.into_iter().map(Arc::new).collect()
    }

    #[test]
    fn doing_nothing_changes_nothing_and_every_column_is_at_its_bound() {
        for case in cases() {
            let scores = played(&case, Bound::Nothing, Budget::Percent(25));
            let requests = case.conversation.turns.len() as u64;
            let share = scores.same_bytes;
            assert_eq!((share.kept, share.of), (requests, requests));
            assert_eq!(scores.answered.value(), Some(1.0));
            assert_eq!(scores.unchanged.value(), Some(1.0));
            assert_eq!(scores.valid.value(), Some(1.0), "{:?}", scores.problems);
            assert_eq!((scores.fits.kept, scores.fits.of > 0), (0, true));
            for recall in Recall::ALL {
                let share = scores.tally.recall[recall as usize];
                assert_eq!(share.kept, share.of, "{recall:?}");
            }
            for share in scores.rules.iter().chain([&scores.edits]) {
                assert_eq!(share.kept, share.of);
            }
            assert_eq!((scores.tally.cuts, scores.prefix.value()), (0, Some(1.0)));
            assert_eq!(scores.tally.cost, scores.tally.full_cost);
            assert_eq!(scores.tally.sent_tokens, scores.tally.full_tokens);
        }
    }

    #[test]
    fn the_oracle_and_drop_all_bound_every_column_of_retention() {
        let mut asked_for = [0; Recall::ALL.len()];
        for case in cases() {
            let [oracle, least] = [Bound::Oracle, Bound::DropAll]
                .map(|bound| played(&case, bound, Budget::Percent(25)));
            for (scores, problems) in [(&oracle, 0), (&least, 0)] {
                assert_eq!(scores.problems.len(), problems, "{:?}", scores.problems);
                assert_eq!(scores.valid.value(), Some(1.0));
            }
            assert_eq!(least.fits.value(), Some(1.0));
            for recall in Recall::ALL {
                let (best, worst) =
                    (oracle.tally.recall[recall as usize], least.tally.recall[recall as usize]);
                assert_eq!(best.kept, best.of, "{recall:?} of {}", case.conversation.id);
                assert!(worst.kept <= best.kept && worst.of == best.of);
                asked_for[recall as usize] += best.of - worst.kept;
            }
            assert_eq!(oracle.edits.kept, oracle.edits.of);
            let tokens = |scores: &Scores| scores.tally.sent_tokens;
            assert!(tokens(&least) < tokens(&oracle) && tokens(&oracle) < oracle.tally.full_tokens);
            let billed = |scores: &Scores| {
                let cost = &scores.tally.cost;
                10 * (cost.tokens - cost.cached_tokens) + cost.cached_tokens
            };
            assert!(billed(&least) < billed(&oracle), "{}", case.conversation.id);
            assert!(least.prefix.value() < Some(0.1) && oracle.prefix.value() < Some(1.0));
            for (best, worst) in oracle.rules.iter().zip(&least.rules) {
                assert_eq!(best.kept, best.of);
                assert_eq!(worst.of, best.of);
                assert!(worst.of == 0 || worst.kept * 5 < worst.of, "{worst:?}");
            }
            for (best, worst) in oracle.decay.iter().zip(&least.decay) {
                assert_eq!((best.facts.kept, worst.facts.kept), (best.facts.of, 0));
                assert_eq!((best.rules.kept, worst.rules.kept), (best.rules.of, 0));
            }
            if matches!(case.planted, Planted::Facts { .. }) {
                assert!(oracle.decay.iter().all(|step| step.facts.of == 20));
            }
        }
        for recall in [Recall::Deep, Recall::Context, Recall::Gram, Recall::Action, Recall::User] {
            assert!(asked_for[recall as usize] > 20, "{recall:?} is asked for");
        }
    }

    #[test]
    fn a_rewritten_body_is_the_same_conversation() {
        let line = r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},
            {"role":"assistant","content":"a"},{"role":"user","content":"u"},{"role":"assistant","content":"b"}]}"#;
        let case = Case::read(line, 1).expect("it is one");
        let asked = CaseItems::new(Arc::new(case));
        let case = &asked.case;
        let mut course = Course::new(&asked, 1000);
        course.judge(0, Some(&case.body(2)));
        let body = r#"{"messages": [ {"content": "s", "role": "system", "name": null},
            {"role": "user", "content": [{"type": "text", "text": "u"}]},
            {"role":"assistant","content":"a"},{"content":"u","role":"user"} ]}"#;
        course.judge(1, Some(body.as_bytes()));
        let scores = course.finish();
        assert_eq!((scores.unchanged.kept, scores.unchanged.of), (2, 2));
        assert_eq!((scores.same_bytes.kept, scores.same_bytes.of), (1, 2));
        assert_eq!(scores.tally.cuts, 0);
    }

    #[test]
    fn a_request_that_reaches_nobody_keeps_nothing() {
        let case = generated::ruled(1, false);
        let asked = CaseItems::new(Arc::new(case));
        let case = &asked.case;
        let limit_tokens = case.limit_tokens(Budget::Percent(50)).expect("long enough");
        let mut course = Course::new(&asked, limit_tokens);
        let last = case.conversation.turns.len() - 1;
        assert!(course.is_judged(last));
        let missing = course.judge(last, None);
        assert!(!missing.is_empty());
        for own in &missing {
            let message = &case.conversation.messages[own.message];
            assert!(message.texts.iter().any(|text| own.is_in(&text.text)));
            assert!(!own.is_in(&own.words()));
        }
        let scores = course.finish();
        assert_eq!((scores.answered.kept, scores.answered.of, scores.tally.turns), (0, 1, 1));
        assert_eq!((scores.valid.of, scores.fits.of, scores.prefix.of), (0, 0, 0));
        assert_eq!((scores.rules[0].kept, scores.rules[0].of > 0), (0, true));
    }

    #[test]
    fn a_lost_request_costs_nothing_and_hides_no_compaction() {
        let case = Arc::new(generated::ruled(1, false));
        let asked = CaseItems::new(Arc::clone(&case));
        let limit_tokens = case.limit_tokens(Budget::Percent(50)).expect("long enough");
        let turns = case.conversation.turns.len();
        let [whole, lost] = [None, Some(turns - 2)].map(|lost| {
            let mut course = Course::new(&asked, limit_tokens);
            for place in 0..turns {
                // Compacted in the last turn.
                let bound = if place + 1 < turns { Bound::Nothing } else { Bound::DropAll };
                let body = bound.body(&asked, place, limit_tokens);
                course.judge(place, (lost != Some(place)).then_some(&body));
            }
            course.finish()
        });
        assert_eq!((whole.tally.cuts, lost.tally.cuts), (1, 1));
        assert_eq!(lost.prefix.of + 1, whole.prefix.of);
        let tokens = case.conversation.full_tokens(case.conversation.turns[turns - 2]);
        let tokens = tokens + case.tools_tokens;
        assert_eq!(lost.tally.cost.tokens + tokens, whole.tally.cost.tokens);
        assert_eq!(lost.tally.full_cost.tokens + tokens, whole.tally.full_cost.tokens);
    }

    /// Conversation of three turns that is long enough for a cache.
    fn long_case() -> Case {
        let text = "word ".repeat(2000);
        let tools = serde_json::json!([{"type": "function", "function": {"name": "f", "description": text}}]);
        let said = |role: &str, text: &str| serde_json::json!({"role": role, "content": text});
        let messages = [
            said("system", &text),
            said("user", "first"),
            said("assistant", "one"),
            said("user", "second"),
            said("assistant", "two"),
            said("user", "third"),
            said("assistant", "three"),
        ];
        let line = serde_json::json!({"tools": tools, "messages": messages});
        Case::read(&line.to_string(), 1).expect("it is one")
    }

    #[test]
    fn text_added_to_a_last_message_is_a_change_whoever_adds_it() {
        let asked = CaseItems::new(Arc::new(long_case()));
        let case = &asked.case;
        let added = ["[weir: earlier messages that may bear on this]", "[recalled]"].map(|own| {
            let mut course = Course::new(&asked, case.tools_tokens + 100_000);
            let body = String::from_utf8(case.body(4)).expect("text");
            let with_text = body.replace("\"second\"", &format!("\"second\\n\\n{own} one\""));
            assert_ne!(body, with_text);
            course.judge(0, Some(&case.body(2)));
            course.judge(1, Some(with_text.as_bytes()));
            course.judge(2, Some(&case.body(6)));
            course.finish().tally.cuts
        });
        assert_eq!(added, [1, 1]);
    }

    #[test]
    fn tools_are_billed_and_other_ones_break_the_cache() {
        let asked = CaseItems::new(Arc::new(long_case()));
        let case = &asked.case;
        let sizes = [2, 4, 6].map(|length| case.conversation.full_tokens(length));
        let all = sizes.iter().sum::<u64>() + 3 * case.tools_tokens;
        let played = |change: &str| {
            let mut course = Course::new(&asked, 100_000);
            for (place, length) in [2, 4, 6].into_iter().enumerate() {
                let body = String::from_utf8(case.body(length)).expect("text");
                let body = if place == 1 { body.replace(r#""name":"f""#, change) } else { body };
                course.judge(place, Some(body.as_bytes()));
            }
            course.finish().tally
        };
        let same = played(r#""name":"f""#);
        assert_eq!((same.cost, same.cost.tokens), (same.full_cost, all));
        assert_eq!(same.cost.cached_tokens, sizes[0] + sizes[1] + 2 * case.tools_tokens);
        let other = played(r#""name":"g""#);
        assert_eq!((other.cost.tokens, other.cost.cached_tokens, other.cuts), (all, 0, 0));
    }
}
