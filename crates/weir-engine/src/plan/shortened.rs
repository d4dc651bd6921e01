//! Conversation of a plan as a list of its own, for a caller that asks for a shorter one: the items that
//! stay as received, and those that a compaction item stands for. Decides nothing.

use std::borrow::Cow;

use super::Plan;
use crate::compact;
use crate::wire::{Edit, Protocol, Request, Role, compaction, responses, splice};

/// Conversation in two parts, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortened<'a> {
    /// Items in front of the first one that changes, as received. Each is the JSON text of one item or
    /// of several, joined by commas.
    pub kept: Vec<Cow<'a, str>>,
    /// All items from there on as they are sent, joined by commas, with notes that are marked as such.
    pub rest: String,
    /// Items of the calls at the end that still wait for results, as received: a client matches its
    /// results to them.
    pub open: Vec<&'a str>,
    /// Size of `rest`.
    pub rest_tokens: u64,
}

impl Plan {
    /// Returns the conversation of the plan as a list of items. If it `is_whole`, no item is left to the
    /// caller: `rest` is all that is sent.
    ///
    /// # Panics
    ///
    /// If the request is not one of Responses: other protocols have no items.
    pub fn shortened<'a>(&self, request: &Request<'a>, is_whole: bool) -> Shortened<'a> {
        assert_eq!(request.protocol, Protocol::Responses, "other protocols have no items");
        let end = &self.end;
        let mut edits = compact::edits(end);
        // Marks stay: the next plan needs them.
        edits.retain(|(_, edit)| *edit != Edit::Unmark);
        let all = request.messages.len();
        let changes = edits.iter().map(|(message, edit)| message + usize::from(is_behind(edit)));
        let is_compaction = |message: &usize| {
            end.facts()[*message].role == Role::System
                && compaction::is_in(request.messages[*message])
        };
        let first = match is_whole {
            true => request.outside,
            // A provider's own item moves into the one that follows: a list has one of them.
            false => changes.chain((0..all).find(is_compaction)).min().unwrap_or(all),
        };
        let first = first.max(request.outside);
        let open = if is_whole { all } else { self.open_from(first, &edits) };
        let sizes = (first..open).map(|message| end.sent_size(message));
        Shortened {
            kept: (request.outside..first).map(|message| item(request.messages[message])).collect(),
            rest: rest(request, &edits, first..open),
            open: request.messages[open..].to_vec(),
            rest_tokens: sizes.sum::<u64>() + end.notes_tokens(),
        }
    }

    /// Returns the first message of the turn whose calls wait for results, if it stays as received; else
    /// the number of messages.
    fn open_from(&self, first: usize, edits: &[(usize, Edit)]) -> usize {
        let all = self.end.messages();
        let from = self.end.open_turn().filter(|from| *from >= first).unwrap_or(all);
        let is_edited = edits.iter().any(|(message, _)| *message >= from);
        if is_edited { all } else { from }
    }
}

/// Whether an edit leaves its message as received and changes what follows.
fn is_behind(edit: &Edit) -> bool {
    matches!(edit, Edit::InsertAfter(_))
}

/// Returns a message as an item of a list.
fn item(raw: &str) -> Cow<'_, str> {
    match raw.starts_with('"') {
        true => Cow::Owned(responses::item_of(raw)),
        false => Cow::Borrowed(raw),
    }
}

/// Returns the messages of a range as they are sent, with the notes that stand directly in front of them.
fn rest(
    request: &Request<'_>,
    edits: &[(usize, Edit)],
    messages: std::ops::Range<usize>,
) -> String {
    let mut items: Vec<String> = Vec::new();
    for message in messages.start.saturating_sub(1)..messages.end {
        let from = edits.partition_point(|(own, _)| *own < message);
        let own =
            || edits[from..].iter().take_while(|(own, _)| *own == message).map(|(_, edit)| edit);
        let notes = |items: &mut Vec<String>, is_before: bool| {
            items.extend(own().filter_map(|edit| match edit {
                Edit::InsertBefore(note) if is_before => Some(responses::note(note)),
                Edit::InsertAfter(note) if !is_before => Some(responses::note(note)),
                _ => None,
            }));
        };
        if message >= messages.start {
            notes(&mut items, true);
            let changes: Vec<&Edit> = own()
                .filter(|edit| !matches!(edit, Edit::InsertBefore(_) | Edit::InsertAfter(_)))
                .collect();
            let raw = item(request.messages[message]);
            match changes.as_slice() {
                [] => items.push(raw.into_owned()),
                changes if changes.contains(&&Edit::Remove) => {}
                changes => items.push(splice::rewrite(request.protocol, &raw, changes)),
            }
        }
        notes(&mut items, false);
    }
    items.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{NoSummaries, PlanOptions, plan};
    use crate::tokens::Encoding;

    fn options(shortens: bool, notes_apart: bool) -> PlanOptions {
        let mut options = PlanOptions::new("gpt-4o", Encoding::O200kBase, 100_000);
        options.shortens = shortens;
        options.policy.notes_apart = notes_apart;
        options
    }

    fn items(turns: usize) -> Vec<String> {
        let said = |role: &str, text: &str| format!(r#"{{"role":"{role}","content":"{text}"}}"#);
        let mut items = vec![said("developer", "Be brief."), said("user", "Check  all parts.")];
        for nth in 0..turns {
            let result = format!("part_{nth} holds at level {nth}. ").repeat(40);
            items.push(format!(
                r#"{{"type":"function_call","call_id":"c{nth}","name":"read","arguments":"{{}}"}}"#
            ));
            items.push(format!(
                r#"{{"type":"function_call_output","call_id":"c{nth}","output":"{result}"}}"#
            ));
        }
        items
    }

    fn body(items: &[String]) -> String {
        format!(r#"{{"model":"gpt-4o","instructions":"Help.","input":[{}]}}"#, items.join(","))
    }

    /// Shortens a list; returns the items that stay, what the item stands for, and the open ones.
    fn shortened(items: &[String], notes_apart: bool) -> (Vec<String>, String, Vec<String>) {
        let body = body(items);
        let request = Protocol::Responses.read(body.as_bytes(), 1000).expect("readable");
        let plan = plan(&request, &options(true, notes_apart), &NoSummaries).expect("it fits");
        assert!(plan.sent_tokens <= plan.received_tokens && plan.body.is_none());
        let own = plan.shortened(&request, false);
        let owned = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect();
        (own.kept.into_iter().map(Cow::into_owned).collect(), own.rest, owned(own.open))
    }

    #[test]
    fn a_list_far_below_its_limit_gets_shorter() {
        let all = items(40);
        let (kept, rest, open) = shortened(&all, true);
        assert_eq!((kept.as_slice(), open.len()), (&all[..2], 0));
        assert!(rest.starts_with(
            r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"[weir: "#
        ));
        assert_eq!(rest.matches(r#","weir":{"note":true}}"#).count(), 1);
        assert!(rest.ends_with(&all[all.len() - 2..].join(",")), "the newest turn stays");
        assert!(rest.len() < body(&all).len() / 2);
    }

    #[test]
    fn a_note_inside_a_message_takes_that_message_along() {
        let all = items(40);
        let (kept, rest, _) = shortened(&all, false);
        assert_eq!(kept, all[..1]);
        assert!(rest.starts_with(r#"{"role":"user","content":"Check  all parts."#));
    }

    #[test]
    fn an_open_call_stays_with_the_caller() {
        let mut all = items(40);
        all.pop();
        let (_, rest, open) = shortened(&all, true);
        assert_eq!(open, all[all.len() - 1..]);
        assert!(!rest.contains("c39"));
    }

    #[test]
    fn a_note_that_comes_back_stays_in_its_place() {
        let mut all = items(40);
        for round in 0..4 {
            let (kept, rest, _) = shortened(&all, true);
            let notes: Vec<&str> = rest.split("\"weir\":{\"note\":true}").collect();
            assert!(notes.len() > 1, "round {round}");
            // Notes stand in front, in the order of what they are about.
            assert!(notes[1..notes.len() - 1].iter().all(|own| own.contains("[weir: ")));
            all = kept;
            all.push(rest);
            all.extend(items(20).split_off(2).into_iter().map(|item| {
                item.replace("\"c", &format!("\"r{round}c")).replace("part_", &format!("p{round}_"))
            }));
            let body = body(&all);
            let request = Protocol::Responses.read(body.as_bytes(), 1000).expect("readable");
            let plan = plan(&request, &options(false, true), &NoSummaries).expect("it fits");
            assert_eq!((plan.action.as_str(), plan.edits.len()), ("pass", 0), "round {round}");
            let sent = plan.body.expect("the marks are removed");
            assert!(!sent.contains("\"weir\"") && sent.contains("[weir: "));
        }
    }
}
