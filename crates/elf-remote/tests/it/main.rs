//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

mod common;
mod costs;
#[cfg(feature = "defects")]
mod defects;
mod local;
/// Tables, predicates and brute force, as in the tests of `pando-elf`.
#[path = "../../../elf/tests/it/model.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod model;
mod offload;
mod setup;
mod simulated;
mod simulated_tables;
mod table_failures;
mod tables;
mod unanswered;
