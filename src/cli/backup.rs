//! `weir backup`: copies the store as of one moment, also while a weir serves from it.

use std::path::PathBuf;

use clap::Args;

use super::store_path;

const EXAMPLES: &str = "\
Examples:
  weir backup /backups/weir-2026-11-22.db
  weir backup /backups/weir.db --store /var/lib/weir/weir.db
      another store than the default one

To restore it, stop weir and start it with --store and the copy, or move the copy to the store's \
path. Copy a store on a PostgreSQL server with pg_dump. The copy has the store's contents: keys \
(as hashes), usage, and originals and conversations if weir keeps them.";

/// Copies the store to a new file, also while weir serves from it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = EXAMPLES)]
pub(super) struct BackupArgs {
    /// The file to create; an existing one is left alone
    file: PathBuf,
    /// A configuration file in TOML
    #[arg(long, value_name = "FILE", env = "WEIR_CONFIG")]
    config: Option<PathBuf>,
    /// The store's file, or its PostgreSQL server's URL [default: weir/weir.db in the user's state
    /// folder]
    #[arg(long, value_name = "FILE")]
    store: Option<String>,
}

/// Runs `weir backup`.
pub(super) fn run(args: &BackupArgs) -> Result<(), String> {
    let store = store_path::existing(args.config.as_deref(), args.store.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    let shown = args.file.display();
    runtime
        .block_on(store.backup(&args.file))
        .map_err(|error| format!("cannot write {shown}: {error}"))?;
    let bytes = std::fs::metadata(&args.file).map_or(0, |file| file.len());
    println!("{shown}: {bytes} bytes");
    Ok(())
}
