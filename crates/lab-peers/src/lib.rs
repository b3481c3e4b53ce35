//! The ordered maps that exist in Rust, compared on the same data, in turns, in one run.
//!
//! Every map is wrapped by an adapter in [`maps`] that implements [`OrderedMap`], through the fastest interface
//! that the map's documentation recommends: guards are pinned per batch of operations, keys are not copied
//! where the map takes integers. [`driver`] measures, [`data`] makes the keys and the expected answers,
//! [`report`] prints; [`turns`] compares two builds of this program.
//!
//! Every answer is checked while it is measured, by arithmetic on registers, so that nothing can be optimised
//! away and a map that loses or mixes up records is not called fast.
#![forbid(unsafe_code)]

pub mod data;
pub mod driver;
pub mod instructions;
pub mod maps;
mod measure;
pub mod report;
pub mod turns;

pub use measure::{Contender, Loaded, WrongAnswer};

/// Operations between two calls of [`Session::refresh`].
pub const BATCH: usize = 256;

/// What kind of structure a map is. Ratios are taken against the fastest B-tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    BTree,
    SkipList,
    RadixTree,
}

/// An ordered map of 64-bit integers, loaded once and then used by several threads.
pub trait OrderedMap: Send + Sync + Sized {
    /// What one thread uses the map through, with whatever guards it needs.
    type Session<'a>: Session
    where
        Self: 'a;

    /// Builds the map from pairs, which ascend by key if `sorted`.
    ///
    /// # Errors
    /// When the map does not take them.
    fn load(pairs: &[(u64, u64)], sorted: bool) -> anyhow::Result<Self>;

    /// A session for one of `threads` threads that use the map at the same time.
    fn session(&self, threads: usize) -> Self::Session<'_>;
}

/// One thread's use of a map.
pub trait Session {
    /// The value of a key.
    fn get(&mut self, key: u64) -> Option<u64>;

    /// Replaces the value of a key that is present. False if it was not.
    fn update(&mut self, key: u64, value: u64) -> bool;

    /// Reads up to `len` records from `start` on, ascending. Returns their number and the sum of their values.
    fn scan(&mut self, start: u64, len: usize) -> (usize, u64);

    /// The values of several keys, which are independent of each other. Maps without such an operation look up
    /// one after the other.
    fn multi_get(&mut self, keys: &[u64], values: &mut [Option<u64>]) {
        for (key, value) in keys.iter().zip(values) {
            *value = self.get(*key);
        }
    }

    /// Called every [`BATCH`] operations: lets go of guards, so that memory can be reclaimed, and takes new
    /// ones.
    fn refresh(&mut self) {}
}
