//! The ratio between a model's own count of tokens and weir's for models whose tokenizer is not known:
//! learned from what upstreams report, and moved in few large steps, since each step may cost each live
//! conversation a cut. Knows nothing of where samples come from or where the ratio is kept.

use std::collections::VecDeque;

use crate::tokens::Digits;

/// As many samples as a ratio is made of at least.
pub const MIN_SAMPLES: usize = 5;
/// The samples that count: the last ones.
const MAX_SAMPLES: usize = 64;
/// Ratios outside of this are no tokenizer's: something else was counted, or not counted.
const BELIEVED_PERMILLE: std::ops::RangeInclusive<u64> = 500..=4000;
/// Nine of ten samples lie at or below the ratio.
const QUANTILE_PERCENT: usize = 90;
/// What is put on top of that.
const MARGIN_PERMILLE: u32 = 10;
/// The ratio moves only where it is off by as much.
const STEP_PERMILLE: u32 = 50;

/// Going down has no haste, and where samples differ from one process or caller to the next it would be
/// followed by going up: so it takes twice as many samples after each move, up to so many.
const MAX_SAMPLES_TO_GO_DOWN: usize = 1024;

/// Prompts that are counted with digits in either way, until it is settled which is the model's.
const MAX_COMPARED: usize = 64;
/// As many of them as speak against the way that numbers are taken to be read in.
const MIN_COMPARED: usize = 16;
/// The ratios of the other way must differ by so much less.
const LESS_SPREAD_PERMILLE: u32 = 20;

/// A ratio that has moved `version` times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ratio {
    pub permille: u32,
    pub digits: Digits,
    pub version: u32,
}

/// One prompt by both counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// What weir counted.
    pub counted: Counted,
    /// What the upstream did.
    pub reported: u64,
}

/// What weir counted a prompt to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// At this ratio, with digits in this way.
    At { permille: u32, digits: Digits, tokens: u64 },
    /// At a ratio of one, with digits in either way.
    Both { apart: u64, in_threes: u64 },
}

/// What answers reported of one model: tokens of its own for a thousand of weir's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    apart: VecDeque<u32>,
    in_threes: VecDeque<u32>,
    /// How many prompts were counted in both ways.
    compared: usize,
    /// What the ratio was when the last sample was taken, and how many were taken since it is that.
    version: u32,
    since: usize,
}

impl Samples {
    /// Whether a prompt is worth counting in both ways: some time after that it is settled which is
    /// the model's.
    pub fn compares(&self) -> bool {
        self.compared < MAX_COMPARED
    }

    /// Takes a sample. The ratio has meanwhile moved `version` times, by whomever.
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

    /// The ratio to go to from `current`, and how digits are read by it; `None` where it stays.
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

    /// How digits are read, which are taken to be read as `current`: in the way by which ratios
    /// differ clearly less, as long as both are looked at.
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

    /// By how much ratios differ: the ninth tenth's from the first's.
    fn spread(&self, digits: Digits) -> Option<u32> {
        let sorted = self.sorted(digits);
        let low = sorted.get((sorted.len().checked_sub(1)? * (100 - QUANTILE_PERCENT)) / 100)?;
        Some(upper(&sorted)? * 1000 / low.max(&1) - 1000)
    }

    /// What the samples speak for.
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

/// What nine of ten lie at or below.
fn upper(sorted: &[u32]) -> Option<u32> {
    let at = (sorted.len().checked_sub(1)? * QUANTILE_PERCENT).div_ceil(100);
    sorted.get(at).copied()
}

/// The ratio of a prompt that weir counted to `counted` at a ratio of `permille`, if it may be one.
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
        // One process sees prompts of one kind, another those of another; both go by one store.
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
        // All others go by the higher of the two nearly all the time: nothing overflows.
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
        // Prompts with many numbers and with few, of a model that reads three digits at once.
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
