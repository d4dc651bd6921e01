//! Test of the generated documents: they equal the declarations that they are generated from.
//! `UPDATE_GOLDEN=1` writes them.

use std::path::Path;

use clap::{Command, CommandFactory as _};

use super::CommandLine;
use crate::config::keys::pages;

const COMMANDS_HEAD: &str = "\
# Commands

Each section is the output of `weir COMMAND --help`. Flags come before environment variables (`WEIR_SECTION__KEY`), these before
the configuration file, and the file before the defaults. This page is generated.
";

/// Returns the contents of `docs/reference/cli.md`.
fn commands() -> String {
    let mut text = COMMANDS_HEAD.to_owned();
    add(&mut text, &mut Vec::new(), &CommandLine::command());
    text
}

/// Adds the help of a command and of the commands under it.
fn add(text: &mut String, path: &mut Vec<String>, command: &Command) {
    path.push(command.get_name().to_owned());
    let asked = path.iter().map(String::as_str).chain(["--help"]);
    let help = CommandLine::command().try_get_matches_from(asked).expect_err("help is no run");
    let help: Vec<String> =
        help.to_string().lines().map(|line| line.trim_end().to_owned()).collect();
    text.push_str(&format!(
        "\n## `{}`\n\n```text\n{}\n```\n",
        path.join(" "),
        help.join("\n").trim()
    ));
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        add(text, path, inner);
    }
    path.pop();
}

#[test]
fn generated_documents_are_up_to_date() {
    let is_update = std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (path, expected) in [
        ("config/default.toml", pages::default_toml()),
        ("docs/reference/configuration.md", pages::reference()),
        ("docs/reference/cli.md", commands()),
    ] {
        let path = root.join(path);
        if is_update {
            std::fs::write(&path, &expected).expect("the tree can be written");
        }
        let committed = std::fs::read_to_string(&path).expect("the tree can be read");
        assert_eq!(committed, expected, "{}: UPDATE_GOLDEN=1 writes it", path.display());
    }
}
