//! Compares the ordered maps available in Rust: on the same data, interleaved in one run.
//!
//! An adapter in [`maps`] wraps each map and implements [`OrderedMap`] through the fastest interface that the
//! map's documentation recommends: guards are pinned per batch of operations, and keys are not copied if the
//! map takes integers. [`driver`] measures, [`data`] makes the keys and the expected answers, [`report`]
//! prints, and [`turns`] compares two builds of this program. With the feature `elf`, `selections` compares Elf
//! with other ways to answer conditions on several columns; with the feature `durable`, `durable` compares maps in
//! files.
//!
//! Every answer is checked during the measurement, by arithmetic on registers. So the compiler cannot remove
//! a lookup, and a map that loses or mixes up records fails instead of appearing fast.
#![forbid(unsafe_code)]

pub mod data;
pub mod driver;
#[cfg(feature = "durable")]
pub mod durable;
pub mod instructions;
pub mod maps;
mod measure;
pub mod report;
#[cfg(feature = "elf")]
pub mod selections;
pub mod turns;

pub use measure::{Contender, Loaded, Phase, WrongAnswer};

/// Operations between two calls of [`Session::refresh`].
pub const BATCH: usize = 256;

/// Kind of data structure of a map. Ratios are taken against the fastest B-tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    BTree,
    SkipList,
    RadixTree,
}

/// An ordered map of 64-bit integers that is loaded once and then used by several threads.
pub trait OrderedMap: Send + Sync + Sized {
    /// One thread's handle, with the guards that the map needs.
    type Session<'a>: Session
    where
        Self: 'a;

    /// Builds the map from pairs, which ascend by key if `sorted`.
    ///
    /// # Errors
    /// If the map rejects a pair.
    fn load(pairs: &[(u64, u64)], sorted: bool) -> anyhow::Result<Self>;

    /// Opens a session for one of `threads` threads that use the map concurrently.
    fn session(&self, threads: usize) -> Self::Session<'_>;
}

/// One thread's use of a map.
pub trait Session {
    /// Returns the value of a key.
    fn get(&mut self, key: u64) -> Option<u64>;

    /// Replaces the value of a key. Returns false if the key is absent.
    fn update(&mut self, key: u64, value: u64) -> bool;

    /// Reads up to `len` records from `start` on, in ascending order. Returns their number and the sum of
    /// their values.
    fn scan(&mut self, start: u64, len: usize) -> (usize, u64);

    /// Looks up several independent keys. The default looks them up one after the other.
    fn multi_get(&mut self, keys: &[u64], values: &mut [Option<u64>]) {
        for (key, value) in keys.iter().zip(values) {
            *value = self.get(*key);
        }
    }

    /// Called every [`BATCH`] operations: releases the guards, so that memory can be reclaimed, and takes new
    /// ones.
    fn refresh(&mut self) {}
}
