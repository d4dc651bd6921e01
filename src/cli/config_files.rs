//! Reads certificates and their keys from the files that the configuration names. Errors contain no
//! character of them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::config::{Config, Problem, Secret, SecretPlace, TlsFiles};

/// More than any certificate chain or list of authorities needs.
const MAX_BYTES: u64 = 4 << 20;

/// Loads the contents of the files that `config` names into it, and returns what is wrong with them.
pub(super) fn read_all(config: &mut Config) -> Vec<Problem> {
    let mut problems = Vec::new();
    read_each("server.tls", "client_ca_file", &mut config.server.tls, &mut problems);
    read_each("admin.tls", "client_ca_file", &mut config.admin.tls, &mut problems);
    read_each("upstream.tls", "ca_file", &mut config.upstream.tls, &mut problems);
    for (name, upstream) in &mut config.upstreams {
        let section = format!("upstreams.{name}.tls");
        read_each(&section, "ca_file", &mut upstream.tls, &mut problems);
    }
    problems
}

/// Returns the files in `config` whose contents matter while weir serves.
pub(super) fn named(config: &Config) -> Vec<String> {
    let upstreams = || config.all_upstreams().map(|(_, upstream)| upstream);
    let tls = [&config.server.tls, &config.admin.tls];
    let tls = tls.into_iter().chain(upstreams().map(|upstream| &upstream.tls));
    let tls = tls.flat_map(|tls| [&tls.cert_file, &tls.key_file, &tls.ca_file]);
    let keys = upstreams().map(|upstream| &upstream.api_key).chain([&config.summaries.api_key]);
    let all = tls.chain(keys.filter_map(SecretPlace::file));
    all.filter(|path| !path.is_empty()).cloned().collect()
}

fn read_each(section: &str, authorities: &str, tls: &mut TlsFiles, problems: &mut Vec<Problem>) {
    let files = [
        ("cert_file", &tls.cert_file, &mut tls.cert),
        ("key_file", &tls.key_file, &mut tls.key),
        (authorities, &tls.ca_file, &mut tls.ca),
    ];
    for (key, path, place) in files.into_iter().filter(|(_, path, _)| !path.is_empty()) {
        match read(path) {
            Ok(text) => *place = Some(Secret::new(text)),
            Err(said) => {
                problems.push(Problem::with(format!("{section}.{key}"), format!("{path} {said}")));
            }
        }
    }
}

/// Opens a regular file. JournalEntry a pipe may block indefinitely.
pub(super) fn open(path: impl AsRef<Path>) -> io::Result<File> {
    match std::fs::metadata(&path)?.is_file() {
        true => File::open(path),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Reads the text of a file, which must be finite.
pub(super) fn read(path: &str) -> Result<String, String> {
    let cannot = |error: io::Error| format!("cannot be read: {}", super::reason(&error));
    let mut text = String::new();
    let file = open(path).map_err(cannot)?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(cannot)?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(format!("has more than {MAX_BYTES} bytes")),
        false => Ok(text),
    }
}
