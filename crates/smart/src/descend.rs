//! Descent of a key: from the deepest cached node, or the root slot, to the one slot that decides about it
//! (SMART §4.4, §5).
//!
//! *Reverse check.* A cached slot may be stale, which its child reveals without another round trip. A leaf
//! that no longer belongs to its key is dead or moved. A replaced node has frozen slots; a grown one has a
//! larger class. A node below a newer node still holds all bytes that keys skip on the path through the old
//! slot. SMART's children also point back to their slots. That is not needed here, since no block is reused
//! while anything leads to it (`epoch.rs`). The child cannot reveal that only other keys are below the slot;
//! a READ of the slot confirms that.

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, Work};

use crate::defect::Defect;
use crate::error::{Attempt, Retry, SmartError};
use crate::layout::leaf::{Leaf, Rear};
use crate::layout::node::{CLASSES, HEADER_AT, Header, Node, bytes_of, raw_header, slot_addr};
use crate::layout::slot::Slot;
use crate::leaves::{Place, Writer};
use crate::tree::{Op, Smart};

/// End of a key's path.
pub(crate) enum Spot {
    /// At its leaf.
    Leaf(Place, Leaf),
    /// At a slot for its leaf: empty, a tombstone, or with a dead leaf.
    Vacant(Place),
    /// At a node without a slot for its byte; with the place that led there, if known.
    Unplaced(Node, Option<Place>),
    /// At the leaf of another key.
    Other(Place, Leaf),
    /// At a node that skips other bytes, from this index on.
    Diverges(Place, Node, usize),
}

/// Requirements of an operation on its descent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// Absence must be confirmed. An insert finds it out anyway.
    pub confirms: bool,
    /// A slot that leads to a moved leaf is corrected first.
    pub mends: bool,
}

impl Goal {
    pub const GET: Self = Self { confirms: true, mends: false };
    pub const CHANGE: Self = Self { confirms: true, mends: true };
    pub const PUT: Self = Self { confirms: false, mends: true };
}

/// Effect of a leaf on the descent.
enum AtLeaf {
    Ends(Spot),
    GoesOn,
}

impl Smart {
    /// Follows the path of `key`.
    pub(crate) async fn find<E: Endpoint>(&self, op: &Op<'_, E>, key: &[u8], goal: Goal) -> Attempt<Spot> {
        let mut place = match self.begin(op, key).await? {
            Ok(place) => place,
            Err(spot) => return Ok(spot),
        };
        loop {
            if place.slot.is_frozen() {
                return Err(Retry::Restart);
            }
            if !place.slot.is_taken() {
                return Ok(Spot::Vacant(place));
            }
            if place.slot.is_leaf() {
                match self.at_leaf(op, key, &mut place, goal).await? {
                    AtLeaf::Ends(spot) => return Ok(spot),
                    AtLeaf::GoesOn => continue,
                }
            }
            let node = self.read_node(op, place.slot.addr(), place.slot.class()).await?;
            let header = node.header;
            if header.depth() > place.depth || header.branch() < place.depth {
                return Err(Self::no_node(node.addr).into());
            }
            let skipped =
                (place.depth..header.branch()).find(|&at| key.get(at) != Some(&node.prefix_byte(at)));
            if let Some(at) = skipped {
                let confirms = goal.confirms && !defect(Defect::UnconfirmedAbsence);
                if confirms && !place.is_fresh && !self.refresh(op, key, &mut place).await? {
                    continue;
                }
                return Ok(Spot::Diverges(place, node, at));
            }
            if place.is_fresh && place.slot.class() < header.class() {
                self.note_growth(op, &place, header.class()).await?;
            }
            match self.child(op, key, node, Some(place)).await? {
                Ok(child) => place = child,
                Err(spot) => return Ok(spot),
            }
        }
    }

    /// Start of the path.
    async fn begin<E: Endpoint>(&self, op: &Op<'_, E>, key: &[u8]) -> Attempt<Result<Place, Spot>> {
        let hit = if op.trusts_cache { self.cache.find(op.ep, key, op.epoch) } else { None };
        let Some(hit) = hit else { return Ok(Ok(self.root_place(op).await?)) };
        let Some((number, slot)) = hit.slot else {
            let node = self.read_node(op, hit.node, hit.class).await?;
            return self.child(op, key, node, None).await;
        };
        Ok(Ok(Place {
            at: slot_addr(hit.node, number),
            slot,
            depth: hit.branch + usize::from(number > 0),
            node: hit.node,
            branch: hit.branch,
            number,
            is_fresh: false,
            is_own: self.owns_prefix(&key[..hit.branch]),
        }))
    }

    /// The root slot.
    pub(crate) async fn root_place<E: Endpoint>(&self, op: &Op<'_, E>) -> Attempt<Place> {
        let at = self.anchor.root();
        Ok(Place {
            at,
            slot: Slot::from_raw(op.ep.read_word(at).await?),
            depth: 0,
            node: self.anchor.root_node(),
            branch: usize::MAX,
            number: 0,
            is_fresh: true,
            is_own: self.owns_prefix(&[]),
        })
    }

    /// The slot of `node` on the path of `key`, whose skipped bytes match.
    async fn child<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        node: Node,
        above: Option<Place>,
    ) -> Attempt<Result<Place, Spot>> {
        let branch = node.header.branch();
        let found = match key.get(branch) {
            None => Some((0, node.slot(0))),
            Some(&byte) => node.find(byte),
        };
        let is_frozen = match found {
            Some((_, slot)) => slot.is_frozen(),
            None => node.slots().any(|(_, slot)| slot.is_frozen()),
        };
        if is_frozen {
            self.cache.forget(key, node.addr, branch);
            if let Some(above) = above {
                self.replace(op, key, &above).await?;
            }
            return Err(Retry::Restart);
        }
        self.cache.admit(op.ep, &key[..branch], &node, op.epoch);
        let Some((number, slot)) = found else { return Ok(Err(Spot::Unplaced(node, above))) };
        let place = Place {
            at: slot_addr(node.addr, number),
            slot,
            depth: branch + usize::from(number > 0),
            node: node.addr,
            branch,
            number,
            is_fresh: true,
            is_own: self.owns_prefix(&key[..branch]),
        };
        op.ep.recycle(node.page);
        Ok(Ok(place))
    }

    /// READs the slot again; returns whether it is unchanged.
    async fn refresh<E: Endpoint>(&self, op: &Op<'_, E>, key: &[u8], place: &mut Place) -> Attempt<bool> {
        if place.is_fresh {
            // It was READ, but something has changed since.
            op.wait("a node to be changed").await?;
        }
        let slot = Slot::from_raw(op.ep.read_word(place.at).await?);
        let is_same = slot == place.slot;
        (place.slot, place.is_fresh) = (slot, true);
        if !is_same && !slot.is_frozen() {
            self.cache.note(key, place.node, place.branch, place.number, slot);
        }
        Ok(is_same)
    }

    async fn at_leaf<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        place: &mut Place,
        goal: Goal,
    ) -> Attempt<AtLeaf> {
        let leaf = self.read_leaf(op, place.slot.addr(), place.slot.leaf_size()).await?;
        let has_key = leaf.has_key(key);
        let is_gone = match leaf.rear() {
            Rear::Free(_) | Rear::Locked(_) if has_key => return Ok(AtLeaf::Ends(Spot::Leaf(*place, leaf))),
            Rear::Free(_) | Rear::Locked(_) => false,
            Rear::Dead => true,
            Rear::Moved(to) => {
                op.ep.recycle(leaf.into_page());
                op.check("a leaf that moves again and again")?;
                let to = to.with_byte(place.slot.byte());
                // The leaf may have moved many times since the slot was cached; the current slot leads to it
                // directly.
                if place.is_fresh || self.refresh(op, key, place).await? {
                    match goal.mends {
                        true => self.mend_moved(op, key, place, to).await?,
                        false => place.slot = to,
                    }
                }
                return Ok(AtLeaf::GoesOn);
            }
        };
        let trusts = !is_gone && !has_key && self.config.cached_absence_unsound;
        let confirms = goal.confirms && !trusts && !defect(Defect::UnconfirmedAbsence);
        if confirms && !place.is_fresh && !self.refresh(op, key, place).await? {
            op.ep.recycle(leaf.into_page());
            return Ok(AtLeaf::GoesOn);
        }
        Ok(AtLeaf::Ends(match is_gone {
            true => Spot::Vacant(*place),
            false => Spot::Other(*place, leaf),
        }))
    }

    /// Makes the slot of a moved leaf lead to the new leaf.
    async fn mend_moved<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        place: &mut Place,
        to: Slot,
    ) -> Attempt<()> {
        let before = place.slot;
        let swapped = self.swap(op, key, place, to, Writer::Shared).await;
        match swapped.inspect_err(|retry| self.doubt_leaf(retry, before))? {
            Ok(()) => {
                self.retire_leaf(op, before);
                place.slot = to;
            }
            Err(found) => place.slot = found,
        }
        Ok(())
    }

    /// READs a node with the slots of `class`, and the remaining ones if it has more.
    pub(crate) async fn read_node<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        addr: GlobalAddr,
        class: u8,
    ) -> Attempt<Node> {
        if usize::from(class) >= CLASSES.len() {
            return Err(Self::no_node(addr).into());
        }
        let page = op.ep.read(addr, op.ep.buffer(bytes_of(class))).await?;
        op.ep.charge(Work::NodeSearch);
        let header = Header::from_raw(raw_header(&page), self.anchor.tag).ok_or(Self::no_node(addr))?;
        if header.class() <= class {
            return Ok(Node { addr, header, page });
        }
        let (len, all) = (page.len(), op.ep.buffer(bytes_of(header.class())));
        (0..len / 8).for_each(|word| all.set(word, page.get(word)));
        op.ep.recycle(page);
        let mut page =
            op.ep.read(addr.add(len as u64), all.with_window(len..bytes_of(header.class()))).await?;
        page.set_window(0..page.len());
        Ok(Node { addr, header, page })
    }

    /// Stores the size of a node in the slot that leads to it. Only a hint: readers check the node too.
    async fn note_growth<E: Endpoint>(&self, op: &Op<'_, E>, place: &Place, class: u8) -> Attempt<()> {
        if !place.is_own {
            op.ep.compare_swap(place.at, place.slot.raw(), place.slot.with_class(class).raw()).await?;
        }
        Ok(())
    }

    /// Raises the class of a node to at least `class`; other operations see its further slots only then.
    pub(crate) async fn publish_class<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        node: &Node,
        class: u8,
    ) -> Attempt<()> {
        let at = node.addr.add(HEADER_AT);
        let mut header = node.header;
        while header.class() < class {
            let before = op.ep.compare_swap(at, header.raw(), header.with_class(class).raw()).await?;
            if before == header.raw() {
                return Ok(());
            }
            header = Header::from_raw(before, self.anchor.tag).ok_or(Self::no_node(node.addr))?;
        }
        Ok(())
    }

    /// The error for an address without a node.
    pub(crate) fn no_node(addr: GlobalAddr) -> SmartError {
        SmartError::Corrupt { addr, reason: "there is no node of this index" }
    }
}
