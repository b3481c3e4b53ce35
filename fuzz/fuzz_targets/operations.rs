//! Any sequence of operations on any small cluster is what it is on a `BTreeMap`; afterwards the auditor is content
//! with every node, and every block of the pool is accounted for.
//!
//! The input says how the cluster looks (layout, node size, entries per node, frames, servers, options of the cache,
//! whether the pool lies in a file), what is loaded at the start, and what is done then: by one session, by several
//! operations in flight, and by closing the pool and opening it with another number of compute servers. A pool may
//! be too small for all of it: what is refused must have changed nothing.

#![no_main]

mod operations {
    pub mod case;
    pub mod run;
}

use libfuzzer_sys::fuzz_target;

fuzz_target!(|case: operations::case::Case| operations::run::run(&case));
