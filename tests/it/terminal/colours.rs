//! Colours: none in files, unless they are asked for; then the same text.

use super::ended;
use crate::cli::weir;

const REQUEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/coding_loop/request.json");

/// Returns the text without the codes of colours.
fn bare(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (_, rest) = part.split_once('m').expect("a colour");
        text + rest
    })
}

#[test]
fn files_get_colours_only_if_asked_and_the_same_text() {
    let commands: [&[&str]; 5] = [
        &["explain", REQUEST, "--max-input-tokens", "720"],
        &["explain", REQUEST, "--max-input-tokens", "720", "--all"],
        &["tokens", REQUEST],
        &["tokens", REQUEST, "--compact"],
        &["check"],
    ];
    for arguments in commands {
        let (_, plain, _) = ended(&mut weir(arguments));
        assert!(!plain.contains('\u{1b}'), "{arguments:?}: {plain:?}");
        let (_, coloured, _) = ended(weir(arguments).args(["--color", "always"]));
        assert!(coloured.contains("\u{1b}["), "{arguments:?}: {coloured:?}");
        assert_eq!(bare(&coloured), plain, "{arguments:?}");
        let (_, forced, _) = ended(weir(arguments).env("CLICOLOR_FORCE", "1"));
        assert_eq!(forced, coloured, "{arguments:?}");
        let mut both = weir(arguments);
        let (_, refused, _) = ended(both.env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1"));
        assert_eq!(refused, plain, "{arguments:?}");
        let (_, never, _) =
            ended(weir(arguments).env("CLICOLOR_FORCE", "1").args(["--color", "never"]));
        assert_eq!(never, plain, "{arguments:?}");
    }
}
