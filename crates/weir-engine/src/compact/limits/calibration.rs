//! Ratio between a model's own token count and weir's count, for models with an unknown tokenizer.
//! It is learned from reported usage and moves in few large steps, since each step may cost each
//! live conversation a compaction. Independent of where samples come from and where the ratio is
//! stored.

use std::collections::VecDeque;

use crate::tokens::Digits;

/// Minimum number of samples for a ratio.
pub const MIN_SAMPLES: usize = 5;
/// Number of most recent samples that count.
const MAX_SAMPLES: usize = 64;
/// Plausible ratios. Outside of this range the upstream counted something else, or left something
/// out.
const BELIEVED_PERMILLE: std::ops::RangeInclusive<u64> = 500..=4000;
/// Percentage of samples at or below the ratio.
const QUANTILE_PERCENT: usize = 90;
/// Margin added to that quantile.
const MARGIN_PERMILLE: u32 = 10;
/// Minimum deviation before the ratio moves.
const STEP_PERMILLE: u32 = 50;

/// Maximum number of samples required to lower the ratio. Lowering is not urgent, and if samples
/// differ between processes or callers, a rise would follow. So the requirement doubles after each
/// move.
const MAX_SAMPLES_TO_GO_DOWN: usize = 1024;

/// Number of prompts counted with both digit rules, until the model's rule is settled.
const MAX_COMPARED: usize = 64;
/// Minimum number of compared prompts before the digit rule may change.
const MIN_COMPARED: usize = 16;
/// Minimum difference in spread for the other rule to win.
const LESS_SPREAD_PERMILLE: u32 = 20;

/// Ratio after `version` moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ratio {
    pub permille: u32,
    pub digits: Digits,
    pub version: u32,
}

/// One prompt with both counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// weir's count.
    pub counted: Counted,
    /// The upstream's count.
    pub reported: u64,
}

/// Count of a prompt by weir.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Counted at this ratio with this digit rule.
    At { permille: u32, digits: Digits, tokens: u64 },
    /// Counted at a ratio of one with both digit rules.
    Both { apart: u64, in_threes: u64 },
}

/// Samples of one model: its tokens per thousand of weir's, as answers reported them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    apart: VecDeque<u32>,
    in_threes: VecDeque<u32>,
    /// Number of prompts counted with both rules.
    compared: usize,
    /// Version of the ratio at the last sample, and number of samples since it has that version.
    version: u32,
    since: usize,
}

impl Samples {
    /// Returns whether to count the next prompt with both rules: until some time after the rule is
    /// settled.
    pub fn compares(&self) -> bool {
        self.compared < MAX_COMPARED
    }

    /// Adds a sample. `version` counts all moves of the ratio so far, including those of other
    /// processes.
    pub fn take(&mut self, sample: Sample, version: u32) {
        let taken = match sample.counted {
            Counted::At { permille, digits, tokens } => {
                let ratio = believed(permille, tokens, sample.reported);
                ratio.map(|ratio| push(self.of_mut(digits), ratio))
            }
            Counted::Both { apart, in_threes } => {
                let ratio = |tokens| believed(1000, tokens, sample.reported);
                ratio(apart).zip(ratio(in_threes)).map(|(apart, in_threes)| {
                    push(&mut self.apart, apart);
                    push(&mut self.in_threes, in_threes);
                    self.compared += 1;
                })
            }
        };
        if taken.is_none() {
            return;
        }
        if self.version != version {
            (self.version, self.since) = (version, 0);
        }
        self.since = self.since.saturating_add(1);
    }

    /// Returns the ratio and digit rule to move to from `current`; `None` if it stays.
    pub fn step(&self, current: Option<Ratio>) -> Option<(u32, Digits)> {
        let digits = self.digits(current.map_or(Digits::default(), |current| current.digits));
        let wanted = self.wanted(digits)?;
        let Some(current) = current else { return Some((wanted, digits)) };
        if digits != current.digits {
            return Some((wanted, digits));
        }
        let permille = current.permille;
        let is_above = wanted * 1000 >= permille * (1000 + STEP_PERMILLE);
        let is_below = wanted * (1000 + STEP_PERMILLE) <= permille * 1000;
        let to_go_down = MIN_SAMPLES << current.version.min(16);
        let needed = if is_below { to_go_down.min(MAX_SAMPLES_TO_GO_DOWN) } else { MIN_SAMPLES };
        let is_due = (is_above || is_below) && self.since >= needed;
        is_due.then_some((wanted, digits))
    }

    /// Returns the digit rule: the one with clearly less spread while both are compared, else
    /// `current`.
    fn digits(&self, current: Digits) -> Digits {
        let other = match current {
            Digits::Apart => Digits::InThrees,
            Digits::InThrees => Digits::Apart,
        };
        let is_open = (MIN_COMPARED..MAX_COMPARED).contains(&self.compared);
        let less = |(other, own): (u32, u32)| other + LESS_SPREAD_PERMILLE <= own;
        let is_other = is_open && self.spread(other).zip(self.spread(current)).is_some_and(less);
        if is_other { other } else { current }
    }

    /// Returns the spread of the ratios: the ninth decile relative to the first.
    fn spread(&self, digits: Digits) -> Option<u32> {
        let sorted = self.sorted(digits);
        let low = sorted.get((sorted.len().checked_sub(1)? * (100 - QUANTILE_PERCENT)) / 100)?;
        Some(upper(&sorted)? * 1000 / low.max(&1) - 1000)
    }

    /// Returns the ratio that the samples support.
    fn wanted(&self, digits: Digits) -> Option<u32> {
        let sorted = self.sorted(digits);
        let upper = upper(&sorted).filter(|_| sorted.len() >= MIN_SAMPLES)?;
        Some(upper + (upper * MARGIN_PERMILLE).div_ceil(1000))
    }

    fn sorted(&self, digits: Digits) -> Vec<u32> {
        let last = match digits {
            Digits::Apart => &self.apart,
            Digits::InThrees => &self.in_threes,
        };
        let mut sorted: Vec<u32> = last.iter().copied().collect();
        sorted.sort_unstable();
        sorted
    }

    fn of_mut(&mut self, digits: Digits) -> &mut VecDeque<u32> {
        match digits {
            Digits::Apart => &mut self.apart,
            Digits::InThrees => &mut self.in_threes,
        }
    }
}

/// Returns the ninth decile.
fn upper(sorted: &[u32]) -> Option<u32> {
    let at = (sorted.len().checked_sub(1)? * QUANTILE_PERCENT).div_ceil(100);
    sorted.get(at).copied()
}

/// Returns the ratio of a prompt counted as `counted` at a ratio of `permille`, if it is plausible.
fn believed(permille: u32, counted: u64, reported: u64) -> Option<u32> {
    let ratio = (u128::from(permille) * u128::from(reported)).checked_div(u128::from(counted))?;
    let ratio = u64::try_from(ratio).ok().filter(|ratio| BELIEVED_PERMILLE.contains(ratio))?;
    u32::try_from(ratio).ok()
}

fn push(last: &mut VecDeque<u32>, ratio: u32) {
    if last.len() == MAX_SAMPLES {
        last.pop_front();
    }
    last.push_back(ratio);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(permille: u32, tokens: u64, reported: u64) -> Sample {
        Sample { counted: Counted::At { permille, digits: Digits::Apart, tokens }, reported }
    }

    fn samples(ratios: &[u64]) -> Samples {
        let mut samples = Samples::default();
        ratios.iter().for_each(|ratio| samples.take(sample(1000, 1000, *ratio), 0));
        samples
    }

    fn apart(permille: u32) -> Option<(u32, Digits)> {
        Some((permille, Digits::Apart))
    }

    fn at(permille: u32) -> Option<Ratio> {
        Some(Ratio { permille, digits: Digits::Apart, version: 0 })
    }

    #[test]
    fn a_ratio_needs_some_samples_and_lies_above_most() {
        assert_eq!(samples(&[1100; 4]).step(None), None);
        assert_eq!(samples(&[1100; 5]).step(None), apart(1111));
        let mut mixed = vec![1000; 60];
        mixed.extend([3000; 4]);
        assert_eq!(samples(&mixed).step(None), apart(1010));
        assert_eq!(samples(&[1000, 1020, 1040, 1060, 1080]).step(None), apart(1091));
    }

    #[test]
    fn it_moves_in_large_steps_alone() {
        let of = |ratio| samples(&[ratio; 64]);
        assert_eq!(of(1139).step(at(1100)), None);
        assert_eq!(of(1144).step(at(1100)), apart(1156));
        assert_eq!(of(1050).step(at(1100)), None);
        assert_eq!(of(1030).step(at(1100)), apart(1041));
    }

    #[test]
    fn samples_are_taken_at_any_ratio_and_absurd_ones_are_not() {
        let mut samples = Samples::default();
        for (counted, reported) in [(0, 9), (1000, 1), (1000, 9_000_000), (u64::MAX, 1)] {
            samples.take(sample(1200, counted, reported), 0);
        }
        assert_eq!(samples, Samples::default());
        samples.take(sample(1200, 1200, 1100), 0);
        assert_eq!(samples.apart, [1100]);
        for _ in 0..100 {
            samples.take(sample(1000, 100, 100), 0);
        }
        assert_eq!(samples.apart, [1000; MAX_SAMPLES]);
    }

    #[test]
    fn two_that_disagree_move_less_and_less() {
        // Two processes see different kinds of prompts and share one store.
        let (mut one, mut other) = (Samples::default(), Samples::default());
        let mut current: Option<Ratio> = None;
        let mut moves = Vec::new();
        for number in 0..20_000 {
            for (samples, reported) in [(&mut one, 1000), (&mut other, 1200)] {
                let version = current.map_or(0, |current| current.version);
                samples.take(sample(1000, 1000, reported), version);
                if let Some((permille, digits)) = samples.step(current) {
                    let version = current.map_or(0, |current| current.version) + 1;
                    current = Some(Ratio { permille, digits, version });
                    moves.push(number);
                }
            }
        }
        assert!(moves.len() < 60, "{moves:?}");
        // The others use the higher of the two nearly all the time: nothing overflows.
        let above = moves.chunks(2).filter_map(|pair| Some(pair.get(1)? - pair[0])).max();
        assert!(above <= Some(MIN_SAMPLES), "{moves:?}");
    }

    #[test]
    fn the_order_of_samples_does_not_matter() {
        let one = samples(&[900, 1300, 1000, 1100, 1200]);
        let other = samples(&[1300, 1200, 1100, 1000, 900]);
        assert_eq!(one.step(None), other.step(None));
    }

    #[test]
    fn the_way_that_digits_are_read_in_is_the_one_by_which_ratios_differ_least() {
        // Prompts with many and with few numbers, for a model that reads three digits at once.
        let both = |number: u64| Sample {
            counted: Counted::Both { apart: 1000 + number % 2 * 300, in_threes: 1000 },
            reported: 1050 + number % 3,
        };
        let mut samples = Samples::default();
        (0..MIN_COMPARED as u64 - 1).for_each(|number| samples.take(both(number), 0));
        assert_eq!(samples.step(None), Some((1063, Digits::Apart)));
        samples.take(both(0), 0);
        let current = at(1063);
        assert_eq!(samples.step(current), Some((1063, Digits::InThrees)));
        let current = Some(Ratio { permille: 1063, digits: Digits::InThrees, version: 1 });
        for number in 0..200 {
            samples.take(both(number), 1);
            assert_eq!(samples.step(current), None);
        }
        assert!(!samples.compares());
        assert_eq!(samples.step(at(1063)), None, "it is settled, here as elsewhere");
    }

    #[test]
    fn a_little_less_spread_is_no_reason_to_read_digits_otherwise() {
        let mut samples = Samples::default();
        for number in 0..40 {
            let counted = Counted::Both { apart: 1000 + number % 2 * 15, in_threes: 900 };
            samples.take(Sample { counted, reported: 1000 }, 0);
            let step = samples.step(None);
            assert!(step.is_none_or(|(_, digits)| digits == Digits::Apart), "{step:?}");
        }
    }
}
