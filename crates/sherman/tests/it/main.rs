//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

mod common;
mod costs;
#[cfg(feature = "defects")]
mod defects;
mod left_locks;
mod local;
mod simulated;
