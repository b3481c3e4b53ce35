//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

mod caching;
#[cfg(not(shuttle))]
mod changes;
#[cfg(feature = "defects")]
mod defects;
mod external;
mod images;
mod model;
mod parallel;
mod publication;
mod searches;
mod selections;
#[cfg(shuttle)]
mod shuttle_changes;
mod sql;
mod stores;
