//! `weir models`: the catalogue of models, and what weir has learned of them.

use super::learned::{self, ForgetArgs, LearnedArgs};
use super::model_show::{self, ShowArgs};

const EXAMPLES: &str = "\
Examples:
  weir models show gpt-5.4
      window, prices, cache and limits by price that weir assumes
  weir models learned
      windows and token ratios learned from upstreams' answers";

/// Shows the catalogue of models
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(super) struct ModelsArgs {
    #[command(subcommand)]
    command: ModelsCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ModelsCommand {
    Show(ShowArgs),
    Learned(LearnedArgs),
    Forget(ForgetArgs),
}

/// Runs `weir models …`.
pub(super) fn run(args: &ModelsArgs) -> Result<(), String> {
    match &args.command {
        ModelsCommand::Show(args) => model_show::run(args),
        ModelsCommand::Learned(args) => learned::run(args),
        ModelsCommand::Forget(args) => learned::forget(args),
    }
}
