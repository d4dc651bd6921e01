//! The ratio between a model's own count of tokens and weir's for models whose tokenizer is not known:
//! learned from what upstreams report, and moved in few large steps, since each step may cost each live
//! conversation a cut. Knows nothing of where samples come from or where the ratio is kept.

use std::collections::VecDeque;

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

/// A ratio that has moved `version` times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ratio {
    pub permille: u32,
    pub version: u32,
}

/// What answers reported of one model: tokens of its own for a thousand of weir's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    last: VecDeque<u32>,
    /// What the ratio was when the last sample was taken, and how many were taken since it is that.
    version: u32,
    since: usize,
}

impl Samples {
    /// Takes a sample: a prompt that weir counted to `counted` at a ratio of `permille`, and the
    /// upstream to `reported`. The ratio has meanwhile moved `version` times, by whomever.
    pub fn take(&mut self, permille: u32, counted: u64, reported: u64, version: u32) {
        if counted == 0 {
            return;
        }
        let ratio = u128::from(permille) * u128::from(reported) / u128::from(counted);
        let ratio = u64::try_from(ratio).ok().filter(|ratio| BELIEVED_PERMILLE.contains(ratio));
        let Some(ratio) = ratio.and_then(|ratio| u32::try_from(ratio).ok()) else { return };
        if self.last.len() == MAX_SAMPLES {
            self.last.pop_front();
        }
        self.last.push_back(ratio);
        if self.version != version {
            (self.version, self.since) = (version, 0);
        }
        self.since = self.since.saturating_add(1);
    }

    /// The ratio to go to from `current`; `None` where it stays.
    pub fn step(&self, current: Option<Ratio>) -> Option<u32> {
        let wanted = self.wanted()?;
        let Some(current) = current else { return Some(wanted) };
        let permille = current.permille;
        let is_above = wanted * 1000 >= permille * (1000 + STEP_PERMILLE);
        let is_below = wanted * (1000 + STEP_PERMILLE) <= permille * 1000;
        let to_go_down = MIN_SAMPLES << current.version.min(16);
        let needed = if is_below { to_go_down.min(MAX_SAMPLES_TO_GO_DOWN) } else { MIN_SAMPLES };
        ((is_above || is_below) && self.since >= needed).then_some(wanted)
    }

    /// What the samples speak for.
    fn wanted(&self) -> Option<u32> {
        if self.last.len() < MIN_SAMPLES {
            return None;
        }
        let mut sorted: Vec<u32> = self.last.iter().copied().collect();
        sorted.sort_unstable();
        let at = ((sorted.len() - 1) * QUANTILE_PERCENT).div_ceil(100);
        let upper = sorted.get(at)?;
        Some(upper + (upper * MARGIN_PERMILLE).div_ceil(1000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(ratios: &[u64]) -> Samples {
        let mut samples = Samples::default();
        ratios.iter().for_each(|ratio| samples.take(1000, 1000, *ratio, 0));
        samples
    }

    fn at(permille: u32) -> Option<Ratio> {
        Some(Ratio { permille, version: 0 })
    }

    #[test]
    fn a_ratio_needs_some_samples_and_lies_above_most() {
        assert_eq!(samples(&[1100; 4]).step(None), None);
        assert_eq!(samples(&[1100; 5]).step(None), Some(1111));
        let mut mixed = vec![1000; 60];
        mixed.extend([3000; 4]);
        assert_eq!(samples(&mixed).step(None), Some(1010));
        assert_eq!(samples(&[1000, 1020, 1040, 1060, 1080]).step(None), Some(1091));
    }

    #[test]
    fn it_moves_in_large_steps_alone() {
        let of = |ratio| samples(&[ratio; 64]);
        assert_eq!(of(1139).step(at(1100)), None);
        assert_eq!(of(1144).step(at(1100)), Some(1156));
        assert_eq!(of(1050).step(at(1100)), None);
        assert_eq!(of(1030).step(at(1100)), Some(1041));
    }

    #[test]
    fn samples_are_taken_at_any_ratio_and_absurd_ones_are_not() {
        let mut samples = Samples::default();
        for (counted, reported) in [(0, 9), (1000, 1), (1000, 9_000_000), (u64::MAX, 1)] {
            samples.take(1200, counted, reported, 0);
        }
        assert_eq!(samples, Samples::default());
        samples.take(1200, 1200, 1100, 0);
        assert_eq!(samples.last, [1100]);
        for _ in 0..100 {
            samples.take(1000, 100, 100, 0);
        }
        assert_eq!(samples.last, [1000; MAX_SAMPLES]);
    }

    #[test]
    fn two_that_disagree_move_less_and_less() {
        // One process sees prompts of one kind, another those of another; both go by one store.
        let (mut one, mut other) = (Samples::default(), Samples::default());
        let mut current: Option<Ratio> = None;
        let mut moves = Vec::new();
        for number in 0..20_000 {
            for (samples, reported) in [(&mut one, 1000), (&mut other, 1200)] {
                samples.take(1000, 1000, reported, current.map_or(0, |current| current.version));
                if let Some(permille) = samples.step(current) {
                    let version = current.map_or(0, |current| current.version) + 1;
                    current = Some(Ratio { permille, version });
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
}
