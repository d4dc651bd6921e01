//! Rust file as the rules see it: its text, and views with comments and literals blanked. Finds
//! items, paths and lines; judges nothing.

/// A file's text and views of it. All have the same lines at the same positions.
pub struct Source {
    pub text: String,
    /// Without comments, strings and characters.
    pub code: String,
    /// The text of comments alone, without their markers.
    pub comments: String,
    /// The same without code that is compiled only for tests.
    pub shipped: String,
}

/// Path as written in full, such as `std::time::Instant`.
#[derive(Debug, PartialEq, Eq)]
pub struct Named {
    pub line: usize,
    pub path: String,
    /// Whether it is imported, so that items below it can be reached without naming it.
    pub imported: bool,
}

/// Function with a body.
pub struct Function {
    pub name: String,
    pub line: usize,
    pub lines: usize,
}

impl Source {
    pub fn new(text: String) -> Self {
        let code = blank_literals(&text);
        let comments = comments(&text);
        let shipped = blank_tests(&code);
        Self { text, code, comments, shipped }
    }

    /// Returns the number of lines before the tests at the file's end.
    pub fn lines_before_tests(&self) -> usize {
        let tests = self
            .code
            .match_indices("#[cfg(test)]")
            .find(|(at, mark)| self.code[at + mark.len()..].trim_start().starts_with("mod "));
        let end = tests.map_or(self.code.len(), |(at, _)| at);
        self.text[..end].lines().count()
    }

    pub fn functions(&self) -> Vec<Function> {
        let mut found = Vec::new();
        for at in words(&self.code, "fn") {
            let rest = self.code[at + 2..].trim_start();
            let name: String = rest.chars().take_while(|letter| is_word(*letter)).collect();
            let body = self.code[at..].find(['{', ';']).map(|end| at + end);
            let Some(body) = body.filter(|body| self.code.as_bytes()[*body] == b'{') else {
                continue;
            };
            if name.is_empty() {
                continue;
            }
            let end = closing(&self.code, body);
            let line = line_at(&self.code, at);
            found.push(Function { name, line, lines: line_at(&self.code, end) - line + 1 });
        }
        found
    }
}

/// Returns all paths of two and more segments in `code`, and all imports.
pub fn paths(code: &str) -> Vec<Named> {
    let mut found = Vec::new();
    let mut rest = code.to_owned();
    for at in words(code, "use") {
        let Some(length) = code[at..].find(';') else { continue };
        let tree: String =
            code[at + 3..at + length].split_whitespace().collect::<Vec<_>>().join(" ");
        let line = line_at(code, at);
        for path in branches(&tree) {
            let path = path.split(" as ").next().unwrap_or_default();
            let path = path.trim().trim_start_matches("::").trim_end_matches("::*");
            let path = path.trim_end_matches("::self").to_owned();
            found.push(Named { line, path, imported: true });
        }
        blank(&mut rest, at, at + length);
    }
    let mut at = 0;
    while let Some(start) = rest[at..].find(is_word).map(|start| at + start) {
        let end = rest[start..].find(|letter| !is_word(letter) && letter != ':');
        let end = end.map_or(rest.len(), |end| start + end);
        let path = rest[start..end].trim_end_matches(':');
        if path.contains("::") {
            let line = line_at(&rest, start);
            found.push(Named { line, path: path.to_owned(), imported: false });
        }
        at = end.max(start + 1);
    }
    found
}

/// Returns the paths of a use-tree: `a::{b, c::{d, e}}` is `a::b`, `a::c::d`, `a::c::e`.
fn branches(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        return vec![tree.to_owned()];
    };
    let before = &tree[..open];
    let inside = &tree[open + 1..closing(tree, open)];
    let mut found = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, letter) in inside.char_indices().chain([(inside.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = inside[start..at].trim();
                if !part.is_empty() {
                    found.extend(branches(part).iter().map(|branch| format!("{before}{branch}")));
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

pub fn line_at(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Returns the positions at which `word` is a whole word.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        !code[..*at].chars().next_back().is_some_and(is_word)
            && !code[at + word.len()..].chars().next().is_some_and(is_word)
    })
}

/// Returns the position of the brace that closes the one at `open`, or the end if none does.
fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, letter) in code[open..].char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => return open + at,
            '}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

fn blank(text: &mut String, from: usize, to: usize) {
    let blanked: String = text[from..to]
        .chars()
        .flat_map(|letter| {
            // Positions are bytes: a wide letter becomes as many spaces.
            std::iter::repeat_n(if letter == '\n' { '\n' } else { ' ' }, letter.len_utf8())
        })
        .collect();
    text.replace_range(from..to, &blanked);
}

/// Blanks each item under `#[cfg(test)]`.
fn blank_tests(code: &str) -> String {
    let mut shipped = code.to_owned();
    for (at, mark) in code.match_indices("#[cfg(test)]") {
        let item = at + mark.len();
        let end = code[item..].find(['{', ';']).map_or(code.len(), |end| item + end);
        let end = if code[end..].starts_with('{') { closing(code, end) } else { end };
        blank(&mut shipped, at, end);
    }
    shipped
}

/// Blanks comments, strings and characters; the quotes go too.
fn blank_literals(text: &str) -> String {
    let mut code = text.to_owned();
    for (start, end) in literals(text) {
        blank(&mut code, start, end);
    }
    code
}

/// Blanks everything except the text of comments.
fn comments(text: &str) -> String {
    let mut comments = text.to_owned();
    let mut at = 0;
    for (start, end) in
        literals(text).into_iter().filter(|(start, _)| text[*start..].starts_with('/'))
    {
        let comment = &text[start..end];
        let marker = comment.len() - comment.trim_start_matches(['/', '*', '!']).len();
        blank(&mut comments, at, start + marker);
        at = start + comment.trim_end_matches("*/").len().max(marker);
    }
    blank(&mut comments, at, text.len());
    comments
}

/// Returns the ranges of comments, strings and characters, in order.
fn literals(text: &str) -> Vec<(usize, usize)> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let after_word = at > 0 && is_word(bytes[at - 1] as char);
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => {
                text[at..].find('\n').map_or(text.len(), |end| at + end)
            }
            b'/' if bytes[at..].starts_with(b"/*") => comment_end(text, at),
            b'"' => string_end(bytes, at + 1),
            b'r' if !after_word || bytes[at - 1] == b'b' => match raw_string_end(text, at) {
                Some(end) => end,
                None => at,
            },
            b'\'' => character_end(text, at).unwrap_or(at),
            _ => at,
        };
        if end > at {
            found.push((at, end));
            at = end;
        } else {
            at += 1;
        }
    }
    found
}

fn comment_end(text: &str, start: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = start;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw_string_end(text: &str, start: usize) -> Option<usize> {
    let rest = &text[start + 1..];
    let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
    if !rest[hashes..].starts_with('"') {
        return None;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let body = start + 1 + hashes + 1;
    Some(text[body..].find(&close).map_or(text.len(), |end| body + end + close.len()))
}

/// Returns the end of a character; `None` if the quote begins a lifetime.
fn character_end(text: &str, start: usize) -> Option<usize> {
    let mut letters = text[start + 1..].char_indices();
    let (_, first) = letters.next()?;
    if first == '\\' {
        letters.next();
        let end = letters.find(|(_, letter)| *letter == '\'')?.0;
        return Some(start + 1 + end + 1);
    }
    let (end, quote) = letters.next()?;
    (quote == '\'').then_some(start + 1 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        for (text, expected) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("a\"b", 'c', '\'', b'd')"#, "f(      ,    ,     , b   )"),
            (r###"r#"a " b"# + br"c""###, "           + b    "),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("\"naïve\"", "        "),
        ] {
            assert_eq!(blank_literals(text), expected, "{text}");
        }
    }

    #[test]
    fn comments_are_found_without_their_markers() {
        for (text, expected) in [
            ("a // b\nc", "     b\n "),
            ("//! é\n/// d\n", "    é\n    d\n"),
            ("a /* b\n c */ d //", "     b\n c        "),
            ("f(\"// no\", '/') // ok", "                   ok"),
        ] {
            assert_eq!(comments(text), expected, "{text}");
        }
    }

    #[test]
    fn use_trees_are_written_out() {
        let code = "use std::{fs, time::{self, Instant as Now}, io::*};\nlet x = a::b::<C>::d();";
        let found: Vec<_> =
            paths(code).into_iter().map(|named| (named.line, named.path, named.imported)).collect();
        let expected = [
            (1, "std::fs", true),
            (1, "std::time", true),
            (1, "std::time::Instant", true),
            (1, "std::io", true),
            (2, "a::b", false),
        ];
        assert_eq!(found, expected.map(|(line, path, imported)| (line, path.to_owned(), imported)));
    }

    #[test]
    fn tests_are_no_part_of_what_ships() {
        let source = Source::new(
            "fn a() {}\n#[cfg(test)]\nfn b() { tokio::x() }\n#[cfg(test)]\nmod tests {\n}\n".into(),
        );
        assert!(source.shipped.contains("fn a"));
        assert!(!source.shipped.contains("tokio"));
        assert_eq!(source.lines_before_tests(), 3);
    }
}
