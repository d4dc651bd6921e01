//! Folders for the files of one test.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Temporary folder; drop deletes it.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weir-it-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("the temporary directory can be written");
        Self(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the path of a file as text.
    pub fn path(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    pub fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.file(name), text).expect("it can be written");
        self.path(name)
    }

    /// Replaces a file atomically, as editors do.
    pub fn replace(&self, name: &str, text: &str) {
        self.write("new", text);
        std::fs::rename(self.file("new"), self.file(name)).expect("it can be replaced");
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A file that cannot be removed is left to the system.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
