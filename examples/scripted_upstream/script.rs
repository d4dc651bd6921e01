//! Script with which a request controls this server's answer, in a header or in the last user
//! message.
//!
//! Everything that the script leaves open is deterministic and echoes none of the request.

use serde::Deserialize;
use serde_json::Value;

use super::fault::Fault;

/// Name of the script's header, or prefix of its line in the last message.
pub const SCRIPT_NAME: &str = "x-upstream-script";

const WORDS: [&str; 8] = ["the", "river", "runs", "over", "the", "low", "wall", "and"];

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Text of the answer.
    pub text: Option<String>,
    /// Or a number of filler words.
    pub words: Option<usize>,
    pub tool_calls: Vec<ScriptCall>,
    /// As in `x-upstream-fault`, which takes precedence.
    pub fault: Option<String>,
    pub finish_reason: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptCall {
    pub name: String,
    /// A string is used as it is, anything else is written as JSON.
    #[serde(default)]
    pub arguments: Value,
}

impl ScriptCall {
    pub fn arguments(&self) -> String {
        match &self.arguments {
            Value::String(text) => text.clone(),
            Value::Null => "{}".to_owned(),
            other => other.to_string(),
        }
    }
}

impl Script {
    pub fn read(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("{SCRIPT_NAME}: {error}"))
    }

    /// Whether it leaves the content open.
    pub fn is_silent(&self) -> bool {
        self.text.is_none() && self.words.is_none() && self.tool_calls.is_empty()
    }

    /// Returns the answer's text, as far as the script or the request's form leaves it open.
    pub fn answer_text(&self, messages: usize, wants_json: bool, fault: Option<&Fault>) -> String {
        if let Some(text) = &self.text {
            return text.clone();
        }
        if let Some(words) = self.words {
            let words: Vec<&str> = WORDS.into_iter().cycle().take(words).collect();
            return words.join(" ");
        }
        if !self.tool_calls.is_empty() {
            return String::new();
        }
        if wants_json {
            return format!("{{\"ok\":true,\"messages\":{messages}}}");
        }
        if fault == Some(&Fault::HalfUtf8) {
            return format!("naïve 日本語 🦀 {messages} × ∞");
        }
        format!("ok {messages} messages")
    }
}

/// Returns the script on its own line in a message's text.
pub fn line_of(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once(SCRIPT_NAME)?;
    let script = rest.strip_prefix(':')?;
    Some(script.lines().next().unwrap_or("").trim())
}
