//! Edits spliced into the caller's own bytes. Everything that no edit names stays as received.

use std::borrow::Cow;
use std::ops::Range;

use super::containers::{self, Treated};
use super::json::{self, elements, escape_into, rejoin, string, without_member};
use super::message::{Content, Role};
use super::messages::{self, text_block};
use super::{Protocol, Request, breakpoint, chat, responses};

/// Change to a message of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Removes the message.
    Remove,
    /// Removes weir's own member from the message.
    Unmark,
    /// Puts text before the message's content.
    Prepend(String),
    /// Puts text after the message's content.
    Append(String),
    /// Shortens texts of the message; one entry for each of its texts, in order.
    Clip(Vec<TextCut>),
    /// Replaces the message's content; all other members stay.
    Replace(String),
    /// Replaces parts of the message's content by texts; one entry for each part, in order.
    Parts(Vec<Option<String>>),
    /// Replaces arguments of calls, and outputs inside the message, by other texts; one entry for each of
    /// [`Message::arguments`](super::Message::arguments), in order.
    Arguments(Vec<Option<String>>),
    /// Removes the model's signed thinking from the message.
    DropThinking,
    /// Removes the blocks of Messages that are calls with these IDs or answer them.
    DropBlocks(Vec<String>),
    /// Changes the message's role to that of a user.
    SpeakAsUser,
    /// Sets a breakpoint of the provider's cache at the end of the message's content.
    Breakpoint,
    /// Inserts a user message with this text before the message.
    InsertBefore(String),
    /// Inserts a user message with this text after the message.
    InsertAfter(String),
}

/// Change to one text of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextCut {
    Whole,
    /// Replaces its middle by a marker.
    Clip(Clip),
    /// Removes its part from the list of parts.
    Gone,
}

/// Remaining pieces of a text, as spans of the unescaped text in order, and the marker in place of the
/// first gap. Each further gap has [`GAP`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clip {
    pub kept: Vec<Range<usize>>,
    pub marker: String,
}

/// Mark of each gap of a clipped text but the first.
pub const GAP: &str = "\n…\n";

/// Writes `edits`, pairs of message and edit in order of message, into the request's bytes.
///
/// Of messages that stand outside the list, such as `instructions`, only the user messages after them are
/// written: they stay as received.
pub fn apply(protocol: Protocol, request: &Request<'_>, edits: &[(usize, Edit)]) -> String {
    let mut rest = edits;
    let mut of = |message: usize| {
        let own;
        (own, rest) = rest.split_at(rest.iter().take_while(|(own, _)| *own == message).count());
        own
    };
    if protocol == Protocol::Messages {
        return containers::join(request, |message| treated(request, message, of(message)));
    }
    let mut inserted = String::new();
    for message in 0..request.outside {
        for (_, edit) in of(message) {
            if let Edit::InsertAfter(said) = edit {
                inserted.push_str(&protocol.user_message(said));
                inserted.push(',');
            }
        }
    }
    let listed = &request.messages[request.outside..];
    rejoin(request.text, listed, |index, raw| {
        let own = of(request.outside + index);
        if own.iter().any(|(_, edit)| *edit == Edit::Remove) {
            return None;
        }
        let mut kept = match own.is_empty() {
            true => Cow::Borrowed(raw),
            false => {
                let own: Vec<&Edit> = own.iter().map(|(_, edit)| edit).collect();
                Cow::Owned(rewrite(protocol, raw, &own))
            }
        };
        if !inserted.is_empty() {
            kept = Cow::Owned(std::mem::take(&mut inserted) + &kept);
        }
        Some(kept)
    })
}

/// Returns how one message of Messages is sent.
fn treated<'a>(request: &Request<'a>, message: usize, edits: &'a [(usize, Edit)]) -> Treated<'a> {
    let mut treated = Treated { before: Vec::new(), kept: None, after: Vec::new() };
    let (mut own, mut is_removed) = (Vec::new(), false);
    for (_, edit) in edits {
        match edit {
            Edit::InsertBefore(said) => treated.before.push(said.as_str()),
            Edit::InsertAfter(said) => treated.after.push(said.as_str()),
            Edit::Remove => is_removed = true,
            _ => own.push(edit),
        }
    }
    let raw = request.messages[message];
    if !is_removed {
        treated.kept = Some(match own.is_empty() {
            true => Cow::Borrowed(raw),
            false => Cow::Owned(rewrite(Protocol::Messages, raw, &own)),
        });
    }
    treated
}

/// Rewrites one message with its edits.
pub fn rewrite(protocol: Protocol, raw: &str, edits: &[&Edit]) -> String {
    // Texts placed before are added from the last to the first, so that they read in order.
    let stands_before = |edit: &&&Edit| matches!(edit, Edit::Prepend(_) | Edit::InsertBefore(_));
    let after = edits.iter().filter(|edit| !stands_before(edit));
    let edits: Vec<&&Edit> = after.chain(edits.iter().rev().filter(stands_before)).collect();
    let mut text = raw.to_owned();
    for edit in &edits {
        text = match edit {
            Edit::Remove => String::new(),
            Edit::Unmark => unmark(protocol, &text),
            Edit::Prepend(note) => add(protocol, &text, note, Side::Before),
            Edit::Append(note) => add(protocol, &text, note, Side::After),
            Edit::Clip(clips) => clip(protocol, &text, clips),
            Edit::Replace(said) => replace(protocol, &text, said),
            Edit::Parts(texts) => replace_parts(protocol, &text, texts),
            Edit::Arguments(texts) => replace_arguments(protocol, &text, texts),
            Edit::DropThinking => without_thinking(protocol, &text),
            Edit::DropBlocks(ids) => messages::without_blocks(&text, ids),
            Edit::SpeakAsUser => speak_as_user(&text),
            Edit::Breakpoint => breakpoint::mark(protocol, &text),
            Edit::InsertBefore(_) | Edit::InsertAfter(_) => continue,
        };
    }
    for edit in edits {
        match edit {
            Edit::InsertBefore(said) => text = format!("{},{text}", protocol.user_message(said)),
            Edit::InsertAfter(said) => text = format!("{text},{}", protocol.user_message(said)),
            _ => {}
        }
    }
    text
}

/// Removes the model's signed thinking from the message.
fn without_thinking(protocol: Protocol, raw: &str) -> String {
    match protocol {
        Protocol::Messages => messages::without_thinking(raw),
        Protocol::Chat => chat::without_thinking(raw),
        Protocol::Responses => raw.to_owned(),
    }
}

/// Removes the member `weir` from the message, at each item or block that has it.
fn unmark(protocol: Protocol, raw: &str) -> String {
    let items = json::run(raw).unwrap_or_default();
    rejoin(raw, &items, |_, item| {
        let blocks = match protocol {
            Protocol::Messages => {
                messages::blocks(item).filter(|_| messages::content(item).is_some())
            }
            Protocol::Chat | Protocol::Responses => None,
        };
        let item = match blocks {
            Some(blocks) => Cow::Owned(rejoin(item, &blocks, |_, block| Some(unmarked(block)))),
            None => Cow::Borrowed(item),
        };
        Some(Cow::Owned(unmarked(&item).into_owned()))
    })
}

/// Returns the object `raw` without its member `weir`.
fn unmarked(raw: &str) -> Cow<'_, str> {
    match member_of(raw, "weir") {
        Some(weir) => Cow::Owned(without_member(raw, weir)),
        None => Cow::Borrowed(raw),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Before,
    After,
}

/// Adds `note` before or after the message's content. A message without content, or with content
/// that is neither a string nor a list, stays as it is.
fn add(protocol: Protocol, raw: &str, note: &str, side: Side) -> String {
    let Ok(message) = protocol.read_message(raw) else {
        return raw.to_owned();
    };
    let escaped = json::escaped(note);
    let offset = |part: &str| part.as_ptr() as usize - raw.as_ptr() as usize;
    let part = text_part(protocol, message.role, &escaped);
    let (at, inserted) = match &message.content {
        Content::None => return raw.to_owned(),
        // A text is written as a block where both are the same to the provider, and clients use both.
        Content::Text(text) if protocol == Protocol::Messages => {
            let own = format!(r#"{{"type":"text","text":{text}}}"#);
            let list = match side {
                Side::Before => format!("[{part},{own}]"),
                Side::After => format!("[{own},{part}]"),
            };
            return rejoin(raw, &[text], |_, _| Some(Cow::Borrowed(list.as_str())));
        }
        Content::Text(text) => match side {
            Side::Before => (offset(text) + 1, escaped),
            Side::After => (offset(text) + text.len() - 1, escaped),
        },
        Content::Parts(_) if protocol == Protocol::Responses && responses::is_shell_output(raw) => {
            let texts = message.texts();
            match side {
                Side::Before => (texts.first().map_or(0, |text| offset(text) + 1), escaped),
                Side::After => {
                    (texts.last().map_or(0, |text| offset(text) + text.len() - 1), escaped)
                }
            }
        }
        Content::Parts(_) => {
            let Some(span) = parts_span(protocol, raw) else {
                return raw.to_owned();
            };
            match side {
                Side::Before => (span.0, format!("{part},")),
                Side::After => (span.1, format!(",{part}")),
            }
        }
    };
    format!("{}{}{}", &raw[..at], inserted, &raw[at..])
}

/// Returns the JSON text of a part with the text `escaped`.
fn text_part(protocol: Protocol, role: Role, escaped: &str) -> String {
    match protocol {
        Protocol::Chat | Protocol::Messages => text_block(escaped),
        Protocol::Responses => responses::text_part(role, escaped),
    }
}

/// Returns the lists of parts in a message, in order.
fn part_lists(protocol: Protocol, raw: &str) -> Vec<Vec<&str>> {
    match protocol {
        Protocol::Chat => content_of(protocol, raw).and_then(elements).into_iter().collect(),
        Protocol::Responses => responses::lists(raw),
        Protocol::Messages => messages::blocks(raw).into_iter().collect(),
    }
}

/// Returns the start of the first part and the end of the last; `None` if there are none.
fn parts_span(protocol: Protocol, raw: &str) -> Option<(usize, usize)> {
    let lists = part_lists(protocol, raw);
    let mut lists = lists.iter().filter(|list| !list.is_empty());
    let first = lists.next()?;
    let last = lists.next_back().unwrap_or(first).last()?;
    let offset = |part: &str| part.as_ptr() as usize - raw.as_ptr() as usize;
    Some((offset(first.first()?), offset(last) + last.len()))
}

/// Shortens the message's texts.
fn clip(protocol: Protocol, raw: &str, cuts: &[TextCut]) -> String {
    let Ok(message) = protocol.read_message(raw) else { return raw.to_owned() };
    let texts = message.texts();
    // Texts lie in parts of lists, or are the whole content.
    let lists = part_lists(protocol, raw);
    let mut pieces: Vec<&str> = lists.into_iter().flatten().collect();
    let holds = |piece: &str, text: &str| piece.as_bytes().as_ptr_range().contains(&text.as_ptr());
    let mut whole = Vec::new();
    for text in &texts {
        let place = pieces.partition_point(|piece| piece.as_ptr() <= text.as_ptr());
        if !place.checked_sub(1).is_some_and(|before| holds(pieces[before], text)) {
            pieces.insert(place, text);
            whole.push(text.as_ptr());
        }
    }
    let mut cuts = texts.iter().zip(cuts).peekable();
    rejoin(raw, &pieces, |_, piece| {
        let own: Vec<(&&str, &TextCut)> =
            std::iter::from_fn(|| cuts.next_if(|(text, _)| holds(piece, text))).collect();
        match own[..] {
            [(text, TextCut::Gone)] if whole.contains(&text.as_ptr()) => {
                Some(Cow::Borrowed("\"\""))
            }
            [_, ..] if own.iter().all(|(_, cut)| **cut == TextCut::Gone) => None,
            _ => Some(shortened(piece, &own)),
        }
    })
}

/// Shortens the strings that lie in `whole`, in order. Those that go leave a mark: a block may have to have
/// a text.
fn shortened<'a>(whole: &'a str, cuts: &[(&&str, &TextCut)]) -> Cow<'a, str> {
    let mut out = String::new();
    let mut written = 0;
    for (text, cut) in cuts {
        let Some(unescaped) = string(text) else { continue };
        let start = text.as_ptr() as usize - whole.as_ptr() as usize;
        let short = match cut {
            TextCut::Whole => continue,
            TextCut::Clip(clip) => clipped(&unescaped, clip),
            TextCut::Gone => "…".to_owned(),
        };
        out.push_str(&whole[written..=start]);
        escape_into(&short, &mut out);
        written = start + text.len() - 1;
    }
    if written == 0 {
        return Cow::Borrowed(whole);
    }
    out.push_str(&whole[written..]);
    Cow::Owned(out)
}

/// Replaces the message's content by the string `said`.
fn replace(protocol: Protocol, raw: &str, said: &str) -> String {
    let Some(content) = content_of(protocol, raw) else { return raw.to_owned() };
    let mut literal = json::quoted(said);
    if protocol == Protocol::Responses && responses::is_shell_output(raw) {
        literal = responses::shell_output(content, &literal[1..literal.len() - 1]);
    }
    rejoin(raw, &[content], |_, _| Some(Cow::Borrowed(literal.as_str())))
}

/// Replaces some of the message's parts by texts.
fn replace_parts(protocol: Protocol, raw: &str, texts: &[Option<String>]) -> String {
    let Ok(message) = protocol.read_message(raw) else { return raw.to_owned() };
    let elements: Vec<&str> = part_lists(protocol, raw).into_iter().flatten().collect();
    rejoin(raw, &elements, |index, element| {
        let Some(text) = texts.get(index).and_then(Option::as_ref) else {
            return Some(Cow::Borrowed(element));
        };
        Some(Cow::Owned(text_part(protocol, message.role, &json::escaped(text))))
    })
}

/// Replaces the arguments of some of the message's calls: a string by a string, an object by an object.
/// Other arguments stay as they are.
fn replace_arguments(protocol: Protocol, raw: &str, texts: &[Option<String>]) -> String {
    let Ok(message) = protocol.read_message(raw) else { return raw.to_owned() };
    let mut own: Vec<(&str, &str)> = message
        .arguments()
        .zip(texts)
        .filter(|(arguments, _)| arguments.starts_with(['"', '{']))
        .filter_map(|(arguments, text)| Some((arguments, text.as_deref()?)))
        .collect();
    own.sort_by_key(|(arguments, _)| arguments.as_ptr() as usize);
    let mut out = String::with_capacity(raw.len());
    let mut written = 0;
    for (arguments, text) in own {
        let start = arguments.as_ptr() as usize - raw.as_ptr() as usize;
        if start < written {
            continue;
        }
        if arguments.starts_with('{') {
            out.push_str(&raw[written..start]);
            out.push_str(text);
            written = start + arguments.len();
            continue;
        }
        out.push_str(&raw[written..=start]);
        escape_into(text, &mut out);
        written = start + arguments.len() - 1;
    }
    out.push_str(&raw[written..]);
    out
}

/// Changes the message's role to that of a user.
fn speak_as_user(raw: &str) -> String {
    let Some(role) = member_of(raw, "role") else { return raw.to_owned() };
    rejoin(raw, &[role], |_, _| Some(Cow::Borrowed("\"user\"")))
}

/// Returns the JSON text of a message's content.
fn content_of(protocol: Protocol, raw: &str) -> Option<&str> {
    match protocol {
        Protocol::Chat => member_of(raw, "content"),
        Protocol::Responses => responses::content(raw),
        Protocol::Messages => messages::content(raw),
    }
}

fn member_of<'a>(raw: &'a str, name: &str) -> Option<&'a str> {
    let members = super::json::members(raw)?;
    members.into_iter().find(|(key, _)| key == name).map(|(_, member)| member)
}

/// Returns the pieces of `text` that a clip keeps, with a mark in each gap.
///
/// # Panics
/// If the clip was not made for this text: its pieces must lie on character boundaries, in order.
pub fn clipped(text: &str, clip: &Clip) -> String {
    let kept_bytes: usize = clip.kept.iter().map(Range::len).sum();
    let marks_bytes = clip.marker.len() + clip.kept.len() * GAP.len();
    let mut out = String::with_capacity(kept_bytes + marks_bytes);
    let (mut end, mut mark) = (0, clip.marker.as_str());
    let rest = text.len()..text.len();
    for piece in clip.kept.iter().chain([&rest]) {
        if piece.start > end {
            out.push_str(std::mem::replace(&mut mark, GAP));
        }
        out.push_str(&text[piece.clone()]);
        end = piece.end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spliced(body: &str, edits: &[(usize, Edit)]) -> String {
        let request = Protocol::Chat.read(body.as_bytes(), 100).expect("readable");
        apply(Protocol::Chat, &request, edits)
    }

    #[test]
    fn no_edit_no_changed_byte() {
        let body = "{ \"messages\" : [ {\"role\":\"a\"} ,\n {\"role\":\"b\"} ] , \"x\":1.50 } ";
        assert_eq!(spliced(body, &[]), body);
        assert_eq!(spliced("{}", &[]), "{}");
    }

    #[test]
    fn removed_messages_take_one_separator_along() {
        let body = r#"{"messages": [ {"role":"a"} , {"role":"b"},  {"role":"c"} ],"x":1}"#;
        for (gone, left) in [
            (&[0][..], r#"{"messages": [ {"role":"b"},  {"role":"c"} ],"x":1}"#),
            (&[1], r#"{"messages": [ {"role":"a"},  {"role":"c"} ],"x":1}"#),
            (&[2], r#"{"messages": [ {"role":"a"} , {"role":"b"} ],"x":1}"#),
            (&[0, 1], r#"{"messages": [ {"role":"c"} ],"x":1}"#),
            (&[1, 2], r#"{"messages": [ {"role":"a"} ],"x":1}"#),
            (&[0, 2], r#"{"messages": [ {"role":"b"} ],"x":1}"#),
            (&[0, 1, 2], r#"{"messages": [  ],"x":1}"#),
        ] {
            let edits: Vec<_> = gone.iter().map(|index| (*index, Edit::Remove)).collect();
            assert_eq!(spliced(body, &edits), left, "without {gone:?}");
        }
    }

    #[test]
    fn own_member_is_removed_wherever_it_stands() {
        for (message, left) in [
            (r#"{"weir":{"pin":true},"role":"user"}"#, r#"{"role":"user"}"#),
            (r#"{"role":"user", "weir" : {"pin":true} }"#, r#"{"role":"user" }"#),
            (r#"{"role":"user","weir":null, "content":"x"}"#, r#"{"role":"user","content":"x"}"#),
            (r#"{"role":"user","w\u0065ir":null}"#, r#"{"role":"user"}"#),
        ] {
            let body = format!(r#"{{"messages":[{message}]}}"#);
            let wanted = format!(r#"{{"messages":[{left}]}}"#);
            assert_eq!(spliced(&body, &[(0, Edit::Unmark)]), wanted);
        }
    }

    #[test]
    fn notes_stand_beside_what_is_said() {
        let note = || "\n\"n\"".to_owned();
        for (content, before, after) in [
            (r#""hi""#, r#""\n\"n\"hi""#, r#""hi\n\"n\"""#),
            (
                r#"[ {"type":"text","text":"a"} ]"#,
                r#"[ {"type":"text","text":"\n\"n\""},{"type":"text","text":"a"} ]"#,
                r#"[ {"type":"text","text":"a"},{"type":"text","text":"\n\"n\""} ]"#,
            ),
            ("null", "null", "null"),
            ("[]", "[]", "[]"),
        ] {
            let body = |content: &str| {
                format!(r#"{{"messages":[{{"role":"user","content":{content}}}]}}"#)
            };
            assert_eq!(spliced(&body(content), &[(0, Edit::Prepend(note()))]), body(before));
            assert_eq!(spliced(&body(content), &[(0, Edit::Append(note()))]), body(after));
        }
    }

    #[test]
    fn several_notes_read_in_order() {
        let body = |messages: &str| format!(r#"{{"messages":[{messages}]}}"#);
        let said = |text: &str| format!(r#"{{"role":"user","content":"{text}"}}"#);
        let edits = |edit: fn(String) -> Edit| [(0, edit("1".into())), (0, edit("2".into()))];
        let apart = |texts: [&str; 3]| body(&texts.map(said).join(","));
        for (edits, wanted) in [
            (edits(Edit::Prepend), body(&said("12x"))),
            (edits(Edit::Append), body(&said("x12"))),
            (edits(Edit::InsertBefore), apart(["1", "2", "x"])),
            (edits(Edit::InsertAfter), apart(["x", "1", "2"])),
        ] {
            assert_eq!(spliced(&body(&said("x")), &edits), wanted);
        }
    }

    #[test]
    fn clipped_texts_keep_head_and_tail() {
        let of = |kept: &[Range<usize>]| Clip { kept: kept.to_vec(), marker: "<\n>".into() };
        let body = r#"{"messages":[{"content":"a\n\u00e9bcdefg","role":"tool"}]}"#;
        for (kept, sent) in [
            // The creator of a clip chooses character boundaries: é has two bytes.
            (&[0..4, 8..10][..], r"a\né<\n>fg"),
            (&[0..1, 5..6, 9..10], r"a<\n>c\n…\ng"),
            (std::slice::from_ref(&(5..6)), r"<\n>c\n…\n"),
            (&[], r"<\n>"),
        ] {
            assert_eq!(
                spliced(body, &[(0, Edit::Clip(vec![TextCut::Clip(of(kept))]))]),
                format!(r#"{{"messages":[{{"content":"{sent}","role":"tool"}}]}}"#)
            );
        }
        let clip = of(&[0..3, 4..6]);
        let body = r#"{"messages":[{"content":[{"type":"text","text":"abcdef"},{"type":"text","text":"ghijkl"}],"role":"tool"}]}"#;
        assert_eq!(
            spliced(body, &[(0, Edit::Clip(vec![TextCut::Whole, TextCut::Clip(clip)]))]),
            r#"{"messages":[{"content":[{"type":"text","text":"abcdef"},{"type":"text","text":"ghi<\n>kl"}],"role":"tool"}]}"#
        );
    }

    #[test]
    fn what_gives_way_leaves_the_rest_of_the_message() {
        let tool =
            r#"{"tool_call_id":"a" , "content":[{"type":"text","text":"x"}], "role":"tool"}"#;
        let call = r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"arguments":"{\"a\":1}","name":"f"}},{"id":"b","function":{"name":"g","arguments":"{}"}}]}"#;
        let image =
            r#"{"role":"user","content":[ {"type":"image_url"} ,{"type":"text","text":"y"}]}"#;
        let some = |text: &str| Some(text.to_owned());
        for (message, edit, wanted) in [
            (
                tool,
                Edit::Replace("\"n\"".into()),
                r#"{"tool_call_id":"a" , "content":"\"n\"", "role":"tool"}"#,
            ),
            (r#"{"role":"tool"}"#, Edit::Replace("n".into()), r#"{"role":"tool"}"#),
            (
                call,
                Edit::Arguments(vec![None, some(r#"{"b":"…"}"#)]),
                r#"{"role":"assistant","tool_calls":[{"id":"a","function":{"arguments":"{\"a\":1}","name":"f"}},{"id":"b","function":{"name":"g","arguments":"{\"b\":\"…\"}"}}]}"#,
            ),
            (
                image,
                Edit::Parts(vec![some("n"), None]),
                r#"{"role":"user","content":[ {"type":"text","text":"n"} ,{"type":"text","text":"y"}]}"#,
            ),
        ] {
            let body = format!(r#"{{"messages":[{message}]}}"#);
            assert_eq!(spliced(&body, &[(0, edit)]), format!(r#"{{"messages":[{wanted}]}}"#));
        }
    }

    #[test]
    fn parts_that_go_take_one_separator_along() {
        let body = r#"{"messages":[{"role":"tool","content":[ {"type":"text","text":"a"} , {"type":"text","text":"b"},{"type":"image_url"} ]}]}"#;
        for (cuts, left) in [
            (vec![TextCut::Gone], r#"[ {"type":"text","text":"b"},{"type":"image_url"} ]"#),
            (
                vec![TextCut::Whole, TextCut::Gone],
                r#"[ {"type":"text","text":"a"},{"type":"image_url"} ]"#,
            ),
        ] {
            let wanted = format!(r#"{{"messages":[{{"role":"tool","content":{left}}}]}}"#);
            assert_eq!(spliced(body, &[(0, Edit::Clip(cuts))]), wanted);
        }
    }
}
