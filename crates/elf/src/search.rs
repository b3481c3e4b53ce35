//! Searches of an Elf in either layout: exact match, and range or partial match (fact sheet §4).
//!
//! Both are walks down from the list of level 0 that follow only matching entries. They use a stack of their
//! own, so that the number of columns does not matter.

mod exact;
mod range;

pub use exact::exact;
pub use range::{Walk, range};
