//! Token of the admin API: generated if it does not exist, and kept in a file that only its owner
//! can read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::config::Secret;
use weir_store::files;

/// Prefix of generated tokens, so that a leaked one shows its purpose.
const PREFIX: &str = "weir-admin-";
const METRICS_PREFIX: &str = "weir-metrics-";
const RANDOM_BYTES: usize = 32;
/// Minimum length of a token written by hand.
const MIN_CHARACTERS: usize = 32;

/// The token, and the one for the metrics alone that follows from it, as hashes, the form used for comparison.
#[derive(Clone)]
pub struct Token {
    all: blake3::Hash,
    metrics: blake3::Hash,
}

impl Token {
    pub fn new(secret: &Secret) -> Self {
        let hash = |secret: &Secret| blake3::hash(secret.expose().as_bytes());
        Self { all: hash(secret), metrics: hash(&for_metrics(secret)) }
    }

    /// Checks `given` in constant time.
    pub fn is(&self, given: &str) -> bool {
        // Hashes compare in constant time.
        self.all == blake3::hash(given.as_bytes())
    }

    /// Checks `given` for a page of metrics, in constant time.
    pub fn is_of_metrics(&self, given: &str) -> bool {
        self.metrics == blake3::hash(given.as_bytes())
    }
}

/// Returns the token that reads the metrics and nothing else. It follows from the admin token, which does not
/// follow from it.
pub fn for_metrics(token: &Secret) -> Secret {
    let key = blake3::derive_key("weir 1 the token for metrics alone", token.expose().as_bytes());
    Secret::new(format!("{METRICS_PREFIX}{}", URL_SAFE_NO_PAD.encode(key)))
}

/// Writes the token for the metrics next to the file of the admin token, for the scraper; returns its path.
pub fn keep_for_metrics(path: &Path, token: &Secret) -> io::Result<PathBuf> {
    let path = path.with_file_name("metrics.token");
    let wanted = for_metrics(token);
    match read(&path) {
        Ok(text) if text.trim() == wanted.expose() => {}
        Ok(text) if !text.starts_with(METRICS_PREFIX) => {
            let said = "it is no token of weir's; weir writes its token for metrics there";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, said));
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
        _ => {
            // A new file takes its place: what was there may be a link, or open to others.
            write(&path, &wanted, |new, path| fs::rename(new, path))?;
        }
    }
    Ok(path)
}

/// Loads the token from the file at `path`, or generates one if the file does not exist or no path
/// is set. Also returns whether it is new.
pub fn load_or_make(path: Option<&Path>) -> io::Result<(Secret, bool)> {
    let Some(path) = path else { return Ok((random()?, true)) };
    match load(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        loaded => return loaded.map(|token| (token, false)),
    }
    let token = random()?;
    match write(path, &token, files::put_new) {
        // Another weir created the file first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            load(path).map(|token| (token, false))
        }
        written => written.map(|()| (token, true)),
    }
}

/// Writes a token that has no file of its own into a private one among the temporary files; returns its
/// path.
pub fn keep_apart(token: &Secret) -> io::Result<PathBuf> {
    let mut name = [0; 8];
    getrandom::fill(&mut name).map_err(|error| io::Error::other(error.to_string()))?;
    let name = format!("weir-admin-{:016x}.token", u64::from_be_bytes(name));
    let path = std::env::temp_dir().join(name);
    write(&path, token, files::put_new)?;
    Ok(path)
}

/// Reads a file; a pipe, which would be waited for, is none.
fn read(path: &Path) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    fs::read_to_string(path)
}

fn load(path: &Path) -> io::Result<Secret> {
    let text = read(path)?;
    let token = text.trim();
    if token.len() < MIN_CHARACTERS || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let said = "it holds no token; remove the file, and weir generates a new one";
        return Err(io::Error::new(io::ErrorKind::InvalidData, said));
    }
    close_to_others(path)?;
    Ok(Secret::new(token))
}

/// Writes a private file completely or not at all, which gets its name by `put`.
fn write(
    path: &Path,
    token: &Secret,
    put: impl FnOnce(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let mut options = files::private();
    options.create(true).truncate(true);
    files::write_whole(path, &options, &format!("{}\n", token.expose()), put)
}

/// Removes a file's permissions for all but its owner.
#[cfg(unix)]
fn close_to_others(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(path)?.permissions().mode();
    close(mode, || fs::set_permissions(path, fs::Permissions::from_mode(0o600)))
}

/// Closes a file with the permissions `mode`, unless only its owner has any. If that is not possible,
/// its group may read it: a Secret that Kubernetes mounts is read-only, and belongs to root and the
/// pod's group.
#[cfg(unix)]
fn close(mode: u32, set_private: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let closed = set_private();
    if mode & 0o007 == 0 { Ok(()) } else { closed }
}

/// On other systems a file inherits the permissions of its folder, which is the user's own.
#[cfg(not(unix))]
fn close_to_others(_path: &Path) -> io::Result<()> {
    Ok(())
}

fn random() -> io::Result<Secret> {
    Ok(Secret::new(format!("{PREFIX}{}", random_secret()?.expose())))
}

/// Generates a secret that can stand in an address.
pub fn random_secret() -> io::Result<Secret> {
    let mut bytes = [0; RANDOM_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Secret::new(URL_SAFE_NO_PAD.encode(bytes)))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// A file that cannot be closed is accepted if it is closed to others than its owner and group.
    #[test]
    fn a_group_may_read_a_token_file_that_cannot_be_closed() {
        let refuse = || Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
        for (mode, is_accepted) in [
            (0o400, true),
            (0o440, true),
            (0o640, true),
            (0o444, false),
            (0o644, false),
            (0o404, false),
            (0o402, false),
            (0o441, false),
        ] {
            assert_eq!(close(mode, refuse).is_ok(), is_accepted, "{mode:o}");
        }
    }

    #[test]
    fn each_file_with_open_permissions_is_closed() {
        for (mode, is_closed) in
            [(0o400, false), (0o600, false), (0o440, true), (0o640, true), (0o604, true)]
        {
            let mut was_closed = false;
            let set_private = || {
                was_closed = true;
                Ok(())
            };
            close(mode, set_private).expect("it can be closed");
            assert_eq!(was_closed, is_closed, "{mode:o}");
        }
    }
}
