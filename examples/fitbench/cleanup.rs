//! Process groups and folders that the run has made, so that a stopped or panicking bench leaves none
//! behind. Starts nothing itself but the commands that it is given.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Time that stopped processes have before they are killed.
const STOP: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);

/// All that has to go at the end.
struct Made {
    /// Process groups by the identifier of their first process.
    groups: Vec<u32>,
    folders: Vec<PathBuf>,
    /// Whether the run has ended: nothing is started any more.
    is_ended: bool,
}

static MADE: Mutex<Made> =
    Mutex::new(Made { groups: Vec::new(), folders: Vec::new(), is_ended: false });

fn made() -> MutexGuard<'static, Made> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a command in a process group of its own.
pub fn spawn(command: &mut Command) -> Result<Child, String> {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    // Under the lock, so that none is started behind `end_all`.
    let mut made = made();
    if made.is_ended {
        return Err("the run has ended".to_owned());
    }
    let child = command.spawn().map_err(|error| error.to_string())?;
    made.groups.push(child.id());
    Ok(child)
}

/// Asks the process group of a child to end.
pub fn stop(child: &Child) {
    signal(child.id(), false);
}

/// Kills the process group of a child and waits for the child. Its children may have outlived it.
pub fn end(child: &mut Child) {
    signal(child.id(), true);
    child.kill().unwrap_or_default();
    child.wait().map(drop).unwrap_or_default();
    made().groups.retain(|group| *group != child.id());
}

/// Creates a folder.
pub fn create_folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))?;
    made().folders.push(path.to_owned());
    Ok(())
}

/// Removes a folder and the log next to it.
pub fn remove_folder(path: &Path) {
    // Left-overs in the temporary folder harm nobody.
    fs::remove_dir_all(path).unwrap_or_default();
    fs::remove_file(path.with_extension("log")).unwrap_or_default();
    made().folders.retain(|own| own != path);
}

/// Ends all process groups and removes all folders. From here on, nothing is started.
#[expect(clippy::disallowed_methods, reason = "after a panic there is no runtime to wait on")]
pub fn end_all() {
    let (groups, folders) = {
        let mut made = made();
        made.is_ended = true;
        (made.groups.clone(), made.folders.clone())
    };
    groups.iter().for_each(|group| signal(*group, false));
    let until = Instant::now() + STOP;
    while Instant::now() < until && groups.iter().any(|group| is_running(*group)) {
        std::thread::sleep(POLL);
    }
    groups.iter().for_each(|group| signal(*group, true));
    folders.iter().for_each(|folder| remove_folder(folder));
}

#[cfg(unix)]
fn group_of(id: u32) -> Option<rustix::process::Pid> {
    i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw)
}

#[cfg(unix)]
fn signal(id: u32, kill: bool) {
    use rustix::process::{Signal, kill_process_group};
    let signal = if kill { Signal::KILL } else { Signal::TERM };
    if let Some(group) = group_of(id) {
        // The group may be gone already.
        kill_process_group(group, signal).unwrap_or_default();
    }
}

/// Whether a process group has a process; its first process is removed from the system's table.
#[cfg(unix)]
fn is_running(id: u32) -> bool {
    use rustix::process::{WaitOptions, test_kill_process_group, waitpid};
    let Some(group) = group_of(id) else { return false };
    waitpid(Some(group), WaitOptions::NOHANG).map(drop).unwrap_or_default();
    test_kill_process_group(group).is_ok()
}

#[cfg(not(unix))]
fn signal(_: u32, _: bool) {}

#[cfg(not(unix))]
fn is_running(_: u32) -> bool {
    false
}
