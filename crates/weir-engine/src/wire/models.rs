//! Lists of models as `GET /v1/models` returns them: parses their entries, and writes them with
//! some omitted, added or extended. Every other byte stays.

use std::borrow::Cow;

use super::json;

/// Names that providers use for a model's window, and for its maximum output.
const WINDOW_NAMES: [&str; 4] =
    ["context_window", "context_length", "max_model_len", "max_context_length"];
const OUTPUT_NAMES: [&str; 2] = ["max_output_tokens", "max_completion_tokens"];

/// List of models, as received.
pub struct ModelList<'a> {
    text: &'a str,
    /// Position of the closing bracket after the entries.
    end: usize,
    pub entries: Vec<Entry<'a>>,
}

/// One model of the list.
pub struct Entry<'a> {
    pub id: Cow<'a, str>,
    /// JSON text of the entry.
    pub raw: &'a str,
}

/// A model's window and maximum output, as far as they are reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    pub window_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
}

/// Reads a list; `None` if `body` does not have that form.
pub fn read(body: &[u8]) -> Option<ModelList<'_>> {
    let text = std::str::from_utf8(body).ok()?;
    // Parses all of it: a text followed by something else is not a list.
    let json = text.strip_prefix('\u{feff}').unwrap_or(text);
    let whole: &serde_json::value::RawValue = serde_json::from_str(json).ok()?;
    // Together's list is bare, and Google's and Ollama's have another name.
    let data = match whole.get().starts_with('[') {
        true => whole.get(),
        false => {
            let members = json::unique_members(whole.get())?;
            let named = |own: &str| members.iter().find(|(name, _)| name == own);
            named("data").or_else(|| named("models"))?.1
        }
    };
    let end = data.as_ptr() as usize - text.as_ptr() as usize + data.len() - 1;
    let entries = json::elements(data)?.into_iter().map(|raw| {
        let members = json::unique_members(raw)?;
        let named = |own: &str| members.iter().find(|(name, _)| name == own);
        let (_, id) = named("id").or_else(|| named("name"))?;
        Some(Entry { id: json::string(id)?, raw })
    });
    Some(ModelList { text, end, entries: entries.collect::<Option<_>>()? })
}

/// Writes the list with each entry as `rewrite` returns it, without entries for which it returns
/// none, and with `more` at the end.
pub fn written<'a>(
    list: &ModelList<'a>,
    mut rewrite: impl FnMut(&Entry<'a>) -> Option<Cow<'a, str>>,
    more: &[String],
) -> String {
    let behind = list.text.len() - list.end;
    let raw: Vec<&str> = list.entries.iter().map(|entry| entry.raw).collect();
    let mut kept = false;
    let mut text = json::rejoin(list.text, &raw, |index, _| {
        let entry = rewrite(&list.entries[index]);
        kept |= entry.is_some();
        entry
    });
    if !more.is_empty() {
        let separator = if kept { "," } else { "" };
        text.insert_str(text.len() - behind, &format!("{separator}{}", more.join(",")));
    }
    text
}

/// Adds the figures that an entry lacks.
pub fn completed<'a>(raw: &'a str, figures: &Figures) -> Cow<'a, str> {
    let Some(members) = json::members(raw) else { return Cow::Borrowed(raw) };
    let lacks = |names: &[&str]| !members.iter().any(|(name, _)| names.contains(&name.as_ref()));
    let mut more = String::new();
    let wanted = [
        (figures.window_tokens, WINDOW_NAMES.as_slice()),
        (figures.max_output_tokens, OUTPUT_NAMES.as_slice()),
    ];
    for (tokens, names) in wanted {
        if let Some(tokens) = tokens.filter(|_| lacks(names)) {
            more.push_str(&format!(",\"{}\":{tokens}", names[0]));
        }
    }
    match raw.rfind('}') {
        // An entry has an ID, so there is a member before these.
        Some(end) if !more.is_empty() && !members.is_empty() => {
            let end = raw[..end].trim_end().len();
            Cow::Owned(format!("{}{more}{}", &raw[..end], &raw[end..]))
        }
        _ => Cow::Borrowed(raw),
    }
}

/// Adds the missing figures to a body that is one entry; `None` if it is not one or lacks none.
pub fn completed_body(body: &[u8], figures: &Figures) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let whole: &serde_json::value::RawValue = serde_json::from_str(text).ok()?;
    let raw = whole.get();
    let members = json::unique_members(raw)?;
    members.iter().find(|(name, _)| name == "id")?;
    let Cow::Owned(entry) = completed(raw, figures) else { return None };
    let start = raw.as_ptr() as usize - text.as_ptr() as usize;
    Some(format!("{}{entry}{}", &text[..start], &text[start + raw.len()..]))
}

/// Returns the window that a server states for a model: in LM Studio the loaded one first, which may be smaller
/// than the model's, in llama.cpp that of its context.
pub fn stated_window_tokens(raw: &str) -> Option<u64> {
    let number = |raw: &str, name: &str| json::count(json::member(raw, name)?);
    let of_meta = || number(json::member(raw, "meta")?, "n_ctx");
    // OpenRouter's own, of the provider that it prefers.
    let of_provider =
        json::member(raw, "top_provider").and_then(|raw| number(raw, "context_length"));
    let names = ["loaded_context_length"].into_iter().chain(WINDOW_NAMES);
    // Anthropic's and Google's.
    let names = names.chain(["max_input_tokens", "inputTokenLimit"]);
    let stated = names.filter_map(|name| number(raw, name)).next().or_else(of_meta);
    [stated, of_provider].into_iter().flatten().filter(|own| *own > 0).min()
}

/// Creates an entry for a model that no list has.
pub fn entry(id: &str) -> String {
    let id = json::quoted(id);
    format!(r#"{{"id":{id},"object":"model","created":0,"owned_by":"weir"}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: Figures = Figures { window_tokens: Some(7), max_output_tokens: Some(3) };

    #[test]
    fn entries_get_the_figures_that_they_lack_and_keep_their_bytes() {
        for (raw, expected) in [
            (r#"{"id":"a"}"#, r#"{"id":"a","context_window":7,"max_output_tokens":3}"#),
            (
                "{ \"id\" : \"a\" \n}",
                "{ \"id\" : \"a\",\"context_window\":7,\"max_output_tokens\":3 \n}",
            ),
            (
                r#"{"id":"a","context_length":9}"#,
                r#"{"id":"a","context_length":9,"max_output_tokens":3}"#,
            ),
            (
                r#"{"id":"a","max_model_len":null,"max_completion_tokens":1.0}"#,
                r#"{"id":"a","max_model_len":null,"max_completion_tokens":1.0}"#,
            ),
            ("{}", "{}"),
        ] {
            assert_eq!(completed(raw, &FIGURES), expected);
        }
        assert_eq!(completed(r#"{"id":"a"}"#, &Figures::default()), r#"{"id":"a"}"#);
    }

    #[test]
    fn a_window_is_read_from_each_servers_entry() {
        for (raw, expected) in [
            (r#"{"id":"a","max_model_len":8192}"#, Some(8192)),
            (r#"{"id":"a","context_length":9000}"#, Some(9000)),
            (r#"{"id":"a","context_length":"9000"}"#, Some(9000)),
            (r#"{"id":"a","max_input_tokens":9000.0}"#, Some(9000)),
            (r#"{"context_length":9000,"top_provider":{"context_length":8000}}"#, Some(8000)),
            (r#"{"max_context_length":131072,"loaded_context_length":4096}"#, Some(4096)),
            (r#"{"id":"a","meta":{"n_ctx_train":131072,"n_ctx":2048}}"#, Some(2048)),
            (r#"{"id":"a","max_model_len":null}"#, None),
            (r#"{"id":"a","max_model_len":0}"#, None),
            (r#"{"id":"a"}"#, None),
        ] {
            assert_eq!(stated_window_tokens(raw), expected, "{raw}");
        }
    }

    #[test]
    fn lists_are_written_with_what_changes_alone() {
        let text = "{\"object\": \"list\", \"data\": [ {\"id\":\"a\"} , {\"id\":\"b\", \"x\":1e3} ], \"z\":[1]}";
        let list = read(text.as_bytes()).expect("a list");
        let ids: Vec<&str> = list.entries.iter().map(|entry| entry.id.as_ref()).collect();
        assert_eq!(ids, ["a", "b"]);
        let all = |entry: &Entry<'_>| Some(Cow::Owned(entry.raw.to_owned()));
        assert_eq!(written(&list, |entry| Some(Cow::Borrowed(entry.raw)), &[]), text);
        let more = [entry("c\""), entry("d")];
        assert_eq!(
            written(&list, all, &more),
            "{\"object\": \"list\", \"data\": [ {\"id\":\"a\"} , {\"id\":\"b\", \"x\":1e3} \
             ,{\"id\":\"c\\\"\",\"object\":\"model\",\"created\":0,\"owned_by\":\"weir\"},\
             {\"id\":\"d\",\"object\":\"model\",\"created\":0,\"owned_by\":\"weir\"}], \"z\":[1]}"
        );
        let only = |id: &'static str| {
            move |entry: &Entry<'_>| (entry.id == id).then(|| Cow::Owned(entry.raw.to_owned()))
        };
        for (left, more, ids) in [
            ("a", 0, vec!["a"]),
            ("b", 1, vec!["b", "c"]),
            ("none", 1, vec!["c"]),
            ("none", 0, vec![]),
        ] {
            let more: Vec<String> = (0..more).map(|_| entry("c")).collect();
            let text = written(&list, only(left), &more);
            let again = read(text.as_bytes()).expect("still a list");
            assert_eq!(again.entries.iter().map(|entry| &*entry.id).collect::<Vec<_>>(), ids);
            assert!(text.ends_with(", \"z\":[1]}"), "{text}");
        }
        let empty = read(br#"{"data":[]}"#).expect("a list");
        assert_eq!(written(&empty, all, &[]), r#"{"data":[]}"#);
        assert!(read(written(&empty, all, &more).as_bytes()).is_some());
    }

    #[test]
    fn what_is_no_list_is_not_read() {
        for text in [
            "",
            "{}",
            r#"{"data":{}}"#,
            r#"{"data":[1]}"#,
            r#"{"data":[{"id":1}]}"#,
            r#"{"data":[{}]}"#,
            r#"{"data":[],"data":[]}"#,
            r#"{"data":[]} x"#,
            r#"{"data":[{"id":"a","id":"b"}]}"#,
        ] {
            assert!(read(text.as_bytes()).is_none(), "{text}");
        }
        assert!(read(b"\xff").is_none());
    }
}
