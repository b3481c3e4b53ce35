//! New entries (SMART §5): a leaf in an empty slot, or a new node where two keys part.
//!
//! Everything new is written before a slot leads to it, so an insert takes effect by one swap. An operation
//! that loses the swap examines the winner.
//!
//! A byte has at most one slot in a node: inserters try the empty slots from the front and check each one
//! they lose, so two inserts of the same byte meet at the same slot.

use pando_fabric::Endpoint;
use pando_fabric::defect::defect;

use crate::defect::Defect;
use crate::descend::Spot;
use crate::error::{Attempt, Result, Retry, SmartError};
use crate::layout::leaf;
use crate::layout::node::{
    CLASSES, LARGEST, NewNode, Node, PREFIX_MAX, bytes_of, class_holding, has_byte, slot_addr,
};
use crate::layout::slot::Slot;
use crate::leaves::{Place, Writer};
use crate::options::NodeRoom;
use crate::tree::{Block, Op, Smart};

/// Blocks made by an insert before anything leads to them.
struct Made {
    slot: Slot,
    blocks: Vec<Block>,
}

/// The existing target that a new key parts from: at byte `at` of the key it has `byte`, or ends.
struct Other {
    at: usize,
    byte: Option<u8>,
    slot: Slot,
}

/// ART's classes, for nodes that are changed under locks.
const ART_CLASSES: [u8; 4] = [0, 2, 4, LARGEST];

impl Smart {
    /// Stores an entry at the end of its key's path.
    pub(crate) async fn add<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        value: &[u8],
        spot: Spot,
    ) -> Attempt<()> {
        match spot {
            Spot::Vacant(place) => self.fill_vacant(op, key, value, place).await,
            Spot::Unplaced(node, above) => self.fill_free(op, key, value, node, above).await,
            Spot::Other(place, other) => {
                let parts = |at: &usize| key.get(*at).copied() != other.key_byte(*at);
                let Some(part) = (place.depth..=key.len()).find(parts) else {
                    let reason = "its key does not begin with the bytes that lead there";
                    return Err(SmartError::Corrupt { addr: other.addr, reason }.into());
                };
                let other = Other { at: part, byte: other.key_byte(part), slot: place.slot };
                self.part(op, key, value, place, other).await
            }
            Spot::Diverges(place, node, at) => {
                let byte = node.prefix_byte(at);
                // The old node keeps its prefix bytes, which the new node repeats: operations that still come
                // by the old slot need them.
                let other = Other { at, byte: Some(byte), slot: place.slot };
                self.part(op, key, value, place, other).await
            }
            Spot::Leaf(..) => Err(Retry::Restart),
        }
    }

    /// Writes a leaf for a slot of `byte`.
    pub(crate) async fn new_leaf<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        value: &[u8],
        byte: u8,
    ) -> Attempt<(Slot, Block)> {
        let size = leaf::size_for(key.len(), value.len()).expect("it was checked");
        let addr = self.allocate(op.ep, size.bytes()).await?;
        let page = op.ep.buffer(size.bytes() as usize);
        // A random version, unlike those of an earlier leaf at this address.
        leaf::fill(&page, addr, self.anchor.tag, key, value, op.ep.random() >> 16);
        let block = (addr, size.bytes());
        match op.ep.write(addr, page).await {
            Ok(page) => op.ep.recycle(page),
            Err(error) => {
                self.discard(op.ep, &[block]).await?;
                return Err(error.into());
            }
        }
        Ok((Slot::leaf(byte, size, addr), block))
    }

    /// Writes a node and adds it to `blocks`; returns a slot that leads to it.
    pub(crate) async fn new_node<E: Endpoint>(
        &self,
        ep: &E,
        node: &NewNode,
        byte: u8,
        blocks: &mut Vec<Block>,
    ) -> Result<Slot> {
        let room = self.room_for(node.slots.len());
        let bytes = bytes_of(room);
        let addr = self.allocate(ep, bytes as u64).await?;
        blocks.push((addr, bytes as u64));
        let page = ep.buffer(bytes);
        let header = node.fill(self.anchor.tag, room, &page);
        ep.recycle(ep.write(addr, page).await?);
        Ok(Slot::node(byte, header.class(), addr))
    }

    /// The class whose room a node with this many slots gets.
    pub(crate) fn room_for(&self, slots: usize) -> u8 {
        match (self.anchor.techniques.lock_free_nodes, self.anchor.node_room) {
            (false, _) => {
                let holding = class_holding(slots);
                ART_CLASSES.into_iter().find(|&class| class >= holding).unwrap_or(LARGEST)
            }
            (true, NodeRoom::Exact) => class_holding(slots),
            (true, NodeRoom::Full) => LARGEST,
        }
    }

    async fn fill_vacant<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        value: &[u8],
        place: Place,
    ) -> Attempt<()> {
        let (slot, block) = self.new_leaf(op, key, value, place.slot.byte()).await?;
        let linked = self.link(op, key, &place, Made { slot, blocks: vec![block] }).await;
        let is_dead_leaf = place.slot.is_leaf();
        linked.inspect_err(|retry| {
            if is_dead_leaf {
                self.doubt_leaf(retry, place.slot);
            }
        })?;
        if is_dead_leaf {
            self.retire_leaf(op, place.slot);
        }
        Ok(())
    }

    /// Makes a slot lead to the new blocks, or frees them.
    async fn link<E: Endpoint>(&self, op: &Op<'_, E>, key: &[u8], place: &Place, made: Made) -> Attempt<()> {
        let retry = match self.swap(op, key, place, made.slot, Writer::Exclusive).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(_)) => Retry::Restart,
            Err(retry) => retry,
        };
        Err(self.undo(op.ep, &made.blocks, retry).await)
    }

    /// Adds nodes where `key` and the existing target part.
    async fn part<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        value: &[u8],
        place: Place,
        other: Other,
    ) -> Attempt<()> {
        let (leaf, block) = self.new_leaf(op, key, value, 0).await?;
        let mut blocks = vec![block];
        match self.parting_nodes(op.ep, key, &place, other, leaf, &mut blocks).await {
            Ok(slot) => self.link(op, key, &place, Made { slot, blocks }).await,
            Err(error) => {
                self.discard(op.ep, &blocks).await?;
                Err(error.into())
            }
        }
    }

    /// Makes the nodes for the bytes that two keys have in common, from the last one up.
    async fn parting_nodes<E: Endpoint>(
        &self,
        ep: &E,
        key: &[u8],
        place: &Place,
        other: Other,
        leaf: Slot,
        blocks: &mut Vec<Block>,
    ) -> Result<Slot> {
        let mut last = NewNode { branch: other.at, prefix: Vec::new(), end: Slot::EMPTY, slots: Vec::new() };
        for (byte, slot) in [(other.byte, other.slot), (key.get(other.at).copied(), leaf)] {
            match byte {
                Some(byte) => last.slots.push(slot.with_byte(byte)),
                None => last.end = slot.with_byte(0),
            }
        }
        self.skipping_nodes(ep, key, place.depth, last, place.slot.byte(), blocks).await
    }

    /// Writes a node, and nodes above it for the bytes of `key` from `depth` on that it cannot skip itself;
    /// returns a slot of `byte` that leads to them.
    pub(crate) async fn skipping_nodes<E: Endpoint>(
        &self,
        ep: &E,
        key: &[u8],
        depth: usize,
        last: NewNode,
        byte: u8,
        blocks: &mut Vec<Block>,
    ) -> Result<Slot> {
        let mut node = last;
        loop {
            // Each node skips as many bytes as it can, and branches on one.
            let start = depth.max(node.branch.saturating_sub(PREFIX_MAX));
            node.prefix = key[start..node.branch].to_vec();
            if start == depth {
                return self.new_node(ep, &node, byte, blocks).await;
            }
            let below = self.new_node(ep, &node, key[start - 1], blocks).await?;
            node = NewNode { branch: start - 1, prefix: Vec::new(), end: Slot::EMPTY, slots: vec![below] };
        }
    }

    /// Stores a leaf in an empty slot of a node, or replaces the node if there is none.
    async fn fill_free<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        value: &[u8],
        node: Node,
        above: Option<Place>,
    ) -> Attempt<()> {
        let branch = node.header.branch();
        let byte = key[branch];
        let room = CLASSES[node.header.room() as usize];
        let takes = |slot: Slot| slot.is_empty() || defect(Defect::TombstoneForAnyByte) && !slot.is_taken();
        let free = (1..=node.capacity()).find(|&number| takes(node.slot(number)));
        let first = free.unwrap_or(node.capacity() + 1);
        if first > room {
            self.grow(op, key, node.addr, above).await?;
            return Err(Retry::Restart);
        }
        let (slot, block) = self.new_leaf(op, key, value, byte).await?;
        let mut place = Place {
            at: node.addr,
            slot: free.map_or(Slot::EMPTY, |number| node.slot(number).thawed()),
            depth: branch + 1,
            node: node.addr,
            branch,
            number: first,
            is_fresh: true,
            is_own: self.owns_prefix(&key[..branch]),
        };
        let retry = match self.try_free_slots(op, key, &node, &mut place, slot).await {
            Ok(true) if defect(Defect::UnnoticedGrowth) => return Ok(()),
            Ok(true) => {
                let published = self.publish_slot(op, &node, place.number, above).await;
                return published.map_err(Retry::undecided);
            }
            Ok(false) => Retry::Restart,
            Err(retry) => retry,
        };
        Err(self.undo(op.ep, &[block], retry).await)
    }

    /// Tries the slots from `place` on; `false` if the byte has one by now, or there is none left.
    async fn try_free_slots<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        node: &Node,
        place: &mut Place,
        slot: Slot,
    ) -> Attempt<bool> {
        for number in place.number..=CLASSES[node.header.room() as usize] {
            (place.number, place.at) = (number, slot_addr(node.addr, number));
            match self.swap(op, key, place, slot, Writer::Exclusive).await? {
                Ok(()) => return Ok(true),
                Err(found) if has_byte(found, slot.byte()) => {
                    // It may be invisible to others: it is behind the slots in use.
                    self.publish_slot(op, node, number, None).await?;
                    return Ok(false);
                }
                Err(found) if found.is_frozen() => return Ok(false),
                Err(_) => {}
            }
        }
        Ok(false)
    }

    /// Ensures that slot `number` counts as in use.
    async fn publish_slot<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        node: &Node,
        number: usize,
        above: Option<Place>,
    ) -> Attempt<()> {
        let class = class_holding(number);
        if class <= node.header.class() {
            return Ok(());
        }
        self.publish_class(op, node, class).await?;
        if let Some(above) = above
            && !above.is_own
            && above.slot.class() < class
        {
            // A hint for readers: they check the header too.
            let hint = above.slot.with_class(class).raw();
            let _ = op.ep.compare_swap(above.at, above.slot.raw(), hint).await;
        }
        Ok(())
    }
}
