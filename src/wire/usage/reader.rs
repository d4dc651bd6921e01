//! Members of JSON objects taken one by one out of a text, in one pass, with all that nobody asks
//! for passed over. Knows no name of any member.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::wire::json::Key;

/// What takes an object's members one by one.
pub trait Reader<'de> {
    /// Takes the member called `key`; its value has to be read off `map`.
    fn member<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error>;
}

/// Reads `text`, which is to be one JSON value, as [`Object`] does; `None` where it is not JSON.
pub fn read<'de>(text: &'de str, reader: &mut impl Reader<'de>) -> Option<bool> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let is_object = Object(reader).deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(is_object)
}

/// One value: an object's members are given to the reader, anything else is passed over. Tells
/// whether it was an object.
pub struct Object<'r, R>(pub &'r mut R);

/// One value: of an array, each element is read like [`Object`], by a reader that
/// [`Elements::next`] gives.
pub struct Each<'r, L>(pub &'r mut L);

/// What gives a reader for each element of an array.
pub trait Elements<'de> {
    type Element: Reader<'de>;

    /// The reader of the next element; what it read is taken back by [`Self::done`].
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
