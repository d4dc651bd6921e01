//! Terminal of `weir top`: takes over the screen, writes the lines that changed, and gives the screen
//! back, also after a panic. Decides nothing about their text.

use std::io::{self, Write, stdout};
use std::time::Duration;

use crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use crossterm::{cursor, execute, queue, style, terminal};
use tokio::sync::mpsc;

use super::cells::Line;
use crate::cli::colours::Colours;

/// Interval at which the reader of keys looks whether anybody still waits for them.
const PATIENCE: Duration = Duration::from_millis(200);
/// Maximum number of keys that wait.
const MAX_KEYS: usize = 64;

/// Key or new size.
#[derive(Debug, Clone, Copy)]
pub(super) enum Input {
    Key(KeyEvent),
    Resized,
}

/// Screen that is taken over; drop gives it back.
pub(super) struct Screen {
    colours: Colours,
    /// Lines on the screen.
    shown: Vec<String>,
}

impl Screen {
    /// Takes over the screen.
    pub(super) fn take_over(colours: Colours) -> io::Result<Self> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        terminal::enable_raw_mode()?;
        let screen = Self { colours, shown: Vec::new() };
        execute!(
            stdout(),
            terminal::EnterAlternateScreen,
            terminal::DisableLineWrap,
            cursor::Hide
        )?;
        Ok(screen)
    }

    /// Returns the width and height.
    pub(super) fn size() -> (usize, usize) {
        let (width, height) = terminal::size().unwrap_or((80, 24));
        (usize::from(width), usize::from(height))
    }

    /// Writes all lines again with the next frame.
    pub(super) fn forget(&mut self) {
        self.shown.clear();
    }

    /// Writes the lines that differ from those on the screen.
    pub(super) fn show(&mut self, lines: &[Line]) -> io::Result<()> {
        let lines: Vec<String> = lines.iter().map(|line| line.render(self.colours)).collect();
        let mut out = stdout().lock();
        if self.shown.len() != lines.len() {
            queue!(out, terminal::Clear(terminal::ClearType::All))?;
            self.shown.clear();
        }
        queue!(out, terminal::BeginSynchronizedUpdate)?;
        for (place, line) in lines.iter().enumerate() {
            if self.shown.get(place) == Some(line) {
                continue;
            }
            // Screens have fewer lines than u16 counts.
            let row = u16::try_from(place).unwrap_or(u16::MAX);
            queue!(
                out,
                cursor::MoveTo(0, row),
                // Before the text: behind a full line it would clear the last column.
                terminal::Clear(terminal::ClearType::UntilNewLine),
                style::Print(line)
            )?;
        }
        queue!(out, terminal::EndSynchronizedUpdate)?;
        out.flush()?;
        self.shown = lines;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the terminal. A terminal that is gone needs nothing.
fn give_back() {
    let _ =
        execute!(stdout(), terminal::EnableLineWrap, cursor::Show, terminal::LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

/// Reads keys on a thread of its own, until nobody waits for them.
pub(super) fn inputs() -> mpsc::Receiver<Input> {
    let (sender, receiver) = mpsc::channel(MAX_KEYS);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let input = match event::poll(PATIENCE) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let input = match input {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Input::Key(key),
                Ok(Event::Resize(_, _)) => Input::Resized,
                Ok(_) => continue,
                // The terminal is gone; the closed channel says so.
                Err(_) => break,
            };
            if sender.blocking_send(input).is_err() {
                break;
            }
        }
    });
    receiver
}
