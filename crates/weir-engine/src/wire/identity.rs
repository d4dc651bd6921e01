//! Form of a message of Messages that identifies it in later requests: without the marks of the
//! provider's cache, which clients move, and with a text as a list of one block. One walk finds all that
//! changes, however many marks there are.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memmem;

use super::json;
use super::json::member_span;
use super::messages::RESULT;
use super::walk::Walk;

/// Mark of the provider's cache, on a block.
const CACHE_CONTROL: &str = "cache_control";

/// Value that is given at most once.
#[derive(Default)]
struct Once<'a> {
    value: Option<&'a str>,
    is_twice: bool,
}

impl<'a> Once<'a> {
    fn put(&mut self, value: &'a str) {
        self.is_twice |= self.value.replace(value).is_some();
    }

    /// Returns the value, unless there are several.
    fn get(&self) -> Option<&'a str> {
        self.value.filter(|_| !self.is_twice)
    }
}

/// Object of the list, block, or part of a result, as far as its identity depends on it.
#[derive(Default)]
struct Object<'a> {
    mark: Once<'a>,
    kind: Once<'a>,
    role: Once<'a>,
    content: Once<'a>,
    /// Marks on the elements of its content, and on the parts of those that are results.
    inner: Vec<&'a str>,
    innermost: Vec<&'a str>,
}

impl<'a> Object<'a> {
    /// Reads the next value of a walk; lists of content are read down to `depth`. Results lie in no
    /// results, so nothing deeper matters: a body may be nested as deep as it is long.
    fn next(walk: &mut Walk<'a>, depth: usize) -> Option<Self> {
        let mut own = Self::default();
        if walk.peek()? != b'{' {
            walk.value()?;
            return Some(own);
        }
        walk.members(|name, walk| {
            let name = json::name(name)?;
            let place = match name.as_ref() {
                CACHE_CONTROL => &mut own.mark,
                "type" => &mut own.kind,
                "role" => &mut own.role,
                "content" if depth > 0 && walk.peek()? == b'[' => {
                    let list = own.elements(walk, depth - 1)?;
                    own.content.put(list);
                    return Some(());
                }
                "content" => &mut own.content,
                _ => return walk.value().map(drop),
            };
            place.put(walk.value()?);
            Some(())
        })?;
        Some(own)
    }

    /// Reads the elements of its content, and returns their list.
    fn elements(&mut self, walk: &mut Walk<'a>, depth: usize) -> Option<&'a str> {
        let start = walk.position();
        (self.inner, self.innermost) = (Vec::new(), Vec::new());
        walk.elements(|walk| {
            let element = Self::next(walk, depth)?;
            self.inner.extend(element.mark.get());
            if element.is_result() {
                self.innermost.extend(element.inner);
            }
            Some(())
        })?;
        walk.since(start)
    }

    fn is_result(&self) -> bool {
        self.kind.get() == Some(RESULT)
    }

    /// Returns the marks on a block and inside it, in order.
    fn marks_of_block(self) -> impl Iterator<Item = &'a str> {
        let inner = if self.is_result() { self.inner } else { Vec::new() };
        self.mark.get().into_iter().chain(inner)
    }

    /// Returns the content of an object of the list, or of a result, if it is a text.
    fn text(&self) -> Option<&'a str> {
        let is_message = self.is_result() || self.role.value.is_some();
        self.content.get().filter(|text| is_message && text.starts_with('"'))
    }
}

/// Parts of a message that its identity changes.
#[derive(Default)]
struct Changes<'a> {
    marks: Vec<&'a str>,
    text: Option<&'a str>,
}

impl<'a> Changes<'a> {
    /// Finds those of a message that may have marks: an object of the list, blocks of one, or the
    /// member `system`.
    fn of(raw: &'a str) -> Option<Self> {
        let mut walk = Walk::new(raw);
        let mut found = Self::default();
        if walk.peek()? == b'"' {
            walk.value()?;
            walk.colon()?;
            if walk.peek()? == b'[' {
                let mut system = Object::default();
                system.elements(&mut walk, 1)?;
                found.marks.extend(system.inner.into_iter().chain(system.innermost));
            }
            return Some(found);
        }
        let mut is_first = true;
        walk.run(|walk| {
            let own = Object::next(walk, 2)?;
            if std::mem::take(&mut is_first) {
                found.text = own.text();
            }
            let has_blocks = own.role.get().is_some() && own.content.value.is_some();
            match has_blocks && !own.is_result() {
                true => found.marks.extend(own.inner.into_iter().chain(own.innermost)),
                false => found.marks.extend(own.marks_of_block()),
            }
            Some(())
        })?;
        Some(found)
    }

    /// Finds the text of a message without marks. Reads no further than to a content that is none.
    fn of_unmarked(raw: &'a str) -> Self {
        let mut own = Object::default();
        let _ = Walk::new(raw).members(|name, walk| {
            let name = json::name(name)?;
            let place = match name.as_ref() {
                "type" => &mut own.kind,
                "role" => &mut own.role,
                "content" if walk.peek()? == b'"' => &mut own.content,
                "content" => {
                    own.content.put("");
                    return None;
                }
                _ => return walk.value().map(drop),
            };
            place.put(walk.value()?);
            Some(())
        });
        Self { marks: Vec::new(), text: own.text() }
    }
}

/// Returns a message without the marks of the provider's cache, and with its content as a list of
/// blocks: clients move the marks, and write a text that has one as a block.
pub(super) fn identity(raw: &str) -> Cow<'_, str> {
    let changes = match memmem::find(raw.as_bytes(), CACHE_CONTROL.as_bytes()) {
        Some(_) => Changes::of(raw).unwrap_or_default(),
        None => Changes::of_unmarked(raw),
    };
    let removed = changes.marks.into_iter().map(|mark| (member_span(raw, mark), false));
    let text = changes.text.map(|text| {
        let start = text.as_ptr() as usize - raw.as_ptr() as usize;
        (start..start + text.len(), true)
    });
    let mut all: Vec<(Range<usize>, bool)> = removed.chain(text).collect();
    if all.is_empty() {
        return Cow::Borrowed(raw);
    }
    all.sort_unstable_by_key(|(span, _)| span.start);
    let mut out = String::with_capacity(raw.len() + 32);
    let mut written = 0;
    for (span, is_text) in all {
        out.push_str(&raw[written..span.start]);
        if is_text {
            out.push_str(r#"[{"type":"text","text":"#);
            out.push_str(&raw[span.clone()]);
            out.push_str("}]");
        }
        written = span.end;
    }
    out.push_str(&raw[written..]);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_the_cache_do_not_belong_to_a_message() {
        for (marked, plain) in [
            (
                r#"{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}"#,
                r#"{"role":"user","content":"a"}"#,
            ),
            (
                r#"{"type":"tool_result","tool_use_id":"t","content":"a","cache_control":{"ttl":"1h"}}"#,
                r#"{"type":"tool_result","tool_use_id":"t","content":"a"}"#,
            ),
            (
                r#"{"type":"tool_result","content":[{"cache_control":{},"type":"text","text":"a"}]}"#,
                r#"{"type":"tool_result","content":[{"type":"text","text":"a"}]}"#,
            ),
            (
                r#"{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":null}"#,
                r#"{"type":"text","text":"a"},{"type":"text","text":"b"}"#,
            ),
        ] {
            assert_ne!(marked, plain);
            assert_eq!(identity(marked), identity(plain));
        }
        let call =
            r#"{"role":"assistant","content":[{"type":"tool_use","input":{"cache_control":1}}]}"#;
        assert_eq!(identity(call), call);
    }

    #[test]
    fn marks_in_deeply_nested_results_take_no_stack() {
        let (head, levels) = (r#"{"type":"tool_result","cache_control":{},"content":["#, 50_000);
        let nested = format!("{}{}", head.repeat(levels), "]}".repeat(levels));
        let left = identity(&nested);
        // Those of the result and of the blocks in it.
        assert_eq!(left.matches(CACHE_CONTROL).count(), levels - 2);
    }

    #[test]
    fn only_marks_of_the_provider_are_left_out() {
        for (marked, expected) in [
            // `system`, with its name.
            (
                r#""system" : [{"cache_control":{"a":[1]} , "type":"text","text":"é"}, 3 ]"#,
                r#""system" : [{"type":"text","text":"é"}, 3 ]"#,
            ),
            (r#""system":"cache_control""#, r#""system":"cache_control""#),
            // A result among the blocks of a message, and one outside.
            (
                r#"{"content":[{"cache_control":1,"content":[{"text":"a", "cache_control" : 2 }],"type":"tool_result"}],"role":"user"}"#,
                r#"{"content":[{"content":[{"text":"a" }],"type":"tool_result"}],"role":"user"}"#,
            ),
            (
                r#"{"content":[{"cache_control":1}],"cache_control":2,"type":"tool_result"}"#,
                r#"{"content":[{}],"type":"tool_result"}"#,
            ),
            // Not those of the message itself, of other blocks' contents, or inside inputs and texts.
            (
                r#"{"role":"user","cache_control":1,"content":[{"type":"x","content":[{"cache_control":1}]},{"input":{"cache_control":1}},{"text":"cache_control"}]}"#,
                r#"{"role":"user","cache_control":1,"content":[{"type":"x","content":[{"cache_control":1}]},{"input":{"cache_control":1}},{"text":"cache_control"}]}"#,
            ),
            // Nor one that is given twice.
            (
                r#"{"type":"text","cache_control":1,"cache_control":2}"#,
                r#"{"type":"text","cache_control":1,"cache_control":2}"#,
            ),
            (
                r#"{"role":"user","content":"a","cache\u005fcontrol":1,"x":"cache_control"}"#,
                r#"{"role":"user","content":[{"type":"text","text":"a"}],"cache\u005fcontrol":1,"x":"cache_control"}"#,
            ),
            (r#"{"type":"text","content":"a"}"#, r#"{"type":"text","content":"a"}"#),
            // A content that is given twice stays, with and without a mark.
            (
                r#"{"type":"tool_result","cache_control":1,"content":"a","content":[]}"#,
                r#"{"type":"tool_result","content":"a","content":[]}"#,
            ),
            (
                r#"{"type":"tool_result","content":"a","content":[]}"#,
                r#"{"type":"tool_result","content":"a","content":[]}"#,
            ),
            ("cache_control", "cache_control"),
            ("", ""),
        ] {
            assert_eq!(identity(marked), expected);
            assert_eq!(identity(expected), expected, "an identity is its own");
        }
    }
}
