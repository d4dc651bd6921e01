//! Full report on a plan: the fate of each message with its reason, and how full the context is.
//! Derived from a finished compaction state; decides nothing.

mod brief;
mod display;
pub mod files;
mod members;
pub mod plain;
pub mod preflight;
pub mod reasons;
mod rows;
pub mod shown;
pub(crate) mod texts;
mod treatment;
mod verbosity;
mod words;

pub use brief::brief;
pub use display::{compact, judged, model, table};
pub use members::{
    Budget, Compaction, LastCompaction, MessageRow, NoteRow, Report, RoleRow, Section, SectionRow,
    ShareRow, Subject, Warning, Window,
};
pub use preflight::{Advice, Base, Category, Preflight, preflight};
pub use texts::Appearance;
pub use treatment::Treatment;
pub use verbosity::Verbosity;

use crate::compact::policy::Shares;
use crate::compact::state::Compactor;
use crate::compact::state::marks::Zone;
use crate::compact::state::messages::Fate;
use crate::wire::Role;

/// Share of the limit at which a report warns.
const NEAR_PERCENT: u64 = 80;
/// Progress to the next compaction at which a summary should be started, in percent.
const SUMMARY_PERCENT: u64 = 80;
/// Divisor of the window for the history budget of tools with their own history.
const HISTORY_PART: u64 = 16;

impl Report {
    /// Creates the report of a plan.
    pub fn new(subject: &Subject<'_>) -> Self {
        let limit_tokens = subject.limits.input_tokens();
        let messages = rows::messages(subject);
        let notes = rows::notes(subject);
        let sections = sections(subject, &messages, &notes);
        let shares = shares(&subject.state.profile.policy.shares, &sections, limit_tokens);
        let files = rows::files(subject, &messages);
        let verbosity = Verbosity::of(subject.sent_tokens, limit_tokens);
        let window = window(subject, limit_tokens);
        let compaction = compaction(subject, &messages, &notes);
        Self {
            model: shown::first_words(subject.model, 100),
            mode: match subject.treatment {
                Treatment::Observed => "observe",
                Treatment::Bypassed => "bypass",
                Treatment::Compacted | Treatment::LeftAlone => "compact",
            },
            policy: shown::first_words(subject.policy, 100),
            action: subject.action.to_owned(),
            edits: subject.edits.to_owned(),
            refusal: subject.refusal.map(str::to_owned),
            zone: match subject.treatment.is_by_state() {
                true => subject.state.zone(),
                false => Zone::Continue,
            },
            verbosity,
            is_minimal: verbosity == Verbosity::Minimal,
            budget: budget(subject, &window, &compaction),
            roles: roles(&messages),
            restoration_hint: files::restoration_hint(&files, verbosity),
            warnings: warnings(subject, &window, &shares),
            window,
            compaction,
            sections,
            shares,
            files,
            messages,
            notes,
        }
    }
}

fn window(subject: &Subject<'_>, limit_tokens: u64) -> Window {
    Window {
        window_tokens: subject.limits.window_tokens,
        limit_tokens,
        overhead_tokens: subject.overhead_tokens,
        received_tokens: subject.state.received_tokens() + subject.overhead_tokens,
        sent_tokens: subject.sent_tokens,
        used_percent: shown::percent(subject.sent_tokens, limit_tokens),
        messages: subject.state.messages(),
        turns: subject.state.turns.list.len(),
    }
}

fn budget(subject: &Subject<'_>, window: &Window, compaction: &Compaction) -> Budget {
    Budget {
        used_tokens: window.sent_tokens,
        limit_tokens: window.limit_tokens,
        remaining_tokens: window.limit_tokens.saturating_sub(window.sent_tokens),
        needs_summary: compaction.percent >= SUMMARY_PERCENT,
        history_budget_tokens: subject.limits.window_tokens / HISTORY_PART,
    }
}

fn compaction(subject: &Subject<'_>, messages: &[MessageRow], notes: &[NoteRow]) -> Compaction {
    let state = subject.state;
    let marks = state.marks();
    let tokens = match subject.treatment.is_by_state() {
        true => state.sizes.request_tokens,
        false => state.received_tokens() + state.profile.overhead_tokens,
    };
    let count = |fate| messages.iter().filter(|row| row.fate == fate).count();
    let last_compaction = state.history().last().filter(|_| subject.treatment.is_by_state());
    Compaction {
        enabled: !matches!(subject.treatment, Treatment::Observed | Treatment::Bypassed),
        tokens,
        trigger_tokens: marks.trigger_tokens,
        low_tokens: marks.low_tokens,
        percent: shown::percent(tokens, marks.trigger_tokens),
        compactions: if subject.treatment.is_by_state() { state.compactions() } else { 0 },
        restarts: if subject.treatment.is_by_state() { state.restarts() } else { 0 },
        summaries: match notes.is_empty() {
            true => 0,
            false => state.notes.list.iter().filter(|note| note.excerpts.is_some()).count(),
        },
        model_summaries: notes.iter().filter(|note| note.summarised_messages > 0).count(),
        last_compaction: last_compaction.map(|compaction| LastCompaction {
            turn: compaction.turns,
            messages: compaction.messages,
            before_tokens: compaction.before_tokens,
            after_tokens: compaction.after_tokens,
            summary: compaction.summary.word(),
        }),
        kept_messages: count(Fate::Kept),
        masked_messages: count(Fate::Masked),
        clipped_messages: count(Fate::Clipped),
        gone_messages: count(Fate::Gone),
    }
}

fn roles(messages: &[MessageRow]) -> Vec<RoleRow> {
    let all = [Role::System, Role::User, Role::Assistant, Role::Tool, Role::Other];
    let row = |role| {
        let own = || messages.iter().filter(move |row| row.role == role);
        RoleRow {
            role,
            received_messages: own().count(),
            sent_messages: own().filter(|row| row.fate != Fate::Gone).count(),
            received_tokens: own().map(|row| row.received_tokens).sum(),
            sent_tokens: own().map(|row| row.sent_tokens).sum(),
        }
    };
    all.into_iter().map(row).filter(|row| row.received_messages > 0).collect()
}

fn sections(subject: &Subject<'_>, messages: &[MessageRow], notes: &[NoteRow]) -> Vec<SectionRow> {
    let section = |row: &MessageRow| match row.role {
        Role::System => Section::System,
        _ if is_anchor(subject.state, row.index) => Section::Anchors,
        Role::Tool => Section::ToolResults,
        _ => Section::Conversation,
    };
    let of_messages = |section_name: Section| {
        let own = || messages.iter().filter(move |row| section(row) == section_name);
        SectionRow {
            section: section_name,
            received_tokens: own().map(|row| row.received_tokens).sum(),
            sent_tokens: own().map(|row| row.sent_tokens).sum(),
        }
    };
    let overhead = subject.overhead_tokens;
    let mut sections = vec![SectionRow {
        section: Section::Tools,
        received_tokens: overhead,
        sent_tokens: overhead,
    }];
    sections.extend(
        [Section::System, Section::Anchors, Section::Conversation, Section::ToolResults]
            .map(of_messages),
    );
    sections.push(SectionRow {
        section: Section::Notes,
        received_tokens: 0,
        sent_tokens: notes.iter().map(|note| note.sent_tokens).sum(),
    });
    sections
}

/// Returns whether a message belongs to a turn that the caller or a pattern pins.
fn is_anchor(state: &Compactor, message: usize) -> bool {
    let turn = state.turns.of_message[message];
    turn.is_some_and(|turn| state.turns.list[turn].is_pinned_by_caller)
}

fn shares(policy: &Shares, sections: &[SectionRow], limit_tokens: u64) -> Vec<ShareRow> {
    let used = |wanted: Section| -> u64 {
        let belongs = |own: Section| match own {
            Section::Tools => wanted == Section::System,
            Section::ToolResults | Section::Notes => wanted == Section::Conversation,
            own => wanted == own,
        };
        sections.iter().filter(|row| belongs(row.section)).map(|row| row.sent_tokens).sum()
    };
    let mut shares: Vec<ShareRow> = [
        (Section::System, policy.system_permille),
        (Section::Anchors, policy.anchors_permille),
        (Section::Conversation, policy.conversation_permille),
    ]
    .into_iter()
    .map(|(section, permille)| {
        let share_tokens = crate::compact::policy::share(limit_tokens, permille);
        let used_tokens = used(section);
        let over_tokens = used_tokens.saturating_sub(share_tokens);
        ShareRow { section, share_tokens, used_tokens, over_tokens }
    })
    .collect();
    shares.sort_by_key(|row| std::cmp::Reverse(row.over_tokens));
    shares
}

fn warnings(subject: &Subject<'_>, window: &Window, shares: &[ShareRow]) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |code, text: String| warnings.push(Warning { code, text });
    let limit = shown::tokens(window.limit_tokens);
    let sent = shown::tokens(window.sent_tokens);
    if subject.messages.is_empty() {
        let text = "the body has no `messages`, so there was nothing to read: this is no chat \
                    completion, or one that no provider takes";
        warn("no_messages", text.to_owned());
    }
    if window.sent_tokens > window.limit_tokens {
        warn("over_limit", format!("{sent} tokens are above the limit of {limit}"));
    } else if window.received_tokens > window.limit_tokens {
        let received = shown::tokens(window.received_tokens);
        warn(
            "over_limit",
            format!(
                "{received} tokens as received are above the limit of {limit}; {sent} are sent"
            ),
        );
    } else if window.used_percent >= NEAR_PERCENT {
        let percent = window.used_percent;
        warn("near_limit", format!("{percent} % of the limit of {limit} tokens is used"));
    }
    for share in shares.iter().filter(|row| row.over_tokens > 0) {
        let (over, own) = (shown::tokens(share.over_tokens), shown::tokens(share.share_tokens));
        let section = share.section.word();
        warn("over_share", format!("{section} takes {over} tokens more than its share of {own}"));
    }
    if !subject.is_model_known {
        let text = "weir does not know this model: its window is assumed; set it under [models]";
        warn("unknown_model", text.to_owned());
    }
    warnings
}
