//! Visible text of JSON without a known form: everything in it that a model could be shown.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Returns all strings, numbers and names in `raw`, a line each, except members named in `skipped`
/// and names that `is_known`. Duplicate members appear twice. `None` if `raw` is nested too deeply
/// to read.
pub fn text(raw: &str, skipped: &[&str], is_known: fn(&str) -> bool) -> Option<String> {
    text_without(raw, skipped, is_known, &mut |_, _| false)
}

/// Like [`text`], without the strings and numbers that `take` takes. It gets each with the name of
/// its member, those of `skipped` members too.
pub(super) fn text_without(
    raw: &str,
    skipped: &[&str],
    is_known: fn(&str) -> bool,
    take: &mut dyn FnMut(&str, &str) -> bool,
) -> Option<String> {
    let node = serde_json::from_str(raw).ok()?;
    let mut writer = VisibleWriter { skipped, is_known, take, text: String::new() };
    writer.write("", &node);
    Some(writer.text)
}

/// JSON value that keeps duplicate members.
enum Node {
    Nothing,
    Scalar(String),
    List(Vec<Node>),
    Members(Vec<(String, Node)>),
}

struct VisibleWriter<'a> {
    skipped: &'a [&'a str],
    is_known: fn(&str) -> bool,
    take: &'a mut dyn FnMut(&str, &str) -> bool,
    text: String,
}

impl VisibleWriter<'_> {
    /// Writes the value of the member `name`.
    fn write(&mut self, name: &str, node: &Node) {
        match node {
            Node::Nothing => {}
            Node::Scalar(said) => {
                if !(self.take)(name, said) && !self.skipped.contains(&name) {
                    self.line(said);
                }
            }
            Node::List(nodes) => nodes.iter().for_each(|node| self.write(name, node)),
            Node::Members(members) => {
                for (name, node) in members {
                    let is_skipped = self.skipped.contains(&name.as_str());
                    if !is_skipped {
                        self.line(name);
                    }
                    if !is_skipped || matches!(node, Node::Scalar(_)) {
                        self.write(name, node);
                    }
                }
            }
        }
    }

    fn line(&mut self, said: &str) {
        if !(self.is_known)(said) {
            self.text.push_str(said);
            self.text.push('\n');
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        Ok(Node::Nothing)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Nothing)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Scalar(number.to_string()))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Scalar(number.to_string()))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Node, E> {
        Ok(Node::Scalar(number.to_string()))
    }

    fn visit_str<E: de::Error>(self, said: &str) -> Result<Node, E> {
        Ok(Node::Scalar(said.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = sequence.next_element()? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Node::Members(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_there_but_what_is_skipped() {
        let raw =
            r#"{"a":"one","a":["two",3,null,true,{"known":"known","b":"four"}],"data":"five"}"#;
        let text = text(raw, &["data"], |name| name == "known").expect("readable");
        assert_eq!(text, "a\none\na\ntwo\n3\nb\nfour\n");
        assert!(super::text(&"[".repeat(1000), &[], |_| false).is_none());
    }
}
