//! Policies as written: the keys that `[context]` and each `[policies.NAME]` have in common, and
//! which policy holds where. Knows what may be written; what it means is `context`'s.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::reader::Reader;
use super::{Context, set};
use crate::context::anchors::{Anchors, MAX_PATTERN_BYTES};
use crate::context::policy::{FileHints, Fill, Importance, Notes, Policy, Restart};
use crate::context::preset::{PRESETS, preset};

/// More than any model's window; less than what arithmetic on tokens could overflow with.
const MAX_TOKENS: u64 = 1_000_000_000_000;
/// The longest notice.
const MAX_NOTICE_BYTES: usize = 500;
/// The longest name of a policy.
const MAX_NAME_BYTES: usize = 64;
/// The most policies that can be named.
const MAX_POLICIES: usize = 256;

/// Policies by name.
#[derive(Debug, Clone, Default)]
pub struct Policies {
    own: BTreeMap<String, Policy>,
}

impl Policies {
    /// The policy of a name, `context` being that of `[context]`'s own keys.
    pub fn find(&self, name: &str, context: &Policy) -> Option<Policy> {
        match name {
            "default" => Some(context.clone()),
            name => self.own.get(name).cloned().or_else(|| preset(name)),
        }
    }

    /// Whether there is a policy of this name.
    pub fn has(&self, name: &str) -> bool {
        self.names().contains(&name)
    }

    /// All names, presets included.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = PRESETS.to_vec();
        names.extend(self.own.keys().map(String::as_str).filter(|own| !PRESETS.contains(own)));
        names
    }

    /// Reads the name of a policy that there is.
    pub fn read_name(&self, text: &str) -> Result<String, String> {
        let names = self.names();
        match names.contains(&text) {
            true => Ok(text.to_owned()),
            false => {
                let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
                Err(format!("{text:?} is no policy; there are {}", names.join(", ")))
            }
        }
    }
}

/// Reads `[policies]`, and which of them hold where nothing else is said.
pub(super) fn policies(reader: &mut Reader, context: &mut Context) {
    let mut own = BTreeMap::new();
    for name in reader.names("policies") {
        let path = ["policies", &name];
        if let Some(message) = wrong_name(&name, own.len()) {
            reader.refuse(&path, message);
        }
        let bases: Vec<(&str, &str)> = PRESETS.iter().map(|name| (*name, *name)).collect();
        let base = reader.choice(&["policies", &name, "preset"], &bases);
        let named =
            base.or(Some(name.as_str())).filter(|name| *name != "default" || base.is_some());
        let mut policy = named.and_then(preset).unwrap_or_else(|| context.policy.clone());
        read(reader, &path, &mut policy);
        own.insert(name, policy);
    }
    context.policies = Policies { own };
    let name = reader.text(&["context", "policy"], |text| context.policies.read_name(text));
    let allowed =
        reader.list(&["context", "allowed_policies"], |text| context.policies.read_name(text));
    set(&mut context.default_policy, name);
    set(&mut context.allowed_policies, allowed);
}

fn wrong_name(name: &str, known: usize) -> Option<String> {
    let plain = |own: char| own.is_ascii_alphanumeric() || matches!(own, '-' | '_' | '.');
    if name == "default" {
        Some("is the policy of [context] itself: write its keys there".to_owned())
    } else if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(plain) {
        Some(format!("is no name of at most {MAX_NAME_BYTES} letters, digits, '-', '_' and '.'"))
    } else {
        (known >= MAX_POLICIES).then(|| format!("is one more than {MAX_POLICIES} policies"))
    }
}

/// Reads the keys of a policy that stand under `section`.
pub(super) fn read(reader: &mut Reader, section: &[&str], policy: &mut Policy) {
    let mut keys = Keys { reader, section };
    marks(&mut keys, policy);
    masks(&mut keys, policy);
    eviction(&mut keys, policy);
    shares(&mut keys, policy);
    keys.agree(policy);
}

fn marks(keys: &mut Keys<'_>, policy: &mut Policy) {
    keys.share("hard", 10, &mut policy.hard_permille);
    keys.share("low", 1, &mut policy.low_permille);
    keys.share("min_growth", 0, &mut policy.min_growth_permille);
    let zones = &mut policy.zones;
    keys.share("soft", 0, &mut zones.soft_permille);
    keys.tokens("trigger_tokens", &mut zones.trigger_tokens);
    keys.share("min_progress", 0, &mut zones.min_progress_permille);
    keys.choice(
        "restart_at",
        &[
            ("off", Restart::Never),
            ("second_hard", Restart::SecondHard),
            ("exhausted", Restart::Exhausted),
        ],
        &mut zones.restart,
    );
    keys.count("carryover_turns", 0, &mut zones.carryover_turns);
    keys.notice("notice_mask", &mut zones.notices.mask);
    keys.notice("notice_wind_down", &mut zones.notices.wind_down);
    keys.notice("notice_restart", &mut zones.notices.restart);
    let counting = &mut policy.counting;
    keys.share("margin", 0, &mut counting.margin_permille);
    keys.tokens("reserve_tokens", &mut counting.reserve_tokens);
    keys.choice("encoding", &[("model", false), ("estimate", true)], &mut counting.is_estimated);
}

fn masks(keys: &mut Keys<'_>, policy: &mut Policy) {
    let mask = &mut policy.mask;
    for (key, place) in [
        ("mask", &mut mask.results),
        ("mask_repeats", &mut mask.repeats),
        ("mask_images", &mut mask.images),
        ("mask_arguments", &mut mask.arguments),
    ] {
        keys.choice(key, &[("off", false), ("placeholder", true)], place);
    }
    keys.count("mask_batch", 1, &mut mask.batch);
    keys.share("window", 0, &mut mask.window_permille);
}

fn eviction(keys: &mut Keys<'_>, policy: &mut Policy) {
    keys.count("recent_messages", 0, &mut policy.recent_messages);
    keys.share("recent", 0, &mut policy.recent_permille);
    keys.share("pinned", 0, &mut policy.pinned_permille);
    keys.anchors(policy);
    let eviction = &mut policy.eviction;
    keys.choice(
        "importance",
        &[("role", Importance::Role), ("reference", Importance::Reference)],
        &mut eviction.importance,
    );
    keys.choice(
        "fill",
        &[("low_mark", Fill::LowMark), ("greedy", Fill::Greedy)],
        &mut eviction.fill,
    );
    keys.count("keep_messages", 0, &mut eviction.keep_messages);
    keys.choice(
        "notes",
        &[
            ("off", Notes::Nothing),
            ("count", Notes::Count),
            ("extract", Notes::Extract),
            ("excerpts", Notes::Excerpts),
        ],
        &mut policy.notes,
    );
    keys.multiple("thrift", &mut policy.thrift_permille);
    keys.share("tail", 0, &mut policy.tail_permille);
    keys.share("extract", 0, &mut policy.extract.permille);
    keys.count("request_characters", 1, &mut policy.extract.request_characters);
}

fn shares(keys: &mut Keys<'_>, policy: &mut Policy) {
    let shares = &mut policy.shares;
    keys.choice("attack", &[("steps", false), ("shares", true)], &mut shares.is_attacked);
    keys.share("system_share", 0, &mut shares.system_permille);
    keys.share("anchors_share", 0, &mut shares.anchors_permille);
    keys.share("conversation_share", 0, &mut shares.conversation_permille);
    keys.tokens("oversize_tokens", &mut shares.oversize_tokens);
    keys.choice(
        "file_hints",
        &[
            ("off", FileHints::Off),
            ("minimal", FileHints::Minimal),
            ("normal", FileHints::Normal),
            ("full", FileHints::Full),
        ],
        &mut shares.file_hints,
    );
    keys.count("cache_tier_requests", 0, &mut policy.breakpoints.tier_requests);
    keys.tokens("cache_target_tokens", &mut policy.breakpoints.target_tokens);
}

/// A reader of the keys of one section.
struct Keys<'a> {
    reader: &'a mut Reader,
    section: &'a [&'a str],
}

impl Keys<'_> {
    fn share(&mut self, key: &str, least: u32, place: &mut u32) {
        let read = self.reader.share_permille(&[self.section, &[key]].concat(), least..=1000);
        set(place, read);
    }

    /// A share that may be more than the whole.
    fn multiple(&mut self, key: &str, place: &mut u32) {
        let read = self.reader.share_permille(&[self.section, &[key]].concat(), 0..=100_000);
        set(place, read);
    }

    fn tokens(&mut self, key: &str, place: &mut u64) {
        let read = self.reader.whole(&[self.section, &[key]].concat(), 0..=MAX_TOKENS);
        set(place, read);
    }

    fn count(&mut self, key: &str, least: u64, place: &mut u32) {
        let read = self.reader.whole(&[self.section, &[key]].concat(), least..=10_000);
        set(place, read.and_then(|number| u32::try_from(number).ok()));
    }

    fn choice<T: Copy>(&mut self, key: &str, choices: &[(&str, T)], place: &mut T) {
        let read = self.reader.choice(&[self.section, &[key]].concat(), choices);
        set(place, read);
    }

    fn notice(&mut self, key: &str, place: &mut Option<Arc<str>>) {
        let read = self.reader.text(&[self.section, &[key]].concat(), |text| {
            match text.len() > MAX_NOTICE_BYTES || text.contains(['\n', '[', ']']) {
                true => Err(format!(
                    "is not one line of at most {MAX_NOTICE_BYTES} bytes without brackets"
                )),
                false => Ok((!text.is_empty()).then(|| Arc::from(text))),
            }
        });
        set(place, read);
    }

    fn anchors(&mut self, policy: &mut Policy) {
        let path = [self.section, &["anchors"]].concat();
        let patterns = self.reader.list(&path, |text| match text.is_empty() {
            true => Err("has an empty pattern, which would match everything".to_owned()),
            false => Ok(text.to_owned()),
        });
        match patterns.map(Anchors::new) {
            Some(Ok(anchors)) => policy.anchors = anchors,
            Some(Err(error)) => {
                let message = format!(
                    "is no list of regular expressions of at most {MAX_PATTERN_BYTES} bytes each: \
                     {error}"
                );
                self.reader.refuse(&path, message);
            }
            None => {}
        }
    }

    /// What must agree among the keys.
    fn agree(&mut self, policy: &Policy) {
        let decimal = |permille: u32| f64::from(permille) / 1000.0;
        let name = |key: &str| [self.section, &[key]].concat().join(".");
        let (hard, soft) = (policy.hard_permille, policy.zones.soft_permille);
        let mut wrong: Vec<(&str, String)> = Vec::new();
        if policy.low_permille >= hard {
            let shown = decimal(hard);
            let hard = name("hard");
            wrong.push(("low", format!("is not below {hard} ({shown}): a cut would free nothing")));
        }
        if soft > 0 && (soft > hard || policy.low_permille >= soft) {
            let (low, hard) = (name("low"), name("hard"));
            wrong.push(("soft", format!("does not lie above {low} and up to {hard}")));
        }
        let shares = &policy.shares;
        let sum = shares.system_permille + shares.anchors_permille + shares.conversation_permille;
        if sum > 1000 {
            let message = format!("makes all shares {} together, more than 1", decimal(sum));
            wrong.push(("conversation_share", message));
        }
        if policy.counting.margin_permille > 900 {
            wrong.push(("margin", "leaves less than a tenth of the limit".to_owned()));
        }
        for (key, message) in wrong {
            self.reader.refuse(&[self.section, &[key]].concat(), message);
        }
    }
}
