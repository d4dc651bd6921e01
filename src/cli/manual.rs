//! `weir completions` and `weir man`: completion scripts and manual pages, generated from the
//! definition of the command line.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

/// Name of the program in scripts and pages.
const PROGRAM: &str = "weir";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  weir completions bash > ~/.local/share/bash-completion/completions/weir
  weir completions zsh > ~/.zfunc/_weir
      with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  weir completions fish > ~/.config/fish/completions/weir.fish
  weir completions powershell >> $PROFILE

A new shell reads them.";

const MAN_EXAMPLES: &str = "\
Examples:
  weir man | man -l -
      shows the manual page
  weir man --output ~/.local/share/man/man1
      writes a page for each command: `man weir`, `man weir-serve`, `man weir-keys-create`";

/// Prints a script that completes commands and flags in a shell
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES, after_long_help = COMPLETIONS_EXAMPLES)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Prints the manual page, or writes the pages of all commands
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES, after_long_help = MAN_EXAMPLES)]
pub(super) struct ManArgs {
    /// Writes a page for each command to this folder, which is created if missing
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

/// Runs `weir completions SHELL`.
pub(super) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<(), String> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, PROGRAM, &mut script);
    super::print(&String::from_utf8_lossy(&script))
}

/// Runs `weir man`.
pub(super) fn man(args: &ManArgs, command: Command) -> Result<(), String> {
    let Some(folder) = &args.output else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(command).render(&mut page);
        rendered.map_err(|error| format!("cannot make the page: {error}"))?;
        return super::print(&String::from_utf8_lossy(&page));
    };
    let before = pages(folder);
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .map_err(|error| {
            format!("cannot write to {}: {}", folder.display(), super::reason(&error))
        })?;
    let (after, shown) = (pages(folder), folder.display());
    super::print(&format!("{shown}: {after} pages, {} of them new\n", after.saturating_sub(before)))
}

/// Counts weir's manual pages in a folder.
fn pages(folder: &Path) -> usize {
    let is_page = |name: &str| name.starts_with(PROGRAM) && name.ends_with(".1");
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| is_page(name)).count()
}
