//! `context_management` of requests to upstreams without it: read and taken out. Compacts nothing.
//!
//! OpenAI's guide to compaction describes the member in Responses: a list with an entry of the type
//! `compaction`, which may set `compact_threshold` in tokens. `edits` reads that of Messages.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;

use super::edits::{self, EDIT, refused};
use crate::proxy::error::Proxied;
use weir_engine::compact::policy::clearing::Clearing;
use weir_engine::wire::{Protocol, compaction, json};

/// Searches for it and for the item that asks for compaction now, made once.
static EDIT_FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(EDIT));
static TRIGGER_FINDER: LazyLock<Finder<'static>> =
    LazyLock::new(|| Finder::new(compaction::TRIGGER));

/// Request without the member, and what that asked for.
pub struct Managed {
    pub body: Bytes,
    /// Tokens above which the conversation is compacted, if it asks for that; `None` inside for the
    /// policy's own mark.
    pub compaction: Option<Option<u64>>,
    /// Rules of clearing, if it has any.
    pub clearing: Option<Clearing>,
}

/// Whether a body may have the member.
pub fn may_be_in(body: &[u8]) -> bool {
    EDIT_FINDER.find(body).is_some()
}

/// Whether a body may have an item that asks for compaction now.
pub fn may_be_triggered(body: &[u8]) -> bool {
    TRIGGER_FINDER.find(body).is_some()
}

/// Takes such items out of a body; `None` if it has none.
pub fn without_trigger(protocol: Protocol, body: &[u8]) -> Option<Bytes> {
    let text = simdutf8::basic::from_utf8(body).ok()?;
    let is_read = protocol == Protocol::Responses;
    compaction::without_trigger(text).filter(|_| is_read).map(Bytes::from)
}

/// Takes the member out of a body; `None` if it has none.
pub fn taken(protocol: Protocol, body: &[u8]) -> Proxied<Option<Managed>> {
    if protocol == Protocol::Chat {
        return Ok(None);
    }
    let text = simdutf8::basic::from_utf8(body).ok();
    let Some((text, members)) = text.and_then(|text| Some((text, json::members(text)?))) else {
        // Such a body is refused later.
        return Ok(None);
    };
    let mut own = members.iter().filter(|(name, _)| name == EDIT).map(|(_, raw)| *raw);
    let Some(raw) = own.next() else { return Ok(None) };
    if own.next().is_some() {
        return Err(refused("is given twice"));
    }
    let (mut compaction, mut clearing) = (None, None);
    match protocol {
        _ if raw == "null" => {}
        Protocol::Messages => clearing = edits::read(raw)?,
        _ => compaction = of_responses(raw)?,
    }
    let body = json::without_member(text, raw).into();
    Ok(Some(Managed { body, compaction, clearing }))
}

/// Reads the member of Responses.
fn of_responses(raw: &str) -> Proxied<Option<Option<u64>>> {
    let entries = json::elements(raw).ok_or_else(|| refused("must be a list"))?;
    let mut compaction = None;
    for entry in entries {
        let members = json::unique_members(entry)
            .ok_or_else(|| refused("must hold objects that give each member once"))?;
        let member = |name: &str| members.iter().find(|(own, _)| own == name).map(|(_, raw)| *raw);
        let kind = member("type").and_then(json::string);
        if kind.as_deref() != Some("compaction") {
            return Err(refused(
                "must hold entries of the type 'compaction': weir answers it for this upstream and \
                 knows no other type",
            ));
        }
        let threshold = match member("compact_threshold") {
            None | Some("null") => None,
            Some(raw) => {
                let tokens = raw.parse::<u64>().ok().filter(|tokens| *tokens > 0);
                let message = "must give 'compact_threshold' as a whole number of tokens";
                Some(tokens.ok_or_else(|| refused(message))?)
            }
        };
        if compaction.replace(threshold).is_some() {
            return Err(refused("must hold one entry of the type 'compaction'"));
        }
    }
    Ok(compaction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_member_is_read_and_taken_out() {
        let kind = r#""type":"compaction""#;
        for (member, asked) in [
            ("null".to_owned(), None),
            ("[]".to_owned(), None),
            (format!("[{{{kind}}}]"), Some(None)),
            (format!(r#"[{{{kind},"compact_threshold":null}}]"#), Some(None)),
            (format!(r#"[ {{"compact_threshold": 200000 ,{kind}}} ]"#), Some(Some(200_000))),
        ] {
            let body = format!(r#"{{"input":"x", "context_management" : {member}, "y":1.0}}"#);
            let taken = taken(Protocol::Responses, body.as_bytes());
            let Ok(Some(taken)) = taken else { panic!("{member} is readable") };
            assert_eq!(taken.body, r#"{"input":"x", "y":1.0}"#);
            assert_eq!(taken.compaction, asked, "{member}");
        }
        let none = taken(Protocol::Responses, br#"{"input":"context_management"}"#);
        assert!(none.is_ok_and(|none| none.is_none()));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for member in [
            "{}",
            "[3]",
            "[{}]",
            r#"[{"type":"other"}]"#,
            r#"[{"type":"compaction","type":"compaction"}]"#,
            r#"[{"type":"compaction"},{"type":"compaction"}]"#,
            r#"[{"type":"compaction","compact_threshold":0}]"#,
            r#"[{"type":"compaction","compact_threshold":-5}]"#,
            r#"[{"type":"compaction","compact_threshold":1.5}]"#,
            r#"[{"type":"compaction","compact_threshold":"9"}]"#,
            r#"null,"context_management":null"#,
        ] {
            let body = format!(r#"{{"context_management":{member}}}"#);
            let refused = taken(Protocol::Responses, body.as_bytes()).err();
            let param = refused.and_then(|error| error.param);
            assert_eq!(param.as_deref(), Some(EDIT), "{member}");
        }
    }
}
