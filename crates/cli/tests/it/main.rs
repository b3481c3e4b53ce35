//! Integration tests of the crate, in one program, so that shared code is compiled and linked once.

mod backup;
mod bad_input;
mod bench;
mod cluster_commands;
mod common;
mod copies;
mod elf;
mod elf_bad_input;
mod etcd;
mod failures;
#[cfg(feature = "object-store")]
#[path = "../../../pando/tests/it/fake_s3.rs"]
#[allow(dead_code, reason = "the tests of the library use the rest")]
mod fake_s3;
mod heirs;
mod help;
mod hosts;
mod lab;
mod memory_servers;
mod no_space;
mod partitions;
mod processes;
mod simulate;
mod strangers;
mod tables;
mod tidy;
mod up;
mod words;
