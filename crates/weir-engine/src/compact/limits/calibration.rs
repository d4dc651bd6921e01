//! Ratio between a model's own token count and weir's count, for models with an unknown tokenizer.
//! It is learned from reported usage and moves in few large steps, since each step may cost each
//! live conversation a compaction. What all prompts have in addition, such as a gateway's hidden prompt, is no part
//! of it: if the growth between prompts explains their sizes better, it gives the ratio. Independent of where
//! samples come from and where the ratio is stored.

use std::collections::VecDeque;

use crate::tokens::Digits;

/// Minimum number of samples for a ratio.
pub const MIN_SAMPLES: usize = 5;
/// Number of most recent samples that count.
const MAX_SAMPLES: usize = 32;
/// Ratios of a sample that are no mistake. A constant part makes that of a small prompt large, truncation that of a
/// large one small.
const BELIEVED_PERMILLE: std::ops::RangeInclusive<u64> = 10..=16_000;
/// Ratios that tokenizers explain. Outside of this range the upstream counts something else, and the ratio is not
/// applied.
const OF_TOKENIZERS_PERMILLE: std::ops::RangeInclusive<u32> = 500..=2000;
/// Ratios that the prompts alone show. Beyond them something else may be in each prompt, and their growth has to show
/// the same.
const OF_PROMPTS_PERMILLE: std::ops::RangeInclusive<u32> = 700..=1400;
/// Maximum difference of the two, in thousandths.
const MAX_DIFFERENCE_PERMILLE: u32 = 150;
/// Minimum growth from one prompt to another for a ratio between them, in thousandths of the smaller.
const MIN_GROWTH_PERMILLE: u128 = 100;
/// Percentage of samples below the upper end of their spread.
const SPREAD_PERCENT: usize = 90;
/// Number of prompts that show that the upstream truncates.
const MIN_TRUNCATED: usize = 3;
/// Least window that reports may show: Ollama's first default. Smaller ones are those of an upstream that
/// reports a part of each prompt, such as what its cache does not hold.
const LEAST_WINDOW_TOKENS: u64 = 2048;
/// Margin added to the upper end of the ratios' spread.
const MARGIN_PERMILLE: u32 = 10;
/// Maximum distance of that end from the middle, so that few odd prompts do not make all others look large.
const MAX_SPREAD_PERMILLE: u32 = 50;
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

/// Sizes of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    /// weir's count at a ratio of one.
    counted: u64,
    reported: u64,
}

/// Samples of one model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    apart: VecDeque<Point>,
    in_threes: VecDeque<Point>,
    /// Number of prompts counted with both rules.
    compared: usize,
    /// Version of the ratio at the last sample, and number of samples since it has that version.
    version: u32,
    since: usize,
    /// Whether a ratio that tokenizers do not explain was reported, and whether truncation was.
    is_warned: bool,
    is_truncation_known: bool,
}

/// What the samples show: tokens of the model for a thousand of weir's, and those that all prompts have in addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fit {
    permille: u32,
    constant: i64,
    /// Whether a constant part is ruled out or known.
    is_told_apart: bool,
}

/// Truncation that the samples show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Truncation {
    /// Largest reported size.
    reported: u64,
    /// weir's count from which prompts may be truncated.
    from: u64,
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
                let point = Point::new(permille, tokens, sample.reported);
                point.map(|point| push(self.of_mut(digits), point))
            }
            Counted::Both { apart, in_threes } => {
                let point = |tokens| Point::new(1000, tokens, sample.reported);
                point(apart).zip(point(in_threes)).map(|(apart, in_threes)| {
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

    /// Returns the size to which the upstream truncates larger prompts in silence, once while that is seen.
    pub fn truncates_at(&mut self, digits: Digits) -> Option<u64> {
        let truncation = self.truncation(digits);
        let is_new = truncation.is_some() && !self.is_truncation_known;
        self.is_truncation_known = truncation.is_some();
        truncation.filter(|_| is_new).map(|truncation| truncation.reported)
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
        let mut sorted: Vec<u32> = self.of(digits).iter().filter_map(Point::permille).collect();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1)?;
        let low = sorted.get(last * (100 - SPREAD_PERCENT) / 100)?;
        let high = sorted.get((last * SPREAD_PERCENT).div_ceil(100))?;
        Some(high * 1000 / low.max(&1) - 1000)
    }

    /// Returns the ratio that the samples support, if tokenizers explain it. It lies above most samples.
    fn wanted(&self, digits: Digits) -> Option<u32> {
        let points = self.whole(digits);
        let fit = Fit::of(&points).filter(Fit::is_explained)?;
        let mut sorted: Vec<u32> =
            points.iter().filter_map(|point| point.without(fit.constant)).collect();
        sorted.sort_unstable();
        let upper = *sorted.get((sorted.len().checked_sub(1)? * SPREAD_PERCENT).div_ceil(100))?;
        let most = fit.permille + fit.permille * MAX_SPREAD_PERMILLE / 1000;
        let upper = upper.clamp(fit.permille, most);
        let wanted = upper + (upper * MARGIN_PERMILLE).div_ceil(1000);
        Some(wanted.min(*OF_TOKENIZERS_PERMILLE.end()))
    }

    /// Returns the ratio of the samples if tokenizers do not explain it, once while it is full of them.
    pub fn unexplained(&mut self, digits: Digits) -> Option<u32> {
        let fit = Fit::of(&self.whole(digits))?;
        let is_unexplained = !fit.is_explained();
        let is_new = is_unexplained && !self.is_warned;
        self.is_warned = is_unexplained;
        is_new.then_some(fit.permille)
    }

    /// Returns the truncation that the samples show: some prompts of about the largest reported size are at least
    /// twice as large as others of it by weir's count. The smallest of these may be an odd one and is passed over.
    fn truncation(&self, digits: Digits) -> Option<Truncation> {
        let points = self.of(digits);
        if are_reported_by_growth(points) {
            return None;
        }
        let reported = points.iter().map(|point| point.reported).max()?;
        if reported + WINDOW_MARGIN < LEAST_WINDOW_TOKENS {
            return None;
        }
        if let Some(equal) = equal_reports(points, reported) {
            return Some(equal);
        }
        let is_near = |point: &&Point| u128::from(point.reported) * 8 >= u128::from(reported) * 7;
        let mut near: Vec<&Point> = points.iter().filter(is_near).collect();
        near.sort_unstable_by_key(|point| point.counted);
        let (first, second) = (near.first()?, near.get(1)?);
        let is_cut = |point: &&&Point| {
            let grown = point.reported.saturating_sub(second.reported);
            let is_large = point.counted >= second.counted.saturating_mul(2);
            is_large && grown < (point.counted - second.counted) / 4
        };
        let is_seen = near.iter().filter(is_cut).count() >= MIN_TRUNCATED;
        is_seen.then_some(Truncation { reported, from: first.counted })
    }

    /// Returns the prompts that the upstream has not truncated, as far as is known.
    fn whole(&self, digits: Digits) -> Vec<Point> {
        let from = self.truncation(digits).map_or(u64::MAX, |truncation| truncation.from);
        self.of(digits).iter().filter(|point| point.counted < from).copied().collect()
    }

    fn of(&self, digits: Digits) -> &VecDeque<Point> {
        match digits {
            Digits::Apart => &self.apart,
            Digits::InThrees => &self.in_threes,
        }
    }

    fn of_mut(&mut self, digits: Digits) -> &mut VecDeque<Point> {
        match digits {
            Digits::Apart => &mut self.apart,
            Digits::InThrees => &mut self.in_threes,
        }
    }
}

impl Point {
    /// Creates the sizes of a prompt counted as `counted` at a ratio of `permille`, if they are plausible.
    fn new(permille: u32, counted: u64, reported: u64) -> Option<Self> {
        let counted = (u128::from(counted) * 1000).checked_div(u128::from(permille))?;
        let point = Self { counted: u64::try_from(counted).ok()?, reported };
        let permille = u64::from(point.permille()?);
        BELIEVED_PERMILLE.contains(&permille).then_some(point)
    }

    fn permille(&self) -> Option<u32> {
        self.without(0)
    }

    /// Returns the ratio without a constant part; zero if that is all of it.
    fn without(&self, constant: i64) -> Option<u32> {
        let rest = i128::from(self.reported) - i128::from(constant);
        ratio(u128::from(self.counted), u128::try_from(rest).unwrap_or(0))
    }

    /// Returns the ratio of the growth from one prompt to the other, if one is much larger.
    fn growth(&self, other: &Self) -> Option<u32> {
        let (small, large) =
            if self.counted < other.counted { (self, other) } else { (other, self) };
        let grown = u128::from(large.counted - small.counted);
        let is_much = grown * 1000 >= u128::from(small.counted) * MIN_GROWTH_PERMILLE;
        let reported = u128::from(large.reported.saturating_sub(small.reported));
        ratio(grown, reported).filter(|_| is_much)
    }
}

impl Fit {
    /// Returns the ratio of some prompts: the middle of their own ones, or that of the growth from one to another
    /// if, with a constant part, it explains them clearly better.
    fn of(points: &[Point]) -> Option<Self> {
        if points.len() < MIN_SAMPLES {
            return None;
        }
        let plain = middle(points.iter().filter_map(Point::permille).collect())?;
        let is_told_apart = OF_PROMPTS_PERMILLE.contains(&plain);
        let plain = Self { permille: plain, constant: 0, is_told_apart };
        let pairs = points.iter().enumerate();
        let pairs =
            pairs.flat_map(|(at, one)| points.iter().skip(at + 1).map(move |own| (one, own)));
        let growths: Vec<u32> = pairs.filter_map(|(one, other)| one.growth(other)).collect();
        if growths.len() < points.len() {
            return Some(plain);
        }
        let permille = middle(growths)?;
        let is_same = plain.permille.abs_diff(permille) * 1000
            <= plain.permille.saturating_mul(MAX_DIFFERENCE_PERMILLE);
        let plain = Self { is_told_apart: is_told_apart || is_same, ..plain };
        let rest = |point: &Point| {
            let scaled = u128::from(point.counted) * u128::from(permille) / 1000;
            i64::try_from(i128::from(point.reported) - i128::try_from(scaled).ok()?).ok()
        };
        let constant = middle(points.iter().filter_map(rest).collect())?;
        let grown = Self { permille, constant, is_told_apart: true };
        let is_better = grown.error(points)?.saturating_mul(2) < plain.error(points)?;
        Some(if is_better && is_of_tokenizers(permille) { grown } else { plain })
    }

    /// Whether a tokenizer explains it.
    fn is_explained(&self) -> bool {
        self.is_told_apart && is_of_tokenizers(self.permille)
    }

    /// Returns the middle distance of the prompts' ratios from this one.
    fn error(self, points: &[Point]) -> Option<u32> {
        let ratios = points.iter().filter_map(|point| point.without(self.constant));
        middle(ratios.map(|ratio| ratio.abs_diff(self.permille)).collect())
    }
}

/// Windows are multiples of this many tokens, and what is left of a prompt is so many less or more at most.
const WINDOW_STEP: u64 = 1024;
const WINDOW_MARGIN: u64 = 8;

/// Returns the truncation that equal reports of prompts of different sizes show: to the token, at the largest size,
/// which is that of a window.
fn equal_reports(points: &VecDeque<Point>, reported: u64) -> Option<Truncation> {
    if (reported + WINDOW_MARGIN) % WINDOW_STEP > 2 * WINDOW_MARGIN {
        return None;
    }
    let equal = || points.iter().filter(|point| point.reported == reported).map(|own| own.counted);
    let (from, most) = (equal().min()?, equal().max()?);
    let differ = u128::from(most - from) * 1000 >= u128::from(from) * MIN_GROWTH_PERMILLE;
    (equal().count() >= MIN_TRUNCATED && differ).then_some(Truncation { reported, from })
}

/// Whether the upstream reports only what is new in each prompt, as if the rest were none: most reports are the
/// growth from the prompt before, as far as an estimate shows that.
fn are_reported_by_growth(points: &VecDeque<Point>) -> bool {
    let pairs = points.iter().zip(points.iter().skip(1));
    let grown = pairs.filter(|(before, own)| {
        let growth = own.counted.saturating_sub(before.counted);
        growth > 0 && own.reported.abs_diff(growth) <= growth / 3
    });
    grown.count() * 2 > points.len()
}

/// Whether tokenizers explain a ratio.
pub fn is_of_tokenizers(permille: u32) -> bool {
    OF_TOKENIZERS_PERMILLE.contains(&permille)
}

/// Returns `reported` in thousandths of `counted`.
fn ratio(counted: u128, reported: u128) -> Option<u32> {
    u32::try_from((reported * 1000).checked_div(counted)?).ok()
}

/// Returns the middle of some values.
fn middle<T: Ord + Copy>(mut values: Vec<T>) -> Option<T> {
    let at = values.len() / 2;
    (at < values.len()).then(|| *values.select_nth_unstable(at).1)
}

fn push(last: &mut VecDeque<Point>, point: Point) {
    if last.len() == MAX_SAMPLES {
        last.pop_front();
    }
    last.push_back(point);
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
        let mut mixed = vec![1000; 17];
        mixed.extend([3000; 15]);
        assert_eq!(samples(&mixed).step(None), apart(1061), "odd prompts add little");
        assert_eq!(samples(&[1000, 1020, 1040, 1060, 1080]).step(None), apart(1091));
    }

    #[test]
    fn a_constant_part_is_no_factor() {
        let mut samples = Samples::default();
        for number in 0..20_u64 {
            let counted = 2000 + number * 700;
            let noise = number * 37 % 9 * counted / 400;
            samples.take(sample(1000, counted, 9000 + counted * 11 / 10 + noise), 0);
        }
        let (learned, _) = samples.step(None).expect("a ratio");
        assert!((1067..=1133).contains(&learned), "{learned}");
        // One conversation that grows by less than half.
        let mut growing = Samples::default();
        for number in 0..16_u64 {
            let counted = 20_000 + number * 500;
            growing.take(sample(1000, counted, 15_000 + counted), 0);
        }
        let (learned, _) = growing.step(None).expect("a ratio");
        assert!((990..=1020).contains(&learned), "{learned}");
    }

    #[test]
    fn prompts_of_one_size_cannot_tell_a_constant_part_from_a_factor() {
        let mut alike = Samples::default();
        for number in 0..20_u64 {
            let counted = 2000 + number % 7 * 10;
            alike.take(sample(1000, counted, 1800 + counted), 0);
        }
        assert_eq!(alike.step(None), None);
        assert!(alike.unexplained(Digits::Apart).is_some());
        // Where prompts differ, a factor of that size is one.
        let mut varied = Samples::default();
        for number in 0..20_u64 {
            let counted = 1000 + number * 977;
            varied.take(sample(1000, counted, counted * 18 / 10), 0);
        }
        assert!(varied.step(None).is_some_and(|(own, _)| (1800..=1830).contains(&own)));
    }

    #[test]
    fn an_upstream_that_truncates_in_silence_is_seen() {
        let mut samples = Samples::default();
        let mut seen = Vec::new();
        for number in 1..30_u64 {
            let counted = number * 600;
            // Whole messages go, so the rest differs slightly.
            samples.take(sample(1000, counted, counted.min(4096 - number % 5 * 50)), 0);
            seen.extend(samples.truncates_at(Digits::Apart));
        }
        assert!(seen.first().is_some_and(|tokens| (3800..=4096).contains(tokens)), "{seen:?}");
        assert!(samples.step(None).is_some_and(|(ratio, _)| (900..=1050).contains(&ratio)));
        // Below twice the window, too, equal reports are no ratio.
        let mut little = Samples::default();
        let found: Vec<u64> = (0..40_u64)
            .filter_map(|number| {
                little.take(sample(1000, 4100 + number * 211 % 1300, 4096), 0);
                little.truncates_at(Digits::Apart)
            })
            .collect();
        assert_eq!((found, little.step(None)), (vec![4096], None));
        // Only what is new is reported.
        let mut new = Samples::default();
        for number in 1..30_u64 {
            new.take(sample(1000, number * 1950, 1900), 0);
            assert_eq!(new.truncates_at(Digits::Apart), None);
        }
        // A part of each prompt is reported, of one size or as an estimate is off.
        let mut part = Samples::default();
        for number in 1..60_u64 {
            let reported = [150 + number % 3 * 16, number % 5 * 20 + 300][usize::from(number > 30)];
            part.take(sample(1000, 9000 + number * 340, reported), 0);
            assert_eq!(part.truncates_at(Digits::Apart), None);
        }
        let mut whole = Samples::default();
        for number in 1..30_u64 {
            whole.take(sample(1000, number * 600, number * 640), 0);
            whole.take(sample(1000, 500, 530), 0);
            assert_eq!(whole.truncates_at(Digits::Apart), None);
        }
    }

    #[test]
    fn what_looks_like_truncation_is_none_while_prompts_grow() {
        let cut = |prompts: &[(u64, u64)]| {
            let mut samples = Samples::default();
            let take = |(counted, reported): &(u64, u64)| {
                samples.take(sample(1000, *counted, *reported), 0);
                samples.truncates_at(Digits::Apart)
            };
            prompts.iter().filter_map(take).collect::<Vec<_>>()
        };
        // A large constant part, one odd prompt, two odd ones, and a window that every prompt exceeds.
        let constant: Vec<_> =
            (1..30).map(|number| (number * 500, 80_000 + number * 520)).collect();
        let odd = [(2000, 5000), (5000, 5100), (4800, 4900), (4900, 4950), (4600, 4700)];
        let sparse = [(4000, 4000), (4100, 4100), (8200, 3900), (8300, 4000), (900, 900)];
        let all: Vec<_> =
            (0..12).map(|number| (20_000 + number * 9000, 4000 + number % 3)).collect();
        for (prompts, window) in
            [(&constant[..], &[][..]), (&odd, &[]), (&sparse, &[]), (&all, &[4002])]
        {
            assert_eq!(cut(prompts), window, "{prompts:?}");
        }
    }

    #[test]
    fn what_tokenizers_do_not_explain_is_warned_of_once_and_not_applied() {
        let mut samples = samples(&[3000; 8]);
        assert_eq!(samples.step(None), None);
        assert_eq!(samples.step(at(1100)), None);
        assert_eq!(samples.unexplained(Digits::Apart), Some(3000));
        assert_eq!(samples.unexplained(Digits::Apart), None);
    }

    #[test]
    fn another_tokenizer_is_learned_within_a_few_requests() {
        let mut samples = Samples::default();
        let prompt = |number: u64, permille: u64| {
            let counted = 1000 + number * 977 % 30_000;
            sample(1000, counted, counted * permille / 1000)
        };
        (0..100).for_each(|number| samples.take(prompt(number, 1000), 0));
        let learned = |samples: &Samples| {
            samples.step(at(1010)).is_some_and(|(own, _)| (1270..=1330).contains(&own))
        };
        let needed = (0..100).position(|number| {
            samples.take(prompt(number, 1300), 0);
            learned(&samples)
        });
        assert!(needed.is_some_and(|needed| needed <= 24), "{needed:?}");
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
        assert!(samples.apart.is_empty());
        let mut samples = Samples::default();
        samples.take(sample(1200, 1200, 1100), 0);
        assert_eq!(samples.apart, [Point { counted: 1000, reported: 1100 }]);
        for _ in 0..100 {
            samples.take(sample(1000, 100, 100), 0);
        }
        assert_eq!(samples.apart, [Point { counted: 100, reported: 100 }; MAX_SAMPLES]);
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
