//! Streaming reader of JSON objects: visits members one by one in a single pass and skips all
//! others. Knows no member names.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::wire::json::Key;

/// Visitor of an object's members.
pub trait Reader<'de> {
    /// Reads the member called `key`; the value must be read from `map`.
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error>;
}

/// Reads `text`, which must be one JSON value, as [`Object`] does; `None` if it is not JSON.
pub fn read<'de>(text: &'de str, reader: &mut impl Reader<'de>) -> Option<bool> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let is_object = Object(reader).deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(is_object)
}

/// Reads one value: an object's members go to the reader, anything else is skipped. Returns whether
/// it was an object.
pub struct Object<'r, R>(pub &'r mut R);

/// Reads one value: of an array, each element is read like [`Object`], with a reader from
/// [`Elements::next`].
pub struct Each<'r, L>(pub &'r mut L);

/// Supplies a reader for each element of an array.
pub trait Elements<'de> {
    type Element: Reader<'de>;

    /// Returns the reader of the next element; [`Self::done`] takes it back.
    fn next(&mut self) -> Self::Element;

    /// Takes back the reader of an element.
    fn done(&mut self, element: Self::Element);
}

macro_rules! pass_over {
    ($($visit:ident: $scalar:ty),*) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any value")
        }

        fn visit_unit<E>(self) -> Result<bool, E> {
            Ok(false)
        }

        $(fn $visit<E>(self, _: $scalar) -> Result<bool, E> { Ok(false) })*
    };
}

impl<'de, R: Reader<'de>> DeserializeSeed<'de> for Object<'_, R> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: Reader<'de>> Visitor<'de> for Object<'_, R> {
    type Value = bool;

    pass_over!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while let Some(Key(key)) = map.next_key()? {
            self.0.member(&key, &mut map)?;
        }
        Ok(true)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<bool, A::Error> {
        while sequence.next_element::<IgnoredAny>()?.is_some() {}
        Ok(false)
    }
}

impl<'de, L: Elements<'de>> DeserializeSeed<'de> for Each<'_, L> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, L: Elements<'de>> Visitor<'de> for Each<'_, L> {
    type Value = bool;

    pass_over!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<bool, A::Error> {
        loop {
            let mut element = self.0.next();
            let Some(_) = sequence.next_element_seed(Object(&mut element))? else {
                return Ok(true);
            };
            self.0.done(element);
        }
    }
}
