//! Tests of the crate's public surface, in one program, so that shared code is compiled and linked once.

mod bench;
mod calibrate;
mod common;
#[cfg(feature = "defects")]
mod defects;
mod elastic;
mod elf;
mod experiments;
mod lab;
#[cfg(feature = "defects")]
mod pool_defects;
mod promise;
mod simulate;
mod simulated;
