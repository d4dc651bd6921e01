//! Reading of bodies and objects, shared by the protocols: one validating pass over the members,
//! with borrowed spans.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::beginning::Begun;
use super::request::LABELS;
use super::walk::Walk;
use super::{BodyError, FieldError, json};

/// Members that list fallback models.
pub const FALLBACKS: [&str; 4] =
    ["models", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks"];

/// Members of a body. Each known one may be given once.
pub(super) struct Members<'a, const N: usize> {
    /// JSON text of each known member's value, except the list of messages.
    pub(super) values: [Option<&'a str>; N],
    /// Text of each known member from its name to the end of its value.
    pub(super) spans: [Option<&'a str>; N],
    /// JSON text of each label's value.
    pub(super) labels: [Option<&'a str>; LABELS.len()],
    /// Members before the list of messages from their names to their ends: those of `spans`, then the
    /// labels.
    pub(super) leading: Vec<Option<&'a str>>,
}

impl<'a, const N: usize> Members<'a, N> {
    /// Reads the members of `text` after those in `begun`. Of the member `list`, if it is an array,
    /// each element is passed to `element`, which must skip it; it returns `None` if the text is no
    /// JSON.
    pub(super) fn read(
        text: &'a str,
        begun: &Begun<'a>,
        names: &[&'static str; N],
        list: &str,
        element: impl FnMut(&mut Walk<'a>) -> Option<Result<(), BodyError>>,
    ) -> Result<Self, BodyError> {
        let labels = [None; LABELS.len()];
        let members = Self { values: [None; N], spans: [None; N], labels, leading: Vec::new() };
        let mut reader =
            Reader { text, names, list, members, labels, has_list: false, refusal: None, element };
        let mut walk = Walk::at(text, begun.position);
        let read = match begun.position {
            0 => walk.members(|raw, walk| reader.member(raw, walk)),
            _ => reader.read_on(&mut walk, begun),
        };
        let read = read.and_then(|()| walk.end());
        match (reader.refusal, read) {
            (Some(refusal), _) => Err(refusal),
            (None, Some(())) => Ok(reader.members),
            (None, None) => Err(BodyError::NotJson { detail: detail(text) }),
        }
    }
}

/// Reader of a body's members.
struct Reader<'a, 'n, const N: usize, E> {
    text: &'a str,
    names: &'n [&'static str; N],
    /// Name of the list of messages.
    list: &'n str,
    members: Members<'a, N>,
    /// Labels from their names to their ends.
    labels: [Option<&'a str>; LABELS.len()],
    has_list: bool,
    refusal: Option<BodyError>,
    element: E,
}

impl<'a, const N: usize, E> Reader<'a, '_, N, E>
where
    E: FnMut(&mut Walk<'a>) -> Option<Result<(), BodyError>>,
{
    /// Continues after a message, with the members that precede the messages.
    fn read_on(&mut self, walk: &mut Walk<'a>, begun: &Begun<'a>) -> Option<()> {
        self.has_list = true;
        let own = &mut self.members;
        own.leading = begun.leading.clone();
        let (known, labels) = begun.leading.split_at(N.min(begun.leading.len()));
        for (place, span) in known.iter().enumerate() {
            (own.spans[place], own.values[place]) = (*span, span.map(member_value));
        }
        for (place, span) in labels.iter().enumerate().take(LABELS.len()) {
            (self.labels[place], own.labels[place]) = (*span, span.map(member_value));
        }
        walk.more_elements(|walk| self.element(walk))?;
        walk.more_members(|raw, walk| self.member(raw, walk))
    }

    fn member(&mut self, raw: &'a str, walk: &mut Walk<'a>) -> Option<()> {
        let name = json::name(raw)?;
        let Some(place) = self.names.iter().position(|known| *known == name) else {
            let known = json::known_in_other_case(&name, self.names);
            if let Some(known) = known.or(json::known_in_other_case(&name, &FALLBACKS)) {
                return self.refuse(BodyError::OtherCase { key: name.into_owned(), known });
            }
            let value = walk.value()?;
            if let Some(place) = LABELS.iter().position(|label| *label == name)
                && self.labels[place].is_none()
            {
                self.members.labels[place] = Some(value);
                self.labels[place] = self.span(raw, walk);
            }
            return Some(());
        };
        let is_list = name == self.list;
        if self.members.values[place].is_some() || (is_list && self.has_list) {
            return self.refuse(BodyError::DuplicateKey { key: name.into_owned() });
        }
        if is_list && walk.peek()? == b'[' {
            self.has_list = true;
            self.members.leading = self.members.spans.iter().chain(&self.labels).copied().collect();
            return walk.elements(|walk| self.element(walk));
        }
        self.members.values[place] = Some(walk.value()?);
        self.members.spans[place] = self.span(raw, walk);
        Some(())
    }

    /// Returns the text of the member that was just read, from its name to its end.
    fn span(&self, raw: &'a str, walk: &Walk<'a>) -> Option<&'a str> {
        let from = raw.as_ptr() as usize - self.text.as_ptr() as usize;
        self.text.get(from..walk.position())
    }

    fn element(&mut self, walk: &mut Walk<'a>) -> Option<()> {
        match (self.element)(walk)? {
            Ok(()) => Some(()),
            Err(refusal) => self.refuse(refusal),
        }
    }

    fn refuse(&mut self, refusal: BodyError) -> Option<()> {
        self.refusal = Some(refusal);
        None
    }
}

/// Returns the value of a member, given its text from the name to the end.
pub(super) fn member_value(raw: &str) -> &str {
    let mut walk = Walk::new(raw);
    let named = walk.value().and_then(|_| walk.peek());
    let value = named.and_then(|_| raw.get(walk.position() + 1..)).unwrap_or_default();
    value.trim_ascii_start()
}

/// Returns the body as text.
pub(super) fn from_utf8(body: &[u8]) -> Result<&str, BodyError> {
    simdutf8::basic::from_utf8(body).map_err(|_| {
        // Validated again, since the fast path does not return the position.
        let valid_up_to_bytes = match std::str::from_utf8(body) {
            Err(error) => error.valid_up_to(),
            Ok(_) => body.len(),
        };
        BodyError::NotUtf8 { valid_up_to_bytes }
    })
}

/// Describes the error in a text that is not a JSON object, without quoting from it.
pub(super) fn detail(text: &str) -> String {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = (&mut deserializer).deserialize_map(AnyObject).and_then(|()| deserializer.end());
    match read {
        Err(error) if error.is_data() => {
            let kind = match text.trim_start().as_bytes().first() {
                Some(b'[') => "an array",
                Some(b'"') => "a string",
                Some(b't' | b'f') => "true or false",
                Some(b'n') => "null",
                _ => "a number",
            };
            format!("it is {kind}")
        }
        Err(error) => error.to_string(),
        Ok(()) => "it is not a JSON object".to_owned(),
    }
}

/// Object whose contents are ignored.
struct AnyObject;

impl<'de> Visitor<'de> for AnyObject {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

pub(super) fn wrong(key: &str, expected: &'static str) -> BodyError {
    BodyError::WrongType { key: key.to_owned(), expected }
}

/// Parses the name of a model, if one is given.
pub(super) fn model(raw: Option<&str>) -> Result<Option<Cow<'_, str>>, BodyError> {
    match raw {
        None | Some("null") => Ok(None),
        Some(raw) => json::string(raw).map(Some).ok_or_else(|| wrong("model", "a string")),
    }
}

/// Returns the values of the members `names` of the object `raw`.
///
/// # Errors
///
/// If `raw` is not an object, or gives one of them twice.
pub(super) fn fields<'a, const N: usize>(
    raw: &'a str,
    names: &[&'static str; N],
    expected: &'static str,
) -> Result<[Option<&'a str>; N], FieldError> {
    let found = next_fields(&mut Walk::new(raw), names, expected);
    found.unwrap_or(Err(FieldError::WrongType { key: "", expected }))
}

/// Does the same for the next value of a walk, which it skips; `None` if that is no JSON.
pub(super) fn next_fields<'a, const N: usize>(
    walk: &mut Walk<'a>,
    names: &[&'static str; N],
    expected: &'static str,
) -> Option<Result<[Option<&'a str>; N], FieldError>> {
    let wrong = FieldError::WrongType { key: "", expected };
    if walk.peek()? != b'{' {
        walk.value()?;
        return Some(Err(wrong));
    }
    let (mut found, mut is_text, mut twice) = ([None; N], true, None);
    walk.members(|own, walk| {
        let value = walk.value()?;
        let name = json::name(own);
        is_text &= name.is_some();
        let place = names.iter().position(|member| name.as_deref() == Some(*member));
        if let Some(place) = place
            && found[place].replace(value).is_some()
        {
            twice = twice.or(Some(names[place]));
        }
        Some(())
    })?;
    Some(match (is_text, twice) {
        (false, _) => Err(wrong),
        (true, Some(key)) => Err(FieldError::DuplicateKey { key }),
        (true, None) => Ok(found),
    })
}

/// Checks weir's own member of a message.
///
/// # Errors
///
/// If it is neither an empty object nor one whose `pin` is true or false, nor the mark of a note.
pub(super) fn pin(raw: Option<&str>) -> Result<Option<&str>, FieldError> {
    let wrong =
        FieldError::WrongType { key: "weir", expected: r#"{"pin": true} or {"pin": false}"# };
    let Some(value) = raw.filter(|raw| *raw != "null") else { return Ok(raw) };
    let members = json::unique_members(value).ok_or(wrong.clone())?;
    let mut pins = members.iter().filter(|(key, _)| key == "pin").map(|(_, value)| *value);
    let is_mark = pins.next().map_or(members.is_empty(), |pin| matches!(pin, "true" | "false"));
    let is_note = matches!(&members[..], [(key, "true")] if key == "note");
    match is_mark || is_note {
        true => Ok(raw),
        false => Err(wrong),
    }
}

/// Unescapes the string `raw`, the value of the member `key`.
pub(super) fn expect_string<'a>(
    raw: &'a str,
    key: &'static str,
) -> Result<Cow<'a, str>, FieldError> {
    json::string(raw).ok_or(FieldError::WrongType { key, expected: "a string" })
}
