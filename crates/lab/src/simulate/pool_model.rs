//! Model of the indexes that only one process changes: all states that the catalog may have of each.
//!
//! A successful change leaves the states after it, a change that had no effect the states before it, and a
//! change with an unknown outcome both. Every state that is read must be among these, and is the only one
//! from then on.

use std::collections::BTreeMap;

use pando_pool::{AttachSlot, IndexRecord};

/// Outcome of an operation, according to its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    NotDone,
    Perhaps,
}

impl Outcome {
    pub fn of<T, E>(done: &Result<T, E>, may_have_taken_effect: impl Fn(&E) -> bool) -> Self {
        match done {
            Ok(_) => Self::Done,
            Err(error) if may_have_taken_effect(error) => Self::Perhaps,
            Err(_) => Self::NotDone,
        }
    }
}

/// An index as recorded in the catalog.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    pub root: u64,
    pub boundaries: Vec<Vec<u8>>,
    /// Whether this process, by its attach slot, owns each partition.
    pub own: Vec<bool>,
}

impl Shape {
    pub fn of(record: &IndexRecord, slot: Option<AttachSlot>) -> Self {
        let own = record.owners.iter().map(|owner| owner.is_some() && *owner == slot).collect();
        Self { root: record.root.raw(), boundaries: record.boundaries.clone(), own }
    }
}

/// The possible states of an object; at least one.
#[derive(Clone, Debug)]
pub struct Possible<T>(Vec<T>);

impl<T: Clone + PartialEq + std::fmt::Debug> Possible<T> {
    pub fn only(state: T) -> Self {
        Self(vec![state])
    }

    pub fn states(&self) -> &[T] {
        &self.0
    }

    /// Applies a change with this outcome.
    pub fn change(&mut self, outcome: Outcome, to: impl Fn(&T) -> T) {
        let after: Vec<T> = self.0.iter().map(to).collect();
        match outcome {
            Outcome::Done => self.0 = after,
            Outcome::NotDone => {}
            Outcome::Perhaps => self.0.extend(after),
        }
        let mut once: Vec<T> = Vec::new();
        self.0.retain(|state| {
            let is_new = !once.contains(state);
            once.extend(is_new.then(|| state.clone()));
            is_new
        });
    }

    /// Reduces the states to one that was read.
    ///
    /// # Errors
    /// A sentence, if that state is impossible.
    pub fn see(&mut self, state: T) -> Result<(), String> {
        if !self.0.contains(&state) {
            return Err(format!("{state:?} was found, which is none of {:?}", self.0));
        }
        self.0 = vec![state];
        Ok(())
    }
}

/// Indexes by name, and numbers of entries of trees by their roots.
#[derive(Default)]
pub struct Known {
    pub indexes: BTreeMap<String, Possible<Option<Shape>>>,
    pub entries: BTreeMap<u64, Possible<u64>>,
}

impl Known {
    pub fn index(&mut self, name: &str) -> &mut Possible<Option<Shape>> {
        self.indexes.entry(name.to_owned()).or_insert_with(|| Possible::only(None))
    }

    /// Marks all partitions as not owned, after this process has left the pool or died.
    pub fn left(&mut self) {
        for index in self.indexes.values_mut() {
            index.change(Outcome::Done, |state| {
                let mut state = state.clone();
                if let Some(shape) = &mut state {
                    shape.own.fill(false);
                }
                state
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_happened_is_both_until_it_is_seen() {
        let mut possible = Possible::only(1);
        possible.change(Outcome::NotDone, |_| 2);
        assert_eq!(possible.states(), [1]);
        possible.change(Outcome::Perhaps, |_| 3);
        assert_eq!(possible.states(), [1, 3]);
        possible.change(Outcome::Perhaps, |_| 3);
        assert_eq!(possible.states(), [1, 3]);
        assert!(possible.see(2).is_err());
        possible.see(3).expect("possible");
        possible.change(Outcome::Done, |state| state + 1);
        assert_eq!(possible.states(), [4]);
    }
}
