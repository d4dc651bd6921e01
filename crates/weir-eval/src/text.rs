//! Text as a reader sees it: normalised white space, search by whole words. Knows nothing of
//! messages.

/// Text with each run of white space reduced to one space, and the starts of its lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text {
    pub text: String,
    /// Start of each line but the first, in bytes of `text`.
    starts: Vec<usize>,
}

impl Text {
    /// Normalises the white space of `raw`.
    pub fn new(raw: &str) -> Self {
        let mut text = String::with_capacity(raw.len());
        let mut starts = Vec::new();
        for line in raw.split('\n') {
            let before = text.len();
            for word in line.split_whitespace() {
                if !text.is_empty() {
                    text.push(' ');
                }
                if text.len() <= before + 1 && before > 0 {
                    starts.push(text.len());
                }
                text.push_str(word);
            }
        }
        Self { text, starts }
    }

    /// Returns its non-empty lines; one empty line if there are none.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        let ends = self.starts.iter().map(|start| start - 1).chain([self.text.len()]);
        let starts = [0].into_iter().chain(self.starts.iter().copied());
        starts.zip(ends).map(|(start, end)| &self.text[start..end])
    }

    /// Returns the bounds of the lines that contain the bytes from `start` to `end`.
    fn lines_around(&self, start: usize, end: usize) -> (usize, usize) {
        let after = self.starts.partition_point(|line| *line <= start);
        let from = after.checked_sub(1).map_or(0, |line| self.starts[line]);
        let next = self.starts.partition_point(|line| *line < end);
        (from, self.starts.get(next).map_or(self.text.len(), |line| line - 1))
    }

    /// Returns up to `characters` before and after the bytes from `start` to `end`, without white
    /// space at the outer ends. [`Border::Line`] also stops at the ends of their lines.
    pub fn window(&self, start: usize, end: usize, characters: usize, by: Border) -> (&str, &str) {
        let (least, most) = match by {
            Border::Text => (0, self.text.len()),
            Border::Line => self.lines_around(start, end),
        };
        let before = &self.text[least..start];
        let farthest = before.char_indices().rev().take(characters).last();
        let from = farthest.map_or(before.len(), |(at, _)| at);
        let after = &self.text[end..most];
        let to = after.char_indices().nth(characters).map_or(after.len(), |(at, _)| at);
        (before[from..].trim_start(), after[..to].trim_end())
    }
}

/// Outer limit of a window around a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Border {
    /// The ends of the whole text.
    Text,
    /// The ends of the line.
    Line,
}

/// Whether a character belongs to a word.
pub(crate) fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Whether the bytes from `start` to `end` neither begin nor end inside a word.
pub(crate) fn is_bounded(text: &str, start: usize, end: usize) -> bool {
    let joins = |left: Option<char>, right: Option<char>| {
        left.is_some_and(is_word) && right.is_some_and(is_word)
    };
    let at = |place: usize| (text[..place].chars().next_back(), text[place..].chars().next());
    let ((before, first), (last, after)) = (at(start), at(end));
    !joins(before, first) && !joins(last, after)
}

/// Returns the positions of `needle` in `text` as whole words.
pub fn find_all<'t>(text: &'t str, needle: &'t str) -> impl Iterator<Item = usize> + 't {
    text.match_indices(needle)
        .map(|(start, _)| start)
        .filter(move |start| is_bounded(text, *start, start + needle.len()))
}

/// Returns the words of a text, each with its position.
pub(crate) fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    pieces(text).filter(|(_, piece)| piece.chars().next().is_some_and(is_word))
}

/// Returns the words and single signs of a text, each with its position.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        at += text[at..].len() - text[at..].trim_start().len();
        let first = text[at..].chars().next()?;
        let start = at;
        at += match is_word(first) {
            true => text[at..].find(|next| !is_word(next)).unwrap_or(text.len() - at),
            false => first.len_utf8(),
        };
        Some((start, &text[start..at]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_evened_out_and_lines_are_known() {
        for (raw, text, lines) in [
            ("", "", vec![""]),
            ("  a\tb  ", "a b", vec!["a b"]),
            ("a b\n\n  c\r\nd", "a b c d", vec!["a b", "c", "d"]),
            ("\n\n a\n", "a", vec!["a"]),
        ] {
            let read = Text::new(raw);
            assert_eq!(read.text, text);
            assert_eq!(read.lines().collect::<Vec<_>>(), lines, "{raw:?}");
        }
    }

    #[test]
    fn windows_end_at_their_border() {
        let text = Text::new("one two\nthree four five\nsix");
        let at = text.text.find("four").expect("it is there");
        let window = |characters, by| text.window(at, at + 4, characters, by);
        assert_eq!(window(100, Border::Text), ("one two three ", " five six"));
        assert_eq!(window(100, Border::Line), ("three ", " five"));
        assert_eq!(window(3, Border::Text), ("ee ", " fi"));
        assert_eq!(window(7, Border::Line), ("three ", " five"));
        assert_eq!(text.window(0, 3, 0, Border::Text), ("", ""));
    }

    #[test]
    fn finds_by_whole_words() {
        for (text, needle, places) in [
            ("foo foobar foo", "foo", vec![0, 11]),
            ("a/foo.py", "foo.py", vec![2]),
            ("xfoo foo_ foo1", "foo", vec![]),
            ("(é) é", "é", vec![1, 5]),
        ] {
            assert_eq!(find_all(text, needle).collect::<Vec<_>>(), places, "{text}");
        }
        let read: Vec<_> = pieces("a_1 = b.c;é").map(|(_, piece)| piece).collect();
        assert_eq!(read, ["a_1", "=", "b", ".", "c", ";", "é"]);
    }
}
