//! What an engine has counted, apart from what it is to count: the part that is kept over a restart and over a change of the files.

use crate::alert::Alerts;
use crate::groups::{Groups, Labels};
use crate::ring::Ring;
use crate::series::{Series, SliceRule};

/// What was not seen, up to an instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unseen {
    /// Requests that are known to have been lost before anyone could decide them.
    pub lost: u64,
    /// Nanoseconds in which nothing could be seen.
    pub blind: u64,
}

/// One indicator's groups and what they have counted.
#[derive(Clone, Debug)]
pub struct Page {
    /// See [`crate::identity`].
    pub key: String,
    /// Which groups there are.
    pub groups: Groups,
    /// One for each group.
    pub series: Vec<Series>,
    /// How slices are judged; a part of the key.
    pub rule: Option<SliceRule>,
}

/// Whose alerts they are.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Owner {
    /// The SLO's name.
    pub slo: String,
    /// The objective's name; `None`: of the composite as a whole.
    pub objective: Option<String>,
    /// The group.
    pub group: Labels,
}

/// Everything counted.
#[derive(Clone, Debug)]
pub struct Book {
    /// How far the engine's own time has come, nanoseconds.
    pub now: u64,
    /// From the engine's own time to the wall clock's, nanoseconds.
    pub offset: i64,
    /// What was not seen.
    pub unseen: Ring<Unseen>,
    /// One for each indicator.
    pub pages: Vec<Page>,
    /// The alerts, as they were when the book was closed.
    pub alerts: Vec<(Owner, Alerts)>,
}

impl Book {
    /// The page of that key.
    pub fn take(&mut self, key: &str) -> Option<Page> {
        let at = self.pages.iter().position(|p| p.key == key)?;
        Some(self.pages.swap_remove(at))
    }
}
