//! Report on cleared content in the answers of Messages, whole or streamed: the member
//! `context_management`. Every other byte stays.
//!
//! Anthropic's guide to context editing puts it into the message or, in a stream, into `message_delta`.

use super::event_filter::{self, Judge, Verdict};
use super::json;

/// Name of the member.
const MEMBER: &str = "context_management";
/// Maximum size of an event that is examined.
pub const MAX_EVENT_BYTES: usize = 1 << 20;

/// Adds the report, a JSON text, to an object of this type; `None` if it is another or has one.
fn added(object: &str, kind: &str, report: &str) -> Option<String> {
    let members = json::members(object)?;
    let member = |name: &str| members.iter().find(|(own, _)| own == name).map(|(_, raw)| *raw);
    let is_kind = member("type").and_then(json::string).as_deref() == Some(kind);
    if !is_kind || member(MEMBER).is_some_and(|raw| raw != "null") {
        return None;
    }
    if let Some(null) = member(MEMBER) {
        let start = null.as_ptr() as usize - object.as_ptr() as usize;
        return Some([&object[..start], report, &object[start + null.len()..]].concat());
    }
    let end = object.rfind('}')?;
    Some(format!(r#"{},"{MEMBER}":{report}{}"#, &object[..end], &object[end..]))
}

/// Adds the report, a JSON text, to the whole message `body`; `None` if it is none.
pub fn in_message(body: &str, report: &str) -> Option<String> {
    added(body, "message", report)
}

/// Adds a report to the events of a stream.
#[derive(Debug)]
pub struct AddReport {
    /// JSON text of the report, until it was added.
    report: Option<String>,
}

impl AddReport {
    /// Creates a judge that adds `report`, a JSON text.
    pub fn new(report: String) -> Self {
        Self { report: Some(report) }
    }
}

impl Judge for AddReport {
    fn judge(&mut self, event: &[u8], at_start: bool) -> Verdict {
        let Some(report) = &self.report else { return Verdict::Keep };
        let verdict =
            event_filter::edited(event, at_start, |data| added(data, "message_delta", report));
        if verdict != Verdict::Keep {
            self.report = None;
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::super::event_filter::Filter;
    use super::*;

    #[test]
    fn the_report_is_a_member_of_the_message() {
        for (body, wanted) in [
            (
                r#"{"type":"message","x":1.0 }"#,
                Some(r#"{"type":"message","x":1.0 ,"context_management":R}"#),
            ),
            (
                r#"{"type":"message","context_management": null,"x":1}"#,
                Some(r#"{"type":"message","context_management": R,"x":1}"#),
            ),
            (r#"{"type":"message","context_management":{}}"#, None),
            (r#"{"type":"error"}"#, None),
            ("[]", None),
        ] {
            assert_eq!(in_message(body, "R").as_deref(), wanted, "{body}");
        }
    }

    #[test]
    fn the_report_is_a_member_of_the_first_delta() {
        let stream = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n\
                      event: message_delta\r\ndata: {\"type\":\"message_delta\",\ndata: \"usage\":{}}\n\n\
                      data: {\"type\":\"message_delta\"}\n\n";
        let wanted = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n\
                      event: message_delta\r\ndata: {\"type\":\"message_delta\",\"usage\":{},\"context_management\":R}\n\n\
                      data: {\"type\":\"message_delta\"}\n\n";
        for at in 0..=stream.len() {
            let mut filter = Filter::with(AddReport::new("R".to_owned()), 1000);
            let (head, tail) = stream.as_bytes().split_at(at);
            let mut out = filter.feed(head).into_owned();
            out.extend_from_slice(&filter.feed(tail));
            out.extend(filter.finish());
            assert_eq!(String::from_utf8(out).expect("text"), wanted, "cut at {at}");
        }
    }
}
