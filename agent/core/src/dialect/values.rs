//! Tolerant values: JSON of another kind than expected is nothing instead of an error.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::name::Name;

/// An object; anything else is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Object<T>(pub Option<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for V<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_unit<E>(self) -> Result<Object<T>, E> {
                Ok(Object(None))
            }
            fn visit_bool<E>(self, _: bool) -> Result<Object<T>, E> {
                Ok(Object(None))
            }
            fn visit_u64<E>(self, _: u64) -> Result<Object<T>, E> {
                Ok(Object(None))
            }
            fn visit_i64<E>(self, _: i64) -> Result<Object<T>, E> {
                Ok(Object(None))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Object<T>, E> {
                Ok(Object(None))
            }
            fn visit_str<E>(self, _: &str) -> Result<Object<T>, E> {
                Ok(Object(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut a: A) -> Result<Object<T>, A::Error> {
                while a.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Object(None))
            }
            fn visit_map<A: MapAccess<'de>>(self, a: A) -> Result<Object<T>, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(a)).map(|t| Object(Some(t)))
            }
        }
        d.deserialize_any(V(PhantomData))
    }
}

/// A string that may be a name; anything else is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Short(pub Option<Name>);

/// A string as it stands; anything else is `None`. Borrowed where it can be: most are looked at and dropped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Word<'a>(pub Option<Cow<'a, str>>);

impl Word<'_> {
    /// The string, unless it is empty.
    pub fn text(&self) -> Option<&str> {
        self.0.as_deref().filter(|t| !t.is_empty())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Word<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(match Any::deserialize(d)? {
            Any::Text(t) => Word(Some(t)),
            _ => Word(None),
        })
    }
}

/// A boolean; anything else is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flag(pub Option<bool>);

/// A count: an integer or an integral float; anything else is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count(pub Option<u64>);

/// A finite number; anything else is `None`.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Number(pub Option<f64>);

/// Whether a value is a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IsList(pub bool);

/// Whether a value is there and not null.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IsThere(pub bool);

/// Whether a prompt is there, and whether it is an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prompt(pub bool, pub bool);

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let any = Any::deserialize(d)?;
        Ok(Self(!matches!(any, Any::Null), matches!(any, Any::Object)))
    }
}

/// Whether a value is a text in words: no GraphQL, no SQL, no JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prose(pub bool);

/// How many elements a list has; anything else is `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Length(pub Option<u64>);

/// A class of low cardinality: a string without white space, or a number; anything else is `None`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Class(pub Option<Name>);

/// A value of any JSON kind, as far as the tolerant types want it.
enum Any<'de> {
    Null,
    Bool(bool),
    Number(f64),
    Integer(u64),
    Text(Cow<'de, str>),
    List(u64),
    Object,
}

impl<'de> Deserialize<'de> for Any<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Any<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_unit<E>(self) -> Result<Any<'de>, E> {
                Ok(Any::Null)
            }
            fn visit_bool<E>(self, v: bool) -> Result<Any<'de>, E> {
                Ok(Any::Bool(v))
            }
            fn visit_u64<E>(self, v: u64) -> Result<Any<'de>, E> {
                Ok(Any::Integer(v))
            }
            fn visit_i64<E>(self, v: i64) -> Result<Any<'de>, E> {
                Ok(Any::Number(v as f64))
            }
            fn visit_f64<E>(self, v: f64) -> Result<Any<'de>, E> {
                Ok(Any::Number(v))
            }
            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Any<'de>, E> {
                Ok(Any::Text(Cow::Borrowed(v)))
            }
            fn visit_str<E>(self, v: &str) -> Result<Any<'de>, E> {
                Ok(Any::Text(Cow::Owned(v.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut a: A) -> Result<Any<'de>, A::Error> {
                let mut length = 0;
                while a.next_element::<IgnoredAny>()?.is_some() {
                    length += 1;
                }
                Ok(Any::List(length))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut a: A) -> Result<Any<'de>, A::Error> {
                while a.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Any::Object)
            }
        }
        d.deserialize_any(V)
    }
}

macro_rules! tolerant {
    ($($type:ident: $any:pat => $value:expr;)*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                Ok(match Any::deserialize(d)? {
                    $any => $type($value),
                    #[allow(unreachable_patterns, reason = "some of the patterns take every value")]
                    _ => Self::default(),
                })
            }
        }
    )*};
}

tolerant! {
    Flag: Any::Bool(b) => Some(b);
    Short: Any::Text(t) => Name::new(&t);
    IsList: any => matches!(any, Any::List(_));
    Length: Any::List(n) => Some(n);
    Prose: any => matches!(any, Any::Text(t) if is_prose(&t));
    IsThere: any => !matches!(any, Any::Null);
    Number: any => number(&any);
    Count: any => number(&any).filter(|n| *n >= 0.0 && n.fract() == 0.0 && *n < 9e15).map(|n| n as u64);
    Class: any => match any {
        Any::Text(t) => Name::class(&t),
        Any::Integer(n) => Name::class(&n.to_string()),
        _ => None,
    };
}

/// Words that queries begin with which are none of a language model's.
const QUERIES: [&str; 8] = ["query", "mutation", "subscription", "fragment", "select", "insert", "delete", "from"];

fn is_prose(text: &str) -> bool {
    let text = text.trim_start();
    let first = text.split(|c: char| c.is_whitespace() || matches!(c, '{' | '(')).next().unwrap_or_default();
    !text.is_empty() && !text.starts_with(['{', '[', '(']) && !QUERIES.iter().any(|q| first.eq_ignore_ascii_case(q))
}

fn number(any: &Any<'_>) -> Option<f64> {
    match any {
        Any::Number(n) if n.is_finite() => Some(*n),
        Any::Integer(n) => Some(*n as f64),
        _ => None,
    }
}
