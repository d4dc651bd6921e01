//! Extraction of the values in a text: e-mails, URLs, dates, paths, file names, identifiers of
//! things and of code, numbers of four characters and more, quoted strings.
//!
//! This is the measure's own definition of a value, written from that list alone. It and the
//! engine's must not share code: otherwise the measure would ask for exactly the values that a
//! policy keeps.

use std::collections::BTreeSet;

/// Minimum length of a value.
const LEAST_CHARACTERS: usize = 4;
/// Maximum length of a value: longer ones are data rather than names.
const MOST_CHARACTERS: usize = 200;
/// Maximum length of a quoted string.
const MOST_QUOTED_CHARACTERS: usize = 100;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Collects the values in one line of text.
pub(crate) fn of_line(line: &str, found: &mut BTreeSet<String>) {
    let plain = take_urls(line, found);
    take_quoted(&plain, found);
    take_written_dates(&plain, found);
    for (start, chunk) in chunks(&plain) {
        let is_called = plain[start + chunk.len()..].starts_with('(');
        take_chunk(chunk, is_called, found);
    }
}

fn put(value: &str, found: &mut BTreeSet<String>) {
    if (LEAST_CHARACTERS..=MOST_CHARACTERS).contains(&value.chars().count()) {
        found.insert(value.to_owned());
    }
}

/// Collects URLs, and returns the line with blanks in their places.
fn take_urls(line: &str, found: &mut BTreeSet<String>) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = ["http://", "https://"].iter().filter_map(|s| rest.find(s)).min() {
        plain.push_str(&rest[..at]);
        let ends = |c: char| c.is_whitespace() || "\"'`<>)]}\\|,".contains(c);
        let end = rest[at..].find(ends).map_or(rest.len(), |length| at + length);
        let url = rest[at..end].trim_end_matches(['.', ';', ':', '!', '?', '*']);
        if url.split_once("://").is_some_and(|(_, host)| !host.is_empty()) {
            put(url, found);
        }
        plain.push(' ');
        rest = &rest[end..];
    }
    plain.push_str(rest);
    plain
}

/// Collects text between two quotes of one kind.
fn take_quoted(line: &str, found: &mut BTreeSet<String>) {
    for quote in ['"', '\'', '`'] {
        let mut rest = line;
        let mut before = None;
        while let Some(at) = rest.find(quote) {
            let opens = rest[..at].chars().next_back().or(before);
            let after = &rest[at + 1..];
            // An apostrophe follows a letter; an opening quote does not.
            if opens.is_some_and(char::is_alphanumeric) && quote != '`' {
                (before, rest) = (Some(quote), after);
                continue;
            }
            let Some(end) = after.find(quote) else { break };
            let inner = &after[..end];
            if is_quotable(inner) {
                put(inner, found);
                (before, rest) = (Some(quote), &after[end + 1..]);
            } else {
                (before, rest) = (Some(quote), after);
            }
        }
    }
}

fn is_quotable(inner: &str) -> bool {
    let ends = [inner.chars().next(), inner.chars().next_back()];
    let is_outside = |c: Option<char>| c.is_none_or(|c| c.is_whitespace() || ",:;)]}".contains(c));
    inner.chars().count() <= MOST_QUOTED_CHARACTERS
        && !ends.into_iter().any(is_outside)
        && inner.chars().filter(|c| c.is_alphanumeric()).count() >= 3
}

/// Collects dates with the month's name: `May 20`, `20 May 2024`, `May 20th, 2024`.
fn take_written_dates(line: &str, found: &mut BTreeSet<String>) {
    let words: Vec<(usize, &str)> = super::text::words(line).collect();
    let day = |word: &str| {
        let digits = word.trim_end_matches(|c: char| c.is_ascii_lowercase());
        let ending = &word[digits.len()..];
        digits.parse().is_ok_and(|day: u8| (1..=31).contains(&day))
            && ["", "st", "nd", "rd", "th"].contains(&ending)
    };
    let year = |word: &str| word.len() == 4 && word.bytes().all(|byte| byte.is_ascii_digit());
    let is_near = |left: usize, right: usize| {
        let (start, word) = words[left];
        matches!(&line[start + word.len()..words[right].0], " " | ", ")
    };
    for (index, (_, word)) in words.iter().enumerate() {
        let is_month = MONTHS.iter().any(|month| *word == *month || *word == &month[..3]);
        if !is_month {
            continue;
        }
        let (mut first, mut last) = (index, index);
        if index + 1 < words.len() && day(words[index + 1].1) && is_near(index, index + 1) {
            last = index + 1;
        } else if index > 0 && day(words[index - 1].1) && is_near(index - 1, index) {
            first = index - 1;
        } else {
            continue;
        }
        if last + 1 < words.len() && year(words[last + 1].1) && is_near(last, last + 1) {
            last += 1;
        }
        put(&line[words[first].0..words[last].0 + words[last].1.len()], found);
    }
}

/// Returns the parts of a line that may be complete values, each with its position.
fn chunks(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        at += line[at..].find(is_of_chunk)?;
        let start = at;
        loop {
            at += line[at..].find(|c| !is_of_chunk(c)).unwrap_or(line.len() - at);
            // A comma between digits stays, as in 1,234.
            let thousands = line[at..].strip_prefix(',').is_some_and(|after| {
                let digits = after.bytes().take_while(u8::is_ascii_digit).count();
                digits == 3 && line[start..at].ends_with(|c: char| c.is_ascii_digit())
            });
            if !thousands {
                return Some((start, &line[start..at]));
            }
            at += 1;
        }
    })
}

fn is_of_chunk(character: char) -> bool {
    character.is_alphanumeric() || "_-./@+~".contains(character)
}

/// Collects the values of a part without blanks, quotes and brackets; `is_called` if an opening
/// bracket follows.
fn take_chunk(chunk: &str, is_called: bool, found: &mut BTreeSet<String>) {
    let chunk = chunk.trim_end_matches(['.', '-', '+', '~', '@']).trim_start_matches(['-', '+']);
    if !chunk.contains(|c: char| c.is_ascii_alphanumeric()) {
        return;
    }
    if is_email(chunk) {
        put(chunk, found);
    } else if chunk.contains('@') {
        chunk.split('@').for_each(|part| take_chunk(part, is_called, found));
    } else if is_numeric_date(chunk) {
        put(chunk, found);
    } else if is_path(chunk) {
        let path = chunk.trim_end_matches('/');
        put(path, found);
        let name = path.rsplit('/').next().unwrap_or_default();
        if name.contains('.') {
            put(name, found);
        }
    } else if chunk.contains('/') {
        chunk.split('/').for_each(|part| take_chunk(part, is_called, found));
    } else {
        take_name(chunk.trim_matches(['.', '~']), is_called, found);
    }
}

fn is_email(chunk: &str) -> bool {
    let Some((local, domain)) = chunk.split_once('@') else { return false };
    let ending = domain.rsplit_once('.').map_or("", |(_, ending)| ending);
    !local.is_empty()
        && !domain.contains(['@', '/'])
        && ending.len() >= 2
        && ending.bytes().all(|byte| byte.is_ascii_alphabetic())
}

/// Matches `2024-05-15`, `05/15/2024`, `15.05.2024`.
fn is_numeric_date(chunk: &str) -> bool {
    ['-', '/', '.'].iter().any(|sign| {
        let parts: Vec<&str> = chunk.split(*sign).collect();
        let digits = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        parts.iter().all(digits)
            && matches!(lengths[..], [4, 2, 2] | [1 | 2, 1 | 2, 2 | 4])
            && (*sign != '.' || lengths[2] == 4)
    })
}

/// Whether a name is a path: it has a slash, and differs from prose such as `and/or`.
fn is_path(chunk: &str) -> bool {
    let parts: Vec<&str> = chunk.split('/').filter(|part| !part.is_empty()).collect();
    let has_letter = chunk.contains(|c: char| c.is_ascii_alphabetic());
    let begins = ["/", "./", "../", "~/"].iter().any(|begin| chunk.starts_with(begin));
    let telling = |part: &&str| part.contains(['.', '_']) || part.contains(char::is_numeric);
    chunk.contains('/')
        && has_letter
        && (begins || parts.len() > 2 || parts.iter().any(telling))
        && !parts.is_empty()
}

/// Collects a name without slashes: a number, an identifier, a file name.
fn take_name(name: &str, is_called: bool, found: &mut BTreeSet<String>) {
    let has_digit = name.contains(|c: char| c.is_ascii_digit());
    let has_letter = name.contains(char::is_alphabetic);
    if has_digit && !has_letter {
        return put(name.trim_matches(['-', '_', ',']), found);
    }
    if let Some(date) = name.get(..10).filter(|date| is_numeric_date(date)) {
        return put(date, found);
    }
    let parts: Vec<&str> = name.split('.').collect();
    if parts.len() > 1 && parts.iter().all(|part| !part.is_empty()) {
        put(name, found);
        for part in parts.iter().filter(|part| is_code_word(part) || is_thing(part)) {
            put(part, found);
        }
    } else if is_code_word(name) || is_thing(name) || (is_called && !name.contains('-')) {
        put(name, found);
    }
}

/// Whether letters and digits are mixed, as in `M20IZO`, but not as in `20th`.
fn is_thing(name: &str) -> bool {
    let ending = name.trim_start_matches(|c: char| c.is_ascii_digit());
    name.contains(|c: char| c.is_ascii_digit())
        && name.contains(char::is_alphabetic)
        && !["st", "nd", "rd", "th"].contains(&ending)
}

/// Whether it is an identifier unlike any word of prose: `snake_case`, `camelCase`, `__init__`.
fn is_code_word(name: &str) -> bool {
    let is_identifier = name.chars().all(super::text::is_word);
    let humps = name.as_bytes().windows(2);
    let has_hump =
        humps.into_iter().any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase());
    is_identifier && (name.trim_end_matches('_').contains('_') || has_hump)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_line() {
        for (line, values) in [
            ("Write to mia.li@example.com.", &["mia.li@example.com"][..]),
            ("See https://a.example/x?y=1 (or not).", &["https://a.example/x?y=1"]),
            ("on 2024-05-15 or 05/15/2024", &["05/15/2024", "2024-05-15"]),
            ("at 2024-05-15T15:00:00", &["2024-05-15"]),
            ("leaving May 20, not 21 June 2024; May I?", &["2024", "21 June 2024", "May 20"]),
            ("either and/or both", &[]),
            ("open src/replay/values.rs:12", &["src/replay/values.rs", "values.rs"]),
            ("ls /testbed ./run ~/x", &["./run", "/testbed"]),
            ("id M20IZO, HAT274 and credit_card_44", &["HAT274", "M20IZO", "credit_card_44"]),
            ("pay $1,234 or 99 or 4421486.", &["1,234", "4421486"]),
            ("the 20th of 100", &[]),
            ("say \"not so fast\" and don't, isn't", &["not so fast"]),
            (r#"{"name": "Mia Lopez", "x": 1}"#, &["Mia Lopez", "name"]),
            ("run `git diff` now", &["git diff"]),
            (
                "call django.db.models and render(x) of HttpClient.get_all",
                &["HttpClient", "HttpClient.get_all", "django.db.models", "get_all", "render"],
            ),
            ("def __init__(self):", &["__init__"]),
            ("A plain well-known sentence, e.g. this one.", &[]),
            ("--no-pager user@host", &[]),
            ("", &[]),
        ] {
            let mut found = BTreeSet::new();
            of_line(line, &mut found);
            assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), values, "{line}");
        }
    }
}
