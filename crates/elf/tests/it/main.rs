//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

mod caching;
mod external;
mod images;
mod model;
mod publication;
mod searches;
mod selections;
mod sql;
mod stores;
