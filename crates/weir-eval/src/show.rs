//! Compacted conversation as readable text.

use std::fmt::Write as _;

use super::conversation::{Conversation, Message};
use super::sent::SentPiece;
use super::{Budget, Named, Sender};
use weir_engine::wire::{Protocol, json};

/// Renders the messages that `policy` sends at the turn of `length` messages, or at the last one
/// before it. `None` if the conversation has no such turn, or is too short for the budget.
pub fn sent(
    conversation: &Conversation,
    policy: &Named,
    budget: Budget,
    length: usize,
) -> Option<String> {
    let budget_tokens = budget.tokens(conversation)?;
    let turns = conversation.turns.iter().take_while(|own| **own <= length);
    let last = *turns.clone().last()?;
    let mut sender = Sender::new(conversation, &policy.kind, budget_tokens);
    let mut sent = Vec::new();
    for own in turns {
        sent = sender.send(*own).to_vec();
    }
    let tokens: u64 = sent.iter().map(|piece| piece.tokens(conversation)).sum();
    let mut text = format!(
        "==== {} under {} at {budget}: {last} messages, {} tokens; sent {}, {tokens} of {budget_tokens} tokens\n",
        conversation.id,
        policy.name,
        conversation.full_tokens(last),
        sent.len(),
    );
    let mut next = 0;
    for piece in &sent {
        let of = match piece {
            SentPiece::Verbatim(index) => Some(*index),
            SentPiece::Other(other) => other.of,
        };
        if let Some(index) = of {
            if index > next {
                let _ = writeln!(text, "---- #{next} to #{} left out", index - 1);
            }
            next = index + 1;
        }
        write_message(piece, conversation, of, &mut text);
    }
    Some(text)
}

fn write_message(
    piece: &SentPiece,
    conversation: &Conversation,
    of: Option<usize>,
    text: &mut String,
) {
    let message: &Message = piece.message(conversation);
    let place = match (piece, of) {
        (SentPiece::Verbatim(index), _) => format!("#{index}"),
        (SentPiece::Other(_), Some(index)) => format!("#{index}, changed"),
        (SentPiece::Other(_), None) => "new".to_owned(),
    };
    let role = message.role.word();
    let _ = writeln!(text, "---- {place}: {role}, {} tokens", message.fact.tokens);
    if !message.content.is_empty() {
        let _ = writeln!(text, "{}", message.content);
    }
    let Ok(read) = Protocol::Chat.read_message(&message.raw) else { return };
    for call in &read.calls {
        let [name, arguments] =
            [call.name, call.arguments].map(|raw| json::string(raw).unwrap_or_default());
        let _ = writeln!(text, "{name}({arguments})");
    }
}
