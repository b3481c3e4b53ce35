//! Restarts of operations, and repair of what earlier operations left.
//!
//! [`restart`] is the policy of every retry loop. Before each new attempt, [`dead_holders::settle_locks`]
//! clears obstacles: locks that this process left, leftovers of cut-off operations ([`unfinished`]), and
//! nodes whose lock holder is dead ([`dead_holders`]). [`drained`] forgets memory servers that may be gone. [`free`] frees
//! unlinked blocks.

pub(crate) mod dead_holders;
pub(crate) mod drained;
pub(crate) mod free;
pub(crate) mod restart;
pub(crate) mod room;
pub(crate) mod unfinished;
