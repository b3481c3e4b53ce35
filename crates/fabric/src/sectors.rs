//! A model of what a loss of power leaves of memory in a file, for tests.
//!
//! The kernel writes changed pages to the disk at any time and in any order, and a disk writes sectors of 512
//! bytes as a whole. So after a loss of power each sector has its current bytes or those that it had at any
//! time since it was last persisted. [`Sectors`] keeps these, and chooses among them at random.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::{Endpoint, GlobalAddr, Result};

/// Bytes that a disk writes as a whole.
pub const SECTOR: u64 = 512;

/// Earlier contents of the sectors that changed since they were last persisted.
#[derive(Default)]
pub struct Sectors(RefCell<BTreeMap<GlobalAddr, Versions>>);

/// What a sector held before each store since it was last persisted.
#[derive(Default)]
struct Versions {
    /// Number of the first.
    first: usize,
    bytes: Vec<Vec<u8>>,
}

impl Versions {
    fn next(&self) -> usize {
        self.first + self.bytes.len()
    }
}

fn sectors(at: GlobalAddr, len: u64) -> impl Iterator<Item = GlobalAddr> {
    let first = at.offset() / SECTOR;
    let end = (at.offset() + len).div_ceil(SECTOR);
    (first..end).map(move |sector| GlobalAddr::new(at.server(), sector * SECTOR))
}

impl Sectors {
    /// Call it before a WRITE or an atomic of `len` bytes at `at`.
    ///
    /// # Errors
    /// Errors of a READ.
    pub async fn before_write<E: Endpoint>(&self, ep: &E, at: GlobalAddr, len: u64) -> Result<()> {
        for sector in sectors(at, len) {
            let mut bytes = Vec::new();
            let buf = ep.read(sector, ep.buffer(SECTOR as usize).with_window(0..SECTOR as usize)).await?;
            buf.append_bytes_to(SECTOR as usize, &mut bytes);
            ep.recycle(buf);
            self.0.borrow_mut().entry(sector).or_default().bytes.push(bytes);
        }
        Ok(())
    }

    /// Begins to persist a range. What is stored there before [`Persisting::end`] may be lost.
    pub fn persist(&self, at: GlobalAddr, len: u64) -> Persisting<'_> {
        let old = self.0.borrow();
        let range = at..at.add(len);
        let touched = old.range(sectors(at, len).next().unwrap_or(at)..range.end);
        Persisting {
            sectors: self,
            old: touched.map(|(&sector, versions)| (sector, versions.next())).collect(),
        }
    }

    /// Power is lost: each sector gets one of the contents that it may have on the disk.
    ///
    /// # Errors
    /// Errors of WRITEs.
    pub async fn lose_power<E: Endpoint>(&self, ep: &E) -> Result<()> {
        let all = std::mem::take(&mut *self.0.borrow_mut());
        for (sector, Versions { bytes: mut versions, .. }) in all {
            let random = ep.random() as usize;
            // Often the oldest or the current content: a disk seldom writes between two stores.
            let chosen = match random % 4 {
                0 => 0,
                1 | 2 => versions.len(),
                _ => (random >> 8) % (versions.len() + 1),
            };
            if chosen == versions.len() {
                continue;
            }
            let mut buf = ep.buffer(SECTOR as usize);
            buf.copy_from_bytes(&versions.swap_remove(chosen));
            buf.set_window(0..SECTOR as usize);
            ep.recycle(ep.write(sector, buf).await?);
        }
        Ok(())
    }
}

/// A range that is being persisted.
#[must_use]
pub struct Persisting<'s> {
    sectors: &'s Sectors,
    /// Sectors with the number of the first version that it leaves.
    old: Vec<(GlobalAddr, usize)>,
}

impl Persisting<'_> {
    /// What was stored before it began is on the disk.
    pub fn end(self) {
        let mut sectors = self.sectors.0.borrow_mut();
        for (sector, old) in self.old {
            let Some(versions) = sectors.get_mut(&sector) else { continue };
            // Another call may have ended meanwhile.
            let persisted = old.saturating_sub(versions.first);
            versions.bytes.drain(..persisted);
            versions.first += persisted;
        }
    }
}
