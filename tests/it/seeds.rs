//! The fuzz targets' seeds, and all their beginnings, through the fuzz targets' own properties: what
//! a fuzzer would start from holds without one. Finds nothing new; `fuzz/README.md` tells how to.

#[path = "../../fuzz/src/lib.rs"]
mod properties;

use std::path::Path;

use properties::{body, config, decode, sse, target};

/// Seeds up to this long are tried cut off at each byte, too.
const MAX_CUT_BYTES: usize = 2048;

/// Gives each seed of a target, by name, to `check`; a failure's output ends with the name of the
/// seed that failed.
fn try_seeds(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let entries = std::fs::read_dir(&folder).expect("a target has seeds");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    for path in paths {
        let seed = std::fs::read(&path).expect("a seed is readable");
        eprintln!("{}", path.display());
        check(&seed);
        if seed.len() <= MAX_CUT_BYTES {
            (0..seed.len()).for_each(|end| check(&seed[..end]));
        }
    }
}

#[test]
fn seeds_of_body() {
    try_seeds("body", body::check);
}

#[test]
fn seeds_of_sse() {
    try_seeds("sse", sse::check);
}

#[test]
fn seeds_of_decode() {
    try_seeds("decode", decode::check);
}

#[test]
fn seeds_of_config() {
    try_seeds("config", config::check);
}

#[test]
fn seeds_of_target() {
    try_seeds("target", target::check);
}
