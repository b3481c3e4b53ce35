//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

mod external;
mod images;
mod model;
mod searches;
mod selections;
mod sql;
