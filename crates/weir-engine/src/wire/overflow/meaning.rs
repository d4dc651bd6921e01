//! Refusals as too long by their meaning, for wordings that no form has: words for the prompt and for a
//! limit, and a number near weir's own count of what was sent.

use super::{MAX_TOKENS, Overflow};

/// What was sent, by weir's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    pub prompt_tokens: u64,
    /// Maximum output that was asked for.
    pub output_tokens: u64,
}

/// Words for what the model reads. The first may also be of its answer.
const PROMPT: [&str; 15] = [
    "token",
    "prompt",
    "input",
    "context",
    "message",
    "conversation",
    "sequence",
    "seq_len",
    "entrada",
    "eingabe",
    "entrée",
    "输入",
    "提示",
    "上下文",
    "プロンプト",
];
/// Words for a limit that is passed.
const LIMIT: [&str; 27] = [
    "limit",
    "maxim",
    "max_",
    "max ",
    "context window",
    "context length",
    "exceed",
    "too long",
    "too large",
    "too many tokens",
    "longer than",
    "greater than",
    "larger than",
    "less than",
    "at most",
    "does not fit",
    "doesn't fit",
    "only supports",
    "up to",
    "overschr",
    "überschr",
    "zu lang",
    "dépass",
    "supera",
    "超",
    "过长",
    "長すぎ",
];
/// Words of errors with another meaning.
const OTHER: [&str; 24] = [
    "too many tools",
    "per min",
    "per day",
    "per hour",
    "rate limit",
    "tpm",
    "quota",
    "image",
    "unknown",
    "invalid value",
    "unsupported",
    "not supported",
    "not permitted",
    "number of messages",
    "number of tools",
    "array",
    "string too long",
    "content management",
    "bytes",
    "file",
    "credit",
    "temperature",
    "stop sequence",
    "budget_tokens",
];
/// Names of the parameter that limits the output.
const OUTPUT_NAMES: [&str; 4] =
    ["max_completion_tokens", "max_output_tokens", "max_new_tokens", "max_tokens"];
/// Words that make a refusal without numbers.
const TOO_LONG: [&str; 10] = [
    "too long",
    "longer than",
    "exceed",
    "overflow",
    "does not fit",
    "too many tokens",
    "zu lang",
    "dépass",
    "超",
    "过长",
];
/// Maximum length of a refusal without numbers. Longer texts quote something.
const MAX_UNNUMBERED_BYTES: usize = 200;
/// Minimum plausible limit.
const MIN_LIMIT_TOKENS: u64 = 64;

/// Reads a text; `None` unless it refuses what was `sent` for being too long.
pub(super) fn read(text: &str, sent: Sent) -> Option<Overflow> {
    let mut text = text.to_lowercase();
    let has = |text: &str, words: &[&str]| words.iter().any(|word| text.contains(word));
    if has(&text, &OTHER) {
        return None;
    }
    let names_output = has(&text, &OUTPUT_NAMES);
    OUTPUT_NAMES.iter().for_each(|name| text = text.replace(name, "output"));
    let numbers = numbers(&text);
    // vLLM takes the prompt from the window, and finds less than nothing left for the output.
    if let Some(missing) = numbers.iter().find(|number| number.is_negative) {
        let window_tokens = sent.prompt_tokens.checked_sub(missing.tokens)?;
        // A caller's own -1 is no such difference.
        let is_meant = names_output && missing.tokens > 1 && window_tokens >= MIN_LIMIT_TOKENS;
        return is_meant
            .then(|| Overflow { window_tokens: Some(window_tokens), ..Overflow::default() });
    }
    if !has(&text, &PROMPT) || !has(&text, &LIMIT) {
        return None;
    }
    if numbers.is_empty() {
        let is_short =
            text.len() <= MAX_UNNUMBERED_BYTES && !names_output && !text.contains(['"', '`', '{']);
        let is_of_model = has(&text, &["prompt", "context", "token", "input", "输入", "上下文"]);
        return (is_short && is_of_model && has(&text, &TOO_LONG)).then(Overflow::default);
    }
    // A limit of the output alone is not the prompt's.
    let is_of_output = names_output || has(&text, &["output tokens", "completion tokens"]);
    if is_of_output && !has(&text, &PROMPT[1..]) {
        return None;
    }
    let with_output = names_output || has(&text, &["output", "completion", "generat"]);
    numbered(&text, &numbers, sent, with_output)
}

/// Combines the numbers of a text: one near weir's count, and a limit below it.
fn numbered(text: &str, numbers: &[Number], sent: Sent, with_output: bool) -> Option<Overflow> {
    let total = sent.prompt_tokens.saturating_add(sent.output_tokens);
    let is_near = |tokens: u64, own: u64| tokens >= own / 2 && tokens <= own.saturating_mul(2);
    let is_size = |number: &&Number| {
        is_near(number.tokens, sent.prompt_tokens) || (with_output && is_near(number.tokens, total))
    };
    // What follows words for a limit is the limit, even if it is near as well.
    let mut before = 0;
    let mut is_limit = Vec::with_capacity(numbers.len());
    for (place, number) in numbers.iter().enumerate() {
        let next = numbers.get(place + 1).map_or(text.len(), |next| next.start);
        let names = |words: &str| LIMIT_NAMES.iter().any(|word| words.contains(word));
        let follows = text[number.end..next].split_whitespace().take(3);
        let follows = follows.collect::<Vec<_>>().join(" ");
        is_limit.push(names(&text[before..number.start]) || names(&follows));
        before = number.end;
    }
    let size = numbers.iter().filter(is_size).map(|number| number.tokens).max()?;
    let below = |number: &&Number| {
        (MIN_LIMIT_TOKENS..size).contains(&number.tokens) && number.tokens != sent.output_tokens
    };
    let named = numbers.iter().zip(&is_limit).filter(|(number, named)| **named && below(number));
    let limit = named.map(|(number, _)| number.tokens).min();
    let limit = limit.or_else(|| numbers.iter().filter(below).map(|number| number.tokens).max())?;
    let is_input = !with_output
        && !["context", "window", "seq_len", "sequence", "model_len"]
            .iter()
            .any(|word| text.contains(word));
    Some(Overflow {
        with_output,
        window_tokens: Some(limit).filter(|_| !is_input),
        max_input_tokens: Some(limit).filter(|_| is_input),
        input_tokens: Some(size).filter(|_| !with_output),
        is_exact: !with_output,
    })
}

/// Words next to a limit.
const LIMIT_NAMES: [&str; 10] = [
    "limit",
    "max",
    "context",
    "window",
    "less than",
    "at most",
    "only",
    "up to",
    "seq_len",
    "上限",
];

/// Number of a text, with its place.
struct Number {
    start: usize,
    end: usize,
    tokens: u64,
    is_negative: bool,
}

/// Returns the whole numbers of a text, with or without separators of thousands. Digits of names, such
/// as a model's, are no numbers.
fn numbers(text: &str) -> Vec<Number> {
    let bytes = text.as_bytes();
    let mut numbers = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let start = at;
        let mut tokens = Some(0_u64);
        let is_separator = |at: usize| {
            matches!(bytes[at], b',' | b'_')
                && bytes.get(at + 1..at + 4).is_some_and(|next| next.iter().all(u8::is_ascii_digit))
        };
        while at < bytes.len() && (bytes[at].is_ascii_digit() || is_separator(at)) {
            if bytes[at].is_ascii_digit() {
                tokens = tokens
                    .and_then(|own| own.checked_mul(10)?.checked_add(u64::from(bytes[at] - b'0')));
            }
            at += 1;
        }
        let before = start.checked_sub(1).map(|place| bytes[place]);
        let earlier = start.checked_sub(2).map(|place| bytes[place]);
        let is_word = |byte: Option<u8>| {
            byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        let is_negative = before == Some(b'-') && !is_word(earlier);
        let is_named = is_word(before) || matches!(before, Some(b'.' | b'-')) && is_word(earlier);
        let is_named = is_named || bytes.get(at).is_some_and(u8::is_ascii_alphabetic);
        if let Some(tokens) = tokens.filter(|tokens| *tokens <= MAX_TOKENS && !is_named) {
            numbers.push(Number { start, end: at, tokens, is_negative });
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wording_that_no_form_has_is_read_by_its_meaning() {
        let sent = Sent { prompt_tokens: 13_500, output_tokens: 500 };
        for (text, limit) in [
            (
                "max_tokens must be at least 1, got -5308. (parameter=max_tokens, value=-5308)",
                Some(8192),
            ),
            (
                "AiError: The estimated number of input and maximum output tokens (14000) exceeded this model context window limit (8192). (a-b-c)",
                Some(8192),
            ),
            ("length of prompt_tokens (14000) must be less than max_seq_len (8192).", Some(8192)),
            ("Requested input length 14,000 exceeds maximum input length 8,192", Some(8192)),
            (
                "You asked for 14000 tokens (13500 in the prompt, 500 for output) but gpt-4-32k takes a maximum of 8192 tokens",
                Some(8192),
            ),
            ("模型最大上下文长度为 8192，您的输入长度为 14000，超过限制", Some(8192)),
            ("The input is longer than the model's context length", None),
            ("Prompt too long", None),
            ("输入内容超过模型上下文长度", None),
        ] {
            let read = read(text, sent).unwrap_or_else(|| panic!("not read: {text}"));
            assert_eq!(read.window_tokens.or(read.max_input_tokens), limit, "{text}");
        }
    }

    #[test]
    fn an_error_with_another_meaning_is_none() {
        let sent = Sent { prompt_tokens: 13_500, output_tokens: 500 };
        for text in [
            "max_tokens is too large: 100000. This model supports at most 4096 completion tokens",
            "max_tokens is too large: 14000. This model supports at most 8192 completion tokens",
            "max_tokens: 14000 > 8192, which is the maximum allowed number of output tokens",
            "max_tokens must be at least 1, got 0",
            "max_tokens must be at least 1, got -1",
            "Rate limit reached: Limit 6000 tokens per minute, requested 14000",
            "Request too large on tokens per min (TPM): Limit 6000, Requested 14000",
            "image exceeds 5 MB maximum: 5316852 bytes > 5242880 bytes",
            "Invalid 'messages': array too long. Expected maximum length 2048, got 13500",
            "Too many tools: 14000 exceeds the maximum number of tools 128",
            "Request exceeds the maximum size",
            "temperature must be at most 2 for this input",
            "Unknown role: prompt is too long: 14000 tokens > 8192 maximum",
            "The input does not have a valid schema",
            "Input length 2049 exceeds the maximum allowed entries",
            "thinking.budget_tokens exceeds max_tokens",
        ] {
            assert_eq!(read(text, sent), None, "{text}");
        }
    }
}
