//! What a request may ask this server to answer: a script in a header or in the last user message.
//!
//! Whatever is not asked for is deterministic and echoes nothing of what was sent.

use serde::Deserialize;
use serde_json::Value;

use super::fault::Fault;

/// Begins the script, in a header of this name or on a line of the last message.
pub const SCRIPT_NAME: &str = "x-upstream-script";

const WORDS: [&str; 8] = ["the", "river", "runs", "over", "the", "low", "wall", "and"];

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// The answer's text.
    pub text: Option<String>,
    /// Or so many words of filler.
    pub words: Option<usize>,
    pub tool_calls: Vec<ScriptCall>,
    /// As in `x-upstream-fault`, which wins over it.
    pub fault: Option<String>,
    pub finish_reason: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptCall {
    pub name: String,
    /// A string is taken as it is, anything else written as JSON.
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

    /// Whether it leaves open what is said.
    pub fn is_silent(&self) -> bool {
        self.text.is_none() && self.words.is_none() && self.tool_calls.is_empty()
    }

    /// The answer's text, where the script or the request's form leaves a say.
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

/// The script on a line of its own in a message's text.
pub fn line_of(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once(SCRIPT_NAME)?;
    let script = rest.strip_prefix(':')?;
    Some(script.lines().next().unwrap_or("").trim())
}
