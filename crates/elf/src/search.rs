//! Searches of an Elf in either layout: exact match, and range or partial match (fact sheet §4).
//!
//! Both are walks down from the list of level 0 that follow only matching entries. They use a stack of their
//! own, so that the number of columns does not matter. The rest of a walk can be divided among threads (`divided`).

mod divided;
mod exact;
mod range;

pub(crate) use divided::Rest;
pub use exact::{exact, exact_many};
pub(crate) use range::Path;
pub use range::{Walk, range};
