//! A toy tree of three levels over a toy remote memory, small enough for model checkers.
//!
//! The root has three inner children, each with three leaves. Every node carries a counter twice, so that a
//! torn copy shows. A node can move to another address, which stands for a merge followed by a split. The
//! descent is that of DEX (Algorithm 1): optimistic coupling, then the mapping table, then a ticket and a
//! READ.
pub mod remote;
mod tree;

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use pando_cache::NodeShape;
use pando_cache::sync::{Ordering, Word};
pub use remote::{Remote, ToyEndpoint};
pub use tree::Toy;

#[cfg(loom)]
pub use loom::thread;
#[cfg(shuttle)]
pub use shuttle::thread;
#[cfg(not(any(loom, shuttle)))]
pub use std::thread;

/// Bytes of a node.
pub const NODE: usize = 64;
/// Index of the word that identifies a node: [`kind`].
pub const KIND: usize = 2;
const FIRST_CHILD: usize = 3;
pub const FANOUT: usize = 3;
/// The counter and its copy.
pub const COUNTER: [usize; 2] = [6, 7];
pub const LEAVES: usize = FANOUT * FANOUT;
/// Root, inner nodes, leaves.
pub const NODES: usize = 1 + FANOUT + LEAVES;

const TAG: u64 = 0xa5 << 32;

/// Level and index of a node: never 0, and unlike garbage.
pub fn kind(level: u8, index: usize) -> u64 {
    TAG | (index as u64) << 8 | u64::from(level)
}

pub fn level_of(kind: u64) -> Option<u8> {
    (kind & !0xffff == TAG).then_some(kind as u8)
}

/// The node of `level` on the path to leaf `key`.
pub fn index_at(key: usize, level: u8) -> usize {
    key / FANOUT.pow(u32::from(level))
}

/// Index of a node among all nodes.
pub fn number(level: u8, index: usize) -> usize {
    match level {
        2 => 0,
        1 => 1 + index,
        _ => 1 + FANOUT + index,
    }
}

/// Index of the word of a node of `level + 1` that leads to the node of `level` above leaf `key`.
pub fn slot_toward(key: usize, level: u8) -> usize {
    FIRST_CHILD + index_at(key, level) % FANOUT
}

/// The cache's view of these nodes.
#[derive(Clone, Copy)]
pub struct Shape;

impl NodeShape for Shape {
    fn child_count(&self, page: &[Word]) -> usize {
        match level_of(page[KIND].load(Ordering::Relaxed)) {
            Some(1 | 2) => FANOUT,
            _ => 0,
        }
    }

    fn child_word(&self, _page: &[Word], i: usize) -> usize {
        FIRST_CHILD + i % FANOUT
    }

    fn swizzles(&self, _page: &[Word]) -> bool {
        true
    }
}

/// Polls `future` to completion; while it is pending, other threads run.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::yield_now(),
        }
    }
}

/// Runs several operations of one thread at once, as a worker with slots does.
pub fn run_slots(mut slots: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    let mut context = Context::from_waker(Waker::noop());
    while !slots.is_empty() {
        slots.retain_mut(|slot| slot.as_mut().poll(&mut context).is_pending());
        thread::yield_now();
    }
}
