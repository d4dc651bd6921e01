//! Text with tones, and tables of it. Knows no terminal: the same lines stand on a screen and in a
//! file. Widths are those that terminals use.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::cli::colours::{self, Colours, FULL_PERCENT, NEAR_PERCENT};
use weir_engine::compact::report::shown;

pub(super) use shown::tokens;

/// Maximum length of a text from outside.
const MAX_TEXT_CHARS: usize = 200;
/// Space between columns.
const GAP: usize = 2;

/// Meaning of a piece of text, which decides its colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Bold,
    Dim,
    Good,
    Near,
    Full,
    Accent,
    /// Bar across the screen.
    Reverse,
}

impl Tone {
    /// Returns its codes for a terminal.
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => colours::BOLD,
            Self::Dim => colours::DIM,
            Self::Good => colours::GREEN,
            Self::Near => colours::YELLOW,
            Self::Full => colours::RED,
            Self::Accent => colours::CYAN,
            Self::Reverse => "7",
        }
    }

    /// Returns the tone of a share of a limit.
    pub(super) fn of_percent(percent: u64) -> Self {
        match percent {
            FULL_PERCENT.. => Self::Full,
            NEAR_PERCENT.. => Self::Near,
            _ => Self::Good,
        }
    }
}

/// Line of text in tones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line(Vec<(Tone, String)>);

impl Line {
    /// Returns a line of one piece. Characters that a terminal would interpret are left out.
    pub(super) fn new(tone: Tone, text: &str) -> Self {
        Self::default().and(tone, text)
    }

    /// Adds a piece.
    pub(super) fn and(mut self, tone: Tone, text: &str) -> Self {
        let plain: String = shown::safe_lines(text)
            .chars()
            .map(|own| if matches!(own, '\n' | '\t') { ' ' } else { own })
            .take(MAX_TEXT_CHARS)
            .collect();
        if !plain.is_empty() {
            self.0.push((tone, plain));
        }
        self
    }

    /// Adds all pieces of another line.
    fn extend(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
    }

    fn pad(&mut self, width: usize) {
        if width > 0 {
            self.0.push((Tone::Plain, " ".repeat(width)));
        }
    }

    pub(super) fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| text.width()).sum()
    }

    /// Returns the text without tones.
    pub(super) fn text(&self) -> String {
        self.0.iter().map(|(_, text)| text.as_str()).collect()
    }

    /// Returns the line cut to a width.
    pub(super) fn cut(&self, width: usize) -> Self {
        if self.width() <= width {
            return self.clone();
        }
        let mut left = width.saturating_sub(1);
        let mut short = Self::default();
        'pieces: for (tone, text) in &self.0 {
            let mut piece = String::new();
            for own in text.chars() {
                let own_width = own.width().unwrap_or(0);
                if own_width > left {
                    short.0.push((*tone, piece));
                    break 'pieces;
                }
                left -= own_width;
                piece.push(own);
            }
            short.0.push((*tone, piece));
        }
        short.0.push((Tone::Dim, "…".repeat(width.min(1))));
        short
    }

    /// Returns the line filled up to a width in the tone of a bar.
    pub(super) fn as_bar(&self, width: usize) -> Self {
        let text = self.cut(width).text();
        let fill = " ".repeat(width.saturating_sub(text.width()));
        Self(vec![(Tone::Reverse, text + &fill)])
    }

    /// Formats it for a terminal, or without colours.
    pub(super) fn render(&self, colours: Colours) -> String {
        let piece = |(tone, text): &(Tone, String)| match tone {
            Tone::Plain => text.clone(),
            // Reverse video is no colour, and stands on screens alone.
            Tone::Reverse => Colours(true).paint(tone.code(), text),
            tone => colours.paint(tone.code(), text),
        };
        self.0.iter().map(piece).collect()
    }
}

/// Draws a part of a whole as a bar, with marks where its zones begin.
pub(super) fn bar(part: u64, whole: u64, width: usize) -> Line {
    let percent = shown::percent(part, whole);
    let scaled = u128::from(part) * width as u128 / u128::from(whole.max(1));
    let full = usize::try_from(scaled).unwrap_or(width).min(width);
    // A small part is seen, too.
    let full = if part > 0 { full.max(1) } else { 0 };
    let mark = |percent: u64| width * percent as usize / 100;
    let rest: String = (full..width)
        .map(|at| if at == mark(NEAR_PERCENT) || at == mark(FULL_PERCENT) { '|' } else { '.' })
        .collect();
    Line::default().and(Tone::of_percent(percent), &"#".repeat(full)).and(Tone::Dim, &rest)
}

/// Sort value of a cell.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SortKey {
    Number(i128),
    Text(String),
}

/// Cell of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    line: Line,
    key: SortKey,
}

impl Cell {
    pub(super) fn text(tone: Tone, text: &str) -> Self {
        Self { line: Line::new(tone, text), key: SortKey::Text(text.to_lowercase()) }
    }

    /// Creates a figure; an absent one is empty, and the smallest.
    pub(super) fn figure(tone: Tone, figure: Option<i128>, text: &str) -> Self {
        let key = SortKey::Number(figure.unwrap_or(i128::MIN));
        Self { line: Line::new(tone, if figure.is_some() { text } else { "-" }), key }
    }

    pub(super) fn line(line: Line, figure: i128) -> Self {
        Self { line, key: SortKey::Number(figure) }
    }

    /// Creates a count of tokens.
    pub(super) fn tokens(count: Option<u64>) -> Self {
        let text = count.map(tokens).unwrap_or_default();
        Self::figure(Tone::Plain, count.map(i128::from), &text)
    }
}

/// Column: its head, and whether its cells end at one place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub head: &'static str,
    pub is_right: bool,
}

/// Order of rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Order {
    /// `None` for the order in which they came.
    pub column: Option<usize>,
    pub is_reversed: bool,
}

/// Table.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<Cell>>,
    /// Text instead of rows, if there are none.
    pub empty: &'static str,
}

impl Table {
    /// Keeps the rows that contain a text, in any case.
    pub(super) fn filter(&mut self, text: &str) {
        let text = text.to_lowercase();
        let contains = |row: &Vec<Cell>| {
            let cells = row.iter().map(|cell| cell.line.text().to_lowercase());
            cells.collect::<Vec<_>>().join(" ").contains(&text)
        };
        self.rows.retain(contains);
    }

    /// Sorts the rows, figures from the largest.
    pub(super) fn sort(&mut self, order: Order) {
        if let Some(column) = order.column.filter(|column| *column < self.columns.len()) {
            self.rows.sort_by(|one, other| {
                let (one, other) = (&one[column].key, &other[column].key);
                match one {
                    SortKey::Number(_) => other.cmp(one),
                    SortKey::Text(_) => one.cmp(other),
                }
            });
        }
        if order.is_reversed {
            self.rows.reverse();
        }
    }

    /// Formats the head and the rows, at most `width` wide. The last columns give way.
    pub(super) fn lines(&self, order: Order, width: usize) -> Vec<Line> {
        let heads: Vec<Line> = self
            .columns
            .iter()
            .enumerate()
            .map(|(place, column)| {
                let mark = match order.column == Some(place) {
                    true if order.is_reversed => "^",
                    true => "v",
                    false => "",
                };
                Line::new(Tone::Bold, &format!("{}{mark}", column.head))
            })
            .collect();
        let widths: Vec<usize> = heads
            .iter()
            .enumerate()
            .map(|(place, head)| {
                let cells = self.rows.iter().map(|row| row[place].line.width());
                cells.max().unwrap_or(0).max(head.width())
            })
            .collect();
        let mut lines = vec![self.row(&heads.iter().collect::<Vec<_>>(), &widths, width)];
        if self.rows.is_empty() {
            lines.push(Line::new(Tone::Dim, self.empty));
        }
        lines.extend(self.rows.iter().map(|row| {
            self.row(&row.iter().map(|cell| &cell.line).collect::<Vec<_>>(), &widths, width)
        }));
        lines
    }

    fn row(&self, cells: &[&Line], widths: &[usize], width: usize) -> Line {
        let mut line = Line::default();
        let mut gap = 0;
        for ((cell, own), column) in cells.iter().zip(widths).zip(&self.columns) {
            let fill = own - cell.width();
            let (before, after) = if column.is_right { (gap + fill, 0) } else { (gap, fill) };
            line.pad(before);
            line.extend(cell);
            gap = GAP + after;
        }
        line.cut(width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let column = |head, is_right| Column { head, is_right };
        let row =
            |name: &str, count: u64| vec![Cell::text(Tone::Plain, name), Cell::tokens(Some(count))];
        Table {
            columns: vec![column("model", false), column("tokens", true)],
            rows: vec![row("gpt-4o", 20), row("漢字", 1500), row("a", 3)],
            empty: "nothing",
        }
    }

    fn texts(table: &Table, order: Order, width: usize) -> Vec<String> {
        table.lines(order, width).iter().map(Line::text).collect()
    }

    #[test]
    fn columns_stand_one_below_the_other_in_any_script() {
        let expected = ["model   tokens", "gpt-4o      20", "漢字      1.5K", "a            3"];
        assert_eq!(texts(&table(), Order::default(), 80), expected);
        let narrow = ["model  …", "gpt-4o …", "漢字   …", "a      …"];
        assert_eq!(texts(&table(), Order::default(), 8), narrow);
        let empty = Table { rows: Vec::new(), ..table() };
        assert_eq!(texts(&empty, Order::default(), 80), ["model  tokens", "nothing"]);
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let mut sorted = table();
        let order = Order { column: Some(1), is_reversed: false };
        sorted.sort(order);
        assert_eq!(texts(&sorted, order, 80)[0], "model   tokensv");
        let names = |table: &Table| -> Vec<String> {
            table.rows.iter().map(|row| row[0].line.text()).collect()
        };
        assert_eq!(names(&sorted), ["漢字", "gpt-4o", "a"]);
        sorted.sort(Order { column: Some(0), is_reversed: true });
        assert_eq!(names(&sorted), ["漢字", "gpt-4o", "a"]);
        sorted.filter("GPT");
        assert_eq!(names(&sorted), ["gpt-4o"]);
    }

    #[test]
    fn no_text_moves_the_terminal() {
        let line = Line::new(Tone::Plain, "m\u{1b}[2J\r\n\u{9b}31m\u{202e}x\u{7}\ty");
        assert_eq!(line.text(), "m[2J 31mx y");
        let long = Line::new(Tone::Plain, &"x".repeat(100_000));
        assert_eq!(long.width(), MAX_TEXT_CHARS);
    }

    #[test]
    fn bars_have_zones() {
        for (part, expected) in [
            (0, ".......|.|"),
            (1, "#......|.|"),
            (500, "#####..|.|"),
            (800, "########.|"),
            (5000, "##########"),
        ] {
            assert_eq!(bar(part, 1000, 10).text(), expected, "{part}");
        }
        assert_eq!(bar(7, 0, 4).text(), "####");
        let red = bar(95, 100, 10).render(Colours(true));
        assert_eq!(red, "\u{1b}[31m#########\u{1b}[0m\u{1b}[2m|\u{1b}[0m");
    }
}
