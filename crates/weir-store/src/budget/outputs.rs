//! Histogram of output sizes per model, for an upper bound that about one answer in a hundred
//! exceeds. Bounded in memory; old answers lose weight. Pure arithmetic.

/// Buckets by size: four per doubling, up to 2^32 tokens.
const BUCKETS: usize = 128;
/// Number of answers after which all weights are halved.
const HALVED_AT: u32 = 1000;
/// Minimum number of answers for an estimate.
const FEWEST: u32 = 5;

/// Histogram of one model's output sizes.
#[derive(Debug, Clone)]
pub struct Outputs {
    seen: [u32; BUCKETS],
    count: u32,
}

impl Default for Outputs {
    fn default() -> Self {
        Self { seen: [0; BUCKETS], count: 0 }
    }
}

impl Outputs {
    /// Records an answer that was read to its end.
    pub fn note(&mut self, tokens: u64) {
        self.seen[bucket(tokens)] += 1;
        self.count += 1;
        if self.count >= HALVED_AT {
            self.count = 0;
            for seen in &mut self.seen {
                *seen /= 2;
                self.count += *seen;
            }
        }
    }

    /// Returns a size that 99 of 100 answers do not exceed, rounded up; `None` with too few
    /// samples.
    pub fn nearly_all(&self) -> Option<u64> {
        if self.count < FEWEST {
            return None;
        }
        let above = self.count / 100;
        let mut passed = 0;
        for (index, seen) in self.seen.iter().enumerate().rev() {
            passed += seen;
            if passed > above {
                return Some(end(index));
            }
        }
        None
    }
}

/// Returns the bucket of an answer.
fn bucket(tokens: u64) -> usize {
    let tokens = tokens.max(1);
    let doubling = tokens.ilog2() as usize;
    // The two bits after the leading one select the quarter.
    let quarter = if doubling >= 2 { (tokens >> (doubling - 2)) as usize & 3 } else { 0 };
    (4 * doubling + quarter).min(BUCKETS - 1)
}

/// Returns the largest token count of a bucket.
fn end(index: usize) -> u64 {
    let (doubling, quarter) = (index / 4, index as u64 % 4);
    if doubling < 2 {
        return (2 << doubling) - 1;
    }
    ((5 + quarter) << (doubling - 2)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_lies_in_its_bucket() {
        for tokens in (0..100_000).chain([u64::from(u32::MAX), u64::MAX]) {
            let index = bucket(tokens);
            if index + 1 < BUCKETS {
                assert!(tokens.max(1) <= end(index), "{tokens} in {index}");
                assert!(end(index) <= (tokens.max(1) * 5 / 4).max(3), "{tokens} in {index}");
            }
        }
    }

    #[test]
    fn about_one_in_a_hundred_exceeds_the_estimate() {
        let mut outputs = Outputs::default();
        for tokens in [50, 50, 50, 50] {
            outputs.note(tokens);
        }
        assert_eq!(outputs.nearly_all(), None);
        outputs.note(900);
        assert_eq!(outputs.nearly_all(), Some(1023));
        for _ in 0..400 {
            outputs.note(50);
        }
        assert_eq!(outputs.nearly_all(), Some(55));
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut outputs = Outputs::default();
        (0..2000).for_each(|_| outputs.note(100_000));
        (0..10_000).for_each(|_| outputs.note(10));
        assert_eq!(outputs.nearly_all(), Some(11));
    }
}
