//! `weir tokens`: sizes by section, role and file, in each of its forms.

use std::path::Path;

use serde_json::{Value, json};

use super::ended;
use crate::cli::weir;
use crate::folder::Folder;

const REQUEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/coding_loop/request.json");

#[test]
fn a_page_shows_parts_and_what_is_left() {
    let folder = Path::new(REQUEST).parent().expect("a folder");
    let mut command = weir(&["tokens", "request.json", "--limit", "1500"]);
    let (code, page, said) = ended(command.current_dir(folder).env("COLUMNS", "80"));
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let expected = std::fs::read_to_string(folder.join("tokens")).unwrap_or_default();
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        std::fs::write(folder.join("tokens"), page).expect("the tree can be written");
    } else {
        assert_eq!(page, expected, "UPDATE_GOLDEN=1 accepts");
    }
}

#[test]
fn json_agrees_with_the_plan() {
    let (code, out, _) = ended(&mut weir(&["tokens", REQUEST, "--limit", "720", "--json"]));
    assert_eq!(code, Some(0));
    let own: Value = serde_json::from_str(&out).expect("JSON");
    let arguments = ["explain", REQUEST, "--max-input-tokens", "720", "--json"];
    let (_, out, _) = ended(&mut weir(&arguments));
    let plan: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(own["object"], "weir.tokens");
    assert_eq!(own["tokens"], plan["window"]["received_tokens"]);
    assert_eq!(own["sent_tokens"], plan["window"]["sent_tokens"]);
    assert_eq!((&own["limit_tokens"], &own["remaining_tokens"]), (&json!(720), &json!(0)));
    let sum = |rows: &Value| -> u64 {
        let rows = rows.as_array().expect("rows").iter();
        rows.map(|row| row["tokens"].as_u64().expect("a number")).sum()
    };
    assert_eq!(json!(sum(&own["sections"])), own["tokens"], "the sections are the whole");
    assert!(own["files"].as_array().is_some_and(|files| !files.is_empty()), "{own}");
}

#[test]
fn several_files_are_one_line_each_and_a_bad_one_hides_none() {
    let folder = Folder::new();
    let body = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hello"}]}"#;
    let good = folder.write("good.json", body);
    let bad = folder.write("bad\u{1b}[2J.json", "{");
    let (code, out, said) = ended(&mut weir(&["tokens", &good, &bad, &good, "--compact"]));
    assert_eq!(code, Some(1));
    assert_eq!(out.lines().count(), 2, "{out}");
    let line = out.lines().next().expect("a line");
    let start = format!("{good}: gpt-4o, 8 of 112K tokens (0 %), 112K left; ");
    assert!(line.starts_with(&start), "{line}");
    assert!(said.contains("bad") && said.contains("JSON"), "{said}");
    let (code, _, said) = ended(&mut weir(&["tokens", "-", "-"]));
    assert_eq!(code, Some(1));
    assert!(said.contains("only once"), "{said}");
    let (code, _, said) = ended(&mut weir(&["tokens", "/no/such.json"]));
    assert_eq!(code, Some(1));
    assert!(said.starts_with("weir: /no/such.json: "), "{said}");
}
