//! `weir backup`: copies the store as of one moment, also while a weir serves from it.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use clap::Args;

use super::progress::Progress;
use super::store_path::StoreArgs;
use weir_store::{Store, StoreError};

/// Interval at which progress is drawn.
const INTERVAL: Duration = Duration::from_millis(100);
const BYTES_PER_MB: u64 = 1_000_000;

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
    #[command(flatten)]
    store: StoreArgs,
}

/// Runs `weir backup`.
pub(super) fn run(args: &BackupArgs) -> Result<(), String> {
    let folder = args.file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        let (shown, folder) = (args.file.display(), folder.display());
        return Err(format!("cannot write {shown}: there is no folder {folder}; make it first"));
    }
    let store = args.store.existing()?;
    let shown = args.file.display();
    super::block_on(async {
        let copied = copy(&store, &args.file).await;
        copied.map_err(|error| format!("cannot write {shown}: {error}"))
    })?;
    super::print(&format!("{shown}: {} bytes\n", size_bytes(&args.file)))
}

/// Copies the store, with progress by the size of the copy.
async fn copy(store: &Store, file: &Path) -> Result<(), StoreError> {
    let total_bytes = store.file().map_or(0, size_bytes);
    let progress = Progress::new(true, "MB copied", total_bytes.div_ceil(BYTES_PER_MB));
    let mut partial = file.as_os_str().to_owned();
    partial.push(".partial");
    let mut copying = pin!(store.backup(file));
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            biased;
            copied = &mut copying => return copied,
            _ = ticks.tick() => progress.set(size_bytes(Path::new(&partial)) / BYTES_PER_MB),
        }
    }
}

fn size_bytes(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |file| file.len())
}
