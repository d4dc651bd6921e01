//! State of the screen of `weir top`: the view, its order and filter, and the keys that change them.
//! Builds the lines of a frame; writes to no terminal.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::cells::{Line, Order, Table, Tone};
use super::data::Known;
use super::views::{self, View};

/// Maximum length of a filter.
const MAX_FILTER_CHARS: usize = 100;
/// Rows that a page key leaves on the screen.
const OVERLAP: usize = 1;

const HELP: [(&str, &str); 12] = [
    ("Tab, 1 to 4", "the next view, or requests, conversations, budgets, upstreams"),
    ("s, S", "sorts by the next column, or the one before"),
    ("r", "reverses the order"),
    ("/", "shows only rows that contain a text; Enter keeps it, Esc removes it"),
    ("p, Space", "pauses the display; weir goes on"),
    ("Up, Down, j, k", "moves by a row"),
    ("PgUp, PgDn", "moves by a page"),
    ("Home, End", "moves to the first or the last row"),
    ("h, ?", "shows or hides this help"),
    ("q, Ctrl-C", "ends weir top; weir goes on"),
    ("", ""),
    ("bars", "share of the limit; | marks 70 % and 90 %, where bars turn yellow and red"),
];

/// Reaction to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reaction {
    Continue,
    Quit,
}

/// State of the screen.
#[derive(Debug, Default)]
pub(super) struct Ui {
    view: View,
    /// Order of each view's rows.
    orders: [Order; View::ALL.len()],
    filter: String,
    is_typing: bool,
    pub is_paused: bool,
    is_help: bool,
    /// First row that is shown.
    offset: usize,
    /// Rows that fit on the last frame.
    page: usize,
    /// Problem of the connection, if there is one.
    pub problem: Option<String>,
}

impl Ui {
    /// Creates the state at the start.
    pub(super) fn new(view: View, filter: String) -> Self {
        Self { view, filter, ..Self::default() }
    }

    fn order(&mut self) -> &mut Order {
        &mut self.orders[self.view as usize]
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.offset = 0;
    }

    /// Applies a key.
    pub(super) fn press(&mut self, key: KeyEvent, known: &Known) -> Reaction {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Reaction::Quit;
        }
        if self.is_typing {
            self.type_key(key);
            return Reaction::Continue;
        }
        if self.is_help && key.code != KeyCode::Char('q') {
            self.is_help = false;
            return Reaction::Continue;
        }
        match key.code {
            KeyCode::Char('q') => return Reaction::Quit,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Char('h' | '?') => self.is_help = true,
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('r') => self.order().is_reversed ^= true,
            KeyCode::Char('s') => self.sort(1, known),
            KeyCode::Char('S') => self.sort(-1, known),
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(View::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='4') => {
                self.show(View::ALL[digit as usize - '1' as usize]);
            }
            KeyCode::Down | KeyCode::Char('j') => self.offset += 1,
            KeyCode::Up | KeyCode::Char('k') => self.offset = self.offset.saturating_sub(1),
            KeyCode::PageDown => self.offset += self.page.saturating_sub(OVERLAP),
            KeyCode::PageUp => {
                self.offset = self.offset.saturating_sub(self.page.saturating_sub(OVERLAP));
            }
            KeyCode::Home | KeyCode::Char('g') => self.offset = 0,
            // The next frame moves it to the last page.
            KeyCode::End | KeyCode::Char('G') => self.offset = usize::MAX / 2,
            _ => {}
        }
        Reaction::Continue
    }

    fn turn(&mut self, by: usize) {
        self.show(View::ALL[(self.view as usize + by) % View::ALL.len()]);
    }

    fn type_key(&mut self, key: KeyEvent) {
        match key.code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) if self.filter.chars().count() < MAX_FILTER_CHARS => {
                self.filter.push(letter);
                self.offset = 0;
            }
            _ => {}
        }
    }

    /// Sorts by the next column or the one before; before the first is the natural order.
    fn sort(&mut self, by: isize, known: &Known) {
        let columns = self.view.table(known).columns.len();
        let order = self.order();
        let place = order.column.map_or(0, |column| column + 1);
        let next = (place as isize + by).rem_euclid(columns as isize + 1) as usize;
        order.column = next.checked_sub(1);
        self.offset = 0;
    }

    /// Returns the view's table in its order.
    fn table(&self, known: &Known) -> (Table, Order) {
        let order = self.orders[self.view as usize];
        let mut table = self.view.table(known);
        if !self.filter.is_empty() {
            table.filter(&self.filter);
            table.empty = "no row contains the filter; Esc removes it";
        }
        table.sort(order);
        (table, order)
    }

    /// Returns the lines of a frame for a screen of this size.
    pub(super) fn frame(
        &mut self,
        known: &Known,
        place: &str,
        (width, height): (usize, usize),
    ) -> Vec<Line> {
        let mut lines = views::header(known, place);
        lines.push(self.tabs(known));
        let room = height.saturating_sub(lines.len() + 1);
        if self.is_help {
            lines.extend(help());
        } else {
            let (table, order) = self.table(known);
            let mut rows = table.lines(order, width);
            self.page = room.saturating_sub(1);
            let count = rows.len() - 1;
            self.offset = self.offset.min(count.saturating_sub(self.page));
            let head = rows.remove(0);
            lines.push(head);
            lines.extend(rows.into_iter().skip(self.offset).take(self.page));
        }
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), Line::default());
        let mut lines: Vec<Line> = lines.iter().map(|line| line.cut(width)).collect();
        if height > 0 {
            lines.push(self.status().as_bar(width));
        }
        lines
    }

    fn tabs(&self, known: &Known) -> Line {
        let counts = [
            known.live.running.len() + known.ended.len(),
            known.conversations().len(),
            known.budgets.len(),
            known.upstreams().len(),
        ];
        let mut line = Line::default();
        for ((place, view), count) in View::ALL.iter().enumerate().zip(counts) {
            let tone = if *view == self.view { Tone::Reverse } else { Tone::Dim };
            line = line.and(tone, &format!(" {} {} ({count}) ", place + 1, view.name()));
        }
        line
    }

    /// Returns the last line: the filter, a problem, or the most used keys.
    fn status(&self) -> Line {
        let text = match (&self.problem, self.is_typing) {
            (_, true) => format!("filter: {}_", self.filter),
            (Some(problem), _) => format!("no answer, trying again: {problem}"),
            (None, _) if self.is_paused => "paused; p goes on".to_owned(),
            (None, _) if !self.filter.is_empty() => {
                format!("filter: {}   Esc removes it", self.filter)
            }
            (None, _) => {
                "q quit   Tab view   s sort   r reverse   / filter   p pause   ? help".to_owned()
            }
        };
        Line::new(Tone::Plain, &text)
    }
}

fn help() -> Vec<Line> {
    let mut lines = vec![Line::default()];
    lines.extend(HELP.iter().map(|(keys, about)| {
        Line::new(Tone::Bold, &format!("  {keys:<16}")).and(Tone::Plain, about)
    }));
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::data::Snapshot;
    use super::*;

    fn known() -> Known {
        let live = json!({
            "now_ms": 60_000, "started_ms": 0, "next": 3,
            "totals": {"requests": 3, "compactions": 1, "received_tokens": 3000, "sent_tokens": 1500,
                       "cost_usd": "0.25", "saved_usd": "-0.01", "unpriced": 0, "observed": 0},
            "running": [{"seq": 3, "begun_ms": 58_000, "model": "gpt-4o"}],
            "requests": [
                {"seq": 1, "ended_ms": 45_000, "model": "b-model", "status": 200,
                 "outcome": "complete", "action": "pass", "received_tokens": 500,
                 "sent_tokens": 500, "limit_tokens": 1000, "conversation": "c1"},
                {"seq": 2, "ended_ms": 50_000, "model": "\u{1b}]0;x\u{7}evil\nline", "status": 429,
                 "outcome": "refused", "error": "insufficient_quota"},
            ],
        });
        let mut known = Known::default();
        let live = serde_json::from_value(live).expect("an answer");
        let status = Some(json!({"version": "1.2.3"}));
        known.take(Snapshot { live, budgets: None, status });
        known
    }

    fn frame(ui: &mut Ui, size: (usize, usize)) -> Vec<String> {
        ui.frame(&known(), "here", size).iter().map(Line::text).collect()
    }

    fn press(ui: &mut Ui, keys: &str) -> Reaction {
        let mut last = Reaction::Continue;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                '\t' => KeyCode::Tab,
                '\u{8}' => KeyCode::Backspace,
                other => KeyCode::Char(other),
            };
            last = ui.press(KeyEvent::new(code, KeyModifiers::NONE), &known());
        }
        last
    }

    #[test]
    fn a_frame_fits_any_size() {
        for size in [(0, 0), (1, 1), (5, 3), (20, 6), (80, 24), (200, 50)] {
            for keys in ["", "?", "2", "/x", "p"] {
                let mut ui = Ui::default();
                press(&mut ui, keys);
                let lines = ui.frame(&known(), "here", size);
                assert_eq!(lines.len(), size.1, "{size:?} {keys}");
                assert!(lines.iter().all(|line| line.width() <= size.0), "{size:?} {keys}");
            }
        }
    }

    #[test]
    fn the_newest_request_stands_first_and_hostile_names_are_harmless() {
        let lines = frame(&mut Ui::default(), (120, 12));
        assert!(lines[0].starts_with("weir 1.2.3  here  up 1 min 0 s  00:01:00 UTC"), "{lines:#?}");
        assert!(
            lines[1].contains("3 (0.0/s)   in flight 1   failed 0   refused 1 of the last 2"),
            "{lines:#?}"
        );
        assert!(lines[3].contains("spent $0.2500   saved -$0.0100"), "{lines:#?}");
        assert!(lines[6].starts_with("running   …") && lines[6].contains("gpt-4o"), "{lines:#?}");
        assert!(lines[7].contains("429 insufficient_quota  ]0;xevil line"), "{lines:#?}");
        assert!(lines[8].contains("######.|.|") || lines[8].contains("######..|.|"), "{lines:#?}");
        let all = lines.concat();
        assert!(!all.chars().any(char::is_control), "{all:?}");
    }

    #[test]
    fn keys_filter_sort_pause_and_quit() {
        let mut ui = Ui::default();
        press(&mut ui, "/B-MOx\u{8}\n");
        let lines = frame(&mut ui, (120, 12));
        assert!(lines[6].contains("b-model") && lines[7].trim().is_empty(), "{lines:#?}");
        assert!(lines[11].starts_with("filter: B-MO "), "{lines:#?}");
        press(&mut ui, "\u{1b}sss");
        let lines = frame(&mut ui, (120, 12));
        assert!(lines[5].contains("modelv"), "{lines:#?}");
        assert!(lines[6].contains("evil") && lines[7].contains("b-model"), "{lines:#?}");
        press(&mut ui, "r");
        assert!(frame(&mut ui, (120, 12))[6].contains("gpt-4o"));
        press(&mut ui, "SSS\t");
        assert_eq!(ui.view, View::Conversations);
        assert!(frame(&mut ui, (120, 12))[6].starts_with("c1"));
        press(&mut ui, "p?");
        assert!(ui.is_paused);
        assert!(frame(&mut ui, (120, 24)).concat().contains("reverses the order"));
        press(&mut ui, "x");
        assert_eq!(press(&mut ui, "/q"), Reaction::Continue, "q is a letter of a filter");
        assert_eq!(press(&mut ui, "\u{1b}q"), Reaction::Quit);
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(ui.press(control, &known()), Reaction::Quit);
    }

    #[test]
    fn rows_scroll_within_their_bounds() {
        let mut ui = Ui::default();
        press(&mut ui, "G");
        let lines = frame(&mut ui, (120, 8));
        assert!(lines[6].contains("b-model"), "the last row: {lines:#?}");
        press(&mut ui, "k");
        assert!(frame(&mut ui, (120, 8))[6].contains("evil"));
        press(&mut ui, "jjjjjjj");
        assert!(frame(&mut ui, (120, 8))[6].contains("b-model"));
    }
}
