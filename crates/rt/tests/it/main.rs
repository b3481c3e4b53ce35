//! Integration tests of the crate, in one program, so that shared code is compiled and linked once.

mod idle;
mod slots;
