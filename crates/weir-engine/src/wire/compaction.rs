//! Compaction items of Responses: items that stand for earlier ones of a conversation. Finds those of a
//! body and replaces them by what they stand for. Opens none: the caller does.
//!
//! OpenAI's guide to compaction describes the items; codex sends the same under an older type, too.

use std::borrow::Cow;

use super::json;

/// Types of a compaction item.
const TYPES: [&str; 2] = ["compaction", "compaction_summary"];

/// Type of an item that asks for compaction of all items before it, answered with one compaction item
/// (`remote_compaction_v2` in `openai/codex`; the Responses API wants it at the end).
pub const TRIGGER: &str = "compaction_trigger";

/// Content of a compaction item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Whether it stands for all items before it, which leave the list; else for itself alone.
    pub is_whole: bool,
    /// JSON texts of the items that it stands for, joined by commas.
    pub items: String,
}

/// Whether an item, or one of a run of items, is a compaction item.
pub fn is_in(raw: &str) -> bool {
    let items = json::run(raw).unwrap_or_default();
    items.into_iter().any(|item| json::members(item).is_some_and(|members| is_compaction(&members)))
}

fn is_compaction(members: &[(Cow<'_, str>, &str)]) -> bool {
    let own = members.iter().filter(|(name, _)| name == "type");
    own.into_iter().filter_map(|(_, raw)| json::string(raw)).any(|own| TYPES.contains(&&*own))
}

/// Returns the sealed contents of a compaction item, one for each time that it gives one.
///
/// `None` if `raw` is another item.
pub fn contents(raw: &str) -> Option<Vec<Cow<'_, str>>> {
    let members = json::members(raw).filter(|members| is_compaction(members))?;
    let sealed = members.into_iter().filter(|(name, _)| name == "encrypted_content");
    Some(sealed.filter_map(|(_, raw)| json::string(raw)).collect())
}

/// Replaces compaction items in the list `input` of a body by what they stand for. `open` takes the
/// contents of an item and returns `None` for one that stays.
///
/// Returns `None` if none is replaced, or if `text` is not a body with such a list.
///
/// # Errors
///
/// The first error of `open`.
pub fn replace<E>(
    text: &str,
    mut open: impl FnMut(&[Cow<'_, str>]) -> Result<Option<Opened>, E>,
) -> Result<Option<String>, E> {
    let lists = json::members(text).unwrap_or_default();
    // If there are two lists, the body is refused later.
    let mut lists = lists.into_iter().filter(|(name, _)| name == "input");
    let list = lists.next().and_then(|(_, raw)| json::elements(raw));
    let Some(items) = list.filter(|_| lists.next().is_none()) else { return Ok(None) };
    let (mut opened, mut from) = (Vec::new(), 0);
    for (index, item) in items.iter().enumerate() {
        let Some(contents) = contents(item) else { continue };
        if let Some(own) = open(&contents)? {
            if own.is_whole {
                opened.clear();
                from = index;
            }
            opened.push((index, own.items));
        }
    }
    if opened.is_empty() {
        return Ok(None);
    }
    let mut opened = opened.into_iter().peekable();
    let text = json::rejoin(text, &items, |index, item| {
        if index < from {
            return None;
        }
        match opened.next_if(|(own, _)| *own == index) {
            Some((_, items)) if items.is_empty() => None,
            Some((_, items)) => Some(Cow::Owned(items)),
            None => Some(Cow::Borrowed(item)),
        }
    });
    Ok(Some(text))
}

/// Takes items that ask for compaction out of the list `input` of a body; `None` if it has none.
pub fn without_trigger(text: &str) -> Option<String> {
    let lists = json::members(text)?;
    let (_, list) = lists.into_iter().find(|(name, _)| name == "input")?;
    let items = json::elements(list)?;
    let is_trigger = |item: &str| {
        item.len() <= MAX_TRIGGER_BYTES
            && json::text_member(item.as_bytes(), "type").is_some_and(|own| own == TRIGGER)
    };
    let has_one = items.iter().any(|item| is_trigger(item));
    has_one.then(|| {
        json::rejoin(text, &items, |_, item| (!is_trigger(item)).then_some(Cow::Borrowed(item)))
    })
}

/// Maximum size of an item that asks for compaction: it has no content.
const MAX_TRIGGER_BYTES: usize = 1024;

/// Returns an item of this type with a sealed content. `id` and `sealed` need no escapes.
pub fn item(id: &str, sealed: &str) -> String {
    format!(r#"{{"type":"compaction","id":"{id}","encrypted_content":"{sealed}"}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(text: &str) -> Option<String> {
        let open = |contents: &[Cow<'_, str>]| -> Result<Option<Opened>, String> {
            match contents {
                [own] if own.starts_with("own") => Ok(Some(Opened {
                    is_whole: own.starts_with("own all"),
                    items: own.rsplit(' ').next().unwrap_or_default().replace('-', ","),
                })),
                [other] if other.starts_with("bad") => Err(other.clone().into_owned()),
                _ => Ok(None),
            }
        };
        replace(text, open).expect("none is bad")
    }

    #[test]
    fn items_are_replaced_in_their_places() {
        let sealed = |content: &str| item("cmp_1", content);
        let (one, all, none) = (sealed("own 7-8"), sealed("own all 5"), sealed("own "));
        for (list, wanted) in [
            (format!("[1, {one} ,2]"), Some("[1, 7,8 ,2]".to_owned())),
            (format!("[ {one}]"), Some("[ 7,8]".to_owned())),
            (format!("[1,{none},2]"), Some("[1,2]".to_owned())),
            (format!("[{none}]"), Some("[]".to_owned())),
            (format!("[1,2,{all},3]"), Some("[5,3]".to_owned())),
            (format!("[{one},{all},{one}]"), Some("[5,7,8]".to_owned())),
            (format!("[1,{}]", sealed("other")), None),
            (r#"[{"type":"reasoning","encrypted_content":"own 7"}]"#.to_owned(), None),
            ("\"text\"".to_owned(), None),
        ] {
            let body = |list: &str| format!(r#"{{"model":"m","input":{list} ,"x":1.0}}"#);
            assert_eq!(replaced(&body(&list)), wanted.map(|wanted| body(&wanted)), "{list}");
        }
        assert_eq!(replaced(&format!(r#"{{"input":[{one}],"input":[]}}"#)), None);
        assert_eq!(replaced("[]"), None);
    }

    #[test]
    fn an_item_that_asks_for_compaction_leaves_its_list() {
        let trigger = r#"{ "type" : "compaction_trigger" }"#;
        for (list, wanted) in [
            (format!("[1, {trigger}]"), Some("[1]")),
            (format!("[{trigger} ,1, 2]"), Some("[1, 2]")),
            (format!("[{trigger}]"), Some("[]")),
            (r#"[{"type":"message","content":"compaction_trigger"}]"#.to_owned(), None),
            ("\"compaction_trigger\"".to_owned(), None),
        ] {
            let body = |list: &str| format!(r#"{{"input":{list} ,"stream":true}}"#);
            assert_eq!(without_trigger(&body(&list)), wanted.map(body), "{list}");
        }
    }

    #[test]
    fn an_error_ends_it() {
        let text = format!(r#"{{"input":[{}]}}"#, item("a", "bad"));
        let refused = replace(&text, |contents| Err::<Option<Opened>, _>(contents.len()));
        assert_eq!(refused, Err(1));
        let twice = r#"{"type":"compaction","encrypted_content":"a","encrypted_content":"b"}"#;
        assert_eq!(contents(twice).map(|own| own.len()), Some(2));
        assert!(is_in(twice) && is_in(&format!("{{}},{twice}")) && !is_in("{}"));
    }
}
