//! Tests of the crate's public surface, in one program, so that shared code is compiled and linked once.

mod found;
mod http;
mod operations;
mod owners;
mod strangers;
mod support;
