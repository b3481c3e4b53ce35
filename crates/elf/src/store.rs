//! Where the words of an Elf are: in DRAM, on persistent memory, or in both (DAPD 2022 §4).
//!
//! Every kind is a [`Linear`] Elf over another [`Access`], so all of them run the same search
//! and give the same answers:
//!
//! - in DRAM (`Linear<Vec<u8>>`) or on persistent memory (`Linear<Mapped>`): bytes, read in place;
//! - hybrid ([`Linear::hybrid`]): a full copy in DRAM, which queries use, beside the persistent image;
//! - dual access ([`Linear::dual_access`]): lists from a full copy in DRAM, MonoLists from the image;
//! - cached ([`Linear::with_levels`], then [`Linear::with_cache`]): the lists of the top levels, lists that a policy
//!   chooses, or both from DRAM.
//!
//! A [`PersistentFile`] publishes images so that a crash leaves the old or the new one.

mod cached;
mod copies;
mod levels;
mod mapping;
mod medium;
mod meter;
mod publication;

pub use cached::{Cached, CachedPlace, CachedWords, ListCache, NoCache};
pub use copies::{DualAccess, Hybrid, Metered};
pub use levels::Levels;
pub use mapping::{Mapped, MappedFile};
pub use medium::Medium;
pub use meter::{Meter, NoMeter, Part, Space, Touch};
pub use publication::PersistentFile;

use crate::caching::{ListId, Weights};
use crate::error::{Error, Result};
use crate::layout::{Access, Linear};

impl<A: Access> Linear<A> {
    /// The rows below the lists of this Elf, for [`Lla`](crate::Lla): one pass over the whole image.
    pub fn weights(&self) -> Weights {
        let mut weights = Weights::new([]);
        self.array().rows_below(0, 0, |at, rows| weights.add(ListId(at as u64), rows));
        weights
    }
}

/// Makes room for `items` more in `copy`.
fn reserve<T>(copy: &mut Vec<T>, items: usize) -> Result<()> {
    let bytes = (copy.len() as u64).saturating_add(items as u64).saturating_mul(size_of::<T>() as u64);
    copy.try_reserve(items).map_err(|_| Error::NoMemoryForCopy { bytes })
}
