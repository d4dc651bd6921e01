//! Events of streamed Responses.
//!
//! OpenAI's reference of streaming events gives the order: `response.created` and its like, each item
//! with `response.output_item.added`, its own events and `.done`, at last the whole answer again.

use super::super::Next;
use super::super::answer::{call_item, echoed_items, response_without};
use super::super::calls;
use super::super::text::{self, Object};
use super::{Action, Marks, Shared, Write};

/// Maximum number of items of one answer.
const MAX_ITEMS: usize = 4096;
/// Members of the answer that are the same in the whole stream.
const ENVELOPE: [&str; 2] = ["id", "created_at"];

/// State of streamed Responses.
#[derive(Debug, Default)]
pub(super) struct Responses {
    /// Members of [`ENVELOPE`] in the first event, as JSON texts.
    envelope: Vec<(&'static str, String)>,
    /// Items that the client has from earlier rounds.
    visible: Vec<String>,
    /// Items of this round.
    items: Vec<PassedItem>,
    /// Number of the next event for the client, once one had a number.
    next_number: Option<u64>,
    /// Difference of the client's numbers from the upstream's.
    shift: Option<i64>,
    is_complete: bool,
    is_withheld: bool,
}

#[derive(Debug)]
struct PassedItem {
    index: u64,
    /// Position for the client; `None` if the item is withheld.
    mapped: Option<u64>,
    /// JSON text once it is done.
    raw: Option<String>,
}

impl Responses {
    pub(super) fn event(&mut self, shared: &mut Shared, data: &str) -> Action {
        let Some(event) = Object::read(data) else { return Action::default() };
        let kind = event.text("type").unwrap_or_default();
        let response = event.get("response");
        match &*kind {
            "response.created" | "response.in_progress" | "response.queued" => {
                if !shared.is_first() {
                    return Action::drop();
                }
                if let Some(response) = response.and_then(Object::read)
                    && self.envelope.is_empty()
                {
                    let own = |name: &&'static str| Some((*name, response.get(name)?.to_owned()));
                    self.envelope = ENVELOPE.iter().filter_map(own).collect();
                }
                let less = response.and_then(|own| response_without(&shared.name, own, ""));
                let whole = less.map(|less| text::with(data, "response", &less));
                self.numbered(data, &event, whole.unwrap_or_else(|| data.to_owned()))
            }
            "response.completed" | "response.incomplete" | "response.failed" => {
                self.last(shared, data, &event, &kind)
            }
            "error" => {
                shared.has_failed = true;
                self.numbered(data, &event, data.to_owned()).releasing(Marks::None)
            }
            "response.output_item.added" => self.added(shared, data, &event),
            "response.output_item.done" => self.done(shared, data, &event),
            _ => match event.number("output_index") {
                Some(index) => match self.place(index) {
                    Some(mapped) => self.numbered(data, &event, placed(data, index, mapped)),
                    None => self.dropped(&event),
                },
                None => {
                    shared.has_failed |= event.get("error").is_some() && kind.is_empty();
                    self.numbered(data, &event, data.to_owned())
                }
            },
        }
    }

    /// Returns an event with the client's number.
    fn numbered(&mut self, old: &str, event: &Object<'_>, data: String) -> Action {
        let number = self.number(event);
        let changed = number.filter(|number| Some(*number) != event.number("sequence_number"));
        match changed {
            Some(number) => {
                Action::data(old, text::with(&data, "sequence_number", &number.to_string()))
            }
            None => Action::data(old, data),
        }
    }

    /// Returns the client's number of an event, and counts it.
    fn number(&mut self, event: &Object<'_>) -> Option<u64> {
        let own = i64::try_from(event.number("sequence_number")?).ok()?;
        let next = self.next_number.and_then(|next| i64::try_from(next).ok());
        let shift = *self.shift.get_or_insert(next.map_or(0, |next| next.saturating_sub(own)));
        let number = u64::try_from(own.saturating_add(shift)).ok()?;
        self.next_number = Some(number.saturating_add(1));
        Some(number)
    }

    /// Drops an event: later ones move up.
    fn dropped(&mut self, event: &Object<'_>) -> Action {
        if event.number("sequence_number").is_some()
            && let Some(shift) = &mut self.shift
        {
            *shift = shift.saturating_sub(1);
        }
        Action::drop()
    }

    /// Returns the number for an event of weir's own.
    pub(super) fn next_number(&mut self) -> Option<u64> {
        let next = self.next_number?;
        self.next_number = Some(next.saturating_add(1));
        Some(next)
    }

    /// Returns the position for the client of an item; `None` if it is withheld.
    fn place(&self, index: u64) -> Option<u64> {
        match self.items.iter().rev().find(|own| own.index == index) {
            Some(item) => item.mapped,
            None => Some(self.client_index(index)),
        }
    }

    fn client_index(&self, index: u64) -> u64 {
        let withheld = self.items.iter().filter(|own| own.mapped.is_none() && own.index < index);
        index.saturating_sub(withheld.count() as u64).saturating_add(self.visible.len() as u64)
    }

    /// Records an item when it is first seen; returns whether it is withheld.
    fn see(&mut self, shared: &mut Shared, index: u64, item: &Object<'_>) -> bool {
        if let Some(known) = self.items.iter().rev().find(|own| own.index == index) {
            return known.mapped.is_none();
        }
        if self.items.len() >= MAX_ITEMS {
            shared.collect(usize::MAX / 2);
            return false;
        }
        let is_own = calls::is_call_item(item, &shared.name);
        let mapped = (!is_own).then(|| self.client_index(index));
        self.items.push(PassedItem { index, mapped, raw: None });
        is_own
    }

    fn added(&mut self, shared: &mut Shared, data: &str, event: &Object<'_>) -> Action {
        let raw = event.get("item").unwrap_or("{}");
        let (Some(index), Some(item)) = (event.number("output_index"), Object::read(raw)) else {
            return self.numbered(data, event, data.to_owned());
        };
        if self.see(shared, index, &item) {
            return self.dropped(event);
        }
        let mapped = self.place(index).unwrap_or(index);
        let action = self.numbered(data, event, placed(data, index, mapped));
        match is_reasoning(&item) {
            true => action,
            false => action.releasing(Marks::None),
        }
    }

    fn done(&mut self, shared: &mut Shared, data: &str, event: &Object<'_>) -> Action {
        let raw = event.get("item").unwrap_or("{}");
        let (Some(index), Some(item)) = (event.number("output_index"), Object::read(raw)) else {
            return self.numbered(data, event, data.to_owned());
        };
        let is_own = self.see(shared, index, &item);
        if shared.collect(raw.len())
            && let Some(known) = self.items.iter_mut().rev().find(|own| own.index == index)
        {
            known.raw = Some(raw.to_owned());
        }
        if is_own {
            return self.dropped(event);
        }
        let mapped = self.place(index).unwrap_or(index);
        let action = self.numbered(data, event, placed(data, index, mapped));
        if !is_reasoning(&item) {
            return action.releasing(Marks::None);
        }
        let plain = match action.write {
            Write::Data(changed) => changed,
            _ => data.to_owned(),
        };
        let marked = text::with(&plain, "item", &calls::marked_item(raw));
        Action::write(Write::Queue(plain, Some(marked)))
    }

    /// Treats the event with the whole answer.
    fn last(&mut self, shared: &mut Shared, data: &str, event: &Object<'_>, kind: &str) -> Action {
        let raw = event.get("response").unwrap_or("{}");
        let response = Object::read(raw);
        let usage = response.as_ref().and_then(|own| own.get("usage"));
        shared.usage = usage.filter(|raw| text::is_object(raw)).map(str::to_owned);
        shared.is_over = true;
        shared.has_failed |= kind == "response.failed";
        self.is_complete = kind == "response.completed";
        self.fill(response.as_ref(), shared);
        self.count(shared);
        self.is_withheld = self.is_complete && shared.next(true) == Next::Recall;
        shared.is_withholding = self.is_withheld;
        let changed = self.response(shared, raw);
        let whole = match changed == raw {
            true => data.to_owned(),
            false => text::with(data, "response", &changed),
        };
        if self.is_withheld {
            // It takes a number only if it is written after all.
            let number = self.next_number.filter(|_| event.number("sequence_number").is_some());
            let whole = match number {
                Some(number) => text::with(&whole, "sequence_number", &number.to_string()),
                None => whole,
            };
            return Action::end(whole).releasing(Marks::Set);
        }
        self.numbered(data, event, whole).releasing(Marks::None)
    }

    /// Takes items that no event announced from the whole answer.
    fn fill(&mut self, response: Option<&Object<'_>>, shared: &mut Shared) {
        let output = response.map(|own| own.list("output")).unwrap_or_default();
        if output.len() > MAX_ITEMS {
            shared.collect(usize::MAX / 2);
        }
        for (index, raw) in output.into_iter().take(MAX_ITEMS).enumerate() {
            let Some(item) = Object::read(raw) else { continue };
            let index = index as u64;
            let is_new = self.items.iter().all(|own| own.index != index || own.raw.is_none());
            if is_new && shared.collect(raw.len()) {
                self.see(shared, index, &item);
                if let Some(known) = self.items.iter_mut().rev().find(|own| own.index == index) {
                    known.raw = Some(raw.to_owned());
                }
            }
        }
    }

    /// Returns the items of this round as the client has them: reasoning that leads to calls of the tool
    /// alone has weir's mark.
    fn client_items(&self) -> Vec<String> {
        let ordered = self.ordered().into_iter().filter(|own| own.mapped.is_some());
        let items: Vec<&str> = ordered.filter_map(|own| own.raw.as_deref()).collect();
        let is_bare = |raw: &&&str| {
            self.is_withheld && Object::read(raw).is_some_and(|item| is_reasoning(&item))
        };
        let kept = items.len() - items.iter().rev().take_while(is_bare).count();
        let marked = items[kept..].iter().map(|raw| calls::marked_item(raw));
        items[..kept].iter().map(|raw| (*raw).to_owned()).chain(marked).collect()
    }

    /// Returns a whole answer as the last of the client's stream.
    fn response(&self, shared: &Shared, raw: &str) -> String {
        let has_output = Object::read(raw).is_some_and(|own| !own.list("output").is_empty());
        let before = self.visible.join(",");
        let mut whole =
            response_without(&shared.name, raw, &before).unwrap_or_else(|| raw.to_owned());
        // Some upstreams leave the items out here; and weir's own marks are in the items alone.
        if self.is_withheld || (!shared.is_first() && !has_output) {
            let own = self.client_items();
            let all: Vec<&str> = self.visible.iter().chain(&own).map(String::as_str).collect();
            whole = text::with(&whole, "output", &format!("[{}]", all.join(",")));
        }
        if shared.is_first() {
            return whole;
        }
        for (name, value) in &self.envelope {
            whole = text::with(&whole, name, value);
        }
        match shared.summed() {
            Some(sum) => text::with(&whole, "usage", &sum),
            None => whole,
        }
    }

    fn ordered(&self) -> Vec<&PassedItem> {
        let mut items: Vec<&PassedItem> = self.items.iter().collect();
        items.sort_by_key(|own| own.index);
        items
    }

    /// Counts the calls in order.
    fn count(&self, shared: &mut Shared) {
        let mut tally = calls::Tally::default();
        for own in self.ordered() {
            let raw = own.raw.as_deref().unwrap_or("{}");
            let Some(item) = Object::read(raw) else { continue };
            if own.mapped.is_none() {
                let (id, arguments, raw) = call_item(raw, &item);
                tally.call(id, arguments, raw);
            } else if let Some(id) = calls::client_call(&item) {
                tally.other(id);
            }
        }
        shared.tally = tally;
    }

    /// Ends a round; returns whether it is complete, and whether its calls can be answered.
    pub(super) fn ended(&mut self, shared: &mut Shared) -> (bool, bool) {
        self.count(shared);
        let is_decided = self.is_withheld || shared.tally.has_others;
        (shared.is_over, self.is_complete && is_decided)
    }

    /// Returns the items that continue the request.
    pub(super) fn assistant(&self) -> String {
        let items: Vec<&str> =
            self.ordered().into_iter().filter_map(|own| own.raw.as_deref()).collect();
        echoed_items(&items)
    }

    /// Returns the size of the items that the last event repeats.
    pub(super) fn kept_bytes(&self) -> usize {
        self.visible.iter().map(String::len).sum()
    }

    pub(super) fn next_round(&mut self) {
        let own = self.client_items();
        self.visible.extend(own);
        self.items.clear();
        self.shift = None;
        self.is_complete = false;
        self.is_withheld = false;
    }
}

fn is_reasoning(item: &Object<'_>) -> bool {
    item.text("type").as_deref() == Some("reasoning")
}

/// Returns an event with the item's position for the client.
fn placed(data: &str, index: u64, mapped: u64) -> String {
    match index == mapped {
        true => data.to_owned(),
        false => text::with(data, "output_index", &mapped.to_string()),
    }
}
