//! Words of obligation in several languages, for recognising rules. A word counts by its place
//! in the sentence: "Don't touch it" is a rule, "I don't know" is not. Pure.

use memchr::memmem;

use crate::tokens::letters::{behind_small, in_lower_case};

/// Words of a sentence that are looked at, and bytes.
const MOST_WORDS: usize = 160;
const MOST_BYTES: usize = 2048;
/// Minimum share of letters and blanks in prose, in hundredths.
const LETTERS_PERCENT: usize = 70;

/// Words that make a sentence a rule wherever they stand.
const ANYWHERE: &[&str] = &[
    // English
    "forbidden",
    "prohibited",
    "mandatory",
    "mustn't",
    "shouldn't",
    "needn't", //
    // German
    "niemals",
    "nie",
    "immer",
    "muss",
    "müssen",
    "musst",
    "müsst",
    "darf",
    "darfst",
    "dürfen",
    "dürft",
    "stets",
    "keinesfalls",
    "verboten",
    "unbedingt",
    "ausschließlich",
    "zwingend",
    "sollst",
    "gefälligst",
    // French
    "jamais",
    "toujours",
    "dois",
    "doit",
    "doivent",
    "devez",
    "interdit",
    "interdite",
    "obligatoire",
    "obligatoirement",
    "impérativement",
    "uniquement",
    "n'utilise",
    "n'utilisez",
    // Spanish, Portuguese, Italian
    "nunca",
    "jamás",
    "siempre",
    "debe",
    "debes",
    "deben",
    "deberás",
    "prohibido",
    "prohibida",
    "obligatorio",
    "asegúrate",
    "asegúrese",
    "sempre",
    "deve",
    "devem",
    "proibido",
    "obrigatório",
    "vietato",
    "devi",
    "dovete",
    "obbligatorio",
    // Russian, Polish, Dutch
    "никогда",
    "всегда",
    "нельзя",
    "обязательно",
    "должен",
    "должна",
    "должны",
    "запрещено",
    "zawsze",
    "nigdy",
    "musisz",
    "wolno",
    "nooit",
    "altijd",
    "moet",
    "moeten",
    // Korean
    "반드시",
    "항상",
    "절대",
    "절대로",
];

/// Words of scripts without blanks, found inside a text.
const INSIDE: &[&str] = &[
    // Chinese, simplified and traditional
    "必须",
    "必須",
    "务必",
    "務必",
    "不要",
    "不得",
    "禁止",
    "切勿",
    "绝不",
    "絕不",
    "总是",
    "總是",
    "始终",
    "始終",
    "一定要",
    "不许",
    "不許",
    "严禁",
    "嚴禁",
    "永远不",
    "永遠不",
    "请勿",
    "請勿",
    "不准",
    "不可",
    "只能",
    // Japanese
    "必ず",
    "絶対",
    "いけない",
    "いけません",
    "てはならない",
    "てはなりません",
    "常に",
    "なければならない",
    "なければなりません",
    "ないでください",
    "しないこと",
    "すること",
    "厳禁",
    "べき",
    // Korean
    "하지 마",
    "해야 ",
    "해야만",
    "금지",
];

/// Words before "never", "always" and "must" that make it a report: "I never got it".
const REPORTING: &[&str] = &[
    "i", "i've", "i'd", "i'm", "he", "she", "it", "has", "have", "had", "was", "were", "been",
    "they've", "it's", "there", "you've", "we've",
];

/// Words before an imperative.
const BEFORE_IMPERATIVE: &[&str] = &[
    "please", "and", "but", "also", "so", "then", "just", "or", "again", "ok", "okay", "to", "you",
];

/// Verbs that begin the lines of instruction files.
const VERBS: &[&str] = &[
    "use", "run", "prefer", "avoid", "keep", "write", "follow", "add", "put", "test", "format",
    "lint", "build", "commit", "check", "update", "name", "place", "read", "ask", "include",
    "return", "call", "document", "respect", "handle", "remember", "leave", "ensure", "verify",
    "execute", "install", "create", "stick", "limit", "wrap", "import", "start", "stop",
];

/// Condition under which a word makes its sentence a rule.
type Condition = fn(&Place<'_>) -> bool;

/// Words that make a sentence a rule only in some places.
const BY_PLACE: &[(&str, Condition)] = &[
    ("never", |own| !own.reports()),
    ("always", |own| !own.reports()),
    ("must", |own| !own.reports() && own.after(1) != "have"),
    ("should", |own| own.after(1) == "not" && !own.reports()),
    ("shall", |own| own.before() != "i" && own.before() != "we"),
    ("don't", |own| own.is_imperative()),
    ("dont", |own| own.is_imperative()),
    ("ensure", |own| own.is_imperative()),
    ("avoid", |own| own.is_imperative()),
    ("refrain", |own| own.is_imperative()),
    ("prefer", |own| own.word.opens || own.before() == "please"),
    ("remember", |own| own.word.opens || own.before() == "please"),
    ("do", |own| own.is_imperative() && own.after(1) == "not"),
    ("make", |own| own.is_imperative() && own.after(1) == "sure"),
    ("be", |own| own.is_imperative() && own.after(1) == "sure"),
    ("only", |own| {
        let verbs =
            ["use", "edit", "change", "touch", "run", "write", "commit", "modify", "answer"];
        (own.is_imperative() && verbs.contains(&own.after(1))) || own.before() == "use"
    }),
    ("required", |own| matches!(own.before(), "is" | "are")),
    ("allowed", |own| own.before() == "not"),
    ("permitted", |own| own.before() == "not"),
    ("without", |own| own.after(1) == "asking" || own.is_followed_by(["my", "approval"])),
    ("from", |own| own.is_followed_by(["now", "on"])),
    ("under", |own| own.is_followed_by(["no", "circumstances"])),
    ("at", |own| own.is_followed_by(["all", "times"])),
    ("auf", |own| own.is_followed_by(["keinen", "fall"])),
    ("bitte", |own| own.has_near("nicht", 11)),
    ("il", |own| own.after(1) == "faut" || own.is_followed_by(["ne", "faut"])),
    ("ne", |own| own.word.opens && own.has_near("pas", 3)),
    ("hay", |own| own.after(1) == "que"),
    ("tienes", |own| own.after(1) == "que"),
    ("tiene", |own| own.after(1) == "que"),
    ("не", |own| own.word.opens),
];

/// Lengths of the words of obligation, as bits, by a hash of their first two bytes. They rule out nearly all
/// other words of a text.
static LENGTHS: [u32; 256] = {
    let mut lengths = [0; 256];
    let mut place = 0;
    while place < ANYWHERE.len() + BY_PLACE.len() {
        let word = match place.checked_sub(ANYWHERE.len()) {
            None => ANYWHERE[place],
            Some(place) => BY_PLACE[place].0,
        };
        assert!(word.len() < 32, "each length has a bit");
        lengths[start_of(word.as_bytes())] |= 1 << word.len();
        place += 1;
    }
    lengths
};

/// Returns the index in [`LENGTHS`] of a word of two bytes or more.
const fn start_of(word: &[u8]) -> usize {
    word[0].wrapping_mul(31).wrapping_add(word[1]) as usize
}

/// Returns whether a line is a sentence that obliges its reader.
pub(super) fn obliges(line: &str) -> bool {
    let text = unmarked(line);
    if !begins_as_prose(text) {
        return false;
    }
    let lower = plain_lower(text);
    let is_inside = || INSIDE.iter().any(|word| lower.contains(word));
    let obliges = (!lower.is_ascii() && is_inside()) || has_obliging_word(&lower);
    obliges && is_prose(text)
}

fn has_obliging_word(lower: &str) -> bool {
    let mut rest = Words::of(lower);
    let mut previous = "";
    while let Some(word) = rest.next() {
        let place = Place { previous, word, rest: &rest };
        if place.obliges() {
            return true;
        }
        previous = word.text;
    }
    false
}

/// Returns whether a line of an instruction file advises: a convention, or a command to run.
pub(super) fn advises(line: &str) -> bool {
    let text = unmarked(line);
    if !begins_as_prose(text) || !is_prose(text) {
        return false;
    }
    let lower = plain_lower(text);
    let has = |wanted: &[&str]| Words::of(&lower).any(|word| wanted.contains(&word.text));
    let first = Words::of(&lower).next().map_or("", |word| word.text);
    VERBS.contains(&first)
        || has(&[
            "should", "shall", "must", "never", "always", "only", "don't", "required", "instead",
        ])
        || has(&["sollte", "sollen", "nur", "devrait", "doit", "debería", "solo"])
        || lower.contains("do not ")
        || (lower.contains('`') && lower.contains(':'))
}

/// Returns a text in lower case, with plain apostrophes.
fn plain_lower(text: &str) -> String {
    let lower = in_lower_case(text);
    if lower.contains('’') { lower.replace('’', "'") } else { lower }
}

/// Word of a sentence.
#[derive(Clone, Copy)]
struct Word<'a> {
    text: &'a str,
    /// Whether a sentence or a clause begins with it.
    opens: bool,
}

/// Kind of a character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Part of a word.
    Part,
    /// End of a sentence or a clause.
    Ends,
    Other,
}

/// Kinds of ASCII characters.
static KINDS: [Kind; 128] = {
    let mut kinds = [Kind::Other; 128];
    let mut index = 0;
    while index < 128 {
        kinds[index] = match index as u8 {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'\'' => Kind::Part,
            b'.' | b'!' | b'?' | b':' | b';' | b',' | b'(' | b'\n' => Kind::Ends,
            _ => Kind::Other,
        };
        index += 1;
    }
    kinds
};

/// Words of a lower-case text, in order.
#[derive(Clone)]
struct Words<'a> {
    text: &'a str,
    at: usize,
    left: usize,
}

impl<'a> Words<'a> {
    fn of(text: &'a str) -> Self {
        Self { text, at: 0, left: MOST_WORDS }
    }

    /// Returns the kind of the character at `at`, and its length; `None` at the end.
    #[inline]
    fn kind(&self, at: usize) -> Option<(Kind, usize)> {
        let byte = *self.text.as_bytes().get(at)?;
        if byte.is_ascii() {
            return Some((KINDS[usize::from(byte)], 1));
        }
        let letter = self.text[at..].chars().next()?;
        let kind = match letter {
            '–' | '—' | '。' => Kind::Ends,
            _ if letter.is_alphanumeric() => Kind::Part,
            _ => Kind::Other,
        };
        Some((kind, letter.len_utf8()))
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        self.left = self.left.checked_sub(1)?;
        let mut opens = self.at == 0;
        let mut at = self.at;
        loop {
            match self.kind(at)? {
                (Kind::Part, _) => break,
                (kind, length) => {
                    opens |= kind == Kind::Ends;
                    at += length;
                }
            }
        }
        let start = at;
        loop {
            at = behind_small(self.text.as_bytes(), at);
            match self.kind(at) {
                Some((Kind::Part, length)) => at += length,
                _ => break,
            }
        }
        self.at = at;
        let word = &self.text[start..at];
        let is_quoted = word.starts_with('\'') || word.ends_with('\'');
        Some(Word { text: if is_quoted { word.trim_matches('\'') } else { word }, opens })
    }
}

/// Word in its sentence.
struct Place<'a> {
    word: Word<'a>,
    /// Word before it, of any clause.
    previous: &'a str,
    /// Words behind it.
    rest: &'a Words<'a>,
}

impl<'a> Place<'a> {
    fn obliges(&self) -> bool {
        self.condition().is_some_and(|holds| holds(self))
    }

    /// Returns the condition of the word; `None` if it is no word of obligation.
    fn condition(&self) -> Option<Condition> {
        let word = self.word.text;
        let is_likely = (2..32).contains(&word.len())
            && LENGTHS[start_of(word.as_bytes())] & (1 << word.len()) != 0;
        if !is_likely {
            return None;
        }
        let by_place =
            BY_PLACE.iter().find(|(own, _)| *own == word).map(|(_, condition)| *condition);
        let anywhere: Condition = |_| true;
        by_place.or_else(|| ANYWHERE.contains(&word).then_some(anywhere))
    }

    /// Returns the word before it in its clause; empty if there is none.
    fn before(&self) -> &'a str {
        if self.word.opens { "" } else { self.previous }
    }

    /// Returns the word `by` words behind it; empty if there is none.
    fn after(&self, by: usize) -> &'a str {
        self.rest.clone().nth(by - 1).map_or("", |next| next.text)
    }

    fn is_followed_by(&self, [first, second]: [&str; 2]) -> bool {
        self.after(1) == first && self.after(2) == second
    }

    /// Returns whether `text` is among the next `words` words.
    fn has_near(&self, text: &str, words: usize) -> bool {
        self.rest.clone().take(words).any(|next| next.text == text)
    }

    fn is_imperative(&self) -> bool {
        self.word.opens || BEFORE_IMPERATIVE.contains(&self.before())
    }

    fn reports(&self) -> bool {
        REPORTING.contains(&self.before())
    }
}

/// Returns the line without its bullet, number and marks of emphasis.
fn unmarked(line: &str) -> &str {
    let text = &line[..line.floor_char_boundary(MOST_BYTES)];
    let text = text.trim_start();
    // Numbers before lines, as tools that read files write them.
    let unnumbered = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let text = match unnumbered.strip_prefix(['→', '\t', ':', '|', '.', ')']) {
        Some(rest) if unnumbered.len() < text.len() => rest,
        _ => text,
    };
    let is_mark = |letter: char| letter.is_whitespace() || "-*•+>#_\"'`([!⚠️".contains(letter);
    text.trim_start_matches(is_mark).trim_end()
}

/// Returns whether an unmarked line begins and ends as a sentence may.
fn begins_as_prose(text: &str) -> bool {
    text.starts_with(char::is_alphabetic) && !text.ends_with([';', '{', '}', '\\'])
}

/// Returns whether such a line is a sentence, and no code, data or line of a log.
fn is_prose(text: &str) -> bool {
    let has = |sign: &str| memmem::find(text.as_bytes(), sign.as_bytes()).is_some();
    if has("=>") || has("();") {
        return false;
    }
    let (letters, all) = if text.is_ascii() {
        let is_letter =
            |byte: &u8| byte.is_ascii_alphanumeric() || char::from(*byte).is_whitespace();
        (text.bytes().filter(is_letter).count(), text.len())
    } else {
        let is_letter = |letter: &char| letter.is_alphanumeric() || letter.is_whitespace();
        (text.chars().filter(is_letter).count(), text.chars().count())
    };
    let has_words = !text.is_ascii() || text.contains(' ');
    has_words && letters * 100 >= all * LETTERS_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_differ_from_reports() {
        for (line, expected) in [
            ("Never push to main.", true),
            ("- **Do not** edit generated files", true),
            ("Please don't touch `Cargo.lock`.", true),
            ("You must run the tests before you commit.", true),
            ("  12→- Always use tabs", true),
            ("Secrets are never logged", true),
            ("One thing. From now on, answer in French.", true),
            ("Only use the standard library.", true),
            ("I don't know my booking number", false),
            ("I never got the confirmation mail.", false),
            ("It must have been last week.", false),
            ("They do not fly on Sundays", false),
            ("if (x) { never(); }", false),
            ("{\"never\": true, \"always\": [1, 2, 3]}", false),
            ("2024-05-01 12:00:01 WARN must reload", false),
            ("never", false),
            ("", false),
        ] {
            assert_eq!(obliges(line), expected, "{line}");
        }
    }

    #[test]
    fn rules_of_other_languages_are_recognised() {
        for (line, expected) in [
            ("Ändere niemals die Datei config.toml", true),
            ("Du darfst die Tests nicht löschen.", true),
            ("Bitte ändere die Tests nicht.", true),
            ("Das Wetter ist schön heute.", false),
            ("Ne modifie pas les fichiers générés.", true),
            ("Il faut lancer les tests avant.", true),
            ("Le train part à neuf heures.", false),
            ("Nunca borres la base de datos.", true),
            ("Hay que ejecutar las pruebas.", true),
            ("El tren sale a las nueve.", false),
            ("不要修改生成的文件。", true),
            ("必须先运行测试", true),
            ("火车九点出发。", false),
            ("生成されたファイルは変更しないでください。", true),
            ("必ずテストを実行する", true),
            ("電車は九時に出ます。", false),
            ("Никогда не удаляйте базу", true),
            ("반드시 테스트를 실행하세요", true),
        ] {
            assert_eq!(obliges(line), expected, "{line}");
        }
    }

    #[test]
    fn every_word_is_looked_up() {
        for word in ANYWHERE {
            assert!(obliges(&format!("Das {word} hier")), "{word}");
            let upper = word.to_uppercase();
            let line = format!("das hier ist '{upper}', und es gilt");
            assert!(obliges(&line) || upper.to_lowercase() != *word, "{line}");
        }
        for (word, _) in BY_PLACE {
            let words = Words::of(word).collect::<Vec<_>>();
            let place = Place { previous: "", word: words[0], rest: &Words::of("") };
            assert!(place.condition().is_some(), "{word}");
        }
        assert!(obliges(&format!("{} never", "word ".repeat(MOST_WORDS - 1))));
        assert!(!obliges(&format!("{} never", "word ".repeat(MOST_WORDS))));
    }

    #[test]
    fn conventions_of_instruction_files_are_recognised() {
        for (line, expected) in [
            ("- Build: `make all`", true),
            ("Run `cargo test` after each change", true),
            ("Tests should be small", true),
            ("This project has four crates.", false),
        ] {
            assert_eq!(advises(line), expected, "{line}");
        }
    }
}
