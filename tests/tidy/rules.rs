//! Rules of the tree. Each takes a text and returns its findings; none reads a file.

use super::source::{self, Source};

/// Violation of a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    pub line: usize,
    pub message: String,
}

impl Finding {
    pub fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }

    pub fn show(&self, path: &str) -> String {
        format!("{path}:{}: {}", self.line, self.message)
    }
}

/// The layer of each module in its crate, and of the modules in `proxy` among themselves. An import points to
/// a lower number; between crates Cargo holds the order.
const RANKS: &[(&str, &str, u8)] = &[
    ("weir-engine", "tokens", 0),
    ("weir-engine", "wire", 0),
    ("weir-engine", "compact", 1),
    ("weir-engine", "plan", 2),
    ("weir-store", "budget", 0),
    ("weir", "config", 0),
    ("weir", "tls", 1),
    ("weir", "upstream", 1),
    ("weir", "proxy", 2),
    ("weir", "admin", 3),
    ("weir", "server", 3),
    ("weir", "cli", 4),
    ("weir", "proxy/cache", 0),
    ("weir", "proxy/chain", 0),
    ("weir", "proxy/compaction/seal", 0),
    ("weir", "proxy/error", 0),
    ("weir", "proxy/logged", 0),
    ("weir", "proxy/outbox", 0),
    ("weir", "proxy/recall/said", 0),
    ("weir", "proxy/admit", 1),
    ("weir", "proxy/events", 1),
    ("weir", "proxy/metrics", 1),
    ("weir", "proxy/random", 1),
    ("weir", "proxy/recall/records", 1),
    ("weir", "proxy/live", 2),
    ("weir", "proxy/traces", 2),
    ("weir", "proxy/upstreams", 3),
    ("weir", "proxy/summaries", 4),
    ("weir", "proxy/plan", 5),
    ("weir", "proxy/headers", 6),
    ("weir", "proxy/hold", 6),
    ("weir", "proxy/record", 7),
    ("weir", "proxy/summaries/making", 7),
    ("weir", "proxy/settings", 8),
    ("weir", "proxy/job", 9),
    ("weir", "proxy/compaction", 10),
    ("weir", "proxy/conversations", 10),
    ("weir", "proxy/profile", 10),
    ("weir", "proxy/send", 11),
    ("weir", "proxy/relay", 12),
    ("weir", "proxy/settle", 13),
    ("weir", "proxy/runtime", 14),
    ("weir", "proxy/metrics/gauges", 15),
    ("weir", "proxy/recall", 15),
    ("weir", "proxy/metrics/process", 16),
    ("weir", "proxy/metrics/page", 17),
];
/// Modules without I/O, clock, randomness or logging.
const PURE: &[(&str, &str)] = &[
    ("weir-engine", "tokens"),
    ("weir-engine", "wire"),
    ("weir-engine", "compact"),
    ("weir-engine", "plan"),
    ("weir-store", "budget"),
    ("weir", "config"),
];
/// Crates and folders in which each module needs a layer.
const LAYERED: &[(&str, &str)] = &[("weir", ""), ("weir", "proxy"), ("weir-engine", "")];
const MAX_FILE_LINES: usize = 800;
const MAX_FUNCTION_LINES: usize = 70;

/// Paths that the pure layers must not reach.
const IMPURE: &[&str] = &[
    "axum",
    "getrandom",
    "hyper",
    "hyper_util",
    "rand",
    "reqwest",
    "std::collections::hash_map::RandomState",
    "std::env",
    "std::fs",
    "std::hash::RandomState",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::ToSocketAddrs",
    "std::net::UdpSocket",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "tokio",
    "tracing",
];

fn rank(krate: &str, module: &str) -> Option<u8> {
    let found = RANKS.iter().find(|(owner, name, _)| *owner == krate && *name == module);
    found.map(|(_, _, rank)| *rank)
}

/// Returns the crate of a source file, and its path below the crate's `src`.
fn inside(path: &str) -> Option<(&str, &str)> {
    if let Some(inside) = path.strip_prefix("src/") {
        return Some(("weir", inside));
    }
    let (krate, rest) = path.strip_prefix("crates/")?.split_once('/')?;
    Some((krate, rest.strip_prefix("src/")?))
}

/// Returns the crate of a file, and the module directly under its `src`.
fn module(path: &str) -> Option<(&str, &str)> {
    let (krate, inside) = inside(path)?;
    let first = inside.split('/').next()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(name, "lib" | "main")).then_some((krate, name))
}

/// Returns the path of a file's module below its crate's root.
fn segments(inside: &str) -> Vec<&str> {
    let mut segments: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
    segments.pop_if(|last| matches!(*last, "mod" | "lib" | "main"));
    segments
}

/// Returns the name of the layer that a module is in, that of the innermost folder with one.
fn layer(krate: &str, module: &[&str]) -> Option<&'static str> {
    let names = (1..=module.len()).rev().map(|length| module[..length].join("/"));
    let own = |name: String| RANKS.iter().find(|(owner, own, _)| *owner == krate && *own == name);
    names.filter_map(own).next().map(|(_, name, _)| *name)
}

/// Whether a module may import from another layer; `None` is an unranked module.
fn may_see(krate: &str, own: &str, target: Option<&str>) -> bool {
    let first = |name: &str| name.split('/').next().and_then(|first| rank(krate, first));
    match target {
        None => LAYERED.contains(&(krate, "")),
        Some(target) if target == own => true,
        Some(target) if own.split('/').next() != target.split('/').next() => {
            first(target) < first(own)
        }
        // The folder's own file is above all that is in it.
        Some(target) => {
            !own.contains('/') || target.contains('/') && rank(krate, target) < rank(krate, own)
        }
    }
}

pub fn layers(path: &str, source: &Source) -> Vec<Finding> {
    let Some((krate, inside)) = inside(path).filter(|_| module(path).is_some()) else {
        return Vec::new();
    };
    let module = segments(inside);
    let is_unranked = |(owner, folder): &(&str, &str)| {
        let depth = folder.split('/').filter(|name| !name.is_empty()).count();
        let is_inside = module.len() > depth && module[..depth].join("/") == *folder;
        *owner == krate && is_inside && rank(krate, &module[..=depth].join("/")).is_none()
    };
    if LAYERED.iter().any(is_unranked) {
        let message = format!("{} has no layer: name it in RANKS", module.join("/"));
        return vec![Finding::new(1, message)];
    }
    let Some(own) = layer(krate, &module) else {
        return Vec::new();
    };
    // In tests `super` begins one level lower; `crate` means the same everywhere.
    let shipped = source::paths(&source.shipped).into_iter().map(|named| (named, true));
    let all = source::paths(&source.code).into_iter().map(|named| (named, false));
    let mut findings = Vec::new();
    for (named, supers_count) in shipped.chain(all) {
        let segments: Vec<&str> = named.path.split("::").collect();
        let supers = segments.iter().take_while(|segment| **segment == "super").count();
        let target = match segments.as_slice() {
            ["crate", target @ ..] => target.to_vec(),
            _ if supers_count && supers > 0 && supers <= module.len() => {
                [&module[..module.len() - supers], &segments[supers..]].concat()
            }
            _ => continue,
        };
        let target = layer(krate, &target);
        if !may_see(krate, own, target) {
            let message = format!("{own} must not see {}", target.unwrap_or(&named.path));
            let finding = Finding::new(named.line, message);
            if !findings.contains(&finding) {
                findings.push(finding);
            }
        }
    }
    findings
}

pub fn purity(path: &str, source: &Source) -> Vec<Finding> {
    if !module(path).is_some_and(|own| PURE.contains(&own)) {
        return Vec::new();
    }
    let below = |path: &str, ancestor: &str| {
        path.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    source::paths(&source.shipped)
        .into_iter()
        .filter(|named| {
            IMPURE.iter().any(|impure| {
                below(&named.path, impure) || named.imported && below(impure, &named.path)
            })
        })
        .map(|named| Finding::new(named.line, format!("{} in a pure layer", named.path)))
        .collect()
}

/// Checks that the modules of the library are in the order of their layers.
pub fn module_order(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut highest = 0;
    for at in source::words(&source.code, "mod") {
        let name = source.code[at + 3..].split(';').next().unwrap_or_default().trim();
        let line = source::line_at(&source.code, at);
        match rank("weir", name) {
            None => findings.push(Finding::new(line, format!("{name} has no layer"))),
            Some(rank) if rank < highest => {
                findings.push(Finding::new(line, format!("{name} stands after a higher layer")));
            }
            Some(rank) => highest = rank,
        }
    }
    findings
}

pub fn file_length(source: &Source) -> Vec<Finding> {
    let lines = source.lines_before_tests();
    if lines <= MAX_FILE_LINES {
        return Vec::new();
    }
    vec![Finding::new(lines, format!("{lines} lines before the tests, {MAX_FILE_LINES} at most"))]
}

pub fn function_lengths(source: &Source) -> Vec<Finding> {
    let functions = source.functions().into_iter();
    functions
        .filter(|function| function.lines > MAX_FUNCTION_LINES)
        .map(|function| {
            let (name, lines) = (function.name, function.lines);
            Finding::new(
                function.line,
                format!("{name} has {lines} lines, {MAX_FUNCTION_LINES} at most"),
            )
        })
        .collect()
}

pub fn head(source: &Source) -> Vec<Finding> {
    if source.text.starts_with("//! ") {
        return Vec::new();
    }
    vec![Finding::new(1, "does not begin with //! and what the file is")]
}

/// Finds debugging code and markers of unfinished work, and silenced lints.
pub fn leftovers(path: &str, source: &Source) -> Vec<Finding> {
    let may_print = module(path) == Some(("weir", "cli")) || path == "src/main.rs";
    let macros: &[&str] = if may_print {
        &["todo", "unimplemented", "dbg"]
    } else {
        &["todo", "unimplemented", "dbg", "print", "println", "eprint", "eprintln"]
    };
    let mut findings = Vec::new();
    for name in macros {
        for at in source::words(&source.code, name) {
            if source.code[at + name.len()..].starts_with('!') {
                let line = source::line_at(&source.code, at);
                findings.push(Finding::new(line, format!("{name}! in the product")));
            }
        }
    }
    for (number, line) in source.code.lines().enumerate() {
        let attribute = line.trim_start().starts_with("#[") || line.trim_start().starts_with("#![");
        let allows = source::words(line, "allow").any(|at| line[at + 5..].starts_with('('));
        if attribute && allows {
            let message = "write #[expect(lint, reason = \"…\")] in place of allow";
            findings.push(Finding::new(number + 1, message));
        }
    }
    findings
}

const FILE_ENDINGS: &[&str] = &[".rs", ".toml", ".md", ".json", ".txt", ".py", ".mjs"];

/// Finds paths in backticks that do not exist in the tree. A bare file name belongs to the folder
/// named before it on its line, if there is one.
pub fn named_paths(document: &str, files: &[String]) -> Vec<Finding> {
    let exists = |path: &str| {
        let folder = format!("{}/", path.trim_end_matches('/'));
        files.iter().any(|file| file == path || file.starts_with(&folder))
    };
    let tops: Vec<&str> =
        files.iter().filter_map(|file| file.split_once('/')).map(|(top, _)| top).collect();
    let mut findings = Vec::new();
    let mut fenced = false;
    for (number, line) in document.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let mut folder = String::new();
        for name in line.split('`').skip(1).step_by(2) {
            let name = name.trim_start_matches("./");
            let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
            if name.is_empty() || !name.chars().all(plain) || name.starts_with('/') {
                continue;
            }
            let bare = !name.contains('/');
            let file = FILE_ENDINGS.iter().any(|ending| name.ends_with(ending));
            let known = match (bare, folder.is_empty()) {
                (true, false) => exists(&format!("{folder}{name}")) || exists(name),
                (true, true) => {
                    let ending = format!("/{name}");
                    exists(name) || files.iter().any(|path| path.ends_with(&ending))
                }
                (false, _) => exists(name),
            };
            let top = name.split('/').next().unwrap_or_default();
            // A path begins with a folder of the tree; other text with a slash is a route or a
            // media type.
            let is_path =
                if bare { file } else { file || tops.contains(&top) || name.ends_with('/') };
            if is_path && !known {
                findings.push(Finding::new(number + 1, format!("`{name}` does not exist")));
            }
            if name.ends_with('/') {
                folder = name.to_owned();
            }
        }
    }
    findings
}

// In two parts each, so that this file does not mention them.
const SHARED: &str = concat!("../", "shared");
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];
const REGISTRIES: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
];

/// Finds mentions of a machine or of a package mirror, on which nothing in the tree may depend.
pub fn mentions(path: &str, text: &str) -> Vec<Finding> {
    let mut unwanted: Vec<&str> = MACHINE_PATHS.to_vec();
    if path != ".ci/run" {
        unwanted.push(SHARED);
    }
    // Cargo writes its index into every lock file, the same on all machines.
    if !path.ends_with("Cargo.lock") {
        unwanted.extend(REGISTRIES);
    }
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for word in unwanted.iter().filter(|word| line.contains(**word)) {
            findings.push(Finding::new(number + 1, format!("mentions {word}")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new(text.to_owned())
    }

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn layers_are_held() {
        for (path, text, expected) in [
            ("src/upstream/client.rs", "use crate::config::Secret;", vec![]),
            ("src/upstream/client.rs", "use crate::{config, proxy::Planner};", vec![1]),
            (
                "src/upstream/a/b.rs",
                "use super::c::D;\nuse super::super::super::proxy::X;",
                vec![2],
            ),
            ("src/upstream/mod.rs", "use super::proxy;", vec![1]),
            ("src/upstream/client.rs", "\nfn f() { crate::server::run() }", vec![2]),
            ("src/upstream/client.rs", "// crate::server\nconst A: &str = \"crate::cli\";", vec![]),
            ("crates/weir-engine/src/wire/sse.rs", "use crate::tokens::Encoding;", vec![1]),
            ("crates/weir-engine/src/wire/sse.rs", "use crate::wire::json;", vec![]),
            ("crates/weir-engine/src/compact/passes/mod.rs", "use crate::wire::Role;", vec![]),
            (
                "crates/weir-engine/src/wire/sse.rs",
                "#[cfg(test)]\nmod tests { use crate::tokens; use super::*; }",
                vec![2],
            ),
            ("crates/weir-engine/src/unheard_of.rs", "", vec![1]),
            ("crates/weir-store/src/budget/scope.rs", "use crate::keys::Key;", vec![1]),
            ("crates/weir-store/src/keys/mod.rs", "use crate::budget::Scope;", vec![]),
            ("src/cli/mod.rs", "use crate::server::Server;", vec![]),
            ("src/unheard_of/mod.rs", "", vec![1]),
            ("src/main.rs", "use weir::cli;", vec![]),
            ("src/proxy/plan/draft.rs", "use crate::proxy::send::Cause;", vec![1]),
            ("src/proxy/send/chat.rs", "use super::super::{plan::Job, relay::Relay};", vec![1]),
            ("src/proxy/send/chat.rs", "use super::{Cause, attempt::Attempt};", vec![]),
            ("src/proxy/plan/mod.rs", "use super::{ErrorKind, error::ProxyError};", vec![1]),
            ("src/proxy/plan/mod.rs", "pub(in crate::proxy) use crate::config::Config;", vec![1]),
            ("src/proxy/recall/said.rs", "use super::Recall;", vec![1]),
            ("src/proxy/recall/mod.rs", "use super::recall::said::Said;", vec![]),
            ("src/proxy/mod.rs", "use self::plan::Job;\nuse super::server::X;", vec![2]),
            ("src/proxy/unheard_of/a.rs", "", vec![1]),
        ] {
            assert_eq!(lines(&layers(path, &source(text))), expected, "{path}: {text}");
        }
    }

    #[test]
    fn purity_is_held() {
        for (path, text, expected) in [
            ("src/config/raw.rs", "use std::time::Duration;", vec![]),
            ("src/config/raw.rs", "use std::time::{Duration, Instant};", vec![1]),
            ("src/config/raw.rs", "use std::time;", vec![1]),
            ("src/config/raw.rs", "use std::*;", vec![1]),
            ("src/config/raw.rs", "fn f() {\n std::env::var(\"A\"); }", vec![2]),
            ("src/config/raw.rs", "use std::net::{SocketAddr, TcpStream};", vec![1]),
            (
                "crates/weir-engine/src/wire/sse.rs",
                "use tokio::sync::Mutex;\nuse tokios::x;",
                vec![1],
            ),
            ("crates/weir-engine/src/wire/sse.rs", "fn f() { tracing::info!(\"x\"); }", vec![1]),
            (
                "crates/weir-engine/src/wire/sse.rs",
                "#[cfg(test)]\nmod tests { use std::fs; }",
                vec![],
            ),
            ("src/upstream/client.rs", "use tokio::sync::Mutex;", vec![]),
        ] {
            assert_eq!(lines(&purity(path, &source(text))), expected, "{path}: {text}");
        }
    }

    #[test]
    fn the_order_of_modules_is_held() {
        assert_eq!(module_order(&source("pub mod config;\npub mod proxy;")), []);
        assert_eq!(lines(&module_order(&source("pub mod proxy;\npub mod config;"))), [2]);
        assert_eq!(lines(&module_order(&source("pub mod utils;"))), [1]);
    }

    #[test]
    fn lengths_are_held() {
        let tests = "#[cfg(test)]\nmod tests {\n\n}\n";
        let file = |lines: usize| source(&format!("{}{tests}", "//\n".repeat(lines)));
        assert_eq!(file_length(&file(MAX_FILE_LINES)), []);
        assert_eq!(lines(&file_length(&file(MAX_FILE_LINES + 1))), [MAX_FILE_LINES + 1]);

        let function = |lines: usize| {
            source(&format!(
                "trait T {{ fn g(); }}\nfn f() {{ // }}\n{}}}",
                "a(\"}\");\n".repeat(lines - 2)
            ))
        };
        assert_eq!(function_lengths(&function(MAX_FUNCTION_LINES)), []);
        assert_eq!(lines(&function_lengths(&function(MAX_FUNCTION_LINES + 1))), [2]);
    }

    #[test]
    fn heads_are_wanted() {
        assert_eq!(head(&source("//! What it is.\n")), []);
        assert_eq!(lines(&head(&source("use a::b;\n//! Late."))), [1]);
        assert_eq!(lines(&head(&source("//!\n"))), [1]);
    }

    #[test]
    fn leftovers_are_found() {
        for (path, text, expected) in [
            ("src/proxy/mod.rs", "fn f() {\n    todo!()\n}", vec![2]),
            ("src/proxy/mod.rs", "fn f() { dbg!(1); println!(\"a\"); }", vec![1, 1]),
            ("src/proxy/mod.rs", "// todo!()\nfn todo() { my_dbg!(); }", vec![]),
            ("src/proxy/mod.rs", "#[allow(dead_code)]", vec![1]),
            ("src/proxy/mod.rs", "#![allow(dead_code)]", vec![1]),
            ("src/proxy/mod.rs", "#[cfg_attr(test, allow(dead_code))]", vec![1]),
            ("src/proxy/mod.rs", "#[expect(dead_code)]\nfn allow(x: u8) {}", vec![]),
            ("src/cli/mod.rs", "fn f() { println!(\"a\"); }", vec![]),
            ("src/cli/mod.rs", "fn f() { unimplemented!() }", vec![1]),
        ] {
            assert_eq!(lines(&leftovers(path, &source(text))), expected, "{path}: {text}");
        }
    }

    #[test]
    fn paths_that_do_not_exist_are_found() {
        let files = ["README.md", "src/wire/chat.rs", "src/wire/mod.rs", "tests/it/main.rs"];
        let files = files.map(str::to_owned);
        for (document, expected) in [
            ("`src/wire/` holds `chat.rs` and `mod.rs`", vec![]),
            ("`src/wire/` holds `gone.rs`", vec![1]),
            ("\n`src/gone.rs`", vec![2]),
            ("`src/gone`, `gone/`, `gone/x.rs`", vec![1, 1, 1]),
            ("`chat.rs`, `main.rs`, `README.md`", vec![]),
            ("`gone.md`", vec![1]),
            ("`/v1/models`, `text/html`, `a b`, `x::y`, `src/{a,b}.rs`", vec![]),
            ("```sh\ncat `src/gone.rs`\n```", vec![]),
        ] {
            assert_eq!(lines(&named_paths(document, &files)), expected, "{document}");
        }
    }

    #[test]
    fn mentions_are_found() {
        for word in MACHINE_PATHS.iter().chain(REGISTRIES).chain([&SHARED]) {
            let text = format!("fine\nsee {word}x\n");
            assert_eq!(lines(&mentions("README.md", &text)), [2], "{word}");
        }
        assert_eq!(mentions(".ci/run", SHARED), []);
        assert_eq!(lines(&mentions(".ci/run", MACHINE_PATHS[0])), [1]);
        assert_eq!(mentions("Cargo.lock", REGISTRIES[0]), []);
        assert_eq!(mentions("README.md", "a rework/b and the root"), []);
    }
}
