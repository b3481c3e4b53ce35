//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

mod found;
mod http;
mod operations;
mod owners;
mod strangers;
mod support;
