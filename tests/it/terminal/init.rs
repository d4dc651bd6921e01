//! `weir init`: its questions, the file that it writes, and that file in use.

use std::io::Write;
use std::process::{Command, Stdio};

use super::ended;
use crate::cli::weir;
use crate::folder::Folder;

/// Runs a command with these answers; returns its exit code, standard output and standard error.
fn answered(command: &mut Command, answers: &str) -> (Option<i32>, String, String) {
    let mut process = command.stdin(Stdio::piped()).spawn().expect("weir starts");
    let mut input = process.stdin.take().expect("it is piped");
    // It may have ended before it read anything.
    let _ = input.write_all(answers.as_bytes());
    drop(input);
    let output = process.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn every_answer_gives_a_file_that_passes_the_check() {
    let folder = Folder::new();
    let file = folder.path("weir.toml");
    let store = folder.path("weir.db");
    for (answers, said) in [
        ("\n\n\n", "OPENAI_BASE_URL=http://127.0.0.1:8400/v1"),
        ("2\n1\nnone\n", "ANTHROPIC_BASE_URL=http://127.0.0.1:8400"),
        ("3\n\n2\n\n", "export LOCAL_API_KEY"),
        ("4\nhttps://llm.example/v1\n2\n50\n", "export PROVIDER_API_KEY"),
    ] {
        let mut command = weir(&["init", "--force", "--output", &file, "--store", &store]);
        command.env_remove("WEIR_STORE__PATH");
        let (code, out, asked) = answered(&mut command, answers);
        assert_eq!(code, Some(0), "{answers:?}: {asked}");
        assert!(
            asked.contains("Where do requests go?") && asked.contains("Who uses it?"),
            "{asked}"
        );
        assert!(out.contains(said) && out.contains("weir serve --config"), "{out}");
        let mut check = weir(&["check", "--config", &file]);
        check.env("LOCAL_API_KEY", "any").env("PROVIDER_API_KEY", "sk-1");
        let (code, out, _) = ended(&mut check);
        assert_eq!((code, out.as_str()), (Some(0), "the configuration is valid\n"), "{answers:?}");
    }
    let mut budgets = weir(&["budgets", "list", "--config", &file]);
    budgets.env_remove("WEIR_STORE__PATH").env("PROVIDER_API_KEY", "sk-1");
    let (_, out, said) = ended(&mut budgets);
    assert!(out.contains("all/usd/month  50.00 USD"), "{out}{said}");
}

#[test]
fn a_file_is_replaced_only_by_force() {
    let folder = Folder::new();
    let file = folder.write("weir.toml", "# mine\n");
    let (code, _, said) = ended(&mut weir(&["init", "--yes", "--output", &file]));
    assert_eq!(code, Some(1));
    assert!(said.contains("exists; --force replaces it"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).expect("a file"), "# mine\n");
    let (code, _, said) = ended(&mut weir(&["init", "--yes", "--force", "--output", &file]));
    assert_eq!((code, said.as_str()), (Some(0), ""), "no question");
    assert!(std::fs::read_to_string(&file).expect("a file").contains("api.openai.com"));
    let left = std::fs::read_dir(folder.file(".")).expect("a folder");
    let left: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(left, ["weir.toml"], "nothing is left next to it");
}

#[cfg(unix)]
#[test]
fn a_link_is_not_followed() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let folder = Folder::new();
    let other = folder.write("other.toml", "# another program's\n");
    let link = folder.path("weir.toml");
    symlink(&other, &link).expect("a link");
    for force in [&[][..], &["--force"]] {
        let (code, _, said) = ended(weir(&["init", "--yes", "--output", &link]).args(force));
        assert_eq!(code, Some(1));
        assert!(said.contains("is a symbolic link"), "{said}");
    }
    let kept = std::fs::read_to_string(&other).expect("a file");
    assert_eq!(kept, "# another program's\n");
    // A file that is replaced keeps its permissions.
    std::fs::set_permissions(&other, PermissionsExt::from_mode(0o600)).expect("its owner may");
    let (code, _, said) = ended(&mut weir(&["init", "--yes", "--force", "--output", &other]));
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let mode = std::fs::metadata(&other).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (code, _, said) = ended(&mut weir(&["init", "--yes", "--output", &folder.path(".")]));
    assert_eq!(code, Some(1));
    assert!(said.contains("is not a file"), "{said}");
}

#[test]
fn flags_answer_and_a_closed_input_is_explained() {
    let folder = Folder::new();
    let file = folder.path("conf/weir.toml");
    let arguments = ["--provider", "local", "--users", "me", "--budget", "none"];
    let mut command = weir(&["init", "--output", &file]);
    let (code, _, said) = ended(command.args(arguments));
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let (code, printed, _) = ended(weir(&["init", "--output", "-"]).args(arguments));
    assert_eq!(code, Some(0));
    assert!(printed.contains("url = \"http://127.0.0.1:11434/v1\""), "{printed}");
    let (code, _, said) = ended(&mut weir(&["init", "--output", &folder.path("none.toml")]));
    assert_eq!(code, Some(1));
    assert!(said.contains("--yes"), "{said}");
    assert!(!folder.file("none.toml").exists());
    let (code, _, said) = ended(&mut weir(&["init", "--provider", "opanai"]));
    assert_eq!(code, Some(2));
    assert!(said.contains("--provider"), "{said}");
}
