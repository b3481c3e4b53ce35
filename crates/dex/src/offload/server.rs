//! The memory server's half: descends in its own memory, and reads or changes a leaf there.
//!
//! It verifies every node before it uses it. So a call that is out of date changes nothing; the answer is
//! [`Answer::Elsewhere`], never an error.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_fabric::{FabricError, GlobalAddr, RequestHandler, Result, ServerMemory, Work};

use crate::change::{Blocked, apply, work_of};
use crate::layout::{AnyLayout, Layout, header};
use crate::node::{Node, NodeMut, Target};
use crate::offload::wire::{Action, Answer, Call, Found};

/// Executes operations that compute servers offload to a memory server (DEX §6), on every index of its pool.
/// It has no knowledge of them: a call describes the nodes.
#[derive(Debug)]
pub struct MemorySide {
    /// Latches of leaves, by a hash of their addresses.
    latches: Box<[Mutex<()>]>,
}

/// Number of latches for leaves, many more than there are cores.
const LATCHES: usize = 1024;

impl Default for MemorySide {
    fn default() -> Self {
        Self { latches: (0..LATCHES).map(|_| Mutex::new(())).collect() }
    }
}

impl MemorySide {
    /// Number of these calls, by which a fabric finds their handler.
    pub const OP: u16 = super::wire::OP;

    /// Takes exclusive access to the leaf among the cores of its server.
    fn latch(&self, leaf: &[AtomicU64]) -> MutexGuard<'_, ()> {
        let hash = header::addr(leaf).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        // A panic leaves no partial change, since a change is checked before it is made.
        self.latches[hash as usize % LATCHES].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestHandler for MemorySide {
    fn handle(&self, memory: &ServerMemory<'_>, op: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        let refused =
            |reason: &str| FabricError::Refused { server: memory.server(), op, reason: reason.to_owned() };
        let call = Call::decode(op, body).ok_or_else(|| refused("it knows no such request"))?;
        let answer = match AnyLayout::of(call.layout) {
            Some(AnyLayout::Fixed(layout)) => self.execute(memory, layout, &call),
            Some(AnyLayout::Slotted(layout)) => self.execute(memory, layout, &call),
            None => return Err(refused("there are no nodes like that")),
        };
        answer.encode(reply);
        Ok(())
    }
}

impl MemorySide {
    fn execute<L: Layout>(&self, memory: &ServerMemory<'_>, layout: L, call: &Call<'_>) -> Answer {
        let Ok(key) = layout.key(call.key) else { return Answer::Elsewhere };
        let Some((addr, leaf)) = go_down(memory, layout, call, key) else { return Answer::Elsewhere };
        let _latch = self.latch(leaf);
        let change = match call.action {
            Action::Get => return get(Node::new(&layout, leaf), key),
            Action::Change(change) => change,
        };
        let result = apply(NodeMut::new(&layout, leaf), key, &change);
        memory.charge(work_of(layout, &change, &result));
        match result {
            Ok(outcome) => Answer::Changed { leaf: addr, outcome },
            Err(Blocked::NoRoom) => Answer::NoRoom,
            Err(Blocked::Compare(value)) => Answer::Compare(value),
        }
    }
}

fn get<L: Layout>(leaf: Node<'_, L>, key: L::Key<'_>) -> Answer {
    let Ok(i) = leaf.find(key) else { return Answer::Got(None) };
    let mut value = Vec::new();
    Answer::Got(Some(match leaf.append_value(i, &mut value) {
        None => Found::Inline(value),
        Some(long) => Found::Long(long),
    }))
}

/// The leaf of `key` and its address, if every node on the path matches the call and lies on this memory
/// server.
fn go_down<'m, L: Layout>(
    memory: &ServerMemory<'m>,
    layout: L,
    call: &Call<'_>,
    key: L::Key<'_>,
) -> Option<(GlobalAddr, &'m [AtomicU64])> {
    let (mut addr, mut level) = (call.node, call.level);
    loop {
        let words = memory.words(addr, layout.node_size()).ok()?;
        memory.charge(Work::PageCheck);
        memory.charge(Work::NodeSearch);
        let node = Node::new(&layout, words);
        let is_meant = layout.verify(words).is_ok()
            && node.is_at(addr)
            && node.index_id() == call.index_id
            && node.is_meant(level)
            && node.covers(Target::of(key));
        // A compute server may have nodes below one that was shared that are ahead of memory.
        if !is_meant || node.was_shared() {
            return None;
        }
        level = match level.checked_sub(1) {
            Some(below) => below,
            None => return Some((addr, words)),
        };
        addr = node.child_addr(node.child_index(key))?;
    }
}
