//! Conversation with the requests that were made of it: what each was billed, or would have been. Where a
//! transcript has no usage, the rules of the provider's cache decide.

use std::ops::Range;
use std::rc::Rc;

use xxhash_rust::xxh3::xxh3_64;

use super::fold::Folded;
use crate::bill::{self, BilledTokens, CacheRules, MOST_TOKENS};
use crate::conversation::{Conversation, MEASURE};
use crate::recorded::RecordedExchange;
use weir_engine::compact::policy::Goal;
use weir_engine::plan::extra_tokens;
use weir_store::budget::{Kind, Price, part};

/// Looks up the price of a model.
pub type Prices<'p> = dyn Fn(&str) -> Option<&'p Price> + Sync + 'p;

/// What is known of models, and of conversations beyond what was recorded.
pub struct Models<'m> {
    pub price: &'m Prices<'m>,
    /// Looks up the context window.
    pub window_tokens: &'m (dyn Fn(&str) -> Option<u64> + Sync + 'm),
    /// The model of requests that name none.
    pub default_model: Option<&'m str>,
    /// Whether requests without times get pauses, the same each time.
    pub draws_pauses: bool,
}

/// Share of requests that follow a pause longer than caches live, in a million: 742 of 19,805 in one operator's
/// log of a month.
const COLD_PER_MILLION: u64 = 37_465;

/// Draws a pause, in milliseconds, by the name of a conversation and the number of a request: mostly of some
/// seconds, as between the calls of an agent, and now and then of a quarter of an hour to eight hours.
fn drawn_pause_ms(id: &str, request: usize) -> u64 {
    const MINUTE_MS: u64 = 60_000;
    let random = xxh3_64(format!("{id}\n{request}").as_bytes());
    let (long, rest) = (random % 1_000_000 < COLD_PER_MILLION, random / 1_000_000);
    if long { (15 << (rest % 6)) * MINUTE_MS } else { 2_000 + rest % 30_000 }
}

/// Conversation whose requests are billed.
pub(super) struct History {
    pub project: Option<String>,
    /// Its turns are the requests that were made.
    pub conversation: Conversation,
    /// One for each turn.
    pub made: Vec<Made>,
    /// Whether the pauses between the requests are drawn: no time of theirs is a date.
    is_drawn: bool,
}

/// Request as it was made.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub model: String,
    pub price: Rc<Price>,
    /// Time since the request before, in milliseconds.
    pub pause_ms: Option<u64>,
    pub at_ms: Option<u64>,
    pub is_reported: bool,
    /// Whether it equals the request before.
    pub is_repeated: bool,
    pub rules: CacheRules,
    pub billed: BilledTokens,
    /// Prompt tokens of everything but the messages.
    fixed_tokens: u64,
    /// Size of the messages by weir's own measure.
    pub messages_tokens: u64,
    /// Prompt tokens that were sent before.
    pub base_tokens: u64,
}

impl History {
    /// Reads and counts a conversation.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or a model has no price; the text says so.
    pub(super) fn read(draft: &Folded, models: &Models<'_>) -> Result<Self, Unbilled> {
        let Folded { recorded, lengths, repeats } = draft;
        let broken = |error| Unbilled::Broken(recorded.refusal(&format!("{error:?}")));
        let request =
            recorded.protocol.read(recorded.body.as_bytes(), usize::MAX).map_err(broken)?;
        let conversation = draft.conversation().map_err(Unbilled::Broken)?;
        let count = conversation.turns.len();
        let unknown = || vec![RecordedExchange::default(); count];
        let mut exchanges = lengths.as_ref().map_or_else(unknown, |_| recorded.exchanges.clone());
        let is_drawn = models.draws_pauses && exchanges.iter().all(|own| own.at_ms.is_none());
        if is_drawn {
            let mut now_ms = 0;
            for (place, own) in exchanges.iter_mut().enumerate() {
                now_ms += drawn_pause_ms(&recorded.id, place);
                own.at_ms = Some(now_ms);
            }
        }
        let exchanges = &exchanges;
        let body_model = request.model.as_deref().or(models.default_model);
        let tools_tokens = request.extras.iter().map(|extra| extra_tokens(MEASURE, extra)).sum();
        let mut scale = Scale::new(&conversation, exchanges, tools_tokens);
        // Anthropic caches what is marked, and a whole request shows its marks.
        let is_unmarked = recorded.is_request && !recorded.body.contains("\"cache_control\"");
        let mut made: Vec<Made> = Vec::with_capacity(count);
        let priced = |model: &str| {
            let price =
                (models.price)(model).ok_or_else(|| Unbilled::Unpriced(model.to_owned()))?;
            Ok(Rc::new(price.clone()))
        };
        for (place, (length, exchange)) in conversation.turns.iter().zip(exchanges).enumerate() {
            let model = exchange.model.as_deref().or(body_model).ok_or(Unbilled::Unnamed)?;
            let price = match made.last().filter(|before: &&Made| before.model == model) {
                Some(before) => Rc::clone(&before.price),
                None => priced(model)?,
            };
            let messages_tokens = conversation.full_tokens(*length);
            let answer = conversation.messages.get(*length);
            let output_tokens = answer.map_or(0, |message| message.fact.tokens);
            let size = (messages_tokens, output_tokens);
            let rules = CacheRules::of(model, &price, is_unmarked);
            let mut next =
                Made::new(made.last(), model, (price, rules), exchange, size, &mut scale);
            next.is_repeated = repeats.contains(&place);
            made.push(next);
        }
        Ok(Self { project: recorded.project.clone(), conversation, made, is_drawn })
    }

    /// Returns the times of the first and last request of all, in milliseconds since 1970.
    pub(super) fn span_ms(&self) -> Option<Range<u64>> {
        let times = || self.made.iter().filter_map(|own| own.at_ms).filter(|_| !self.is_drawn);
        Some(times().min()?..times().max()?)
    }

    /// Returns a goal by the prices of the first request, in weir's own measure of the messages.
    pub(super) fn priced(&self, goal: Goal) -> Goal {
        let Some(first) = self.made.first() else { return goal };
        let rates = [Kind::CachedInput, Kind::CacheWrite];
        let rates = rates.map(|kind| first.price.permille_of_input(kind));
        let step_tokens = first.price.step_tokens().and_then(|step| self.budget_tokens(step));
        goal.priced(rates, step_tokens)
    }

    /// Returns the size of the messages by weir's own measure at which the last request's whole prompt has
    /// `limit_tokens`; `None` if the rest of the prompt alone exceeds that.
    pub(super) fn budget_tokens(&self, limit_tokens: u64) -> Option<u64> {
        let last = self.made.last()?;
        let room_tokens = limit_tokens.checked_sub(last.fixed_tokens).filter(|room| *room > 0)?;
        let sent_tokens = last.billed.prompt_tokens.saturating_sub(last.fixed_tokens);
        Some(part(room_tokens, last.messages_tokens, sent_tokens)).filter(|tokens| *tokens > 0)
    }
}

/// Reason why a conversation is not part of the figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unbilled {
    /// It cannot be read; the text names it.
    Broken(String),
    /// Nothing names its model.
    Unnamed,
    /// The price of this model is not known.
    Unpriced(String),
}

/// Relation of a provider's counts to weir's own, and what the prompt has besides the messages.
struct Scale {
    fixed_tokens: u64,
    /// Tokens of the last reported prompt without the fixed ones, and of its messages.
    reported: (u64, u64),
}

impl Scale {
    /// Transcripts leave out the system prompt and the tools: they are what the first reported prompt has
    /// more than its messages.
    fn new(conversation: &Conversation, exchanges: &[RecordedExchange], tools_tokens: u64) -> Self {
        let first = exchanges.iter().zip(&conversation.turns).find_map(|(exchange, length)| {
            let prompt_tokens = bill::reported_prompt(&exchange.reported.usage?)?;
            Some(prompt_tokens.saturating_sub(conversation.full_tokens(*length)))
        });
        Self { fixed_tokens: first.unwrap_or(tools_tokens), reported: (1, 1) }
    }

    fn prompt_tokens(&self, messages_tokens: u64) -> u64 {
        let (reported, counted) = self.reported;
        self.fixed_tokens.saturating_add(part(messages_tokens, reported, counted))
    }
}

impl Made {
    fn new(
        before: Option<&Self>,
        model: &str,
        (price, rules): (Rc<Price>, CacheRules),
        exchange: &RecordedExchange,
        (messages_tokens, output_tokens): (u64, u64),
        scale: &mut Scale,
    ) -> Self {
        let passed = |before: &Self| Some(exchange.at_ms?.saturating_sub(before.at_ms?));
        let pause_ms = before.and_then(passed);
        let usage = exchange.reported.usage.unwrap_or_default();
        let prompt_tokens =
            bill::reported_prompt(&usage).unwrap_or_else(|| scale.prompt_tokens(messages_tokens));
        let same_model = before.filter(|before| before.model == model);
        let sent_before = same_model.map_or(0, |before| before.billed.prompt_tokens);
        let reported = BilledTokens::reported(&exchange.reported, &price);
        let billed = reported.unwrap_or_else(|| {
            let read_tokens = rules.read_tokens(sent_before.min(prompt_tokens), pause_ms);
            BilledTokens {
                prompt_tokens,
                read_tokens,
                written_tokens: rules.written_tokens(prompt_tokens, read_tokens),
                output_tokens: usage.completion_tokens.unwrap_or(output_tokens).min(MOST_TOKENS),
                service_tier: bill::service_tier(&exchange.reported),
                ..BilledTokens::default()
            }
        });
        let fixed_tokens = scale.fixed_tokens.min(billed.prompt_tokens);
        if usage.prompt_tokens.is_some() && messages_tokens > 0 {
            scale.reported = (billed.prompt_tokens - fixed_tokens, messages_tokens);
        }
        let base_tokens = match before {
            Some(_) => sent_before.min(billed.prompt_tokens),
            None => billed.prompt_tokens,
        };
        Self {
            model: model.to_owned(),
            price,
            pause_ms,
            at_ms: exchange.at_ms,
            is_reported: reported.is_some(),
            is_repeated: false,
            rules,
            billed,
            fixed_tokens,
            messages_tokens,
            base_tokens,
        }
    }

    /// Whether the cache had certainly dropped what was sent before: a minute more than it keeps it had passed.
    pub(super) fn is_long_cold(&self) -> bool {
        self.rules.is_cold(self.pause_ms.map(|pause_ms| pause_ms.saturating_sub(bill::MARGIN_MS)))
    }

    pub(super) fn nano_usd(&self) -> u64 {
        self.billed.nano_usd(&self.price)
    }

    /// Returns what of the prompt some tokens of the messages are, in the provider's count.
    pub(super) fn in_prompt(&self, tokens: u64) -> u64 {
        part(tokens, self.billed.prompt_tokens - self.fixed_tokens, self.messages_tokens)
    }

    /// Returns the bill of the same request with messages of `sent_tokens`, if all of its prompt that was sent
    /// before were `shared_tokens`.
    pub(super) fn without(&self, sent_tokens: u64, shared_tokens: u64) -> BilledTokens {
        let gone_tokens = self.in_prompt(self.messages_tokens.saturating_sub(sent_tokens));
        let prompt_tokens = self.billed.prompt_tokens.saturating_sub(gone_tokens);
        self.billed.resized(prompt_tokens, shared_tokens, self.base_tokens)
    }

    /// Returns the bill of the same request with messages of `sent_tokens`, whose first
    /// `shared_tokens` were sent before.
    pub(super) fn resized(&self, sent_tokens: u64, shared_tokens: u64) -> BilledTokens {
        let shared_tokens = self.fixed_tokens.saturating_add(self.in_prompt(shared_tokens));
        let billed = self.without(sent_tokens, shared_tokens);
        // A prefix below the smallest is not in the cache.
        match billed.read_tokens < self.rules.least_tokens {
            true => self.without(sent_tokens, 0),
            false => billed,
        }
    }
}
