//! Lock words.
//!
//! ```text
//! locked    [1][owner's attach slot:15][node:32][nonce:16]
//! free      0, or [0][any:15][version:48] where readers use the word to detect writes
//! ```
//! A locked word names the node for which it is locked, since one word of a table serves many nodes: a
//! process that takes over the lock of a dead one can then repair the node. The node is given by its position
//! in the region, modulo 2^32. A process never has two equal lock words, so after a lost answer to a lock or
//! an unlock the word tells whether the lock is the operation's own, and not that of another thread of its
//! process ([`Nonces`]).

use std::sync::Arc;

use pando_fabric::{GlobalAddr, MemoryServerId};
use pando_pool::AttachSlot;
use pando_pool::lock::{unlock_word, unlocked_version};

use super::nonces::Nonce;

const LOCKED: u64 = 1 << 63;
const OWNER_SHIFT: u32 = 48;
const NODE_SHIFT: u32 = 16;
/// Number of positions that lock words distinguish.
const NODES: u64 = 1 << 32;

/// A lock word that was changed, or may have been.
#[derive(Clone, Debug)]
pub(crate) struct LockWord {
    pub at: GlobalAddr,
    /// The word before.
    pub found: u64,
    /// The word while it is locked.
    pub locked: u64,
    /// The word that releases the lock.
    pub unlocked: u64,
    /// Distinguishes the word from all others of this process.
    pub _nonce: Arc<Nonce>,
}

impl LockWord {
    /// Draws the words to lock a word `found` for the node with number `node`.
    pub fn new(
        nonce: Nonce,
        random: u64,
        at: GlobalAddr,
        found: u64,
        owner: AttachSlot,
        node: u32,
        is_versioned: bool,
    ) -> Self {
        let number = u64::from(nonce.number());
        let locked = LOCKED | u64::from(owner.0) << OWNER_SHIFT | u64::from(node) << NODE_SHIFT | number;
        let unlocked = match unlocked_version(found) {
            _ if !is_versioned => 0,
            Some(version) => unlock_word(version + 1 + random % (1 << 16)),
            // The version found by the previous holder is not known; any other will do.
            None => unlock_word(random),
        };
        Self { at, found, locked, unlocked, _nonce: Arc::new(nonce) }
    }

    /// Value to add in order to release the lock.
    pub fn release_add(&self) -> u64 {
        self.unlocked.wrapping_sub(self.locked)
    }
}

/// Number of the node at `addr`.
pub(crate) fn node_number(addr: GlobalAddr, node_size: usize) -> u32 {
    (addr.offset() / node_size as u64 % NODES) as u32
}

/// Whether a locked word may be locked for the node at `addr`.
pub(crate) fn is_for(word: u64, addr: GlobalAddr, node_size: usize) -> bool {
    (word >> NODE_SHIFT) as u32 == node_number(addr, node_size)
}

/// Nodes for which a locked word on `server` may be locked: one, unless the region has more than 2^32
/// positions.
pub(crate) fn nodes_of(
    word: u64,
    server: MemoryServerId,
    node_size: usize,
    region_len: u64,
) -> impl Iterator<Item = GlobalAddr> {
    let first = u64::from((word >> NODE_SHIFT) as u32);
    let places = region_len / node_size as u64;
    (first..places).step_by(NODES as usize).map(move |n| GlobalAddr::new(server, n * node_size as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Nonces;
    use pando_pool::lock::lock_owner;

    #[test]
    fn a_word_says_who_has_locked_what() {
        let nonces = Nonces::new();
        let server = MemoryServerId(3);
        let node = GlobalAddr::new(server, 77 * 1024);
        let number = node_number(node, 1024);
        for (found, is_versioned) in [(0, false), (unlock_word(u64::MAX), true), (LOCKED | 5, true)] {
            let nonce = nonces.take(u64::MAX).expect("few are taken");
            let word = LockWord::new(nonce, u64::MAX, node, found, AttachSlot(0x7fff), number, is_versioned);
            assert_eq!(lock_owner(word.locked), Some(AttachSlot(0x7fff)));
            assert_eq!(word.locked.wrapping_add(word.release_add()), word.unlocked);
            assert!(lock_owner(word.unlocked).is_none() && (word.unlocked != found || !is_versioned));
            let nodes: Vec<_> = nodes_of(word.locked, server, 1024, 1 << 20).collect();
            assert_eq!(nodes, [node]);
            assert!(is_for(word.locked, node, 1024) && !is_for(word.locked, node.add(1024), 1024));
            assert_eq!(nodes_of(word.locked, server, 1024, 1 << 43).count(), 2);
        }
    }
}
