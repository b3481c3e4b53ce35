//! Records of changes of shared nodes (`docs/durability.md`).
//!
//! Owned and shared nodes of one change are in one record. The shared ones are written and unlocked only when the log
//! has it, by the operation or by those who give left locks back.

use std::sync::Arc;

use pando_cache::{FrameRef, Mark};
use pando_fabric::GlobalAddr;
use pando_fabric::defect::defect;
use pando_log::defect::OfMoves;
use pando_log::{Image, Log, Record};
use pando_pool::Awaited;

use crate::layout::Layout;
use crate::shared::locked::LockedNode;
use crate::tree::Tree;
use crate::tree::journal::{self, Room};

/// A record about pages that are still to be written. It stays in the log until they are.
pub(crate) struct Promised {
    log: Arc<Log>,
    pub gsn: u64,
    hold: u64,
}

impl Awaited for Promised {
    fn has_happened(&self) -> bool {
        self.log.is_settled(self.gsn)
    }

    fn persists(&self) -> bool {
        self.log.persists() && !defect(OfMoves::UnlockedBeforePersist)
    }
}

impl Drop for Promised {
    fn drop(&mut self) {
        self.log.release(self.hold);
    }
}

/// [`journal::note_nodes`] with shared nodes, which the caller has locked and writes through once the log has the record. Their
/// images begin with the word of the lock: they are redone if they are still locked like this, and unlocked by that.
/// From here on the shared nodes must be written in any case.
pub(crate) fn note_shared<L: Layout, const N: usize>(
    tree: &Tree<L>,
    room: Room<'_>,
    nodes: &[FrameRef<'_>],
    shared: [&LockedNode<'_>; N],
    freed: &[GlobalAddr],
) -> u64 {
    let (Some(room), Some(log)) = (room, &tree.config.log) else { return 0 };
    // Before the record gets its number.
    let hold = log.hold().keep();
    let images = nodes.iter().map(|node| (journal::own_addr(*node), journal::image_of(tree, *node)));
    let images: Vec<_> = images.chain(shared.iter().map(|node| (node.addr(), node.image()))).collect();
    let images = images.iter().map(|(page, bytes)| Image { page: *page, bytes }).collect();
    let gsn = log.append(room, &Record::Pages { images, freed: freed.to_vec() });
    nodes.iter().for_each(|node| node.set_mark(Mark { gsn, has_moved: false }));
    let promised = Arc::new(Promised { log: Arc::clone(log), gsn, hold });
    shared.iter().for_each(|node| node.owe_after(Arc::clone(&promised)));
    gsn
}
