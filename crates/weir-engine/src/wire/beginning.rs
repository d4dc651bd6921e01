//! First bytes of a body that is read: where its members and messages stand. A body that starts with the
//! same bytes is read from there on.

use std::ops::Range;

use super::Request;
use super::request::Container;

/// Number of objects at the end of a list of Messages; before each, a shorter beginning ends. Clients move
/// marks of the provider's cache along with the end of a conversation, so its last objects change once
/// more. The provider takes at most four marks.
const MARKED_OBJECTS: usize = 4;

/// Positions of members and messages in a body, up to the end of a message that the bytes after it cannot
/// change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beginning {
    /// Members before the list of messages, in the protocol's own order, from name to end.
    leading: Vec<Option<Range<usize>>>,
    /// Messages of the list.
    messages: Vec<Range<usize>>,
    /// Objects of the list, if one may hold several messages.
    objects: Vec<Object>,
    /// Ends of this beginning and of shorter ones, in bytes, ascending.
    ends: Vec<usize>,
}

/// Object in the list of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Object {
    span: Range<usize>,
    role: Range<usize>,
    /// Its messages among those of the list.
    messages: Range<usize>,
    is_split: bool,
}

impl Beginning {
    /// Returns the beginning of a request's body; `None` if no message of its list is complete.
    pub fn of(request: &Request<'_>) -> Option<Self> {
        // The provider's part of a conversation is named anywhere in the body.
        if request.provider_state.is_some() {
            return None;
        }
        let range = |raw: &str| {
            let start = raw.as_ptr() as usize - request.text.as_ptr() as usize;
            start..start + raw.len()
        };
        let mut listed = request.listed();
        if request.is_open {
            listed = listed.split_last()?.1;
        }
        // A number may continue in another body.
        let last = listed.last().filter(|raw| raw.ends_with('}'))?;
        let objects: Vec<Object> = request
            .containers
            .iter()
            .map(|own| Object {
                span: range(own.raw),
                role: if own.role.is_empty() { 0..0 } else { range(own.role) },
                messages: own.messages.start - request.outside..own.messages.end - request.outside,
                is_split: own.is_split,
            })
            .collect();
        let marked = objects.len().saturating_sub(MARKED_OBJECTS + 1);
        let ends = match objects.is_empty() {
            true => vec![range(last).end],
            false => objects[marked..].iter().map(|own| own.span.end).collect(),
        };
        let messages: Vec<_> = listed.iter().map(|raw| range(raw)).collect();
        Some(Self {
            leading: request.leading.iter().map(|raw| raw.map(range)).collect(),
            messages,
            objects,
            ends,
        })
    }

    /// Returns the ends of this beginning and of shorter ones, in bytes, ascending.
    pub fn ends(&self) -> &[usize] {
        &self.ends
    }

    /// Returns the beginning up to `end`, one of [`Self::ends`].
    pub fn up_to(&self, end: usize) -> Prefix<'_> {
        Prefix { beginning: self, end }
    }

    /// Returns the whole beginning.
    pub fn whole(&self) -> Prefix<'_> {
        self.up_to(self.ends.last().copied().unwrap_or_default())
    }

    /// Returns the memory that its lists take.
    pub fn memory_bytes(&self) -> usize {
        self.leading.len() * size_of::<Option<Range<usize>>>()
            + self.messages.len() * size_of::<Range<usize>>()
            + self.objects.len() * size_of::<Object>()
            + self.ends.len() * size_of::<usize>()
    }
}

/// Beginning up to one of its ends.
#[derive(Debug, Clone, Copy)]
pub struct Prefix<'b> {
    beginning: &'b Beginning,
    end: usize,
}

impl Prefix<'_> {
    /// Returns its end, in bytes.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Returns the number of messages of the list in it.
    pub fn messages(&self) -> usize {
        self.beginning.messages.partition_point(|own| own.end <= self.end)
    }

    /// Returns the state of a reader at its end; `None` if `text` is shorter.
    pub(super) fn begun<'a>(&self, text: &'a str) -> Option<Begun<'a>> {
        let own = self.beginning;
        let part = |range: &Range<usize>| text.get(range.clone());
        let leading = own.leading.iter().map(|range| match range {
            Some(range) => part(range).map(Some),
            None => Some(None),
        });
        let messages = own.messages[..self.messages()].iter().map(part);
        let objects = own.objects.iter().take_while(|object| object.span.end <= self.end);
        let containers = objects.map(|object| {
            Some(Container {
                raw: part(&object.span)?,
                role: part(&object.role)?,
                messages: object.messages.clone(),
                is_split: object.is_split,
            })
        });
        Some(Begun {
            position: self.end,
            leading: leading.collect::<Option<_>>()?,
            messages: messages.collect::<Option<_>>()?,
            containers: containers.collect::<Option<_>>()?,
        })
    }
}

/// State of a reader between two messages, or before the first byte.
#[derive(Default)]
pub(super) struct Begun<'a> {
    /// Position in the text; 0 before the first byte.
    pub(super) position: usize,
    /// Members before the list of messages, in the protocol's own order, from name to end.
    pub(super) leading: Vec<Option<&'a str>>,
    /// Messages of the list.
    pub(super) messages: Vec<&'a str>,
    /// Objects of the list, if one may hold several; their messages are counted within the list.
    pub(super) containers: Vec<Container<'a>>,
}
