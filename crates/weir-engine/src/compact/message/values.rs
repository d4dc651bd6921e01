//! Values in a text: names, paths, numbers and quoted words that a later message can refer to.
//! Pure; reads one text at a time, independent of conversations.

use memchr::{memchr_iter, memchr2, memchr2_iter, memchr3, memmem};
use unicode_normalization::char::is_combining_mark;

use crate::tokens::letters::behind_small;

/// Span of a text that a later message may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Value {
    pub start: u32,
    pub end: u32,
    pub kind: ValueKind,
}

/// Form of a value, which indicates how likely it is to be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A path, identifier, number, address or code.
    Name,
    /// Several words, a call or an assignment: repeated verbatim less often.
    Phrase,
    /// A capitalised word inside a sentence.
    Word,
}

/// Length of a run that counts as a name.
const NAME_BYTES: std::ops::RangeInclusive<usize> = 4..=200;
/// Length of a quoted string that counts.
const QUOTED_BYTES: std::ops::RangeInclusive<usize> = 4..=60;
/// Approximate bytes per value in dense text.
const BYTES_PER_VALUE: usize = 16;
/// Length of the date in a timestamp.
const DAY_BYTES: usize = "2024-05-15".len();
/// Maximum length of a call or assignment that counts.
const PHRASE_BYTES: usize = 48;

/// Returns whether a value is a date followed by a time, like `2024-05-15T08:28:51`.
pub(crate) fn is_moment(value: &[u8]) -> bool {
    matches!(value, [_, _, _, _, b'-', _, _, b'-', _, _, b'T', _, _, b':', ..])
}

/// Finds the values of `text`, in order of start.
pub(crate) fn values(text: &str) -> Vec<Value> {
    let found = Vec::with_capacity(text.len() / BYTES_PER_VALUE);
    let mut finder = Finder { text, bytes: text.as_bytes(), found };
    finder.run();
    finder.found
}

pub(crate) fn ends_line(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}')
}

struct Finder<'a> {
    text: &'a str,
    bytes: &'a [u8],
    found: Vec<Value>,
}

/// Classes of bytes in a run: lowercase letters and bytes beyond ASCII, digits, capitals, underscores,
/// separators within a path or name, and all others. The last one marks bytes beyond ASCII.
const SMALL: u8 = 1;
const DIGIT: u8 = 1 << 1;
const CAPITAL: u8 = 1 << 2;
const UNDERSCORE: u8 = 1 << 3;
const PARTING: u8 = 1 << 4;
const OTHER: u8 = 1 << 5;
const WIDE: u8 = 1 << 6;

/// Bytes of names, paths, numbers and addresses, by class; 0 for others.
const RUN: [u8; 256] = {
    let mut run = [0; 256];
    let mut index = 0;
    while index < 256 {
        run[index] = match index as u8 {
            b'a'..=b'z' => SMALL,
            0x80.. => SMALL | WIDE,
            b'/' | b'.' => PARTING,
            b'0'..=b'9' => DIGIT,
            b'A'..=b'Z' => CAPITAL,
            b'_' => UNDERSCORE,
            b'@' | b'#' | b'+' | b'-' => OTHER,
            _ => 0,
        };
        index += 1;
    }
    run
};

/// The same for ASCII alone; 0 beyond.
const PLAIN: [u8; 256] = {
    let mut plain = RUN;
    let mut index = 0x80;
    while index < 256 {
        plain[index] = 0;
        index += 1;
    }
    plain
};

/// Kind of a byte at which no run has begun.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Lowercase ASCII letter.
    Small,
    /// Other byte that can begin a run.
    Run,
    /// White space within a line.
    Blank,
    /// Sign that is part of no value.
    Sign,
    LineEnd,
    Backslash,
    Quote,
}

/// Kinds of all bytes.
static KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Sign; 256];
    let mut index = 0;
    while index < 256 {
        kinds[index] = match index as u8 {
            b'a'..=b'z' => Kind::Small,
            b' ' | b'\t' | b'\r' | b'\x0c' => Kind::Blank,
            b'\n' => Kind::LineEnd,
            b'\\' => Kind::Backslash,
            b'"' | b'\'' | b'`' => Kind::Quote,
            byte if RUN[byte as usize] != 0 => Kind::Run,
            _ => Kind::Sign,
        };
        index += 1;
    }
    kinds
};

/// Whether a byte after lowercase letters ends a word that is no part of a value.
const ENDS_WORD: [bool; 256] = {
    let mut ends = [false; 256];
    let mut index = 0;
    while index < 0x80 {
        ends[index] = RUN[index] == 0 && !matches!(index as u8, b'(' | b'=');
        index += 1;
    }
    ends
};

impl Finder<'_> {
    fn run(&mut self) {
        let mut at = 0;
        // Whether only white space precedes on the line.
        let mut is_first = true;
        // End of the last string in this quote: beyond it the same quote opens a new one.
        let mut quoted_to = 0;
        // Whether a backslash is a separator of paths.
        let mut parts_paths = None;
        // Whether the text has JSON inside a string of JSON.
        let mut nests = None;
        while let Some(byte) = self.bytes.get(at).copied() {
            match KINDS[usize::from(byte)] {
                Kind::Small => {
                    // Most words: nothing of them is a value.
                    let end = behind_small(self.bytes, at);
                    let next = self.bytes.get(end);
                    if next.is_none_or(|next| ENDS_WORD[usize::from(*next)]) {
                        at = end + usize::from(next == Some(&b' '));
                    } else {
                        at = self.take_from(at, is_first);
                    }
                    is_first = false;
                }
                Kind::Run if self.is_letter(at) => {
                    at = self.take_from(at, is_first);
                    is_first = false;
                }
                Kind::Run => {
                    at += self.text[at..].chars().next().map_or(1, char::len_utf8);
                    is_first = false;
                }
                Kind::Blank => at += 1,
                Kind::Sign => {
                    at += 1;
                    is_first = false;
                }
                Kind::LineEnd => {
                    at += 1;
                    is_first = true;
                }
                Kind::Backslash => {
                    at += 1;
                    let parts_paths = *parts_paths.get_or_insert_with(|| has_drive(self.text));
                    let is_escape = !parts_paths && is_escape(self.bytes, at);
                    is_first = is_escape && self.bytes[at] == b'n';
                    at += usize::from(is_escape);
                    let is_nested = is_escape && self.bytes[at - 1] == b'\\';
                    if is_nested
                        && is_escape_letter(self.bytes.get(at))
                        && *nests.get_or_insert_with(|| nests_json(self.bytes))
                    {
                        is_first = self.bytes[at] == b'n';
                        at += 1;
                    }
                }
                Kind::Quote => {
                    at += 1;
                    is_first = false;
                    if at > quoted_to {
                        quoted_to = self.take_quoted(at - 1).unwrap_or(quoted_to);
                    }
                }
            }
        }
    }

    /// Records the values of the run at `start`, and returns its end. `is_first` says whether only white
    /// space precedes it on its line.
    #[inline]
    fn take_from(&mut self, start: usize, is_first: bool) -> usize {
        let mut start = start;
        let (end, mut holds) = self.run_end(start);
        if is_first && let Some(behind) = self.take_numbered_path(start, end, holds) {
            start = behind;
            holds = holds_of(&self.bytes[start..end]);
        }
        if holds & !WIDE == SMALL {
            self.take_word(start, end);
        } else if !is_first || !self.is_line_number(start, end) {
            self.take_run(start, end, holds);
        }
        end
    }

    /// Returns the end of the run that begins at `start`, and the classes of its bytes.
    #[inline]
    fn run_end(&self, start: usize) -> (usize, u8) {
        let mut at = behind_small(self.bytes, start);
        let mut holds = if at > start { SMALL } else { 0 };
        loop {
            // Nearly all are plain characters that need no further check.
            while let Some(own @ 1..) = self.bytes.get(at).map(|byte| PLAIN[usize::from(*byte)]) {
                holds |= own;
                at += 1;
            }
            match self.bytes.get(at) {
                Some(b':') if self.is_in_time(start, at) => holds |= OTHER,
                Some(0x80..) if self.is_letter(at) || self.is_mark(at) => holds |= SMALL | WIDE,
                _ => return (at, holds),
            }
            at += 1;
        }
    }

    /// Returns whether the non-ASCII character at `at` belongs to a word: arrows, dashes and
    /// typographic quotes separate words as blanks do.
    fn is_letter(&self, at: usize) -> bool {
        // A continuation byte of a character that began in the run belongs to it.
        self.bytes[at] < 0xc0
            || self.text[at..].chars().next().is_some_and(|letter| letter.is_alphanumeric())
    }

    /// Returns whether the character at `at` is part of the letter before it: an accent, a vowel
    /// sign, a joiner.
    fn is_mark(&self, at: usize) -> bool {
        self.text[at..].chars().next().is_some_and(|letter| {
            is_combining_mark(letter) || matches!(letter, '\u{200c}' | '\u{200d}')
        })
    }

    /// Returns whether the colon at `at` is between two digits and two digits, as in a time.
    fn is_in_time(&self, start: usize, at: usize) -> bool {
        let is_digit = |at: usize| self.bytes.get(at).is_some_and(u8::is_ascii_digit);
        at >= start + 2
            && [at - 2, at - 1, at + 1, at + 2].into_iter().all(is_digit)
            && !is_digit(at + 3)
            && (at == start + 2 || matches!(self.bytes[at - 3], b'T' | b':'))
    }

    /// Adds the path at the beginning of a line of `grep`; returns the end of the line's number behind it.
    fn take_numbered_path(&mut self, start: usize, end: usize, holds: u8) -> Option<usize> {
        const NEEDED: u8 = PARTING | DIGIT | OTHER;
        if holds & NEEDED != NEEDED {
            return None;
        }
        let (path_end, behind) = numbered_path(&self.bytes[start..end])?;
        let path_end = start + path_end;
        self.take_run(start, path_end, holds_of(&self.bytes[start..path_end]));
        Some(start + behind)
    }

    /// Records the phrase at a run of lowercase letters: alone it is no value, but a call or
    /// assignment may be.
    fn take_word(&mut self, start: usize, end: usize) {
        if NAME_BYTES.contains(&(end - start)) {
            self.take_phrase(start, end);
        }
    }

    /// Returns whether a line's first run is the line number that tools print before its content.
    fn is_line_number(&self, start: usize, end: usize) -> bool {
        let digits = self.bytes[start..end].iter().take_while(|byte| byte.is_ascii_digit()).count();
        digits > 0
            && match self.bytes[start + digits..end] {
                [] => self.text[end..].starts_with([':', '\t', '|', '→']),
                [b'-'] => true,
                _ => false,
            }
    }

    /// Adds a value in order of start and end, once.
    fn push(&mut self, start: usize, end: usize, kind: ValueKind) {
        // A value is within one line, so it contains no line end of any kind. ASCII names and words
        // contain none; those with letters beyond ASCII may.
        let said = &self.bytes[start..end];
        let has_end = match said.is_ascii() {
            true => kind == ValueKind::Phrase && said.iter().any(u8::is_ascii_control),
            false => self.text.get(start..end).is_none_or(|said| said.contains(ends_line)),
        };
        if has_end {
            return;
        }
        let value = Value { start: start as u32, end: end as u32, kind };
        let is_last = |own: &Value| (own.start, own.end) < (value.start, value.end);
        if self.found.last().is_none_or(is_last) {
            return self.found.push(value);
        }
        // Values are only found out of order within the same run or quotes.
        let before =
            self.found.iter().rposition(|own| (own.start, own.end) <= (value.start, value.end));
        match before {
            Some(before)
                if (self.found[before].start, self.found[before].end)
                    == (value.start, value.end) => {}
            before => self.found.insert(before.map_or(0, |before| before + 1), value),
        }
    }

    fn take_run(&mut self, start: usize, end: usize, holds: u8) {
        let (start, end) = self.trimmed(start, end);
        if end.saturating_sub(start) < *NAME_BYTES.start() {
            return;
        }
        let run = &self.bytes[start..end];
        if is_name(run, holds) {
            self.push(start, end, ValueKind::Name);
            // The date in a timestamp is a value, too.
            if is_moment(run) {
                self.push(start, start + DAY_BYTES, ValueKind::Name);
            }
            if holds & PARTING != 0 {
                self.take_parts(start, end, holds);
            }
        } else if self.is_capitalised_inside(start, end) {
            self.push(start, end, ValueKind::Word);
        } else if run.len() > *NAME_BYTES.end() {
            return;
        }
        self.take_phrase(start, end);
    }

    /// Trims the punctuation of the surrounding sentence from a run.
    fn trimmed(&self, mut start: usize, mut end: usize) -> (usize, usize) {
        while start < end && matches!(self.bytes[start], b'-' | b'+' | b'#' | b'@') {
            start += 1;
        }
        while end > start && matches!(self.bytes[end - 1], b'.' | b'-' | b'/' | b'+' | b'#' | b'@')
        {
            end -= 1;
        }
        (start, end)
    }

    /// Adds the last part of a path, and parts that look like identifiers.
    fn take_parts(&mut self, start: usize, end: usize, holds: u8) {
        let mut from = start;
        let separators = memchr2_iter(b'/', b'.', &self.bytes[start..end]).map(|at| start + at);
        for at in separators.chain([end]) {
            // A script without blanks has the unit at the number: `12.5米`.
            if holds & WIDE != 0 && self.is_decimal_point(at) {
                continue;
            }
            let part = &self.bytes[from..at];
            let is_last_of_path = at == end && from > start && self.bytes[from - 1] == b'/';
            let is_whole = from == start && at == end;
            if !is_whole
                && NAME_BYTES.contains(&part.len())
                && (is_last_of_path || is_name(part, holds_of(part)))
            {
                self.push(from, at, ValueKind::Name);
            }
            from = at + 1;
        }
        // A file's name with its extension.
        if let Some(slash) = self.bytes[start..end].iter().rposition(|byte| *byte == b'/') {
            let from = start + slash + 1;
            if NAME_BYTES.contains(&(end - from)) {
                self.push(from, end, ValueKind::Name);
            }
        }
    }

    /// Returns whether a point at `at` stands between two digits.
    fn is_decimal_point(&self, at: usize) -> bool {
        let is_digit = |at: usize| self.bytes.get(at).is_some_and(u8::is_ascii_digit);
        self.bytes.get(at) == Some(&b'.') && at > 0 && is_digit(at - 1) && is_digit(at + 1)
    }

    /// Adds `name(…)` and `name=…`, if short.
    fn take_phrase(&mut self, start: usize, end: usize) {
        let most = (start + PHRASE_BYTES).min(self.bytes.len());
        match self.bytes.get(end) {
            Some(b'(') => {
                let inside = &self.bytes[end + 1..most.max(end + 1)];
                let close = memchr3(b')', b'\n', b'(', inside);
                if let Some(length) = close.filter(|at| inside[*at] == b')' && *at > 0) {
                    self.push(start, end + length + 2, ValueKind::Phrase);
                }
            }
            Some(b'=') => {
                let inside = &self.bytes[end + 1..most.max(end + 1)];
                let stop = inside.iter().position(|byte| {
                    byte.is_ascii_whitespace() || matches!(byte, b',' | b')' | b';' | b']' | b'}')
                });
                let length = stop.unwrap_or(inside.len());
                if length > 0 && inside[0] != b'=' && (stop.is_some() || most == self.bytes.len()) {
                    self.push(start, end + 1 + length, ValueKind::Phrase);
                }
            }
            _ => {}
        }
    }

    /// Returns whether a capitalised word is inside a sentence.
    fn is_capitalised_inside(&self, start: usize, end: usize) -> bool {
        let run = &self.bytes[start..end];
        let before = &self.bytes[start.saturating_sub(2)..start];
        run.len() >= 4
            && run[0].is_ascii_uppercase()
            && matches!(before, [b'a'..=b'z' | b',' | b'0'..=b'9' | b'A'..=b'Z', b' '])
            && run[1..].iter().all(|byte| byte.is_ascii_lowercase() || *byte >= 0x80)
    }

    /// Adds a quoted string of one line; returns its end.
    fn take_quoted(&mut self, open: usize) -> Option<usize> {
        let quote = self.bytes[open];
        let is_apostrophe =
            quote == b'\'' && open > 0 && self.bytes[open - 1].is_ascii_alphanumeric();
        if is_apostrophe {
            return None;
        }
        let inside = &self.bytes[open + 1..(open + 2 + QUOTED_BYTES.end()).min(self.bytes.len())];
        let length = memchr2(quote, b'\n', inside)?;
        if inside[length] != quote {
            return None;
        }
        let text = &inside[..length];
        if QUOTED_BYTES.contains(&length) && !text[0].is_ascii_whitespace() {
            let is_plain = text.iter().all(|byte| RUN[usize::from(*byte)] != 0);
            let kind = if is_plain { ValueKind::Name } else { ValueKind::Phrase };
            self.push(open + 1, open + 1 + length, kind);
        }
        Some(open + 2 + length)
    }
}

/// Returns the end of the path that begins a line of `grep` next to a found one, `src/a.rs-40-let b`, and
/// of the line's number behind it.
fn numbered_path(run: &[u8]) -> Option<(usize, usize)> {
    let has_extension = |dash: usize| {
        let point = run[..dash].iter().rposition(|byte| !byte.is_ascii_alphanumeric());
        point.is_some_and(|point| {
            run[point] == b'.'
                && (1..8).contains(&(dash - point))
                && run[point + 1].is_ascii_alphabetic()
        })
    };
    memchr_iter(b'-', run).find_map(|dash| {
        let digits = run[dash + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let behind = dash + 1 + digits;
        let is_one = digits > 0 && run.get(behind) == Some(&b'-') && has_extension(dash);
        is_one.then_some((dash, behind + 1))
    })
}

/// Returns whether the byte at `at`, behind a backslash, is a line break or tab as JSON writes it, or
/// a backslash.
fn is_escape(bytes: &[u8], at: usize) -> bool {
    is_escape_letter(bytes.get(at)) || bytes.get(at) == Some(&b'\\')
}

fn is_escape_letter(byte: Option<&u8>) -> bool {
    matches!(byte, Some(b'n' | b't' | b'r'))
}

/// Returns whether a text has line breaks of a string inside a string, `\\n`. A path has letters
/// behind two backslashes, too, but seldom `n` alone, or `n` and a capital.
fn nests_json(bytes: &[u8]) -> bool {
    let is_break = |at: usize| match bytes.get(at + 3) {
        Some(b'_' | b'.' | b'-') => false,
        Some(next) => !next.is_ascii_lowercase() && !next.is_ascii_digit(),
        None => true,
    };
    memmem::find_iter(bytes, br"\\n").any(is_break)
}

/// Returns whether a text has paths with a drive and single backslashes, as Windows writes them. The
/// drive is one letter: `confirmed:\n` is a line break behind a colon.
fn has_drive(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_drive = |at: usize| {
        let is_letter = at > 0 && bytes[at - 1].is_ascii_alphabetic();
        let is_alone = at < 2 || !bytes[at - 2].is_ascii_alphanumeric();
        is_letter && is_alone && bytes.get(at + 2).is_some_and(|byte| *byte != b'\\')
    };
    memmem::find_iter(bytes, b":\\").any(is_drive)
}

/// Returns the classes of the bytes of a part of a run.
fn holds_of(part: &[u8]) -> u8 {
    part.iter().fold(0, |holds, byte| holds | RUN[usize::from(*byte)])
}

/// Returns whether a run is more specific than a word of a language: it contains a digit, a joint,
/// a capital inside or three capitals. `holds` are the classes of its bytes and of those trimmed from it,
/// and no letter, digit or underscore is trimmed.
fn is_name(run: &[u8], holds: u8) -> bool {
    if !NAME_BYTES.contains(&run.len()) {
        return false;
    }
    if holds & DIGIT != 0 {
        return true;
    }
    if holds & WIDE == 0 && holds & (SMALL | CAPITAL) != 0 {
        if holds & UNDERSCORE != 0 {
            return true;
        }
        // One capital at the start, as of a sentence.
        if holds & !SMALL == CAPITAL && behind_small(run, 1) == run.len() {
            return false;
        }
    }
    is_joined(run)
}

/// Returns the same by each byte.
fn is_joined(run: &[u8]) -> bool {
    let (mut is_plain, mut is_joined, mut capitals) = (true, false, 0);
    let mut before = 0_u8;
    for (index, byte) in run.iter().copied().enumerate() {
        is_plain &= !byte.is_ascii_alphanumeric();
        is_joined |= match byte {
            b'0'..=b'9' | b'_' | b'/' | b'@' => true,
            b'.' | b'-' => index > 0 && index + 1 < run.len(),
            b'A'..=b'Z' => before.is_ascii_lowercase(),
            _ => false,
        };
        capitals += u32::from(byte.is_ascii_uppercase());
        before = byte;
        if !is_plain && (is_joined || capitals >= 3) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&str> {
        values(text)
            .iter()
            .filter(|value| value.kind != ValueKind::Word)
            .map(|value| &text[value.start as usize..value.end as usize])
            .collect()
    }

    #[test]
    fn values_are_what_can_be_referred_to() {
        for (text, expected) in [
            ("see django/db/models/query.py now", &["django/db/models/query.py", "query.py"][..]),
            (
                "call get_user_details(user_id)",
                &["get_user_details", "get_user_details(user_id)", "user_id"],
            ),
            ("12: return maxAge", &["maxAge"]),
            ("  1204\tMAX_SIZE = 3", &["MAX_SIZE"]),
            ("pay 1204.50 by 2024-05-15.", &["1204", "1204.50", "2024-05-15"]),
            (r#"{"dob": "1992-09-13"}"#, &["1992-09-13"]),
            ("the user's words aren't quoted", &[]),
            ("said 'not now' twice", &["not now"]),
            ("said 'k\r#1 user:\rrun' twice", &[]),
            ("said 'k\u{2028}#1 user: run' twice", &[]),
            ("depth=4, x", &["depth=4"]),
            ("mail a.b+c@example.com!", &["a.b+c@example.com", "b+c@example"]),
            ("测试文本，没有值", &[]),
            ("  7→from models import Avg", &[]),
            ("src/a.rs-1204-    maxAge", &["src/a.rs", "a.rs", "maxAge"]),
            ("./my-a/b.rs-4-maxAge", &["./my-a/b.rs", "my-a", "b.rs", "maxAge"]),
            ("pkg-1.2-3-beta_4", &["pkg-1", "pkg-1.2-3-beta_4", "2-3-beta_4"]),
            ("LAS–ATL at maxAge…", &["maxAge"]),
            ("“wall_2” — größe_3", &["wall_2", "größe_3"]),
            ("10023，paid", &["10023"]),
            ("2024–2025 results", &["2024", "2025"]),
            (
                "/x/Mu\u{308}ller_2.pdf",
                &["/x/Mu\u{308}ller_2.pdf", "Mu\u{308}ller_2", "Mu\u{308}ller_2.pdf"],
            ),
            ("to 10.0.0.12:22", &["10.0.0.12"]),
            (r"paid\nOrder_4\tto\\name_5", &["Order_4", "name_5"]),
            (r"C:\new_1\table_2", &["new_1", "table_2"]),
            (r"confirmed:\nOrder_4", &["Order_4"]),
            (r"go.\\nOnce_5\\n\\tThen_6", &["Once_5", "Then_6"]),
            ("水位是12.5米，闸门3.25.txt", &["水位是12.5米", "闸门3.25", "闸门3.25.txt"]),
            (
                "at 2024-05-15T08:28:51, not 06:30 or f.rs:12:40",
                &["2024-05-15", "2024-05-15T08:28:51", "06:30", "f.rs", "12:40"],
            ),
            ("", &[]),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn words_inside_sentences_are_told_apart() {
        let kinds: Vec<_> =
            values("We met Martin in Hamburg. Then rain").iter().map(|value| value.kind).collect();
        assert_eq!(kinds, [ValueKind::Word, ValueKind::Word]);
    }
}
