//! Process that is killed after it has recorded requests, and the files that it leaves next to its
//! store.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use weir_store::ledger::{Caller, Intent, KeyNames};
use weir_store::{Store, StoreOptions, Tenant};

use super::journal::{complete, intent, settle};

/// Environment variable with the store of the process that will be killed.
const STORE_OF_VICTIM: &str = "WEIR_TEST_STORE_OF_VICTIM";

/// Options with a long delay before anything moves into the store's tables.
const LONG: StoreOptions =
    StoreOptions { sync_interval: Duration::from_secs(3600), max_log_bytes: 64 << 20 };

/// Opens three requests in its store, settles one, reports this and waits to be killed. Not a test:
/// others start it in its own process, and without a store it does nothing.
#[test]
fn victim() {
    let Some(path) = std::env::var_os(STORE_OF_VICTIM) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _store = runtime.block_on(async {
        let store = Store::open_with(Path::new(&path), LONG).expect("it can be written");
        for number in 1..=3 {
            store.open_request(&keyed(number)).await.expect("it can be written");
        }
        assert!(settle(&store, keyed(2), complete()).await);
        store
    });
    println!("\nready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("nobody writes");
}

/// Builds a request by its number, made with a virtual key.
pub fn keyed(number: u64) -> Intent {
    let names = KeyNames {
        key: "key_0123456789ab".to_owned(),
        team: "team".to_owned(),
        organisation: "org".to_owned(),
        user: "user".to_owned(),
    };
    let caller = Caller { tenant: Tenant([9; 16]), key: Some(names.into()) };
    Intent { caller, ..intent(number) }
}

/// Process with open requests, killed on drop at the latest.
pub struct Victim(Child);

impl Victim {
    pub fn start(path: &Path) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(["--exact", "store::victim::victim", "--nocapture"])
            .env(STORE_OF_VICTIM, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be run again");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let victim = Self(child);
        let is_ready = output.lines().map_while(Result::ok).any(|line| line == "ready");
        assert!(is_ready, "it ended before it was ready");
        victim
    }

    pub fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it was killed");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the files next to the store at `path` whose names have this ending.
fn beside(path: &Path, ending: &str) -> Vec<PathBuf> {
    let mut folder = path.as_os_str().to_owned();
    folder.push(".instances");
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let files = files.map(|file| file.expect("it can be read").path());
    files.filter(|file| file.extension().is_some_and(|it| it == ending)).collect()
}

/// Counts the lock files next to the store at `path`.
pub fn locks(path: &Path) -> usize {
    beside(path, "lock").len()
}

/// Returns the logs next to the store at `path`.
pub fn logs(path: &Path) -> Vec<PathBuf> {
    beside(path, "log")
}
