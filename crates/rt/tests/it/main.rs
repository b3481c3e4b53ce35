//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

mod idle;
mod slots;
