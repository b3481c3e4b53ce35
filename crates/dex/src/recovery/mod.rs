//! How operations start again, and how they finish what others left half done.
//!
//! [`restart`] is the policy of every loop that tries again. Before each new attempt it settles ([`dead_holders::settle_locks`])
//! what is in the way: locks of this process that were left, changes of operations that were cut off ([`unfinished`]), and nodes
//! whose lock a process has that is gone ([`dead_holders`]). [`free`] gives blocks back that nothing leads to any more.

pub(crate) mod dead_holders;
pub(crate) mod free;
pub(crate) mod restart;
pub(crate) mod unfinished;
