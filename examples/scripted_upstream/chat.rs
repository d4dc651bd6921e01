//! Judges a chat completion request: whether it is valid, whether it fits, which part was seen
//! before.
//!
//! Decides and counts; `answer.rs` writes the answer.

use std::sync::Arc;

use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

use super::State;
use super::count::{Encoding, REPLY_TOKENS, Tally};
use super::fault::{self, Fault};
use super::overflow::Overflow;
use super::script::Script;
use super::strict::{self, Messages, Top};
use super::validate::{self, Message, Refusal, Role, kind_of};

/// Minimum number of tokens that the provider caches.
const CACHE_FLOOR_TOKENS: u64 = 1024;
const MAX_TOOLS: usize = 128;
const MAX_CHOICES: u64 = 128;

/// Request data outside the body.
pub struct Asker {
    /// Deployment in an Azure path, which names the model.
    pub deployment: Option<String>,
    pub credential: String,
    pub script: Option<String>,
    pub fault: Option<Fault>,
    pub context_tokens: u64,
}

/// Valid request, with everything that its answer depends on.
pub struct Verdict {
    pub model: String,
    pub stream: bool,
    pub include_usage: bool,
    pub choices: usize,
    pub max_output_tokens: Option<u64>,
    pub wants_json: bool,
    pub script: Script,
    pub fault: Option<Fault>,
    pub messages: usize,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub context_tokens: u64,
    pub encoding: Encoding,
}

pub enum Rejection {
    Refused(Refusal),
    TooLong(Overflow),
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

pub fn judge(state: &State, body: &[u8], asker: Asker) -> Result<Verdict, Rejection> {
    let top = Top::read(body).map_err(|error| unreadable(&error))?;
    let mut verdict = read_parameters(state, &top, asker.deployment.as_deref())?;
    verdict.context_tokens = asker.context_tokens;
    let messages = read_messages(state, &top, verdict.encoding)?;
    validate::conversation(&messages)?;
    if state.options.strict_alternation {
        validate::alternation(&messages)?;
    }
    verdict.messages = messages.len();
    if let Some(script) = asker.script.as_deref().or_else(|| last_script(&messages)) {
        verdict.script = Script::read(script).map_err(Refusal::invalid)?;
    }
    verdict.fault = asker.fault;
    if let (None, Some(name)) = (&verdict.fault, &verdict.script.fault) {
        verdict.fault = Some(fault::parse(name).map_err(Refusal::invalid)?);
    }

    let root = xxh3_128(format!("{}\n{}", asker.credential, verdict.model).as_bytes());
    let prompt = with_definitions(state, &top, verdict.encoding, messages)?;
    let pieces = prompt.iter().map(|piece| piece.tokens);
    verdict.prompt_tokens = pieces.sum::<u64>() + REPLY_TOKENS + state.options.template_tokens;
    let output_tokens = verdict.max_output_tokens.unwrap_or(0);
    if verdict.prompt_tokens + output_tokens > verdict.context_tokens {
        return Err(Rejection::TooLong(Overflow {
            prompt_tokens: verdict.prompt_tokens,
            output_tokens,
            context_tokens: verdict.context_tokens,
        }));
    }
    let shared = state.cache.shared_tokens(root, &prompt);
    if shared >= CACHE_FLOOR_TOKENS {
        verdict.cached_tokens = shared - shared % state.options.cache_step_tokens.max(1);
    }
    if !verdict.fault.as_ref().is_some_and(Fault::refuses) {
        state.cache.remember(root, &prompt);
    }
    Ok(verdict)
}

pub fn unreadable(error: &serde_json::Error) -> Refusal {
    if error.is_data() {
        return Refusal::invalid(format!("Invalid body: {error}.")).code("invalid_type");
    }
    Refusal::invalid(format!(
        "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON: {error}.)"
    ))
}

fn last_script(messages: &[Arc<Message>]) -> Option<&str> {
    messages.last()?.script.as_deref()
}

fn read_messages(
    state: &State,
    top: &Top<'_>,
    encoding: Encoding,
) -> Result<Vec<Arc<Message>>, Refusal> {
    let list = match &top.messages {
        None => {
            return Err(Refusal::missing("messages"));
        }
        Some(Messages(list)) => list,
    };
    if list.is_empty() {
        let message = "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.";
        return Err(Refusal::coded("empty_array", "messages", message));
    }
    let read = |text: &str, suffix: &str| {
        let allow_unknown = state.options.allow_unknown;
        let purpose = 1 + encoding as u64 * 8 + u64::from(!suffix.is_empty()) * 2;
        state.counts.recall(text, purpose, || Message::read(text, encoding, suffix, allow_unknown))
    };
    let mut messages: Vec<_> = list.iter().map(|raw| read(raw.get(), "")).collect();
    // The definitions follow the first system message, after a newline.
    let first_system = messages.iter().position(|message| message.role == Role::System);
    if let Some(index) = first_system.filter(|_| has_tools(top)) {
        messages[index] = read(list[index].get(), "\n");
    }
    Ok(messages)
}

fn has_tools(top: &Top<'_>) -> bool {
    ["tools", "functions"]
        .iter()
        .filter_map(|name| top.raw(name))
        .any(|raw| !matches!(raw.get(), "null" | "[]"))
}

/// Returns the prompt in the order in which a provider caches it: definitions first.
fn with_definitions(
    state: &State,
    top: &Top<'_>,
    encoding: Encoding,
    messages: Vec<Arc<Message>>,
) -> Result<Vec<Arc<Message>>, Refusal> {
    let mut prompt = Vec::with_capacity(messages.len() + 2);
    let beside_system = messages.iter().any(|message| message.role == Role::System);
    for name in ["tools", "functions", "response_format"] {
        let Some(raw) = top.raw(name).filter(|raw| raw.get() != "null") else {
            continue;
        };
        let value = strict::value(raw.get()).map_err(|error| unreadable(&error))?;
        let schema = name == "response_format";
        if schema && value["json_schema"]["schema"].is_null() {
            continue;
        }
        if !schema {
            check_tools(name, &value)?;
            if value.as_array().is_some_and(Vec::is_empty) {
                continue;
            }
        }
        let purpose = encoding as u64 * 8 + u64::from(schema) * 4 + u64::from(beside_system) * 2;
        prompt.push(state.counts.recall(raw.get(), purpose, || {
            let mut tally = Tally::new(encoding);
            if schema {
                tally.schema(&value["json_schema"]["schema"]);
            } else {
                tally.tools(&value, beside_system);
            }
            Message::from_tally(Role::Definitions, tally)
        }));
    }
    prompt.extend(messages);
    Ok(prompt)
}

fn check_tools(name: &str, tools: &Value) -> Result<(), Refusal> {
    let Some(list) = tools.as_array() else {
        let message = format!(
            "Invalid type for '{name}': expected an array of objects, but got {} instead.",
            kind_of(tools)
        );
        return Err(Refusal::coded("invalid_type", name, message));
    };
    if list.len() > MAX_TOOLS {
        let message = format!(
            "Invalid '{name}': array too long. Expected an array with maximum length {MAX_TOOLS}, but got an array with length {} instead.",
            list.len()
        );
        return Err(Refusal::coded("array_above_max_length", name, message));
    }
    for (index, tool) in list.iter().enumerate() {
        let place = format!("{name}[{index}]");
        let function = match (name, tool["type"].as_str()) {
            ("functions", _) => tool,
            (_, Some("function")) => &tool["function"],
            (_, Some("custom")) => &tool["custom"],
            _ => {
                return Err(Refusal::missing(format!("{place}.type")));
            }
        };
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let name = function["name"].as_str().unwrap_or("");
        if name.is_empty() || name.len() > 64 || !name.bytes().all(allowed) {
            let message = format!(
                "Invalid '{place}.function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
            );
            return Err(Refusal::coded("invalid_value", format!("{place}.function.name"), message));
        }
    }
    Ok(())
}

/// Members that the API knows; any other top-level member is refused.
const KNOWN_MEMBERS: &str = "model messages stream stream_options n max_tokens max_completion_tokens \
    temperature top_p frequency_penalty presence_penalty logit_bias logprobs top_logprobs stop seed user \
    tools tool_choice parallel_tool_calls functions function_call response_format modalities audio \
    prediction reasoning_effort verbosity service_tier store metadata web_search_options \
    prompt_cache_key prompt_cache_retention safety_identifier";

fn read_parameters(
    state: &State,
    top: &Top<'_>,
    deployment: Option<&str>,
) -> Result<Verdict, Refusal> {
    for (name, _) in &top.members {
        let known = KNOWN_MEMBERS.split_whitespace().any(|known| known == name);
        if !known && (!state.options.allow_unknown || validate::is_private(name)) {
            return Err(validate::unknown(name, ""));
        }
    }
    let model = model_of(state, top, deployment)?;
    let stream = truth(top, "stream")?;
    let stream_options = member(top, "stream_options")?.unwrap_or(Value::Null);
    if !stream && !stream_options.is_null() {
        let message = "The 'stream_options' parameter is only allowed when 'stream' is enabled.";
        return Err(Refusal::invalid(message).param("stream_options"));
    }
    if state.options.refuse_stream_options && !stream_options.is_null() {
        return Err(validate::unknown("stream_options", ""));
    }
    let most_output = state.options.max_output_tokens.unwrap_or(u64::MAX);
    let older = integer(top, "max_tokens", 1, most_output)?;
    let newer = integer(top, "max_completion_tokens", 1, most_output)?;
    if older.is_some() && newer.is_some() {
        let message =
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.";
        return Err(Refusal::coded("invalid_parameter_combination", "max_tokens", message));
    }
    let choices = integer(top, "n", 1, MAX_CHOICES)?.unwrap_or(1);
    for (name, least, most) in [
        ("temperature", 0.0, 2.0),
        ("top_p", 0.0, 1.0),
        ("frequency_penalty", -2.0, 2.0),
        ("presence_penalty", -2.0, 2.0),
    ] {
        decimal(top, name, least, most)?;
    }
    let format = member(top, "response_format")?.unwrap_or(Value::Null);
    Ok(Verdict {
        encoding: Encoding::for_model(&model),
        model,
        stream,
        include_usage: stream_options["include_usage"] == Value::Bool(true),
        choices: usize::try_from(choices).unwrap_or(1),
        max_output_tokens: older.or(newer),
        wants_json: matches!(format["type"].as_str(), Some("json_object" | "json_schema")),
        script: Script::default(),
        fault: None,
        messages: 0,
        prompt_tokens: 0,
        cached_tokens: 0,
        context_tokens: 0,
    })
}

fn model_of(state: &State, top: &Top<'_>, deployment: Option<&str>) -> Result<String, Refusal> {
    let model = match (member(top, "model")?, deployment) {
        (_, Some(deployment)) => deployment.to_owned(),
        (Some(Value::String(model)), None) if !model.is_empty() => model,
        (Some(Value::String(_)) | None, None) => {
            return Err(Refusal::invalid("you must provide a model parameter"));
        }
        (Some(other), None) => return Err(wrong_type("model", "a string", &other)),
    };
    known_model(state, &model)?;
    Ok(model)
}

/// Refuses a model that the options exclude.
pub fn known_model(state: &State, model: &str) -> Result<(), Refusal> {
    let models = &state.options.models;
    let known = if models.is_empty() {
        !model.starts_with("missing")
    } else {
        models.iter().any(|known| known == model)
    };
    if known {
        return Ok(());
    }
    let message = format!("The model `{model}` does not exist or you do not have access to it.");
    Err(Refusal::new(404, message).code("model_not_found"))
}

fn member(top: &Top<'_>, name: &str) -> Result<Option<Value>, Refusal> {
    top.value(name).map_err(|error| unreadable(&error))
}

fn wrong_type(name: &str, expected: &str, got: &Value) -> Refusal {
    let message = format!(
        "Invalid type for '{name}': expected {expected}, but got {} instead.",
        kind_of(got)
    );
    Refusal::coded("invalid_type", name, message)
}

fn truth(top: &Top<'_>, name: &str) -> Result<bool, Refusal> {
    match member(top, name)? {
        None => Ok(false),
        Some(Value::Bool(truth)) => Ok(truth),
        Some(other) => Err(wrong_type(name, "a boolean", &other)),
    }
}

fn integer(top: &Top<'_>, name: &str, least: u64, most: u64) -> Result<Option<u64>, Refusal> {
    let Some(value) = member(top, name)? else {
        return Ok(None);
    };
    if !value.is_i64() && !value.is_u64() {
        return Err(wrong_type(name, "an integer", &value));
    }
    match value.as_u64() {
        Some(number) if number > most && name.starts_with("max_") => {
            let message = format!(
                "{name} is too large: {number}. This model supports at most {most} completion tokens, whereas you provided {number}."
            );
            Err(Refusal::coded("invalid_value", name, message))
        }
        Some(number) if (least..=most).contains(&number) => Ok(Some(number)),
        Some(number) if number > most => Err(out_of_range(name, "maximum", "<=", most, number)),
        _ => Err(out_of_range(name, "minimum", ">=", least, &value)),
    }
}

fn decimal(top: &Top<'_>, name: &str, least: f64, most: f64) -> Result<(), Refusal> {
    let Some(value) = member(top, name)? else {
        return Ok(());
    };
    match value.as_f64() {
        None => Err(wrong_type(name, "a decimal", &value)),
        Some(number) if number > most => Err(out_of_range(name, "maximum", "<=", most, &value)),
        Some(number) if number < least => Err(out_of_range(name, "minimum", ">=", least, &value)),
        Some(_) => Ok(()),
    }
}

fn out_of_range(
    name: &str,
    bound: &str,
    sign: &str,
    limit: impl std::fmt::Display,
    got: impl std::fmt::Display,
) -> Refusal {
    let (side, code) = if bound == "maximum" {
        ("above", "integer_above_max_value")
    } else {
        ("below", "integer_below_min_value")
    };
    let message = format!(
        "Invalid '{name}': value {side} {bound} value. Expected a value {sign} {limit}, but got {got} instead."
    );
    Refusal::coded(code, name, message)
}
