//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

mod common;
mod cut_off;
#[cfg(feature = "defects")]
mod defects;
mod faults;
mod hot_keys;
mod local;
mod simulated;
mod verbs;
