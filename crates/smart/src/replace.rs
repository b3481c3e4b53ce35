//! Replacement of nodes: by a larger one if full, or by its remaining leaf after removals.
//!
//! First all slots of the node are frozen, one by one, so that its contents no longer change. Then the
//! contents are copied, and the slot above is swapped. Any operation that meets a frozen slot completes the
//! replacement, so none waits for the one that began it, which may be dead. A node with room for all slots is
//! replaced only when it has at most one leaf left.

use pando_fabric::defect::defect;
use pando_fabric::{Chain, Endpoint, GlobalAddr, VerbResult};

use crate::defect::Defect;
use crate::error::{Attempt, Result, Retry};
use crate::layout::node::{CLASSES, Header, LOCK_AT, NewNode, Node, bytes_of, raw_header, slot_addr};
use crate::layout::slot::Slot;
use crate::leaves::{Place, Writer};
use crate::tree::{Op, Smart};

/// Maximum number of swaps in one chain.
const CHAIN_MAX: usize = 64;

impl Smart {
    /// Replaces a node without empty slots.
    pub(crate) async fn grow<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        node: GlobalAddr,
        above: Option<Place>,
    ) -> Attempt<()> {
        let above = match above {
            Some(above) => Some(above),
            None => self.place_of(op, key, node).await?,
        };
        match above {
            Some(above) => self.replace(op, key, &above).await,
            None => Ok(()),
        }
    }

    /// Replaces the node of `place` if it has at most one leaf, and then likewise the nodes above.
    pub(crate) async fn shrink<E: Endpoint>(&self, op: &Op<'_, E>, key: &[u8], place: &Place) -> Attempt<()> {
        let mut place = *place;
        while place.node != self.anchor.root_node() {
            let cached = self.cache.slots_of(key, place.node, place.branch);
            if cached.is_some_and(|slots| is_needed(slots.into_iter())) {
                break;
            }
            let node = self.read_node(op, place.node, 0).await?;
            if is_needed(node.slots().map(|(_, slot)| slot)) {
                break;
            }
            op.ep.recycle(node.page);
            let Some(above) = self.place_of(op, key, place.node).await? else { break };
            self.replace(op, key, &above).await?;
            place = above;
        }
        Ok(())
    }

    /// The place that leads to `node` on the path of `key`, from the root.
    async fn place_of<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        node: GlobalAddr,
    ) -> Attempt<Option<Place>> {
        let mut place = self.root_place(op).await?;
        while place.slot.is_taken() && !place.slot.is_leaf() && !place.slot.is_frozen() {
            if place.slot.addr() == node {
                return Ok(Some(place));
            }
            let above = self.read_node(op, place.slot.addr(), place.slot.class()).await?;
            let branch = above.header.branch();
            let Some((number, slot)) = key.get(branch).and_then(|&byte| above.find(byte)) else { break };
            place = Place {
                at: slot_addr(above.addr, number),
                slot,
                depth: branch + 1,
                node: above.addr,
                branch,
                number,
                is_fresh: true,
                is_own: self.owns_prefix(&key[..branch]),
            };
            op.ep.recycle(above.page);
        }
        Ok(None)
    }

    /// Freezes the node to which `place` leads, and makes the place lead to its replacement.
    pub(crate) async fn replace<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        place: &Place,
    ) -> Attempt<()> {
        let addr = place.slot.addr();
        let frozen = self.freeze(op, key, addr).await?;
        let header = frozen.header;
        let taken: Vec<_> = frozen.slots().filter(|(_, slot)| slot.is_taken()).collect();
        let (mut blocks, byte) = (Vec::new(), place.slot.byte());
        let new = match taken[..] {
            [] => place.vacated(),
            [(_, leaf)] if leaf.is_leaf() => leaf.thawed().with_byte(byte),
            _ => {
                let mut node = NewNode {
                    branch: header.branch(),
                    prefix: (header.depth()..header.branch()).map(|at| frozen.prefix_byte(at)).collect(),
                    end: Slot::EMPTY,
                    slots: Vec::new(),
                };
                for (number, slot) in taken {
                    match number {
                        0 => node.end = slot.thawed(),
                        _ => node.slots.push(slot.thawed()),
                    }
                }
                self.new_grown_node(op.ep, &node, byte, &mut blocks).await?
            }
        };
        op.ep.recycle(frozen.page);
        // If no block was made, other operations that replace the node would write the same word.
        let writer = if blocks.is_empty() { Writer::Shared } else { Writer::Exclusive };
        let retry = match self.swap(op, key, place, new, writer).await {
            Ok(Ok(())) => {
                self.epochs.retire(addr, header.block_bytes(), op.epoch);
                self.cache.forget(key, addr, header.branch());
                return Ok(());
            }
            Ok(Err(_)) => Retry::Restart,
            Err(retry) => {
                if retry.may_have_taken_effect() {
                    self.doubt(&[(addr, header.block_bytes())]);
                }
                retry
            }
        };
        Err(self.undo(op.ep, &blocks, retry).await)
    }

    /// Writes a node with room for one more slot than it has.
    async fn new_grown_node<E: Endpoint>(
        &self,
        ep: &E,
        node: &NewNode,
        byte: u8,
        blocks: &mut Vec<(GlobalAddr, u64)>,
    ) -> Result<Slot> {
        let room = self.room_for((node.slots.len() + 1).min(256));
        let bytes = bytes_of(room);
        let addr = self.allocate(ep, bytes as u64).await?;
        let page = ep.buffer(bytes);
        let header = node.fill(self.anchor.tag, room, &page);
        match ep.write(addr, page).await {
            Ok(page) => ep.recycle(page),
            Err(error) => {
                self.discard(ep, &[(addr, bytes as u64)]).await?;
                return Err(error.into());
            }
        }
        blocks.push((addr, bytes as u64));
        Ok(Slot::node(byte, header.class(), addr))
    }

    /// Freezes all slots within the room of a node; returns the node.
    async fn freeze<E: Endpoint>(&self, op: &Op<'_, E>, key: &[u8], addr: GlobalAddr) -> Attempt<Node> {
        let page = op.ep.read(addr, op.ep.buffer(bytes_of(0))).await?;
        let header = Header::from_raw(raw_header(&page), self.anchor.tag).ok_or(Self::no_node(addr))?;
        op.ep.recycle(page);
        let is_own = key.get(..header.branch()).is_some_and(|path| self.owns_prefix(path));
        loop {
            let page = op.ep.read(addr, op.ep.buffer(bytes_of(header.room()))).await?;
            let header = Header::from_raw(raw_header(&page), self.anchor.tag).ok_or(Self::no_node(addr))?;
            let node = Node { addr, header, page };
            let open: Vec<_> = node.slots().filter(|(_, slot)| !slot.is_frozen()).collect();
            if open.is_empty() || defect(Defect::SkipFreeze) {
                return Ok(node);
            }
            op.ep.recycle(node.page);
            if is_own || !self.anchor.techniques.lock_free_nodes {
                self.freeze_locked(op, addr, header, is_own).await?;
                continue;
            }
            for open in open.chunks(CHAIN_MAX) {
                let chain = open.iter().fold(Chain::new(), |chain, &(number, slot)| {
                    chain.compare_swap(slot_addr(addr, number), slot.raw(), slot.frozen().raw())
                });
                for result in op.ep.submit(chain).await? {
                    debug_assert!(matches!(result, VerbResult::Word(_)));
                }
            }
        }
    }

    /// Freezes all slots by one WRITE, under the lock of the node.
    async fn freeze_locked<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        addr: GlobalAddr,
        header: Header,
        is_own: bool,
    ) -> Attempt<()> {
        let slots = CLASSES[header.room() as usize] + 1;
        let read = async || {
            let page = op.ep.read(slot_addr(addr, 0), op.ep.buffer(slots * 8)).await?;
            let words = (0..slots).map(|number| Slot::from_raw(page.get(number)).frozen().raw());
            let words: Vec<u64> = words.collect();
            op.ep.recycle(page);
            Ok::<_, pando_fabric::FabricError>(words)
        };
        if is_own {
            let _lock = self.lock_own(op, addr).await?;
            let words = read().await?;
            return Ok(self.write_own(op, addr, slot_addr(addr, 0), &words).await?);
        }
        let lock = self.lock_word(op, addr.add(LOCK_AT)).await?;
        match read().await {
            Ok(words) => Ok(self.write_unlock(op, lock, slot_addr(addr, 0), &words).await?),
            Err(error) => {
                lock.unlock(op.ep, op.deadline()).await?;
                Err(error.into())
            }
        }
    }
}

/// Whether a node with these slots leads to more than one leaf.
fn is_needed(slots: impl Iterator<Item = Slot>) -> bool {
    let mut taken = slots.filter(|slot| slot.is_taken());
    let first = taken.next();
    taken.next().is_some() || first.is_some_and(|slot| !slot.is_leaf())
}
