//! Rules of the documents: short front pages, plain words, links that resolve, a complete table of
//! contents, and an example that is real. The rule of plain words also judges comments in Rust files.

use std::path::{Component, Path, PathBuf};

use super::rules::{self, Finding};
use super::source::Source;
use super::{files, read};

const MAX_README_BYTES: usize = 6 << 10;
const MAX_ARCHITECTURE_BYTES: usize = 15 << 10;
/// Maximum uses of the relative pronoun per thousand words: over all documents, and over all comments.
const MAX_WHAT_PER_MILLE: usize = 3;
/// Stilted words and phrases that no document and no comment may use.
const STILTED: &[&str] = &[
    "tell",
    "tells",
    "told",
    "whoever",
    "whatever",
    "anew",
    "beside",
    "all the same",
    "in the place of",
    "of which",
    "by which",
    "for good",
    "comes to",
    "came to",
    "goes by",
    "go by",
    "is of",
];
/// Folders whose Rust files have their comments checked.
const COMMENTED: &[&str] = &["src/", "crates/", "tests/", "benches/", "examples/", "fuzz/"];

/// Returns the documents that must use plain words, with their texts.
fn documents() -> Vec<(String, String)> {
    const PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
    let is_document = |path: &String| {
        PAGES.contains(&path.as_str()) || (path.starts_with("docs/") && path.ends_with(".md"))
    };
    let with_text = |path: String| {
        let text = read(&path).expect("documents are UTF-8");
        (path, text)
    };
    files().into_iter().filter(is_document).map(with_text).collect()
}

/// Returns the comments of each Rust file, at their lines.
fn comments() -> Vec<(String, String)> {
    let is_commented = |path: &String| {
        path.ends_with(".rs") && COMMENTED.iter().any(|folder| path.starts_with(folder))
    };
    let with_comments = |path: String| {
        let text = read(&path).expect("Rust files are UTF-8");
        (path, Source::new(text).comments)
    };
    files().into_iter().filter(is_commented).map(with_comments).collect()
}

/// Returns the lines outside fenced blocks, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        (!is_fenced && !is_fence).then_some((index + 1, line))
    })
}

/// Returns the words of a text in lower case with their lines. An empty word separates sentences and
/// paragraphs, and stands for code in backticks.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (number, line) in prose(text) {
        if line.trim().is_empty() {
            is_code = false;
            found.push((number, String::new()));
        }
        for (index, part) in line.split('`').enumerate() {
            if index > 0 {
                is_code = !is_code;
                found.push((number, String::new()));
            }
            for chunk in part.split_whitespace().filter(|_| !is_code) {
                let letters = chunk.split(|letter: char| !letter.is_alphabetic());
                let words = letters.filter(|word| !word.is_empty()).map(str::to_lowercase);
                found.extend(words.map(|word| (number, word)));
                if chunk.trim_end_matches([')', '"']).ends_with(['.', ':', ';', '?', '!']) {
                    found.push((number, String::new()));
                }
            }
        }
    }
    found
}

/// Returns the stilted words and phrases of a text; a phrase may continue on the next line.
fn stilted(text: &str) -> Vec<Finding> {
    let words = words(text);
    let starts = |at: usize, phrase: &str| {
        let mut expected = phrase.split(' ').enumerate();
        expected.all(|(index, word)| words.get(at + index).is_some_and(|(_, own)| own == word))
    };
    let found = (0..words.len()).flat_map(|at| {
        let phrases = STILTED.iter().filter(move |phrase| starts(at, phrase));
        phrases.map(move |phrase| (at, phrase))
    });
    found
        .map(|(at, phrase)| Finding::new(words[at].0, format!("\"{phrase}\" is stilted")))
        .collect()
}

/// Asserts that texts use no stilted words, and few relative pronouns in total.
fn assert_plain(texts: &[(String, String)]) {
    let (mut lines, mut all, mut whats) = (Vec::new(), 0, 0);
    for (path, text) in texts {
        lines.extend(report(path, &stilted(text)));
        let words = words(text);
        all += words.iter().filter(|(_, word)| !word.is_empty()).count();
        whats += words.iter().filter(|(_, word)| word == "what").count();
    }
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
    let most = all * MAX_WHAT_PER_MILLE / 1000;
    assert!(whats <= most, "\"what\" {whats} times in {all} words, at most {most}");
}

/// Returns the targets of a line's links in the tree, each with its anchor.
fn links(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://"))
        .map(|target| target.split_once('#').unwrap_or((target, "")))
}

/// Returns the anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
    heading.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

/// Resolves a path without `..`, from the folder of another.
fn resolve(from: &str, target: &str) -> String {
    let mut path = PathBuf::from(from);
    if !target.is_empty() {
        path.pop();
    }
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    path.to_string_lossy().into_owned()
}

/// Returns the links of a document whose target does not exist.
fn broken_links(path: &str, text: &str, files: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in prose(text) {
        for (target, wanted) in links(line) {
            let found = resolve(path, target);
            let folder = format!("{found}/");
            if !files.iter().any(|file| *file == found || file.starts_with(&folder)) {
                findings.push(Finding::new(number, format!("{target} does not exist")));
                continue;
            }
            let has_anchor = || {
                let text = read(&found).unwrap_or_default();
                prose(&text)
                    .filter(|(_, line)| line.starts_with('#'))
                    .any(|(_, line)| anchor(line.trim_start_matches('#')) == wanted)
            };
            if !wanted.is_empty() && !has_anchor() {
                findings.push(Finding::new(number, format!("{found} has no heading {wanted}")));
            }
        }
    }
    findings
}

fn report(path: &str, findings: &[Finding]) -> Vec<String> {
    findings.iter().map(|finding| finding.show(path)).collect()
}

#[test]
fn the_front_pages_are_short() {
    for (path, most) in
        [("README.md", MAX_README_BYTES), ("ARCHITECTURE.md", MAX_ARCHITECTURE_BYTES)]
    {
        let bytes = read(path).expect("documents are UTF-8").len();
        assert!(bytes <= most, "{path}: {bytes} bytes of at most {most}");
    }
}

#[test]
fn documents_use_plain_words() {
    assert_plain(&documents());
}

#[test]
fn comments_use_plain_words() {
    assert_plain(&comments());
}

#[test]
fn links_in_the_documents_resolve() {
    let files = files();
    let broken = |(path, text): &(String, String)| report(path, &broken_links(path, text, &files));
    let lines: Vec<String> = documents().iter().flat_map(broken).collect();
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
}

#[test]
fn paths_in_the_documents_exist() {
    let files = files();
    let names_files = |path: &str| {
        ["ARCHITECTURE.md", "CONTRIBUTING.md"].contains(&path)
            || path.starts_with("docs/internals/")
    };
    let mut lines = Vec::new();
    for (path, text) in documents().into_iter().filter(|(path, _)| names_files(path)) {
        lines.extend(report(&path, &rules::named_paths(&text, &files)));
    }
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    const CONTENTS: &str = "docs/SUMMARY.md";
    let contents = read(CONTENTS).expect("documents are UTF-8");
    let listed: Vec<String> =
        contents.lines().flat_map(links).map(|(target, _)| resolve(CONTENTS, target)).collect();
    let pages = documents().into_iter().map(|(path, _)| path);
    let missing: Vec<String> = pages
        .filter(|path| path.starts_with("docs/") && path != CONTENTS && !listed.contains(path))
        .collect();
    assert!(missing.is_empty(), "not in {CONTENTS}: {missing:?}");
}

/// Checks that the note in README.md occurs in a golden request.
#[test]
fn the_note_in_the_readme_is_real() {
    const OPENS: &str = "[weir: ";
    let readme = read("README.md").expect("documents are UTF-8");
    let golden = read("tests/golden/coding_loop/expected.json").expect("requests are UTF-8");
    let note = readme.split("```").find(|block| block.contains(OPENS)).expect("a note is shown");
    let lines = note.lines().skip(1).filter(|line| *line != "⋮");
    let missing: Vec<&str> = lines.filter(|line| !golden.contains(&format!("{line}\\n"))).collect();
    assert!(missing.is_empty(), "not in the golden request: {missing:#?}");
}

fn lines(findings: Vec<Finding>) -> Vec<usize> {
    findings.iter().map(|finding| finding.line).collect()
}

#[test]
fn stilted_words_are_found_outside_code() {
    for (text, expected) in [
        ("plain\ntell me\n```\ntold\n```\n", vec![2]),
        ("It is done.\nOf course, `told` is a name.\n", vec![]),
        ("A code span `over\ntold` lines, anew.\n", vec![2]),
        ("This ends in the\nplace of another.\n", vec![1]),
        ("This ends in the\n\nplace of another.\n", vec![]),
        ("A storyteller, a retold tale, what goes.\n", vec![]),
    ] {
        assert_eq!(lines(stilted(text)), expected, "{text}");
    }
    for phrase in STILTED {
        assert_eq!(lines(stilted(&format!("One thing {phrase} another."))), [1], "{phrase}");
    }
}

#[test]
fn stilted_words_are_found_in_comments_alone() {
    for (text, expected) in [
        ("// It tells more.\nfn f() {}\n", vec![1]),
        ("//! One.\n\n/// Ends in the\n/// place of another.\nfn f() {}\n", vec![3]),
        ("fn f() {} // beside code\n/* anew */\n", vec![1, 2]),
        ("/// Returns a URL.\nfn told() { tell(\"// told\", r#\"https://tells\"#) }\n", vec![]),
        ("/// An example:\n/// ```\n/// told();\n/// ```\nfn f() {}\n", vec![]),
        ("// This comes\nfn f() {}\n// to its end.\n", vec![]),
    ] {
        assert_eq!(lines(stilted(&Source::new(text.into()).comments)), expected, "{text}");
    }
}

#[test]
fn few_relative_pronouns_are_plain() {
    let texts = |rest: &str| vec![("a".to_owned(), "word ".repeat(999)), ("b".into(), rest.into())];
    assert_plain(&texts("what what what"));
    let refused = std::panic::catch_unwind(|| assert_plain(&texts("what what what what")));
    assert!(refused.is_err());
}

#[test]
fn broken_links_are_found() {
    let files = files();
    for (path, text, expected) in [
        ("README.md", "[a](docs/index.md) [b](docs) [c](#budgets)", vec![1]),
        ("docs/index.md", "[r](../README.md) [w](https://example.com/x.md)", vec![]),
        ("docs/budgets.md", "fine\n[a](docs/index.md) [b](#budgets)", vec![2]),
        ("README.md", "[a](docs/budgets.md#budgets) [b](docs/budgets.md#none)", vec![1]),
    ] {
        assert_eq!(lines(broken_links(path, text, &files)), expected, "{text}");
    }
}
