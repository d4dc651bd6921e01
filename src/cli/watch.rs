//! Whether files say something else than before. Looks at what stands in them and at nothing else: editors
//! and orchestrators replace files, folders and links by each other, and say so in many ways or in none.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// As much of a file as is looked at.
const MAX_BYTES: u64 = 16 << 20;

/// Files whose content matters.
pub struct Watch {
    paths: Vec<PathBuf>,
    /// What they said when somebody last went by it.
    known: blake3::Hash,
    /// What they said when they were last looked at.
    seen: blake3::Hash,
}

impl Watch {
    /// Watches `paths` from now on.
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let known = digest(&paths);
        Self { paths, known, seen: known }
    }

    /// Watches these files from now on, by what they say now where they are others.
    pub fn follow(&mut self, paths: Vec<PathBuf>) {
        if paths != self.paths {
            *self = Self::new(paths);
        }
    }

    /// Takes what they say now as known.
    pub fn note(&mut self) {
        self.seen = digest(&self.paths);
        self.known = self.seen;
    }

    /// Whether the files say something else than before, and said the same when they were last looked
    /// at: what is still being written is left alone until then.
    pub fn has_changed(&mut self) -> bool {
        let now = digest(&self.paths);
        let is_settled = now == self.seen;
        self.seen = now;
        let has_changed = is_settled && now != self.known;
        if has_changed {
            self.known = now;
        }
        has_changed
    }
}

/// What files say, all together. One that cannot be read says that.
fn digest(paths: &[PathBuf]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for path in paths {
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
        hasher.update(&[u8::from(read.is_ok())]);
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(&bytes);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once_and_when_it_has_settled() {
        let folder = std::env::temp_dir().join(format!("weir-watch-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let path = folder.join("a");
        let write = |text: &str| std::fs::write(&path, text).expect("it can be written");
        write("1");
        let mut watch = Watch::new(vec![path.clone(), folder.join("missing")]);
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
}
