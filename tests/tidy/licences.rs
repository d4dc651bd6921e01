//! Licences of the crates that weir is built from. The allowed ones are listed here; cargo's
//! information on the crates is trusted.

use std::process::Command;

use serde_json::Value;

/// Licences that require no more than naming the authors.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Vocabularies that are part of the program, and their own licences: cargo knows those of crates
/// only. `NOTICE` names each.
pub const VOCABULARIES: &[(&str, &str)] = &[
    ("cl100k_base", "MIT"),
    ("deepseek_v3", "MIT"),
    ("mistral_v3", "Apache-2.0"),
    ("o200k_base", "MIT"),
    ("qwen2", "Apache-2.0"),
];

/// Returns the name and licence of each dependency, on the platform of this build.
pub fn of_dependencies() -> Vec<(String, String)> {
    let rustc = Command::new("rustc").arg("-vV").output().expect("rustc is beside cargo");
    let told = String::from_utf8(rustc.stdout).expect("rustc writes text");
    let host =
        told.lines().find_map(|line| line.strip_prefix("host: ")).expect("it tells its host");
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", host])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let problem = String::from_utf8_lossy(&metadata.stderr);
    assert!(metadata.status.success(), "{problem}");
    let metadata: Value = serde_json::from_slice(&metadata.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    packages
        .iter()
        .map(|package| {
            let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
            (text("name"), text("license"))
        })
        .collect()
}

/// Whether allowed licences alone satisfy an SPDX expression.
pub fn is_allowed(expression: &str) -> bool {
    // Older crates write a slash for "or".
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let allowed = either(&mut rest);
    allowed && rest.is_empty()
}

fn either(words: &mut &[&str]) -> bool {
    let mut allowed = both(words);
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        allowed |= both(words);
    }
    allowed
}

fn both(words: &mut &[&str]) -> bool {
    let mut allowed = one(words);
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        allowed &= one(words);
    }
    allowed
}

fn one(words: &mut &[&str]) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let allowed = either(words);
            let [")", rest @ ..] = *words else {
                return false;
            };
            *words = rest;
            allowed
        }
        [licence, "WITH", exception, rest @ ..] => {
            *words = rest;
            ALLOWED.contains(&format!("{licence} WITH {exception}").as_str())
        }
        [licence, rest @ ..] => {
            *words = rest;
            ALLOWED.contains(licence)
        }
        [] => false,
    }
}

#[test]
fn every_vocabulary_in_the_program_has_an_allowed_licence_and_a_notice() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/");
    let read = |name: &str| std::fs::read_to_string(format!("{root}{name}")).expect("it is there");
    let (manifest, notice) = (read("Cargo.toml"), read("NOTICE"));
    let line = manifest.lines().find(|line| line.starts_with("tiktoken = ")).expect("it is used");
    let own = format!("{root}crates/weir-engine/src/tokens/bpe");
    let own =
        std::fs::read_dir(own).expect("a folder").map(|file| file.expect("a file").file_name());
    let own: Vec<String> = own.filter_map(|name| name.into_string().ok()).collect();
    let own = own.iter().filter_map(|name| name.strip_suffix(".tokens"));
    let mut vocabularies: Vec<&str> =
        line.split('"').filter_map(|word| word.strip_prefix("vocab-")).chain(own).collect();
    vocabularies.sort_unstable();
    let known: Vec<&str> = VOCABULARIES.iter().map(|(name, _)| *name).collect();
    assert_eq!(vocabularies, known);
    for manifest in [manifest.as_str(), &read("crates/weir-engine/Cargo.toml")] {
        assert!(!manifest.contains("default = ["), "features that ask for more are asked for");
    }
    for (name, licence) in VOCABULARIES {
        assert!(is_allowed(licence) && notice.contains(name), "{name}");
    }
}

#[test]
fn expressions_are_understood() {
    for (expression, expected) in [
        ("MIT", true),
        ("MIT/Apache-2.0", true),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0", false),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("MIT AND (GPL-2.0 OR LGPL-3.0)", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0 WITH other-exception", false),
        ("(MIT", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression), expected, "{expression}");
    }
}
