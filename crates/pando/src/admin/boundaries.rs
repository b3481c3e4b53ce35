//! Boundaries that other processes are asked to move (`index/follow.rs`).
//!
//! This process only says what it wishes, and watches the catalog until that has happened. It owns nothing of the
//! index.

use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::index::place_of;
use crate::shared::{PartitionOwner, Wish};

/// Pause between two looks at the catalog of a process that has a wish.
const PAUSE: Duration = Duration::from_millis(20);

impl Cluster {
    /// Moves the boundary between partitions `boundary` and `boundary + 1` of an index to another key, where other processes own
    /// these partitions. They do it at their next look ([`Index::follow`](crate::Index::follow)), during operations. Waits until the new boundary is in the
    /// catalog, up to the deadline.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a boundary that does not exist, or a key that is not between the adjacent
    /// boundaries; [`Error::NotMoved`] if one of the partitions has no owner that lives, or nothing happened until the deadline. In
    /// the last case it may still move a little later.
    pub fn ask_to_move_boundary(&self, index: &str, boundary: usize, to: &[u8]) -> Result<()> {
        let shared = &self.shared;
        shared.writable()?;
        let record = || shared.with_endpoint(|ep| shared.record(ep, index));
        let old = record()?.boundaries;
        let from = place_of(&old, boundary, to)?;
        if from == to {
            return Ok(());
        }
        let partitions = self.partitions(index)?;
        let not_moved =
            |reason: String| Error::NotMoved { index: index.to_owned(), boundary, reason: reason.into() };
        for partition in [boundary, boundary + 1] {
            match partitions.get(partition).map(|found| &found.owner) {
                Some(PartitionOwner::Nobody) => {
                    return Err(not_moved(format!("nobody owns partition {partition}")));
                }
                Some(PartitionOwner::Lost(_)) => {
                    return Err(not_moved(format!("the process that owned partition {partition} died")));
                }
                _ => {}
            }
        }
        let wish = Wish { index: index.to_owned(), from: from.to_vec(), to: to.to_vec() };
        shared.set_wish(Some(&wish))?;
        let until = Instant::now() + shared.config.patience();
        let moved = loop {
            let now = record();
            if !matches!(&now, Ok(now) if now.boundaries.contains(&wish.from)) {
                break now.map(|now| now.boundaries.iter().any(|boundary| boundary == to));
            }
            if Instant::now() >= until {
                break Ok(false);
            }
            thread::sleep(PAUSE);
        };
        shared.set_wish(None)?;
        match moved? {
            true => Ok(()),
            false => Err(not_moved("its compute servers have not done it within the deadline".to_owned())),
        }
    }
}
