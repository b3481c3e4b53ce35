//! Integration tests of the crate, in one program, so that shared code is compiled and linked once.

mod conformance;
mod etcd;
mod golden;
mod group;
mod real_etcd;
mod wire;
