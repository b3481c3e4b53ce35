//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

#[cfg(not(any(loom, shuttle)))]
mod cache;
#[cfg(loom)]
mod loom_cache;
#[cfg(loom)]
mod loom_cooling;
#[cfg(loom)]
mod loom_gate;
#[cfg(loom)]
mod loom_latch;
#[cfg(loom)]
mod loom_table;
#[cfg(shuttle)]
mod shuttle_cache;
#[cfg(not(any(loom, shuttle)))]
mod stress;
mod toy;
