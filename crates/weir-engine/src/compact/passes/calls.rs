//! Calls and results: which call a result answers, and which arguments of a call can be shortened.
//! Read only.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::compact::source::Source;
use crate::compact::state::Compactor;
use crate::wire::message::{Call, arguments_text};
use crate::wire::{Message, Role, json};

/// Minimum length of an argument text that is shortened.
const LONG_BYTES: usize = 512;
/// Length kept of a shortened text.
const HEAD_BYTES: usize = 120;

/// Tools whose calls results answer. Each message with calls is read once.
#[derive(Default)]
pub(crate) struct AnsweredTools(RefCell<HashMap<usize, Rc<NamedCalls>>>);

/// Calls of a message: the tool of each, and the first call with each ID.
#[derive(Default)]
struct NamedCalls {
    tools: Vec<String>,
    ids: HashMap<String, usize>,
}

impl NamedCalls {
    fn of(message: &Message<'_>) -> Self {
        let tool = |call: &Call<'_>| json::string(call.name).unwrap_or_default().into_owned();
        let mut ids = HashMap::new();
        for (place, call) in
            message.calls.iter().enumerate().filter(|(_, call)| !call.id.is_empty())
        {
            ids.entry(call.id.to_owned()).or_insert(place);
        }
        Self { tools: message.calls.iter().map(tool).collect(), ids }
    }
}

impl AnsweredTools {
    /// Returns the tool whose call the result `message` answers: by its ID, or else by its position among the
    /// results.
    pub(crate) fn tool(
        &self,
        state: &Compactor,
        message: usize,
        source: &dyn Source,
    ) -> Option<String> {
        let turn = state.turns.of_message[message]?;
        let first = state.turns.list[turn].first;
        let own = source.message(message)?;
        let id = own.answers.filter(|id| !id.is_empty());
        let asks = |own: &usize| state.messages.facts[*own].calls > 0;
        let mut asking = (first..message).rev().filter(asks);
        let by_id = |asking: usize| {
            let named = self.named(asking, source)?;
            named.ids.get(id?).map(|place| named.tools[*place].clone())
        };
        if let Some(tool) = id.and_then(|_| asking.clone().find_map(by_id)) {
            return Some(tool);
        }
        let last = asking.next()?;
        let is_result = |own: &usize| state.messages.facts[*own].role == Role::Tool;
        let place = (last + 1..message).filter(is_result).count();
        self.named(last, source)?.tools.get(place).cloned()
    }

    fn named(&self, asking: usize, source: &dyn Source) -> Option<Rc<NamedCalls>> {
        if let Some(known) = self.0.borrow().get(&asking) {
            return Some(Rc::clone(known));
        }
        let named = Rc::new(NamedCalls::of(&source.message(asking)?));
        self.0.borrow_mut().insert(asking, Rc::clone(&named));
        Some(named)
    }
}

/// Returns the arguments with long texts shortened, as a JSON object again. `None` if there is
/// nothing to shorten or the arguments are no object.
pub(crate) fn shortened(arguments: &str) -> Option<String> {
    let text = arguments_text(arguments)?;
    let members = json::unique_members(&text)?;
    let mut out = String::with_capacity(text.len() / 2);
    let mut written = 0;
    for (_, raw) in members {
        let Some(value) = json::string(raw).filter(|value| value.len() >= LONG_BYTES) else {
            continue;
        };
        let start = raw.as_ptr() as usize - text.as_ptr() as usize;
        let head = &value[..value.floor_char_boundary(HEAD_BYTES)];
        out.push_str(&text[written..=start]);
        json::escape_into(&format!("{head} [weir: {} bytes in all]", value.len()), &mut out);
        written = start + raw.len() - 1;
    }
    (written > 0).then(|| {
        out.push_str(&text[written..]);
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_arguments_stay_an_object() {
        let long = "é\"line\n".repeat(200);
        let arguments =
            serde_json::json!({"path": "a.rs", "n": 1, "text": long, "deep": {"text": long}});
        let literal = serde_json::Value::from(arguments.to_string()).to_string();
        let short = shortened(&literal).expect("there is something to shorten");
        let read: serde_json::Value = serde_json::from_str(&short).expect("JSON");
        assert_eq!((&read["path"], &read["n"]), (&arguments["path"], &arguments["n"]));
        assert_eq!(read["deep"], arguments["deep"]);
        let text = read["text"].as_str().expect("a text");
        assert!(text.ends_with(" [weir: 1600 bytes in all]") && text.starts_with("é\"line\n"));
        let again = serde_json::Value::from(short).to_string();
        assert_ne!(shortened(&again), Some(again.clone()));
        for same in
            [r#""{\"a\":1}""#, "\"{}\"", "\"no object\"", "", "{}", r#""{\"a\":1,\"a\":2}""#]
        {
            assert_eq!(shortened(same), None, "{same}");
        }
    }
}
