//! An arbitrary sequence of operations on a small cluster behaves as on a `BTreeMap`. Afterwards the auditor
//! accepts every node and accounts for every block of the pool.
//!
//! The input determines the cluster (layout, node size, entries per node, frames, servers, options of the
//! cache, whether the pool is in a file), the initial load, and the operations: by one session, by several
//! operations in flight, and by closing the pool and reopening it with another number of compute servers. A
//! pool may be too small for all of it: a refused operation must not have changed anything.

#![no_main]

mod operations {
    pub mod case;
    pub mod run;
}

use libfuzzer_sys::fuzz_target;

fuzz_target!(|case: operations::case::Case| operations::run::run(&case));
