//! Strict JSON parser for the judge: refuses duplicate keys, and finds messages without copying
//! them.
//!
//! Knows only JSON, and nothing of the meaning of members.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Top level of a request: small members as text, messages as slices of the body.
pub struct Top<'a> {
    pub members: Vec<(String, &'a RawValue)>,
    pub messages: Option<Messages<'a>>,
}

pub struct Messages<'a>(pub Vec<&'a RawValue>);

impl<'a> Top<'a> {
    pub fn read(body: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(body)
    }

    /// Returns a member as a value; `None` if it is absent or null.
    pub fn value(&self, name: &str) -> Result<Option<Value>, serde_json::Error> {
        match self.raw(name) {
            None => Ok(None),
            Some(raw) => Ok(Some(value(raw.get())?).filter(|value| !value.is_null())),
        }
    }

    pub fn raw(&self, name: &str) -> Option<&'a RawValue> {
        let member = self.members.iter().find(|(known, _)| known == name);
        member.map(|(_, raw)| *raw)
    }
}

/// Parses a value; refuses a key that occurs twice in any object of it.
pub fn value(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str::<Strict>(text).map(|strict| strict.0)
}

impl<'de> Deserialize<'de> for Top<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TopVisitor;
        impl<'de> Visitor<'de> for TopVisitor {
            type Value = Top<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Top<'de>, A::Error> {
                let mut top = Top { members: Vec::with_capacity(16), messages: None };
                while let Some(key) = map.next_key::<String>()? {
                    let known = key == "messages" && top.messages.is_some();
                    if known || top.raw(&key).is_some() {
                        return Err(duplicate(&key));
                    }
                    if key == "messages" {
                        top.messages = Some(map.next_value()?);
                    } else {
                        top.members.push((key, map.next_value()?));
                    }
                }
                Ok(top)
            }
        }
        deserializer.deserialize_map(TopVisitor)
    }
}

impl<'de> Deserialize<'de> for Messages<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MessagesVisitor;
        impl<'de> Visitor<'de> for MessagesVisitor {
            type Value = Messages<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("'messages' to be an array of objects")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Messages<'de>, A::Error> {
                let mut list = Vec::new();
                while let Some(message) = seq.next_element()? {
                    list.push(message);
                }
                Ok(Messages(list))
            }
        }
        deserializer.deserialize_seq(MessagesVisitor)
    }
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StrictVisitor;
        impl<'de> Visitor<'de> for StrictVisitor {
            type Value = Strict;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON value")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strict, A::Error> {
                let mut object = Map::new();
                while let Some(key) = map.next_key::<String>()? {
                    if object.contains_key(&key) {
                        return Err(duplicate(&key));
                    }
                    object.insert(key, map.next_value::<Strict>()?.0);
                }
                Ok(Strict(Value::Object(object)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Strict, A::Error> {
                let mut array = Vec::new();
                while let Some(Strict(element)) = seq.next_element()? {
                    array.push(element);
                }
                Ok(Strict(Value::Array(array)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Strict, E> {
                Ok(Strict(Value::from(text)))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Strict, E> {
                Ok(Strict(Value::from(text)))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Strict, E> {
                Ok(Strict(Value::from(number)))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Strict, E> {
                Ok(Strict(Value::from(number)))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Strict, E> {
                Ok(Strict(Value::from(number)))
            }

            fn visit_bool<E: Error>(self, truth: bool) -> Result<Strict, E> {
                Ok(Strict(Value::from(truth)))
            }

            fn visit_unit<E: Error>(self) -> Result<Strict, E> {
                Ok(Strict(Value::Null))
            }
        }
        deserializer.deserialize_any(StrictVisitor)
    }
}

fn duplicate<E: Error>(key: &str) -> E {
    E::custom(format!("the key '{key}' stands twice"))
}
