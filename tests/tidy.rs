//! Rules of the tree that the compiler does not check: layers, purity, lengths, heads, names of
//! files, forbidden mentions, plain words, and documents. Each rule is a pure function over one
//! text, in `tidy/rules.rs` and `tidy/documents.rs`, with tests that show its findings.

#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/licences.rs"]
mod licences;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/weight.rs"]
mod weight;

use std::path::Path;

use rules::Finding;
use source::Source;

/// Folders that tools create and that are not part of a checkout.
const NOT_OURS: &[&str] = &[
    ".git",
    "target",
    "node_modules",
    ".venv",
    "__pycache__",
    ".pytest_cache",
    "corpus",
    "artifacts",
];

/// Returns the tree's files by their paths from its root, sorted.
fn files() -> Vec<String> {
    fn walk(folder: &Path, root: &Path, found: &mut Vec<String>) {
        let entries = std::fs::read_dir(folder).expect("the tree can be read");
        for entry in entries {
            let entry = entry.expect("the tree can be read");
            let name = entry.file_name();
            if NOT_OURS.iter().any(|skipped| name == *skipped) {
                continue;
            }
            let path = entry.path();
            if path.is_dir() {
                walk(&path, root, found);
            } else {
                let path = path.strip_prefix(root).expect("it was found under the root");
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    walk(root, root, &mut found);
    found.sort();
    found
}

/// Returns the file's text, if it is text.
fn read(path: &str) -> Option<String> {
    let bytes = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    String::from_utf8(bytes.expect("it was just listed")).ok()
}

/// Applies a rule to the Rust files under these folders.
fn check(folders: &[&str], rule: impl Fn(&str, &Source) -> Vec<Finding>) {
    let mut lines = Vec::new();
    let mut seen = 0;
    for path in files() {
        if !path.ends_with(".rs") || !folders.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        seen += 1;
        let source = Source::new(read(&path).expect("Rust files are UTF-8"));
        lines.extend(rule(&path, &source).iter().map(|finding| finding.show(&path)));
    }
    assert!(seen > 0, "no file was looked at");
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
}

#[test]
fn imports_point_to_lower_layers_alone() {
    check(&["src/", "crates/"], rules::layers);
}

#[test]
fn the_lower_layers_are_pure() {
    check(&["src/", "crates/"], rules::purity);
}

#[test]
fn modules_stand_in_layer_order() {
    check(&["src/lib.rs"], |_, source| rules::module_order(source));
}

#[test]
fn files_are_short() {
    check(&["src/", "crates/"], |_, source| rules::file_length(source));
}

#[test]
fn functions_are_short() {
    check(&["src/", "crates/", "examples/", "benches/"], |_, source| {
        rules::function_lengths(source)
    });
}

#[test]
fn the_tree_does_not_grow_heavier() {
    let sources = files().into_iter().filter(|path| path.ends_with(".rs"));
    let sources = sources.filter(|path| {
        let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
        (path.starts_with("src/") || path.starts_with("crates/")) && !is_test
    });
    let sources =
        sources.map(|path| (path.clone(), Source::new(read(&path).expect("Rust files are UTF-8"))));
    let settings = read("config/default.toml").expect("the defaults are UTF-8");
    let found = weight::findings(&sources.collect(), &settings);
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn files_say_what_they_are() {
    let folders = ["src/", "crates/", "examples/", "benches/", "tests/", "fuzz/"];
    check(&folders, |_, source| rules::head(source));
}

#[test]
fn nothing_is_left_half_done() {
    check(&["src/", "crates/"], rules::leftovers);
}

#[test]
fn the_engine_depends_on_no_runtime() {
    let tree = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--package", "weir-engine"])
        .args(["--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let problem = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "{problem}");
    let tree = String::from_utf8(tree.stdout).expect("cargo writes text");
    let names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"tiktoken-rs"), "the tree was listed: {names:?}");
    for runtime in ["tokio", "hyper", "tracing", "figment", "reqwest", "rusqlite", "moka"] {
        assert!(!names.contains(&runtime), "weir-engine depends on {runtime}");
    }
}

#[test]
fn nothing_names_a_machine() {
    let mut lines = Vec::new();
    for path in files() {
        let Some(text) = read(&path) else { continue };
        let findings = rules::mentions(&path, &text);
        lines.extend(findings.iter().map(|finding| finding.show(&path)));
    }
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
}

#[test]
fn licences_of_dependencies_are_allowed() {
    let found = licences::of_dependencies();
    assert!(found.len() > 50, "the dependencies were listed: {found:?}");
    let refused: Vec<_> =
        found.iter().filter(|(_, licence)| !licences::is_allowed(licence)).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}
