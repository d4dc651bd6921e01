//! Share of the values that notes lost and the recall tool finds by a clue: the eight words before the value in
//! the real answer. Reads conversations from standard input, one a line: `docs/fitbench.md` explains it.

use std::io::{Read as _, Write as _};

use weir_engine::compact::recall::lookup::Lookup;
use weir_engine::wire::Protocol;
use weir_eval::conversation::Conversation;
use weir_eval::text::{Text, find_all};
use weir_eval::{Budget, Kind, Named, replay};

/// Size of an answer, words of a clue, and values asked for of each conversation, spread evenly.
const ROOM_BYTES: usize = 4000;
const WORDS: usize = 8;
const MOST_VALUES: usize = 12;

fn main() -> Result<(), String> {
    let budget = std::env::args().nth(1).unwrap_or_else(|| "50%".to_owned());
    let budget = Budget::read(&budget)?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| error.to_string())?;
    let mut counts = [0_usize; 3];
    for (number, line) in (1..).zip(text.lines()) {
        let own = asked(&Conversation::read(line, number, None)?, budget);
        counts.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
    }
    let [values, by_clue, by_value] = counts.map(|own| own as f64);
    let said = format!(
        "{values} values; found by {WORDS} words before them {:.3}, by themselves {:.3}\n",
        by_clue / values,
        by_value / values
    );
    std::io::stdout().write_all(said.as_bytes()).map_err(|error| error.to_string())
}

/// Returns the number of lost values asked for, of those found by their clue, and by themselves.
fn asked(conversation: &Conversation, budget: Budget) -> [usize; 3] {
    let policy = Named { name: String::new(), kind: Kind::Engine(Box::default(), None) };
    let outcome = replay(conversation, &[policy], &[budget]).remove(0);
    let mut lost = outcome.map(|own| own.lost).unwrap_or_default();
    lost.retain(|own| !own.has_value);
    let step = lost.len().div_ceil(MOST_VALUES).max(1);
    let mut counts = [0; 3];
    for own in lost.iter().step_by(step) {
        let answer = &conversation.messages[own.turn];
        let Some(clue) = answer.texts.iter().find_map(|text| clue(text, &own.value)) else {
            continue;
        };
        let raws: Vec<&str> =
            conversation.messages[..own.turn].iter().map(|message| &*message.raw).collect();
        let lookup = Lookup { protocol: Protocol::Chat, messages: &raws, tool: "recall" };
        let finds = |query: &str| {
            let said = lookup.answer(&serde_json::json!({"query": query}).to_string(), ROOM_BYTES);
            find_all(&Text::new(&said).text, &own.value).next().is_some()
        };
        counts[0] += 1;
        counts[1] += usize::from(finds(&clue));
        counts[2] += usize::from(finds(&own.value));
    }
    counts
}

/// Returns the words before a value in a text; `None` if there are none.
fn clue(text: &Text, value: &str) -> Option<String> {
    let start = find_all(&text.text, value).next()?;
    let words: Vec<&str> = text.text[..start].split_whitespace().collect();
    let clue = words[words.len().saturating_sub(WORDS)..].join(" ");
    (!clue.is_empty()).then_some(clue)
}
