//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

mod alloc;
mod attach;
mod catalog;
mod crash;
#[cfg(feature = "defects")]
mod defects;
mod interleaved;
mod left_locks;
mod lost_answers;
mod membership;
mod model;
mod notice;
mod reclaim;
mod ring;
mod stopped;
mod support;
mod two_processes;
mod value;
