//! Conversion of compaction decisions to edits of the caller's bytes. `late_system` and
//! `breakpoints` are edits apart from compaction.

pub(super) mod breakpoints;
pub(crate) mod late_system;

use crate::compact::state::Compactor;
use crate::compact::state::messages::Fate;
use crate::compact::state::note::Place;
use crate::wire::Edit;

/// Returns the edits that apply the decisions of `state` to a request's bytes, in order of message.
pub(crate) fn edits(state: &Compactor) -> Vec<(usize, Edit)> {
    let mut edits = Vec::new();
    for (message, (fate, fact)) in
        state.messages.fates.iter().zip(&state.messages.facts).enumerate()
    {
        if *fate == Fate::Gone {
            edits.push((message, Edit::Remove));
            continue;
        }
        if fact.is_marked {
            edits.push((message, Edit::Unmark));
        }
        if state.messages.dropped_tokens(message) > 0 {
            edits.push((message, Edit::DropThinking));
        }
        if let Some(rewrite) = state.messages.rewrites.get(&message) {
            edits.push((message, rewrite.edit.clone()));
        }
        if let Some(clipped) = state.messages.clips.get(&message) {
            edits.push((message, Edit::Clip(clipped.cuts.clone())));
        }
        for note in state.notes.list.iter().filter(|note| note.message == message) {
            let text = note.text();
            let edit = match note.place {
                Place::Before => Edit::Prepend(text),
                Place::After => Edit::Append(text),
                Place::Own => Edit::InsertAfter(text),
                Place::OwnBefore => Edit::InsertBefore(text),
            };
            edits.push((message, edit));
        }
    }
    edits
}
