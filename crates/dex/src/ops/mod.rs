//! Operations of a [`Tree`](crate::Tree): on one key, on many keys, on ranges; and opening a tree.
//!
//! Each operation tries the optimistic descent first. Then it loops over attempts that can wait, governed by
//! one [`RestartPolicy`](crate::recovery::restart::RestartPolicy).

pub(crate) mod multi_get;
pub(crate) mod open;
pub(crate) mod point;
pub(crate) mod prefetch;
pub(crate) mod scan;
