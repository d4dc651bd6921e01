//! Reads certificates and their keys from the files that the configuration names. Errors contain no
//! character of them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::config::{Config, ConnectTls, ListenTls, Problem, Secret};

/// More than any certificate chain or list of authorities needs.
const MAX_BYTES: u64 = 4 << 20;

/// Loads the contents of the files that `config` names into it.
pub(super) fn read_all(config: &mut Config) -> Result<(), Vec<Problem>> {
    let mut problems = Vec::new();
    listener("server.tls", &mut config.server.tls, &mut problems);
    listener("admin.tls", &mut config.admin.tls, &mut problems);
    connector("upstream.tls", &mut config.upstream.tls, &mut problems);
    for (name, upstream) in &mut config.upstreams {
        connector(&format!("upstreams.{name}.tls"), &mut upstream.tls, &mut problems);
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Returns the files in `config` whose contents matter while weir serves.
pub(super) fn named(config: &Config) -> Vec<String> {
    let listeners = [&config.server.tls, &config.admin.tls];
    let listeners = listeners.map(|tls| [&tls.cert_file, &tls.key_file, &tls.client_ca_file]);
    let upstreams = config.all_upstreams().flat_map(|(_, upstream)| {
        let tls = &upstream.tls;
        let files = [&tls.ca_file, &tls.cert_file, &tls.key_file];
        files.into_iter().chain(upstream.api_key.file())
    });
    let own = config.summaries.api_key.file();
    let all = listeners.into_iter().flatten().chain(upstreams).chain(own);
    all.filter(|path| !path.is_empty()).cloned().collect()
}

fn listener(section: &str, tls: &mut ListenTls, problems: &mut Vec<Problem>) {
    let files = [
        ("cert_file", &tls.cert_file, &mut tls.cert),
        ("key_file", &tls.key_file, &mut tls.key),
        ("client_ca_file", &tls.client_ca_file, &mut tls.client_ca),
    ];
    read_each(section, files, problems);
}

fn connector(section: &str, tls: &mut ConnectTls, problems: &mut Vec<Problem>) {
    let files = [
        ("ca_file", &tls.ca_file, &mut tls.ca),
        ("cert_file", &tls.cert_file, &mut tls.cert),
        ("key_file", &tls.key_file, &mut tls.key),
    ];
    read_each(section, files, problems);
}

fn read_each(
    section: &str,
    files: [(&str, &String, &mut Option<Secret>); 3],
    problems: &mut Vec<Problem>,
) {
    for (key, path, place) in files {
        if path.is_empty() {
            continue;
        }
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
