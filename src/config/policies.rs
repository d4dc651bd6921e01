//! Policy keys: those shared by `[context]` and each `[policies.NAME]`, and which policy applies.
//! Defines the allowed values; `context` defines their meaning.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::keys::{MAX_TOKENS, POLICIES, POLICIES_ADVANCED, Section, decimal};
use super::reader::{Keys, Readable, Reader};
use weir_engine::compact::anchors::{Anchors, MAX_PATTERN_BYTES};
use weir_engine::compact::policy::{Goal, Mask, Policy};
use weir_engine::compact::preset::{PRESETS, preset};

/// Maximum length of a notice.
const MAX_NOTICE_BYTES: usize = 500;
/// Maximum length of a policy name.
const MAX_NAME_BYTES: usize = 64;
/// Maximum number of named policies.
const MAX_POLICIES: usize = 256;

/// Policies by name.
#[derive(Debug, Clone, Default)]
pub struct Policies {
    own: BTreeMap<String, Policy>,
}

impl Policies {
    /// Returns the policy with this name; `context` is that of `[context]`.
    pub fn find(&self, name: &str, context: &Policy) -> Option<Policy> {
        match name {
            "default" => Some(context.clone()),
            name => self.own.get(name).cloned().or_else(|| preset(name)),
        }
    }

    /// Returns whether one of the named policies offers the recall tool. No preset does.
    pub fn offer_recall(&self) -> bool {
        self.own.values().any(|policy| policy.offers_recall)
    }

    /// Returns whether a policy with this name exists.
    pub fn has(&self, name: &str) -> bool {
        self.names().contains(&name)
    }

    /// Returns all names, including presets.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = PRESETS.to_vec();
        names.extend(self.own.keys().map(String::as_str).filter(|own| !PRESETS.contains(own)));
        names
    }

    /// Parses the name of an existing policy.
    pub fn read_name(&self, text: &str) -> Result<String, String> {
        let names = self.names();
        match names.contains(&text) {
            true => Ok(text.to_owned()),
            false => {
                let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
                Err(format!("{text:?} is not a policy; the policies are {}", names.join(", ")))
            }
        }
    }
}

/// Reads `[policies]`; a policy without a preset starts from `context`.
pub(super) fn named(reader: &mut Reader, context: &Policy) -> Policies {
    let mut own = BTreeMap::new();
    for name in reader.names("policies") {
        let path = ["policies", name.as_str()];
        if let Some(message) = wrong_name(&name, own.len()) {
            reader.refuse(&path, message);
        }
        let base: Option<String> = reader.at(&POLICIES, &path).written("preset");
        let named = base.as_deref().or(Some(&name).filter(|name| *name != "default").map(|n| &**n));
        let mut policy = named.and_then(preset).unwrap_or_else(|| context.clone());
        read(reader, &path, [&POLICIES, &POLICIES_ADVANCED], &mut policy);
        own.insert(name, policy);
    }
    Policies { own }
}

fn wrong_name(name: &str, known: usize) -> Option<String> {
    let plain = |own: char| own.is_ascii_alphanumeric() || matches!(own, '-' | '_' | '.');
    if name == "default" {
        Some("is the policy of [context] itself: write its keys there".to_owned())
    } else if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(plain) {
        Some(format!("is not a name of at most {MAX_NAME_BYTES} letters, digits, '-', '_' and '.'"))
    } else {
        (known >= MAX_POLICIES).then(|| format!("exceeds the maximum of {MAX_POLICIES} policies"))
    }
}

/// Reads the policy keys under `path`, of users and advanced.
pub(super) fn read(
    reader: &mut Reader,
    path: &[&str],
    sections: [&'static Section; 2],
    policy: &mut Policy,
) {
    let advanced = [path, &["advanced"]].concat();
    let mut keys = PolicyKeys { reader, sections, paths: [path.to_vec(), advanced] };
    marks(&mut keys, policy);
    masks(&mut keys, policy);
    eviction(&mut keys, policy);
    shares(&mut keys, policy);
    keys.agree(policy);
}

fn marks(keys: &mut PolicyKeys<'_>, policy: &mut Policy) {
    keys.goal(policy);
    keys.read("hard", &mut policy.hard_permille);
    keys.read("low", &mut policy.low_permille);
    keys.read("marks.early", &mut policy.early_permille);
    keys.read("marks.min_growth", &mut policy.min_growth_permille);
    let zones = &mut policy.zones;
    keys.read("marks.soft", &mut zones.soft_permille);
    keys.read("marks.min_progress", &mut zones.min_progress_permille);
    keys.read("restart.at", &mut zones.restart);
    keys.read("restart.carryover_turns", &mut zones.carryover_turns);
    keys.notice("notices.mask", &mut zones.notices.mask);
    keys.notice("notices.wind_down", &mut zones.notices.wind_down);
    keys.notice("notices.restart", &mut zones.notices.restart);
    let counting = &mut policy.counting;
    keys.read("counting.margin", &mut counting.margin_permille);
    keys.read("counting.reserve_tokens", &mut counting.reserve_tokens);
    keys.read("counting.encoding", &mut counting.is_estimated);
}

fn masks(keys: &mut PolicyKeys<'_>, policy: &mut Policy) {
    let mask = &mut policy.mask;
    keys.masked(mask);
    keys.read("mask.batch", &mut mask.batch);
    keys.read("mask.window", &mut mask.window_permille);
}

fn eviction(keys: &mut PolicyKeys<'_>, policy: &mut Policy) {
    keys.read("keep.recent_messages", &mut policy.recent_messages);
    keys.read("keep.recent", &mut policy.recent_permille);
    keys.read("keep.pinned", &mut policy.pinned_permille);
    keys.anchors(policy);
    let eviction = &mut policy.eviction;
    keys.read("evict.importance", &mut eviction.importance);
    keys.read("evict.fill", &mut eviction.fill);
    keys.read("evict.last_messages", &mut eviction.keep_messages);
    keys.read("notes", &mut policy.notes);
    keys.read("excerpt_cost", &mut policy.excerpt_cost_permille);
    keys.read("recall.share", &mut policy.recall_permille);
    keys.read("recall.tool", &mut policy.offers_recall);
    keys.read("keep.survival", &mut policy.survival_permille);
    keys.read("extract.share", &mut policy.extract.permille);
    keys.read("extract.request_characters", &mut policy.extract.request_characters);
}

fn shares(keys: &mut PolicyKeys<'_>, policy: &mut Policy) {
    keys.read("mask.oversize_tokens", &mut policy.shares.oversize_tokens);
    keys.read("notices.files", &mut policy.shares.file_hints);
    let shares = &mut policy.shares;
    keys.read("shares.order", &mut shares.is_attacked);
    keys.read("shares.system", &mut shares.system_permille);
    keys.read("shares.anchors", &mut shares.anchors_permille);
    keys.read("shares.conversation", &mut shares.conversation_permille);
    keys.read("breakpoints.tier_requests", &mut policy.breakpoints.tier_requests);
    keys.read("breakpoints.target_tokens", &mut policy.breakpoints.target_tokens);
}

/// Reads the keys of one policy.
struct PolicyKeys<'a> {
    reader: &'a mut Reader,
    /// Its keys for users, and the advanced ones.
    sections: [&'static Section; 2],
    paths: [Vec<&'a str>; 2],
}

impl<'a> PolicyKeys<'a> {
    /// Returns the keys of the section that has `key`.
    fn of(&mut self, key: &str) -> Keys<'_, 'a> {
        let section = usize::from(self.sections[0].find(key).is_none());
        self.reader.at(self.sections[section], &self.paths[section])
    }

    /// Replaces the value of `key`, if it is written.
    fn read<T: Readable>(&mut self, key: &'static str, place: &mut T) {
        if let Some(value) = self.of(key).written(key) {
            *place = value;
        }
    }

    fn masked(&mut self, mask: &mut Mask) {
        let known = ["results", "repeats", "images", "arguments"];
        let kinds =
            self.of("mask.content").list("mask.content", |text| match known.contains(&text) {
                true => Ok(text.to_owned()),
                false => Err(format!("{text:?} is not one of {known:?}")),
            });
        if let Some(kinds) = kinds {
            [mask.results, mask.repeats, mask.images, mask.arguments] =
                known.map(|kind| kinds.iter().any(|own| own == kind));
        }
    }

    fn goal(&mut self, policy: &mut Policy) {
        let read = self.of("limit").written_text("limit", |text| {
            let word = Goal::WORDS.iter().find(|(word, _)| *word == text);
            match (word, text.parse()) {
                (Some((_, goal)), _) => Ok(*goal),
                (None, Ok(tokens @ 1..=MAX_TOKENS)) => Ok(Goal::Tokens(tokens)),
                _ => Err(format!(
                    "{text:?} is not \"window\", \"step\", \"economic\", \"cold\" or a number of tokens from 1"
                )),
            }
        });
        if let Some(goal) = read {
            policy.zones.goal = goal;
        }
    }

    fn notice(&mut self, key: &'static str, place: &mut Option<Arc<str>>) {
        let read = self.of(key).written_text(key, |text| {
            match text.len() > MAX_NOTICE_BYTES || text.contains(['\n', '[', ']']) {
                true => Err(format!(
                    "is not one line of at most {MAX_NOTICE_BYTES} bytes without brackets"
                )),
                false => Ok((!text.is_empty()).then(|| Arc::from(text))),
            }
        });
        if let Some(notice) = read {
            *place = notice;
        }
    }

    fn anchors(&mut self, policy: &mut Policy) {
        let mut keys = self.of("anchors");
        let patterns = keys.list("anchors", |text| match text.is_empty() {
            true => Err("has an empty pattern, which would match everything".to_owned()),
            false => Ok(text.to_owned()),
        });
        match patterns.map(Anchors::new) {
            Some(Ok(anchors)) => policy.anchors = anchors,
            Some(Err(error)) => {
                let message = format!(
                    "is not a list of regular expressions of at most {MAX_PATTERN_BYTES} bytes \
                     each: {error}"
                );
                keys.refuse("anchors", message);
            }
            None => {}
        }
    }

    /// Rejects contradicting keys.
    fn agree(&mut self, policy: &Policy) {
        let (hard, soft) = (policy.hard_permille, policy.zones.soft_permille);
        let mut wrong: Vec<(&'static str, String)> = Vec::new();
        if policy.low_permille >= hard {
            let shown = decimal(hard);
            let hard = self.of("hard").name("hard");
            wrong.push((
                "low",
                format!("is not below {hard} ({shown}): a compaction would free nothing"),
            ));
        }
        if soft > 0 && (soft > hard || policy.low_permille >= soft) {
            let [low, hard] = ["low", "hard"].map(|key| self.of(key).name(key));
            wrong.push(("marks.soft", format!("must be above {low} and at most {hard}")));
        }
        let shares = &policy.shares;
        let sum = shares.system_permille + shares.anchors_permille + shares.conversation_permille;
        if sum > 1000 {
            let message = format!("raises the sum of all shares to {}, above 1", decimal(sum));
            wrong.push(("shares.conversation", message));
        }
        if policy.counting.margin_permille > 900 {
            wrong.push(("counting.margin", "leaves less than a tenth of the limit".to_owned()));
        }
        for (key, message) in wrong {
            self.of(key).refuse(key, message);
        }
    }
}
