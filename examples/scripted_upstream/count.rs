//! Prompt token counts by tiktoken-rs and the published framing rules, cached by content.
//!
//! Shares no code with the proxy's own counting, which it judges.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use tiktoken_rs::{CoreBPE, cl100k_base_singleton, o200k_base_singleton};
use xxhash_rust::xxh3::{Xxh3, xxh3_128_with_seed};

use super::locked;
use super::memory::Generations;
use super::validate::Message;

pub const REPLY_TOKENS: u64 = 3;
const MESSAGE_TOKENS: u64 = 3;
const NAME_TOKENS: u64 = 1;
const CALL_TOKENS: u64 = 7;
const LEGACY_CALL_TOKENS: u64 = 3;
const TOOLS_TOKENS: u64 = 9;
/// Tools after a system message cost less, since both share one frame.
const TOOLS_BESIDE_SYSTEM_TOKENS: u64 = 5;
const IMAGE_BASE_TOKENS: u64 = 85;
const IMAGE_TILE_TOKENS: u64 = 170;
const MAX_REMEMBERED: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    O200k,
    Cl100k,
    /// Models whose names begin with `foreign`: the vocabulary from `--tokenizer`, or else `Cl100k`
    /// with one token per digit.
    Foreign,
    /// Models called `foreign-` and a name in `OPEN`: that open model's vocabulary.
    Deepseek,
    Mistral,
    Qwen,
}

/// Available vocabularies of open models.
const OPEN: [(&str, Encoding); 3] = [
    ("deepseek_v3", Encoding::Deepseek),
    ("mistral_v3", Encoding::Mistral),
    ("qwen2", Encoding::Qwen),
];

/// The vocabulary from `--tokenizer`.
static FOREIGN: OnceLock<Vocabulary> = OnceLock::new();

enum Vocabulary {
    Tekken(CoreBPE),
    Json(Box<tokenizers::Tokenizer>),
}

/// Reads the vocabulary of foreign models: one of Mistral's `tekken_….json`, or a `tokenizer.json`.
pub fn read_tokenizer(path: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let file: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let vocabulary = match file.get("model") {
        Some(_) => {
            let read = tokenizers::Tokenizer::from_bytes(&text);
            let mut tokenizer = read.map_err(|error| error.to_string())?;
            tokenizer.set_encode_special_tokens(true);
            Vocabulary::Json(Box::new(tokenizer))
        }
        None => Vocabulary::Tekken(tekken(&file)?),
    };
    // A second server of this process has the same one.
    let _ = FOREIGN.set(vocabulary);
    Ok(())
}

fn tekken(file: &Value) -> Result<CoreBPE, String> {
    let number = |name: &str| file["config"][name].as_u64().unwrap_or(0) as usize;
    let words = number("default_vocab_size").saturating_sub(number("default_num_special_tokens"));
    let vocabulary = file["vocab"].as_array().ok_or("there is no vocab")?.iter().take(words);
    let ranks = vocabulary.map(|word| {
        let bytes = STANDARD.decode(word["token_bytes"].as_str().unwrap_or_default());
        let rank = word["rank"].as_u64().and_then(|rank| u32::try_from(rank).ok());
        bytes.ok().zip(rank).ok_or("a word has no bytes or no rank")
    });
    let ranks = ranks.collect::<Result<_, _>>()?;
    let pattern = file["config"]["pattern"].as_str().ok_or("there is no pattern")?;
    CoreBPE::new(ranks, Default::default(), pattern).map_err(|error| error.to_string())
}

impl Encoding {
    pub fn for_model(model: &str) -> Self {
        let name = model.rsplit('/').next().unwrap_or(model);
        let name = name.strip_prefix("ft:").unwrap_or(name);
        if let Some(rest) = name.strip_prefix("foreign") {
            let open = OPEN.iter().find(|(name, _)| rest.strip_prefix('-') == Some(name));
            return open.map_or(Self::Foreign, |(_, open)| *open);
        }
        let older = name == "gpt-4" || name.starts_with("gpt-4-") || name.starts_with("gpt-4:");
        if older || name.starts_with("gpt-3.5") || name.starts_with("gpt-35") {
            Self::Cl100k
        } else {
            Self::O200k
        }
    }

    fn bpe(self) -> &'static CoreBPE {
        match self {
            Self::O200k => o200k_base_singleton(),
            _ => cl100k_base_singleton(),
        }
    }

    pub fn encode(self, text: &str) -> Vec<u32> {
        if let Some((name, _)) = OPEN.iter().find(|(_, open)| *open == self)
            && let Some(vocabulary) = tiktoken::get_encoding(name)
        {
            return vocabulary.encode(text);
        }
        if self == Self::Foreign {
            match FOREIGN.get() {
                Some(Vocabulary::Tekken(bpe)) => return bpe.encode_ordinary(text),
                Some(Vocabulary::Json(tokenizer)) => {
                    let encoded = tokenizer.encode_fast(text, false);
                    return encoded.map(|own| own.get_ids().to_vec()).unwrap_or_default();
                }
                None => {}
            }
            let pieces = text.split_inclusive(char::is_numeric).flat_map(|piece| {
                let digit = piece.char_indices().next_back().filter(|(_, last)| last.is_numeric());
                let (before, digit) = piece.split_at(digit.map_or(piece.len(), |(at, _)| at));
                [before, digit]
            });
            return pieces.flat_map(|piece| self.bpe().encode_ordinary(piece)).collect();
        }
        self.bpe().encode_ordinary(text)
    }

    pub fn count(self, text: &str) -> u64 {
        self.encode(text).len() as u64
    }
}

/// Tokens of one piece of a prompt, and its identity.
pub struct Tally {
    encoding: Encoding,
    pub ranks: Vec<u32>,
    framing: u64,
    /// Identity of parts that are not text, such as an image.
    other: Xxh3,
}

impl Tally {
    pub fn new(encoding: Encoding) -> Self {
        Self { encoding, ranks: Vec::new(), framing: 0, other: Xxh3::new() }
    }

    fn text(&mut self, text: &str) {
        self.ranks.extend(self.encoding.encode(text));
    }

    pub fn tokens(&self) -> u64 {
        self.ranks.len() as u64 + self.framing
    }

    pub fn identity(&mut self) -> u128 {
        let bytes: Vec<u8> = self.ranks.iter().flat_map(|rank| rank.to_le_bytes()).collect();
        self.other.update(&bytes);
        self.other.update(&self.framing.to_le_bytes());
        self.other.digest128()
    }

    /// Counts a message. `suffix` ends its text: the newline before tool definitions.
    pub fn message(&mut self, message: &Map<String, Value>, suffix: &str) {
        self.framing += MESSAGE_TOKENS;
        let role = string(message, "role");
        self.text(role);
        match message.get("content") {
            Some(Value::String(text)) if suffix.is_empty() => self.text(text),
            Some(Value::String(text)) => self.text(&format!("{text}{suffix}")),
            Some(Value::Array(parts)) => parts.iter().for_each(|part| self.part(part)),
            _ => {}
        }
        self.text(string(message, "refusal"));
        let name = string(message, "name");
        if !name.is_empty() {
            self.framing += NAME_TOKENS;
            self.text(name);
        }
        let calls = message.get("tool_calls").and_then(Value::as_array);
        for call in calls.into_iter().flatten() {
            self.framing += CALL_TOKENS;
            for (kind, input) in [("function", "arguments"), ("custom", "input")] {
                if let Some(called) = call.get(kind).and_then(Value::as_object) {
                    self.text(string(called, "name"));
                    self.text(string(called, input));
                }
            }
        }
        if let Some(call) = message.get("function_call").and_then(Value::as_object) {
            self.framing += LEGACY_CALL_TOKENS;
            self.text(string(call, "name"));
            self.text(string(call, "arguments"));
        }
    }

    fn part(&mut self, part: &Value) {
        let Some(part) = part.as_object() else { return };
        match string(part, "type") {
            "text" => self.text(string(part, "text")),
            "refusal" => self.text(string(part, "refusal")),
            "image_url" => {
                let image = part.get("image_url").and_then(Value::as_object);
                let url = image.map_or("", |image| string(image, "url"));
                let detail = image.map_or("", |image| string(image, "detail"));
                self.framing += image_tokens(url, detail);
                self.other.update(url.as_bytes());
            }
            _ => self.other.update(Value::Object(part.clone()).to_string().as_bytes()),
        }
    }

    /// Counts tool definitions as the TypeScript that the model reads.
    pub fn tools(&mut self, definitions: &Value, beside_system: bool) {
        let mut source = String::from("namespace functions {\n\n");
        for definition in definitions.as_array().into_iter().flatten() {
            let function = definition.get("function").unwrap_or(definition);
            declare(function, &mut source);
        }
        source.push_str("} // namespace functions");
        self.framing += if beside_system { TOOLS_BESIDE_SYSTEM_TOKENS } else { TOOLS_TOKENS };
        self.text(&source);
    }

    /// Counts an answer's schema in the same notation.
    pub fn schema(&mut self, schema: &Value) {
        let mut source = String::new();
        type_of(schema, 0, &mut source);
        self.text(&source);
    }
}

fn string<'a>(object: &'a Map<String, Value>, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or("")
}

fn declare(function: &Value, source: &mut String) {
    let name = function["name"].as_str().unwrap_or("");
    if let Some(description) = function["description"].as_str() {
        source.push_str(&format!("// {description}\n"));
    }
    let parameters = &function["parameters"];
    let takes_none = parameters["properties"].as_object().is_none_or(Map::is_empty);
    if takes_none {
        source.push_str(&format!("type {name} = () => any;\n\n"));
        return;
    }
    source.push_str(&format!("type {name} = (_: {{\n"));
    members_of(parameters, 0, source);
    source.push_str("}) => any;\n\n");
}

fn members_of(schema: &Value, depth: usize, source: &mut String) {
    let required = schema["required"].as_array();
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(description) = member["description"].as_str().filter(|_| depth < 2) {
            source.push_str(&format!("// {description}\n"));
        }
        let needed = required.is_some_and(|names| names.iter().any(|known| known == name));
        source.push_str(name);
        source.push_str(if needed { ": " } else { "?: " });
        type_of(member, depth + 1, source);
        source.push_str(",\n");
    }
}

fn type_of(schema: &Value, depth: usize, source: &mut String) {
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        source.push_str(&values.join(" | "));
        return;
    }
    let alternatives = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array());
    if let Some(alternatives) = alternatives {
        for (index, alternative) in alternatives.iter().enumerate() {
            source.push_str(if index == 0 { "" } else { " | " });
            type_of(alternative, depth, source);
        }
        return;
    }
    match schema["type"].as_str().unwrap_or("any") {
        "integer" => source.push_str("number"),
        "array" => {
            match schema.get("items") {
                Some(items) => type_of(items, depth, source),
                None => source.push_str("any"),
            }
            source.push_str("[]");
        }
        "object" => {
            source.push_str("{\n");
            members_of(schema, depth, source);
            source.push('}');
        }
        other => source.push_str(other),
    }
}

/// Counts an image by the published tile rule if its size is known, else the base: a judge must not
/// charge for unknown parts.
fn image_tokens(url: &str, detail: &str) -> u64 {
    let size = if detail == "low" { None } else { png_size(url) };
    let Some((width, height)) = size else {
        return IMAGE_BASE_TOKENS;
    };
    let (width, height) = (f64::from(width.max(1)), f64::from(height.max(1)));
    let fit = (2048.0 / width.max(height)).min(1.0);
    let shrink = (768.0 / (width.min(height) * fit)).min(1.0) * fit;
    let tiles = |side: f64| ((side * shrink) / 512.0).ceil() as u64;
    IMAGE_BASE_TOKENS + IMAGE_TILE_TOKENS * tiles(width) * tiles(height)
}

fn png_size(url: &str) -> Option<(u32, u32)> {
    let encoded = url.strip_prefix("data:image/png;base64,")?;
    let head = STANDARD.decode(encoded.get(..32)?).ok()?;
    let side = |at: usize| Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?));
    Some((side(16)?, side(20)?))
}

/// Known messages and tool lists, by their bytes.
pub struct Counts {
    known: Mutex<Generations<Arc<Message>>>,
}

impl Default for Counts {
    fn default() -> Self {
        Self { known: Mutex::new(Generations::new(MAX_REMEMBERED)) }
    }
}

impl Counts {
    /// Returns the result of `read` for `text`, computed once for each `purpose`.
    pub fn recall(&self, text: &str, purpose: u64, read: impl Fn() -> Message) -> Arc<Message> {
        let key = xxh3_128_with_seed(text.as_bytes(), purpose);
        if let Some(known) = locked(&self.known).find(key) {
            return known.clone();
        }
        // Two requests may read the same text at once; both get the same result.
        let message = Arc::new(read());
        locked(&self.known).insert(key, message.clone());
        message
    }
}
