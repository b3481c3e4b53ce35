//! Tests of the crate's public surface, in one program, so that shared code is compiled and linked once.

mod at_once;
mod backup;
mod copies;
mod elastic;
mod elf;
mod examples;
#[cfg(feature = "object-store")]
mod fake_s3;
mod files;
mod golden_frames;
mod memory;
mod model;
mod moves;
mod neighbours;
#[cfg(feature = "object-store")]
mod objects;
mod operations;
mod processes;
mod readers;
mod remote_wire;
mod sessions;
mod support;
