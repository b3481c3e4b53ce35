//! Operations under way: a verb, a chain of them, or a two-sided call.
//!
//! They live in a slab whose places are used again, with the lists that they grew, so that a verb allocates nothing. The
//! buffer of a verb stays in here until the operation has completed, whether or not somebody still waits for it.

use std::task::Waker;

use pando_fabric::{FabricError, Nanos, VerbResult};

use crate::serial::Picos;
use crate::verb::Verb;

pub(crate) type OpId = u32;
pub(crate) type WorkerId = u32;

/// A two-sided call under way.
#[derive(Debug)]
pub(crate) struct Call {
    pub op: u16,
    pub body: Vec<u8>,
    pub reply: Vec<u8>,
}

/// Who posted an operation, when, and where to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Poster {
    pub worker: WorkerId,
    pub slot_bit: u64,
    pub server: usize,
    /// When it was posted; it fails if it is not answered some time after.
    pub posted: Nanos,
}

#[derive(Debug, Default)]
pub(crate) struct Op {
    pub poster: Poster,
    /// Verbs that are still to take effect, the next one last.
    pub verbs: Vec<Verb>,
    /// Words of the next verb that already took effect, if it is torn: from the front, or all but so many of them.
    pub torn: Option<usize>,
    pub call: Option<Call>,
    pub results: Vec<VerbResult>,
    pub error: Option<FabricError>,
    /// How long its answer keeps the caller's NIC.
    pub answer_cost: Picos,
    /// READs and atomics of it that count against the limit of its queue pair.
    pub credits: u32,
    /// Lives of the server and of the connection in which it was sent.
    pub server_life: u32,
    pub link_life: u32,
    /// It takes effect, and nobody hears of it.
    pub answer_lost: bool,
    stage: Stage,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Free,
    UnderWay,
    Done,
    /// Under way, but nobody waits for it any more.
    Abandoned,
}

/// All operations under way.
#[derive(Default)]
pub(crate) struct Ops {
    slab: Vec<Op>,
    free: Vec<OpId>,
}

impl Ops {
    /// An operation without verbs.
    pub fn begin(&mut self, poster: Poster) -> OpId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.slab.push(Op::default());
            self.slab.len() as OpId - 1
        });
        let op = &mut self.slab[id as usize];
        debug_assert_eq!(op.stage, Stage::Free);
        (op.poster, op.stage) = (poster, Stage::UnderWay);
        id
    }

    #[inline]
    pub fn get(&mut self, id: OpId) -> &mut Op {
        &mut self.slab[id as usize]
    }

    /// It completed. Who waits by a waker of its own is to be woken.
    pub fn complete(&mut self, id: OpId) -> Option<(Poster, Option<Waker>)> {
        let op = self.get(id);
        if op.stage == Stage::Abandoned {
            self.forget(id);
            return None;
        }
        op.stage = Stage::Done;
        Some((op.poster, op.waker.take()))
    }

    /// The operation, if it has completed; to be [forgotten](Ops::forget) then. If not, `waker` is told when it has.
    pub fn take_done(&mut self, id: OpId, waker: Option<&Waker>) -> Option<&mut Op> {
        let op = &mut self.slab[id as usize];
        if op.stage == Stage::Done {
            return Some(op);
        }
        if let Some(waker) = waker
            && !op.waker.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            op.waker = Some(waker.clone());
        }
        None
    }

    pub fn forget(&mut self, id: OpId) {
        let op = &mut self.slab[id as usize];
        op.verbs.clear();
        op.results.clear();
        (op.torn, op.call, op.error, op.waker) = (None, None, None, None);
        (op.credits, op.answer_lost, op.stage) = (0, false, Stage::Free);
        self.free.push(id);
    }

    /// Nobody waits for the operation any more. It goes on: its buffer is the network's until it has completed.
    pub fn abandon(&mut self, id: OpId) {
        match self.get(id).stage {
            Stage::Done => self.forget(id),
            _ => self.get(id).stage = Stage::Abandoned,
        }
    }

    pub fn is_abandoned(&mut self, id: OpId) -> bool {
        self.get(id).stage == Stage::Abandoned
    }
}
