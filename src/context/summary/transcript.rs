//! Messages as data for a summariser: one JSON object a line, in which no text can leave its string,
//! split into rounds where they exceed the summariser's window.

use super::Prompt;
use super::prompt::{self, FENCE_TOKENS};
use crate::tokens::{Encoding, MESSAGE_FRAMING, REPLY_PRIMING};
use crate::wire::message::Part;
use crate::wire::{Content, Message, Protocol, Role, json};

/// The least room for messages that is worth a round.
const LEAST_ROOM_TOKENS: u64 = 256;

/// What a summariser can take and is to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// How its tokens are counted.
    pub encoding: Encoding,
    /// What question and answer may take together.
    pub window_tokens: u64,
    /// What the summary may take.
    pub cap_tokens: u64,
}

/// The window has no room for messages beside the instruction and the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowTooSmall {
    /// The window as it is.
    pub window_tokens: u64,
    /// The least that would do.
    pub needed_tokens: u64,
}

/// What one question to the summariser holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// How many of the span's messages are told in full once this round is done.
    pub covers: usize,
    /// The messages, one JSON object each.
    lines: Vec<String>,
}

impl Round {
    /// What the summariser is asked. `before` is what it answered in the round before this one,
    /// checked.
    pub fn prompt(&self, before: Option<&str>, cap_tokens: u64) -> Prompt {
        prompt::of(&self.lines, before, cap_tokens)
    }
}

/// The questions to put in turn to have the messages `span` of `raws` summarised. One where all of
/// them fit; the first that does not fit in whole is split.
pub fn rounds(
    protocol: Protocol,
    raws: &[&str],
    span: &[usize],
    size: &Size,
) -> Result<Vec<Round>, WindowTooSmall> {
    let empty = Round { covers: 0, lines: Vec::new() }.prompt(None, size.cap_tokens);
    let texts_tokens = size.encoding.count(&empty.system) + size.encoding.count(&empty.user);
    let fixed_tokens =
        texts_tokens + 2 * MESSAGE_FRAMING + REPLY_PRIMING + FENCE_TOKENS + size.cap_tokens;
    // Escaping makes what was answered before a little longer.
    let before_tokens = size.cap_tokens + size.cap_tokens / 4 + FENCE_TOKENS;
    let needed_tokens = fixed_tokens + before_tokens + LEAST_ROOM_TOKENS;
    if size.window_tokens < needed_tokens {
        return Err(WindowTooSmall { window_tokens: size.window_tokens, needed_tokens });
    }
    let room_tokens = size.window_tokens - fixed_tokens - before_tokens;
    let pieces: Vec<Piece> = span
        .iter()
        .enumerate()
        .filter_map(|(place, message)| Some((place, *message, raws.get(*message)?)))
        .flat_map(|(place, index, raw)| match protocol.read_message(raw) {
            Ok(message) => pieces(place, index, &message, room_tokens, size.encoding),
            Err(_) => Vec::new(),
        })
        .collect();
    let all_tokens: u64 = pieces.iter().map(|piece| piece.tokens).sum();
    let first_room =
        if all_tokens <= room_tokens + before_tokens { all_tokens } else { room_tokens };
    Ok(packed(pieces, first_room, span.len()))
}

/// Pieces put into as few rounds as hold them.
fn packed(pieces: Vec<Piece>, room_tokens: u64, messages: usize) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    let mut left = 0;
    for piece in pieces {
        match rounds.last_mut() {
            Some(round) if piece.tokens <= left => {
                left -= piece.tokens;
                round.lines.push(piece.line);
            }
            before => {
                if let Some(round) = before {
                    // A message whose rest follows is not told in full yet.
                    round.covers = piece.place;
                }
                left = room_tokens.saturating_sub(piece.tokens);
                rounds.push(Round { covers: 0, lines: vec![piece.line] });
            }
        }
    }
    if let Some(last) = rounds.last_mut() {
        last.covers = messages;
    }
    rounds
}

/// A line, and what it takes with the line end.
struct Piece {
    /// The message's place in the span.
    place: usize,
    line: String,
    tokens: u64,
}

/// The lines of a message, each of at most `most_tokens`.
fn pieces(
    place: usize,
    index: usize,
    message: &Message<'_>,
    most_tokens: u64,
    encoding: Encoding,
) -> Vec<Piece> {
    let from = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::Other => "other",
    };
    let head = format!(r#"{{"message":{index},"from":"{from}""#);
    let mut pieces = Vec::new();
    let mut add = |key: &str, text: &str| {
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, taken) = piece(place, &head, key, rest, most_tokens, encoding);
            pieces.push(piece);
            rest = &rest[taken..];
        }
    };
    add("text", &said(message));
    for call in &message.calls {
        let name = json::string(call.name).unwrap_or_default();
        let arguments = json::string(call.arguments).unwrap_or(call.arguments.into());
        add("call", &format!("{name} {arguments}"));
    }
    pieces
}

/// As much of `text` as one line has room for, and how many bytes of it that is.
fn piece(
    place: usize,
    head: &str,
    key: &str,
    text: &str,
    most_tokens: u64,
    encoding: Encoding,
) -> (Piece, usize) {
    let first = text.chars().next().map_or(0, char::len_utf8);
    let mut part_tokens = most_tokens;
    loop {
        let taken = encoding.head_bytes(text, part_tokens).max(first);
        let mut line = format!(r#"{head},"{key}":"#);
        line.push_str(&quoted(&text[..taken]));
        line.push('}');
        let tokens = encoding.count(&line) + 1;
        if tokens <= most_tokens || taken == first {
            return (Piece { place, line, tokens }, taken);
        }
        // Escapes take room too.
        part_tokens = part_tokens * 3 / 4;
    }
}

fn said(message: &Message<'_>) -> String {
    let decoded = |raw: &str| json::string(raw).unwrap_or_default().into_owned();
    match &message.content {
        Content::None => String::new(),
        Content::Text(raw) => decoded(raw),
        Content::Parts(parts) => {
            let texts = parts.iter().map(|part| match part {
                Part::Text(raw) => decoded(raw),
                Part::Image { .. } => "[picture]".to_owned(),
                Part::Audio { .. } => "[sound]".to_owned(),
                Part::Ambiguous(_) | Part::Other(_) => "[other content]".to_owned(),
            });
            texts.collect::<Vec<_>>().join("\n")
        }
    }
}

/// `text` as a JSON string on one line, whatever ends a line for whoever reads it.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    json::escape_into(text, &mut quoted);
    quoted.push('"');
    for (own, escape) in [
        ('\u{85}', "\\u0085"),
        ('\u{2028}', "\\u2028"),
        ('\u{2029}', "\\u2029"),
        ('\u{7f}', "\\u007f"),
    ] {
        if quoted.contains(own) {
            quoted = quoted.replace(own, escape);
        }
    }
    quoted
}
