//! Our own index in the comparison. Everything that depends on it stays in this file.
//!
//! An entry's map implements [`crate::OrderedMap`] (one lookup at a time, `multi_get` in batches) or, for a
//! mode that does not fit that loop, such as lookups in flight in several slots of one thread,
//! [`crate::Contender`].

use super::Entry;

/// Our entries.
pub fn entries() -> Vec<Entry> {
    Vec::new()
}
