//! The operations of a [`Tree`](crate::Tree): on one key, on many, on ranges; and opening one.
//!
//! Each operation tries the optimistic descent first and then loops over attempts that can wait, with one
//! [`RestartPolicy`](crate::recovery::restart::RestartPolicy).

pub(crate) mod multi_get;
pub(crate) mod open;
pub(crate) mod point;
pub(crate) mod prefetch;
pub(crate) mod scan;
