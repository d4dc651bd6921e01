//! List of messages of Anthropic's Messages, put together again from messages that stay: blocks return
//! to the object that held them, and objects that become neighbours and have one role become one, since
//! users and assistants alternate.

use std::borrow::Cow;
use std::ops::Range;

use super::messages::{USER_HEAD, blocks, content, text_block, user_message};
use super::request::Container;
use super::splice::rewrite;
use super::{Edit, Protocol, Request, json};

/// Treatment of one message.
pub(super) struct Treated<'a> {
    /// Texts of user messages before it.
    pub(super) before: Vec<&'a str>,
    /// Its JSON text; `None` if it is removed.
    pub(super) kept: Option<Cow<'a, str>>,
    /// Texts of user messages after it.
    pub(super) after: Vec<&'a str>,
}

/// Object to send.
struct Sent<'a> {
    role: Cow<'a, str>,
    raw: Cow<'a, str>,
    /// Place of its content in `raw`, if that is known without reading it.
    content: Option<Range<usize>>,
    /// Position of the received object that it ends with; `None` for one of weir's own.
    origin: Option<usize>,
}

impl Sent<'_> {
    /// Returns the place of its content.
    fn content(&self) -> Option<Range<usize>> {
        self.content.clone().or_else(|| {
            let own = content(&self.raw)?;
            let start = own.as_ptr() as usize - self.raw.as_ptr() as usize;
            Some(start..start + own.len())
        })
    }
}

/// Returns the body of `request` with each message treated.
pub(super) fn join<'a>(
    request: &Request<'a>,
    mut treat: impl FnMut(usize) -> Treated<'a>,
) -> String {
    let own = |text: &str| {
        let raw = user_message(text);
        let content = Some(USER_HEAD.len()..raw.len() - 1);
        Sent { role: Cow::Borrowed("user"), raw: Cow::Owned(raw), content, origin: None }
    };
    let mut sent = Vec::with_capacity(request.containers.len() + 1);
    // What stands outside the list stays as it is.
    for message in 0..request.outside {
        sent.extend(treat(message).after.into_iter().map(own));
    }
    for (place, container) in request.containers.iter().enumerate() {
        let role = || json::string(container.role).unwrap_or_default();
        let of = |raw| Sent { role: role(), raw, content: None, origin: Some(place) };
        let treated: Vec<Treated<'a>> = container.messages.clone().map(&mut treat).collect();
        if container.is_split {
            sent.extend(rebuilt(container, treated).map(of));
            continue;
        }
        for Treated { before, kept, after } in treated {
            sent.extend(before.into_iter().map(own));
            sent.extend(kept.map(of));
            sent.extend(after.into_iter().map(own));
        }
    }
    let (Some(first), Some(last)) = (request.containers.first(), request.containers.last()) else {
        return request.text.to_owned();
    };
    let offset = |raw: &str| raw.as_ptr() as usize - request.text.as_ptr() as usize;
    let mut out = String::with_capacity(request.text.len() + 1024);
    out.push_str(&request.text[..offset(first.raw)]);
    let mut before: Option<usize> = None;
    let sent = with_placed_systems(sent, request.containers.len());
    for (place, object) in merged(sent).into_iter().enumerate() {
        let starts = object.starts;
        let separator = match (before, starts) {
            // The caller's own separator, with its blanks.
            (Some(left), Some(right)) if right == left + 1 => {
                let left = request.containers[left].raw;
                &request.text[offset(left) + left.len()..offset(request.containers[right].raw)]
            }
            _ if place > 0 => ",",
            _ => "",
        };
        out.push_str(separator);
        out.push_str(&object.sent.raw);
        before = object.sent.origin;
    }
    out.push_str(&request.text[offset(last.raw) + last.raw.len()..]);
    out
}

/// Returns an object whose content is split, with its messages treated; `None` if nothing of it stays.
fn rebuilt<'a>(container: &Container<'a>, treated: Vec<Treated<'a>>) -> Option<Cow<'a, str>> {
    let is_added = |treated: &Treated<'_>| !treated.before.is_empty() || !treated.after.is_empty();
    if !treated.iter().any(is_added) {
        if treated.iter().all(|own| matches!(own.kept, Some(Cow::Borrowed(_)))) {
            return Some(Cow::Borrowed(container.raw));
        }
        if treated.iter().all(|own| own.kept.is_none()) {
            return None;
        }
    }
    let own = blocks(container.raw)?;
    let (first, last) = (own.first()?, own.last()?);
    // Results stand first: the API refuses texts between a call and its result.
    let mut added = Vec::new();
    let mut kept = Vec::new();
    for Treated { before, kept: own, after } in treated {
        added.extend(before.into_iter().chain(after).map(text_of));
        kept.extend(own);
    }
    let blocks: Vec<Cow<'a, str>> =
        kept.into_iter().chain(added.into_iter().map(Cow::Owned)).collect();
    if blocks.is_empty() {
        return None;
    }
    let raw = container.raw;
    let offset = |part: &str| part.as_ptr() as usize - raw.as_ptr() as usize;
    let (head, tail) = (&raw[..offset(first)], &raw[offset(last) + last.len()..]);
    Some(Cow::Owned(format!("{head}{}{tail}", blocks.join(","))))
}

/// Returns a block with this text.
fn text_of(text: &str) -> String {
    text_block(&json::escaped(text))
}

/// Moves system messages whose neighbours changed to places that the API accepts: after a user's message,
/// and before an assistant's or at the end. Source: Anthropic's guide to system messages inside a
/// conversation.
fn with_placed_systems(objects: Vec<Sent<'_>>, received: usize) -> Vec<Sent<'_>> {
    let mut out: Vec<Sent<'_>> = Vec::with_capacity(objects.len());
    // System messages that wait for the end of the users' messages that follow them.
    let mut waiting: Vec<Sent<'_>> = Vec::new();
    let mut objects = objects.into_iter().peekable();
    while let Some(object) = objects.next() {
        if object.role != "system" {
            if object.role != "user" {
                out.append(&mut waiting);
            }
            out.push(object);
            continue;
        }
        let mut run = vec![object];
        run.extend(std::iter::from_fn(|| objects.next_if(|next| next.role == "system")));
        let before = out.last().filter(|_| waiting.is_empty()).and_then(|last| last.origin);
        let after = objects.peek();
        let (first, last) = (run[0].origin, run[run.len() - 1].origin);
        let is_as_received = match (first, last) {
            (Some(first), Some(last)) => {
                let end = if last + 1 == received { None } else { Some(last + 1) };
                before == first.checked_sub(1)
                    && end == after.and_then(|after| after.origin)
                    && (end.is_some() || after.is_none())
            }
            _ => false,
        };
        let follows_user = out.last().is_some_and(|last| last.role == "user");
        match after {
            _ if is_as_received => out.append(&mut run),
            Some(after) if after.role == "user" => waiting.append(&mut run),
            _ if follows_user => {
                out.append(&mut waiting);
                out.append(&mut run);
            }
            _ => out.extend(run.into_iter().map(as_user)),
        }
    }
    out.append(&mut waiting);
    out
}

/// Returns a system message as a user's.
fn as_user(object: Sent<'_>) -> Sent<'_> {
    let raw = rewrite(Protocol::Messages, &object.raw, &[&Edit::SpeakAsUser]);
    Sent { role: Cow::Borrowed("user"), raw: Cow::Owned(raw), content: None, origin: None }
}

/// Object to send, and the position of the received object that it starts with.
struct Merged<'a> {
    sent: Sent<'a>,
    starts: Option<usize>,
}

/// Joins neighbours of one role that the caller did not send as neighbours.
fn merged(objects: Vec<Sent<'_>>) -> Vec<Merged<'_>> {
    let mut out: Vec<Merged<'_>> = Vec::with_capacity(objects.len());
    for object in objects {
        if let Some(last) = out.last_mut() {
            let were_neighbours = matches!(
                (last.sent.origin, object.origin),
                (Some(left), Some(right)) if right == left + 1
            );
            if !were_neighbours
                && last.sent.role == object.role
                && let Some((both, content)) = with_blocks_of(&last.sent, &object)
            {
                last.sent.raw = Cow::Owned(both);
                last.sent.content = Some(content);
                last.sent.origin = object.origin;
                continue;
            }
        }
        out.push(Merged { starts: object.origin, sent: object });
    }
    out
}

/// Returns the object `left` with the blocks of `right` after its own, and the place of its content.
fn with_blocks_of(left: &Sent<'_>, right: &Sent<'_>) -> Option<(String, Range<usize>)> {
    let (raw, place) = (left.raw.as_ref(), left.content()?);
    let (own, other) =
        (Blocks::of(&raw[place.clone()])?, Blocks::of(&right.raw[right.content()?])?);
    let mut both = String::with_capacity(raw.len() + right.raw.len() + 64);
    both.push_str(&raw[..place.start]);
    both.push('[');
    own.write(&mut both);
    if !own.is_empty() && !other.is_empty() {
        both.push(',');
    }
    other.write(&mut both);
    both.push(']');
    let content = place.start..both.len();
    both.push_str(&raw[place.end..]);
    Some((both, content))
}

/// Content of an object.
enum Blocks<'a> {
    /// JSON text of one text.
    Text(&'a str),
    /// Blocks as they stand in their list.
    List(&'a str),
}

impl<'a> Blocks<'a> {
    fn of(content: &'a str) -> Option<Self> {
        match content.starts_with('"') {
            true => Some(Self::Text(content)),
            false => {
                let list = content.strip_prefix('[')?.strip_suffix(']')?;
                Some(Self::List(list.trim()))
            }
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::List(""))
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::List(list) => out.push_str(list),
            Self::Text(text) => {
                out.push_str(r#"{"type":"text","text":"#);
                out.push_str(text);
                out.push('}');
            }
        }
    }
}
