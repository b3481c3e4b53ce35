//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

mod dataset;
#[cfg(feature = "parquet")]
mod dataset_parquet;
mod expectation;
mod streams;
