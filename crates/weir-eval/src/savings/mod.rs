//! What conversations cost, what they would have cost under a limit, and what would have been lost. Bills the
//! requests that were made, by [`crate::bill`]; replays them through the engine and judges them as
//! [`crate::replay`] does. Reads no file, knows no prices of its own.

mod fold;
mod habits;
mod history;
mod optimum;
mod report;
mod text;

use std::ops::Range;
use std::rc::Rc;

pub use fold::{Folded, fold};
pub use habits::{Habit, Habits};
use history::History;
pub use history::{Models, Prices, Unbilled};
pub use report::{At, Group, Savings};

use crate::bill::{BilledTokens, MOST_TOKENS};
use crate::engine::Engine;
use crate::judge::Judge;
use crate::questions::{Questions, Turn};
use crate::tally::Recall;
use weir_engine::compact::Policy;
use weir_engine::compact::policy::Goal;
use weir_engine::compact::source::Readings;

/// Limits in thousands of tokens that may be tried.
const LIMITS: [u64; 8] = [4, 8, 16, 32, 64, 128, 256, 512];
/// Number of limits that are tried if none is asked for.
const TRIED: usize = 3;

/// Messages that stay after each compaction of the optimum, in tokens: as many as limits by price keep at least.
const KEPT_TOKENS: u64 = 16_000;

/// Limit that is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrialLimit {
    Goal(Goal),
    /// No limit, but an estimate by sizes alone: the cheapest compactions of a conversation that is known to its
    /// end, if each keeps 16,000 tokens. Nothing is planned, and nothing is known of what is lost.
    Optimum,
}

impl TrialLimit {
    /// Where reading and compacting cost least.
    pub const ECONOMIC: Self = Self::Goal(Goal::WORDS[2].1);

    /// Limits that have a name.
    pub const WORDS: [(&'static str, Self); 5] = [
        ("window", Self::Goal(Goal::Limit)),
        ("step", Self::Goal(Goal::Step(u64::MAX))),
        ("economic", Self::ECONOMIC),
        ("cold", Self::Goal(Goal::WORDS[3].1)),
        ("optimum", Self::Optimum),
    ];

    /// Returns its name; `None` for a number of tokens.
    pub fn word(self) -> Option<&'static str> {
        match self {
            Self::Goal(goal) => goal.word(),
            Self::Optimum => Some("optimum"),
        }
    }

    /// Returns the number of tokens, if it is one.
    pub fn tokens(self) -> Option<u64> {
        if let Self::Goal(Goal::Tokens(tokens)) = self { Some(tokens) } else { None }
    }
}

/// Returns the limits in tokens to try for conversations whose largest prompt has about `largest_tokens`, the
/// highest first. Much lower ones cut so often that they hardly pay, and take long to replay.
pub fn limits_below(largest_tokens: u64) -> Vec<u64> {
    let limits = LIMITS.iter().rev().map(|thousands| thousands * 1000);
    limits.filter(|limit_tokens| *limit_tokens < largest_tokens).take(TRIED).collect()
}

/// What is found about one conversation.
#[derive(Debug, Clone)]
pub struct Finding {
    /// Folder that the agent worked in.
    pub project: Option<String>,
    pub requests: u64,
    /// Requests whose usage the transcript has.
    pub reported_requests: u64,
    pub prompt_tokens: u64,
    pub largest_prompt_tokens: u64,
    /// Times of the first and last request, in milliseconds since 1970.
    pub span_ms: Option<Range<u64>>,
    /// Cost by model.
    pub models: Vec<ModelCost>,
    /// Values that answers used again, and that were last seen more than four messages back.
    pub values: u64,
    /// One for each limit, in order.
    pub limits: Vec<Limited>,
    pub habits: Habits,
}

/// Cost of a conversation's requests to one model, in nano-dollars.
#[derive(Debug, Clone)]
pub struct ModelCost {
    pub model: String,
    pub requests: u64,
    pub nano_usd: u64,
    /// One for each limit, in order.
    pub limits_nano_usd: Vec<u64>,
}

/// Losses of a conversation under one limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limited {
    /// Values that answers used again, and that would not have been sent.
    pub lost_values: u64,
    /// Requests that nothing can make fit, billed as they were.
    pub unfit_requests: u64,
    /// Requests that would have been sent shorter.
    pub shortened_requests: u64,
}

/// Bills one conversation as it was, and under each of the limits by a policy.
///
/// # Errors
///
/// If the conversation cannot be read, or has a request whose price is not known.
pub fn examine(
    draft: &Folded,
    models: &Models<'_>,
    policy: &Policy,
    tried: &[TrialLimit],
) -> Result<Finding, Unbilled> {
    let history = History::read(draft, models)?;
    let mut questions = Questions::new(&history.conversation);
    let turns = &history.conversation.turns;
    // Requests of the same messages have one answer.
    for place in (1..turns.len()).filter(|place| turns[*place] == turns[place - 1]) {
        questions.turns[place] = Turn::default();
    }
    let made = &history.made;
    let prompts = || made.iter().map(|own| own.billed.prompt_tokens);
    let largest_prompt_tokens = prompts().max().unwrap_or(0);
    let window_tokens = made.first().and_then(|own| (models.window_tokens)(&own.model));
    let mut models: Vec<ModelCost> = Vec::new();
    for own in made {
        let cost = model_cost(&mut models, &own.model);
        cost.requests += 1;
        cost.nano_usd = cost.nano_usd.saturating_add(own.nano_usd());
    }
    let readings = Rc::default();
    let mut limits = Vec::with_capacity(tried.len());
    for own in tried {
        let own = match (own, window_tokens) {
            (TrialLimit::Goal(Goal::Limit), Some(window)) => TrialLimit::Goal(Goal::Tokens(window)),
            _ => *own,
        };
        let is_below = own.tokens().is_none_or(|limit| largest_prompt_tokens > limit);
        let run = is_below.then(|| match own {
            TrialLimit::Optimum => (optimum::cheapest(&history, KEPT_TOKENS), Limited::default()),
            TrialLimit::Goal(goal) => limited(&history, &questions, goal, policy, &readings),
        });
        let (bills, limited) = run.unwrap_or_default();
        limits.push(limited);
        models.iter_mut().for_each(|cost| cost.limits_nano_usd.push(0));
        for (place, own) in made.iter().enumerate() {
            let nano_usd = bills.get(place).unwrap_or(&own.billed).nano_usd(&own.price);
            if let Some(all) = model_cost(&mut models, &own.model).limits_nano_usd.last_mut() {
                *all = all.saturating_add(nano_usd);
            }
        }
    }
    let values = questions.turns.iter().map(|turn| turn.references.len() as u64).sum();
    Ok(Finding {
        requests: made.len() as u64,
        reported_requests: made.iter().filter(|own| own.is_reported).count() as u64,
        prompt_tokens: prompts().fold(0, u64::saturating_add),
        largest_prompt_tokens,
        span_ms: history.span_ms(),
        models,
        values,
        limits,
        habits: Habits::of(&history),
        project: history.project,
    })
}

fn model_cost<'m>(models: &'m mut Vec<ModelCost>, model: &str) -> &'m mut ModelCost {
    let place = models.iter().position(|own| own.model == model).unwrap_or_else(|| {
        let model = model.to_owned();
        models.push(ModelCost { model, requests: 0, nano_usd: 0, limits_nano_usd: Vec::new() });
        models.len() - 1
    });
    &mut models[place]
}

/// Replays a conversation under a limit; one by price is by that of its first request. Returns the bill of each
/// request.
fn limited(
    history: &History,
    questions: &Questions,
    goal: Goal,
    policy: &Policy,
    readings: &Rc<Readings>,
) -> (Vec<BilledTokens>, Limited) {
    let is_cold = matches!(goal, Goal::Cold(_));
    let conversation = &history.conversation;
    let mut found = Limited::default();
    let mut policy = policy.clone();
    let budget_tokens = match goal {
        Goal::Tokens(limit_tokens) => history.budget_tokens(limit_tokens).ok_or(limit_tokens),
        goal => {
            policy.zones.goal = history.priced(goal);
            Ok(MOST_TOKENS)
        }
    };
    let budget_tokens = match budget_tokens {
        Ok(tokens) => tokens,
        Err(limit_tokens) => {
            let prompts = history.made.iter().map(|own| own.billed.prompt_tokens);
            found.unfit_requests = prompts.filter(|tokens| *tokens > limit_tokens).count() as u64;
            return (Vec::new(), found);
        }
    };
    let engine = Engine::new(conversation, budget_tokens, &policy, None);
    let mut engine = engine.with_readings(readings);
    let mut judge = Judge::new(conversation, questions, budget_tokens);
    let mut bills = Vec::with_capacity(history.made.len());
    let mut was_whole = true;
    for (place, (made, length)) in history.made.iter().zip(&conversation.turns).enumerate() {
        if is_cold && made.is_long_cold() {
            engine.compact_early(*length);
        }
        engine.send(*length);
        let is_unfit = !engine.fits;
        judge.judge_fitting(place, &engine.sent, engine.fits);
        let (full_tokens, sent_tokens) = judge.sizes[place];
        let is_whole = sent_tokens >= full_tokens;
        found.unfit_requests += u64::from(is_unfit);
        found.shortened_requests += u64::from(!is_whole && !is_unfit);
        bills.push(match is_unfit || (is_whole && was_whole) {
            true => made.billed,
            false => made.resized(sent_tokens, judge.shared_tokens[place]),
        });
        was_whole = is_whole;
    }
    let kept = judge.tally.recall[Recall::Ref as usize];
    found.lost_values = kept.of - kept.kept;
    (bills, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Conversation;
    use crate::recorded::{Recorded, RecordedExchange};
    use weir_engine::wire::usage::{Metered, Usage};
    use weir_store::budget::Price;
    use weir_store::budget::price::{Rates, ServiceTier};

    const MODEL: &str = "claude-sonnet-4-5";
    const PRICE: &str = "in 4 cached 0.4 write 5 write1h 8 out 20";

    fn examined(recorded: &Recorded, price: &str, limits_tokens: &[u64]) -> Finding {
        let price = Price::parse(price).expect("a price");
        let prices = |model: &str| (model == MODEL).then_some(&price);
        let (drafts, refused) = fold(vec![recorded.clone()]);
        assert!(refused.is_empty(), "{refused:?}");
        let policy = Policy::default();
        let tried: Vec<TrialLimit> =
            limits_tokens.iter().map(|tokens| TrialLimit::Goal(Goal::Tokens(*tokens))).collect();
        examine(&drafts[0], &models(&prices), &policy, &tried).expect("it can be billed")
    }

    fn models<'p>(price: &'p Prices<'p>) -> Models<'p> {
        Models { price, window_tokens: &|_| None, default_model: None, draws_pauses: false }
    }

    fn nano_usd(finding: &Finding) -> u64 {
        finding.models.iter().map(|own| own.nano_usd).sum()
    }

    /// Conversation of questions with so many words each, and of short answers.
    fn recorded(words: &[usize], exchanges: Vec<RecordedExchange>) -> Recorded {
        let messages: Vec<String> = words
            .iter()
            .enumerate()
            .map(|(number, words)| {
                let text = format!("question {number} ") + &"word ".repeat(*words);
                format!(
                    r#"{{"role":"user","content":"{text}"}},{{"role":"assistant","content":"yes {number}"}}"#
                )
            })
            .collect();
        let body = format!(r#"{{"model":"{MODEL}","messages":[{}]}}"#, messages.join(","));
        let exchanges = exchanges.into_iter().enumerate();
        let exchanges =
            exchanges.map(|(place, own)| RecordedExchange { sent: 2 * place + 1, ..own }).collect();
        Recorded { id: "x".to_owned(), body, exchanges, ..Recorded::default() }
    }

    fn at(at_ms: u64, usage: Option<[u64; 4]>) -> RecordedExchange {
        let usage = usage.map(|[prompt, read, written, output]| Usage {
            prompt_tokens: Some(prompt),
            cached_tokens: Some(read),
            cache_write_tokens: Some(written),
            completion_tokens: Some(output),
            ..Usage::default()
        });
        let reported = Metered { usage, ..Metered::default() };
        RecordedExchange { at_ms: Some(at_ms), reported, ..RecordedExchange::default() }
    }

    #[test]
    fn without_usage_the_rules_of_the_cache_decide() {
        const MINUTE_MS: u64 = 60_000;
        for (pause_ms, is_cold) in [(5 * MINUTE_MS, false), (5 * MINUTE_MS + 1, true)] {
            let own = recorded(&[2000, 3000], vec![at(0, None), at(pause_ms, None)]);
            let read = Conversation::read(&own.body, 1, None).expect("a conversation");
            let (first, second) = (read.full_tokens(1), read.full_tokens(3));
            let output = read.messages[1].fact.tokens + read.messages[3].fact.tokens;
            let again = if is_cold { first * 5000 } else { first * 400 };
            let expected = first * 5000 + again + (second - first) * 5000 + output * 20_000;
            let finding = examined(&own, PRICE, &[]);
            assert_eq!(nano_usd(&finding), expected, "after {pause_ms}");
            let cold = Habit { count: u64::from(is_cold), nano_usd: again - first * 400 };
            assert_eq!(finding.habits.cold_caches, cold);
            assert_eq!((finding.requests, finding.reported_requests), (2, 0));
            assert_eq!(finding.largest_prompt_tokens, second);
        }
    }

    #[test]
    fn usage_of_the_transcript_is_billed_as_it_is() {
        let usage = [Some([9000, 0, 8000, 10]), Some([13_000, 8000, 5000, 20])];
        let own = recorded(&[2000, 3000], vec![at(0, usage[0]), at(1, usage[1])]);
        let finding = examined(&own, PRICE, &[100_000]);
        let expected = 1000 * 4000 + 8000 * 5000 + 8000 * 400 + 5000 * 5000 + 30 * 20_000;
        assert_eq!(nano_usd(&finding), expected);
        assert_eq!(finding.models[0].limits_nano_usd, [expected], "nothing is above this limit");
        assert_eq!((finding.reported_requests, finding.prompt_tokens), (2, 22_000));
    }

    #[test]
    fn a_limit_costs_less_and_says_what_is_lost() {
        let own = recorded(&[3000; 12], Vec::new());
        let finding = examined(&own, PRICE, &[8000, 16_000, 100_000, 10]);
        let [low, middle, whole, refused] = finding.models[0].limits_nano_usd[..] else {
            panic!("one for each limit")
        };
        assert!(low < whole && middle < whole, "{low} {middle} {whole}");
        assert_eq!((whole, refused), (nano_usd(&finding), nano_usd(&finding)));
        assert!(finding.limits[0].shortened_requests > finding.limits[1].shortened_requests);
        assert_eq!(finding.limits[2].shortened_requests, 0);
        assert_eq!((finding.limits[0].unfit_requests, finding.limits[3].unfit_requests), (0, 12));
        assert!(finding.limits.iter().all(|own| own.lost_values <= finding.values));
    }

    #[test]
    fn what_the_engine_clips_can_fit() {
        let result = "a line of the file\\n".repeat(600);
        let call = |id: usize| {
            format!(
                r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"bash","arguments":"{{}}"}}}}]}},{{"role":"tool","tool_call_id":"{id}","content":"{result}"}}"#
            )
        };
        let calls: Vec<String> = (0..5).map(call).collect();
        let body = |user: &str| {
            format!(
                r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":"{user}"}},{}]}}"#,
                calls.join(",")
            )
        };
        let unfit = |user: &str| {
            let own = Recorded { body: body(user), ..Recorded::default() };
            let limited = examined(&own, PRICE, &[1000]).limits[0];
            (limited.unfit_requests, limited.shortened_requests)
        };
        assert_eq!(unfit("go"), (0, 4), "each result alone is above the limit");
        assert_eq!(unfit(&"word ".repeat(2000)).0, 1, "a user's text is never clipped");
    }

    #[test]
    fn three_limits_below_the_largest_prompt_are_tried() {
        for (largest_tokens, limits) in [
            (4000, &[][..]),
            (4001, &[4000]),
            (100_000, &[64_000, 32_000, 16_000]),
            (u64::MAX, &[512_000, 256_000, 128_000]),
        ] {
            assert_eq!(limits_below(largest_tokens), limits, "{largest_tokens}");
        }
    }

    #[test]
    fn what_has_no_price_is_left_out() {
        let read = |body: &str, model: Option<&str>| {
            let body = body.to_owned();
            let (drafts, _) = fold(vec![Recorded { body, ..Recorded::default() }]);
            let models = Models { default_model: model, ..models(&|_| None) };
            examine(&drafts[0], &models, &Policy::default(), &[]).expect_err("no price")
        };
        let messages =
            r#""messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#;
        assert_eq!(read(&format!("{{{messages}}}"), None), Unbilled::Unnamed);
        let named = Unbilled::Unpriced("m".to_owned());
        assert_eq!(read(&format!("{{{messages}}}"), Some("m")), named);
        assert_eq!(read(&format!(r#"{{"model":"m",{messages}}}"#), None), named);
        let broken = read(r#"{"model":"m","messages":[{"content":"a"}]}"#, None);
        assert!(matches!(broken, Unbilled::Broken(_)), "{broken:?}");
    }

    #[test]
    fn repeated_calls_and_reads_are_habits() {
        let call = |id: u8, name: &str, arguments: &str, result: &str| {
            format!(
                r#"{{"role":"assistant","content":null,"tool_calls":[{{"id":"{id}","type":"function","function":{{"name":"{name}","arguments":"{arguments}"}}}}]}},{{"role":"tool","tool_call_id":"{id}","content":"{result}"}}"#
            )
        };
        let calls = [
            call(1, "read_file", r#"{\"path\":\"a.rs\"}"#, "fn a() {}"),
            call(2, "read_file", r#"{\"path\":\"a.rs\"}"#, "fn a() {}"),
            call(3, "read_file", r#"{\"path\":\"a.rs\",\"from\":7}"#, "fn b() {}"),
            call(4, "bash", r#"{\"command\":\"date\"}"#, "1"),
            call(5, "bash", r#"{\"command\":\"date\"}"#, "2"),
        ];
        let user = r#"{"role":"user","content":"go"}"#;
        let body = format!(r#"{{"model":"{MODEL}","messages":[{user},{}]}}"#, calls.join(","));
        let own = Recorded { body, ..Recorded::default() };
        let habits = examined(&own, "in 4 out 20", &[]).habits;
        assert_eq!((habits.repeated_calls.count, habits.files_read_again.count), (1, 1));
        let read = Conversation::read(&own.body, 1, None).expect("a conversation");
        // The second result is in the prompts after the second, third and fourth call.
        let tokens = read.messages[4].fact.tokens;
        assert_eq!(habits.repeated_calls.nano_usd, 3 * tokens * 4000);
        assert_eq!(habits.files_read_again.nano_usd, 2 * read.messages[6].fact.tokens * 4000);
    }

    #[test]
    fn steps_and_repeated_requests_are_habits() {
        let usage = Some([3000, 0, 0, 10]);
        let request = |at_ms| Recorded {
            is_request: true,
            exchanges: vec![RecordedExchange { model: Some(MODEL.to_owned()), ..at(at_ms, usage) }],
            body: r#"{"messages":[{"role":"user","content":"a"}]}"#.to_owned(),
            ..Recorded::default()
        };
        let price = Price::parse("in 4 out 20 above 2000 in 8 out 30").expect("a price");
        let (drafts, _) = fold(vec![request(1), request(2)]);
        let prices = |_: &str| Some(&price);
        let finding = examine(&drafts[0], &models(&prices), &Policy::default(), &[]);
        let finding = finding.expect("it can be billed");
        let (above, below) = (3000 * 8000 + 10 * 30_000, 3000 * 4000 + 10 * 20_000);
        assert_eq!(nano_usd(&finding), 2 * above);
        let steps = Habit { count: 2, nano_usd: 2 * (above - below) };
        assert_eq!(finding.habits.price_steps, steps);
        assert_eq!(finding.habits.repeated_requests, Habit { count: 1, nano_usd: above });
    }

    #[test]
    fn fees_are_billed_and_stay_under_a_limit() {
        let mut own = recorded(&[2000], vec![at(1, Some([9000, 0, 0, 10]))]);
        let reported = &mut own.exchanges[0].reported;
        reported.speed = Some("fast".to_owned());
        reported.usage.as_mut().expect("it has one").web_searches = Some(5);
        let usage =
            Usage { prompt_tokens: Some(1000), completion_tokens: Some(100), ..Usage::default() };
        reported.apart = vec![weir_engine::wire::usage::InnerUsage { usage, model: None }];
        let mut price = Price::parse("in 4 out 20 search 10").expect("a price");
        price.service_tiers =
            vec![(ServiceTier::Fast, Rates::of_tokens(8_000_000_000, 40_000_000_000))];
        let prices = |_: &str| Some(&price);
        let (drafts, _) = fold(vec![own]);
        let tried = [TrialLimit::Goal(Goal::Tokens(4000))];
        let finding = examine(&drafts[0], &models(&prices), &Policy::default(), &tried);
        let finding = finding.expect("it can be billed");
        let fees = 5 * 10_000_000 + 1000 * 8000 + 100 * 40_000;
        assert_eq!(nano_usd(&finding), 9000 * 8000 + 10 * 40_000 + fees);
        assert!(finding.models[0].limits_nano_usd[0] > fees);
        assert_eq!(finding.requests, 1);
    }

    #[test]
    fn a_request_without_marks_is_not_cached_by_anthropic() {
        let request = |mark: &str, count: usize| {
            let text = "word ".repeat(3000);
            let turns = r#",{"role":"assistant","content":"a"},{"role":"user","content":"b"}"#;
            let body = format!(
                r#"{{"model":"{MODEL}",{mark}"messages":[{{"role":"user","content":"{text}"}}{}]}}"#,
                turns.repeat(count)
            );
            Recorded { is_request: true, body, ..Recorded::default() }
        };
        let price = Price::parse("in 4 cached 0.4 write 5 out 0").expect("a price");
        let prices = |_: &str| Some(&price);
        let bill = |mark: &str| {
            let (drafts, _) = fold(vec![request(mark, 0), request(mark, 1)]);
            let found = examine(&drafts[0], &models(&prices), &Policy::default(), &[]);
            found.expect("it can be billed")
        };
        let plain = bill("");
        assert_eq!(nano_usd(&plain), plain.prompt_tokens * 4000);
        let marked = bill(r#""cache_control":{"type":"ephemeral"},"#);
        assert!(nano_usd(&marked) < nano_usd(&plain) * 3 / 4, "{marked:?}");
    }
}
