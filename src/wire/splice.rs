//! Edits written into the caller's own bytes. What no edit names stays as it was received.

use super::json::{escape_into, string};
use super::message::{Content, Part};
use super::{Protocol, Request};

/// A change to the messages of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// The message goes.
    Remove,
    /// weir's own member goes from the message.
    Unmark,
    /// Text is put before what the message says.
    Prepend(String),
    /// Text is put after what the message says.
    Append(String),
    /// The middle of each text of the message gives way to a marker; one entry for each of its
    /// texts, in order.
    Clip(Vec<Option<Clip>>),
}

/// What of a text is left, in bytes of the unescaped text, and what stands in the gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clip {
    pub head_bytes: usize,
    pub tail_bytes: usize,
    pub marker: String,
}

/// Writes `edits`, given as message and edit in order of message, into the request's bytes.
///
/// A removed message takes the separator before it along, or the one after it where it was the
/// first, so that what is left of the array keeps the caller's bytes.
pub fn apply(protocol: Protocol, request: &Request<'_>, edits: &[(usize, Edit)]) -> String {
    let mut out = String::with_capacity(request.text.len() + 1024);
    let base = request.text.as_ptr() as usize;
    let start_of = |message: &str| message.as_ptr() as usize - base;
    let mut written = 0; // Bytes of the received text that are dealt with.
    let mut kept_any = false;
    let mut edits = edits.iter().peekable();
    for (index, raw) in request.messages.iter().enumerate() {
        let start = start_of(raw);
        let mut own = Vec::new();
        while let Some((_, edit)) = edits.next_if(|(message, _)| *message == index) {
            own.push(edit);
        }
        if own.contains(&&Edit::Remove) {
            if index == 0 {
                out.push_str(&request.text[written..start]);
            }
            written = start + raw.len();
            continue;
        }
        if kept_any || index == 0 {
            out.push_str(&request.text[written..start]);
        }
        kept_any = true;
        if own.is_empty() {
            out.push_str(raw);
        } else {
            out.push_str(&rewrite(protocol, raw, &own));
        }
        written = start + raw.len();
    }
    out.push_str(&request.text[written..]);
    out
}

/// One message with its edits.
fn rewrite(protocol: Protocol, raw: &str, edits: &[&Edit]) -> String {
    let mut text = raw.to_owned();
    for edit in edits {
        text = match edit {
            Edit::Remove => String::new(),
            Edit::Unmark => unmark(protocol, &text),
            Edit::Prepend(note) => add(protocol, &text, note, Side::Before),
            Edit::Append(note) => add(protocol, &text, note, Side::After),
            Edit::Clip(clips) => clip(protocol, &text, clips),
        };
    }
    text
}

/// The message without its member `weir`.
fn unmark(protocol: Protocol, raw: &str) -> String {
    let Some(value) = protocol.read_message(raw).ok().and_then(|message| message.weir) else {
        return raw.to_owned();
    };
    let start = value.as_ptr() as usize - raw.as_ptr() as usize;
    let mut end = start + value.len();
    let before_colon = raw[..start].trim_end().trim_end_matches(':').trim_end();
    let inside_key = before_colon.len().saturating_sub(1);
    let mut from = raw[..inside_key].rfind('"').unwrap_or(inside_key);
    let after = raw[end..].trim_start();
    if let Some(rest) = after.strip_prefix(',') {
        end = raw.len() - rest.trim_start().len();
    } else {
        let before = raw[..from].trim_end();
        from = before.strip_suffix(',').unwrap_or(before).len();
    }
    format!("{}{}", &raw[..from], &raw[end..])
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Before,
    After,
}

/// The message with `note` before or after what it says. A message without content, or with
/// content that is neither a string nor a list, stays as it is.
fn add(protocol: Protocol, raw: &str, note: &str, side: Side) -> String {
    let Ok(message) = protocol.read_message(raw) else {
        return raw.to_owned();
    };
    let mut escaped = String::new();
    escape_into(note, &mut escaped);
    let offset = |part: &str| part.as_ptr() as usize - raw.as_ptr() as usize;
    let (at, inserted) = match &message.content {
        Content::None => return raw.to_owned(),
        Content::Text(text) => match side {
            Side::Before => (offset(text) + 1, escaped),
            Side::After => (offset(text) + text.len() - 1, escaped),
        },
        Content::Parts(parts) => {
            let part = format!(r#"{{"type":"text","text":"{escaped}"}}"#);
            let Some(span) = parts_span(raw, parts) else {
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

/// Where the first part begins and the last one ends; `None` where there are no parts whose place
/// is known.
fn parts_span(raw: &str, parts: &[Part<'_>]) -> Option<(usize, usize)> {
    let members = super::json::members(raw)?;
    let (_, content) = members.into_iter().find(|(key, _)| key == "content")?;
    let elements = super::json::elements(content)?;
    let (first, last) = (elements.first()?, elements.last()?);
    debug_assert_eq!(elements.len(), parts.len());
    let offset = |part: &str| part.as_ptr() as usize - raw.as_ptr() as usize;
    Some((offset(first), offset(last) + last.len()))
}

/// The message with the middle of its texts replaced.
fn clip(protocol: Protocol, raw: &str, clips: &[Option<Clip>]) -> String {
    let Ok(message) = protocol.read_message(raw) else {
        return raw.to_owned();
    };
    let mut out = String::with_capacity(raw.len());
    let mut written = 0;
    for (text, clip) in message.texts().into_iter().zip(clips) {
        let (Some(clip), Some(whole)) = (clip, string(text)) else {
            continue;
        };
        let start = text.as_ptr() as usize - raw.as_ptr() as usize;
        out.push_str(&raw[written..start + 1]);
        escape_into(&clipped(&whole, clip), &mut out);
        written = start + text.len() - 1;
    }
    out.push_str(&raw[written..]);
    out
}

/// `text` with its middle replaced by the clip's marker.
///
/// # Panics
/// Where the clip was not made for this text: head and tail must lie on character borders and
/// not overlap.
pub fn clipped(text: &str, clip: &Clip) -> String {
    assert!(clip.head_bytes + clip.tail_bytes <= text.len(), "a clip is made for its own text");
    let tail = &text[text.len() - clip.tail_bytes..];
    format!("{}{}{}", &text[..clip.head_bytes], clip.marker, tail)
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
            (r#"{"role":"user","weir":1, "content":"x"}"#, r#"{"role":"user","content":"x"}"#),
            (r#"{"role":"user","w\u0065ir":1}"#, r#"{"role":"user"}"#),
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
    fn clipped_texts_keep_head_and_tail() {
        let clip = Clip { head_bytes: 3, tail_bytes: 2, marker: "<\n>".into() };
        let body = r#"{"messages":[{"content":"a\n\u00e9bcdefg","role":"tool"}]}"#;
        // Head "a\n" plus one byte would split é: the caller of a clip gives character borders.
        let clip4 = Clip { head_bytes: 4, ..clip.clone() };
        assert_eq!(
            spliced(body, &[(0, Edit::Clip(vec![Some(clip4)]))]),
            r#"{"messages":[{"content":"a\né<\n>fg","role":"tool"}]}"#
        );
        let body = r#"{"messages":[{"content":[{"type":"text","text":"abcdef"},{"type":"text","text":"ghijkl"}],"role":"tool"}]}"#;
        assert_eq!(
            spliced(body, &[(0, Edit::Clip(vec![None, Some(clip)]))]),
            r#"{"messages":[{"content":[{"type":"text","text":"abcdef"},{"type":"text","text":"ghi<\n>kl"}],"role":"tool"}]}"#
        );
    }
}
