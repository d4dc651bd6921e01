//! `context_management` of Messages: read into rules for the engine, and the report on what they cleared.
//! Clears nothing.
//!
//! Anthropic's guide to context editing describes the member, its defaults and the report.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::json;

use crate::proxy::error::{ErrorKind, Proxied, ProxyError};
use weir_engine::compact::policy::clearing::{ClearToolUses, Cleared, Clearing, Trigger};
use weir_engine::wire::json;

/// Name of the member, and of the edit that takes it out.
pub const EDIT: &str = "context_management";
const TOOL_USES: &str = "clear_tool_uses_20250919";
const THINKING: &str = "clear_thinking_20251015";
/// Edit for which a model writes a summary.
const COMPACT: &str = "compact_20260112";
/// Header that names the features in beta, and the start of those that go with the member.
const BETA: HeaderName = HeaderName::from_static("anthropic-beta");
const BETAS: &str = "context-management-";

/// Tokens above which results are cleared by default.
const TRIGGER_TOKENS: u64 = 100_000;
/// Tool uses that keep their results by default.
const KEEP_TOOL_USES: u64 = 3;
/// Turns that keep their thinking by default.
const KEEP_THINKING_TURNS: u64 = 1;

/// Reads the member; `None` if it asks for nothing.
pub fn read(raw: &str) -> Proxied<Option<Clearing>> {
    let Some(members) = json::unique_members(raw) else {
        return Err(refused("must be an object that gives each member once"));
    };
    let mut clearing = None;
    for (name, raw) in members {
        if name != "edits" {
            return Err(refused("must have the member 'edits' alone"));
        }
        let edits = json::elements(raw).ok_or_else(|| refused("must give 'edits' as a list"))?;
        for edit in edits {
            read_edit(edit, clearing.get_or_insert_default())?;
        }
    }
    Ok(clearing)
}

fn read_edit(raw: &str, clearing: &mut Clearing) -> Proxied<()> {
    let members = json::unique_members(raw)
        .ok_or_else(|| refused("must hold edits that are objects and give each member once"))?;
    let member = |name: &str| {
        let own = members.iter().find(|(own, _)| own == name).map(|(_, raw)| *raw);
        own.filter(|raw| *raw != "null")
    };
    let known = |names: &[&str]| members.iter().all(|(own, _)| names.contains(&own.as_ref()));
    match member("type").and_then(json::string).as_deref() {
        Some(TOOL_USES) if clearing.tool_uses.is_none() => {
            const MEMBERS: [&str; 6] =
                ["type", "trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs"];
            if !known(&MEMBERS) {
                return Err(refused("has an edit 'clear_tool_uses' with an unknown member"));
            }
            clearing.tool_uses = Some(ClearToolUses {
                trigger: match member("trigger").map(|raw| amount(raw, "trigger")).transpose()? {
                    None => Trigger::InputTokens(TRIGGER_TOKENS),
                    Some(("input_tokens", value)) => Trigger::InputTokens(value),
                    Some((_, value)) => Trigger::ToolUses(value),
                },
                keep: kept(member("keep"), "keep", "tool_uses")?.unwrap_or(KEEP_TOOL_USES),
                at_least_tokens: kept(member("clear_at_least"), "clear_at_least", "input_tokens")?
                    .unwrap_or(0),
                exclude: member("exclude_tools")
                    .map(|raw| names(raw, "exclude_tools"))
                    .transpose()?
                    .unwrap_or_default(),
                inputs: match member("clear_tool_inputs") {
                    None | Some("false" | "[]") => None,
                    Some("true") => Some(Vec::new()),
                    Some(raw) => Some(names(raw, "clear_tool_inputs")?),
                },
            });
        }
        Some(THINKING) if clearing.thinking_turns.is_none() && known(&["type", "keep"]) => {
            clearing.thinking_turns = match member("keep") {
                Some(r#""all""#) => None,
                keep => Some(kept(keep, "keep", "thinking_turns")?.unwrap_or(KEEP_THINKING_TURNS)),
            };
        }
        Some(TOOL_USES | THINKING) => {
            return Err(refused("gives an edit twice, or with an unknown member"));
        }
        Some(COMPACT) => {
            return Err(refused(
                "has the edit compact_20260112, for which a model writes a summary, and this upstream \
                 has none of its own. Leave it out: weir keeps the conversation within its limit \
                 without, by notes of excerpts. It carries out clear_tool_uses_20250919 and \
                 clear_thinking_20251015 here",
            ));
        }
        _ => {
            return Err(refused(
                "has an edit of a type that weir does not know. For this upstream it carries out \
                 clear_tool_uses_20250919 and clear_thinking_20251015",
            ));
        }
    }
    Ok(())
}

/// Reads an amount: its type and its value.
fn amount(raw: &str, name: &str) -> Proxied<(&'static str, u64)> {
    const KINDS: [&str; 3] = ["input_tokens", "tool_uses", "thinking_turns"];
    let read = || {
        let members = json::unique_members(raw).filter(|members| members.len() == 2)?;
        let member = |own: &str| members.iter().find(|(name, _)| name == own).map(|(_, raw)| *raw);
        let kind = json::string(member("type")?)?;
        let kind = KINDS.into_iter().find(|known| *known == kind)?;
        Some((kind, member("value")?.parse::<u64>().ok()?))
    };
    read()
        .ok_or_else(|| refused(&format!("must give '{name}' as an object with 'type' and 'value'")))
}

/// Reads an amount of one kind.
fn kept(raw: Option<&str>, name: &str, kind: &str) -> Proxied<Option<u64>> {
    let Some(raw) = raw else { return Ok(None) };
    match amount(raw, name)? {
        (own, value) if own == kind => Ok(Some(value)),
        _ => Err(refused(&format!("must give '{name}' in {kind}"))),
    }
}

fn names(raw: &str, member: &str) -> Proxied<Vec<String>> {
    let names = json::elements(raw).and_then(|names| {
        names.into_iter().map(|name| json::string(name).map(|name| name.into_owned())).collect()
    });
    names.ok_or_else(|| refused(&format!("must give '{member}' as a list of names")))
}

/// Removes the betas of the member from the headers of a request.
pub fn remove_betas(headers: &mut HeaderMap) {
    let values: Vec<HeaderValue> = headers.get_all(BETA).iter().cloned().collect();
    if values.is_empty() {
        return;
    }
    headers.remove(BETA);
    for value in values {
        let Ok(text) = value.to_str() else {
            headers.append(BETA, value);
            continue;
        };
        let kept = text.split(',').map(str::trim).filter(|name| !name.starts_with(BETAS));
        let kept = kept.collect::<Vec<_>>().join(",");
        if let Some(value) = HeaderValue::from_str(&kept).ok().filter(|_| !kept.is_empty()) {
            headers.append(BETA, value);
        }
    }
}

/// Returns the report on what was cleared, as JSON text.
pub fn report(clearing: &Clearing, cleared: Cleared) -> String {
    let mut applied = Vec::new();
    if clearing.thinking_turns.is_some() && cleared.thinking_turns > 0 {
        applied.push(json!({"type": THINKING, "cleared_thinking_turns": cleared.thinking_turns,
                            "cleared_input_tokens": cleared.thinking_tokens}));
    }
    if clearing.tool_uses.is_some() && cleared.tool_uses > 0 {
        applied.push(json!({"type": TOOL_USES, "cleared_tool_uses": cleared.tool_uses,
                            "cleared_input_tokens": cleared.tool_tokens}));
    }
    json!({ "applied_edits": applied }).to_string()
}

/// Creates the error for a member that weir does not understand.
pub(super) fn refused(what: &str) -> ProxyError {
    ProxyError::new(ErrorKind::InvalidRequest, format!("'{EDIT}' {what}.")).about(EDIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool_uses() -> ClearToolUses {
        ClearToolUses {
            trigger: Trigger::InputTokens(100_000),
            keep: 3,
            at_least_tokens: 0,
            exclude: Vec::new(),
            inputs: None,
        }
    }

    #[test]
    fn edits_are_read_with_their_defaults() {
        let tools = |tool_uses| Clearing { tool_uses: Some(tool_uses), thinking_turns: None };
        let thinking = |turns| Clearing { tool_uses: None, thinking_turns: turns };
        for (edits, wanted) in [
            (r#"{"type":"clear_tool_uses_20250919"}"#, tools(tool_uses())),
            (
                r#"{"type":"clear_tool_uses_20250919","trigger":{"type":"tool_uses","value":9},
                    "keep":{"type":"tool_uses","value":5},"clear_at_least":{"type":"input_tokens","value":50},
                    "exclude_tools":["web"],"clear_tool_inputs":["f"]}"#,
                tools(ClearToolUses {
                    trigger: Trigger::ToolUses(9),
                    keep: 5,
                    at_least_tokens: 50,
                    exclude: vec!["web".to_owned()],
                    inputs: Some(vec!["f".to_owned()]),
                }),
            ),
            (r#"{"type":"clear_thinking_20251015"}"#, thinking(Some(1))),
            (r#"{"type":"clear_thinking_20251015","keep":"all"}"#, thinking(None)),
            (
                r#"{"type":"clear_thinking_20251015","keep":{"type":"thinking_turns","value":2}}"#,
                thinking(Some(2)),
            ),
        ] {
            let read = read(&format!(r#"{{"edits":[{edits}]}}"#));
            assert_eq!(read.ok().flatten(), Some(wanted), "{edits}");
        }
        assert!(read("{}").is_ok_and(|read| read.is_none()));
        assert!(read(r#"{"edits":[]}"#).is_ok_and(|read| read.is_none()));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for edits in [
            "3",
            "[3]",
            "[{}]",
            r#"[{"type":"compact_20260112"}]"#,
            r#"[{"type":"clear_tool_uses_20250919","x":1}]"#,
            r#"[{"type":"clear_tool_uses_20250919"},{"type":"clear_tool_uses_20250919"}]"#,
            r#"[{"type":"clear_tool_uses_20250919","keep":3}]"#,
            r#"[{"type":"clear_tool_uses_20250919","keep":{"type":"input_tokens","value":3}}]"#,
            r#"[{"type":"clear_tool_uses_20250919","trigger":{"type":"input_tokens","value":-3}}]"#,
            r#"[{"type":"clear_tool_uses_20250919","exclude_tools":[3]}]"#,
            r#"[{"type":"clear_thinking_20251015","keep":"some"}]"#,
        ] {
            let refused = read(&format!(r#"{{"edits":{edits}}}"#)).err();
            let param = refused.and_then(|error| error.param);
            assert_eq!(param.as_deref(), Some("context_management"), "{edits}");
        }
    }

    #[test]
    fn betas_of_the_member_go_and_others_stay() {
        for (given, left) in [
            ("context-management-2025-06-27", None),
            ("a-1, context-management-2025-06-27 ,b-2", Some("a-1,b-2")),
            ("a-1", Some("a-1")),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(BETA, HeaderValue::from_static(given));
            remove_betas(&mut headers);
            let found = headers.get(BETA).and_then(|value| value.to_str().ok());
            assert_eq!(found, left, "{given}");
        }
    }

    #[test]
    fn the_report_names_what_was_cleared() {
        let clearing = Clearing { tool_uses: Some(tool_uses()), thinking_turns: Some(1) };
        let cleared =
            Cleared { tool_uses: 8, tool_tokens: 500, thinking_turns: 2, thinking_tokens: 90 };
        assert_eq!(report(&clearing, Cleared::default()), r#"{"applied_edits":[]}"#);
        let said: serde_json::Value =
            serde_json::from_str(&report(&clearing, cleared)).expect("JSON");
        assert_eq!(said["applied_edits"][0]["cleared_thinking_turns"], 2);
        assert_eq!(said["applied_edits"][1]["cleared_tool_uses"], 8);
        assert_eq!(said["applied_edits"][1]["cleared_input_tokens"], 500);
    }
}
