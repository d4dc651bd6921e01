//! `weir completions` and `weir man`.

use super::ended;
use crate::cli::weir;
use crate::folder::Folder;

#[test]
fn each_shell_has_a_script_with_all_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (code, script, said) = ended(&mut weir(&["completions", shell]));
        assert_eq!((code, said.as_str()), (Some(0), ""), "{shell}");
        for word in ["explain", "tokens", "max-input-tokens", "completions"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let (code, _, said) = ended(&mut weir(&["completions", "csh"]));
    assert_eq!(code, Some(2));
    assert!(said.contains("bash"), "{said}");
}

#[test]
fn each_command_has_a_manual_page() {
    let (code, page, _) = ended(&mut weir(&["man"]));
    assert_eq!(code, Some(0));
    assert!(page.contains(".TH weir 1") && page.contains("serve"), "{page}");
    let folder = Folder::new();
    let place = folder.path("man1");
    let (code, said, _) = ended(&mut weir(&["man", "--output", &place]));
    assert_eq!(code, Some(0));
    assert!(said.starts_with(&place), "{said}");
    for name in ["weir.1", "weir-serve.1", "weir-keys-create.1", "weir-top.1"] {
        let page = std::fs::read_to_string(folder.file("man1").join(name)).expect(name);
        assert!(page.contains(".SH"), "{name}");
    }
}
