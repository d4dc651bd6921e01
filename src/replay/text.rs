//! Texts as a reader sees them: white space evened out, searched by whole words. Knows nothing of
//! messages.

/// A text with each run of white space made one space, and where its lines begin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text {
    pub text: String,
    /// Where each line but the first begins, in bytes of `text`.
    starts: Vec<usize>,
}

impl Text {
    /// Evens out the white space of `raw`.
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

    /// Its lines, empty ones left out; one empty line where there is nothing.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        let ends = self.starts.iter().map(|start| start - 1).chain([self.text.len()]);
        let starts = [0].into_iter().chain(self.starts.iter().copied());
        starts.zip(ends).map(|(start, end)| &self.text[start..end])
    }

    /// Where the lines that hold the bytes from `start` to `end` begin and end.
    fn lines_around(&self, start: usize, end: usize) -> (usize, usize) {
        let after = self.starts.partition_point(|line| *line <= start);
        let from = after.checked_sub(1).map_or(0, |line| self.starts[line]);
        let next = self.starts.partition_point(|line| *line < end);
        (from, self.starts.get(next).map_or(self.text.len(), |line| line - 1))
    }

    /// Up to `characters` before and after the bytes from `start` to `end`, white space at the outer
    /// ends left aside; `by_line` stops at the ends of their lines too.
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

/// Where a window around a value ends at the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Border {
    /// At the ends of the whole text.
    Text,
    /// At the ends of the line.
    Line,
}

/// Whether a character is of a word.
pub fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Whether the bytes from `start` to `end` neither begin nor end inside a word.
pub fn is_bounded(text: &str, start: usize, end: usize) -> bool {
    let joins = |left: Option<char>, right: Option<char>| {
        left.is_some_and(is_word) && right.is_some_and(is_word)
    };
    let at = |place: usize| (text[..place].chars().next_back(), text[place..].chars().next());
    let ((before, first), (last, after)) = (at(start), at(end));
    !joins(before, first) && !joins(last, after)
}

/// Where `needle` stands in `text` by whole words.
pub fn find_all<'t>(text: &'t str, needle: &'t str) -> impl Iterator<Item = usize> + 't {
    text.match_indices(needle)
        .map(|(start, _)| start)
        .filter(move |start| is_bounded(text, *start, start + needle.len()))
}

/// The words of a text, each with where it begins.
pub fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    pieces(text).filter(|(_, piece)| piece.chars().next().is_some_and(is_word))
}

/// The words and the single signs of a text, each with where it begins.
pub fn pieces(text: &str) -> impl Iterator<Item = (usize, &str)> {
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
