//! Sessions of opencode on the disk, in a folder with a file for each message and part, or in a database. Returns
//! them as opencode's own export has them. Writes nothing.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use serde_json::value::RawValue;

use super::recordings::MAX_FILE_BYTES;

/// First bytes of a database.
const SQLITE: &[u8] = b"SQLite format 3\0";
/// Maximum size of one file of a message or a part.
const MAX_PART_BYTES: u64 = 64 << 20;

/// Returns the folder with the sessions, if this one is opencode's storage.
pub(super) fn sessions(folder: &Path) -> Option<PathBuf> {
    let is_there = |name: &str| folder.join(name).is_dir();
    ["session", "message", "part"].into_iter().all(is_there).then(|| folder.join("session"))
}

/// Returns the session of this file with its messages, or those of a database; `None` if it is neither.
pub(super) fn text(path: &Path) -> Option<Result<String, String>> {
    if !path.metadata().is_ok_and(|own| own.is_file()) {
        return None;
    }
    if is_database(path) {
        return Some(of_database(path).map_err(|error| format!("opencode's database: {error}")));
    }
    // STORAGE/session/PROJECT/SESSION.json
    let storage = path.parent()?.parent()?.parent()?;
    let id = path.file_stem()?;
    let messages = storage.join("message").join(id);
    sessions(storage).filter(|_| messages.is_dir())?;
    let session = json(path)?;
    let mut listed = Vec::new();
    for message in files(&messages) {
        let parts = files(&storage.join("part").join(message.file_stem()?));
        let parts: Vec<String> = parts.iter().filter_map(|part| json(part)).collect();
        if let Some(info) = json(&message) {
            listed.push(entry(&info, &parts));
        }
    }
    Some(Ok(export(&session, &listed)))
}

fn entry(info: &str, parts: &[String]) -> String {
    format!(r#"{{"info":{info},"parts":[{}]}}"#, parts.join(","))
}

fn export(info: &str, messages: &[String]) -> String {
    format!(r#"{{"info":{info},"messages":[{}]}}"#, messages.join(","))
}

/// Returns the files in a folder by name, which is their order in time.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let is_file = |own: &std::fs::DirEntry| own.metadata().is_ok_and(|own| own.is_file());
    let mut files: Vec<PathBuf> = entries.filter(is_file).map(|own| own.path()).collect();
    files.sort();
    files
}

/// Reads a file of JSON as one line; `None` if it is none, such as one that is half written.
fn json(path: &Path) -> Option<String> {
    let is_small = path.metadata().is_ok_and(|own| own.is_file() && own.len() <= MAX_PART_BYTES);
    let text = is_small.then(|| std::fs::read_to_string(path).ok()).flatten()?;
    one_line(&text)
}

/// Returns JSON without line ends, which stand only between its parts; `None` if it is none.
fn one_line(text: &str) -> Option<String> {
    serde_json::from_str::<&RawValue>(text).ok()?;
    Some(text.replace(['\n', '\r'], " "))
}

fn is_database(path: &Path) -> bool {
    let mut first = [0; SQLITE.len()];
    let read = std::fs::File::open(path)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut first));
    read.is_ok() && first == *SQLITE
}

/// Returns all sessions of a database, one a line.
fn of_database(path: &Path) -> rusqlite::Result<String> {
    let database = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut lines = String::new();
    let mut sessions = database.prepare("select id, directory from session order by id")?;
    let mut messages = database
        .prepare("select id, data from message where session_id = ? order by time_created, id")?;
    let mut parts = database.prepare("select data from part where message_id = ? order by id")?;
    let rows =
        sessions.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    for row in rows {
        let (id, directory) = row?;
        let of_session = messages
            .query_map([&id], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
        let mut listed = Vec::new();
        for row in of_session {
            let (id, data) = row?;
            let own = parts.query_map([&id], |row| row.get::<_, String>(0))?;
            let own = own.collect::<rusqlite::Result<Vec<String>>>()?;
            let own: Vec<String> = own.iter().filter_map(|part| one_line(part)).collect();
            // The table has the name, and the rest of the message does not.
            let info = one_line(&data).filter(|data| data.trim_start().starts_with('{'));
            let info = info.map(|data| named(&id, data.trim_start()));
            listed.extend(info.map(|info| entry(&info, &own)));
        }
        let session = serde_json::json!({"id": id, "directory": directory}).to_string();
        lines.push_str(&export(&session, &listed));
        lines.push('\n');
        if lines.len() as u64 > MAX_FILE_BYTES {
            break;
        }
    }
    Ok(lines)
}

/// Puts a name into an object.
fn named(id: &str, object: &str) -> String {
    let id = serde_json::Value::from(id);
    let rest = object[1..].trim_start();
    let comma = if rest.starts_with('}') { "" } else { "," };
    format!(r#"{{"id":{id}{comma}{rest}"#)
}
