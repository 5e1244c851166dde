//! What is known by which key.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::engine::Engine;
use super::view::View;

/// The index: what is known by a key, oldest first.
pub(super) type Index = FxHashMap<u64, VecDeque<u64>>;

/// By what a view is known, each key once.
pub(super) fn keys_of(view: &View) -> impl Iterator<Item = u64> + use<> {
    let k = view.keys;
    let mut all = [k.wire, k.caller, k.trace, k.ids[0], k.ids[1], k.ids[2]];
    once(&mut all);
    all.into_iter().flatten()
}

/// By what an engine's view is known, each key once.
pub(super) fn keys_of_engine(engine: &Engine) -> impl Iterator<Item = u64> + use<> {
    let mut all = [engine.caller, engine.trace, engine.ids[0], engine.ids[1]];
    once(&mut all);
    all.into_iter().flatten()
}

/// Leaves each key once.
fn once(keys: &mut [Option<u64>]) {
    for n in 1..keys.len() {
        let (before, behind) = keys.split_at_mut(n);
        if let Some(key) = behind.first_mut()
            && before.contains(key)
        {
            *key = None;
        }
    }
}

/// Takes something out of the index.
pub(super) fn forget(index: &mut Index, keys: impl Iterator<Item = u64>, number: u64) {
    for key in keys {
        if let Some(list) = index.get_mut(&key) {
            // Whoever leaves is mostly the oldest.
            if let Some(at) = list.iter().position(|n| *n == number) {
                list.remove(at);
            }
            if list.is_empty() {
                index.remove(&key);
            }
        }
    }
}
