//! What a caller chooses: the location and resources of a cluster, access to servers, the form of an index.
//!
//! Every option has a default and bounds. The bounds are checked when the options are used; an error says in
//! one sentence which one is violated.

mod access;
mod config;
mod index;

use crate::error::{Error, Result};
pub use access::Access;
pub(crate) use config::Place;
pub use config::{
    CacheOptions, Config, Create, Durability, MAX_COMPUTE_SERVERS, READ_AHEAD, RecoveryProgress,
};
pub(crate) use index::Descriptor;
pub use index::{IndexOptions, OpenOptions, Ownership};

/// Checks that there are 1 to `max` of `what`.
pub(crate) fn check_count(count: usize, what: &str, max: usize) -> Result<()> {
    match (1..=max).contains(&count) {
        true => Ok(()),
        false => Err(Error::InvalidOption(format!("{count} {what} are not between 1 and {max}"))),
    }
}
