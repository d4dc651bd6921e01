//! Words of obligation in several languages, for recognising rules. A word counts by its place
//! in the sentence: "Don't touch it" is a rule, "I don't know" is not. Pure.

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

/// Returns whether a line is a sentence that obliges its reader.
pub(super) fn obliges(line: &str) -> bool {
    let Some(text) = prose(line) else { return false };
    let lower = text.to_lowercase().replace('’', "'");
    if !lower.is_ascii() && INSIDE.iter().any(|word| lower.contains(word)) {
        return true;
    }
    let words = words(&lower);
    (0..words.len()).any(|at| obliges_at(&words, at))
}

/// Returns whether a line of an instruction file advises: a convention, or a command to run.
pub(super) fn advises(line: &str) -> bool {
    let Some(text) = prose(line) else { return false };
    let lower = text.to_lowercase().replace('’', "'");
    let words = words(&lower);
    let has = |wanted: &[&str]| words.iter().any(|word| wanted.contains(&word.text));
    let first = words.first().map_or("", |word| word.text);
    VERBS.contains(&first)
        || has(&[
            "should", "shall", "must", "never", "always", "only", "don't", "required", "instead",
        ])
        || has(&["sollte", "sollen", "nur", "devrait", "doit", "debería", "solo"])
        || lower.contains("do not ")
        || (lower.contains('`') && lower.contains(':'))
}

/// Word of a sentence.
struct Word<'a> {
    text: &'a str,
    /// Whether a sentence or a clause begins with it.
    opens: bool,
}

fn obliges_at(words: &[Word<'_>], at: usize) -> bool {
    let word = &words[at];
    let before = at.checked_sub(1).filter(|_| !word.opens).map_or("", |before| words[before].text);
    let after = |by: usize| words.get(at + by).map_or("", |next| next.text);
    let is_imperative = word.opens || BEFORE_IMPERATIVE.contains(&before);
    let is_next = |text: &str| after(1) == text;
    match word.text {
        "never" | "always" => !REPORTING.contains(&before),
        "must" => !REPORTING.contains(&before) && !is_next("have"),
        "shall" => before != "i" && before != "we",
        "don't" | "dont" | "ensure" | "avoid" | "refrain" => is_imperative,
        "prefer" | "remember" => word.opens || before == "please",
        "do" => is_imperative && is_next("not"),
        "make" | "be" => is_imperative && is_next("sure"),
        "only" => {
            let verbs =
                ["use", "edit", "change", "touch", "run", "write", "commit", "modify", "answer"];
            (is_imperative && verbs.contains(&after(1))) || before == "use"
        }
        "required" => matches!(before, "is" | "are"),
        "allowed" | "permitted" => before == "not",
        "should" => is_next("not") && !REPORTING.contains(&before),
        "without" => is_next("asking") || (after(1) == "my" && after(2) == "approval"),
        "from" => is_next("now") && after(2) == "on",
        "under" => is_next("no") && after(2) == "circumstances",
        "at" => is_next("all") && after(2) == "times",
        "auf" => is_next("keinen") && after(2) == "fall",
        "bitte" => words[at..].iter().take(12).any(|next| next.text == "nicht"),
        "il" => is_next("faut") || (is_next("ne") && after(2) == "faut"),
        "ne" => word.opens && words[at..].iter().take(4).any(|next| next.text == "pas"),
        "hay" | "tienes" | "tiene" => is_next("que"),
        "не" => word.opens,
        other => ANYWHERE.contains(&other),
    }
}

/// Returns the line without its bullet, number and marks of emphasis; `None` if it is code, data or a
/// line of a log.
fn prose(line: &str) -> Option<&str> {
    let text = &line[..line.floor_char_boundary(MOST_BYTES)];
    let text = text.trim_start();
    // Numbers before lines, as tools that read files write them.
    let unnumbered = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let text = match unnumbered.strip_prefix(['→', '\t', ':', '|', '.', ')']) {
        Some(rest) if unnumbered.len() < text.len() => rest,
        _ => text,
    };
    let is_mark = |letter: char| letter.is_whitespace() || "-*•+>#_\"'`([!⚠️".contains(letter);
    let text = text.trim_start_matches(is_mark).trim_end();
    let is_code =
        text.ends_with([';', '{', '}', '\\']) || text.contains("=>") || text.contains("();");
    if is_code || !text.starts_with(char::is_alphabetic) {
        return None;
    }
    let (mut letters, mut all) = (0, 0);
    for letter in text.chars() {
        all += 1;
        letters += usize::from(letter.is_alphanumeric() || letter.is_whitespace());
    }
    let has_words = !text.is_ascii() || text.contains(' ');
    (has_words && letters * 100 >= all * LETTERS_PERCENT).then_some(text)
}

/// Splits a lower-case text into words.
fn words(text: &str) -> Vec<Word<'_>> {
    let mut words: Vec<Word<'_>> = Vec::new();
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '\'';
    let mut rest = text;
    let mut opens = true;
    while words.len() < MOST_WORDS {
        let Some(start) = rest.find(is_part) else { break };
        opens |= rest[..start].contains(['.', '!', '?', ':', ';', ',', '–', '—', '(', '\n', '。']);
        let word = &rest[start..];
        let end = word.find(|letter| !is_part(letter)).unwrap_or(word.len());
        words.push(Word { text: word[..end].trim_matches('\''), opens });
        rest = &word[end..];
        opens = false;
    }
    words
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
