//! Small edits of JSON texts: members of an object set and removed, elements of a list added and
//! removed. All that no edit names keeps its bytes.

use std::borrow::Cow;

use super::super::json;
use super::super::json::{quoted, rejoin, without_member};

/// Members of an object, as JSON texts.
pub(super) struct Object<'a>(Vec<(Cow<'a, str>, &'a str)>);

impl<'a> Object<'a> {
    /// Reads `raw`; `None` if it is not an object.
    pub(super) fn read(raw: &'a str) -> Option<Self> {
        let raw = raw.trim_ascii_start();
        raw.starts_with('{').then(|| json::members(raw)).flatten().map(Self)
    }

    /// Returns the member `name`, unless it is missing or null.
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.get_any(name).filter(|raw| *raw != "null")
    }

    /// Returns the member `name`, unless it is missing.
    pub(super) fn get_any(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, raw)| *raw)
    }

    /// Returns the text of the member `name`.
    pub(super) fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        self.get(name).and_then(json::string)
    }

    /// Returns the integer of the member `name`.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.get(name).and_then(|raw| raw.parse().ok())
    }

    /// Returns the elements of the list `name`; none if it is missing or no list.
    pub(super) fn list(&self, name: &str) -> Vec<&'a str> {
        self.get(name).and_then(json::elements).unwrap_or_default()
    }

    /// Returns the members, those that are null too.
    pub(super) fn members(&self) -> &[(Cow<'a, str>, &'a str)] {
        &self.0
    }
}

/// Returns the text of the member `name` of the object `raw`.
pub(super) fn member_text<'a>(raw: &'a str, name: &str) -> Option<Cow<'a, str>> {
    Object::read(raw)?.text(name)
}

/// Returns the inside of a JSON string, escapes included; `None` if `raw` is none.
pub(super) fn inner(raw: &str) -> Option<&str> {
    raw.strip_prefix('"')?.strip_suffix('"')
}

/// Returns the object `raw` with the member `name` set to `value`.
pub(super) fn with(raw: &str, name: &str, value: &str) -> String {
    let Some(members) = json::members(raw) else { return raw.to_owned() };
    if let Some((_, old)) = members.iter().find(|(own, _)| own == name) {
        return rejoin(raw, &[old], |_, _| Some(Cow::Borrowed(value)));
    }
    // An object ends with its brace: `members` accepts nothing behind it but white space.
    let end = raw.rfind('}').unwrap_or(raw.len());
    let comma = if members.is_empty() { "" } else { "," };
    format!("{}{comma}{}:{value}{}", &raw[..end], quoted(name), &raw[end..])
}

/// Returns the object `raw` without the member `name`.
pub(super) fn without(raw: &str, name: &str) -> String {
    let Some(members) = json::members(raw) else { return raw.to_owned() };
    let mut own = members.iter().filter(|(own, _)| own == name);
    match (own.next(), own.next()) {
        (None, _) => raw.to_owned(),
        (Some((_, value)), None) => without_member(raw, value),
        // Given twice: written once more from the others, in one pass however often it is given.
        (Some(_), Some(_)) => {
            let others = members.iter().filter(|(own, _)| own != name);
            let others = others.map(|(own, value)| format!("{}:{value}", quoted(own)));
            format!("{{{}}}", others.collect::<Vec<_>>().join(","))
        }
    }
}

/// Returns the list `raw` with each element treated; `None` removes it.
pub(super) fn edited<'a>(
    raw: &'a str,
    treat: impl FnMut(usize, &'a str) -> Option<Cow<'a, str>>,
) -> String {
    match json::elements(raw) {
        Some(elements) => rejoin(raw, &elements, treat),
        None => raw.to_owned(),
    }
}

/// Returns the list `raw` with `run`, elements joined by commas, at its end.
pub(super) fn appended(raw: &str, run: &str) -> Option<String> {
    let is_empty = json::elements(raw)?.is_empty();
    if run.is_empty() {
        return Some(raw.to_owned());
    }
    let end = raw.rfind(']')?;
    let comma = if is_empty { "" } else { "," };
    Some(format!("{}{comma}{run}{}", raw[..end].trim_ascii_end(), &raw[end..]))
}

/// Returns the list `raw` with `run`, elements joined by commas, in front.
pub(super) fn prepended(raw: &str, run: &str) -> Option<String> {
    let is_empty = json::elements(raw)?.is_empty();
    if run.is_empty() {
        return Some(raw.to_owned());
    }
    let start = raw.find('[')? + 1;
    let comma = if is_empty { "" } else { "," };
    Some(format!("{}{run}{comma}{}", &raw[..start], &raw[start..]))
}

/// Whether a JSON text is null, or an empty text, list or object.
pub(super) fn is_empty(raw: &str) -> bool {
    let is_hollow = |open, close| {
        let inside = raw.strip_prefix(open).and_then(|rest: &str| rest.strip_suffix(close));
        inside.is_some_and(|inside| inside.trim_ascii().is_empty())
    };
    matches!(raw, "null" | "\"\"") || is_hollow('[', ']') || is_hollow('{', '}')
}

/// Whether a JSON text is an object.
pub(super) fn is_object(text: &str) -> bool {
    Object::read(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_set_and_removed_in_place() {
        for (raw, name, wanted) in [
            ("{}", "a", r#"{"a":7}"#),
            (r#"{"b":1 } "#, "a", r#"{"b":1 ,"a":7} "#),
            (r#"{ "a" : [1] , "b":1}"#, "a", r#"{ "a" : 7 , "b":1}"#),
            ("[1]", "a", "[1]"),
        ] {
            assert_eq!(with(raw, name, "7"), wanted);
        }
        for (raw, wanted) in [
            (r#"{"a":1}"#, "{}"),
            (r#"{"a":1, "b":2}"#, r#"{"b":2}"#),
            (r#"{"b":2 , "a":"x"}"#, r#"{"b":2 }"#),
            (r#"{"a":1,"b":2,"a":{"a":3}}"#, r#"{"b":2}"#),
            (r#"{"a":1,"a":2}"#, "{}"),
            (r#"{"b":2}"#, r#"{"b":2}"#),
            ("3", "3"),
        ] {
            assert_eq!(without(raw, "a"), wanted, "{raw}");
        }
    }

    #[test]
    fn lists_grow_at_both_ends() {
        assert_eq!(appended("[ 1 ]", "2,3").as_deref(), Some("[ 1,2,3]"));
        assert_eq!(appended("[ ]", "2").as_deref(), Some("[2]"));
        assert_eq!(appended("[1 ]", "").as_deref(), Some("[1 ]"));
        assert_eq!(prepended("[ 1 ]", "2,3").as_deref(), Some("[2,3, 1 ]"));
        assert_eq!(prepended("[]", "2").as_deref(), Some("[2]"));
        assert_eq!(appended("{}", "2"), None);
        assert_eq!(prepended("3", "2"), None);
    }
}
