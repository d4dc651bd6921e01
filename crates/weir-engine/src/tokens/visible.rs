//! Visible text of JSON without a known form: everything in it that a model could be shown.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Returns all strings, numbers and names in `raw`, a line each, except members named in `skipped`
/// and names that `is_known`. Duplicate members appear twice. `None` if `raw` is nested too deeply
/// to read.
pub fn text(raw: &str, skipped: &[&str], is_known: fn(&str) -> bool) -> Option<String> {
    let mut text = String::new();
    write(&serde_json::from_str(raw).ok()?, skipped, is_known, &mut text);
    Some(text)
}

/// JSON value that keeps duplicate members.
enum Node {
    Nothing,
    Scalar(String),
    List(Vec<Node>),
    Members(Vec<(String, Node)>),
}

fn write(node: &Node, skipped: &[&str], is_known: fn(&str) -> bool, text: &mut String) {
    let mut line = |said: &str| {
        text.push_str(said);
        text.push('\n');
    };
    match node {
        Node::Nothing => {}
        Node::Scalar(said) if is_known(said) => {}
        Node::Scalar(said) => line(said),
        Node::List(nodes) => nodes.iter().for_each(|node| write(node, skipped, is_known, text)),
        Node::Members(members) => {
            for (name, node) in members {
                if skipped.contains(&name.as_str()) {
                    continue;
                }
                if !is_known(name) {
                    text.push_str(name);
                    text.push('\n');
                }
                write(node, skipped, is_known, text);
            }
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
