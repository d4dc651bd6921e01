//! One compaction: masks bulky content, then removes turns down to the low mark. If the size still
//! exceeds the limit, it clips contents and releases pins.
//!
//! Each step is a file: `mask`, `evict`, `shares` and `condense` make room, `fit` is the last resort,
//! `plain_note` and `condense` leave the note, with a model's summary from `note_summary`. `clear` is
//! apart: it carries out rules of the caller.

pub(super) mod calls;
pub(super) mod clear;
pub(super) mod condense;
pub(super) mod evict;
pub(super) mod fit;
mod loads;
pub(super) mod mask;
pub(super) mod note_summary;
pub(super) mod notices;
pub(super) mod parts;
pub(super) mod plain_note;
pub(super) mod shares;
mod survive;

use std::collections::BTreeMap;

use crate::compact::policy::{Notes, Restart, share};
use crate::compact::source::Source;
use crate::compact::state::Compactor;
use crate::compact::state::history::{Mark, Pin};
use crate::compact::state::turns::TurnKind;
use crate::compact::summary;
use crate::wire::Role;

/// Step that a compaction took, for the wording of its note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Mask,
    WindDown,
    Evict,
    Restart,
}

/// Compacts to the low mark, and within the limit, as far as possible.
pub(super) fn run(state: &mut Compactor, mark: Mark, source: &dyn Source) {
    if state.turns.list.is_empty() {
        // System messages alone: nothing may be removed.
        return;
    }
    let mut compaction = Compaction::new(state);
    compaction.pin_loads(source);
    compaction.drop_thinking();
    if mark == Mark::Hard {
        compaction.pin_waiting(source);
        compaction.retire_notices();
    }
    match mark {
        Mark::Soft => compaction.soften(source),
        Mark::Hard if compaction.state.profile.policy.notes == Notes::Excerpts => {
            let room = compaction.condense();
            compaction.fit(source);
            compaction.drop_leading_orphans();
            compaction.drop_stranded_notices();
            compaction.leave_excerpts(room, source);
            compaction.refill(source);
        }
        Mark::Hard => {
            let step = compaction.harden(source);
            compaction.fit(source);
            compaction.drop_leading_orphans();
            compaction.drop_stranded_notices();
            compaction.leave_note(step, source);
            compaction.refill(source);
        }
    }
    compaction.remember_pins();
}

/// Returns the messages that a hard compaction now would replace by a note, in order, and the
/// maximum size of their summary. `None` if it would leave no note. Leaves `state` in an
/// intermediate state of that compaction.
pub(crate) fn prefetch(state: &mut Compactor, source: &dyn Source) -> Option<(Vec<usize>, u64)> {
    let notes = state.profile.policy.notes;
    if state.turns.list.is_empty() || notes == Notes::Nothing {
        return None;
    }
    let mut compaction = Compaction::new(state);
    compaction.pin_loads(source);
    compaction.drop_thinking();
    compaction.pin_waiting(source);
    compaction.retire_notices();
    let room = if notes == Notes::Excerpts {
        Some(compaction.condense_for_prefetch())
    } else {
        compaction.harden(source);
        None
    };
    compaction.fit(source);
    compaction.drop_leading_orphans();
    compaction.drop_stranded_notices();
    let room_tokens = match room {
        Some(room) => {
            compaction.place_notes()?;
            compaction.note_tokens(room)?
        }
        None => 2 * compaction.extract_tokens(),
    };
    let span = compaction.span();
    (!span.is_empty()).then_some((span, summary::most_tokens(room_tokens)))
}

pub(crate) struct Compaction<'f> {
    pub(crate) state: &'f mut Compactor,
    /// First of the newest turns, which are never removed.
    pub(crate) newest: usize,
    /// Reasons for older live turns to stay; turns without one may be removed.
    pub(crate) pins: BTreeMap<usize, Pin>,
    /// First message that this compaction removes or masks.
    pub(crate) gap: Option<usize>,
    /// Messages removed in this compaction, and those whose note was removed with its message.
    pub(crate) left_out: usize,
    /// Importance of each turn, if it does not follow from its messages' roles.
    pub(crate) importances: Option<Vec<u32>>,
    /// Results that this compaction clipped, with their sizes before.
    pub(crate) clipped: BTreeMap<usize, u64>,
}

impl<'f> Compaction<'f> {
    fn new(state: &'f mut Compactor) -> Self {
        let newest = state.turns.newest_from();
        let mut compaction = Self {
            state,
            newest,
            pins: BTreeMap::new(),
            gap: None,
            left_out: 0,
            importances: None,
            clipped: BTreeMap::new(),
        };
        compaction.pin_by_caller();
        for turn in compaction.earlier_notes() {
            compaction.pins.insert(turn, Pin::ByCaller);
        }
        if let Some(turn) =
            compaction.state.turns.first_user.filter(|turn| !compaction.turn(*turn).is_gone)
        {
            let is_user = compaction.turn(turn).kind == TurnKind::User;
            compaction.pins.insert(turn, if is_user { Pin::FirstUser } else { Pin::Summary });
        }
        compaction
    }

    /// Leaves out thinking that a compaction makes invalid: the provider signs it over everything before
    /// it. Without a gap, all older thinking goes. The newest turn keeps its own unless the provider
    /// compares, since providers want the thinking of an open turn back; so does a round of tools that is the
    /// last answer.
    ///
    /// Source: Anthropic's guide to extended thinking.
    fn drop_thinking(&mut self) {
        let policy = &self.state.profile.policy;
        let before = match policy.is_thinking_bound {
            true => self.state.messages(),
            false if policy.keeps_thinking => return,
            false => {
                let from = self.pin_last_answer().unwrap_or(self.newest);
                self.turn(from).first
            }
        };
        self.state.drop_thinking_before(before);
    }

    /// Returns the last answer if it is a round of tools before the newest turn: it keeps its thinking. It stays
    /// as long as any pinned round with thinking, which would be the last one without it.
    fn pin_last_answer(&mut self) -> Option<usize> {
        let answer = self.last_answer()?;
        let facts = |turn: usize| {
            let own = self.turn(turn);
            &self.state.messages.facts[own.first..=own.last]
        };
        let is_round = |turn: usize| facts(turn).iter().any(|fact| fact.calls > 0);
        let thinks = |turn: usize| facts(turn).iter().any(|fact| fact.thinking_tokens > 0);
        let is_other = |turn: usize| turn != answer && is_round(turn) && thinks(turn);
        let others = self.pins.iter().filter(|(turn, _)| is_other(**turn)).map(|(_, pin)| *pin);
        let (strongest, kept) = (others.max(), is_round(answer).then_some(answer));
        if let Some(strongest) = strongest {
            let own = self.pins.entry(answer).or_insert(Pin::Recent);
            *own = (*own).max(strongest.min(Pin::FirstUser));
        }
        kept
    }

    /// Returns the last turn with an answer, if it is none of the newest.
    fn last_answer(&self) -> Option<usize> {
        let answers = |turn: &usize| {
            let own = self.turn(*turn);
            let facts = &self.state.messages.facts[own.first..=own.last];
            facts.iter().any(|fact| fact.role == Role::Assistant)
        };
        let is_new = (self.newest..self.state.turns.list.len()).any(|turn| answers(&turn));
        self.older().iter().rev().copied().find(answers).filter(|_| !is_new)
    }

    /// Records why turns stayed, for later reports.
    fn remember_pins(self) {
        let (newest, pins) = (self.newest, self.pins);
        self.state.history.newest = newest;
        self.state.history.pins = pins;
    }

    /// Returns the messages that this compaction's note covers, in order.
    pub(crate) fn span(&self) -> Vec<usize> {
        let mut span = self.state.notes.unexcerpted.clone();
        span.sort_unstable();
        span
    }

    pub(crate) fn turn(&self, turn: usize) -> &crate::compact::state::turns::Turn {
        &self.state.turns.list[turn]
    }

    /// Returns the live turns before the newest, in order.
    pub(crate) fn older(&self) -> &[usize] {
        let end = self.state.turns.live.partition_point(|turn| *turn < self.newest);
        &self.state.turns.live[..end]
    }

    /// Pins the last messages before the newest turn, widened to whole turns, while they and the
    /// newest turn stay within their share. So the low mark stays within reach.
    pub(crate) fn pin_recent(&mut self, most_tokens: u64) {
        let policy = &self.state.profile.policy;
        let most_tokens =
            share(self.state.base_tokens().0, policy.recent_permille).min(most_tokens);
        let wanted = policy.recent_messages as usize;
        let mut messages = 0;
        let mut tokens: u64 =
            self.state.turns.list[self.newest..].iter().map(|turn| turn.tokens).sum();
        let mut pins = BTreeMap::new();
        for turn in self.older().iter().rev() {
            let own = self.turn(*turn);
            tokens += own.tokens;
            if messages >= wanted || tokens > most_tokens {
                break;
            }
            messages += own.last - own.first + 1;
            pins.insert(*turn, Pin::Recent);
        }
        for (turn, pin) in pins {
            self.pins.entry(turn).or_insert(pin);
        }
    }

    /// Pins the turns that the caller marked, the oldest first, while they stay within their share.
    fn pin_by_caller(&mut self) {
        let policy = &self.state.profile.policy;
        let most_tokens = share(self.state.goal_tokens(), policy.pinned_permille);
        let mut tokens = 0;
        let mut pins = BTreeMap::new();
        for turn in self.older().iter().filter(|turn| self.turn(**turn).is_pinned_by_caller) {
            tokens += self.turn(*turn).tokens;
            if tokens > most_tokens {
                break;
            }
            pins.insert(*turn, Pin::ByCaller);
        }
        self.pins.extend(pins);
    }

    /// Returns the older turns that are notes of earlier compactions, sent back by the caller.
    pub(crate) fn earlier_notes(&self) -> Vec<usize> {
        self.older().iter().copied().filter(|turn| self.turn(*turn).is_note).collect()
    }

    /// Masks down to the low mark if that frees enough.
    fn soften(&mut self, source: &dyn Source) {
        let low = self.state.low_tokens();
        if self.mask(low, self.state.progress_tokens(), source) {
            self.leave_note(Step::Mask, source);
        }
    }

    /// Runs the steps down to the low mark.
    fn harden(&mut self, source: &dyn Source) -> Step {
        let low = self.state.low_tokens();
        let limit = self.state.profile.limit_tokens;
        let is_first = self.state.restarts.hard_crossings == 0;
        let least_tokens = self.state.progress_tokens();
        let restart = self.state.profile.policy.zones.restart;
        let is_attacked = self.state.profile.policy.shares.is_attacked;
        let step = match restart {
            Restart::Never if is_attacked => return self.attack(low, source),
            Restart::Never => return self.mask_or_evict(low, source),
            Restart::SecondHard if is_first => {
                self.mask(low, 0, source);
                self.state.restarts.hard_crossings += 1;
                Step::WindDown
            }
            Restart::Exhausted if self.mask(low, least_tokens, source) => Step::Mask,
            Restart::SecondHard | Restart::Exhausted => Step::Restart,
        };
        if step != Step::Restart && self.state.sizes.request_tokens <= limit {
            return step;
        }
        self.state.restarts.hard_crossings = 0;
        self.state.restarts.count += 1;
        self.restart();
        Step::Restart
    }

    /// Masks bulky content, and evicts turns if that was not enough.
    pub(crate) fn mask_or_evict(&mut self, low_tokens: u64, source: &dyn Source) -> Step {
        if self.mask(low_tokens, 0, source) && self.state.sizes.request_tokens <= low_tokens {
            return Step::Mask;
        }
        self.evict_to(low_tokens, source);
        Step::Evict
    }

    /// Removes everything but pins and the last turns.
    fn restart(&mut self) {
        let turns = self.state.profile.policy.zones.carryover_turns as usize;
        let older = self.older();
        let carried = older[older.len().saturating_sub(turns)..].to_vec();
        for turn in carried {
            self.pins.entry(turn).or_insert(Pin::Recent);
        }
        self.evict_down_to(0);
    }

    /// Records that this compaction changes `message`.
    pub(crate) fn touch(&mut self, message: usize) {
        self.gap = Some(self.gap.map_or(message, |gap| gap.min(message)));
        self.state.changes.touch(message);
    }

    pub(crate) fn is_pinned(&self, turn: usize) -> bool {
        turn >= self.newest || self.pins.contains_key(&turn)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Compactor, Fate, PrefetchSettings};
    use crate::compact::limits::Profile;
    use crate::compact::message::clip::Clipped;
    use crate::compact::message::ending::Ending;
    use crate::compact::message::links::Links;
    use crate::compact::message::measure::{Fact, Measure};
    use crate::compact::message::reading::Reading;
    use crate::compact::policy::{Notes, Policy};
    use crate::compact::source::Source;
    use crate::compact::state::note::Place;
    use crate::tokens::Encoding;
    use crate::tokens::media::ImageRule;
    use crate::wire::Role;

    /// Source that clips by arithmetic, exactly to the requested size.
    struct Halves;

    impl Source for Halves {
        fn clip(&self, _: usize, level_tokens: u64, _: &[usize]) -> Clipped {
            Clipped { cuts: Vec::new(), text_tokens: level_tokens }
        }

        fn reading(&self, _: usize) -> Arc<Reading> {
            Arc::new(Reading::of_text(Role::User, ""))
        }
    }

    /// Builds a state from one word per message: `s`ystem, `u`ser, `a`ssistant, `c`all (an
    /// assistant with one), `t`ool result, `o`ther; then its tokens; `!` marks it to stay.
    fn state_of(limit_tokens: u64, policy: Policy, transcript: &str) -> Compactor {
        let measure =
            Measure { encoding: Encoding::O200kBase, images: ImageRule::of_model("gpt-4o") };
        let profile = Profile { limit_tokens, overhead_tokens: 0, policy, measure };
        let mut state = Compactor::new(Arc::new(profile));
        for word in transcript.split_whitespace() {
            let (kind, rest) = word.split_at(1);
            let tokens = rest.trim_end_matches('!').parse().expect("tokens after the role");
            let role = match kind {
                "s" => Role::System,
                "u" => Role::User,
                "a" | "c" => Role::Assistant,
                "t" => Role::Tool,
                "o" => Role::Other,
                _ => panic!("no role {kind}"),
            };
            let fact = Fact {
                role,
                tokens,
                text_tokens: tokens,
                calls: u32::from(kind == "c"),
                is_long: false,
                is_pinned: rest.ends_with('!'),
                replaces_earlier: false,
                is_note: false,
                is_aside: false,
                is_marked: false,
                thinking_tokens: 0,
                takes_note: true,
                ending: Ending::Other,
                form: u64::from(role == Role::System) * tokens,
                form_tokens: tokens,
                declares_tools: false,
                may_load_tools: false,
                is_elsewhere: false,
                links: Links::waiting(u32::from(kind == "c")),
            };
            state.push(fact, &Halves);
        }
        state.ended(&Halves).into_owned()
    }

    fn kept(state: &Compactor) -> String {
        let words = state.fates().iter().enumerate().filter_map(|(index, fate)| match fate {
            Fate::Kept => Some(index.to_string()),
            Fate::Clipped => Some(format!("{index}c")),
            Fate::Masked => Some(format!("{index}m")),
            Fate::Gone => None,
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// Returns a policy without notes, so that the sums in the rows are simple.
    fn plain() -> Policy {
        Policy {
            notes: Notes::Nothing,
            low_permille: 600,
            recent_permille: 500,
            ..Policy::default()
        }
    }

    fn check(limit_tokens: u64, transcript: &str, expected: &str) {
        let state = state_of(limit_tokens, plain(), transcript);
        assert_eq!(kept(&state), expected, "{transcript} within {limit_tokens}");
        assert!(state.sent_tokens() <= limit_tokens);
    }

    #[test]
    fn nothing_happens_up_to_the_mark() {
        check(1000, "s100 u100 c100 t300 c100 t300", "0 1 2 3 4 5");
        check(10, "", "");
    }

    #[test]
    fn an_agents_oldest_turns_go_first_down_to_the_low_mark() {
        // Base 800, low 200 + 480 = 680; less the room for a note.
        check(1000, "s100 u100 c50 t150 c50 t150 c50 t150 c50 t151", "0 1 6 7 8 9");
    }

    #[test]
    fn whole_exchanges_go_in_a_chat() {
        // The first exchange is pinned by its user message, so only its answer is removed.
        check(1000, "s100 u50 a150 u50 a150 u50 a150 u50 a150 u50 a150", "0 1 7 8 9 10");
    }

    #[test]
    fn a_turn_goes_or_stays_with_all_its_results() {
        check(1000, "u100 c10 t200 t200 c10 t200 t10 u100 a100 u150", "0 7 8 9");
    }

    #[test]
    fn marked_messages_stay_within_their_share() {
        check(1000, "u100 c50! t30 c100 t200 c100 t200 c100 t121", "0 1 2 7 8");
        // Two marked turns exceed a tenth of the limit: the second is treated as an ordinary one.
        check(1000, "u100 c50! t30 c100! t200 c100 t200 c100 t121", "0 1 2 7 8");
    }

    #[test]
    fn least_important_exchanges_go_first() {
        // The plain exchange in the middle scores less than those around it, which use tools, and
        // is removed whole. The second is larger than the remaining excess, and keeps its ends.
        check(
            1000,
            "u50 c10 t90 a10 u50 c10 t200 a40 u50 a250 u50 c10 t90 a10 u90",
            "0 4 7 10 11 12 13 14",
        );
    }

    #[test]
    fn the_newest_turn_is_clipped_rather_than_lost() {
        check(10_000, "s100 u100 c100 t20000", "0 1 2 3c");
        check(1500, "s100 u100 c100 t20000", "0 1 2 3c");
        // The largest first, one step after another.
        check(7000, "u100 c100 t5000 c10 t3000", "0 3 4");
    }

    #[test]
    fn parallel_results_are_clipped_as_far_as_it_takes() {
        // A thousand tokens each would still be too many.
        check(2000, "s100 u100 c50 t9000 t9000 t9000 t9000 t9000", "0 1 2 3c 4c 5c 6c 7c");
        check(400, "s10 u20 c20 t900 t900 t900 t900 t900 t900", "0 2 3c 4c 5c 6c 7c 8c");
        // The question stays while results can be clipped to a quarter of that.
        check(1800, "s100 u300 a10 u300 c50 t5000 t5000 t5000", "0 1 3 4 5c 6c 7c");
    }

    #[test]
    fn pins_give_way_in_their_order_before_the_limit_does() {
        // Nothing can be clipped: the turns before the newest are removed, then the first user
        // message.
        check(1000, "s100 u300 a100 u300 a100 u350", "0 1 5");
        check(1000, "s100 u600 a100 u800", "0 3");
        check(1000, "s100 u600! a100 u10! a10 u800", "0 5");
    }

    #[test]
    fn what_cannot_fit_says_so() {
        let state = state_of(1000, plain(), "s100 u100 a100 u2000");
        assert_eq!(kept(&state), "0 3");
        assert!(state.sent_tokens() > 1000);
    }

    #[test]
    fn roles_alternate_where_they_must() {
        let strict = Policy { strict_alternation: true, ..plain() };
        for (limit, transcript, expected) in [
            (1000, "s100 u50 a150 u50 a150 u50 a150 u50 a150 u50 a150 u10", "0 1 2 7 8 9 10 11"),
            (1000, "s100 u300 a100 u300 a100 u350", "0 1 2 5"),
            (1000, "s100 u600 a100 u800", "0 3"),
            (1000, "u100 a100 u100 c50 t300 c50 t301", "0 1 2 5 6"),
            (1000, "u100 a100 u300 c50 t300 c250 t301", "0 5 6"),
        ] {
            let state = state_of(limit, strict.clone(), transcript);
            assert_eq!(kept(&state), expected, "{transcript} within {limit}");
        }
    }

    #[test]
    fn a_note_stands_where_turns_went() {
        let counted = Policy { notes: Notes::Count, ..plain() };
        let state = state_of(1000, counted, "s100 u100 c50 t150 c50 t150 c50 t150 c50 t151");
        assert_eq!(state.notes.list.len(), 1);
        assert_eq!((state.notes.list[0].message, state.notes.list[0].left_out), (1, 4));
        assert!(state.notes.list[0].place == Place::After);
    }

    #[test]
    fn the_span_of_the_next_compaction_is_known_before_it() {
        let counted = Policy { notes: Notes::Count, ..plain() };
        let transcript = "s100 u100 c50 t150 c50 t150 c50 t150 c50 t50";
        // Base 800 above 200: eight tenths of it are 840.
        let next_span = |policy: &Policy, more: &str, permille| {
            let settings = PrefetchSettings { mark_permille: permille, summary_tokens: 10 };
            let state = state_of(1000, policy.clone(), &format!("{transcript}{more}"));
            state.prefetch(settings, &Halves).map(|next| next.span)
        };
        assert_eq!(next_span(&counted, "", 900), None, "900 of 920");
        assert_eq!(next_span(&counted, "", 800).as_deref(), Some(&[2, 3, 4, 5][..]));
        let compaction = state_of(1000, counted.clone(), &format!("{transcript} c50 t101"));
        let gone = (0..compaction.messages()).filter(|own| compaction.fates()[*own] == Fate::Gone);
        assert_eq!(gone.take(4).collect::<Vec<_>>(), [2, 3, 4, 5], "the expected span");
        assert_eq!(next_span(&plain(), "", 0), None, "no note is left");
        let excerpts = Policy { notes: Notes::Excerpts, ..plain() };
        assert_eq!(next_span(&excerpts, "", 800).as_deref().map(<[usize]>::first), Some(Some(&2)));
        let nothing = state_of(1000, excerpts.clone(), "");
        let settings = PrefetchSettings { mark_permille: 0, summary_tokens: 10 };
        assert_eq!(nothing.prefetch(settings, &Halves), None);
    }

    #[test]
    fn a_requested_summary_has_as_many_tokens_as_its_note_has_room_for() {
        let excerpts = Policy { notes: Notes::Excerpts, ..Policy::default() };
        let transcript =
            |tokens: u64| format!("u10 {}", format!("c{tokens} t{tokens} ").repeat(14));
        let size = |limit_tokens: u64, most: u64| {
            let state = state_of(limit_tokens, excerpts.clone(), &transcript(limit_tokens / 30));
            let settings = PrefetchSettings { mark_permille: 800, summary_tokens: most };
            state.prefetch(settings, &Halves).map(|next| (next.summary_tokens, next.least_covers))
        };
        // A sixth of the removed tokens, at most the configured maximum.
        assert_eq!(size(6000, 800), Some((768, 6)));
        assert_eq!(size(6000, 300), Some((300, 6)));
        // Too little room for a useful summary: none.
        assert_eq!(size(1200, 800), None);
        assert_eq!(size(1200, 100), Some((100, 6)));
    }

    #[test]
    fn after_compactions_without_a_summary_few_are_requested() {
        let excerpts = Policy { notes: Notes::Excerpts, ..Policy::default() };
        let settings = PrefetchSettings { mark_permille: 0, summary_tokens: 10 };
        let mut asked = std::collections::BTreeMap::new();
        for turns in 20..400 {
            let transcript = format!("u10 {}", "c50 t50 ".repeat(turns));
            let state = state_of(2000, excerpts.clone(), &transcript);
            *asked.entry(state.compactions()).or_insert(false) |=
                state.prefetch(settings, &Halves).is_some();
        }
        let asked: Vec<(u32, bool)> = asked.into_iter().take(9).collect();
        let after =
            |compactions: u32| (compactions, compactions < 3 || compactions.is_multiple_of(3));
        assert_eq!(asked, (1..=9).map(after).collect::<Vec<_>>());
    }

    #[test]
    fn ten_thousand_tiny_messages_do_not_take_quadratic_time() {
        // Counted in steps of the engine, not in time: each compaction frees room for many
        // messages.
        let chat = "u3 a3 ".repeat(10_000);
        let state = state_of(2000, plain(), &chat);
        assert!(state.sent_tokens() <= 2000);
        assert!(state.compactions() <= 60_000 / 600, "{} compactions", state.compactions());
    }
}
