//! Sets of attributes, each kept once: a point is found by the address of its set, and what is recorded often allocates nothing.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxHashSet;

/// The value of an attribute.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Value {
    /// A text that the agent knows.
    Word(&'static str),
    /// A text that came from elsewhere.
    Text(Arc<str>),
    /// A number.
    Int(i64),
    /// Yes or no.
    Flag(bool),
}

impl Value {
    /// The text; `None` of a number.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Word(word) => Some(word),
            Self::Text(text) => Some(text),
            Self::Int(_) | Self::Flag(_) => None,
        }
    }

    /// As a label.
    pub fn label(&self) -> Cow<'_, str> {
        match self {
            Self::Word(word) => Cow::Borrowed(word),
            Self::Text(text) => Cow::Borrowed(text),
            Self::Int(n) => Cow::Owned(n.to_string()),
            Self::Flag(yes) => Cow::Borrowed(if *yes { "true" } else { "false" }),
        }
    }
}

/// Name and value.
pub type Attribute = (Cow<'static, str>, Value);

/// A set of attributes, sorted by name; cheap to clone. Two of one [`Sets`] are equal when they are the same one.
#[derive(Clone, Debug)]
pub struct Set(Arc<[Attribute]>);

impl Set {
    /// The attributes.
    pub fn attributes(&self) -> &[Attribute] {
        &self.0
    }

    /// The value of one.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }
}

impl PartialEq for Set {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Set {}

impl Hash for Set {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (Arc::as_ptr(&self.0) as *const u8 as usize).hash(state);
    }
}

/// Every set that is in use.
#[derive(Clone, Debug, Default)]
pub struct Sets {
    known: FxHashSet<Arc<[Attribute]>>,
}

impl Sets {
    /// The set of these attributes, in any order; of two with the same name the first is kept.
    pub fn of(&mut self, mut attributes: Vec<Attribute>) -> Set {
        attributes.sort_by(|(a, _), (b, _)| a.cmp(b));
        attributes.dedup_by(|(a, _), (b, _)| a == b);
        if let Some(known) = self.known.get(attributes.as_slice()) {
            return Set(Arc::clone(known));
        }
        let new: Arc<[Attribute]> = attributes.into();
        self.known.insert(Arc::clone(&new));
        Set(new)
    }

    /// The set with one attribute more.
    pub fn with(&mut self, set: &Set, name: &'static str, value: Value) -> Set {
        let mut all = set.0.to_vec();
        all.push((Cow::Borrowed(name), value));
        self.of(all)
    }

    /// Forgets the sets that nobody holds any more.
    pub fn sweep(&mut self) {
        self.known.retain(|set| Arc::strong_count(set) > 1);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_kept_once_and_as_long_as_it_is_used() {
        let mut sets = Sets::default();
        let a = |v| (Cow::Borrowed("a"), Value::Int(v));
        let b = (Cow::Borrowed("b"), Value::Text("x".into()));
        let first = sets.of(vec![a(1), b.clone()]);
        assert_eq!(first, sets.of(vec![b.clone(), a(1), a(2)]));
        let other = sets.with(&first, "c", Value::Flag(true));
        assert_ne!(first, other);
        assert_eq!(other.get("c").map(Value::label).as_deref(), Some("true"));
        drop(other);
        sets.sweep();
        assert_eq!(sets.len(), 1);
        assert_eq!(first, sets.of(vec![a(1), b]));
    }
}
