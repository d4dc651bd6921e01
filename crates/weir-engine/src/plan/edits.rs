//! Edits of a planned request: compaction and named edits, and their names. Decides nothing that the
//! compaction state or the options have not decided.

use super::PlanOptions;
use crate::compact::policy::OPENING;
use crate::compact::{self, Compactor, Fate, RequestSource};
use crate::tokens::MESSAGE_FRAMING;
use crate::tokens::tools::count_list;
use crate::wire::usage_option::{AddedUsageOption, UsageOption};
use crate::wire::{
    Edit, ExtraKind, Protocol, Request, Role, breakpoint, clamp, json, loads, splice,
};

/// Name of the edit that requests a stream's usage.
pub const USAGE: &str = "usage";
/// Name of the edit that puts a model's summary into a note.
const SUMMARY: &str = "summary";
/// Name of the edit that leaves out the model's thinking.
const THINKING: &str = "thinking";
/// Name of the edit that lowers the output limit to the room after the input.
const CLAMP: &str = "clamp";
/// Name of the edit that puts tools into the prompt whose load is left out.
const TOOLS: &str = "tools";

/// Kind of plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only reported.
    Observed,
    /// The conversation is sent as received.
    LeftAlone,
    Compacted,
}

/// Returns all edits of messages, in order of message, and the names of those that are not
/// compaction.
pub(super) fn edits(
    end: &Compactor,
    request: &Request<'_>,
    source: &RequestSource<'_>,
    options: &PlanOptions,
    kind: Kind,
) -> (Vec<(usize, Edit)>, Vec<&'static str>) {
    let mut edits = match kind {
        Kind::Compacted => compact::edits(end),
        Kind::Observed | Kind::LeftAlone => unmark(end),
    };
    let is_pin = |message: usize| !end.facts()[message].is_note;
    let is_marked = edits.iter().any(|(own, edit)| *edit == Edit::Unmark && is_pin(*own));
    let mut named = if is_marked { vec!["pin"] } else { Vec::new() };
    if kind == Kind::Observed {
        return (edits, named);
    }
    if kind == Kind::Compacted && end.summaries() > 0 {
        named.push(SUMMARY);
    }
    if edits.iter().any(|(_, edit)| *edit == Edit::DropThinking) {
        named.push(THINKING);
    }
    let mut add = |own: Vec<(usize, Edit)>, name| {
        if !own.is_empty() {
            edits.extend(own);
            named.push(name);
        }
    };
    if options.late_system_as_user {
        let is_sent =
            |message: usize| kind == Kind::LeftAlone || end.fates()[message] != Fate::Gone;
        add(compact::late_system::edits(end, source, is_sent), "late_system");
    }
    // OpenAI sets the breakpoints of Responses itself.
    let has_marks = request.protocol != Protocol::Responses;
    if options.cache_control && has_marks && end.places_breakpoints() {
        let most = breakpoint::MAX_BREAKPOINTS.saturating_sub(breakpoint::count(request.text));
        let is_long = |raw: &&str| breakpoint::is_long(raw);
        let first = request.messages.iter().rposition(is_long).map_or(0, |last| last + 1);
        // The provider itself sets the one at the top, behind all others.
        let top = json::member(request.text, "cache_control");
        let is_last_long = top.is_some_and(|own| own.contains("\"1h\""));
        let places = end.breakpoints(most).into_iter();
        let places = places.filter(|place| *place >= first && !is_last_long);
        add(places.map(|place| (place, Edit::Breakpoint)).collect(), "breakpoints");
    }
    edits.sort_by_key(|(message, _)| *message);
    (edits, named)
}

/// Returns the edit that lets a conversation of Messages begin with a user's message, and its tokens, if
/// `changes` would let it begin with an assistant's. The API refuses that.
pub(super) fn opening(
    end: &Compactor,
    request: &Request<'_>,
    options: &PlanOptions,
    changes: &[(usize, Edit)],
) -> Option<((usize, Edit), u64)> {
    let role = |message: usize| end.facts()[message].role;
    let mut listed = request.outside..request.messages.len();
    let received = listed.clone().next()?;
    let first = listed.find(|message| end.fates()[*message] != Fate::Gone)?;
    let is_opened = changes.iter().any(|(message, edit)| match edit {
        Edit::InsertAfter(_) => *message < first,
        Edit::InsertBefore(_) => *message <= first,
        _ => false,
    });
    let is_assistant = role(first) == Role::Assistant && role(received) != Role::Assistant;
    if request.protocol != Protocol::Messages || !is_assistant || is_opened {
        return None;
    }
    let tokens = MESSAGE_FRAMING + options.measure.encoding.count(OPENING);
    Some(((first, Edit::InsertBefore(OPENING.to_owned())), tokens))
}

/// Returns the edits that remove weir's own member from messages that are otherwise unchanged.
fn unmark(end: &Compactor) -> Vec<(usize, Edit)> {
    let marked = end.facts().iter().enumerate().filter(|(_, fact)| fact.is_marked);
    marked.map(|(index, _)| (index, Edit::Unmark)).collect()
}

/// Returns the list of tools without the deferral of those that a message calls although their load is not
/// sent, and the tokens that this adds; `None` if there are none. A call may follow the compaction that
/// removed the load, above all if a long conversation is planned at once.
pub(super) fn loaded(
    end: &Compactor,
    request: &Request<'_>,
    source: &RequestSource<'_>,
    options: &PlanOptions,
) -> Option<(String, u64)> {
    let tools = request.extras.iter().find(|extra| extra.kind == ExtraKind::Tools)?;
    if !tools.raw.contains("\"defer_loading\"") {
        return None;
    }
    let called = end.called_unloaded(source);
    let loaded = (!called.is_empty()).then(|| loads::undeferred(tools.raw, &called)).flatten()?;
    let count = |raw: &str| count_list(options.measure.encoding, raw);
    let more_tokens = count(&loaded).saturating_sub(count(tools.raw));
    Some((loaded, more_tokens))
}

/// Edits outside the messages.
#[derive(Debug, Clone, Default)]
pub(super) struct OuterEdits {
    /// List of tools, in as many bytes as the caller's.
    pub(super) tools: Option<String>,
    /// Usage request for a stream.
    pub(super) usage_option: Option<UsageOption>,
    /// Output limit to set.
    pub(super) clamp: Option<u64>,
}

impl OuterEdits {
    /// Determines the edits of a request that is sent in `sent_tokens`.
    pub(super) fn new(
        request: &Request<'_>,
        options: &PlanOptions,
        sent_tokens: u64,
        kind: Kind,
    ) -> Self {
        let is_edited = kind != Kind::Observed;
        // An estimate may be slightly low.
        let is_estimated = options.measure.encoding.is_estimated();
        let spare_tokens = if is_estimated { sent_tokens / 32 } else { 0 };
        let most_tokens = sent_tokens + spare_tokens;
        let asked = request.max_output_tokens;
        let learned = options.learned.clamped(&options.limits_of(request), most_tokens, asked);
        let most = options.max_output_tokens;
        let is_above = |most: &u64| {
            asked.is_none_or(|asked| asked.max(clamp::most(request).unwrap_or(u64::MAX)) > *most)
        };
        let budgeted = most.filter(is_above);
        let clamp = learned.into_iter().chain(budgeted).min();
        Self {
            usage_option: request.missing_usage_option.filter(|_| options.asks_usage && is_edited),
            clamp: clamp.filter(|_| is_edited),
            tools: None,
        }
    }

    /// Returns the names of the edits.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        let usage = self.usage_option.map(|_| USAGE);
        let tools = self.tools.as_ref().map(|_| TOOLS);
        usage.into_iter().chain(self.clamp.map(|_| CLAMP)).chain(tools)
    }
}

/// Returns the body with `edits` and those outside the messages; `None` if there are none.
pub(super) fn body(
    request: &Request<'_>,
    model: &str,
    edits: &[(usize, Edit)],
    frame: &OuterEdits,
) -> (Option<String>, Option<AddedUsageOption>) {
    if edits.is_empty() && frame.names().next().is_none() {
        return (None, None);
    }
    let mut body = splice::apply(request.protocol, request, edits);
    // A cleared list of tools moves nothing, so the usage request keeps its position.
    if let Some(tools) = &frame.tools
        && let Some(place) = json::member(&body, "tools").map(|own| {
            let start = own.as_ptr() as usize - body.as_ptr() as usize;
            start..start + own.len()
        })
    {
        body.replace_range(place, tools);
    }
    let grown = frame.clamp.map(|tokens| clamp::put(request, &mut body, tokens));
    let grown = grown.unwrap_or_default();
    let asked = frame.usage_option.map(|option| option.add_to(request, &mut body, &grown));
    // After all else, so that the usage request keeps its position.
    if let Some(tokens) = frame.clamp {
        clamp::add(request, model, &mut body, tokens);
    }
    (Some(body), asked)
}

/// Returns the steps of a plan that ends in the state `end`, such as `pass` or `evict+fit`.
pub(super) fn action(end: &Compactor, kind: Kind, needs_nothing: bool) -> String {
    let mut done = if needs_nothing { "pass".to_owned() } else { steps(end) };
    let is_sent = |fate: &Fate| needs_nothing || *fate != Fate::Gone;
    if end.facts().iter().zip(end.fates()).any(|(fact, fate)| fact.is_elsewhere && is_sent(fate)) {
        done.push_str("+unread");
    }
    if kind == Kind::Observed { format!("observe+{done}") } else { done }
}

/// Returns the steps applied to a conversation, in the order of a compaction.
fn steps(end: &Compactor) -> String {
    let any = |fate| end.fates().contains(&fate);
    let done = [
        (any(Fate::Masked), "mask"),
        (any(Fate::Gone), "evict"),
        (end.restarts() > 0, "restart"),
        (any(Fate::Clipped), "fit"),
    ];
    match (joined(&done), end.is_untouched()) {
        (None, true) => "pass".to_owned(),
        // A compaction that masked nothing may still have added a notice.
        (None, false) => "notice".to_owned(),
        (Some(words), _) => words,
    }
}

/// Returns the steps of the compactions after the first `before` ones, in the words of [`action`].
pub(super) fn steps_after(end: &Compactor, before: u32) -> String {
    let (history, fates) = (end.history(), end.fates());
    let any = |fate| {
        let changed = |message: usize| history.changed_in(message) > before;
        fates.iter().enumerate().any(|(message, own)| *own == fate && changed(message))
    };
    let mut later =
        (before + 1..=end.compactions()).filter_map(|number| history.compaction(number));
    let done = [
        (any(Fate::Masked), "mask"),
        (any(Fate::Gone), "evict"),
        (later.any(|compaction| compaction.is_restart), "restart"),
        (any(Fate::Clipped), "fit"),
    ];
    joined(&done).unwrap_or_else(|| "notice".to_owned())
}

/// Joins the words of the steps that were done; `None` if there are none.
fn joined(steps: &[(bool, &str)]) -> Option<String> {
    let words: Vec<&str> = steps.iter().filter(|(is_done, _)| *is_done).map(|(_, w)| *w).collect();
    (!words.is_empty()).then(|| words.join("+"))
}
