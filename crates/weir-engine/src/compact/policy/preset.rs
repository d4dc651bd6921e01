//! Policies by name: the shipped default, and the methods of five earlier context managers.

use super::{
    Breakpoints, Counting, Eviction, Extract, FileHints, Fill, Importance, Mask, Notes, Notices,
    Policy, Restart, Shares, Zones,
};

/// Names of the presets, in the order of listing.
pub const PRESETS: [&str; 6] = ["default", "scored", "zones", "extract", "shares", "tiers"];

/// Returns the policy of this name.
pub fn preset(name: &str) -> Option<Policy> {
    match name {
        "default" => Some(Policy::default()),
        "scored" => Some(scored()),
        "zones" => Some(zones()),
        "extract" => Some(extract()),
        "shares" => Some(shares()),
        "tiers" => Some(tiers()),
        _ => None,
    }
}

/// Keeps messages by score, then by age, as far as the limit has room.
fn scored() -> Policy {
    let base = Policy::default();
    Policy {
        recall_permille: 0,
        notes: Notes::Nothing,
        min_growth_permille: 0,
        eviction: Eviction { importance: Importance::Role, fill: Fill::Greedy, keep_messages: 0 },
        counting: Counting { reserve_tokens: 1024, ..base.counting },
        ..base
    }
}

/// Does nothing below 70 %, masks up to 90 %, warns at the first crossing and restarts at the next.
fn zones() -> Policy {
    let base = Policy::default();
    Policy {
        recall_permille: 0,
        notes: Notes::Count,
        hard_permille: 900,
        low_permille: 600,
        zones: Zones {
            soft_permille: 700,
            restart: Restart::SecondHard,
            notices: Notices {
                wind_down: Some(
                    "The context window is nearly full: finish the step at hand and write down \
                     what must be kept"
                        .into(),
                ),
                ..Notices::default()
            },
            ..base.zones
        },
        mask: Mask { results: true, ..base.mask },
        ..base
    }
}

/// Keeps the last ten messages, and an extract of those before, written without a model.
fn extract() -> Policy {
    let base = Policy::default();
    Policy {
        recall_permille: 0,
        notes: Notes::Extract,
        eviction: Eviction { keep_messages: 10, ..base.eviction },
        extract: Extract { permille: 300, ..base.extract },
        counting: Counting { margin_permille: 200, is_estimated: true, ..base.counting },
        ..base
    }
}

/// Gives each kind of message a share, and reduces the one furthest above its own.
fn shares() -> Policy {
    let base = Policy::default();
    Policy {
        recall_permille: 0,
        notes: Notes::Count,
        mask: Mask { results: true, ..base.mask },
        shares: Shares {
            is_attacked: true,
            oversize_tokens: 8000,
            file_hints: FileHints::Normal,
            ..base.shares
        },
        ..base
    }
}

/// Places breakpoints of the provider's cache where messages have stayed unchanged.
fn tiers() -> Policy {
    let base = Policy::default();
    Policy {
        recall_permille: 0,
        notes: Notes::Count,
        breakpoints: Breakpoints { tier_requests: 3, target_tokens: 1024 },
        ..base
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_policy_of_its_own() {
        let policies: Vec<Policy> =
            PRESETS.iter().map(|name| preset(name).expect("a listed name")).collect();
        for (index, policy) in policies.iter().enumerate() {
            assert!(policy.low_permille < policy.hard_permille);
            assert!(!policies[..index].contains(policy), "{}", PRESETS[index]);
        }
        assert_eq!(preset("other"), None);
    }
}
