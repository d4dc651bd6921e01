//! Admission to budgets: whether a request may be sent, and with how much output. Its worst-case
//! cost is held in each of its budgets until it ends. Pure arithmetic over spent and held amounts;
//! the caller holds one lock, or runs the same rule in one atomic step next to the counters.
//!
//! Spent plus held never exceeds a limit. A budget with money left never blocks forever: a request
//! that fails only because of others' holds waits for them. The last request that fits at all gets
//! everything that is left.

use super::price::OutputBound;

/// Share of the free amount that one request gets if there is not enough for everything it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Nobody else holds anything or waits, or it has waited to the end.
    All,
    /// Others are under way, and nobody else waits: half.
    Half,
    /// Others wait: an eighth, so that they need not.
    Small,
}

impl Share {
    /// Returns the share of a request that can wait, among others that hold or wait.
    pub fn among(rooms: &[Room], others_wait: bool) -> Self {
        match rooms.iter().any(|room| room.held > 0) {
            _ if others_wait => Self::Small,
            true => Self::Half,
            false => Self::All,
        }
    }
}

/// Unit of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Measure {
    /// Money.
    NanoUsd,
    /// Prompt and output tokens together.
    Tokens,
}

/// Worst-case size of a request, as a function of its output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ask {
    /// Cost.
    pub money: OutputBound,
    /// Tokens without any output.
    pub prompt_tokens: u64,
    /// Number of choices (`n`); each may use the whole output limit.
    pub choices: u64,
    /// Largest output possible, as far as it is known.
    pub wanted_tokens: u64,
    /// Output that answers rarely exceed.
    pub enough_tokens: u64,
    /// Smallest output worth sending the request for.
    pub least_tokens: u64,
    /// Whether the output may be reduced: its limit can be lowered, or it has none and the wanted
    /// output is an estimate.
    pub is_flexible: bool,
}

impl Ask {
    /// Returns the amount to hold for an output of `output_tokens`.
    pub fn amount(&self, measure: Measure, output_tokens: u64) -> u64 {
        match measure {
            Measure::NanoUsd => self.money.nano_usd(output_tokens.saturating_mul(self.choices)),
            Measure::Tokens => {
                self.prompt_tokens.saturating_add(output_tokens.saturating_mul(self.choices))
            }
        }
        .max(1)
    }

    /// Returns the largest output that costs at most `space`; `None` if even zero output
    /// costs more.
    fn most(&self, measure: Measure, space: u64) -> Option<u64> {
        if self.amount(measure, 0) > space {
            return None;
        }
        // The amount grows with the output, so the last output that fits lies between these two.
        let (mut fits, mut beyond) = (0, self.wanted_tokens.saturating_add(1));
        while beyond - fits > 1 {
            let middle = fits + (beyond - fits) / 2;
            if self.amount(measure, middle) <= space { fits = middle } else { beyond = middle }
        }
        Some(fits)
    }
}

/// State of one budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub measure: Measure,
    pub limit: u64,
    pub spent: u64,
    pub held: u64,
}

impl Room {
    /// Returns the amount left if all holds are spent.
    pub fn free(&self) -> u64 {
        self.limit.saturating_sub(self.spent).saturating_sub(self.held)
    }

    /// Returns the amount left if no hold is spent.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.spent)
    }
}

/// Result of admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldVerdict {
    /// The request is sent with this output limit per choice.
    Granted { output_tokens: u64 },
    /// It may fit after other requests end.
    Wait,
    /// The budget at this index is too small, even if all holds are released.
    Exhausted { index: usize },
}

/// Decides whether a request is admitted to all of these budgets. With less than a whole share it waits
/// instead of accepting less output than answers commonly use.
pub fn decide(rooms: &[Room], ask: &Ask, share: Share) -> HoldVerdict {
    let fits_all =
        |tokens: u64| rooms.iter().all(|room| ask.amount(room.measure, tokens) <= room.free());
    if fits_all(ask.wanted_tokens) {
        return HoldVerdict::Granted { output_tokens: ask.wanted_tokens };
    }
    let needed =
        if ask.is_flexible { ask.least_tokens.min(ask.wanted_tokens) } else { ask.wanted_tokens };
    let mut ever = ask.wanted_tokens;
    for (index, room) in rooms.iter().enumerate() {
        match ask.most(room.measure, room.left()) {
            Some(tokens) if tokens >= needed => ever = ever.min(tokens),
            _ => return HoldVerdict::Exhausted { index },
        }
    }
    let most = rooms.iter().map(|room| ask.most(room.measure, room.free())).min().flatten();
    let Some(most) = most.filter(|_| ask.is_flexible) else { return HoldVerdict::Wait };
    // While much is free, an answer is not shortened to reserve the rest for others.
    let wished = match share {
        Share::All => most,
        Share::Half => ask.enough_tokens.max(most / 2),
        Share::Small => ask.enough_tokens.max(most / 8),
    };
    let target = wished.max(needed).min(ever);
    if most < target { HoldVerdict::Wait } else { HoldVerdict::Granted { output_tokens: target } }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One dollar per million output tokens, and one nano-dollar per prompt token.
    fn ask(prompt: u64, wanted: u64, enough: u64, is_flexible: bool) -> Ask {
        Ask {
            money: OutputBound {
                base_nano_usd: prompt * 1000,
                output_nano_usd_per_mtok: 1_000_000_000,
            },
            prompt_tokens: prompt,
            choices: 1,
            wanted_tokens: wanted,
            enough_tokens: enough,
            least_tokens: 16,
            is_flexible,
        }
    }

    fn tokens(limit: u64, spent: u64, held: u64) -> Room {
        Room { measure: Measure::Tokens, limit, spent, held }
    }

    #[test]
    fn what_becomes_of_requests() {
        use HoldVerdict::{Exhausted, Granted, Wait};
        let (firm, flexible) = (ask(100, 400, 50, false), ask(100, 400, 50, true));
        let money = Room { measure: Measure::NanoUsd, limit: 450_000, spent: 0, held: 0 };
        for (name, rooms, ask, expected) in [
            ("nothing is limited", vec![], firm, Granted { output_tokens: 400 }),
            ("there is room", vec![tokens(500, 0, 0)], firm, Granted { output_tokens: 400 }),
            ("one short", vec![tokens(499, 0, 0)], firm, Exhausted { index: 0 }),
            ("spent before", vec![tokens(9000, 8501, 0)], firm, Exhausted { index: 0 }),
            ("held by others", vec![tokens(9000, 8000, 501)], firm, Wait),
            (
                "the second has not",
                vec![tokens(500, 0, 0), tokens(99, 0, 0)],
                firm,
                Exhausted { index: 1 },
            ),
            ("all that is left", vec![tokens(140, 0, 0)], flexible, Granted { output_tokens: 40 }),
            (
                "enough is left next to other holds",
                vec![tokens(600, 0, 101)],
                flexible,
                Granted { output_tokens: 50 },
            ),
            (
                "a share of much",
                vec![tokens(10_700, 0, 10_000)],
                ask(100, 4000, 50, true),
                Granted { output_tokens: 75 },
            ),
            ("not enough next to other holds", vec![tokens(600, 0, 460)], flexible, Wait),
            ("the least", vec![tokens(116, 0, 0)], flexible, Granted { output_tokens: 16 }),
            ("less than the least", vec![tokens(115, 0, 0)], flexible, Exhausted { index: 0 }),
            ("less than the least, by others", vec![tokens(616, 0, 501)], flexible, Wait),
            (
                "money is less",
                vec![tokens(9000, 0, 0), money],
                flexible,
                Granted { output_tokens: 50 },
            ),
            ("overspent", vec![tokens(100, 5000, 5000)], flexible, Exhausted { index: 0 }),
        ] {
            assert_eq!(decide(&rooms, &ask, Share::Small), expected, "{name}");
        }
    }

    #[test]
    fn a_request_that_waited_to_the_end_takes_the_free_amount() {
        let flexible = ask(100, 400, 50, true);
        let rooms = [tokens(600, 0, 460)];
        assert_eq!(
            decide(&rooms, &flexible, Share::All),
            HoldVerdict::Granted { output_tokens: 40 }
        );
        assert_eq!(decide(&[tokens(600, 0, 490)], &flexible, Share::All), HoldVerdict::Wait);
        let firm = ask(100, 400, 50, false);
        assert_eq!(decide(&[tokens(600, 0, 500)], &firm, Share::All), HoldVerdict::Wait);
    }

    #[test]
    fn nobody_is_cut_below_the_free_amount_for_nobody() {
        let much = Ask { enough_tokens: 2048, ..ask(100, 30_000, 0, true) };
        for (rooms, others_wait, granted) in [
            ([tokens(10_100, 0, 0)], false, 10_000),
            ([tokens(20_100, 0, 10_000)], false, 5000),
            ([tokens(13_100, 0, 10_000)], false, 2048),
            ([tokens(20_100, 0, 10_000)], true, 2048),
            ([tokens(10_100, 0, 0)], true, 2048),
        ] {
            let share = Share::among(&rooms, others_wait);
            let expected = HoldVerdict::Granted { output_tokens: granted };
            assert_eq!(decide(&rooms, &much, share), expected, "{rooms:?}, {others_wait}");
        }
    }

    #[test]
    fn each_answer_may_have_the_output() {
        let ask = Ask { choices: 3, ..ask(100, 400, 400, true) };
        assert_eq!(ask.amount(Measure::Tokens, 10), 130);
        assert_eq!(ask.amount(Measure::NanoUsd, 10), 130_000);
        assert_eq!(
            decide(&[tokens(160, 0, 0)], &ask, Share::Small),
            HoldVerdict::Granted { output_tokens: 20 }
        );
    }

    fn room() -> impl Strategy<Value = Room> {
        let measure = prop::sample::select(vec![Measure::NanoUsd, Measure::Tokens]);
        (measure, 0u64..2_000_000, 0u64..2_000_000, 0u64..2_000_000)
            .prop_map(|(measure, limit, spent, held)| Room { measure, limit, spent, held })
    }

    proptest! {
        #[test]
        fn nothing_is_granted_past_a_limit_and_nobody_waits_for_nothing(
            rooms in prop::collection::vec(room(), 0..4),
            prompt in 0u64..2000,
            wanted in 0u64..5000,
            enough in 0u64..5000,
            choices in 1u64..4,
            is_flexible: bool,
            share in prop::sample::select(vec![Share::All, Share::Half, Share::Small]),
        ) {
            let ask = Ask { choices, ..ask(prompt, wanted, enough, is_flexible) };
            match decide(&rooms, &ask, share) {
                HoldVerdict::Granted { output_tokens } => {
                    prop_assert!(output_tokens <= wanted);
                    for room in &rooms {
                        let amount = ask.amount(room.measure, output_tokens);
                        prop_assert!(room.spent + room.held + amount <= room.limit);
                    }
                }
                HoldVerdict::Wait => {
                    prop_assert!(rooms.iter().any(|room| room.held > 0));
                    // However much of the holds is spent, the last remaining request gets a
                    // definite answer.
                    let alone: Vec<Room> = rooms.iter().map(|room| Room { held: 0, ..*room }).collect();
                    let spent: Vec<Room> = rooms
                        .iter()
                        .map(|room| Room { held: 0, spent: room.spent + room.held, ..*room })
                        .collect();
                    let sent = matches!(decide(&alone, &ask, share), HoldVerdict::Granted { .. });
                    prop_assert!(sent);
                    prop_assert!(decide(&spent, &ask, share) != HoldVerdict::Wait);
                }
                HoldVerdict::Exhausted { index } => {
                    let least = if is_flexible { wanted.min(16) } else { wanted };
                    let room = &rooms[index];
                    prop_assert!(ask.amount(room.measure, least) > room.left());
                }
            }
        }
    }
}
