//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

mod bench;
mod calibrate;
mod common;
#[cfg(feature = "defects")]
mod defects;
mod elastic;
mod lab;
#[cfg(feature = "defects")]
mod pool_defects;
mod promise;
mod simulate;
mod simulated;
