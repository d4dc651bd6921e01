//! Line numbers of keys in a configuration file. Judges no key.

use toml_edit::{ImDocument, Item, Key, Table};

/// Returns the line of `key`, such as `limits[0].model`, in a TOML text. If the key is absent,
/// returns the line of its table, if present.
pub(super) fn line_of(text: &str, key: &str) -> Option<usize> {
    let document = ImDocument::parse(text).ok()?;
    let parts = parts(key)?;
    let mut found = None;
    let mut place = Place::Table(document.as_table());
    for part in &parts {
        let Some((next, start)) = place.enter(part) else { break };
        found = start.or(found);
        let Some(next) = next else { break };
        place = next;
    }
    let before = text.get(..found?)?;
    Some(before.matches('\n').count() + 1)
}

/// Splits a key as messages show it into its parts.
fn parts(key: &str) -> Option<Vec<String>> {
    // Messages show row numbers in brackets.
    let dotted = key.replace("].", ".").replace(']', "").replace('[', ".");
    let parsed = Key::parse(&dotted).ok()?;
    Some(parsed.iter().map(|part| part.get().to_owned()).collect())
}

/// Container of keys.
enum Place<'a> {
    Table(&'a Table),
    Item(&'a Item),
    Value(&'a toml_edit::Value),
}

impl<'a> Place<'a> {
    /// Enters `part`, and returns its contents and position.
    fn enter(&self, part: &str) -> Option<(Option<Place<'a>>, Option<usize>)> {
        let start = |span: Option<std::ops::Range<usize>>| span.map(|span| span.start);
        match self {
            Self::Table(table) => {
                // Messages show model names in lower case, however they are written.
                let alike = || table.iter().find(|(name, _)| name.eq_ignore_ascii_case(part));
                let (key, item) =
                    table.get_key_value(part).or_else(|| table.get_key_value(alike()?.0))?;
                let own = match item {
                    Item::Table(table) => start(table.span()),
                    Item::ArrayOfTables(rows) => start(rows.span()),
                    _ => None,
                };
                Some((Some(Self::Item(item)), own.or(start(key.span()))))
            }
            Self::Item(Item::Table(table)) => Self::Table(table).enter(part),
            Self::Item(Item::ArrayOfTables(rows)) => {
                let row = rows.get(part.parse().ok()?)?;
                Some((Some(Self::Table(row)), start(row.span())))
            }
            Self::Item(Item::Value(value)) => Self::Value(value).enter(part),
            Self::Value(toml_edit::Value::InlineTable(table)) => {
                let (key, item) = table.get_key_value(part)?;
                Some((Some(Self::Item(item)), start(key.span())))
            }
            Self::Value(toml_edit::Value::Array(items)) => {
                let item = items.get(part.parse().ok()?)?;
                Some((Some(Self::Value(item)), start(item.span())))
            }
            Self::Item(Item::None) | Self::Value(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# weir\n\
        [server]\n\
        listen = \"a\"\n\
        tls.cert_file = \"b\"\n\
        \n\
        [models.\"a/b.c\"]\n\
        encoding = \"x\"\n\
        tiers = [{ above_prompt_tokens = 1 }]\n\
        [[limits]]\n\
        model = \"a\"\n\
        [[limits]]\n\
        model = \"b\"\n\
        max_input_tokens = 0\n\
        [policies]\n\
        mine = { low = 2, hard = 3 }\n";

    #[test]
    fn a_key_is_found_on_its_line() {
        for (key, expected) in [
            ("server", Some(2)),
            ("server.listen", Some(3)),
            ("server.tls.cert_file", Some(4)),
            ("models.\"a/b.c\".encoding", Some(7)),
            ("models.\"a/b.c\".tiers[0].above_prompt_tokens", Some(8)),
            ("models.\"A/B.c\".encoding", Some(7)),
            ("limits[0].model", Some(10)),
            ("limits[1].model", Some(12)),
            ("limits[1].max_input_tokens", Some(13)),
            ("policies.mine.low", Some(15)),
            // A missing key belongs to the table that is present.
            ("limits[0].max_input_tokens", Some(9)),
            ("server.allowed_hosts", Some(2)),
            ("models.\"a/b.c\".window_tokens", Some(6)),
            ("upstream.url", None),
            ("", None),
        ] {
            assert_eq!(line_of(TEXT, key), expected, "{key}");
        }
        assert_eq!(line_of("no TOML", "server"), None);
    }
}
