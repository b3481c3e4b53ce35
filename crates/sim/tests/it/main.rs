//! Integration tests of the crate, in one program, so that shared code is compiled and linked once.

mod atomics;
mod conformance;
mod faults;
mod nic;
mod preempted;
mod time;
