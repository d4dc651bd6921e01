//! Parts of a prompt that cost more than text or lie elsewhere, found by their members at any depth without
//! parsing the body.

use std::borrow::Cow;

use memchr::memmem;

use super::Allowance;
use crate::wire::json;

/// Letters of base64 for a token of audio: 32 tokens a second (Google; OpenAI has 10 to 20) at 6 kbit/s.
const AUDIO_BYTES: u64 = 31;
/// The same without compression: 8,000 bytes a second.
const RAW_AUDIO_BYTES: u64 = 333;

impl Allowance {
    /// Finds parts of the prompt that cost more than text, by their members.
    pub(super) fn marks(&mut self, text: &str) {
        let (mut has_document, mut has_url) = (false, false);
        let (mut data_bytes, mut is_raw, mut is_compressed) = (0_u64, false, false);
        for_each_member(text, |name, raw| {
            let is_text = raw.starts_with('"');
            match name {
                "type" if is_text => match first_string(raw).as_ref() {
                    "input_audio" | "audio" => self.has_audio_input = true,
                    "audio_url" => (self.has_audio_input, self.is_elsewhere) = (true, true),
                    "image" | "image_url" | "input_image" => self.images += 1,
                    "document" | "file" => has_document = true,
                    "url" => has_url = true,
                    "container_upload" | "item_reference" | "document_url" | "video_url"
                    | "input_video" | "video" | "resource_link" => self.is_elsewhere = true,
                    _ => {}
                },
                "ttl" if is_text => self.has_long_writes |= first_string(raw) != "5m",
                // Mistral has addresses under the names of the parts; Gemini caches contexts by name.
                "file_id" | "file_data" | "fileId" | "input_audio" | "cached_content"
                | "cachedContent"
                    if is_text =>
                {
                    self.is_elsewhere = true;
                }
                "file_url" | "file_uri" | "fileUri" | "document_url" | "pdf_url" | "video_url"
                    if is_text || is_addressed(raw) =>
                {
                    self.is_elsewhere = true;
                }
                "file_ids" if !raw.starts_with("[]") => self.is_elsewhere = true,
                "media_type" if is_text => {
                    self.is_elsewhere |= first_string(raw).eq_ignore_ascii_case("application/pdf");
                }
                "audio" if raw.starts_with('{') => {
                    self.has_audio_input = true;
                    self.is_elsewhere |= is_by_id(raw);
                }
                "data" if is_text => {
                    let data = first_string(raw);
                    self.is_elsewhere |= is_remote(&data);
                    data_bytes += data.len() as u64;
                }
                "url" | "image_url" if is_text && is_remote(&first_string(raw)) => {
                    self.remote_images += 1;
                }
                // Embeddings of Jina and Voyage; pictures to change.
                "image" | "images" | "image_urls" | "input_image" => {
                    let first = raw.trim_start_matches(['[', ' ', '\n']);
                    if first.starts_with('"') && is_remote(&first_string(first)) {
                        (self.is_elsewhere, self.remote_images) = (true, self.remote_images + 1);
                    }
                }
                "format" if is_text => match first_string(raw).as_ref() {
                    "wav" | "pcm16" => is_raw = true,
                    _ => is_compressed = true,
                },
                _ => {}
            }
        });
        self.is_elsewhere |= has_document && (has_url || self.remote_images > 0);
        if self.has_audio_input {
            let bytes = if is_raw && !is_compressed { RAW_AUDIO_BYTES } else { AUDIO_BYTES };
            self.audio_tokens = data_bytes.div_ceil(bytes);
        }
    }
}

/// Returns the most tokens that a member can be: one for each byte of its texts, with one at each end, and
/// one for each number in a list.
pub(super) fn prompt_tokens(raw: &str) -> u64 {
    if !raw.starts_with(['"', '[', '{']) {
        return 0;
    }
    let (bytes, mut at, mut tokens) = (raw.as_bytes(), 0, 0_u64);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let end = string_end(bytes, at);
                tokens += (end - at) as u64;
                at = end;
            }
            b'0'..=b'9' => {
                tokens += 1;
                let is_more = |byte: &u8| !matches!(byte, b',' | b']' | b'}' | b' ');
                at += bytes[at..].iter().take_while(|byte| is_more(byte)).count();
            }
            _ => at += 1,
        }
    }
    tokens
}

/// Parts of a token that dense texts are counted in.
const UNIT: u64 = 12;
/// Shortest run of letters and digits without a blank that is data rather than words, and of letters alone.
const LEAST_DATA_BYTES: usize = 20;
const LEAST_LETTERS: usize = 32;
/// Bytes of data among which is a digit: base64 has one among six.
const DIGIT_BYTES: usize = 12;
/// Members that no model reads as text: signatures, and content that is counted as such.
const SEALED: [&str; 5] =
    ["signature", "encrypted_content", "data", "thoughtSignature", "thought_signature"];

/// Returns about the most tokens that the texts of a member can be where tokenizers differ most: digits and marks
/// behind them are one each (Gemini's), data such as base64 three of four bytes, other marks half of one, and
/// letters a quarter or, outside ASCII, a third. Words and code have more bytes a token.
pub(super) fn dense_tokens(raw: &str) -> u64 {
    if !raw.starts_with(['"', '[', '{']) {
        return 0;
    }
    let (bytes, mut at, mut units, mut is_sealed) = (raw.as_bytes(), 0, 0, false);
    while let Some(byte) = bytes.get(at) {
        let mut end = at + 1;
        if *byte == b'"' {
            end = string_end(bytes, at);
            let text = bytes.get(at + 1..end - 1).unwrap_or_default();
            let is_name = bytes.get(end) == Some(&b':');
            units += if is_sealed { 0 } else { dense_units(text) };
            is_sealed = is_name && SEALED.iter().any(|name| name.as_bytes() == text);
        } else if !b": ".contains(byte) {
            // Arguments of calls may be numbers, each with a comma.
            let is_digit = |byte: &u8| byte.is_ascii_digit();
            let is_figure = is_digit(byte) || *byte == b',' && is_digit(&bytes[at - 1]);
            units += if is_figure { UNIT } else { 0 };
            is_sealed = false;
        }
        at = end;
    }
    units.div_ceil(UNIT)
}

fn dense_units(text: &[u8]) -> u64 {
    let is_data = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/_-=".contains(byte);
    let (mut at, mut units, mut is_behind_digit) = (0, 0, false);
    while at < text.len() {
        if text[at..].starts_with(b"\\u") {
            (units, at) = (units + UNIT, at + 6);
            continue;
        }
        let run = text[at..].iter().take_while(|byte| is_data(byte)).count();
        if run >= LEAST_DATA_BYTES && is_dense(&text[at..at + run]) {
            units += run as u64 * UNIT * 3 / 4;
            (at, is_behind_digit) = (at + run, false);
            continue;
        }
        for byte in &text[at..at + run.max(1)] {
            units += match byte {
                b'0'..=b'9' => UNIT,
                _ if !byte.is_ascii() => UNIT / 3,
                // A backslash belongs to the letter or mark behind it.
                _ if byte.is_ascii_alphabetic() || b" \\".contains(byte) => UNIT / 4,
                _ if is_behind_digit => UNIT,
                _ => UNIT / 2,
            };
            is_behind_digit = byte.is_ascii_digit();
        }
        at += run.max(1);
    }
    units
}

/// Whether a run of letters, digits and marks of base64 is data: it has digits throughout, or is too long for words.
fn is_dense(run: &[u8]) -> bool {
    let digits = run.iter().filter(|byte| byte.is_ascii_digit()).count();
    let letters = run.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    let is_mixed = digits * DIGIT_BYTES >= run.len() && letters > 0;
    is_mixed || letters == run.len() && letters >= LEAST_LETTERS
}

/// Returns the end of the string that begins at `start`, behind its quote.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut end = start + 1;
    while let Some(place) = bytes.get(end..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        end += place;
        if bytes[end] == b'"' {
            return end + 1;
        }
        end += 2;
    }
    bytes.len()
}

/// Bytes of an object that are looked at: nested ones would be searched to the end again and again.
const OBJECT_BYTES: usize = 512;

/// Whether an object, with which `raw` begins, has an ID and no contents, such as earlier audio.
fn is_by_id(raw: &str) -> bool {
    match first_object(raw) {
        Ok(names) => {
            let has = |name: &str| names.iter().any(|(own, _)| own == name);
            has("id") && !has("data")
        }
        Err(head) => memmem::find(head, b"\"data\"").is_none(),
    }
}

/// Whether an object, with which `raw` begins, has the address of another server. A long one counts as such.
fn is_addressed(raw: &str) -> bool {
    first_object(raw).map_or(raw.starts_with('{'), |names| {
        let mut texts = names.into_iter().filter_map(|(_, raw)| json::string(raw));
        texts.any(|text| is_remote(&text))
    })
}

/// Returns the members of the object that `raw` begins with, none if it holds another; its first bytes if it is
/// long.
fn first_object(raw: &str) -> Result<Vec<(Cow<'_, str>, &str)>, &[u8]> {
    let head = &raw.as_bytes()[..raw.len().min(OBJECT_BYTES)];
    let end = memchr::memchr(b'}', head).ok_or(head)?;
    Ok(json::members(&raw[..=end]).unwrap_or_default())
}

/// Longest name of a member that [`Allowance::marks`] looks for, each letter as an escape of six bytes.
const MAX_NAME_BYTES: usize = 6 * 24;

/// Passes the name and the rest of the text from its value on to `see`, for each member at any depth.
fn for_each_member<'a>(text: &'a str, mut see: impl FnMut(&str, &'a str)) {
    let (bytes, mut at) = (text.as_bytes(), 0);
    while let Some(place) = bytes.get(at..).and_then(|rest| memchr::memchr(b'"', rest)) {
        let start = at + place;
        at = string_end(bytes, start);
        let is_short = at - start <= MAX_NAME_BYTES;
        let rest = text.get(at..).unwrap_or_default().trim_ascii_start();
        let Some(value) = rest.strip_prefix(':').filter(|_| is_short) else { continue };
        let Some(name) = text.get(start..at).and_then(json::name) else { continue };
        see(&name, value.trim_ascii_start());
    }
}

/// Whether the text of a part names its content, a document, sound or video, by an id or address: how much that is
/// cannot be known.
pub fn is_elsewhere(part: &str) -> bool {
    const KINDS: [&str; 7] =
        ["file", "input_file", "document", "document_url", "video_url", "input_video", "audio_url"];
    let mut is_content = None;
    let mut is_elsewhere = false;
    for_each_member(part, |name, raw| match name {
        "type" if is_content.is_none() => {
            is_content = Some(KINDS.contains(&first_string(raw).as_ref()));
        }
        "file_id" if raw.starts_with('"') => is_elsewhere = true,
        "file_url" | "file_uri" | "url" | "document_url" | "video_url" | "audio_url"
            if raw.starts_with('"') =>
        {
            is_elsewhere |= is_remote(&first_string(raw));
        }
        _ => {}
    });
    is_elsewhere && is_content == Some(true)
}

/// Whether an address is that of another server: its content is not in it.
fn is_remote(address: &str) -> bool {
    const MAX_SCHEME_BYTES: usize = 8;
    match address.split_once(':') {
        Some((scheme, _)) => {
            scheme.len() <= MAX_SCHEME_BYTES && !scheme.eq_ignore_ascii_case("data")
        }
        None => address.starts_with("//"),
    }
}

/// Returns the string that `raw` begins with.
fn first_string(raw: &str) -> Cow<'_, str> {
    let end = string_end(raw.as_bytes(), 0);
    raw.get(..end).and_then(json::string).unwrap_or_default()
}
