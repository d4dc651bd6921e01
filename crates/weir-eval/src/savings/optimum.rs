//! The cheapest times of compactions for a conversation that is known to its end, by dynamic programming over
//! the request of the last one. Knows sizes alone: what to compare a rule with that does not know the future.

use super::history::History;
use crate::bill::BilledTokens;

/// Costs of the requests from one on, at which a compaction is made, and the request of the next one.
#[derive(Clone, Copy)]
struct FromHere {
    nano_usd: u64,
    next: usize,
}

/// Returns the bill of each request under the cheapest compactions. Each keeps `kept_tokens` of the messages by
/// weir's own measure, besides what is new at its request.
pub(super) fn cheapest(history: &History, kept_tokens: u64) -> Vec<BilledTokens> {
    let sizes = Sizes { history, kept_tokens };
    let count = history.made.len();
    let mut rests = vec![FromHere { nano_usd: 0, next: count }; count + 1];
    for last in (0..count).rev() {
        rests[last] = rest(last, &rests, |request| sizes.nano_usd(last, request));
    }
    // Before the first compaction all is as it was.
    let as_it_was = |request: usize| history.made[request].billed;
    let mut bills = Vec::with_capacity(count);
    let mut next = first(history, &rests);
    bills.extend((0..next).map(as_it_was));
    while next < count {
        let (last, end) = (next, rests[next].next);
        bills.extend((last..end).map(|request| sizes.bill(last, request)));
        next = end;
    }
    bills
}

/// Returns the request of the first compaction; the number of all if none pays.
fn first(history: &History, rests: &[FromHere]) -> usize {
    let (mut before, mut best) = (0_u64, (u64::MAX, 0));
    for (request, rest) in rests.iter().enumerate() {
        let all = before.saturating_add(rest.nano_usd);
        // A later one costs less of what is known.
        if all <= best.0 {
            best = (all, request);
        }
        before = before.saturating_add(history.made.get(request).map_or(0, |own| own.nano_usd()));
    }
    best.1
}

/// Returns the cheapest rest, if the request `last` is that of a compaction and each costs `nano_usd`.
fn rest(last: usize, rests: &[FromHere], nano_usd: impl Fn(usize) -> u64) -> FromHere {
    let mut best = FromHere { nano_usd: u64::MAX, next: last + 1 };
    let mut so_far = 0_u64;
    for (next, rest) in rests.iter().enumerate().skip(last + 1) {
        so_far = so_far.saturating_add(nano_usd(next - 1));
        let nano_usd = so_far.saturating_add(rest.nano_usd);
        if nano_usd <= best.nano_usd {
            best = FromHere { nano_usd, next };
        }
    }
    best
}

struct Sizes<'h> {
    history: &'h History,
    kept_tokens: u64,
}

impl Sizes<'_> {
    /// Tokens of the messages that a request sends, if the last compaction was at the request `last`.
    fn sent_tokens(&self, last: usize, request: usize) -> u64 {
        let size = |request: usize| self.history.made[request].messages_tokens;
        let before = last.checked_sub(1).map_or(0, size);
        self.kept_tokens.saturating_add(size(request).saturating_sub(before)).min(size(request))
    }

    fn bill(&self, last: usize, request: usize) -> BilledTokens {
        let shared_tokens = match request > last {
            true => self.sent_tokens(last, request - 1),
            false => 0,
        };
        self.history.made[request].resized(self.sent_tokens(last, request), shared_tokens)
    }

    fn nano_usd(&self, last: usize, request: usize) -> u64 {
        self.bill(last, request).nano_usd(&self.history.made[request].price)
    }
}
