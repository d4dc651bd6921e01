//! Recognition of upstream errors for requests that exceed the model's context. Reads the answer
//! only; does not decide how weir reacts.
//!
//! A text counts as such an error if it begins as one of `FORMS` does, or by its meaning (`meaning`). Parts of
//! the request that a provider quotes appear later and prove nothing. Each form has its source in
//! `tests/golden/overflow/texts.jsonl`, next to similar texts with other meanings.

use serde_json::{Map, Value};

mod meaning;

pub use meaning::Sent;

use super::sse::Splitter;
use super::usage::is_announcement;

/// Maximum size of an answer that is examined.
pub const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// Contained in every successful answer that is nothing but an error.
const ERROR: &[u8] = b"\"error\"";
/// Maximum depth of nested objects, and of texts that are JSON themselves.
const MAX_DEPTH: usize = 6;
/// Maximum number of texts read from one answer.
const MAX_TEXTS: usize = 16;
/// More tokens than any model accepts: such a number is a mistake.
const MAX_TOKENS: u64 = 1_000_000_000;

/// Facts from an upstream's error about a request that did not fit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overflow {
    /// Whether input and output were counted together, so that a smaller output limit may be
    /// enough.
    pub with_output: bool,
    /// Window shared by input and output.
    pub window_tokens: Option<u64>,
    /// Maximum input alone, if the text gives it.
    pub max_input_tokens: Option<u64>,
    /// Input tokens by the upstream's own count.
    pub input_tokens: Option<u64>,
    /// Whether that count is complete; some providers stop counting at the limit, some guess.
    pub is_exact: bool,
}

impl Overflow {
    /// Whether the error gives a limit, so that nothing has to be guessed.
    pub fn is_numbered(&self) -> bool {
        self.window_tokens.is_some() || self.max_input_tokens.is_some()
    }
}

/// Parses the answer; `None` unless it refuses a request for being too long.
///
/// Never matches a 5xx, where such texts mean something else, nor a 429, after which waiting helps.
/// Matches a 200 only if the whole answer is an error, as with some local servers.
///
/// `sent` is what the request had by weir's count: a wording that no form has needs a number near it.
pub fn recognise(status: u16, body: &[u8], sent: Option<Sent>) -> Option<Overflow> {
    if !matches!(status, 200 | 400 | 413 | 422) || body.len() > MAX_REFUSAL_BYTES {
        return None;
    }
    // Nearly all successful answers contain no error; this avoids a second parse.
    if status == 200 && memchr::memmem::find(body, ERROR).is_none() {
        return None;
    }
    // A byte that is no text may be a quote that was cut.
    let text = String::from_utf8_lossy(body);
    let text = text.trim().trim_start_matches('\u{feff}');
    let mut said = Said::default();
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(members)) if status == 200 && !is_refusal_alone(&members) => return None,
        Ok(value) => said.take(&value, 0),
        Err(_) if status == 200 => return None,
        Err(_) => said.texts.push(text.to_owned()),
    }
    said.overflow(sent).filter(Overflow::is_possible)
}

/// Event of Responses for a request that failed after its stream had begun.
const FAILED: &str = "response.failed";

/// Parses the first event of a stream that begins with `bytes`, if it is such an error. `None` also
/// if the event is incomplete. Events before any content, such as pings, are passed over.
pub fn recognise_event(bytes: &[u8], sent: Option<Sent>) -> Option<(Overflow, String)> {
    let mut first = None;
    let mut events = Splitter::new(MAX_REFUSAL_BYTES);
    events.feed(bytes, |event| {
        if first.is_none() && !is_announcement(&event) {
            first = Some((event.name.to_vec(), event.data.to_vec()));
        }
    });
    let (name, mut data) = first?;
    let event: Value = serde_json::from_slice(&data).unwrap_or_default();
    let has_failed = name == FAILED.as_bytes() || event["type"] == FAILED;
    if has_failed {
        let error = event.get("response")?.get("error")?;
        data = serde_json::to_vec(&serde_json::json!({ "error": error })).ok()?;
    }
    let is_named_error = name == b"error" || event["type"] == "error" || has_failed;
    let overflow = recognise(200, &data, sent).or_else(|| {
        recognise(400, &data, sent).filter(|_| is_named_error && !has_other_status(&data))
    })?;
    Some((overflow, String::from_utf8(data).ok()?))
}

/// Whether a stream that begins with `bytes` has reached the end of the event that
/// [`recognise_event`] reads.
pub fn has_event(bytes: &[u8]) -> bool {
    let mut has_event = false;
    Splitter::new(MAX_REFUSAL_BYTES).feed(bytes, |event| has_event |= !is_announcement(&event));
    has_event
}

/// Whether an event's error has a status at which such texts mean something else.
fn has_other_status(data: &[u8]) -> bool {
    let members = serde_json::from_slice::<Map<String, Value>>(data).unwrap_or_default();
    !is_of_request(&members)
}

/// Whether a successful answer contains only an error, and one caused by the request.
fn is_refusal_alone(members: &Map<String, Value>) -> bool {
    // vLLM and SGLang: the answer is the error.
    let is_error = members.get("object").is_some_and(|object| object == "error");
    let own = Value::Null;
    let error = match members.get("error").filter(|error| !error.is_null()) {
        Some(error) => error,
        None if is_error => &own,
        None => return false,
    };
    let says_nothing = |choice: &Value| {
        choice["finish_reason"] == "error"
            && choice["delta"]["content"].as_str().is_none_or(str::is_empty)
    };
    let is_alone = match members.get("choices") {
        None | Some(Value::Null) => true,
        Some(choices) => choices.as_array().is_some_and(|choices| choices.iter().all(says_nothing)),
    };
    is_alone && is_of_request(members) && error.as_object().is_none_or(is_of_request)
}

/// Whether any status among these members is one with which a request is refused.
fn is_of_request(members: &Map<String, Value>) -> bool {
    let statuses = ["code", "status", "status_code"].map(|name| members.get(name)?.as_u64());
    let of_http = statuses.into_iter().flatten().filter(|status| (400..600).contains(status));
    of_http.into_iter().all(|status| matches!(status, 400 | 413 | 422))
}

/// Members in which providers put an error or its text.
const TOLD: [&str; 18] = [
    "error",
    "message",
    "detail",
    "metadata",
    "raw",
    "errors",
    // Baidu, FastAPI, MiniMax, AWS and Tencent, gateways.
    "error_msg",
    "msg",
    "base_resp",
    "status_msg",
    "Message",
    "Response",
    "Error",
    "error_message",
    "reason",
    "details",
    "description",
    "error_description",
];

/// Facts from an answer's members.
#[derive(Default)]
struct Said {
    texts: Vec<String>,
    /// Whether an error code of the answer means that a request is too long.
    is_named: bool,
    /// Whether an error code of the answer means something else.
    is_rate: bool,
    /// llama.cpp's own members.
    prompt_tokens: Option<u64>,
    window_tokens: Option<u64>,
}

impl Said {
    fn take(&mut self, value: &Value, depth: usize) {
        if depth > MAX_DEPTH || self.texts.len() >= MAX_TEXTS {
            return;
        }
        match value {
            Value::String(text) => self.take_text(text, depth),
            Value::Array(elements) => {
                elements.iter().take(MAX_TEXTS).for_each(|element| self.take(element, depth + 1));
            }
            Value::Object(members) => self.take_members(members, depth),
            _ => {}
        }
    }

    fn take_members(&mut self, members: &Map<String, Value>, depth: usize) {
        for name in ["code", "type"] {
            let code = members.get(name).and_then(Value::as_str).map(str::to_ascii_lowercase);
            match code.as_deref() {
                Some(
                    "context_length_exceeded"
                    | "context_window_exceeded"
                    | "exceed_context_size_error"
                    | "model_max_prompt_tokens_exceeded"
                    | "prompt_too_long"
                    | "tokens_limit_reached",
                ) => self.is_named = true,
                Some("rate_limit_exceeded" | "tokens" | "insufficient_quota") => {
                    self.is_rate = true;
                }
                _ => {}
            }
        }
        let number = |name: &str| members.get(name).and_then(Value::as_u64);
        self.prompt_tokens = self.prompt_tokens.or(number("n_prompt_tokens"));
        self.window_tokens = self.window_tokens.or(number("n_ctx"));
        for name in TOLD {
            if let Some(value) = members.get(name) {
                self.take(value, depth + 1);
            }
        }
    }

    /// Reads a text, or the nested answer that a gateway has put into one.
    fn take_text(&mut self, text: &str, depth: usize) {
        let own = unwrapped(text);
        let bytes = own.strip_prefix("b'").and_then(|own| own.strip_suffix('\''));
        let json = bytes.map(|own| own.replace("\\n", "\n"));
        let json = json.as_deref().unwrap_or(own);
        match json.starts_with(['{', '[']).then(|| serde_json::from_str::<Value>(json)) {
            Some(Ok(value)) => self.take(&value, depth + 1),
            _ => self.texts.push(own.to_owned()),
        }
    }

    fn overflow(&self, sent: Option<Sent>) -> Option<Overflow> {
        if self.is_rate {
            return None;
        }
        let read = |text: &String| FORMS.iter().find_map(|form| Some((form, form.read(text)?)));
        let told =
            self.texts.iter().filter_map(read).max_by_key(|(_, told)| told.limit().is_some());
        let by_meaning = |sent: Sent| self.texts.iter().find_map(|text| meaning::read(text, sent));
        let by_text = match told {
            Some((form, told)) => told.overflow(form)?,
            None => match sent.and_then(by_meaning) {
                Some(overflow) => overflow,
                None if self.is_named => Overflow {
                    with_output: self.texts.iter().any(|text| text.contains("completion")),
                    ..Overflow::default()
                },
                None => return None,
            },
        };
        let Some(window_tokens) = self.window_tokens.filter(|_| self.is_named) else {
            return Some(by_text);
        };
        let input_tokens = self.prompt_tokens.or(by_text.input_tokens);
        Some(Overflow {
            window_tokens: Some(window_tokens),
            input_tokens,
            is_exact: input_tokens.is_some(),
            ..by_text
        })
    }
}

/// Removes the prefix that gateways put before the text of their own upstream.
fn unwrapped(text: &str) -> &str {
    let mut text = text.trim();
    for _ in 0..MAX_DEPTH {
        let ends = [": ", " - "].map(|end| text.find(end).map(|at| (at, end.len())));
        let Some((at, length)) = ends.into_iter().flatten().min() else { break };
        let before = &text[..at];
        let mut words = before.split(' ');
        let names_an_error =
            words.all(|word| word.ends_with("Error") || word.ends_with("Exception"));
        let is_wrapper = names_an_error
            || before.starts_with("Upstream error from ")
            || WRAPPERS.contains(&before);
        if !is_wrapper {
            break;
        }
        text = text[at + length..].trim_start();
    }
    text
}

/// Prefixes that some providers put before the text proper.
const WRAPPERS: [&str; 4] = [
    "Input validation error",
    "Invalid request",
    "ollama error",
    "<400> InternalError.Algo.InvalidParameter",
];

/// Form of a refusal: words with number fields in braces. Anything may follow.
struct Form {
    words: &'static str,
    with_output: bool,
    is_exact: bool,
}

/// Creates a form about the input alone.
const fn input(words: &'static str) -> Form {
    Form { words, with_output: false, is_exact: true }
}

/// Creates a form about input and output together.
const fn total(words: &'static str) -> Form {
    Form { words, with_output: true, is_exact: true }
}

/// Marks a form whose input count is not complete.
const fn about(form: Form) -> Form {
    Form { is_exact: false, ..form }
}

/// All forms; of two with the same beginning, the more specific one is first.
///
/// `{window}` is the total of input and output, `{cap}` the maximum input, `{input}` the actual
/// input (several add up), `{output}` the requested output, `{total}` both, `{n}` any number.
const FORMS: &[Form] = &[
    // OpenAI, Azure, DeepSeek, vLLM, llama-cpp-python.
    input(
        "This model's maximum context length is {window} tokens. However, your messages resulted in \
         {input} tokens",
    ),
    total(
        "This model's maximum context length is {window} tokens. However, you requested {total} \
         tokens ({input} in the messages, {output} in the completion)",
    ),
    total(
        "This model's maximum context length is {window} tokens. However, you requested {total} \
         tokens ({input} in the messages, {input} in the functions, and {output} in the completion)",
    ),
    total(
        "This model's maximum context length is {window} tokens, however you requested {total} \
         tokens ({input} in your prompt; {output} for the completion)",
    ),
    about(total(
        "This model's maximum context length is {window} tokens. However, you requested {output} \
         output tokens and your prompt contains at least {input} input tokens",
    )),
    about(input(
        "This model's maximum context length is {window} tokens. However, your prompt contains at \
         least {input} input tokens",
    )),
    input(
        "This model's maximum context length is {window} tokens. However, your request has {input} \
         input tokens",
    ),
    total(
        "This model's maximum context length is {window} tokens. However, you requested {total} \
         tokens",
    ),
    input("This model's maximum context length is {window} tokens"),
    total(
        "'max_tokens' or 'max_completion_tokens' is too large: {output}. This model's maximum \
         context length is {window} tokens and your request has {input} input tokens",
    ),
    total("max_tokens={output} cannot be greater than max_model_len=max_total_tokens={window}"),
    about(total(
        "You passed {input} input tokens and requested {output} output tokens. However, the model's \
         context length is only {window} tokens",
    )),
    input(
        "Input tokens exceed the configured limit of {cap} tokens. Your messages resulted in {input} \
         tokens",
    ),
    input("Your input exceeds the context window of this model"),
    // Anthropic.
    input("prompt is too long: {input} tokens > {window} maximum"),
    total("input length and `max_tokens` exceed context limit: {input} + {output} > {window}"),
    total("input length and max_tokens exceed context limit: {input} + {output} > {window}"),
    input("Request size exceeds model context window"),
    // Google.
    input("The input token count ({input}) exceeds the maximum number of tokens allowed ({cap})"),
    input("The input token count exceeds the maximum number of tokens allowed {cap}"),
    input("The input token count exceeds the maximum number of tokens allowed"),
    // llama.cpp; Ollama forwards it.
    input("request ({input} tokens) exceeds the available context size ({window} tokens)"),
    input("the request exceeds the available context size"),
    input("the input length exceeds the context length"),
    input("prompt too long; exceeded max context length"),
    // SGLang.
    input("The input ({input} tokens) is longer than the model's context length ({window} tokens)"),
    total(
        "Requested token count exceeds the model's maximum context length of {window} tokens. You \
         requested a total of {total} tokens: {input} tokens from the input messages and {output} \
         tokens for the completion",
    ),
    total("Requested token count exceeds the model's maximum context length of {window} tokens"),
    input("Input length ({input}) exceeds model's maximum context length ({window})"),
    input("Input length ({input} tokens) exceeds the maximum allowed length ({cap} tokens)"),
    // TGI and hosts that use it.
    total(
        "`inputs` tokens + `max_new_tokens` must be <= {window}. Given: {input} `inputs` tokens and \
         {output} `max_new_tokens`",
    ),
    total("`inputs` tokens + `max_new_tokens` must be <= {window}. Given: {input} `inputs` tokens"),
    input("`inputs` must have less than {cap} tokens. Given: {input}"),
    // Mistral.
    input(
        "Prompt contains {input} tokens and {n} draft tokens, too large for model with {window} \
         maximum context length",
    ),
    input(
        "Prompt contains {input} tokens, too large for model with {window} maximum context length",
    ),
    // Cerebras and Groq.
    total(
        "Please reduce the length of the messages or completion. Current length is {total} while \
         limit is {window}",
    ),
    total("Please reduce the length of the messages or completion."),
    // OpenRouter.
    about(total(
        "This endpoint's maximum context length is {window} tokens. However, you requested about \
         {total} tokens ({input} of text input, {input} of tool input, {output} in the output)",
    )),
    about(total(
        "This endpoint's maximum context length is {window} tokens. However, you requested about \
         {total} tokens ({input} of text input, {output} in the output)",
    )),
    about(input(
        "This endpoint's maximum context length is {window} tokens. However, you requested about \
         {input} tokens",
    )),
    input("Input length {input} exceeds the maximum allowed input length of {cap} tokens"),
    // LM Studio.
    input(
        "Trying to keep the first {input} tokens when context the overflows. However, the model is \
         loaded with context length of only {window} tokens",
    ),
    input(
        "The number of tokens to keep from the initial prompt is greater than the context length \
         (n_keep: {input}>= n_ctx: {window})",
    ),
    input("Context size has been exceeded"),
    input("Input length {input} exceeds context length {window}"),
    // llama-cpp-python's library.
    input("Requested tokens ({input}) exceed context window of {window}"),
    // Fireworks, Zhipu, Volcengine, GitHub Copilot.
    input("The prompt is too long: {input}, model maximum context length: {window}"),
    input("Prompt exceeds max length"),
    input("Input length {input} exceeds the maximum length {cap}"),
    input("prompt token count of {input} exceeds the limit of {cap}"),
    // xAI, Moonshot, Alibaba, MiniMax, Amazon Bedrock.
    input("This model's maximum prompt length is {cap} but the request contains {input} tokens"),
    input("Your request exceeded model token limit: {window} (requested: {input})"),
    input("Your request exceeded model token limit: {window}"),
    input("Range of input length should be [1, {cap}]"),
    input("invalid params, context window exceeds limit"),
    input("Input is too long for requested model"),
];

impl Form {
    /// Reads the numbers of `text`, if it begins with this form.
    fn read(&self, text: &str) -> Option<Told> {
        let mut told = Told::default();
        let mut rest = text;
        let mut words = self.words;
        while !words.is_empty() {
            let (literal, place) = words.split_once('{').unwrap_or((words, ""));
            rest = strip_words(rest, literal)?;
            let Some((name, after)) = place.split_once('}') else { break };
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            told.note(name, number(name, &rest[..digits])?);
            rest = &rest[digits..];
            words = after;
        }
        Some(told)
    }
}

/// Parses the number of the field `name`; `None` if no model has such a one. The output that a
/// caller asks for has no bounds, and neither has a total with it.
fn number(name: &str, digits: &str) -> Option<u64> {
    match (digits.parse::<u64>(), name) {
        (Ok(tokens), "output" | "total") => Some(tokens),
        (Err(_), "output" | "total") if !digits.is_empty() => Some(u64::MAX),
        (tokens, _) => tokens.ok().filter(|tokens| *tokens <= MAX_TOKENS),
    }
}

/// Strips `words` from the start of `text`, ignoring case.
fn strip_words<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    let head = text.get(..words.len())?;
    head.eq_ignore_ascii_case(words).then(|| &text[words.len()..])
}

/// Numbers found in a text.
#[derive(Default)]
struct Told {
    window: Option<u64>,
    cap: Option<u64>,
    input: Option<u64>,
    output: Option<u64>,
    total: Option<u64>,
}

impl Told {
    fn note(&mut self, name: &str, tokens: u64) {
        match name {
            "window" => self.window = Some(tokens),
            "cap" => self.cap = Some(tokens),
            "input" => self.input = Some(self.input.unwrap_or(0) + tokens),
            "output" => self.output = Some(tokens),
            "total" => self.total = Some(tokens),
            _ => {}
        }
    }

    fn limit(&self) -> Option<u64> {
        self.window.or(self.cap)
    }

    /// Combines the numbers; `None` if they contradict each other: a sum below the limit is no
    /// refusal.
    fn overflow(&self, form: &Form) -> Option<Overflow> {
        let sum = self.input.map(|input| input.saturating_add(self.output.unwrap_or(0)));
        let sum = self.total.max(sum);
        if sum.zip(self.limit()).is_some_and(|(sum, limit)| sum < limit) {
            return None;
        }
        // If no output is counted, the input does not fit.
        let with_output = form.with_output && self.output != Some(0);
        let rest = self.total.zip(self.output).map(|(total, output)| total.saturating_sub(output));
        let input_tokens = self.input.or(rest).or(self.total.filter(|_| !with_output));
        Some(Overflow {
            with_output,
            window_tokens: self.window,
            max_input_tokens: self.cap,
            input_tokens,
            is_exact: form.is_exact && input_tokens.is_some(),
        })
    }
}

impl Overflow {
    /// Whether the numbers can belong to a request that does not fit.
    fn is_possible(&self) -> bool {
        let limit = self.window_tokens.or(self.max_input_tokens);
        let is_above = self.input_tokens.zip(limit).is_none_or(|(input, limit)| input >= limit);
        limit != Some(0) && (is_above || self.with_output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line of the table.
    struct Row {
        vendor: String,
        status: u16,
        body: String,
        told: Option<Overflow>,
    }

    fn rows() -> Vec<Row> {
        let table = include_str!("../../../../tests/golden/overflow/texts.jsonl");
        let row = |line: &str| {
            let line: Value = serde_json::from_str(line).expect("a line is JSON");
            assert!(line["source"].as_str().is_some_and(|source| !source.is_empty()), "{line}");
            let told = line["told"].as_object().map(|told| {
                let number = |name: &str| told.get(name).and_then(Value::as_u64);
                Overflow {
                    with_output: told["with_output"] == true,
                    window_tokens: number("window_tokens"),
                    max_input_tokens: number("max_input_tokens"),
                    input_tokens: number("input_tokens"),
                    is_exact: told["is_exact"] == true,
                }
            });
            Row {
                vendor: line["vendor"].as_str().expect("a name").to_owned(),
                status: line["status"].as_u64().expect("a status") as u16,
                body: match &line["body"] {
                    Value::String(text) => text.clone(),
                    body => body.to_string(),
                },
                told,
            }
        };
        table.lines().map(row).collect()
    }

    #[test]
    fn each_vendors_words_are_read_and_what_looks_alike_is_not() {
        let rows = rows();
        for row in &rows {
            assert_eq!(
                recognise(row.status, row.body.as_bytes(), None),
                row.told,
                "{}",
                row.vendor
            );
        }
        let refusals = rows.iter().filter(|row| row.told.is_some()).count();
        assert!(refusals >= 45 && rows.len() - refusals >= 25, "{refusals} of {}", rows.len());
    }

    /// Refusals of many providers, and errors with another meaning that look like them, at a prompt of 14,000
    /// tokens.
    #[test]
    fn wordings_are_read_by_their_meaning() {
        let table = include_str!("../../../../tests/golden/overflow/meanings.jsonl");
        let sent = Some(Sent { prompt_tokens: 15_000, output_tokens: 500 });
        let mut wrong = Vec::new();
        for line in table.lines() {
            let row: Value = serde_json::from_str(line).expect("a line is JSON");
            let body = match &row["body"] {
                Value::String(text) => text.clone(),
                body => body.to_string(),
            };
            let status = row["status"].as_u64().expect("a status") as u16;
            let read = recognise(status, body.as_bytes(), sent);
            let limit = read.and_then(|read| read.window_tokens.or(read.max_input_tokens));
            let expected = (row["is_refusal"] == true, row["limit"].as_u64());
            if (read.is_some(), limit) != expected {
                wrong.push(format!("{body}: {read:?}, not {expected:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn any_requested_output_is_read() {
        for output in ["1000000000000000000", "18446744073709551615", "99999999999999999999"] {
            let said = format!(
                "This model's maximum context length is 4096 tokens. However, you requested {output} \
                 tokens (8 in the messages, {output} in the completion)."
            );
            let body = serde_json::json!({"error": {"message": said}}).to_string();
            let overflow = recognise(400, body.as_bytes(), None).expect("a refusal");
            let read = (overflow.window_tokens, overflow.input_tokens, overflow.with_output);
            assert_eq!(read, (Some(4096), Some(8), true), "{output}");
        }
        let said = "This model's maximum context length is 99999999999 tokens.";
        let body = serde_json::json!({"error": {"message": said}}).to_string();
        assert_eq!(recognise(400, body.as_bytes(), None), None);
    }

    #[test]
    fn a_failure_after_the_beginning_of_a_response_is_read() {
        let begun = "event: response.created\ndata: {\"type\":\"response.created\"}\n\n\
                     event: response.in_progress\ndata: {}\n\n";
        assert!(!has_event(begun.as_bytes()));
        let failed = format!(
            "{begun}event: response.failed\ndata: {{\"type\":\"response.failed\",\"response\":{{\
             \"status\":\"failed\",\"error\":{{\"code\":\"context_length_exceeded\",\"message\":\
             \"Your input exceeds the context window of this model.\"}}}}}}\n\n"
        );
        assert!(has_event(failed.as_bytes()));
        let (overflow, said) = recognise_event(failed.as_bytes(), None).expect("a refusal");
        assert!(!overflow.is_numbered() && said.contains("context_length_exceeded"));
        let other = failed
            .replace("context_length_exceeded", "server_error")
            .replace("Your input exceeds the context window of this model.", "An error occurred.");
        assert_eq!(recognise_event(other.as_bytes(), None), None);
    }

    #[test]
    fn no_other_status_and_no_other_place_makes_a_refusal() {
        for row in rows().iter().filter(|row| row.told.is_some()) {
            for status in [201, 401, 403, 404, 408, 409, 429, 500, 502, 503, 529] {
                assert_eq!(
                    recognise(status, row.body.as_bytes(), None),
                    None,
                    "{} {status}",
                    row.vendor
                );
            }
            let Ok(text) = serde_json::to_string(&row.body) else { panic!("a text is JSON") };
            for echo in [
                format!(
                    r#"{{"error":{{"message":"Unknown role: {}"}}}}"#,
                    &text[1..text.len() - 1]
                ),
                format!(r#"{{"error":{{"message":"Bad request","input":{text}}}}}"#),
                format!(r#"{{"choices":[{{"message":{{"content":{text}}}}}],"error":null}}"#),
            ] {
                assert_eq!(recognise(400, echo.as_bytes(), None), None, "{} {echo}", row.vendor);
            }
        }
    }

    #[test]
    fn a_refusal_as_a_streams_first_event_is_read_and_a_later_one_is_not() {
        for row in rows().iter().filter(|row| row.body.starts_with('{')) {
            let event = format!(": waiting\n\ndata: {}\n\n", row.body);
            let named = format!("event: error\r\ndata: {}\r\n\r\n", row.body);
            let content = r#"{"choices":[{"delta":{"content":"a"}}]}"#;
            let later = format!("data: {content}\n\n{event}");
            let begun = format!(
                "event: ping\ndata: {{}}\n\ndata: {{\"type\":\"message_start\"}}\n\n{event}"
            );
            let read =
                |stream: &str| recognise_event(stream.as_bytes(), None).map(|(told, _)| told);
            if row.status == 200 {
                assert_eq!(read(&event), row.told, "{}", row.vendor);
                assert_eq!(read(&begun), row.told, "{}", row.vendor);
            } else if row.told.is_some() {
                assert_eq!(read(&named), row.told, "{}", row.vendor);
            }
            assert_eq!(read(&later), None, "{}", row.vendor);
            // Half of an event yields nothing.
            assert_eq!(read(&event[..event.len() - 1]), None, "{}", row.vendor);
            assert!(
                has_event(event.as_bytes()) && !has_event(&event.as_bytes()[..event.len() - 1])
            );
        }
        assert_eq!(recognise_event(b"", None), None);
        assert_eq!(recognise_event(b"data: [DONE]\n\n", None), None);
    }

    #[test]
    fn what_is_cut_off_or_too_large_is_no_fault() {
        for row in rows() {
            for end in (0..row.body.len()).filter(|end| row.body.is_char_boundary(*end)) {
                // Any result comes from the front part only.
                let _ = recognise(row.status, &row.body.as_bytes()[..end], None);
            }
        }
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        assert_eq!(recognise(400, deep.as_bytes(), None), None);
        let said = "prompt is too long: 9 tokens > 8 maximum";
        let long =
            format!(r#"{{"error":{{"message":"{said}{}"}}}}"#, "x".repeat(MAX_REFUSAL_BYTES));
        assert_eq!(recognise(400, long.as_bytes(), None), None);
        let absurd = "prompt is too long: 99999999999999999999999 tokens > 8 maximum";
        assert_eq!(recognise(400, absurd.as_bytes(), None), None);
    }
}
