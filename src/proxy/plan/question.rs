//! Additional questions of a caller about a plan: the member `weir` of a request to explain, parsed
//! and removed. Answers nothing.

use bytes::Bytes;

use crate::proxy::error::{ErrorKind, Proxied, ProxyError};
use weir_engine::compact::report::Category;
use weir_engine::wire::json;

/// Member of the body, which no provider knows.
const MEMBER: &str = "weir";

/// Questions in addition to the plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Question {
    /// Content that may come next, and its category.
    pub content: Option<(Category, String)>,
    /// Whether the answer includes the body that would be sent.
    pub wants_body: bool,
    /// Whether the answer includes the conversation that would be sent, as plain text.
    pub wants_text: bool,
    /// Whether the answer includes the receipt: the treatment of each message, by digest.
    pub wants_receipt: bool,
}

impl Question {
    /// Parses the member `weir` of a body, and returns the body without it. Others report errors in
    /// the rest of the body.
    pub fn take(body: Bytes) -> Proxied<(Bytes, Self)> {
        let Some(members) = std::str::from_utf8(&body).ok().and_then(json::members) else {
            return Ok((body, Self::default()));
        };
        let mut own = members.into_iter().filter(|(key, _)| key == MEMBER).map(|(_, raw)| raw);
        let Some(raw) = own.next() else { return Ok((body, Self::default())) };
        if own.next().is_some() {
            return Err(refused(MEMBER, "is given twice"));
        }
        let question = Self::read(raw)?;
        let text = std::str::from_utf8(&body).expect("its members were just read");
        let rest = json::without_member(text, raw);
        Ok((rest.into(), question))
    }

    fn read(raw: &str) -> Proxied<Self> {
        let members = json::unique_members(raw)
            .ok_or_else(|| refused(MEMBER, "must be an object that gives each member once"))?;
        let mut question = Self::default();
        let (mut content, mut category) = (None, None);
        for (key, value) in members {
            match key.as_ref() {
                "content" => content = Some(string(value, "weir.content")?),
                "category" => category = Some(category_of(value)?),
                "body" => question.wants_body = flag(value, "weir.body")?,
                "text" => question.wants_text = flag(value, "weir.text")?,
                "receipt" => question.wants_receipt = flag(value, "weir.receipt")?,
                _ => {
                    let known =
                        "has an unknown member; known are content, category, body, text, receipt";
                    return Err(refused(MEMBER, known));
                }
            }
        }
        question.content = match (category, content) {
            (Some(category), Some(content)) => Some((category, content)),
            (None, None) => None,
            (None, Some(_)) => {
                return Err(refused("weir.category", "must name the category of content"));
            }
            (Some(_), None) => return Err(refused("weir.content", "must be given with category")),
        };
        Ok(question)
    }
}

fn string(raw: &str, name: &str) -> Proxied<String> {
    let text = json::string(raw).ok_or_else(|| refused(name, "must be a string"))?;
    Ok(text.into_owned())
}

fn flag(raw: &str, name: &str) -> Proxied<bool> {
    match raw {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(refused(name, "must be true or false")),
    }
}

fn category_of(raw: &str) -> Proxied<Category> {
    let name = string(raw, "weir.category")?;
    Category::from_name(&name).ok_or_else(|| {
        let names = Category::NAMES.map(|(name, _)| name).join(", ");
        refused("weir.category", &format!("must be one of {names}"))
    })
}

fn refused(name: &str, what: &str) -> ProxyError {
    let message = format!("'{name}' {what}.");
    ProxyError {
        param: Some(name.to_owned()),
        ..ProxyError::new(ErrorKind::InvalidRequest, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(body: &str) -> Result<(String, Question), String> {
        let (body, question) = Question::take(Bytes::copy_from_slice(body.as_bytes()))
            .map_err(|error| error.param.expect("it names the member"))?;
        Ok((String::from_utf8(body.to_vec()).expect("it was text"), question))
    }

    #[test]
    fn the_member_is_taken_out_and_read() {
        let content = |category, text: &str| Question {
            content: Some((category, text.to_owned())),
            ..Question::default()
        };
        let plain = Question::default();
        for (body, rest, question) in [
            (r#"{"a":1}"#, r#"{"a":1}"#, plain.clone()),
            ("not json", "not json", plain.clone()),
            (r#"{"weir":{},"a":1}"#, r#"{"a":1}"#, plain.clone()),
            (r#"{ "weir" : {} }"#, "{ }", plain.clone()),
            (
                r#"{"a":{"weir":1}, "weir":{"body":true,"text":true}, "b":2}"#,
                r#"{"a":{"weir":1}, "b":2}"#,
                Question { wants_body: true, wants_text: true, ..Question::default() },
            ),
            (
                r#"{"a":1,"weir":{"content":"x\ny","category":"file"}}"#,
                r#"{"a":1}"#,
                content(Category::File, "x\ny"),
            ),
        ] {
            assert_eq!(take(body), Ok((rest.to_owned(), question)), "{body}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (member, param) in [
            (r#"1"#, "weir"),
            (r#"null"#, "weir"),
            (r#"{"body":1}"#, "weir.body"),
            (r#"{"text":"yes"}"#, "weir.text"),
            (r#"{"body":true,"body":true}"#, "weir"),
            (r#"{"other":true}"#, "weir"),
            (r#"{"content":"x"}"#, "weir.category"),
            (r#"{"category":"file"}"#, "weir.content"),
            (r#"{"content":1,"category":"file"}"#, "weir.content"),
            (r#"{"content":"x","category":"other"}"#, "weir.category"),
            (r#"{},"weir":{}"#, "weir"),
        ] {
            let body = format!(r#"{{"weir":{member}}}"#);
            assert_eq!(take(&body), Err(param.to_owned()), "{body}");
        }
    }
}
