//! Files with recorded conversations: finds those of agents and those that a command names, and reads them.
//! `weir_eval::recorded` understands their contents. Sends and writes nothing.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::on_all_cores::on_all_cores;
use super::opencode;
use weir_eval::recorded::{self, ReadText, TextForm, known_forms};

/// Maximum size of a file, unpacked.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 30;
/// Maximum size of a packed file, unpacked, as a multiple of its own, and size that it may always have.
/// Recorded conversations unpack to some ten times their size.
const MAX_RATIO: u64 = 100;
const FREE_BYTES: u64 = 16 << 20;
/// Maximum size of all files together, as they are on the disk.
const MAX_ALL_BYTES: u64 = 2 << 30;
/// Maximum number of files, and of folders in one another.
const MAX_FILES: usize = 100_000;
const MAX_DEPTH: usize = 16;
/// Characters of a file that is not understood that are shown.
const SEEN_CHARACTERS: usize = 60;
/// Endings of files that are read in folders.
const ENDINGS: [&str; 7] =
    [".jsonl", ".json", ".har", ".csv", "opencode.db", ".jsonl.gz", ".json.gz"];
/// Places of transcripts: a variable that moves the folder of an agent, that folder in the home folder, the
/// folder or file in it, and the folder that the files themselves are in, if others lie next to it.
const HOMES: [(&str, &str, &str, &str); 7] = [
    ("CLAUDE_CONFIG_DIR", ".claude", "projects", ""),
    ("CODEX_HOME", ".codex", "sessions", ""),
    ("PI_CODING_AGENT_DIR", ".pi/agent", "sessions", ""),
    ("QWEN_HOME", ".qwen", "projects", "chats"),
    ("GEMINI_CLI_HOME", "", ".gemini/tmp", "chats"),
    ("XDG_DATA_HOME", ".local/share", "opencode/storage", ""),
    ("XDG_DATA_HOME", ".local/share", "opencode/opencode.db", ""),
];

/// File that was found.
pub(super) struct FoundFile {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Whether the command line names it, rather than a folder.
    is_named: bool,
}

/// Returns the name of a file for a terminal, which would obey control characters in it.
pub(super) fn shown(path: &Path) -> String {
    path.display().to_string().replace(char::is_control, "?")
}

/// Returns the files to read: those named, those in named folders, or those of agents.
pub(super) fn find(named: &[PathBuf], notes: &mut Vec<String>) -> Result<Vec<FoundFile>, String> {
    let mut found = Vec::new();
    if named.is_empty() {
        let homes = homes();
        for (place, folder) in &homes {
            let before = found.len();
            match std::fs::metadata(place) {
                Ok(own) if own.is_file() => found.push(FoundFile::new(place, own.len(), false)),
                _ => search(place, 0, &mut found),
            }
            let is_wanted = |own: &FoundFile| {
                let parent = own.path.parent().and_then(Path::file_name);
                folder.is_empty() || parent.is_some_and(|name| name == *folder)
            };
            let place_found = found.split_off(before);
            found.extend(place_found.into_iter().filter(is_wanted));
        }
        if found.is_empty() {
            let homes: Vec<String> =
                homes.iter().map(|(own, _)| own.display().to_string()).collect();
            return Err(format!(
                "no transcripts are in {}; name files or folders",
                homes.join(", ")
            ));
        }
    }
    for path in named {
        let metadata = std::fs::metadata(path)
            .map_err(|error| format!("{}: {}", shown(path), super::reason(&error)))?;
        match metadata.is_dir() {
            true => search(path, 0, &mut found),
            false => found.push(FoundFile::new(path, metadata.len(), true)),
        }
    }
    if found.len() >= MAX_FILES {
        notes.push(format!("more than {MAX_FILES} files were found; the rest is left out"));
    }
    let mut all_bytes = 0_u64;
    let before = found.len();
    found.retain(|own| {
        all_bytes = all_bytes.saturating_add(own.bytes);
        all_bytes <= MAX_ALL_BYTES
    });
    if found.len() < before {
        let left = before - found.len();
        notes.push(format!("{left} files above 2 GiB in all are left out; name folders to choose"));
    }
    Ok(found)
}

/// Returns the places of agents, and the folder of the files themselves.
fn homes() -> Vec<(PathBuf, &'static str)> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = variable("HOME").or_else(|| variable("USERPROFILE")).map(PathBuf::from);
    let place = |(name, own, inner, folder): &(&str, &str, &str, &'static str)| {
        let moved = variable(name).map(PathBuf::from);
        Some((moved.or_else(|| Some(home.as_ref()?.join(own)))?.join(inner), *folder))
    };
    HOMES.iter().filter_map(place).collect()
}

/// Collects the files in a folder and those below it, by name. Follows no links, and passes over what cannot be
/// listed. Of opencode's storage only the sessions are files of their own.
fn search(folder: &Path, depth: usize, found: &mut Vec<FoundFile>) {
    let sessions = opencode::sessions(folder);
    let folder = sessions.as_deref().unwrap_or(folder);
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut entries: Vec<_> = entries.filter_map(Result::ok).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let Ok(metadata) = entry.metadata() else { continue };
        let name = entry.file_name();
        let is_wanted = ENDINGS.iter().any(|ending| name.to_string_lossy().ends_with(ending));
        if metadata.is_dir() && depth < MAX_DEPTH {
            search(&entry.path(), depth + 1, found);
        } else if metadata.is_file() && is_wanted && found.len() < MAX_FILES {
            found.push(FoundFile::new(&entry.path(), metadata.len(), false));
        }
    }
}

/// Reads all files. One that is named must be understood; others are noted and left out.
pub(super) fn read_all<'f>(
    found: &'f [FoundFile],
    is_shown: bool,
    notes: &mut Vec<String>,
) -> Result<Vec<(&'f FoundFile, ReadText)>, String> {
    let read = on_all_cores("reading", is_shown, found, |own| read(&own.path));
    let mut all = Vec::new();
    for (own, read) in found.iter().zip(read) {
        let name = shown(&own.path);
        match read {
            Ok(contents) => {
                notes.extend(contents.left_out.iter().map(|own| format!("{name}: {own}")));
                all.push((own, contents));
            }
            Err(error) if own.is_named => return Err(format!("{name}: {error}")),
            Err(error) => notes.push(format!("{name} is left out: {error}")),
        }
    }
    Ok(all)
}

fn read(path: &Path) -> Result<ReadText, String> {
    let text = opencode::text(path).unwrap_or_else(|| text(path))?;
    recorded::read(&text, None).map_err(|error| refusal(&text, &error))
}

/// Says why a text is not understood, and what was seen.
fn refusal(text: &str, error: &str) -> String {
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let seen: String = first.trim().chars().take(SEEN_CHARACTERS).collect();
    format!("{error} It begins with {seen:?}. Known are {}.", known_forms())
}

/// Returns the body of a request: these bytes, or the conversation with this number, from 1 on, if they are a
/// transcript, a log or an export. `name` is that of the file.
pub(super) fn body(bytes: Vec<u8>, number: usize, name: &Path) -> Result<Vec<u8>, String> {
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    let ReadText { form, mut recorded, .. } = match recorded::read(text, None) {
        Ok(read) if read.form != TextForm::Request => read,
        _ => return Ok(bytes),
    };
    let (name, all) = (shown(name), recorded.len());
    let place = number.checked_sub(1).filter(|place| *place < all);
    let place = place.ok_or_else(|| format!("--conversation: {name} has {all}"))?;
    if all > 1 {
        eprintln!("weir: {name} ({}): conversation {number} of {all}", form.name());
    }
    Ok(recorded.swap_remove(place).body.into_bytes())
}

/// Opens a file and returns its size. What is no file, such as a pipe, may never end, and is refused.
pub(super) fn open(path: &Path) -> Result<(File, u64), String> {
    let reason = |error: std::io::Error| super::reason(&error);
    let metadata = std::fs::metadata(path).map_err(reason)?;
    if !metadata.is_file() {
        return Err("it is no file; write what a pipe or device gives to one".to_owned());
    }
    Ok((File::open(path).map_err(reason)?, metadata.len()))
}

/// Reads a text, plain or gzip.
pub(super) fn text(path: &Path) -> Result<String, String> {
    let (file, packed_bytes) = open(path)?;
    let is_packed = path.extension().is_some_and(|extension| extension == "gz");
    let most_bytes = match is_packed {
        true => MAX_FILE_BYTES.min(FREE_BYTES.max(packed_bytes.saturating_mul(MAX_RATIO))),
        false => MAX_FILE_BYTES,
    };
    let mut bytes = Vec::new();
    match is_packed {
        true => MultiGzDecoder::new(file).take(most_bytes + 1).read_to_end(&mut bytes),
        false => file.take(most_bytes + 1).read_to_end(&mut bytes),
    }
    .map_err(|error| super::reason(&error))?;
    if bytes.len() as u64 > most_bytes {
        return Err(match most_bytes {
            MAX_FILE_BYTES => format!("it is larger than {MAX_FILE_BYTES} bytes"),
            _ => format!(
                "it unpacks to more than {MAX_RATIO} times its size, as no conversation does; unpack it if \
                 it is one"
            ),
        });
    }
    String::from_utf8(bytes).map_err(|_| "it is not text in UTF-8".to_owned())
}

impl FoundFile {
    fn new(path: &Path, bytes: u64, is_named: bool) -> Self {
        Self { path: path.to_owned(), bytes, is_named }
    }
}
