//! What answers usually take, by how many have taken it: enough to say what hardly one in a hundred
//! passes. Bounded, and what is old weighs less and less. Arithmetic alone.

/// Buckets by size: four to each doubling, up to 2^32 tokens.
const BUCKETS: usize = 128;
/// After so many answers all weigh half of what they did.
const HALVED_AT: u32 = 1000;
/// Fewer answers than these tell nothing.
const FEWEST: u32 = 5;

/// What was seen of one model's answers.
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
    /// Notes an answer that was seen to its end.
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

    /// What 99 of 100 answers do not pass, rounded up; `None` where too few were seen.
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

/// Which bucket an answer is in.
fn bucket(tokens: u64) -> usize {
    let tokens = tokens.max(1);
    let doubling = tokens.ilog2() as usize;
    // The two bits behind the first tell the quarter.
    let quarter = if doubling >= 2 { (tokens >> (doubling - 2)) as usize & 3 } else { 0 };
    (4 * doubling + quarter).min(BUCKETS - 1)
}

/// The most tokens of a bucket.
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
    fn hardly_one_in_a_hundred_passes_what_is_told() {
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
