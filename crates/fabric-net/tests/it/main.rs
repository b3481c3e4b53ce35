//! Integration tests of the crate, in one program, so that shared code is compiled and linked once.

mod conformance;
mod golden;
mod group;
mod wire;
