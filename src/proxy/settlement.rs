//! What a request comes to when it ends: its usage as the provider reported it or, where that is
//! not known, by rule and said to be so; what it cost, and what compaction saved. Reads no clock and
//! stores nothing.

use crate::budget::{self, Billed, Compaction, Price, ServiceTier};
use crate::store::ledger::{Flags, Settlement};
use crate::wire::usage::{Metered, Usage};

/// As many bytes of text are taken for a token where no usage was reported.
const BYTES_A_TOKEN: u64 = 4;

/// How much was seen of a request's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The upstream got nothing of it.
    NotSent,
    /// All of the answer is here.
    Seen,
    /// It was sent, and whether the provider has more to bill nobody knows.
    Unseen,
}

/// What is known of a request beside its answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'a> {
    /// What was done to the conversation; `None` where weir did not read it.
    pub compaction: Option<Compaction>,
    /// The most output that the caller lets the model write.
    pub max_output_tokens: Option<u64>,
    /// What answers of this model usually take.
    pub learned_output_tokens: Option<u64>,
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    /// What the model costs, where that is known.
    pub price: Option<&'a Price>,
}

impl Known<'_> {
    fn is_success(&self) -> bool {
        self.status.is_none_or(|status| (200..300).contains(&status))
    }
}

/// The figures of a request that ended so, without the words for its outcome and its times.
///
/// - What was not sent, and what the upstream refused without reporting usage, costs nothing.
/// - What was answered whole counts as reported. An answer without usage counts by rule where weir
///   has counted the prompt, and is unknown where it has not.
/// - Where the end was not seen the prompt is as reported so far or as weir counted it, and the
///   output what was relayed plus the rest that such answers usually have.
pub fn settle(end: End, metered: &Metered, known: &Known<'_>) -> Settlement {
    let reported = metered.usage.unwrap_or_default();
    let has_usage = metered.usage.is_some();
    let (usage, mut flags) = match end {
        End::NotSent => return free(Flags::NOT_SENT),
        _ if !has_usage && !known.is_success() => return free(Flags::default()),
        End::Seen if has_usage => (reported, Flags::default()),
        End::Seen => by_rule(metered, known, 0, Flags::USAGE_MISSING),
        // A stream that reports as it goes says at its end what all of it took.
        End::Unseen if metered.done && has_usage => (reported, Flags::default()),
        End::Unseen => {
            by_rule(metered, known, known.learned_output_tokens.unwrap_or(0), Flags::default())
        }
    };
    let billed = billed(&usage, metered.service_tier.as_deref());
    let is_counted = usage.prompt_tokens.is_some() || usage.completion_tokens.is_some();
    let (cost_nano_usd, saved_nano_usd) = match known.price {
        Some(price) if is_counted => {
            let cost = budget::cost(price, &billed);
            if cost.partly {
                flags |= Flags::PARTLY_PRICED;
            }
            let compaction = known.compaction.as_ref().filter(|_| end == End::Seen && has_usage);
            let saved = compaction.map(|done| budget::saved_nano_usd(price, &billed, done));
            (Some(cost.nano_usd), saved)
        }
        _ => {
            flags |= Flags::UNPRICED;
            (None, None)
        }
    };
    Settlement {
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
        cached_tokens: usage.cached_tokens,
        cache_write_tokens: usage.cache_write_tokens,
        reasoning_tokens: usage.reasoning_tokens,
        cost_nano_usd,
        saved_nano_usd,
        flags,
        ..Settlement::default()
    }
}

/// Nothing was used.
fn free(flags: Flags) -> Settlement {
    Settlement { cost_nano_usd: Some(0), flags, ..Settlement::default() }
}

/// What was used, as far as it was reported or can be told; `usual_tokens` is what the whole output
/// usually comes to.
fn by_rule(
    metered: &Metered,
    known: &Known<'_>,
    usual_tokens: u64,
    flags: Flags,
) -> (Usage, Flags) {
    let reported = metered.usage.unwrap_or_default();
    let counted = known.compaction.map(|compaction| compaction.sent_tokens);
    let Some(prompt_tokens) = reported.prompt_tokens.or(counted) else {
        return (reported, flags | Flags::USAGE_MISSING);
    };
    let relayed_tokens = metered.said_bytes.div_ceil(BYTES_A_TOKEN);
    let so_far = relayed_tokens.max(reported.completion_tokens.unwrap_or(0));
    // The caller's own limit bounds what is only supposed, never what was seen.
    let supposed = usual_tokens.min(known.max_output_tokens.unwrap_or(u64::MAX));
    let usage = Usage {
        prompt_tokens: Some(prompt_tokens),
        completion_tokens: Some(so_far.max(supposed)),
        ..reported
    };
    (usage, flags | Flags::ESTIMATED)
}

fn billed(usage: &Usage, service_tier: Option<&str>) -> Billed {
    Billed {
        prompt_tokens: usage.prompt_tokens,
        // Embeddings have no output to report.
        completion_tokens: usage.completion_tokens.or(Some(0)),
        cached_tokens: usage.cached_tokens,
        cache_write_tokens: usage.cache_write_tokens,
        cache_write_1h_tokens: None,
        reasoning_tokens: usage.reasoning_tokens,
        audio_input_tokens: usage.audio_input_tokens,
        audio_output_tokens: usage.audio_output_tokens,
        service_tier: ServiceTier::from_name(service_tier.unwrap_or_default()),
    }
}
