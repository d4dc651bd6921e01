//! `weir top` on a pseudo-terminal: keys, frames, and the terminal as it was before.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::top::{TOKEN, everything};
use crate::cli::weir;
use crate::eventually::{DEADLINE, eventually};
use crate::folder::Folder;
use crate::server::harness::Upstream;

/// Leaves the other screen, and shows the cursor again.
const GIVEN_BACK: [&str; 2] = ["\u{1b}[?1049l", "\u{1b}[?25h"];

/// `weir top` on a terminal of its own.
struct Terminal {
    keys: File,
    process: Child,
    shown: Arc<Mutex<String>>,
    /// Keeps the terminal open, to look at its modes.
    line: OwnedFd,
    _folder: Folder,
}

impl Terminal {
    async fn start() -> Self {
        let mut server = Upstream::start().await;
        let address = server.address.clone();
        tokio::spawn(async move {
            loop {
                let seen = server.next().await;
                let path = seen.head.split(' ').nth(1).expect("a path").to_owned();
                seen.answer(everything(&path));
            }
        });
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&controller).and_then(|()| unlockpt(&controller)).expect("it is new");
        let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&controller, size).expect("it is a terminal");
        let name = ptsname(&controller, Vec::new()).expect("it has a name");
        let name = name.into_string().expect("text");
        let line = File::options().read(true).write(true).open(name).expect("it is unlocked");
        let folder = Folder::new();
        let token = folder.write("token", TOKEN);
        let mut command = weir(&["top", "--url", &address, "--token-file", &token]);
        command.env("TERM", "xterm-256color");
        let copy = || Stdio::from(line.try_clone().expect("a copy"));
        command.stdin(copy()).stdout(copy()).stderr(copy());
        let process = command.spawn().expect("weir starts");
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut output, copy) = (File::from(controller), Arc::clone(&shown));
        let keys = output.try_clone().expect("a copy");
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                copy.lock().expect("no panic").push_str(&text);
            }
        });
        Self { keys, process, shown, line: line.into(), _folder: folder }
    }

    fn shown(&self) -> String {
        self.shown.lock().expect("no panic").clone()
    }

    async fn shows(&self, text: &str) {
        eventually(DEADLINE, async || self.shown(), |shown| shown.contains(text)).await;
    }

    /// Presses keys, and waits for a text that was not shown before.
    async fn press(&mut self, keys: &str, text: &str) {
        self.shown.lock().expect("no panic").clear();
        self.keys.write_all(keys.as_bytes()).expect("the terminal is open");
        self.shows(text).await;
    }

    /// Whether the terminal echoes and collects lines, as shells expect.
    fn is_usual(&self) -> bool {
        let modes = tcgetattr(self.line.as_fd()).expect("it is a terminal").local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    /// Waits for the end; asserts that the terminal is as before.
    async fn ended(mut self) {
        let mut code = async || self.process.try_wait().expect("it is a child");
        let status = eventually(DEADLINE, &mut code, Option::is_some).await.expect("it ended");
        assert!(status.success(), "{status}: {}", self.shown());
        for sequence in GIVEN_BACK {
            self.shows(sequence).await;
        }
        assert!(self.is_usual());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A failed test leaves no process behind; killing an ended process fails.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn keys_work_and_the_terminal_is_given_back() {
    let mut terminal = Terminal::start().await;
    terminal.shows("? help").await;
    assert!(!terminal.is_usual(), "keys come one by one");
    let shown = terminal.shown();
    assert!(shown.contains("1234 (0.0/s)"), "{shown}");
    assert!(!shown.contains("\u{1b}]0;") && !shown.contains('\u{202e}'), "{shown:?}");
    terminal.press("3", "all/usd/month").await;
    terminal.press("?", "reverses the order").await;
    terminal.press("?/week\r", "filter: week").await;
    terminal.press("q", GIVEN_BACK[0]).await;
    terminal.ended().await;
}

#[tokio::test]
async fn a_signal_and_a_control_character_give_it_back_too() {
    let mut terminal = Terminal::start().await;
    terminal.shows("? help").await;
    terminal.press("\u{3}", GIVEN_BACK[0]).await;
    terminal.ended().await;
    let terminal = Terminal::start().await;
    terminal.shows("? help").await;
    let kill = std::process::Command::new("kill").arg(terminal.process.id().to_string()).status();
    assert!(kill.expect("kill is there").success());
    terminal.ended().await;
}
