//! Checks all invariants of the index at a quiescent point, and lists its blocks.
//!
//! Invariants: a byte has at most one slot in a node; the prefix and branch of a node match the keys below;
//! slots are filled from the front; nothing is locked or frozen; no block is reached twice.

use std::collections::BTreeSet;

use pando_fabric::{Endpoint, GlobalAddr};

use crate::error::{Attempt, Result, Retry, SmartError};
use crate::layout::leaf::Rear;
use crate::layout::node::Node;
use crate::layout::slot::Slot;
use crate::tree::{Op, Smart};

/// Result of an audit.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    pub violations: Vec<String>,
    pub entries: u64,
    pub inner_nodes: u64,
    /// Bytes of the leaves; `node_bytes` is that of the inner nodes.
    pub leaf_bytes: u64,
    pub node_bytes: u64,
    /// Number of nodes on the longest path, including its leaf.
    pub height: u32,
    /// Dead or moved leaves that are still linked.
    pub leaves_gone: u64,
    /// All blocks of the index, with their sizes in bytes.
    pub blocks: Vec<(GlobalAddr, u64)>,
}

/// A slot to be visited.
struct Open {
    slot: Slot,
    path: Vec<u8>,
    level: u32,
    /// Whether it is an end slot, whose key must equal the path.
    is_end: bool,
}

impl Smart {
    /// Checks every block. Nothing may use the index meanwhile.
    ///
    /// # Errors
    /// Errors of the fabric; all violations are in the result.
    pub async fn audit<E: Endpoint>(&self, ep: &E) -> Result<Audit> {
        self.run(ep, "an audit", async |op| self.try_audit(op).await).await
    }

    /// Blocks that this compute server unlinked and that wait to be freed.
    pub fn limbo(&self) -> Vec<(GlobalAddr, u64)> {
        self.epochs.limbo()
    }

    async fn try_audit<E: Endpoint>(&self, op: &Op<'_, E>) -> Attempt<Audit> {
        let mut found = Audit { blocks: self.anchor.blocks().collect(), ..Audit::default() };
        let slot = self.root_place(op).await?.slot;
        let mut open = vec![Open { slot, path: Vec::new(), level: 1, is_end: false }];
        let mut reached = BTreeSet::new();
        while let Some(next) = open.pop() {
            if !next.slot.is_taken() {
                continue;
            }
            let addr = next.slot.addr();
            if !reached.insert(addr.raw()) {
                found.violations.push(format!("the block at {addr} is reached twice"));
                continue;
            }
            found.height = found.height.max(next.level);
            let seen = match next.slot.is_leaf() {
                true => self.audit_leaf(op, &next, &mut found, &mut open).await,
                false => self.audit_node(op, next, &mut found, &mut open).await,
            };
            match seen {
                Ok(()) => {}
                Err(Retry::Failed(error @ (SmartError::Corrupt { .. } | SmartError::TimedOut { .. }))) => {
                    found.violations.push(format!("the block at {addr}: {error}"));
                }
                Err(retry) => return Err(retry),
            }
        }
        Ok(found)
    }

    async fn audit_leaf<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        at: &Open,
        found: &mut Audit,
        open: &mut Vec<Open>,
    ) -> Attempt<()> {
        let (addr, size) = (at.slot.addr(), at.slot.leaf_size());
        found.blocks.push((addr, size.bytes()));
        found.leaf_bytes += size.bytes();
        let leaf = self.read_leaf(op, addr, size).await?;
        let mut key = Vec::new();
        leaf.append_key(&mut key);
        let mut complain = |what: &str| found.violations.push(format!("the leaf at {addr}: {what}"));
        let gone = match leaf.rear() {
            Rear::Free(_) if leaf.settled_version().is_none() => {
                complain("its value has another version than its lock");
                false
            }
            Rear::Free(_) => false,
            Rear::Locked(_) => {
                complain("its lock was left");
                false
            }
            Rear::Dead => true,
            Rear::Moved(to) => {
                let slot = to.with_byte(at.slot.byte());
                open.push(Open { slot, path: at.path.clone(), level: at.level, is_end: at.is_end });
                true
            }
        };
        if !gone && !(key.starts_with(&at.path) && (!at.is_end || key == at.path)) {
            complain("its key does not belong there");
        }
        found.entries += u64::from(!gone);
        found.leaves_gone += u64::from(gone);
        Ok(())
    }

    async fn audit_node<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        at: Open,
        found: &mut Audit,
        open: &mut Vec<Open>,
    ) -> Attempt<()> {
        let addr = at.slot.addr();
        let node = self.read_node(op, addr, at.slot.class()).await?;
        found.inner_nodes += 1;
        found.blocks.push((addr, node.header.block_bytes()));
        found.node_bytes += node.header.block_bytes();
        let header = node.header;
        if header.depth() > at.path.len() || header.branch() < at.path.len() {
            found
                .violations
                .push(format!("the node at {addr} does not look at the bytes that its way leads to"));
            return Ok(());
        }
        found
            .violations
            .extend(violations_in(&node).into_iter().map(|what| format!("the node at {addr}: {what}")));
        let mut path = at.path;
        path.extend((path.len()..header.branch()).map(|byte| node.prefix_byte(byte)));
        for (number, slot) in node.slots() {
            let mut path = path.clone();
            path.extend((number > 0).then_some(slot.byte()));
            open.push(Open { slot: slot.thawed(), path, level: at.level + 1, is_end: number == 0 });
        }
        Ok(())
    }
}

fn violations_in(node: &Node) -> Vec<&'static str> {
    let mut violations = Vec::new();
    let mut bytes = BTreeSet::new();
    let mut is_behind = false;
    for (number, slot) in node.slots() {
        if slot.is_frozen() {
            violations.push("a slot is frozen");
        }
        if number == 0 {
            if slot.is_taken() && !slot.is_leaf() {
                violations.push("its end slot leads to a node");
            }
        } else if slot.is_empty() {
            is_behind = true;
        } else {
            if is_behind {
                violations.push("a slot is taken behind an empty one");
            }
            if !bytes.insert(slot.byte()) {
                violations.push("a byte has two slots");
            }
        }
    }
    violations
}
