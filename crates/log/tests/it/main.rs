//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

#[cfg(feature = "defects")]
mod defects;
mod faulty;
mod lease;
mod model;
mod model_test;
mod plan;
mod threads;
mod torn;
mod truncated;
