//! One budget for each value of some dimensions: which group a request belongs to. Bounded; what comes later shares one group.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;

use crate::model::{Dimension, GroupBy};
use crate::request::Request;
use crate::select::{Room, UNKNOWN, value};

/// The values of a group, in the order of the dimensions.
pub type Labels = Arc<[Box<str>]>;

/// The value of each dimension in the group of those that found no room.
pub const OVERFLOW: &str = "_overflow";

/// The groups of one indicator. Without dimensions there is one, number 0.
#[derive(Clone, Debug)]
pub struct Groups {
    by: Vec<Dimension>,
    limit: usize,
    labels: Vec<Labels>,
    index: HashMap<u64, usize>,
}

impl Groups {
    /// Groups by `by`; `None`: everything together.
    pub fn new(by: Option<&GroupBy>) -> Self {
        by.map_or_else(|| Self::with(Vec::new(), 1), |g| Self::with(g.by.clone(), g.limit.max(1)))
    }

    /// Groups by `by`, at most `limit` and the overflow.
    pub fn with(by: Vec<Dimension>, limit: usize) -> Self {
        let labels = if by.is_empty() { vec![Labels::default()] } else { Vec::new() };
        Self { by, limit, labels, index: HashMap::new() }
    }

    /// At most so many.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// By which dimensions.
    pub fn by(&self) -> &[Dimension] {
        &self.by
    }

    /// The labels of every group.
    pub fn labels(&self) -> &[Labels] {
        &self.labels
    }

    /// The group of a request. A number that is not below the number of groups before the call is a new group.
    pub fn place(&mut self, request: &Request<'_>) -> usize {
        if self.by.is_empty() {
            return 0;
        }
        let mut rooms: [Room; Dimension::ALL.len()] = Default::default();
        let mut values = [UNKNOWN; Dimension::ALL.len()];
        for ((value_of, room), dimension) in values.iter_mut().zip(&mut rooms).zip(&self.by) {
            *value_of = value(request, *dimension, room).unwrap_or(UNKNOWN);
        }
        let values = values.get(..self.by.len()).unwrap_or(&[]);
        self.find_or_add(values)
    }

    /// The group of these labels, if there is one.
    pub fn find(&self, labels: &Labels) -> Option<usize> {
        if self.by.is_empty() && labels.is_empty() {
            return Some(0);
        }
        let at = *self.index.get(&hash(labels.iter().map(|l| &**l)))?;
        (self.labels.get(at) == Some(labels)).then_some(at)
    }

    /// The group of these values, made if there is none and there is room.
    pub fn find_or_add(&mut self, values: &[&str]) -> usize {
        if self.by.is_empty() {
            return 0;
        }
        let key = hash(values.iter().copied());
        match self.index.get(&key) {
            Some(&at) if self.labels.get(at).is_some_and(|l| l.iter().map(|l| &**l).eq(values.iter().copied())) => at,
            // The overflow's own labels do not count against the limit.
            None if self.labels.len() < self.limit || values.iter().all(|v| *v == OVERFLOW) => {
                self.labels.push(values.iter().map(|v| Box::from(*v)).collect());
                self.index.insert(key, self.labels.len() - 1);
                self.labels.len() - 1
            }
            // No room, or another group's hash.
            _ => {
                let overflow = [OVERFLOW; Dimension::ALL.len()];
                let overflow = overflow.get(..values.len()).unwrap_or(&[]);
                if overflow == values { 0 } else { self.find_or_add(overflow) }
            }
        }
    }
}

fn hash<'a>(values: impl Iterator<Item = &'a str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for value in values {
        hasher.write(value.as_bytes());
        hasher.write_u8(0xff);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(model: &str) -> Request<'_> {
        Request { model: Some(model), ..Request::plain() }
    }

    #[test]
    fn groups_are_bounded_and_the_rest_share_one() {
        let mut g = Groups::new(Some(&GroupBy { by: vec![Dimension::Model, Dimension::Stream], limit: 2 }));
        let places = ["a", "b", "c", "d", "a", "c"].map(|m| g.place(&of(m)));
        assert_eq!(places, [0, 1, 2, 2, 0, 2]);
        let labels: Vec<String> = g.labels().iter().map(|l| l.join(",")).collect();
        assert_eq!(labels, ["a,true", "b,true", "_overflow,_overflow"]);
        assert_eq!(g.find(&g.labels()[1].clone()), Some(1));
    }

    #[test]
    fn without_dimensions_there_is_one_group() {
        let mut g = Groups::new(None);
        assert_eq!((g.place(&of("a")), g.place(&of("b")), g.labels().len()), (0, 0, 1));
        assert_eq!(g.find(&Labels::default()), Some(0));
    }

    #[test]
    fn unknown_values_are_a_group() {
        let mut g = Groups::new(Some(&GroupBy { by: vec![Dimension::Tenant], limit: 9 }));
        assert_eq!(g.place(&Request::plain()), 0);
        assert_eq!(&*g.labels()[0][0], UNKNOWN);
    }
}
