//! Lessons from refusals: the model's actual limit at its upstream, and the limits for planning the
//! same request again. Independent of where either is stored.

use serde::{Deserialize, Serialize};

use super::{Configured, Limits};
use crate::wire::overflow::Overflow;

/// Minimum plausible limit of a model.
pub const MIN_LIMIT_TOKENS: u64 = 64;
/// Maximum ratio between the upstream's count and weir's that two tokenizers explain. Beyond it,
/// weir could not count something, such as a file. In thousandths.
const MAX_RATIO_PERMILLE: u64 = 1500;
/// Parts of a limit. One of them at least is left for requests behind what the upstream puts in front.
const MAX_HIDDEN_PARTS: u64 = 8;
/// Share of a request's tokens left after a refusal without numbers: slightly less at first, then
/// much less. In eighths.
const STEPS_EIGHTHS: [u64; MAX_RESENDS] = [7, 6, 4];

/// Maximum number of times a request is sent again.
pub const MAX_RESENDS: usize = 3;
/// Time before a size that the upstream refused last is tried again.
pub const PROBE_INTERVAL_MS: u64 = 60 * 60 * 1000;

/// Learned limits of a model at an upstream, by weir's count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedLimits {
    /// Input and output together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_tokens: Option<u64>,
    /// Maximum input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u64>,
    /// Whether the upstream refuses a request whose output limit does not fit in addition to its
    /// input.
    pub counts_output: bool,
    /// Whether the upstream reported the number. Otherwise the true limit may be higher than this,
    /// which stepping down found.
    #[serde(rename = "is_told")]
    pub is_reported: bool,
}

/// Request that was sent and refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Its prompt by weir's count.
    pub sent_tokens: u64,
    /// Maximum output that it requested.
    pub output_tokens: Option<u64>,
    /// Limits that it was planned with.
    pub limits: Limits,
    /// Whether weir's count is an estimate, which calibration corrects separately.
    pub is_estimated: bool,
    /// Whether weir counted all of it, so that what the upstream counts in addition is in each request.
    pub is_text: bool,
}

/// Lesson from a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lesson {
    /// For all requests to the model.
    pub kept: LearnedLimits,
    /// For the refused request alone.
    pub of_this: LearnedLimits,
}

impl LearnedLimits {
    /// Applies the learned limits. A lower one always applies; a higher one only for an unknown
    /// model, if the upstream reported it.
    pub fn apply(&self, limits: &mut Limits, is_model_known: bool) {
        let rises = self.is_reported && !is_model_known;
        if let Some(window_tokens) = self.window_tokens {
            if rises {
                limits.max_input_tokens = None;
            }
            limits.window_tokens =
                if rises { window_tokens } else { limits.window_tokens.min(window_tokens) };
        }
        if let Some(own) = self.max_input_tokens {
            if rises {
                limits.window_tokens = limits.window_tokens.max(own);
            }
            let known = limits.max_input_tokens.filter(|_| !rises);
            limits.max_input_tokens = Some(known.map_or(own, |known| known.min(own)));
        }
    }

    /// Returns twice these limits, up to the configured ones. A probe is planned with them to find
    /// out whether the upstream accepts more now. `None` if nothing would rise.
    pub fn raised(&self, configured: Configured) -> Option<Self> {
        let twice = |tokens: u64, most: u64| tokens.saturating_mul(2).min(most.max(tokens));
        let window_tokens = self.window_tokens.map(|own| twice(own, configured.window_tokens));
        let most = configured.max_input_tokens.unwrap_or(configured.window_tokens);
        let max_input_tokens = self.max_input_tokens.map(|own| twice(own, most));
        let raised = Self { window_tokens, max_input_tokens, is_reported: false, ..*self };
        let rises =
            (window_tokens, max_input_tokens) != (self.window_tokens, self.max_input_tokens);
        rises.then_some(raised)
    }

    /// Returns the output limit to send instead of `asked` with a prompt of `sent_tokens`; `None`
    /// if `asked` fits.
    pub fn clamped(&self, limits: &Limits, sent_tokens: u64, asked: Option<u64>) -> Option<u64> {
        let room = limits.window_tokens.saturating_sub(sent_tokens);
        asked.filter(|asked| self.counts_output && *asked > room && room > 0).map(|_| room)
    }
}

/// Returns whether an upstream that last refused at `refused_ms` may be probed with more.
pub fn may_probe(refused_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(refused_ms) >= PROBE_INTERVAL_MS
}

/// Returns whether an accepted prompt of `sent_tokens` proves a limit above `limit_tokens`. Counts
/// may differ slightly.
pub fn is_telling(sent_tokens: u64, limit_tokens: u64) -> bool {
    sent_tokens >= scaled(limit_tokens, 9, 8)
}

/// Returns whether the upstream read all of a prompt of `sent_tokens`, judging by `reported`: some
/// truncate long prompts silently.
pub fn is_read_whole(sent_tokens: u64, reported: Option<u64>, is_estimated: bool) -> bool {
    let sixteenths = if is_estimated { 8 } else { 15 };
    reported.is_none_or(|reported| reported >= scaled(sent_tokens, sixteenths, 16))
}

/// Returns the lesson from `overflow`, the refusal of a request after `resends` earlier tries;
/// `None` if nothing would change the next attempt.
pub fn lesson(overflow: &Overflow, refused: &Refused, resends: usize) -> Option<Lesson> {
    let eighths = *STEPS_EIGHTHS.get(resends)?;
    let reported = reported(overflow, refused, resends as u64);
    let lesson = match reported.filter(|lesson| lesson.changes(refused)) {
        Some(lesson) => lesson,
        None => {
            let of_this = stepped(overflow, refused, eighths);
            // A reported number is kept, although this request needs less.
            Lesson { kept: reported.map_or(of_this, |reported| reported.kept), of_this }
        }
    };
    [lesson.kept, lesson.of_this].iter().all(LearnedLimits::is_believed).then_some(lesson)
}

/// Derives a lesson from the upstream's own numbers.
fn reported(overflow: &Overflow, refused: &Refused, resends: u64) -> Option<Lesson> {
    if !overflow.is_numbered() {
        return None;
    }
    let reported = LearnedLimits {
        window_tokens: overflow.window_tokens,
        max_input_tokens: overflow.max_input_tokens,
        counts_output: overflow.with_output,
        is_reported: true,
    };
    let sent_tokens = refused.sent_tokens.max(1);
    // A partial count is evidence only if it is far from weir's.
    let least = if overflow.is_exact { sent_tokens } else { scaled(sent_tokens, 9, 8) };
    let Some(counted) = overflow.input_tokens.filter(|counted| *counted > least) else {
        return Some(Lesson { kept: reported, of_this: reported });
    };
    // If the request fits by weir's count, the upstream has put something in front: a prompt of a gateway, tools.
    let hidden_tokens = counted - sent_tokens;
    let limit_tokens = reported.least_tokens();
    let more_tokens = counted.saturating_sub(limit_tokens).saturating_mul(resends);
    let without = reported.each(|tokens| tokens.saturating_sub(hidden_tokens + more_tokens));
    if sent_tokens <= limit_tokens && without.least_tokens() >= limit_tokens / MAX_HIDDEN_PARTS {
        let kept = if refused.is_text { without } else { reported };
        return Some(Lesson { kept, of_this: without });
    }
    // The upstream counts more than weir: its limit is lower by weir's count.
    let of_this = reported.each(|tokens| scaled(tokens, sent_tokens, counted));
    let is_tokenizers = counted <= scaled(sent_tokens, MAX_RATIO_PERMILLE, 1000);
    let kept = if is_tokenizers && !refused.is_estimated { of_this } else { reported };
    Some(Lesson { kept, of_this })
}

/// Returns less than was sent, without numbers or if they would change nothing.
fn stepped(overflow: &Overflow, refused: &Refused, eighths: u64) -> LearnedLimits {
    let less = |tokens: u64| scaled(tokens, eighths, 8);
    let output_tokens = refused.output_tokens.filter(|_| overflow.with_output);
    let whole_tokens = output_tokens.map(|own| refused.sent_tokens.saturating_add(own));
    LearnedLimits {
        window_tokens: whole_tokens.map(less),
        max_input_tokens: whole_tokens.is_none().then(|| less(refused.sent_tokens)),
        counts_output: whole_tokens.is_some(),
        is_reported: false,
    }
}

impl LearnedLimits {
    fn each(&self, change: impl Fn(u64) -> u64) -> Self {
        Self {
            window_tokens: self.window_tokens.map(&change),
            max_input_tokens: self.max_input_tokens.map(&change),
            ..*self
        }
    }

    /// Returns the lower of the input and total limits.
    pub fn least_tokens(&self) -> u64 {
        [self.window_tokens, self.max_input_tokens].into_iter().flatten().min().unwrap_or(0)
    }

    fn is_believed(&self) -> bool {
        let reported = [self.window_tokens, self.max_input_tokens];
        reported.into_iter().flatten().all(|tokens| tokens >= MIN_LIMIT_TOKENS)
    }
}

impl Lesson {
    /// Returns whether the same request would be sent differently.
    fn changes(&self, refused: &Refused) -> bool {
        let mut under = refused.limits;
        self.of_this.apply(&mut under, true);
        let clamped = self.of_this.clamped(&under, refused.sent_tokens, refused.output_tokens);
        under.input_tokens() < refused.sent_tokens || clamped.is_some()
    }
}

/// Returns `tokens * part / whole`, rounded down.
fn scaled(tokens: u64, part: u64, whole: u64) -> u64 {
    let product = u128::from(tokens) * u128::from(part);
    u64::try_from(product / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::Policy;

    fn limits(window_tokens: u64, asked_output_tokens: Option<u64>) -> Limits {
        Limits {
            window_tokens,
            max_input_tokens: None,
            max_output_tokens: None,
            operator_tokens: None,
            header_tokens: None,
            asked_output_tokens,
            counting: Policy::default().counting,
        }
    }

    fn refused(sent_tokens: u64, output_tokens: Option<u64>) -> Refused {
        let limits = limits(128_000, output_tokens);
        Refused { sent_tokens, output_tokens, limits, is_estimated: false, is_text: true }
    }

    fn window(window: u64, input: Option<u64>) -> Overflow {
        Overflow {
            window_tokens: Some(window),
            input_tokens: input,
            is_exact: input.is_some(),
            ..Overflow::default()
        }
    }

    #[test]
    fn a_number_told_is_the_limit() {
        let windows = |counted, refused: &Refused| {
            let lesson = lesson(&window(8192, Some(counted)), refused, 0).expect("a lesson");
            assert!(lesson.kept.is_reported && lesson.of_this.is_reported);
            (lesson.kept.window_tokens, lesson.of_this.window_tokens)
        };
        let sent = refused(10_000, None);
        assert_eq!(windows(10_000, &sent), (Some(8192), Some(8192)));
        assert_eq!(windows(9000, &sent), (Some(8192), Some(8192)));
        // Another tokenizer: a tenth more tokens than weir counted.
        assert_eq!(windows(11_000, &sent), (Some(7447), Some(7447)));
        // So many more that something was not counted: other requests use the reported limit.
        assert_eq!(windows(40_000, &sent), (Some(8192), Some(2048)));
        // An estimate has its own calibration.
        let estimated = Refused { is_estimated: true, ..sent };
        assert_eq!(windows(11_000, &estimated), (Some(8192), Some(7447)));
    }

    #[test]
    fn what_the_upstream_puts_in_front_is_taken_from_the_limit() {
        let windows = |counted, resends, refused: &Refused| {
            let lesson = lesson(&window(20_000, Some(counted)), refused, resends);
            let lesson = lesson.expect("a lesson");
            (lesson.kept.window_tokens, lesson.of_this.window_tokens)
        };
        let sent = refused(12_000, None);
        for is_estimated in [false, true] {
            let sent = Refused { is_estimated, ..sent };
            assert_eq!(windows(22_000, 0, &sent), (Some(10_000), Some(10_000)));
        }
        // A document by id is in this request alone.
        let apart = Refused { is_text: false, ..sent };
        assert_eq!(windows(22_000, 0, &apart), (Some(20_000), Some(10_000)));
        // Refused once more, by 5 tokens: weir counts too little as well.
        assert_eq!(windows(20_005, 1, &refused(9_900, None)), (Some(9_890), Some(9_890)));
    }

    #[test]
    fn output_that_does_not_fit_is_lowered() {
        let total = Overflow { with_output: true, ..window(8192, Some(2000)) };
        let sent = refused(2000, Some(8000));
        let reported = lesson(&total, &sent, 0).expect("a lesson").of_this;
        assert!(reported.counts_output);
        let mut under = sent.limits;
        reported.apply(&mut under, true);
        assert_eq!(under.input_tokens(), 8192 - 2048);
        assert_eq!(reported.clamped(&under, 2000, Some(8000)), Some(6192));
        assert_eq!(reported.clamped(&under, 2000, Some(6192)), None);
        assert_eq!(reported.clamped(&under, 2000, None), None);
        assert_eq!(LearnedLimits::default().clamped(&under, 2000, Some(8000)), None);
    }

    #[test]
    fn without_numbers_each_step_is_larger() {
        let unnumbered = Overflow::default();
        let mut sent_tokens = 10_000;
        for (resends, expected) in [(0, 8750), (1, 6562), (2, 3281)] {
            let step = lesson(&unnumbered, &refused(sent_tokens, Some(100)), resends);
            let step = step.expect("a step");
            assert_eq!((step.kept.max_input_tokens, step.kept), (Some(expected), step.of_this));
            assert!(!step.kept.is_reported && !step.kept.counts_output);
            sent_tokens = expected;
        }
        assert_eq!(lesson(&unnumbered, &refused(sent_tokens, None), 3), None);
        let either = Overflow { with_output: true, ..unnumbered };
        let step = lesson(&either, &refused(3000, Some(5000)), 0).expect("a step");
        assert_eq!((step.kept.window_tokens, step.kept.counts_output), (Some(7000), true));
    }

    #[test]
    fn numbers_that_would_change_nothing_are_a_reason_to_step_down() {
        // The upstream stops counting at its limit, and weir counts too little.
        let least = Overflow { with_output: true, is_exact: false, ..window(8192, Some(4193)) };
        let step = lesson(&least, &refused(4192, Some(4000)), 0).expect("a step");
        assert_eq!((step.kept.window_tokens, step.kept.is_reported), (Some(8192), true));
        assert_eq!((step.of_this.window_tokens, step.of_this.is_reported), (Some(7168), false));
        let silent = window(8192, None);
        let step = lesson(&silent, &refused(7000, None), 0).expect("a step");
        assert_eq!((step.kept.window_tokens, step.kept.is_reported), (Some(8192), true));
        assert_eq!((step.of_this.window_tokens, step.of_this.max_input_tokens), (None, Some(6125)));
    }

    #[test]
    fn what_no_model_has_is_not_believed() {
        assert_eq!(lesson(&window(63, Some(10_000)), &refused(10_000, None), 0), None);
        assert_eq!(lesson(&Overflow::default(), &refused(70, None), 0), None);
    }

    #[test]
    fn what_is_known_is_only_lowered() {
        let reported = |tokens| LearnedLimits {
            window_tokens: Some(tokens),
            is_reported: true,
            ..LearnedLimits::default()
        };
        for (learned, is_known, expected) in [
            (reported(8000), true, 8000),
            (reported(500_000), true, 128_000),
            (reported(500_000), false, 500_000),
            (LearnedLimits { is_reported: false, ..reported(500_000) }, false, 128_000),
        ] {
            let mut limits = limits(128_000, None);
            learned.apply(&mut limits, is_known);
            assert_eq!(limits.window_tokens, expected, "{learned:?} {is_known}");
        }
        let cap = LearnedLimits {
            max_input_tokens: Some(90_000),
            is_reported: true,
            ..LearnedLimits::default()
        };
        let mut known = Limits { max_input_tokens: Some(100_000), ..limits(128_000, None) };
        cap.apply(&mut known, true);
        assert_eq!(known.max_input_tokens, Some(90_000));
    }
}
