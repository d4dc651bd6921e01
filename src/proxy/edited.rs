//! The edits of a planned request: compaction, and the named ones beside it; with the words that the
//! headers have for both. Decides nothing that the fold or the configuration has not decided.

use bytes::Bytes;

use crate::config::{LateSystem, ModelSettings};
use crate::context::{self, Fate, Fold, RequestSource};
use crate::wire::asking::{Put, Question};
use crate::wire::{Edit, Protocol, Request, breakpoint, clamp, splice};

/// The name of the edit that puts another model in the place of the one asked for.
pub const ALIAS: &str = "alias";
/// The name of the edit that asks a stream for its usage.
pub const USAGE: &str = "usage";
/// The name of the edit that a note is when a model wrote of what went.
const SUMMARY: &str = "summary";
/// The name of the edit that lowers the output limit to what has room beside the input.
pub const CLAMP: &str = "clamp";

/// What a plan comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only reported.
    Observed,
    /// The conversation is sent as received.
    LeftAlone,
    Compacted,
}

/// All edits, in order of message, and the names of those that are not compaction.
pub fn edits(
    fold: &Fold,
    request: &Request<'_>,
    source: &RequestSource<'_>,
    settings: &ModelSettings,
    kind: Kind,
) -> (Vec<(usize, Edit)>, Vec<&'static str>) {
    let mut edits = match kind {
        Kind::Compacted => context::edits(fold),
        Kind::Observed | Kind::LeftAlone => unmark(fold),
    };
    let is_marked = edits.iter().any(|(_, edit)| *edit == Edit::Unmark);
    let mut named = if is_marked { vec!["pin"] } else { Vec::new() };
    if kind == Kind::Observed {
        return (edits, named);
    }
    if kind == Kind::Compacted && fold.summaries() > 0 {
        named.push(SUMMARY);
    }
    let mut add = |own: Vec<(usize, Edit)>, name| {
        if !own.is_empty() {
            edits.extend(own);
            named.push(name);
        }
    };
    if settings.late_system == LateSystem::User {
        let is_sent =
            |message: usize| kind == Kind::LeftAlone || fold.fates()[message] != Fate::Gone;
        add(context::late_system::edits(fold, source, is_sent), "late_system");
    }
    if settings.cache_control && fold.places_breakpoints() {
        let most = breakpoint::MAX_BREAKPOINTS.saturating_sub(breakpoint::count(request.text));
        let places = fold.breakpoints(most).into_iter();
        add(places.map(|place| (place, Edit::Breakpoint)).collect(), "breakpoints");
    }
    edits.sort_by_key(|(message, _)| *message);
    (edits, named)
}

/// What is changed beside the messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beside {
    /// The question for a stream's usage.
    pub question: Option<Question>,
    /// The most output that is asked for.
    pub clamp: Option<u64>,
}

/// The body with `edits` and with what is changed beside them; `None` where there is nothing.
pub fn body(
    protocol: Protocol,
    request: &Request<'_>,
    model: &str,
    edits: &[(usize, Edit)],
    beside: Beside,
) -> (Option<Bytes>, Option<Put>) {
    if edits.is_empty() && beside.question.is_none() && beside.clamp.is_none() {
        return (None, None);
    }
    let mut body = splice::apply(protocol, request, edits);
    // It moves nothing, so the question finds its place as before.
    if let Some(tokens) = beside.clamp {
        clamp::put(request, &mut body, tokens);
    }
    let asked = beside.question.map(|question| question.put(request, &mut body));
    // Behind all else, so that the question stays where it is.
    if let Some(tokens) = beside.clamp {
        clamp::add(request, model, &mut body, tokens);
    }
    (Some(body.into()), asked)
}

/// The edits that take weir's own member from messages that are otherwise left alone.
fn unmark(fold: &Fold) -> Vec<(usize, Edit)> {
    let marked = fold.facts().iter().enumerate().filter(|(_, fact)| fact.is_marked);
    marked.map(|(index, _)| (index, Edit::Unmark)).collect()
}

/// `x-weir-action` of a request that ends in the state `fold`.
pub fn action(fold: &Fold, kind: Kind, needs_nothing: bool) -> String {
    let done = if needs_nothing { "pass".to_owned() } else { actions(fold) };
    if kind == Kind::Observed { format!("observe+{done}") } else { done }
}

/// What the compactions after the first `before` ones did, in the words of [`action`].
pub fn compacted_by(fold: &Fold, before: u32) -> String {
    let (history, fates) = (fold.history(), fold.fates());
    let any = |fate| {
        let changed = |message: usize| history.changed_in(message) > before;
        fates.iter().enumerate().any(|(message, own)| *own == fate && changed(message))
    };
    let mut later = (before + 1..=fold.cuts()).filter_map(|number| history.cut(number));
    let steps = [
        (any(Fate::Masked), "mask"),
        (any(Fate::Gone), "evict"),
        (later.any(|cut| cut.is_restart), "restart"),
        (any(Fate::Clipped), "fit"),
    ];
    let words: Vec<&str> = steps.iter().filter(|(is_done, _)| *is_done).map(|(_, w)| *w).collect();
    if words.is_empty() { "notice".to_owned() } else { words.join("+") }
}

/// What was done to a conversation, as `x-weir-action` says it: in the order of a cut's steps.
fn actions(fold: &Fold) -> String {
    let any = |fate| fold.fates().contains(&fate);
    let done = [
        (any(Fate::Masked), "mask"),
        (any(Fate::Gone), "evict"),
        (fold.restarts() > 0, "restart"),
        (any(Fate::Clipped), "fit"),
    ];
    let words: Vec<&str> = done.iter().filter(|(is_done, _)| *is_done).map(|(_, w)| *w).collect();
    match (words.as_slice(), fold.is_untouched()) {
        ([], true) => "pass".to_owned(),
        // A cut that masked nothing can still say something.
        ([], false) => "notice".to_owned(),
        (words, _) => words.join("+"),
    }
}
