//! Settlement of a request at its end: usage, cost and the savings of compaction. Usage is as
//! reported by the provider or, if unknown, by rule and flagged. Reads no clock and stores nothing.

use crate::proxy::hold::account::{End, Terms, believed};
use weir_engine::wire::usage::{InnerUsage, Metered, Usage};
use weir_store::budget::{self, Billed, Compaction, Cost, Kind, Pieces, Price, ServiceTier};
use weir_store::ledger::{Flags, Settlement};

/// Bytes of text per token assumed if no usage was reported.
const BYTES_A_TOKEN: u64 = 4;

/// Amount held for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub nano_usd: u64,
    pub tokens: u64,
}

/// Facts of a request besides its answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'a> {
    /// Compaction of the conversation; `None` if weir did not read it.
    pub compaction: Option<Compaction>,
    /// Prompt by weir's count, or by the size of a body that it did not read.
    pub counted_tokens: Option<u64>,
    /// Amount held in the request's budgets, if any apply.
    pub held: Option<Held>,
    /// Output limit set by the caller.
    pub max_output_tokens: Option<u64>,
    /// Usual output of this model.
    pub learned_output_tokens: Option<u64>,
    /// Status of the answer, if there was one.
    pub status: Option<u16>,
    /// Most that an image by a tool of the provider costs, if known.
    pub picture_nano_usd: Option<u64>,
    /// Price of the model, if known.
    pub price: Option<&'a Price>,
    /// Prices of inferences within the answer by models of their own, in their order.
    pub inner_prices: &'a [Option<&'a Price>],
    /// Whether a cost that the provider states counts instead.
    pub takes_stated_cost: bool,
    /// Whether the model searches the web with each answer, and nobody reports it.
    pub searches_unasked: bool,
    /// Whether the answer consists of pictures.
    pub draws: bool,
    /// Whether it is a chat, whose searches only some providers report.
    pub is_chat: bool,
    /// What the request wants that changes its price; `None` for the standard.
    pub terms: Option<&'a Terms>,
}

impl Known<'_> {
    /// Whether a report is complete: a conversation has both figures, embeddings and the like have no
    /// output, sound has its length.
    fn is_usage(&self, reported: &Usage, said_bytes: u64) -> bool {
        // Some servers report zeros if they count nothing, or nothing yet.
        let has_zero = [reported.prompt_tokens, reported.completion_tokens].contains(&Some(0));
        if has_zero && (said_bytes > 0 || reported.prompt_tokens == Some(0)) {
            return false;
        }
        match self.compaction {
            Some(_) => reported.prompt_tokens.is_some() && reported.completion_tokens.is_some(),
            None => reported.prompt_tokens.is_some() || reported.audio_ms.is_some(),
        }
    }

    /// Whether the answer may have searched the web, which is not reported, at a fee that is not known; in a chat at
    /// any, since Qwen and others do not report searches there.
    fn lacks_search_fee(&self, usage: &Usage) -> bool {
        let is_open =
            self.terms.is_some_and(|terms| terms.may_search) && usage.web_searches.is_none();
        let has_fee = self.price.is_some_and(|price| price.fee(Kind::WebSearch).is_some());
        is_open && self.is_chat || (self.searches_unasked || is_open) && !has_fee
    }

    /// Whether nothing is charged for an answer without usage: it was refused, or failed before any content. A
    /// gateway that gave up waiting does not know what became of it, so what is held for it is spent.
    fn is_free(&self, metered: &Metered) -> bool {
        let has_timed_out = matches!(self.status, Some(504 | 524));
        let is_success = self.status.is_none_or(|status| (200..300).contains(&status));
        !(has_timed_out && self.held.is_some()) && (!is_success || is_failure(metered))
    }
}

/// Computes the figures of a request that ended this way, without the name of its outcome and its
/// times.
///
/// - A request that was not sent, or that the upstream refused without reporting usage, costs
///   nothing.
/// - Usage that an answer reports counts, also if it failed or was replaced by another attempt.
/// - A complete answer counts as reported.
/// - Without usage, or if the end was not seen, what was held counts: it bounds what the provider may
///   charge, also for reasoning that nobody sees.
/// - If nothing was held, a complete answer counts by its text: the prompt as weir counted it, and the
///   output by its size. Of another one the prompt is as reported so far or as weir counted it, and the
///   output is the relayed text or that of usual answers, the larger of the two.
pub fn settle(end: End, metered: &Metered, known: &Known<'_>) -> Settlement {
    let reported = believed(metered.usage.unwrap_or_default());
    let has_usage = known.is_usage(&reported, metered.said_bytes);
    let (usage, mut flags, held) = match figures(end, metered, known, (reported, has_usage)) {
        Ok(figures) => figures,
        Err(flags) => return free(flags),
    };
    let is_estimated = flags.any(Flags::ESTIMATED);
    let usage = supposed(usage, known);
    let lacks_search_fee = known.lacks_search_fee(&usage);
    let stated = usage.stated_nano_usd.filter(|_| known.takes_stated_cost);
    let has_fee = known.price.is_some_and(|price| price.fee(Kind::Request).is_some());
    let priced = known.price.filter(|_| has_fee || is_counted(&usage)).map(|price| {
        let (own, cost, is_supposed) = dearest(price, &usage, metered, known);
        if is_supposed {
            flags |= Flags::ESTIMATED;
        }
        (price, own, Cost { partly: cost.partly || lacks_search_fee, ..cost })
    });
    let savings = priced.as_ref().and_then(|(price, own, _)| {
        let compaction = known.compaction.as_ref().filter(|_| end == End::Seen && has_usage)?;
        let planned = budget::planned_nano_usd(price, own, compaction);
        Some((budget::saved_nano_usd(price, own, compaction), planned))
    });
    if known.compaction.is_some_and(|own| own.rereads.new_tokens > 0) {
        flags |= Flags::REREAD;
    }
    // An answer without usage costs no more than the hold, if that bounds its tokens.
    let most = known.held.filter(|held| {
        let is_within = is_estimated && tokens(&usage) <= held.tokens;
        has_fee && !has_usage || is_within
    });
    let most_nano_usd = most.map_or(u64::MAX, |held| held.nano_usd);
    let least_nano_usd = held.map_or(0, |held| held.nano_usd);
    let pictures_nano_usd = usage.pictures.saturating_mul(known.picture_nano_usd.unwrap_or(0));
    let computed = priced.map(|(_, _, cost)| Cost {
        nano_usd: cost
            .nano_usd
            .saturating_add(pictures_nano_usd)
            .max(least_nano_usd)
            .min(most_nano_usd),
        ..cost
    });
    let stated = stated.map(|nano_usd| nano_usd.max(least_nano_usd));
    let cost = stated.map(|nano_usd| Cost { nano_usd, partly: false }).or(computed);
    match cost {
        Some(cost) if cost.partly => flags |= Flags::PARTLY_PRICED,
        Some(_) => {}
        None => flags |= Flags::UNPRICED,
    }
    let cost_nano_usd = cost.map(|cost| cost.nano_usd);
    let inner = metered.apart.iter().map(|inner| believed(inner.usage)).reduce(Usage::plus);
    let all = |own: Option<u64>, of: fn(&Usage) -> Option<u64>| {
        let inner = inner.as_ref().and_then(of);
        own.map(|own| own.saturating_add(inner.unwrap_or(0))).or(inner)
    };
    Settlement {
        prompt_tokens: all(usage.prompt_tokens, |inner| inner.prompt_tokens),
        completion_tokens: all(usage.completion_tokens, |inner| inner.completion_tokens),
        cached_tokens: usage.cached_tokens,
        cache_write_tokens: usage.cache_write_tokens,
        reasoning_tokens: usage.reasoning_tokens,
        cost_nano_usd,
        saved_nano_usd: savings.map(|(saved, _)| saved),
        planned_saved_nano_usd: savings.and_then(|(_, planned)| planned),
        flags,
        ..Settlement::default()
    }
}

/// Adds what a report leaves out: a search that nobody asked for, and that output is pictures.
fn supposed(usage: Usage, known: &Known<'_>) -> Usage {
    let has_fee = |kind| known.price.is_some_and(|price| price.fee(kind).is_some());
    let searches = known.searches_unasked && has_fee(Kind::WebSearch) && is_counted(&usage);
    // Without details all may be pictures.
    let draws = (known.draws || usage.has_images) && has_fee(Kind::ImageOutput);
    let others = [usage.reasoning_tokens, usage.audio_output_tokens].into_iter().flatten().sum();
    let drawn = usage.completion_tokens.filter(|_| draws).map(|all| all.saturating_sub(others));
    Usage {
        web_searches: usage.web_searches.or(searches.then_some(1)),
        image_output_tokens: usage.image_output_tokens.or(drawn),
        ..usage
    }
}

/// Returns the usage of a request that ended this way, its flags, and the amount held if that counts at least.
///
/// # Errors
///
/// The flags of a request that costs nothing.
fn figures(
    end: End,
    metered: &Metered,
    known: &Known<'_>,
    (reported, has_usage): (Usage, bool),
) -> Result<(Usage, Flags, Option<Held>), Flags> {
    Ok(match end {
        End::NotSent => return Err(Flags::NOT_SENT),
        End::Refused if !has_usage => return Err(Flags::default()),
        // Nobody charges for an answer that failed before its first content, unless it reports usage.
        _ if !has_usage && known.is_free(metered) => return Err(Flags::default()),
        // Images and characters, which no usage has, are part of what was held.
        End::Seen | End::Refused if has_usage => {
            let fees = [Kind::Image, Kind::Character].map(|kind| known.price?.fee(kind));
            let is_read = known.compaction.is_some();
            let is_apart = reported.has_images
                || reported.pictures > 0 && known.picture_nano_usd.is_none()
                || !is_read && fees.iter().any(Option::is_some);
            (reported, Flags::default(), known.held.filter(|_| is_apart))
        }
        // If an answer could not be read, even its length is unknown. One that failed has no more.
        End::Seen if known.held.is_none() && (metered.said_bytes > 0 || metered.failed) => {
            let (usage, flags) = by_text(metered, known, 0);
            (usage, flags | Flags::USAGE_MISSING, None)
        }
        End::Seen | End::Refused => {
            let (usage, flags) = by_rule(metered, known);
            (usage, flags | Flags::USAGE_MISSING, known.held)
        }
        // A stream that reports as it goes reports the total at its end.
        End::Unseen if metered.done && has_usage => (reported, Flags::default(), None),
        End::Unseen => {
            let (usage, flags) = by_rule(metered, known);
            (usage, flags, known.held)
        }
    })
}

fn tokens(usage: &Usage) -> u64 {
    usage.prompt_tokens.unwrap_or(0).saturating_add(usage.completion_tokens.unwrap_or(0))
}

fn is_counted(usage: &Usage) -> bool {
    usage.prompt_tokens.is_some() || usage.completion_tokens.is_some() || usage.audio_ms.is_some()
}

/// Whether an answer has an error and no content.
fn is_failure(metered: &Metered) -> bool {
    metered.failed && metered.said_bytes == 0 && !metered.has_content
}

/// Returns a settlement without usage.
fn free(flags: Flags) -> Settlement {
    Settlement { cost_nano_usd: Some(0), flags, ..Settlement::default() }
}

/// Estimates the usage of an answer without text to count: as held, or as usual.
fn by_rule(metered: &Metered, known: &Known<'_>) -> (Usage, Flags) {
    let usual_tokens = known.learned_output_tokens.filter(|_| known.held.is_none());
    let (usage, flags) = by_text(metered, known, usual_tokens.unwrap_or(0));
    let Some(held) = known.held else { return (usage, flags) };
    let prompt_tokens = usage.prompt_tokens.unwrap_or(0);
    let rest_tokens = held.tokens.saturating_sub(prompt_tokens);
    let usage = Usage {
        prompt_tokens: Some(prompt_tokens),
        completion_tokens: Some(usage.completion_tokens.unwrap_or(0).max(rest_tokens)),
        ..usage
    };
    (usage, flags | Flags::ESTIMATED)
}

/// Estimates the usage from reports and the relayed text; `usual_tokens` is the usual total output.
fn by_text(metered: &Metered, known: &Known<'_>, usual_tokens: u64) -> (Usage, Flags) {
    let reported = believed(metered.usage.unwrap_or_default());
    let prompt_tokens = reported.prompt_tokens.filter(|own| *own > 0);
    let Some(prompt_tokens) = prompt_tokens.or(known.counted_tokens) else {
        return (reported, Flags::USAGE_MISSING);
    };
    // A limit that was sent bounds the output of a hold, and that of the model one that weir did not plan.
    let is_limited = known.max_output_tokens.is_some() || known.compaction.is_none();
    let limited = known.held.filter(|_| is_limited);
    let most_tokens = limited.map_or(u64::MAX, |held| held.tokens.saturating_sub(prompt_tokens));
    let relayed_tokens = metered.said_bytes.div_ceil(BYTES_A_TOKEN).min(most_tokens);
    let so_far = reported.completion_tokens.filter(|own| *own > 0).unwrap_or(relayed_tokens);
    // The caller's own limit bounds the estimate, never the observed output.
    let supposed = usual_tokens.min(known.max_output_tokens.unwrap_or(u64::MAX));
    let usage = Usage {
        prompt_tokens: Some(prompt_tokens),
        completion_tokens: Some(so_far.max(supposed)),
        ..reported
    };
    (usage, Flags::ESTIMATED)
}

/// Returns the bill and the cost as [`priced`] does: what was wanted and is not reported counts if that costs
/// more. Also returns whether the cost depends on it.
fn dearest(
    price: &Price,
    usage: &Usage,
    metered: &Metered,
    known: &Known<'_>,
) -> (Billed, Cost, bool) {
    let (own, cost) = priced(price, usage, metered, known.inner_prices);
    let Some(terms) = known.terms else { return (own, cost, false) };
    let (wanted_usage, wanted) = (terms.written(*usage), terms.completed(metered));
    let (other, dearer) = priced(price, &wanted_usage, &wanted, known.inner_prices);
    match dearer.nano_usd > cost.nano_usd {
        true => (other, dearer, true),
        false => (own, cost, dearer.nano_usd < cost.nano_usd),
    }
}

/// Returns the bill of the answer itself, and the cost with that of inferences within it. Those by another
/// model cost its price if that is in `inner_prices`.
fn priced(
    price: &Price,
    usage: &Usage,
    metered: &Metered,
    inner_prices: &[Option<&Price>],
) -> (Billed, Cost) {
    let region = Region::of(price, metered.region.as_deref());
    let own = billed(price, usage, metered, &region);
    let inner = |price: &Price, inner: &InnerUsage| {
        let region = Region::of(price, metered.region.as_deref());
        Billed {
            pieces: Pieces { requests: 0, ..pieces(&inner.usage) },
            ..billed(price, &believed(inner.usage), metered, &region)
        }
    };
    let of_others = inner_prices.iter().copied().chain(std::iter::repeat(None));
    let (others, alike): (Vec<_>, Vec<_>) =
        metered.apart.iter().zip(of_others).partition(|(_, other)| other.is_some());
    let alike_bills = alike.iter().map(|(own, _)| inner(price, own));
    let all: Vec<Billed> = [own].into_iter().chain(alike_bills).collect();
    let mut cost = budget::cost_of_all(price, &all);
    for (own, other) in others {
        let Some(other) = other else { continue };
        let apart = budget::cost_of_all(other, &[inner(other, own)]);
        cost.nano_usd = cost.nano_usd.saturating_add(apart.nano_usd);
        cost.partly |= apart.partly;
    }
    // Another model without a price is billed as this one.
    cost.partly |= alike.iter().any(|(own, _)| own.model.is_some() && own.model != metered.model)
        || region.is_unpriced
        || usage.has_unknown
        || metered.apart.iter().any(|inner| inner.usage.has_unknown);
    (own, cost)
}

/// Region of an answer, as its price knows it.
struct Region {
    permille: u64,
    /// Whether its price may differ, and is not known.
    is_unpriced: bool,
}

impl Region {
    /// Anthropic reports `global` or `not_available` if no region changes the price.
    fn of(price: &Price, reported: Option<&str>) -> Self {
        let reported = reported.unwrap_or_default();
        let found = price.regions.iter().find(|(name, _)| name.eq_ignore_ascii_case(reported));
        let is_neutral = ["", "global", "not_available"].contains(&reported);
        Self {
            permille: found.map_or(0, |(_, permille)| *permille),
            is_unpriced: found.is_none() && !is_neutral,
        }
    }
}

fn pieces(usage: &Usage) -> Pieces {
    Pieces {
        web_searches: usage.web_searches.unwrap_or(0),
        tool_calls: usage.tool_calls.unwrap_or(0),
        audio_ms: usage.audio_ms.unwrap_or(0),
        requests: 1,
        ..Pieces::default()
    }
}

fn billed(price: &Price, usage: &Usage, metered: &Metered, region: &Region) -> Billed {
    // Audio that is billed by its length has no tokens to report.
    let by_length = usage.audio_ms.filter(|_| price.fee(Kind::Audio).is_some()).map(|_| 0);
    let is_fast = metered.speed.as_deref() == Some("fast");
    let tier = if is_fast { "fast" } else { metered.service_tier.as_deref().unwrap_or_default() };
    Billed {
        prompt_tokens: usage.prompt_tokens.or(by_length),
        // Embeddings have no output to report.
        completion_tokens: usage.completion_tokens.or(Some(0)),
        cached_tokens: usage.cached_tokens,
        cache_write_tokens: usage.cache_write_tokens,
        cache_write_1h_tokens: usage.cache_write_1h_tokens,
        reasoning_tokens: usage.reasoning_tokens,
        audio_input_tokens: usage.audio_input_tokens,
        audio_output_tokens: usage.audio_output_tokens,
        image_input_tokens: usage.image_input_tokens,
        image_output_tokens: usage.image_output_tokens,
        pieces: pieces(usage),
        service_tier: ServiceTier::from_name(tier),
        region_permille: region.permille,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::wire::allowance::Allowance;

    /// One dollar per million prompt tokens, ten for output.
    const PRICE: &str = "in 1 cached 0.1 out 10";

    fn metered(usage: Option<[u64; 3]>, said_bytes: u64, done: bool) -> Metered {
        let usage = usage.map(|[prompt, cached, completion]| Usage {
            prompt_tokens: Some(prompt),
            cached_tokens: Some(cached),
            completion_tokens: Some(completion),
            ..Usage::default()
        });
        Metered { usage, said_bytes, done, ..Metered::default() }
    }

    /// A conversation of 1000 tokens, 900 of them sent.
    fn known(price: &Price, status: Option<u16>) -> Known<'_> {
        let compaction = Compaction {
            received_tokens: 1000,
            sent_tokens: 900,
            max_input_tokens: 100_000,
            ..Compaction::default()
        };
        Known {
            picture_nano_usd: None,
            compaction: Some(compaction),
            counted_tokens: Some(900),
            held: None,
            max_output_tokens: Some(70),
            learned_output_tokens: Some(100),
            status,
            inner_prices: &[],
            price: Some(price),
            takes_stated_cost: false,
            searches_unasked: false,
            draws: false,
            is_chat: false,
            terms: None,
        }
    }

    type Row = (&'static str, End, Option<u16>, Metered, [Option<u64>; 3], Flags);

    fn rows() -> [Row; 10] {
        let none = Flags::default();
        let (estimated, missing) = (Flags::ESTIMATED, Flags::ESTIMATED | Flags::USAGE_MISSING);
        let reported = Some([900, 400, 50]);
        [
            (
                "never sent",
                End::NotSent,
                None,
                metered(None, 0, false),
                [None, None, Some(0)],
                Flags::NOT_SENT,
            ),
            ("refused", End::Seen, Some(429), metered(None, 0, true), [None, None, Some(0)], none),
            (
                "whole",
                End::Seen,
                Some(200),
                metered(reported, 200, true),
                [Some(900), Some(50), Some(1_040_000)],
                none,
            ),
            (
                "refused with a success",
                End::Refused,
                Some(200),
                metered(None, 0, true),
                [None, None, Some(0)],
                none,
            ),
            (
                "usage of zero",
                End::Seen,
                Some(200),
                metered(Some([0, 0, 0]), 0, true),
                [Some(900), Some(70), Some(1_600_000)],
                missing,
            ),
            (
                "whole, without usage",
                End::Seen,
                Some(200),
                metered(None, 121, true),
                [Some(900), Some(31), Some(1_210_000)],
                missing,
            ),
            (
                "unread",
                End::Seen,
                Some(200),
                metered(None, 0, false),
                [Some(900), Some(70), Some(1_600_000)],
                missing,
            ),
            (
                "killed",
                End::Unseen,
                None,
                metered(None, 0, false),
                [Some(900), Some(70), Some(1_600_000)],
                estimated,
            ),
            (
                "left late",
                End::Unseen,
                Some(200),
                metered(None, 800, false),
                [Some(900), Some(200), Some(2_900_000)],
                estimated,
            ),
            (
                "left after the usage",
                End::Unseen,
                Some(200),
                metered(reported, 200, true),
                [Some(900), Some(50), Some(1_040_000)],
                none,
            ),
        ]
    }

    #[test]
    fn requests_are_settled_by_what_is_known_of_their_end() {
        let price = Price::parse(PRICE).expect("a price");
        for (name, end, status, metered, expected, flags) in rows() {
            let settled = settle(end, &metered, &known(&price, status));
            let found = [settled.prompt_tokens, settled.completion_tokens, settled.cost_nano_usd];
            assert_eq!((found, settled.flags), (expected, flags), "{name}");
        }
    }

    #[test]
    fn what_was_held_counts_if_nobody_knows_more() {
        let price = Price::parse(PRICE).expect("a price");
        let held = Some(Held { nano_usd: 9_000_000, tokens: 1500 });
        let unread =
            Known { compaction: None, counted_tokens: Some(40), ..known(&price, Some(200)) };
        let unread = Known { held, ..unread };
        let read = Known { held, ..known(&price, Some(200)) };
        let free = Known { max_output_tokens: None, ..read };
        for (name, end, metered, known, expected) in [
            ("left", End::Unseen, metered(None, 80, false), read, [900, 600, 9_000_000]),
            (
                "reported so far",
                End::Unseen,
                metered(Some([1000, 0, 1]), 80, false),
                read,
                [1000, 500, 9_000_000],
            ),
            ("longer", End::Unseen, metered(None, 8000, false), read, [900, 600, 9_000_000]),
            ("unlimited", End::Unseen, metered(None, 8000, false), free, [900, 2000, 20_900_000]),
            ("unread", End::Seen, metered(None, 8000, true), unread, [40, 1460, 9_000_000]),
            ("a picture", End::Seen, metered(None, 0, false), unread, [40, 1460, 9_000_000]),
        ] {
            let settled = settle(end, &metered, &known);
            let found = [settled.prompt_tokens, settled.completion_tokens, settled.cost_nano_usd];
            assert_eq!(found, expected.map(Some), "{name}");
            assert!(settled.flags.any(Flags::ESTIMATED), "{name}");
        }
        for reported in [None, Some([0, 0, 0]), Some([900, 0, 0])] {
            let text = settle(End::Seen, &metered(reported, 80, true), &read);
            assert_eq!((text.completion_tokens, text.cost_nano_usd), (Some(600), Some(9_000_000)));
            assert_eq!(text.flags, Flags::ESTIMATED | Flags::USAGE_MISSING);
        }
        // A gateway that gave up waiting does not know what became of the request.
        for (status, cost_nano_usd) in [(504, 9_000_000), (524, 9_000_000), (503, 0), (529, 0)] {
            let failed = Metered { failed: true, ..metered(None, 0, true) };
            let known = Known { status: Some(status), ..read };
            assert_eq!(settle(End::Seen, &failed, &known).cost_nano_usd, Some(cost_nano_usd));
        }
        let mut drawn = metered(Some([900, 0, 5]), 20, true);
        if let Some(usage) = &mut drawn.usage {
            usage.has_images = true;
        }
        assert_eq!(settle(End::Seen, &drawn, &read).cost_nano_usd, Some(9_000_000));
        // Those of a tool have a highest price each.
        let mut tool = metered(Some([900, 0, 5]), 20, true);
        if let Some(usage) = &mut tool.usage {
            usage.pictures = 2;
        }
        assert_eq!(settle(End::Seen, &tool, &read).cost_nano_usd, Some(9_000_000));
        let known = Known { picture_nano_usd: Some(1_000_000), ..read };
        assert_eq!(settle(End::Seen, &tool, &known).cost_nano_usd, Some(2_950_000));
        let whole = settle(End::Seen, &metered(Some([900, 0, 5]), 20, true), &read);
        assert_eq!(whole.cost_nano_usd, Some(950_000));
        let failed = Metered { failed: true, ..metered(None, 0, false) };
        assert_eq!(settle(End::Unseen, &failed, &read).cost_nano_usd, Some(0));
    }

    #[test]
    fn usage_that_is_reported_counts_however_the_request_ended() {
        let price = Price::parse(PRICE).expect("a price");
        let held = Some(Held { nano_usd: 9_000_000, tokens: 1500 });
        for (end, status, reported, nano_usd) in [
            (End::Refused, Some(200), Some([900, 400, 50]), 1_040_000),
            (End::Refused, None, Some([900, 400, 50]), 1_040_000),
            (End::Seen, Some(500), Some([900, 400, 50]), 1_040_000),
            (End::Seen, Some(200), Some([900, 400, 50]), 1_040_000),
            (End::Refused, Some(400), Some([0, 0, 0]), 0),
            (End::Seen, Some(429), Some([0, 0, 0]), 0),
            (End::Seen, Some(400), None, 0),
        ] {
            let failed = Metered { failed: true, ..metered(reported, 0, true) };
            let known = Known { held, ..known(&price, status) };
            let settled = settle(end, &failed, &known);
            assert_eq!(settled.cost_nano_usd, Some(nano_usd), "{end:?} {status:?} {reported:?}");
        }
    }

    #[test]
    fn output_without_details_costs_as_pictures_if_there_are_some() {
        let price = Price::parse("in 1 out 10 image_out 40").expect("a price");
        let details = |image_output_tokens, has_images| Usage {
            prompt_tokens: Some(100),
            completion_tokens: Some(110),
            reasoning_tokens: Some(10),
            image_output_tokens,
            has_images,
            ..Usage::default()
        };
        for (draws, usage, nano_usd) in [
            (false, details(None, false), 1_200_000),
            (false, details(None, true), 4_200_000),
            (true, details(None, false), 4_200_000),
            (true, details(Some(50), true), 2_700_000),
        ] {
            let metered = Metered { usage: Some(usage), ..metered(None, 1, true) };
            let known = Known { draws, compaction: None, ..known(&price, Some(200)) };
            assert_eq!(settle(End::Seen, &metered, &known).cost_nano_usd, Some(nano_usd));
        }
    }

    #[test]
    fn what_is_wanted_and_not_reported_counts_if_it_costs_more() {
        let mut price = Price::parse("in 1 write 1 write1h 3 out 10").expect("a price");
        price.regions.push(("us".to_owned(), 2000));
        let writes = Usage {
            prompt_tokens: Some(100),
            completion_tokens: Some(0),
            cache_write_tokens: Some(100),
            ..Usage::default()
        };
        let allowance = |change: fn(&mut Allowance)| {
            let mut allowance = Allowance::default();
            change(&mut allowance);
            Terms::of(&allowance)
        };
        let split = Usage { cache_write_1h_tokens: Some(0), ..writes };
        let (us, batch) = (Some("us".to_owned()), Some("batch".to_owned()));
        let hour = allowance(|own| own.has_long_writes = true);
        let fast = allowance(|own| own.is_fast = true);
        let cheap = allowance(|own| own.service_tier = Some("batch".to_owned()));
        let two = allowance(|own| own.service_tier = Some(String::new()));
        let auto = allowance(|own| own.service_tier = Some("auto".to_owned()));
        let place = allowance(|own| own.region = Some("US".to_owned()));
        for (name, terms, usage, region, service_tier, nano_usd, is_flagged) in [
            ("for an hour", &hour, writes, None, None, 300_000, true),
            ("split by lifetime", &hour, split, None, None, 100_000, false),
            ("fast", &fast, writes, None, None, 600_000, true),
            ("batch", &cheap, writes, None, None, 100_000, true),
            ("batch, reported", &cheap, writes, None, batch, 50_000, false),
            ("two tiers", &two, writes, None, None, 250_000, true),
            ("no tier", &auto, writes, None, None, 100_000, false),
            ("region", &place, writes, None, None, 200_000, true),
            ("region, reported", &place, writes, us, None, 200_000, false),
        ] {
            let usage = Some(usage);
            let metered = Metered { usage, region, service_tier, ..metered(None, 0, true) };
            let known =
                Known { terms: terms.as_ref(), compaction: None, ..known(&price, Some(200)) };
            let settled = settle(End::Seen, &metered, &known);
            assert_eq!(settled.cost_nano_usd, Some(nano_usd), "{name}");
            assert_eq!(settled.flags.any(Flags::ESTIMATED), is_flagged, "{name}");
        }
    }

    #[test]
    fn a_search_that_may_have_run_without_a_fee_is_flagged() {
        let dear = Price::parse("in 1 out 10 search 10").expect("a price");
        let plain = Price::parse("in 1 out 10").expect("a price");
        let search = Terms::of(&Allowance { searches: 1, ..Allowance::default() });
        for (price, terms, searches, is_partly) in [
            (&plain, &search, None, true),
            (&plain, &search, Some(0), false),
            (&plain, &search, Some(1), true),
            (&plain, &None, None, false),
            (&dear, &search, None, false),
            (&dear, &search, Some(0), false),
        ] {
            let usage = Usage {
                prompt_tokens: Some(100),
                completion_tokens: Some(10),
                web_searches: searches,
                ..Usage::default()
            };
            let metered = Metered { usage: Some(usage), ..metered(None, 0, true) };
            let known = Known { terms: terms.as_ref(), ..known(price, Some(200)) };
            let flags = settle(End::Seen, &metered, &known).flags;
            assert_eq!(flags.any(Flags::PARTLY_PRICED), is_partly, "{searches:?}");
            // Many providers report no searches of a chat.
            let flags = settle(End::Seen, &metered, &Known { is_chat: true, ..known }).flags;
            let is_partly = is_partly || terms.is_some() && searches.is_none();
            assert_eq!(flags.any(Flags::PARTLY_PRICED), is_partly, "{searches:?}");
        }
    }

    #[test]
    fn reports_that_cannot_be_true_are_none() {
        let price = Price::parse(PRICE).expect("a price");
        let known = known(&price, Some(200));
        let half = Usage { completion_tokens: Some(50), ..Usage::default() };
        let absurd = Usage { prompt_tokens: Some(900), completion_tokens: Some(1 << 53), ..half };
        for (usage, output) in [(half, 50), (absurd, 31), (Usage::default(), 31)] {
            let metered = Metered { usage: Some(usage), ..metered(None, 121, true) };
            let settled = settle(End::Seen, &metered, &known);
            let figures = (settled.prompt_tokens, settled.completion_tokens);
            assert_eq!(figures, (Some(900), Some(output)), "{usage:?}");
            assert_eq!(settled.flags, Flags::ESTIMATED | Flags::USAGE_MISSING);
        }
    }

    #[test]
    fn what_has_no_price_costs_nothing_and_says_so() {
        let metered = metered(Some([900, 0, 50]), 0, true);
        let settled = settle(End::Seen, &metered, &Known { status: Some(200), ..Known::default() });
        assert_eq!((settled.cost_nano_usd, settled.saved_nano_usd), (None, None));
        assert_eq!((settled.prompt_tokens, settled.flags), (Some(900), Flags::UNPRICED));
    }

    #[test]
    fn an_answer_that_nobody_counted_is_unknown() {
        let price = Price::parse(PRICE).expect("a price");
        let known = Known { status: Some(200), price: Some(&price), ..Known::default() };
        for end in [End::Seen, End::Unseen] {
            let settled = settle(end, &metered(None, 400, false), &known);
            assert_eq!((settled.prompt_tokens, settled.cost_nano_usd), (None, None));
            assert_eq!(settled.flags, Flags::USAGE_MISSING | Flags::UNPRICED);
        }
    }

    #[test]
    fn savings_follow_from_reported_usage() {
        let price = Price::parse(PRICE).expect("a price");
        let known = known(&price, Some(200));
        let whole = settle(End::Seen, &metered(Some([900, 800, 50]), 0, true), &known);
        assert_eq!(whole.saved_nano_usd, Some(10_000));
        let unseen = settle(End::Unseen, &metered(None, 0, false), &known);
        assert_eq!(unseen.saved_nano_usd, None);
    }
}
