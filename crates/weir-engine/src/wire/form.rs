//! The model that a form names, found while the form streams through in pieces. Keeps no more of it than
//! the head of a part or the model's name.

/// Maximum length of a model's name.
const MAX_MODEL_BYTES: usize = 200;
/// Maximum size of the head of a part.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Maximum length of a boundary, by its standard.
const MAX_BOUNDARY_BYTES: usize = 70;

/// Finder of the field `model` in a body of the type `multipart/form-data`.
#[derive(Debug)]
pub struct FormModelFinder {
    /// What stands before each part and behind the last one.
    delimiter: Vec<u8>,
    held: Vec<u8>,
    place: Place,
}

/// What the next bytes belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Another part, which is passed over.
    Other,
    Head,
    Model,
    End,
}

impl FormModelFinder {
    /// Creates a finder for a body of this `content-type`; `None` if that is no form.
    pub fn new(content_type: &str) -> Option<Self> {
        let mut parameters = content_type.split(';').map(str::trim);
        let media_type = parameters.next().unwrap_or_default();
        if !media_type.eq_ignore_ascii_case("multipart/form-data") {
            return None;
        }
        let boundary = parameters.find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
        })?;
        if boundary.is_empty() || boundary.len() > MAX_BOUNDARY_BYTES {
            return None;
        }
        let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
        Some(Self { delimiter, held: b"\r\n".to_vec(), place: Place::Other })
    }

    /// Takes the next bytes, and returns the model if they complete its name.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<String> {
        if self.place == Place::End {
            return None;
        }
        self.held.extend_from_slice(bytes);
        loop {
            let delimiter = memchr::memmem::find(&self.held, &self.delimiter);
            match self.place {
                Place::End => return None,
                Place::Head => {
                    if self.held.starts_with(b"--") {
                        return self.end();
                    }
                    let Some(end) = memchr::memmem::find(&self.held, b"\r\n\r\n") else {
                        return if self.held.len() > MAX_HEAD_BYTES { self.end() } else { None };
                    };
                    let is_model = names_model(&self.held[..end]);
                    self.held.drain(..end + 4);
                    // The delimiter behind an empty part begins with the end of its head.
                    self.place = if is_model { Place::Model } else { Place::Other };
                }
                Place::Model => {
                    let end = delimiter.unwrap_or(self.held.len());
                    if end > MAX_MODEL_BYTES + self.delimiter.len() {
                        return self.end();
                    }
                    delimiter?;
                    let model = std::str::from_utf8(&self.held[..end]).ok().map(str::to_owned);
                    self.end();
                    return model
                        .filter(|model| !model.is_empty() && model.len() <= MAX_MODEL_BYTES);
                }
                Place::Other => {
                    let Some(at) = delimiter else {
                        let kept = self.held.len().min(self.delimiter.len() - 1);
                        self.held.drain(..self.held.len() - kept);
                        return None;
                    };
                    self.held.drain(..at + self.delimiter.len());
                    self.place = Place::Head;
                }
            }
        }
    }

    fn end(&mut self) -> Option<String> {
        self.place = Place::End;
        self.held = Vec::new();
        None
    }
}

/// Returns the one model that a whole form names. `None` if it names none or several, or if another
/// reader of forms might find another one: by a delimiter in another place, or by a name in another
/// form.
pub fn only_model(content_type: &str, body: &[u8]) -> Option<String> {
    let finder = FormModelFinder::new(content_type)?;
    if content_type.to_ascii_lowercase().matches("boundary").count() != 1 {
        return None;
    }
    let delimiter = finder.delimiter.strip_prefix(b"\r\n")?;
    let mut parts = memchr::memmem::find_iter(body, delimiter).peekable();
    let mut only = None;
    if parts.peek() != Some(&0) {
        return None;
    }
    while let Some(at) = parts.next() {
        let rest = &body[at + delimiter.len()..];
        if rest.starts_with(b"--") && parts.peek().is_none() {
            return only;
        }
        let part = &body[at + delimiter.len()..*parts.peek()?];
        let part = part.strip_prefix(b"\r\n")?.strip_suffix(b"\r\n")?;
        let end = memchr::memmem::find(part, b"\r\n\r\n")?;
        let (head, value) = (std::str::from_utf8(&part[..end]).ok()?, part.get(end + 4..)?);
        let lower = head.to_ascii_lowercase();
        let has_other_reading = head.contains('\\')
            || lower.replace("filename*", "").contains("name*")
            || head.lines().any(|line| line.starts_with([' ', '\t']) || line.contains('\r'));
        if has_other_reading {
            return None;
        }
        let is_model = names_model(head.as_bytes());
        if is_model != lower.contains("\"model\"") || is_model && only.is_some() {
            return None;
        }
        if is_model {
            only =
                Some(std::str::from_utf8(value).ok().filter(|model| !model.is_empty())?.to_owned());
        }
    }
    None
}

/// Whether the head of a part gives it the name `model`, and no file's name.
fn names_model(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head);
    let disposition = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let mut parameters = disposition.unwrap_or_default().split(';').skip(1).filter_map(|text| {
        let (name, value) = text.split_once('=')?;
        Some((name.trim().to_ascii_lowercase(), value.trim().trim_matches('"').to_owned()))
    });
    parameters.any(|(name, value)| name == "name" && value == "model")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "multipart/form-data; boundary=\"x y\"";

    fn part(head: &str, value: &str) -> String {
        format!("--x y\r\nContent-Disposition: form-data; {head}\r\n\r\n{value}\r\n")
    }

    /// Finds the model in a form, fed whole and in pieces.
    fn found(body: &str) -> Option<String> {
        let find = |size: usize| {
            let mut finder = FormModelFinder::new(TYPE).expect("a form");
            body.as_bytes().chunks(size).find_map(|piece| finder.feed(piece))
        };
        let whole = find(body.len().max(1));
        for size in [1, 2, 7, 50] {
            assert_eq!(find(size), whole, "{body} by {size}");
        }
        whole
    }

    #[test]
    fn a_form_has_one_model_if_no_reader_could_find_another() {
        let model = part("name=\"model\"", "whisper-1");
        let file = part("name=\"file\"; filename*=utf-8''a.mp3", "x");
        let plain =
            part("name=\"file\"; filename=\"a.mp3\"\r\nContent-Type: audio/mpeg", "\n--x\r\n\r\n");
        let other = |head: &str| format!("{}{model}--x y--\r\n", part(head, "gpt-4o"));
        for (body, expected) in [
            (format!("{model}{plain}--x y--\r\n"), Some("whisper-1")),
            (format!("{plain}{model}--x y--"), Some("whisper-1")),
            (format!("{plain}--x y--\r\n"), None),
            (format!("{model}{model}--x y--\r\n"), None),
            (format!("{model}{plain}"), None),
            (format!("{model}--x y--\r\n{model}--x y--"), None),
            (format!("a\r\n{model}--x y--"), None),
            (format!("{file}{model}--x y--"), Some("whisper-1")),
            (part("name=\"model\"", "a\n--x y\nb") + "--x y--", None),
            (other("name=\"Model\""), None),
            (other("name=model"), None),
            (other("name*=utf-8''model"), None),
            (other("name=\"mod\\el\""), None),
            (other("name=\"a\"\r\n ; name=\"model\""), None),
            (other("name=\"model\"; filename=\"x\""), None),
            (other("name=\"prompt\""), Some("whisper-1")),
            (String::new(), None),
        ] {
            assert_eq!(only_model(TYPE, &body.into_bytes()).as_deref(), expected, "{expected:?}");
        }
        let body = format!("{model}--x y--");
        let twice = "multipart/form-data; boundary=\"x y\"; boundary=z";
        for content_type in [twice, "application/json"] {
            assert_eq!(only_model(content_type, body.as_bytes()), None, "{content_type}");
        }
    }

    #[test]
    fn the_model_of_a_form_is_found_wherever_it_stands() {
        let model = part("name=\"model\"", "whisper-1");
        let file = part(
            "name=\"file\"; filename=\"model\"\r\nContent-Type: audio/mpeg",
            "--x y \r\n\r\nname=\"model\"",
        );
        let long = part("name=\"model\"", &"m".repeat(MAX_MODEL_BYTES + 1));
        for (body, expected) in [
            (format!("{model}{file}--x y--\r\n"), Some("whisper-1")),
            (format!("{file}{model}--x y--\r\n"), Some("whisper-1")),
            (format!("preamble\r\n{model}--x y--"), Some("whisper-1")),
            (format!("{file}--x y--\r\n{model}"), None),
            (part("name=model", "a") + "--x y--", Some("a")),
            (part("name=\"model\"", "") + &model + "--x y--", None),
            (format!("{long}--x y--"), None),
            (format!("--x y\r\nX: {}", "y".repeat(2 * MAX_HEAD_BYTES)), None),
            ("{\"model\":\"no\"}".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(found(&body).as_deref(), expected, "{body}");
        }
        for content_type in
            ["application/json", "multipart/form-data", "multipart/mixed; boundary=x", ""]
        {
            assert!(FormModelFinder::new(content_type).is_none(), "{content_type}");
        }
    }
}
