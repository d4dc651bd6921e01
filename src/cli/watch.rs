//! Detection of changed files by their contents alone: editors and orchestrators replace files,
//! folders and links in many ways, some without a notification.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::config_files;

/// Maximum part of a file that is examined.
const MAX_BYTES: u64 = 16 << 20;

/// Hash of each file's contents.
type Said = BTreeMap<PathBuf, blake3::Hash>;

/// Files whose contents matter.
#[derive(Default)]
pub(super) struct Watch {
    /// Contents when they were last applied.
    known: Said,
    /// Contents when they were last checked.
    seen: Said,
}

impl Watch {
    /// Watches these files only: known ones with their known contents, others with their current
    /// contents. Files are read after this call, so no change is missed.
    pub(super) fn follow(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        let (mut known, mut seen) = (Said::new(), Said::new());
        for path in paths {
            let before = self.known.get(&path).copied().unwrap_or_else(|| digest(&path));
            seen.insert(path.clone(), self.seen.get(&path).copied().unwrap_or(before));
            known.insert(path, before);
        }
        (self.known, self.seen) = (known, seen);
    }

    /// Returns the watched files.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.known.keys().cloned().collect()
    }

    /// Records the current contents as known.
    pub(super) fn note(&mut self) {
        self.seen = self.now();
        self.known.clone_from(&self.seen);
    }

    /// Whether the files differ from their known contents and were the same at the last check: a
    /// file that is still being written is left alone.
    pub(super) fn has_changed(&mut self) -> bool {
        let now = self.now();
        let has_changed = now == self.seen && now != self.known;
        if has_changed {
            self.known.clone_from(&now);
        }
        self.seen = now;
        has_changed
    }

    fn now(&self) -> Said {
        self.known.keys().map(|path| (path.clone(), digest(path))).collect()
    }
}

/// Hashes a file. One that cannot be read has a hash of its own.
fn digest(path: &Path) -> blake3::Hash {
    let mut bytes = Vec::new();
    let read =
        config_files::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[u8::from(read.is_ok())]);
    hasher.update(&bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_reported_once_and_when_it_has_settled() {
        let folder = std::env::temp_dir().join(format!("weir-watch-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let path = folder.join("a");
        let write = |text: &str| std::fs::write(&path, text).expect("it can be written");
        write("1");
        let mut watch = Watch::default();
        watch.follow([path.clone(), folder.join("missing")]);
        let look = |watch: &mut Watch| [watch.has_changed(), watch.has_changed()];
        assert_eq!(look(&mut watch), [false, false]);
        write("2");
        assert_eq!(look(&mut watch), [false, true]);
        assert_eq!(look(&mut watch), [false, false]);
        write("3");
        assert!(!watch.has_changed());
        write("4");
        assert_eq!(look(&mut watch), [false, true], "it was still being written");
        // Replaced by another file of the same name, as editors do.
        std::fs::write(folder.join("b"), "5").expect("it can be written");
        std::fs::rename(folder.join("b"), &path).expect("it can be replaced");
        assert_eq!(look(&mut watch), [false, true]);
        std::fs::write(&path, "5").expect("it can be written");
        assert_eq!(look(&mut watch), [false, false], "the same as before");
        std::fs::remove_dir_all(&folder).expect("it is ours");
        assert_eq!(look(&mut watch), [false, true]);
    }

    #[test]
    fn no_change_is_missed_while_others_are_followed() {
        let folder = std::env::temp_dir().join(format!("weir-follow-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let [first, second] = ["a", "b"].map(|name| folder.join(name));
        let write = |path: &Path| std::fs::write(path, "1").expect("it can be written");
        let look = |watch: &mut Watch| [watch.has_changed(), watch.has_changed()];
        let mut watch = Watch::default();
        watch.follow([first.clone()]);
        // Read here, and replaced before the files that it names are followed.
        write(&first);
        watch.follow([first.clone(), second.clone()]);
        assert_eq!(look(&mut watch), [false, true]);
        write(&second);
        watch.follow([second.clone()]);
        assert_eq!(look(&mut watch), [false, true]);
        assert_eq!(watch.paths(), [second]);
        write(&first);
        assert_eq!(look(&mut watch), [false, false], "it is followed no more");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
