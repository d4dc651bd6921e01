//! The best and the worst proxy that keep to the messages, and the one that does nothing: bounds for
//! every column of retention. The oracle knows the answer and has no limit. [`broken`] checks a run by them.

use super::scores::{Decay, Row};
use super::{Case, CaseItems, Planted, edits};
use weir_engine::wire::Role;
use weir_eval::conversation::Message;

/// Text of messages that the oracle keeps only for their place.
const EMPTIED: &str = "-";

/// Bound of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Sends each request on as it is.
    Nothing,
    /// Keeps the messages that hold the items asked for next, and empties or drops the others.
    Oracle,
    /// Keeps the system messages and the last turn.
    DropAll,
}

impl Bound {
    /// All bounds, in the order of the table.
    pub const ALL: [Self; 3] = [Self::Nothing, Self::Oracle, Self::DropAll];

    /// Name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Oracle => "oracle",
            Self::DropAll => "drop-all",
        }
    }

    /// Returns the body that it sends for the request of turn `place`. Requests within the limit pass
    /// unchanged.
    pub fn body(self, asked: &CaseItems, place: usize, limit_tokens: u64) -> Vec<u8> {
        let case = &*asked.case;
        let length = case.conversation.turns[place];
        let full_tokens = case.conversation.full_tokens(length) + case.tools_tokens;
        if self == Self::Nothing || full_tokens <= limit_tokens {
            return case.body(length);
        }
        let newest = case.conversation.last_turn(length);
        let mut is_kept: Vec<bool> = case.conversation.messages[..length]
            .iter()
            .enumerate()
            .map(|(index, message)| index >= newest || message.role == Role::System)
            .collect();
        if self == Self::DropAll {
            let messages = case.conversation.messages[..length].iter().zip(&is_kept);
            return case.body_of(messages.filter(|(_, kept)| **kept).map(|(own, _)| &*own.raw));
        }
        keep_asked(asked, place, &mut is_kept);
        emptied(case, &is_kept)
    }
}

/// Lists the bounds that the rows of a run and its table of decay do not hold. That is a fault of the bench,
/// and of no proxy.
pub fn broken(rows: &[Row], decay: &[(String, Vec<Decay>)]) -> Vec<String> {
    let named = |name: &str| Bound::ALL.into_iter().find(|own| own.name() == name);
    let mut broken = Vec::new();
    for row in rows {
        let Some(bound) = named(&row.proxy) else { continue };
        if row.turns == 0 {
            broken.push(format!("{} at {}: there is no turn", row.proxy, row.limit));
            continue;
        }
        let mut expected = vec![
            ("failed", row.answered, 1.0),
            ("same", row.unchanged, 1.0),
            ("valid", row.valid, 1.0),
            ("second", row.second, 1.0),
            ("restart", row.restarted, 1.0),
            ("calls' bill", row.extra_billed, 0.0),
        ];
        if bound != Bound::DropAll {
            expected.extend(row.retention().map(|(column, value)| (column, value, 1.0)));
        }
        match bound {
            Bound::Nothing => expected.extend([
                ("bytes", row.same_bytes, 1.0),
                ("over", row.over, 1.0),
                ("sent", row.sent_per_full, 1.0),
                ("prefix", row.prefix, 1.0),
                ("billed", row.billed, 1.0),
            ]),
            Bound::Oracle => {}
            Bound::DropAll => expected.push(("over", row.over, 0.0)),
        }
        let wrong =
            expected.iter().filter(|(_, value, right)| value.is_some_and(|own| own != *right));
        broken.extend(wrong.map(|(column, value, _)| {
            format!("{} at {}: {column} is {:?}", row.proxy, row.limit, value.unwrap_or_default())
        }));
    }
    for (proxy, steps) in decay {
        let Some(bound) = named(proxy) else { continue };
        let right = if bound == Bound::DropAll { 0.0 } else { 1.0 };
        for (number, step) in steps.iter().enumerate() {
            let shares = [("value", step.values), ("fact", step.facts), ("rule", step.rules)];
            let wrong = shares.iter().filter(|(_, share)| share.value() != Some(right));
            broken.extend(wrong.map(|(column, share)| {
                format!("{proxy}, decay: {column} {} is {:?}", number + 1, share.value())
            }));
        }
    }
    broken
}

/// Marks a message for each item that the turn asks for, if none with it is marked yet.
fn keep_asked(asked: &CaseItems, place: usize, is_kept: &mut [bool]) {
    let length = is_kept.len();
    let (case, questions) = (&*asked.case, &asked.questions);
    let turn = &questions.turns[place];
    for reference in &turn.references {
        is_kept[reference.last_seen] = true;
    }
    for gram in &turn.grams {
        let messages = &questions.grams[*gram as usize].messages;
        let mut before = messages.iter().map(|own| *own as usize).filter(|own| *own < length);
        if !before.clone().any(|own| is_kept[own])
            && let Some(last) = before.next_back()
        {
            is_kept[last] = true;
        }
    }
    let named = questions.actions.iter().chain(&questions.users).map(|(message, _)| *message);
    let edits = edits::last(&asked.edits, length).into_iter().map(|edit| edit.message);
    let plants = match &case.planted {
        Planted::Nothing => Vec::new(),
        Planted::Rules { plants, .. } => plants.iter().collect(),
        Planted::Facts { facts, rules } => facts.iter().chain(rules).collect(),
    };
    let plants = plants.into_iter().map(|plant| plant.message);
    let evidence = case.conversation.evidence.iter().copied();
    for message in named.chain(edits).chain(plants).chain(evidence).filter(|own| *own < length) {
        is_kept[message] = true;
    }
}

/// Returns the body with the marked messages whole. Calls and results stay in pairs, results that are not
/// marked without their text, and a user's message stands between two of the assistant.
fn emptied(case: &Case, is_kept: &[bool]) -> Vec<u8> {
    let messages = &case.conversation.messages[..is_kept.len()];
    let mut is_needed = is_kept.to_vec();
    for (index, message) in messages.iter().enumerate() {
        let calls = call_of(messages, index);
        if message.role == Role::Tool && is_kept[index] {
            is_needed[calls] = true;
        }
    }
    let mut raws: Vec<String> = Vec::new();
    let mut last_role = Role::System;
    for (index, message) in messages.iter().enumerate() {
        let is_result = message.role == Role::Tool && is_needed[call_of(messages, index)];
        if !is_needed[index] && !is_result {
            continue;
        }
        if message.role == Role::Assistant && last_role == Role::Assistant {
            raws.push(serde_json::json!({"role": "user", "content": EMPTIED}).to_string());
        }
        raws.push(match is_kept[index] || !is_result {
            true => message.raw.to_string(),
            false => {
                let answers = message.answers.as_deref().unwrap_or_default();
                let result =
                    serde_json::json!({"role": "tool", "tool_call_id": answers, "content": EMPTIED});
                result.to_string()
            }
        });
        last_role = message.role;
    }
    case.body_of(raws.iter().map(String::as_str))
}

/// Returns the message with the calls that the result `index` belongs to; itself for other messages.
fn call_of(messages: &[Message], index: usize) -> usize {
    match messages[index].role {
        Role::Tool => {
            let before = messages[..index].iter();
            before.clone().rposition(|own| own.role != Role::Tool).unwrap_or(index)
        }
        _ => index,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scores::{Results, Scores};
    use weir_eval::tally::Share;

    #[test]
    fn a_bound_that_does_not_hold_is_listed() {
        let half = Share { kept: 1, of: 2 };
        let mut planted =
            Scores { fits: half, valid: half, rules: [half, half], ..Scores::default() };
        planted.tally.turns = 2;
        let results = Results { planted, ..Results::default() };
        let row = |name: &str| Row::new(name, "50%", &results, 1.0);
        assert_eq!(broken(&[row("other")], &[]), [""; 0]);
        assert_eq!(
            broken(&[row("oracle"), row("drop-all")], &[]),
            [
                "oracle at 50%: valid is 0.5",
                "oracle at 50%: rules is 0.5",
                "oracle at 50%: crowded is 0.5",
                "drop-all at 50%: valid is 0.5",
                "drop-all at 50%: over is 0.5",
            ]
        );
        let none = broken(&[Row::new("nothing", "50%", &Results::default(), 1.0)], &[]);
        assert_eq!(none, ["nothing at 50%: there is no turn"]);
    }

    #[test]
    fn a_bound_that_does_not_hold_in_decay_is_listed() {
        let [none, half, all] = [0, 1, 2].map(|kept| Share { kept, of: 2 });
        let decay =
            |values, facts| vec![Decay { values, facts, rules: values, compactions: Vec::new() }];
        let rows = [("nothing", decay(all, all)), ("oracle", decay(all, half))];
        let rows =
            rows.into_iter().chain([("drop-all", decay(none, none)), ("p", decay(half, all))]);
        let rows: Vec<_> = rows.map(|(name, decay)| (name.to_owned(), decay)).collect();
        assert_eq!(broken(&[], &rows), ["oracle, decay: fact 1 is Some(0.5)"]);
        let empty = [("drop-all".to_owned(), vec![Decay::default()])];
        assert_eq!(broken(&[], &empty).len(), 3, "a step without cases bounds nothing");
    }
}
