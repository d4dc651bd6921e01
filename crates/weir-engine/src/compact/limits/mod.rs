//! Limit on a request's prompt tokens, and the profile that the compaction state uses. `learned` has
//! the lessons from refusals, `calibration` the correction of estimated counts.

pub mod calibration;
pub mod learned;

use serde::{Deserialize, Serialize};

use crate::compact::message::measure::Measure;
use crate::compact::policy::{Counting, Policy, share};
use crate::tokens::REPLY_PRIMING;

/// Bounds of a request, before anything is known of its messages. All in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Input and output of the model together.
    pub window_tokens: u64,
    /// The model's separate cap on input.
    pub max_input_tokens: Option<u64>,
    /// Maximum output of the model.
    pub max_output_tokens: Option<u64>,
    /// Lowest of the limits that the operator's configuration sets for the model.
    pub operator_tokens: Option<u64>,
    /// The limit that the request's own header sets.
    pub header_tokens: Option<u64>,
    /// Maximum output that the request allows.
    pub asked_output_tokens: Option<u64>,
    /// Counting options of the policy.
    pub counting: Counting,
}

/// A model's limits by configuration and catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configured {
    pub window_tokens: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u64>,
}

/// Source of a request's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// The model's window, less the reserve for the answer.
    Window,
    /// The model's separate cap on input.
    ModelInput,
    /// The operator's configuration.
    Operator,
    /// The request's own header.
    Header,
}

impl Limits {
    /// Returns the model's limits by configuration and catalogue, before learned limits apply.
    pub fn configured(&self) -> Configured {
        let Self { window_tokens, max_input_tokens, .. } = *self;
        Configured { window_tokens, max_input_tokens }
    }

    /// Returns the maximum number of prompt tokens to send, including tools.
    pub fn input_tokens(&self) -> u64 {
        self.input_beside(self.reserve_tokens())
    }

    /// Returns the same with the reserve rounded up to a power of two, so that small changes of a
    /// caller's output limit do not move compactions.
    fn class_input_tokens(&self) -> u64 {
        let asked = self
            .asked_output_tokens
            .map(|asked| asked.checked_next_power_of_two().unwrap_or(u64::MAX));
        self.input_beside(self.reserve(asked))
    }

    /// Returns the source of the limit.
    pub fn bound(&self) -> Bound {
        let rows = [
            (self.header_tokens, Bound::Header),
            (self.operator_tokens, Bound::Operator),
            (self.max_input_tokens, Bound::ModelInput),
            (Some(self.window_tokens - self.reserve_tokens()), Bound::Window),
        ];
        let set = rows.into_iter().filter_map(|(tokens, bound)| Some((tokens?, bound)));
        set.min_by_key(|(tokens, _)| *tokens).map_or(Bound::Window, |(_, bound)| bound)
    }

    /// Returns the tokens of the window reserved for the answer.
    pub fn reserve_tokens(&self) -> u64 {
        self.reserve(self.asked_output_tokens)
    }

    /// Returns the reserve for the answer: the requested output, or else the policy's reserve, at
    /// most a quarter of the window. Without either, an eighth of the window, at most 16k.
    fn reserve(&self, asked: Option<u64>) -> u64 {
        let most = self.max_output_tokens.unwrap_or(u64::MAX);
        let own = Some(self.counting.reserve_tokens).filter(|tokens| *tokens > 0);
        match asked.or(own) {
            Some(asked) => asked.min(most).min(self.window_tokens / 4),
            None => most.min(16_384).min(self.window_tokens / 8),
        }
    }

    fn input_beside(&self, reserve: u64) -> u64 {
        let least = [self.max_input_tokens, self.operator_tokens, self.header_tokens]
            .into_iter()
            .flatten()
            .fold(self.window_tokens - reserve, u64::min);
        least - share(least, self.counting.margin_permille.min(999))
    }

    /// Returns the history budget by the rule of some agents: a sixteenth of the window. Reported
    /// only; no compaction uses it.
    pub fn history_budget_tokens(&self) -> u64 {
        self.window_tokens / 16
    }

    /// Returns the profile for the compaction state: the limit by class, and `tools_tokens` rounded
    /// up. The step is a fiftieth of the lowest limit, from any source. So a tool list that grows
    /// slightly does not move compactions, and the rounding takes two percent of a limit at most.
    pub fn profile(&self, tools_tokens: u64, policy: Policy, measure: Measure) -> Profile {
        let step = (self.input_beside(0) / 50).max(1);
        Profile {
            limit_tokens: self.class_input_tokens(),
            overhead_tokens: tools_tokens.div_ceil(step).saturating_mul(step) + REPLY_PRIMING,
            policy,
            measure,
        }
    }
}

/// Everything that a plan depends on besides the messages. The same profile and messages give the
/// same plan on every instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Profile {
    pub limit_tokens: u64,
    /// Tools and reply priming, which every request of the conversation carries.
    pub overhead_tokens: u64,
    pub policy: Policy,
    pub measure: Measure,
}

#[cfg(test)]
mod tests {
    use super::learned::LearnedLimits;
    use super::*;
    use crate::tokens::Encoding;
    use crate::tokens::media::ImageRule;

    fn limits(window: u64, max_input: Option<u64>, max_output: Option<u64>) -> Limits {
        Limits {
            window_tokens: window,
            max_input_tokens: max_input,
            max_output_tokens: max_output,
            operator_tokens: None,
            header_tokens: None,
            asked_output_tokens: None,
            counting: Policy::default().counting,
        }
    }

    #[test]
    fn the_least_bound_holds() {
        let gpt4o = limits(128_000, None, Some(16_384));
        let gpt5 = limits(400_000, Some(272_000), Some(128_000));
        let tiny = limits(512, None, None);
        for (limits, asked, operator, header, tokens) in [
            (gpt4o, None, None, None, 112_000),
            (gpt4o, Some(1000), None, None, 127_000),
            (gpt4o, Some(100_000), None, None, 111_616),
            (gpt4o, None, Some(32_000), None, 32_000),
            (gpt4o, None, Some(32_000), Some(8_000), 8_000),
            (gpt4o, None, Some(32_000), Some(64_000), 32_000),
            (gpt4o, None, Some(500_000), Some(u64::MAX), 112_000),
            (gpt5, None, None, None, 272_000),
            (gpt5, Some(128_000), None, None, 272_000),
            (tiny, None, None, None, 448),
            (tiny, Some(4096), None, None, 384),
            (tiny, Some(0), None, None, 512),
        ] {
            let limits = Limits {
                asked_output_tokens: asked,
                operator_tokens: operator,
                header_tokens: header,
                ..limits
            };
            assert_eq!(limits.input_tokens(), tokens, "{limits:?}");
            assert!(limits.class_input_tokens() <= limits.input_tokens());
        }
    }

    #[test]
    fn what_sets_the_limit_is_told_apart() {
        let gpt5 = limits(400_000, Some(272_000), Some(128_000));
        for (limits, bound) in [
            (limits(128_000, None, Some(16_384)), Bound::Window),
            (gpt5, Bound::ModelInput),
            (Limits { operator_tokens: Some(9000), ..gpt5 }, Bound::Operator),
            (
                Limits { operator_tokens: Some(9000), header_tokens: Some(8000), ..gpt5 },
                Bound::Header,
            ),
            (Limits { operator_tokens: Some(900_000), ..gpt5 }, Bound::ModelInput),
        ] {
            assert_eq!(limits.bound(), bound, "{limits:?}");
        }
    }

    #[test]
    fn a_policy_keeps_more_free() {
        let counting = |margin_permille, reserve_tokens| Counting {
            margin_permille,
            reserve_tokens,
            is_estimated: false,
        };
        let gpt4o = limits(128_000, None, Some(16_384));
        for (asked, operator, counting, tokens) in [
            (None, None, counting(0, 1024), 126_976),
            (Some(4000), None, counting(0, 1024), 124_000),
            (None, Some(10_000), counting(200, 0), 8_000),
            (None, Some(10), counting(999, 0), 1),
        ] {
            let limits =
                Limits { asked_output_tokens: asked, operator_tokens: operator, counting, ..gpt4o };
            assert_eq!(limits.input_tokens(), tokens, "{limits:?}");
        }
        assert_eq!(gpt4o.history_budget_tokens(), 8000);
    }

    #[test]
    fn small_changes_do_not_move_the_profile() {
        let measure =
            Measure { encoding: Encoding::O200kBase, images: ImageRule::of_model("gpt-4o") };
        let profile = |asked, tools| {
            Limits { asked_output_tokens: Some(asked), ..limits(128_000, None, Some(16_384)) }
                .profile(tools, Policy::default(), measure)
        };
        assert_eq!(profile(1000, 2600), profile(1024, 5000));
        assert_ne!(profile(1000, 2600), profile(1025, 2600));
        assert_ne!(profile(1000, 2600), profile(1000, 2500));
        assert_eq!(profile(u64::MAX, 0), profile(16_384, 0));
    }

    #[test]
    fn every_source_of_a_limit_gives_the_same_profile() {
        let measure =
            Measure { encoding: Encoding::O200kBase, images: ImageRule::of_model("gpt-4o") };
        let own = limits(1_050_000, None, Some(128_000));
        let learned = LearnedLimits { max_input_tokens: Some(14_000), ..LearnedLimits::default() };
        let mut refused = Limits { max_input_tokens: Some(272_000), ..own };
        learned.apply(&mut refused, true);
        for limits in [
            Limits { max_input_tokens: Some(14_000), ..own },
            Limits { operator_tokens: Some(14_000), ..own },
            Limits { header_tokens: Some(14_000), ..own },
            refused,
        ] {
            let profile = limits.profile(300, Policy::default(), measure);
            assert_eq!(profile.limit_tokens, 14_000, "{limits:?}");
            assert_eq!(profile.overhead_tokens, 560 + REPLY_PRIMING, "{limits:?}");
        }
        let counting = Counting { margin_permille: 999, ..own.counting };
        let tight = Limits { operator_tokens: Some(50_000), counting, ..own };
        let overhead = tight.profile(3, Policy::default(), measure).overhead_tokens;
        assert_eq!(overhead, 3 + REPLY_PRIMING);
    }
}
