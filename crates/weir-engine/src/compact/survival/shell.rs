//! Files that shell commands write: inputs given by `<<`, `tee`, `echo … >`, `sed -i` and patches. Only paths
//! that stand plainly in the command count; variables and patterns do not. Reads a small part of the shell's
//! language: what it does not understand, it skips. Pure.

use std::ops::Range;

use crate::compact::excerpt::edits::closing;

/// Maximum number of bytes of commands that are read, and of edits found in them.
const MOST_BYTES: usize = 64 << 10;
const MOST_EDITS: usize = 16;
/// Maximum length of a path.
const PATH_BYTES: usize = 200;
/// Arguments that hold a command.
const ARGUMENTS: [&str; 5] = ["command: ", "cmd: ", "script: ", "commands: ", "input: "];
/// Programs whose output, if it goes into a file, is a text in the command.
const WRITERS: [&str; 3] = ["cat", "echo", "printf"];
/// Beginnings of results that say that a command did not write, in lower case.
const FAILURES: [&str; 11] = [
    "bash: ",
    "sh: ",
    "sed: ",
    "tee: ",
    "error: ",
    "invalid ",
    "permission denied",
    "no such file",
    "syntax error",
    "apply_patch verification failed",
    "failed to ",
];

/// Signs between words, the longer first; `None` separates words alone.
static SYMBOLS: [(&str, Option<Token>); 22] = [
    (" ", None),
    ("\t", None),
    ("\r", None),
    ("\\\n", None),
    ("<<<", Some(Token::Other)),
    ("<<-", Some(Token::Input)),
    ("<<", Some(Token::Input)),
    ("<", Some(Token::Other)),
    ("&>>", Some(Token::Redirect)),
    ("&>", Some(Token::Redirect)),
    (">>", Some(Token::Redirect)),
    (">|", Some(Token::Redirect)),
    (">&", Some(Token::Other)),
    (">", Some(Token::Redirect)),
    ("||", Some(Token::End(false))),
    ("|&", Some(Token::End(true))),
    ("|", Some(Token::End(true))),
    ("&&", Some(Token::End(false))),
    ("&", Some(Token::End(false))),
    (";", Some(Token::End(false))),
    ("(", Some(Token::End(false))),
    (")", Some(Token::End(false))),
];

/// Edit of a file by a command, by its places in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ShellEdit {
    /// Path, the command that writes there, and the new text, if an input has it.
    File { path: Range<usize>, command: Range<usize>, text: Option<Range<usize>> },
    /// Patch, which names its files.
    Patch(Range<usize>),
}

/// Returns whether a result says that a command did not write.
pub(super) fn has_failed(result: &str) -> bool {
    let start = result.trim_start();
    let start = start[..start.floor_char_boundary(80)].to_lowercase();
    // "push: ok" does not say "sh: ".
    let is_word = |(at, _): (usize, &str)| !start[..at].ends_with(char::is_alphanumeric);
    let says = |failure: &str| start.contains(failure) && start.match_indices(failure).any(is_word);
    FAILURES.iter().any(|failure| says(failure))
}

/// Returns the edits of the commands in the arguments of a call, or in a text, in order.
pub(super) fn edits(arguments: &str) -> Vec<ShellEdit> {
    let text = &arguments[..arguments.floor_char_boundary(MOST_BYTES)];
    let mut edits = Vec::new();
    let mut at = start(text);
    while at < text.len() && edits.len() < MOST_EDITS {
        let Some(line) = Line::read(text, at) else { break };
        edits.extend(line.edits(text));
        at = line.end;
    }
    edits.truncate(MOST_EDITS);
    edits
}

/// Returns where the command begins: behind the name of its argument.
fn start(text: &str) -> usize {
    let lines = text.split_inclusive('\n').scan(0, |start, line| {
        let own = *start;
        *start += line.len();
        Some((own, line))
    });
    let named = |(start, line): (usize, &str)| {
        let name = ARGUMENTS.iter().find(|name| line.starts_with(**name))?;
        Some(start + name.len())
    };
    lines.take(8).find_map(named).unwrap_or_default()
}

/// Part of a line of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// Word without its quotes; `is_plain` if nothing in it is expanded.
    Word { text: String, span: Range<usize>, is_plain: bool },
    /// `>` or `>>` of the standard output.
    Redirect,
    /// `<<` of an input; the next word ends it.
    Input,
    /// Other redirection, with the next word.
    Other,
    /// End of a simple command; `true` if a pipe follows.
    End(bool),
}

/// Line of commands, with the inputs behind it.
struct Line {
    tokens: Vec<Token>,
    /// Texts of its inputs.
    inputs: Vec<Range<usize>>,
    /// End of the line and its inputs.
    end: usize,
}

impl Line {
    /// Reads the line at `at`. `None` if a quote does not end.
    fn read(text: &str, at: usize) -> Option<Self> {
        let (tokens, mut end) = tokens(text, at)?;
        let mut inputs = Vec::new();
        for pair in tokens.windows(2) {
            let [Token::Input, Token::Word { text: mark, .. }] = pair else { continue };
            let last = closing(text, end, mark)?;
            inputs.push(end..last);
            end = text[last..].find('\n').map_or(text.len(), |length| last + length + 1);
        }
        Some(Self { tokens, inputs, end })
    }

    fn edits(&self, text: &str) -> Vec<ShellEdit> {
        let mut edits = Vec::new();
        let mut inputs = self.inputs.iter();
        // Input, and program, that pipes give to the next command.
        let (mut piped, mut source) = (None, String::new());
        for part in self.tokens.split_inclusive(|token| matches!(token, Token::End(_))) {
            let command = Command::of(part);
            let inputs_before = piped.take();
            let own = (0..command.inputs).filter_map(|_| inputs.next()).last().cloned();
            let input = own.or(inputs_before);
            let program = if source.is_empty() { command.program() } else { source.as_str() };
            let own = command.edits(text, program, input.as_ref());
            let is_patch = own.iter().any(|edit| matches!(edit, ShellEdit::Patch(_)));
            edits.extend(own);
            if edits.len() >= MOST_EDITS {
                break;
            }
            match part.last() {
                // A patch reads its input to the end and passes nothing on.
                Some(Token::End(true)) => {
                    piped = input.filter(|_| !is_patch);
                    source = program.to_owned();
                }
                _ => source.clear(),
            }
        }
        edits
    }
}

/// Word of a command.
struct Word<'a> {
    text: &'a str,
    span: Range<usize>,
    is_path: bool,
}

/// Simple command.
struct Command<'a> {
    words: Vec<Word<'a>>,
    /// Files that it writes its output to.
    targets: Vec<Word<'a>>,
    /// Number of its inputs.
    inputs: usize,
}

impl<'a> Command<'a> {
    fn of(tokens: &'a [Token]) -> Self {
        let (mut words, mut targets, mut inputs) = (Vec::new(), Vec::new(), 0);
        let mut before: Option<&Token> = None;
        for token in tokens {
            if let Token::Word { text, span, is_plain } = token {
                let is_path = *is_plain && is_path(text);
                let word = Word { text, span: span.clone(), is_path };
                match before {
                    Some(Token::Redirect) => targets.push(word),
                    Some(Token::Input) => inputs += 1,
                    Some(Token::Other) => {}
                    _ => words.push(word),
                }
            }
            before = Some(token);
        }
        Self { words, targets, inputs }
    }

    fn program(&self) -> &'a str {
        self.words.first().map_or("", |word| word.text)
    }

    /// Returns the edits of this command; `source` is the first program of its pipe.
    fn edits(&self, text: &str, source: &str, input: Option<&Range<usize>>) -> Vec<ShellEdit> {
        let second = self.words.get(1).map_or("", |word| word.text);
        if matches!(
            (self.program(), second),
            ("apply_patch" | "applypatch" | "patch", _) | ("git", "apply")
        ) {
            let is_patch = |input: &&Range<usize>| is_patch(&text[(*input).clone()]);
            return input.filter(is_patch).cloned().map(ShellEdit::Patch).into_iter().collect();
        }
        let is_text = input.is_some() || matches!(source, "echo" | "printf");
        let paths: Vec<&Word<'_>> = match self.program() {
            "sed" if self.has_flag('i', "--in-place") => self.behind_script(),
            "perl" if self.has_flag('i', "") => self.behind_script(),
            "tee" if is_text => self.words[1..].iter().filter(|word| !is_flag(word.text)).collect(),
            program if WRITERS.contains(&program) && is_text => self.targets.iter().collect(),
            _ => Vec::new(),
        };
        let first = self.words.first().map_or(0, |word| word.span.start);
        let words = self.words.iter().chain(&self.targets);
        let last = words.map(|word| word.span.end).max().unwrap_or(first);
        let edit = |word: &&Word<'_>| ShellEdit::File {
            path: word.span.clone(),
            command: first..last,
            text: input.cloned(),
        };
        paths.iter().filter(|word| word.is_path).take(MOST_EDITS).map(edit).collect()
    }

    /// Returns whether the command has a flag, alone or among other letters.
    fn has_flag(&self, letter: char, long: &str) -> bool {
        self.words.iter().skip(1).take_while(|word| is_flag(word.text)).any(|word| {
            let short = word.text.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
            (!long.is_empty() && word.text.starts_with(long))
                || short.is_some_and(|rest| rest.chars().take(4).any(|own| own == letter))
        })
    }

    /// Returns the words behind the script, which is the first that is no flag; with `-e` or `-f` it belongs
    /// to the flag.
    fn behind_script(&self) -> Vec<&Word<'a>> {
        let mut rest = self.words.iter().skip(1).peekable();
        let mut has_script = false;
        while let Some(flag) = rest.next_if(|word| is_flag(word.text)) {
            if !flag.text.starts_with("--") && flag.text.ends_with(['e', 'f']) {
                rest.next();
                has_script = true;
            }
        }
        rest.skip(usize::from(!has_script)).take(4).collect()
    }
}

fn is_flag(text: &str) -> bool {
    // `-i ''` as macOS has it.
    text.is_empty() || text.starts_with('-')
}

fn is_patch(text: &str) -> bool {
    text.contains("*** Begin Patch") || text.starts_with("+++ ") || text.contains("\n+++ ")
}

/// Returns whether a word is the path of a file.
fn is_path(text: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || "_./~@+,=%:- ".contains(letter);
    text.len() <= PATH_BYTES
        && text.contains(char::is_alphanumeric)
        && text.chars().all(is_part)
        && !text.starts_with(['-', '='])
        && !text.starts_with("/dev/")
        && !text.ends_with('/')
}

/// Splits a line into tokens; returns its end too. Quotes may span lines. `None` if one does not end.
fn tokens(text: &str, start: usize) -> Option<(Vec<Token>, usize)> {
    let (mut tokens, mut at) = (Vec::new(), start);
    while at < text.len() {
        let rest = &text[at..];
        let first = text.as_bytes()[at];
        let mut symbols = SYMBOLS.iter().filter(|(symbol, _)| symbol.as_bytes()[0] == first);
        let symbol = symbols.find(|(symbol, _)| rest.starts_with(symbol));
        if let Some((symbol, token)) = symbol {
            at += symbol.len();
            tokens.extend(token.clone());
        } else if rest.starts_with('\n') {
            return Some((tokens, at + 1));
        } else if rest.starts_with('#') {
            at += rest.find('\n').unwrap_or(rest.len());
        } else {
            let (word, end) = word(text, at)?;
            let Token::Word { text: said, .. } = &word else { return None };
            let is_number = !said.is_empty() && said.bytes().all(|byte| byte.is_ascii_digit());
            // `2>` writes no text of the command.
            match text[end..].chars().next().filter(|_| is_number) {
                Some('>' | '<') => {
                    at = end + text[end..].find(|letter| !"<>&|".contains(letter))?;
                    tokens.push(Token::Other);
                }
                _ => {
                    at = end;
                    tokens.push(word);
                }
            }
        }
    }
    Some((tokens, at))
}

/// Reads a word; returns its end too.
fn word(text: &str, start: usize) -> Option<(Token, usize)> {
    let (mut said, mut is_plain, mut quote) = (String::new(), true, None);
    let mut letters = text[start..].char_indices().peekable();
    let mut end = text.len();
    while let Some((at, letter)) = letters.next() {
        match (quote, letter) {
            (Some(own), _) if letter == own => quote = None,
            (Some('"'), '\\') | (None, '\\') => said.extend(letters.next().map(|(_, next)| next)),
            (Some('\''), _) => said.push(letter),
            (None, '\'' | '"') => quote = Some(letter),
            // Other blanks, such as U+00A0, are parts of words, as in a shell.
            (None, _) if " \t\r\n|&;<>()".contains(letter) => {
                end = start + at;
                break;
            }
            (_, '$' | '`') => {
                is_plain = false;
                said.push(letter);
            }
            (None, '*' | '?' | '{' | '}' | '[' | ']' | '!') => {
                is_plain = false;
                said.push(letter);
            }
            _ => said.push(letter),
        }
    }
    quote.is_none().then_some((Token::Word { text: said, span: start..end, is_plain }, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the edits in words: paths with their new texts, or patches.
    fn found(arguments: &str) -> Vec<String> {
        let shown = |edit: ShellEdit| match edit {
            ShellEdit::File { path, text, .. } => {
                let text = text.map_or(String::new(), |text| arguments[text].replace('\n', "/"));
                format!("{} {text}", &arguments[path]).trim_end().to_owned()
            }
            ShellEdit::Patch(span) => format!("patch {}", arguments[span].lines().count()),
        };
        edits(arguments).into_iter().map(shown).collect()
    }

    #[test]
    fn files_that_commands_write_are_found() {
        for (command, expected) in [
            ("cat > a.rs <<'EOF'\nfn a() {}\nEOF\n", vec!["a.rs fn a() {}/"]),
            ("cd /x && cat <<EOF >> src/a.rs && ls\na\nb\nEOF\nls", vec!["src/a.rs a/b/"]),
            ("command: cat > a <<-EOF\n\tx\n\tEOF\ntimeout: 5", vec!["a \tx/"]),
            ("tee -a a.toml <<X\n1\nX", vec!["a.toml 1/"]),
            ("cat <<X | sudo tee /etc/a\n1\nX", vec![]),
            ("cat <<X | tee /etc/a >/dev/null\n1\nX", vec!["/etc/a 1/"]),
            ("echo 'a b' > a.txt; printf x | tee b.txt", vec!["a.txt", "b.txt"]),
            ("sed -i 's/a b/c/; s/d/e/' src/a.rs b.rs", vec!["src/a.rs", "b.rs"]),
            ("sed -i.bak -e s/a/b/ -e 's/c/d/' a.rs && make", vec!["a.rs"]),
            ("sed -i '' \"s/don't/do/\" 'a b.rs'", vec!["'a b.rs'"]),
            ("sed -Ei 's/a/\\\n b/' a.rs", vec!["a.rs"]),
            ("# don't\nperl -pi -e 's/a/b/' a.rs", vec!["a.rs"]),
            ("apply_patch <<'P'\n*** Begin Patch\n*** End Patch\nP", vec!["patch 2"]),
            ("cat <<'P' | git apply -\n--- a/a\n+++ b/a\nP", vec!["patch 2"]),
            ("cat > a <<A; cat > b <<B\n1\nA\n2\nB\necho 3 > c", vec!["a 1/", "b 2/", "c"]),
            ("echo\u{a0}x > a", vec![]),
            ("echo x\u{a0}y > a", vec!["a"]),
        ] {
            assert_eq!(found(command), expected, "{command}");
        }
    }

    #[test]
    fn commands_that_write_nothing_plain_are_left_out() {
        for command in [
            "sed -n 's/a/b/p' a.rs",
            "sed 's/a/b/' a.rs > b.rs",
            "cargo build > build.log 2>&1",
            "cat a.rs > /dev/null",
            "cat a > b",
            "echo x 2> a; echo y >&2",
            "echo x > $HOME/a; echo x > \"$(date).txt\"; echo x > *.rs",
            "cat <<EOF\nx\nEOF",
            "cat > a.rs <<EOF\nno end",
            "cat > a.rs <<'EOF",
            "echo 'no end > a.rs",
            "git apply a.patch",
            "sed -i",
            "sed -i s/a/b/",
            "tee",
            "> a",
            "<<",
            "cat <<< x > ",
            "python - <<EOF\nopen('a', 'w')\nEOF",
            "",
        ] {
            assert_eq!(found(command), Vec::<String>::new(), "{command}");
        }
    }

    #[test]
    fn no_blank_stops_the_reading() {
        let blanks = (0..=0xffff).filter_map(char::from_u32).filter(|own| own.is_whitespace());
        for blank in blanks {
            for command in [format!("{blank}x > a"), format!("tee{blank}a{blank}<<X\n1\nX")] {
                edits(&command);
            }
            assert_eq!(found(&format!("{blank}\necho x > a"))[..], ["a"], "{blank:?}");
        }
    }

    #[test]
    fn a_command_has_no_more_edits_than_the_maximum() {
        let tee = format!("tee {} <<X\n1\nX", "p ".repeat(1000));
        let echo = "echo 1 > a; ".repeat(1000);
        let patch =
            format!("cat <<X {}\n*** Begin Patch\n*** End Patch\nX", "| patch -p1 ".repeat(1000));
        assert_eq!(edits(&tee).len(), MOST_EDITS);
        assert_eq!(edits(&echo).len(), MOST_EDITS);
        assert_eq!(edits(&patch).len(), 1);
    }

    #[test]
    fn no_cut_of_a_command_panics() {
        let all =
            "cd /x && cat <<'EOF' >> 'ä b.rs' 2>&1 | tee -a c\nü\nEOF\nsed -i -e \"s/é/\\\"/\" d";
        for (start, _) in all.char_indices() {
            for (end, _) in all.char_indices().filter(|(end, _)| *end >= start) {
                edits(&all[start..end]);
            }
        }
    }

    #[test]
    fn results_that_say_nothing_was_written_are_recognised() {
        for (result, expected) in [
            ("sed: can't read a.rs: No such file or directory", true),
            ("bash: a/b: Permission denied", true),
            ("error: patch failed: a.rs:1", true),
            ("Done.", false),
            ("git push: ok", false),
            ("", false),
        ] {
            assert_eq!(has_failed(result), expected, "{result}");
        }
    }
}
