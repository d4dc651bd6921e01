//! Refusals as too long by their meaning, for wordings that no form has: words for the prompt and for a
//! limit, and a number near weir's own count of what was sent.

use unicode_normalization::UnicodeNormalization as _;

use super::{MAX_TOKENS, Overflow};

/// What was sent, by weir's count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    pub prompt_tokens: u64,
    /// Maximum output that was asked for.
    pub output_tokens: u64,
}

/// Words for what the model reads, without accents. The first two may also be of its answer.
const PROMPT: [&str; 25] = [
    "token",
    "jeton",
    "mensaje",
    "prompt",
    "input",
    "context",
    "message",
    "conversation",
    "sequence",
    "seq_len",
    "request",
    "entrada",
    "eingabe",
    "entree",
    "输入",
    "提示",
    "上下文",
    "入力",
    "プロンプト",
    "токен",
    "промпт",
    "запрос",
    "토큰",
    "프롬프트",
    "입력",
];
/// Words for a limit that is passed.
const LIMIT: [&str; 46] = [
    "surpass",
    "more than",
    "au plus",
    "limit",
    "maxim",
    "max_",
    "max ",
    "context window",
    "context length",
    "exceed",
    "exced",
    "above the",
    "ultrapass",
    "too long",
    "too large",
    "too many tokens",
    "longer than",
    "greater than",
    "larger than",
    "less than",
    "shorter than",
    "no more than",
    "at most",
    "must be in",
    "allowed",
    "is over",
    "under ",
    "not enough",
    "model context",
    " > ",
    "does not fit",
    "doesn't fit",
    "only supports",
    "up to",
    "overschr",
    "uberschr",
    "zu lang",
    "depass",
    "supera",
    "超",
    "过长",
    "長すぎ",
    "лимит",
    "превыша",
    "초과",
    "최대",
];
/// Words of errors with another meaning.
const OTHER: [&str; 43] = [
    "maximum tokens value",
    "maximum tokens you requested",
    "input should be",
    "per min",
    "per day",
    "per hour",
    "per month",
    "this month",
    "today",
    "rate limit",
    "time limit",
    "tpm",
    "quota",
    "credit",
    "billing",
    "unknown ",
    "unsupported",
    "not supported",
    "not permitted",
    "number of messages",
    "number of tools",
    "tool calls",
    "too many tools",
    "too small",
    "array",
    "string too long",
    "content management",
    "threshold",
    "concurren",
    "breakpoint",
    "caching",
    "cache_key",
    "batch size",
    "depth",
    "complexity",
    "schema",
    "duration",
    "entries",
    "temperature",
    "stop sequence",
    "budget",
    "metadata",
    "number of pages",
];
/// Words of such errors, unless a size near weir's own count stands next to a limit.
const UNLESS_NUMBERED: [&str; 5] = ["your plan", "upgrade", "unknown", "bytes", "minimum"];
/// Words of such errors, unless the text is about tokens or the model's length.
const MEDIA: [&str; 5] = ["image", "audio", "video", "document", " file"];
const OF_TOKENS: [&str; 3] = ["token", "model length", "context length"];
/// Names of the parameter that limits the output.
const OUTPUT_NAMES: [&str; 4] =
    ["max_completion_tokens", "max_output_tokens", "max_new_tokens", "max_tokens"];
/// Names of the answer.
const OUTPUT: [&str; 3] = ["output", "completion", "generat"];
/// Words that make a refusal if they stand alone.
const TOO_LONG: [&str; 10] = [
    "超长",
    "too long",
    "longer than",
    "overflow",
    "does not fit",
    "too many tokens",
    "zu lang",
    "超过",
    "过长",
    "長すぎ",
];
/// Words that make one together with words for the length of a prompt.
const PASSED: [&str; 10] = [
    "exceed",
    "exced",
    "greater than",
    "too large",
    "depass",
    "超",
    "превыша",
    "uberschr",
    "supera",
    "초과",
];
const LENGTH: [&str; 9] =
    ["token", "context", "length", "window", "max size", "model limit", "上下文", "长度", "токен"];
/// Units of numbers that are no tokens.
const UNITS: [&str; 24] = [
    "character",
    "chars",
    "message",
    "propert",
    "item",
    "element",
    "page",
    "second",
    "millisecond",
    "ms",
    "byte",
    "kb",
    "kib",
    "mb",
    "mib",
    "gb",
    "tool",
    "image",
    "pixel",
    "request",
    "line",
    "dimension",
    "level",
    "day",
];
/// Maximum length of a refusal without numbers. Longer texts quote something.
const MAX_UNNUMBERED_BYTES: usize = 200;
/// Minimum plausible limit.
const MIN_LIMIT_TOKENS: u64 = 64;

fn has(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

/// Returns a text in lower case, its Latin letters without accents.
fn folded(text: &str) -> String {
    let plain = |letter: char| match letter {
        '\u{c0}'..='\u{17f}' => std::iter::once(letter).nfd().next().unwrap_or(letter),
        _ => letter,
    };
    text.chars().map(plain).collect::<String>().to_lowercase()
}

/// Reads a text; `None` unless it refuses what was `sent` for being too long.
pub(super) fn read(text: &str, sent: Sent) -> Option<Overflow> {
    let mut text = folded(text);
    let is_other = has(&text, &OTHER) || has(&text, &MEDIA) && !has(&text, &OF_TOKENS);
    if is_other {
        return None;
    }
    for prefix in ["invalid input:", "invalid request:"] {
        text = text.strip_prefix(prefix).unwrap_or(&text).to_owned();
    }
    let names_output = has(&text, &OUTPUT_NAMES);
    OUTPUT_NAMES.iter().for_each(|name| text = text.replace(name, "output"));
    let mut numbers = numbers(&text);
    let negative = numbers.iter().find(|number| number.is_negative).map(|own| own.tokens);
    let passed_by = numbers.iter().find(|own| text[..own.start].trim_end().ends_with(" by"));
    let passed_by = passed_by.map(|number| number.tokens);
    let all = numbers.len();
    numbers.retain(|number| !number.is_negative && !number.has_other_unit(&text));
    let with_output = names_output || has(&text, &OUTPUT);
    let is_about = has(&text, &PROMPT) && has(&text, &LIMIT);
    let numbered =
        (is_about && !numbers.is_empty()).then(|| numbered(&text, &numbers, sent, with_output));
    if let Some(overflow) = numbered.flatten() {
        return Some(overflow);
    }
    if has(&text, &UNLESS_NUMBERED) {
        return None;
    }
    let alone = || limit_alone(&text, &numbers, sent);
    if let Some(passed_by) = passed_by.filter(|_| is_about && !with_output && alone().is_none()) {
        let window_tokens = sent.prompt_tokens.checked_sub(passed_by);
        let window_tokens = window_tokens.filter(|own| *own >= MIN_LIMIT_TOKENS)?;
        return Some(Overflow { window_tokens: Some(window_tokens), ..Overflow::default() });
    }
    // vLLM takes the prompt from the window, and finds less than nothing left for the output.
    if let Some(missing) = negative {
        let window_tokens = sent.prompt_tokens.checked_sub(missing)?;
        // A caller's own -1 is no such difference.
        let is_meant = names_output && missing > 1 && window_tokens >= MIN_LIMIT_TOKENS;
        return is_meant
            .then(|| Overflow { window_tokens: Some(window_tokens), ..Overflow::default() });
    }
    if !is_about || names_output || !is_alone(&text) {
        return None;
    }
    match (&numbers[..], all) {
        ([], 0) => (text.len() <= MAX_UNNUMBERED_BYTES).then(Overflow::default),
        _ => alone(),
    }
}

/// Whether the words before anything that is quoted say that the prompt is too long.
fn is_alone(text: &str) -> bool {
    let head = &text[..text.find(['"', '`', '{']).unwrap_or(text.len())];
    let is_of_model =
        ["prompt", "context", "token", "input", "输入", "上下文", "入力", "токен", "messages"];
    has(head, &is_of_model) && (has(head, &TOO_LONG) || has(head, &PASSED) && has(head, &LENGTH))
}

/// Reads a text with a limit and no size.
fn limit_alone(text: &str, numbers: &[Number], sent: Sent) -> Option<Overflow> {
    let is_limit = limits(text, numbers);
    let most_tokens = sent.prompt_tokens.saturating_mul(3) / 2;
    let plausible = |number: &&Number| (MIN_LIMIT_TOKENS..most_tokens).contains(&number.tokens);
    let mut named = numbers.iter().zip(is_limit).filter(|(_, named)| *named).map(|(own, _)| own);
    let limit = named.find(plausible)?.tokens;
    let is_window = has(text, &WINDOW);
    Some(Overflow {
        window_tokens: Some(limit).filter(|_| is_window),
        max_input_tokens: Some(limit).filter(|_| !is_window),
        ..Overflow::default()
    })
}

/// Words for what input and output share.
const WINDOW: [&str; 5] = ["context", "window", "seq_len", "sequence", "model_len"];

/// Returns for each number whether the words around it call it a limit.
fn limits(text: &str, numbers: &[Number]) -> Vec<bool> {
    let mut before = 0;
    let mut is_limit = Vec::with_capacity(numbers.len());
    for (place, number) in numbers.iter().enumerate() {
        let next = numbers.get(place + 1).map_or(text.len(), |next| next.start);
        let follows = text[number.end..next].split_whitespace().take(3);
        let follows = follows.collect::<Vec<_>>().join(" ");
        is_limit
            .push(has(&text[before..number.start], &LIMIT_NAMES) || has(&follows, &LIMIT_NAMES));
        before = number.end;
    }
    is_limit
}

/// Combines the numbers of a text: one near weir's count, and a limit below it.
fn numbered(text: &str, numbers: &[Number], sent: Sent, with_output: bool) -> Option<Overflow> {
    let total = sent.prompt_tokens.saturating_add(sent.output_tokens);
    let is_near = |tokens: u64, own: u64| tokens >= own / 2 && tokens <= own.saturating_mul(2);
    let is_size = |number: &&Number| {
        is_near(number.tokens, sent.prompt_tokens) || (with_output && is_near(number.tokens, total))
    };
    // What follows words for a limit is the limit, even if it is near as well.
    let is_limit = limits(text, numbers);
    let size = numbers.iter().filter(is_size).max_by_key(|number| number.tokens)?;
    if is_of_output(text, numbers, size) {
        return None;
    }
    let size = size.tokens;
    let below = |number: &&Number| {
        (MIN_LIMIT_TOKENS..size).contains(&number.tokens) && number.tokens != sent.output_tokens
    };
    let named = numbers.iter().zip(&is_limit).filter(|(number, named)| **named && below(number));
    let limit = named.map(|(number, _)| number.tokens).min();
    let limit = limit.or_else(|| numbers.iter().filter(below).map(|number| number.tokens).max())?;
    let is_input = !with_output && !has(text, &WINDOW);
    Some(Overflow {
        with_output,
        window_tokens: Some(limit).filter(|_| !is_input),
        max_input_tokens: Some(limit).filter(|_| is_input),
        input_tokens: Some(size).filter(|_| !with_output),
        is_exact: !with_output,
    })
}

/// Whether a size is the output's: the nearest words before it that name prompt or output name the output alone.
fn is_of_output(text: &str, numbers: &[Number], size: &Number) -> bool {
    let mut end = size.start;
    let earlier = numbers.iter().rev().filter(|number| number.end <= size.start);
    for start in earlier.map(|number| number.end).chain([0]) {
        let words = &text[start..end];
        // Both have tokens.
        if has(words, &PROMPT[2..]) {
            return false;
        }
        if has(words, &OUTPUT) {
            return true;
        }
        end = start;
    }
    // Nothing before it: what follows counts.
    has(text, &OUTPUT) && !has(text, &PROMPT[2..])
}

/// Words next to a limit.
const LIMIT_NAMES: [&str; 21] = [
    "au plus",
    "limit",
    "max",
    "context",
    "window",
    "less than",
    "shorter than",
    "no more than",
    "at most",
    "only",
    "up to",
    "under",
    "must be in",
    "allowed",
    "exceed the",
    "exceeds the",
    "have",
    "seq_len",
    "上限",
    "限制",
    "лимит",
];

/// Number of a text, with its place.
struct Number {
    start: usize,
    end: usize,
    tokens: u64,
    is_negative: bool,
}

impl Number {
    /// Whether the next word is a unit other than tokens, or it is what a limit was passed by.
    fn has_other_unit(&self, text: &str) -> bool {
        let is_end = |letter: char| !letter.is_alphanumeric();
        let word = text[self.end..].trim_start_matches([' ', ')', ']']).split(is_end).next();
        let word = word.unwrap_or_default();
        // `ms` and the like are whole words.
        let is_unit = |unit: &str| {
            let is_beginning = unit.len() > 3 && word.starts_with(unit);
            is_beginning || word.strip_suffix('s').unwrap_or(word) == unit || word == unit
        };
        let before = text[..self.start].trim_end();
        UNITS.iter().any(|unit| is_unit(unit))
            || before.ends_with("exceeded by")
            || before.ends_with("over by")
    }
}

/// Returns the whole numbers of a text, with or without separators of thousands, or in thousands ("14k").
/// Digits of names, such as a model's, are no numbers.
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
        let mut group = 0;
        while let Some(byte) = bytes.get(at) {
            if byte.is_ascii_digit() {
                let digit = u64::from(byte - b'0');
                tokens = tokens.and_then(|own| own.checked_mul(10)?.checked_add(digit));
                (at, group) = (at + 1, group + 1);
                continue;
            }
            match separator(bytes, at).filter(|_| (1..=3).contains(&group)) {
                Some(length) => (at, group) = (at + length, 0),
                None => break,
            }
        }
        let before = start.checked_sub(1).map(|place| bytes[place]);
        let earlier = start.checked_sub(2).map(|place| bytes[place]);
        let is_word = |byte: Option<u8>| {
            byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        let is_negative = before == Some(b'-') && !is_word(earlier);
        let is_named = is_word(before) || matches!(before, Some(b'.' | b'-')) && is_word(earlier);
        let is_thousands = bytes.get(at) == Some(&b'k') && !is_word(bytes.get(at + 1).copied());
        if is_thousands {
            tokens = tokens.and_then(|own| own.checked_mul(1000));
        }
        let is_named =
            is_named || !is_thousands && bytes.get(at).is_some_and(u8::is_ascii_alphabetic);
        let is_id = ["id", "id:", "id="].iter().any(|own| text[..start].trim_end().ends_with(own));
        let is_named = is_named || is_id;
        let end = at + usize::from(is_thousands);
        if let Some(tokens) = tokens.filter(|tokens| *tokens <= MAX_TOKENS && !is_named) {
            numbers.push(Number { start, end, tokens, is_negative });
        }
    }
    numbers
}

/// Returns the length of a separator of thousands at this place.
fn separator(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    let separators: [&[u8]; 6] =
        [b",", b"_", b".", b" ", "\u{a0}".as_bytes(), "\u{202f}".as_bytes()];
    let length = separators.into_iter().find(|own| rest.starts_with(own))?.len();
    let group = rest.get(length..length + 3)?;
    let is_more = rest.get(length + 3).is_some_and(u8::is_ascii_digit);
    (group.iter().all(u8::is_ascii_digit) && !is_more).then_some(length)
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
            (
                "too many tokens: size limit exceeded by 5308 tokens. Try using shorter or fewer inputs, or setting prompt_truncation='AUTO'.",
                Some(8192),
            ),
            ("El mensaje tiene 14000 tokens y el máximo permitido es 8192", Some(8192)),
            ("La requête contient 14000 jetons, le modèle accepte au plus 8192 jetons", Some(8192)),
            (
                "Number of tokens in the prompt (14000) is more than the context of the model (8192)",
                Some(8192),
            ),
            (
                "The prompt contains 14000 tokens which surpasses the 8192 tokens accepted",
                Some(8192),
            ),
            ("Prompt 超长", None),
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
