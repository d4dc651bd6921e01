//! Uploads kept in memory and returned byte for byte.
//!
//! The oldest are dropped if there are too many.

use std::collections::VecDeque;
use std::sync::Mutex;

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use super::answer::{Answer, CREATED};
use super::routes::Call;
use super::validate::Refusal;
use super::{State, locked};

const MAX_FILES: usize = 64;

#[derive(Default)]
pub struct Files {
    kept: Mutex<(u64, VecDeque<File>)>,
}

struct File {
    id: String,
    name: String,
    purpose: String,
    content: Bytes,
}

impl File {
    fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "object": "file",
            "bytes": self.content.len(),
            "created_at": CREATED,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
        })
    }
}

/// Answers requests about uploads; `None` for other routes.
pub fn answer(state: &State, call: &Call, route: &[&str]) -> Option<Result<Answer, Refusal>> {
    let method = &call.head.method;
    let answer = match (method, route) {
        (&Method::POST, ["files"]) => upload(state, call),
        (&Method::POST, ["audio", "transcriptions" | "translations"]) => {
            parts(call).and_then(|parts| {
                let file = named(&parts, "file")?;
                let text = format!("heard {} bytes", file.content.len());
                Ok(Answer::json(200, &json!({"text": text})))
            })
        }
        (&Method::GET, ["files"]) => {
            let kept = locked(&state.files.kept);
            let list: Vec<Value> = kept.1.iter().map(File::to_json).collect();
            Ok(Answer::json(200, &json!({"object": "list", "data": list, "has_more": false})))
        }
        (&Method::GET, ["files", id]) => find(state, id, |file| Answer::json(200, &file.to_json())),
        (&Method::GET, ["files", id, "content"]) => find(state, id, |file| {
            Answer::whole(200, "application/octet-stream", file.content.clone())
        }),
        (&Method::DELETE, ["files", id]) => find(state, id, |file| {
            Answer::json(200, &json!({"id": file.id, "object": "file", "deleted": true}))
        })
        .inspect(|_| locked(&state.files.kept).1.retain(|file| file.id != *id)),
        _ => return None,
    };
    Some(answer)
}

fn find(state: &State, id: &str, show: impl Fn(&File) -> Answer) -> Result<Answer, Refusal> {
    let kept = locked(&state.files.kept);
    let file = kept.1.iter().find(|file| file.id == id);
    let missing = || Refusal::new(404, format!("No such File object: {id}")).param("id");
    file.map(show).ok_or_else(missing)
}

fn upload(state: &State, call: &Call) -> Result<Answer, Refusal> {
    let parts = parts(call)?;
    let file = named(&parts, "file")?;
    let purpose = named(&parts, "purpose")?;
    let mut kept = locked(&state.files.kept);
    kept.0 += 1;
    let file = File {
        id: format!("file-{:08}", kept.0),
        name: file.file_name.clone(),
        purpose: String::from_utf8_lossy(&purpose.content).into_owned(),
        content: file.content.clone(),
    };
    let answer = Answer::json(200, &file.to_json());
    if kept.1.len() == MAX_FILES {
        kept.1.pop_front();
    }
    kept.1.push_back(file);
    Ok(answer)
}

struct Part {
    name: String,
    file_name: String,
    content: Bytes,
}

fn named<'a>(parts: &'a [Part], name: &str) -> Result<&'a Part, Refusal> {
    let missing = || Refusal::missing(name);
    parts.iter().find(|part| part.name == name).ok_or_else(missing)
}

/// Splits a multipart form, as far as SDKs use the format.
fn parts(call: &Call) -> Result<Vec<Part>, Refusal> {
    let malformed = || Refusal::invalid("The multipart form could not be read.");
    let content_type = call.header("content-type").unwrap_or("");
    let (_, boundary) = content_type
        .strip_prefix("multipart/form-data")
        .and_then(|rest| rest.split_once("boundary="))
        .ok_or_else(malformed)?;
    let boundary = boundary.split(';').next().unwrap_or("").trim_matches('"');
    let delimiter = format!("--{boundary}");
    let body = &call.body;
    let mut parts = Vec::new();
    let mut at = find_bytes(body, delimiter.as_bytes(), 0).ok_or_else(malformed)?;
    loop {
        at += delimiter.len();
        if body[at..].starts_with(b"--") {
            return Ok(parts);
        }
        let head_end = find_bytes(body, b"\r\n\r\n", at).ok_or_else(malformed)?;
        let next = format!("\r\n{delimiter}");
        let end = find_bytes(body, next.as_bytes(), head_end).ok_or_else(malformed)?;
        let head = String::from_utf8_lossy(&body[at..head_end]).into_owned();
        let attribute = |name: &str| {
            let (_, rest) = head.split_once(&format!("; {name}=\""))?;
            rest.split('"').next().map(str::to_owned)
        };
        parts.push(Part {
            name: attribute("name").unwrap_or_default(),
            file_name: attribute("filename").unwrap_or_default(),
            content: body.slice(head_end + 4..end.max(head_end + 4)),
        });
        at = end + 2;
    }
}

fn find_bytes(bytes: &[u8], needle: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let rest = bytes.get(at..)?;
        let found = at + rest.iter().position(|byte| *byte == needle[0])?;
        if bytes[found..].starts_with(needle) {
            return Some(found);
        }
        at = found + 1;
    }
}
