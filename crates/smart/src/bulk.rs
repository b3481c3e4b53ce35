//! Bulk load of an empty index with sorted entries.
//!
//! Only the nodes on the path of the last key are in local memory: a node is written, with exactly its slots,
//! once a key does not belong to it. One swap of the root slot makes everything visible.

use pando_fabric::Endpoint;

use crate::error::{Result, SmartError};
use crate::layout::leaf;
use crate::layout::node::NewNode;
use crate::layout::slot::Slot;
use crate::tree::{Block, Smart};

/// Nodes on the path of the last key, and the written blocks.
struct Load {
    open: Vec<NewNode>,
    /// The last key and its leaf.
    last: Option<(Vec<u8>, Slot)>,
    blocks: Vec<Block>,
}

impl Smart {
    /// Loads entries, in ascending key order, into an empty index; returns their number. There must be no
    /// other changes meanwhile. An error leaves nothing behind.
    ///
    /// # Errors
    /// [`SmartError::NotEmpty`], [`SmartError::NotSorted`], entries too long for a block, a full pool, errors
    /// of the fabric.
    pub async fn bulk_load<E: Endpoint>(
        &self,
        ep: &E,
        entries: impl IntoIterator<Item = (impl AsRef<[u8]>, impl AsRef<[u8]>)>,
    ) -> Result<u64> {
        let mut load = Load { open: Vec::new(), last: None, blocks: Vec::new() };
        let loaded = self.load_all(ep, entries, &mut load).await;
        match &loaded {
            Ok(_) => {}
            Err(error) if error.may_have_taken_effect() => self.doubt(&load.blocks),
            Err(_) => self.discard(ep, &load.blocks).await?,
        }
        loaded
    }

    async fn load_all<E: Endpoint>(
        &self,
        ep: &E,
        entries: impl IntoIterator<Item = (impl AsRef<[u8]>, impl AsRef<[u8]>)>,
        load: &mut Load,
    ) -> Result<u64> {
        let root = self.anchor.root();
        if ep.read_word(root).await? != Slot::EMPTY.raw() {
            return Err(SmartError::NotEmpty);
        }
        let mut position = 0;
        for (key, value) in entries {
            let (key, value) = (key.as_ref(), value.as_ref());
            self.check_entry(key, value)?;
            if let Some((last, _)) = &load.last {
                if last.as_slice() >= key {
                    return Err(SmartError::NotSorted { position });
                }
                let part = last.iter().zip(key).take_while(|(a, b)| a == b).count();
                self.close_nodes(ep, load, Some(part)).await?;
            }
            let slot = self.load_leaf(ep, key, value, load).await?;
            load.last = Some((key.to_vec(), slot));
            position += 1;
        }
        if load.last.is_none() {
            return Ok(0);
        }
        let slot = self.close_nodes(ep, load, None).await?;
        match ep.compare_swap(root, Slot::EMPTY.raw(), slot.raw()).await? {
            0 => Ok(position),
            _ => Err(SmartError::NotEmpty),
        }
    }

    async fn load_leaf<E: Endpoint>(
        &self,
        ep: &E,
        key: &[u8],
        value: &[u8],
        load: &mut Load,
    ) -> Result<Slot> {
        let size = leaf::size_for(key.len(), value.len()).expect("it was checked");
        let addr = self.allocate(ep, size.bytes()).await?;
        load.blocks.push((addr, size.bytes()));
        let page = ep.buffer(size.bytes() as usize);
        leaf::fill(&page, addr, self.anchor.tag, key, value, ep.random() >> 16);
        ep.recycle(ep.write(addr, page).await?);
        Ok(Slot::leaf(0, size, addr))
    }

    /// Links the last leaf, from which the next key parts at byte `part`, and writes all nodes to which no
    /// further key belongs. Without a next key these are all open nodes; then returns the slot that leads to
    /// the uppermost.
    async fn close_nodes<E: Endpoint>(&self, ep: &E, load: &mut Load, part: Option<usize>) -> Result<Slot> {
        let (key, mut slot) = load.last.take().expect("a key came before");
        while let Some(mut node) = load.open.pop() {
            if part.is_some_and(|part| node.branch <= part) {
                load.open.push(node);
                break;
            }
            node.put(&key, slot);
            let above = load.open.last().map(|above| above.branch).max(part);
            let depth = above.map_or(0, |branch| branch + 1);
            slot = self.skipping_nodes(ep, &key, depth, node, 0, &mut load.blocks).await?;
        }
        let Some(part) = part else { return Ok(slot) };
        if load.open.last().is_none_or(|node| node.branch < part) {
            load.open.push(NewNode { branch: part, prefix: Vec::new(), end: Slot::EMPTY, slots: Vec::new() });
        }
        load.open.last_mut().expect("there is one for this byte").put(&key, slot);
        Ok(slot)
    }
}

impl NewNode {
    /// Stores a slot on the path of `key`.
    fn put(&mut self, key: &[u8], slot: Slot) {
        match key.get(self.branch) {
            Some(&byte) => self.slots.push(slot.with_byte(byte)),
            None => self.end = slot.with_byte(0),
        }
    }
}
