//! Savings of compaction on one request: the estimated bill of the same request sent whole, minus
//! its actual bill. The estimate is conservative: rather too low than too high. It may be negative.
//!
//! **Measured**: the request's usage as its provider reported it; by weir's count, the
//! conversation's tokens as received, as sent, and those already in an earlier request; whether
//! this request was compacted.
//!
//! **Assumed** for the request sent whole, which never happens:
//!
//! - It gets the same answer. Its prompt is larger by the removed tokens, by weir's count, scaled
//!   down if weir counts more than the provider. It never exceeds the model's input limit.
//! - The removed tokens are billed as cache reads, unless there was no cache to read from. There
//!   was none if the provider reports no cache read although the sent prefix was unchanged and the
//!   prompt was long enough to be cached; and none for a prefix that was too short to be cached
//!   until now. If the provider does not report cache reads, they are assumed.
//! - If this request was compacted, the tokens after the compaction point that were sent before
//!   would have been cache reads too. The tokens that the provider did not read from its cache,
//!   beyond the growth of the conversation, are that rewrite. Compaction is charged for it: the
//!   full price (that of a cache write, as far as writes are reported) minus that of a cache read.
//!   The same applies to the summary block. If the provider does not report cache reads, none are
//!   assumed here.
//! - Tokens removed now that no earlier request contained (a large result masked on arrival) would
//!   have cost the full price once; they count at the price of a cache read.
//! - It has no results that the agent asked for again because compaction had left them out; a request that
//!   brings nothing else would not have been made.
//! - A provider's tier above a size applies to the whole request if the request sent whole would
//!   exceed it.
//!
//! If the provider's cache entry expires or is evicted between two requests, it looks like a
//! rewrite in a request that was compacted. That is charged, although the whole prompt would have
//! missed the cache as well.

use super::price::{self, Billed, Price};

/// Minimum prompt size that providers cache.
pub const CACHE_FLOOR_TOKENS: u64 = 1024;
const TOKENS_PER_MTOK: u128 = 1_000_000;

/// Token counts of one compaction, by weir's count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compaction {
    /// As received from the caller.
    pub received_tokens: u64,
    /// As forwarded.
    pub sent_tokens: u64,
    /// Received tokens at the start that an earlier request of the conversation already contained;
    /// `None` if no earlier request is known.
    pub earlier_tokens: Option<u64>,
    /// Whether this request was compacted: the forwarded body does not begin with that of the
    /// earlier request.
    pub is_new: bool,
    /// The model's input limit.
    pub max_input_tokens: u64,
    /// The compaction that observe mode leaves out, if any.
    pub observed: Option<Observed>,
    pub rereads: Rereads,
}

/// Results of a conversation that its agent asked for again because compaction had left them out, by weir's
/// count. The conversation sent whole would not have them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rereads {
    pub tokens: u64,
    /// Tokens of those that this request brings.
    pub new_tokens: u64,
    /// Whether this request brings nothing else: it would not have been made.
    pub is_all: bool,
}

/// Compaction that is planned and not made, by weir's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// As it would be forwarded.
    pub sent_tokens: u64,
    /// Tokens before the first message that would be changed here; `None` if the conversation would begin as
    /// in its earlier request.
    pub unchanged_tokens: Option<u64>,
}

/// Returns the savings of `compaction` for the request that was `billed` at `price`, in
/// nano-dollars, rounded down. Zero if nothing was removed.
pub fn saved_nano_usd(price: &Price, billed: &Billed, compaction: &Compaction) -> i64 {
    let sent = compaction.sent_tokens;
    if sent >= compaction.received_tokens {
        return 0;
    }
    let rereads = compaction.rereads;
    let as_sent = Billed { prompt_tokens: Some(billed.prompt_tokens.unwrap_or(sent)), ..*billed };
    let unread = Compaction {
        received_tokens: compaction.received_tokens.saturating_sub(rereads.tokens),
        earlier_tokens: compaction.earlier_tokens.map(|tokens| {
            tokens.saturating_sub(rereads.tokens - rereads.new_tokens.min(rereads.tokens))
        }),
        ..*compaction
    };
    let other = match unread.received_tokens.checked_sub(sent) {
        _ if rereads.is_all => shorter(&as_sent, u64::MAX),
        None => shorter(&as_sent, sent - unread.received_tokens),
        Some(_) => whole(&as_sent, &unread),
    };
    let with = price::bill(price, &as_sent).nano_usd_mtok;
    difference(price::bill(price, &other).nano_usd_mtok, with)
}

/// Returns the savings that the planned compaction of a request would have had, in nano-dollars, rounded down;
/// `None` if none is planned. The request was `billed` whole.
///
/// The same rules hold as above. What an earlier request contained is read from the cache in the share that
/// was read of it; if that is not reported, all of it. A planned compaction is charged for the tokens behind
/// the first one that it changes.
pub fn planned_nano_usd(price: &Price, billed: &Billed, compaction: &Compaction) -> Option<i64> {
    let Compaction { received_tokens: received, observed, .. } = *compaction;
    let planned = observed?;
    let prompt = billed.prompt_tokens.unwrap_or(received);
    let scaled = |tokens: u64| part(tokens, prompt.min(received), received).min(prompt);
    let left_out = scaled(received.saturating_sub(planned.sent_tokens));
    let earlier = scaled(compaction.earlier_tokens.unwrap_or(0).min(received));
    let is_held = |tokens: u64| tokens >= CACHE_FLOOR_TOKENS;
    let assumed = if is_held(earlier) { earlier } else { 0 };
    let cached = billed.cached_tokens.unwrap_or(assumed).min(prompt);
    let shared = match planned.unchanged_tokens {
        Some(tokens) => scaled(tokens).min(earlier),
        None => earlier.saturating_sub(left_out),
    };
    let read = if is_held(shared) { part(shared, cached, earlier.max(cached)) } else { 0 };
    let sent = (prompt - left_out).max(read);
    let written = |tokens: Option<u64>| Some(part(sent - read, tokens?, prompt - cached));
    let whole = Billed { prompt_tokens: Some(prompt), cached_tokens: Some(cached), ..*billed };
    let shorter = Billed {
        prompt_tokens: Some(sent),
        cached_tokens: Some(read),
        cache_write_tokens: written(billed.cache_write_tokens),
        cache_write_1h_tokens: written(billed.cache_write_1h_tokens),
        ..whole
    };
    let [without, with] = [whole, shorter].map(|own| price::bill(price, &own).nano_usd_mtok);
    Some(difference(without, with))
}

/// Returns `tokens * numerator / denominator`, 0 if that is 0.
pub fn part(tokens: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(tokens) * u128::from(numerator);
    u64::try_from(product.checked_div(denominator.into()).unwrap_or(0)).unwrap_or(u64::MAX)
}

/// Returns the usage of a request without `tokens` of its prompt, as far as possible of what was read from the
/// cache.
fn shorter(as_sent: &Billed, tokens: u64) -> Billed {
    let prompt = as_sent.prompt_tokens.unwrap_or(0).saturating_sub(tokens);
    let of_prompt = |part: Option<u64>| part.map(|part| part.min(prompt));
    Billed {
        prompt_tokens: Some(prompt),
        cached_tokens: as_sent.cached_tokens.map(|cached| cached.saturating_sub(tokens)),
        cache_write_tokens: of_prompt(as_sent.cache_write_tokens),
        cache_write_1h_tokens: of_prompt(as_sent.cache_write_1h_tokens),
        ..*as_sent
    }
}

/// Returns the difference of two bills in nano-dollars, rounded down.
fn difference(without: u128, with: u128) -> i64 {
    if without >= with {
        i64::try_from((without - with) / TOKENS_PER_MTOK).unwrap_or(i64::MAX)
    } else {
        let lost = (with - without).div_ceil(TOKENS_PER_MTOK);
        i64::try_from(lost).map_or(i64::MIN, |lost| -lost)
    }
}

/// Estimates the usage of the request sent whole.
fn whole(as_sent: &Billed, compaction: &Compaction) -> Billed {
    let prompt = as_sent.prompt_tokens.unwrap_or(0);
    // In the provider's tokens if it counts fewer, else in weir's.
    let sent = compaction.sent_tokens;
    let scaled = |tokens: u64| match prompt < sent {
        true => u64::try_from(u128::from(tokens) * u128::from(prompt) / u128::from(sent))
            .unwrap_or(tokens),
        false => tokens,
    };
    let left_out = scaled(compaction.received_tokens - sent)
        .min(compaction.max_input_tokens.saturating_sub(prompt));
    let mut whole = Billed { prompt_tokens: Some(prompt.saturating_add(left_out)), ..*as_sent };
    let cached = as_sent.cached_tokens.unwrap_or(0);
    let earlier = compaction.earlier_tokens.unwrap_or(0).min(compaction.received_tokens);
    let was_sent_before = earlier >= CACHE_FLOOR_TOKENS;
    if compaction.is_new && was_sent_before {
        let growth = scaled(compaction.received_tokens - earlier);
        let rewritten = prompt.saturating_sub(growth).saturating_sub(cached);
        whole.cached_tokens = Some(cached.saturating_add(left_out).saturating_add(rewritten));
        let write = |tokens: Option<u64>| tokens.map(|tokens| tokens.saturating_sub(rewritten));
        whole.cache_write_tokens = write(as_sent.cache_write_tokens);
        whole.cache_write_1h_tokens = write(as_sent.cache_write_1h_tokens);
    } else {
        let was_short = compaction.is_new && compaction.earlier_tokens.is_some();
        let could_be_cached = prompt >= CACHE_FLOOR_TOKENS;
        let read_nothing = as_sent.cached_tokens == Some(0) && could_be_cached;
        if !was_short && !read_nothing {
            whole.cached_tokens = Some(cached.saturating_add(left_out));
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A cache read costs a tenth.
    const PLAIN: &str = "in 1 cached 0.1 out 4";
    const WRITES: &str = "in 1 cached 0.1 write 1.25 out 4";
    const NO_CACHE: &str = "in 1 out 4";
    const TIERED: &str = "in 1 cached 0.1 out 4 above 200000 in 2 cached 0.2 out 8";

    fn price(text: &str) -> Price {
        Price::parse(text).unwrap_or_else(|| panic!("{text} is a price"))
    }

    /// Prompt, cached and written; -1 means missing. The output has 100 tokens.
    fn billed([prompt, cached, write]: [i64; 3]) -> Billed {
        let [prompt_tokens, cached_tokens, cache_write_tokens] =
            [prompt, cached, write].map(|figure| u64::try_from(figure).ok());
        Billed {
            prompt_tokens,
            completion_tokens: Some(100),
            cached_tokens,
            cache_write_tokens,
            ..Billed::default()
        }
    }

    fn compaction(received: u64, sent: u64, earlier: i64, is_new: bool) -> Compaction {
        Compaction {
            received_tokens: received,
            sent_tokens: sent,
            earlier_tokens: u64::try_from(earlier).ok(),
            is_new,
            max_input_tokens: 1_000_000,
            ..Compaction::default()
        }
    }

    /// Name, price, figures, compaction (received, sent, earlier, is_new) and expected savings.
    type Row = (&'static str, &'static str, [i64; 3], (u64, u64, i64, bool), i64);

    /// Savings computed by hand, in nano-dollars: a token of plain input costs 1,000.
    fn check(rows: &[Row]) {
        for &(name, text, figures, (received, sent, earlier, is_new), expected) in rows {
            let compaction = compaction(received, sent, earlier, is_new);
            let saved = saved_nano_usd(&price(text), &billed(figures), &compaction);
            assert_eq!(saved, expected, "{name}");
        }
    }

    #[test]
    fn savings_are_the_cost_of_the_whole_request_minus_the_bill() {
        check(&[
            ("nothing was left out", PLAIN, [5000, 4000, -1], (5000, 5000, 4000, false), 0),
            ("more was sent", PLAIN, [5000, 4000, -1], (5000, 5100, 4000, false), 0),
            // 10,000 read from the cache.
            ("warm", PLAIN, [5000, 4000, -1], (15_000, 5000, 14_000, false), 1_000_000),
            ("cold", PLAIN, [5000, 0, -1], (15_000, 5000, 14_000, false), 10_000_000),
            ("not said", PLAIN, [5000, -1, -1], (15_000, 5000, 14_000, false), 1_000_000),
            (
                "no price for reads",
                NO_CACHE,
                [5000, 4000, -1],
                (15_000, 5000, 14_000, false),
                10_000_000,
            ),
            ("not remembered, warm", PLAIN, [5000, 10, -1], (15_000, 5000, -1, true), 1_000_000),
            ("not remembered, cold", PLAIN, [5000, 0, -1], (15_000, 5000, -1, true), 10_000_000),
            ("new and large", PLAIN, [5000, 0, -1], (15_000, 5000, 500, true), 10_000_000),
            ("too short to say", PLAIN, [1000, 0, -1], (15_000, 1000, 14_000, false), 1_400_000),
            // 300,000 whole: 10,000 × 2 + 290,000 × .2 + 100 × 8, against 10,000 + 9,000 + 400.
            (
                "a tier",
                TIERED,
                [100_000, 90_000, -1],
                (300_000, 100_000, 290_000, false),
                (20_000 + 58_000 + 800 - 19_400) * 1000,
            ),
            // The provider counts half: half of 10,000, at a tenth.
            ("counted too high", PLAIN, [2500, 2000, -1], (15_000, 5000, 14_000, false), 500_000),
            // It counts double: the 10,000 stay unscaled.
            (
                "counted too low",
                PLAIN,
                [10_000, 9000, -1],
                (15_000, 5000, 14_000, false),
                1_000_000,
            ),
            // Capped at the model's limit: 995,000.
            (
                "past the window",
                PLAIN,
                [5000, 0, -1],
                (9_000_000, 5000, 14_000, false),
                995_000_000,
            ),
            ("no usage", PLAIN, [-1, -1, -1], (15_000, 5000, 14_000, false), 1_000_000),
        ]);
    }

    #[test]
    fn a_compaction_is_charged_with_the_rewritten_cache() {
        check(&[
            // Removed 10,000 × .1; of the 5,000 sent 1,000 are new and 1,500 were read; the other
            // 2,500 were read again, each .9 dearer.
            ("a cut", PLAIN, [5000, 1500, -1], (15_000, 5000, 14_000, true), -1_250_000),
            (
                "a cut that kept all in front",
                PLAIN,
                [5000, 4000, -1],
                (15_000, 5000, 14_000, true),
                1_000_000,
            ),
            ("a cut, not said", PLAIN, [5000, -1, -1], (15_000, 5000, 14_000, true), -2_600_000),
            // The 2,500 were written at 1.25; the 1,000 new ones would have been written anyway.
            (
                "a cut and its writes",
                WRITES,
                [5000, 1500, 3500],
                (15_000, 5000, 14_000, true),
                1_000_000 - 2500 * 1150,
            ),
            // Without a price for cache reads, a rewrite costs nothing extra.
            (
                "a cut without a cache",
                NO_CACHE,
                [5000, -1, -1],
                (15_000, 5000, 14_000, true),
                10_000_000,
            ),
        ]);
    }

    #[test]
    fn what_an_agent_had_to_read_again_is_not_saved() {
        // Without rereads the 10,000 removed tokens save a tenth of their price each.
        for (name, [tokens, new_tokens], is_all, expected) in [
            ("none", [0, 0], false, 1_000_000),
            ("some before", [3000, 0], false, 700_000),
            ("some now", [3000, 3000], false, 700_000),
            ("all that was removed", [10_000, 0], false, 0),
            ("more than was removed", [12_000, 0], false, -200_000),
            // The prompt of a request that would not have been made: 1,000 and 4,000 at a tenth.
            ("nothing but a reread", [3000, 3000], true, -1_400_000),
        ] {
            let rereads = Rereads { tokens, new_tokens, is_all };
            let compaction = Compaction { rereads, ..compaction(15_000, 5000, 14_000, false) };
            let saved = saved_nano_usd(&price(PLAIN), &billed([5000, 4000, -1]), &compaction);
            assert_eq!(saved, expected, "{name}");
        }
    }

    #[test]
    fn savings_are_rounded_down() {
        let price = price("in 0.001 cached 0.0001 out 0");
        let saved = |figures, compaction| saved_nano_usd(&price, &billed(figures), &compaction);
        // A tenth of a nano-dollar per token: 1.5 saved; 1.5 saved and 3.6 lost.
        assert_eq!(saved([5000, 4000, -1], compaction(5015, 5000, 4000, false)), 1);
        assert_eq!(saved([5000, 3996, -1], compaction(5015, 5000, 4015, true)), -3);
    }

    /// A growing conversation that is compacted, with a cache that keeps the last request forever:
    /// total savings equal the difference between the two bills.
    #[test]
    fn savings_add_up_to_the_difference_of_the_bills() {
        for text in [PLAIN, WRITES] {
            let price = price(text);
            let writes = text == WRITES;
            let (mut with, mut without, mut saved, mut planned) = (0_i64, 0_i64, 0_i64, 0_i64);
            let (mut received, mut sent) = (0_u64, 0_u64);
            let mut cuts = 0;
            for turn in 0..200_u64 {
                let growth = 400 + turn * 37 % 900;
                let (earlier, before) = (received, sent);
                received += growth;
                sent += growth;
                let mut common = before;
                let is_new = sent > 30_000;
                if is_new {
                    cuts += 1;
                    sent -= 12_000;
                    common = 6000 + cuts * 500;
                }
                let cache = |common: u64| if common < CACHE_FLOOR_TOKENS { 0 } else { common };
                let bill = |prompt: u64, common: u64| Billed {
                    prompt_tokens: Some(prompt),
                    completion_tokens: Some(50),
                    cached_tokens: Some(cache(common)),
                    cache_write_tokens: writes.then(|| prompt - cache(common)),
                    ..Billed::default()
                };
                let cost = |billed: &Billed| {
                    i64::try_from(price::cost(&price, billed).nano_usd).expect("it is small")
                };
                let (as_sent, whole) = (bill(sent, common), bill(received, earlier));
                with += cost(&as_sent);
                without += cost(&whole);
                let compaction = Compaction {
                    received_tokens: received,
                    sent_tokens: sent,
                    earlier_tokens: Some(earlier),
                    is_new,
                    max_input_tokens: 1_000_000,
                    ..Compaction::default()
                };
                saved += saved_nano_usd(&price, &as_sent, &compaction);
                let unchanged_tokens = is_new.then_some(common);
                let observed = Some(Observed { sent_tokens: sent, unchanged_tokens });
                let left =
                    Compaction { sent_tokens: received, is_new: false, observed, ..compaction };
                planned += planned_nano_usd(&price, &whole, &left).expect("one is planned");
                assert_eq!(saved_nano_usd(&price, &whole, &left), 0, "nothing was left out");
            }
            assert!(cuts > 5, "{cuts}");
            let difference = without - with;
            assert!((difference - saved).abs() <= 200, "{text}: {difference} and {saved}");
            assert!((difference - planned).abs() <= 200, "{text}: {difference}, {planned} planned");
        }
    }

    proptest! {
        #[test]
        fn no_figure_makes_it_panic(
            figures in prop::array::uniform4(any::<Option<u64>>()),
            tokens in prop::array::uniform3(any::<u64>()),
            earlier in any::<Option<u64>>(),
            is_new in any::<bool>(),
            rate in any::<u64>(),
            rereads in prop::array::uniform2(any::<u64>()),
        ) {
            let mut price = price(TIERED);
            price.rates = price.rates.with(price::Kind::Input, rate);
            let billed = Billed {
                prompt_tokens: figures[0],
                cached_tokens: figures[1],
                cache_write_tokens: figures[2],
                audio_input_tokens: figures[3],
                ..Billed::default()
            };
            let compaction = Compaction {
                received_tokens: tokens[0],
                sent_tokens: tokens[1],
                earlier_tokens: earlier,
                is_new,
                max_input_tokens: tokens[2],
                observed: is_new.then_some(Observed { sent_tokens: tokens[1], unchanged_tokens: earlier }),
                rereads: Rereads { tokens: rereads[0], new_tokens: rereads[1], is_all: rate % 2 == 0 },
            };
            saved_nano_usd(&price, &billed, &compaction);
            planned_nano_usd(&price, &billed, &compaction);
        }

        /// For any figures, reported savings never exceed the uncached price of the removed tokens.
        #[test]
        fn savings_never_exceed_the_cost_of_the_removed_tokens(
            prompt in 0_u64..400_000,
            cached in prop::option::of(0_u64..400_000),
            left_out in 0_u64..400_000,
            sent in 0_u64..400_000,
            earlier in prop::option::of(0_u64..400_000),
            is_new in any::<bool>(),
        ) {
            let billed = Billed { prompt_tokens: Some(prompt), cached_tokens: cached, ..Billed::default() };
            let compaction = Compaction {
                received_tokens: sent + left_out,
                sent_tokens: sent,
                earlier_tokens: earlier,
                is_new,
                max_input_tokens: 1_000_000,
                ..Compaction::default()
            };
            let saved = saved_nano_usd(&price(PLAIN), &billed, &compaction);
            prop_assert!(saved <= i64::try_from(left_out * 1000).expect("it is small"));
        }
    }
}
