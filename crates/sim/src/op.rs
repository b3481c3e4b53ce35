//! Operations in flight: a verb, a chain, or a two-sided call.
//!
//! They live in a slab whose entries are reused with their grown lists, so a verb allocates nothing. The
//! buffer of a verb stays here until the operation has completed, whether or not its future still waits.

use std::task::Waker;

use pando_fabric::{FabricError, Nanos, VerbResult};

use crate::nic::Load;
use crate::verb::Verb;

pub(crate) type OpId = u32;
pub(crate) type WorkerId = u32;

/// A two-sided call in flight.
#[derive(Debug)]
pub(crate) struct Call {
    pub op: u16,
    pub body: Vec<u8>,
    pub reply: Vec<u8>,
}

/// Origin, destination and time of an operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Poster {
    pub worker: WorkerId,
    pub slot_bit: u64,
    pub server: usize,
    /// Time of posting; the timeout counts from it.
    pub posted: Nanos,
}

#[derive(Debug, Default)]
pub(crate) struct Op {
    pub poster: Poster,
    /// Verbs that have not taken effect, the next one last.
    pub verbs: Vec<Verb>,
    /// Number of words of the next verb that already took effect, from the front, if it is torn.
    pub torn: Option<usize>,
    pub call: Option<Call>,
    pub results: Vec<VerbResult>,
    pub error: Option<FabricError>,
    /// Load of its answer on the caller's NIC.
    pub answer_load: Load,
    /// Its READs and atomics, which count against the limit of its queue pair.
    pub credits: u32,
    /// Lives of the server and of the link at the time of sending.
    pub server_life: u32,
    pub link_life: u32,
    /// Whether the operation takes effect but its answer is lost.
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
    /// In flight, but its future was dropped.
    Abandoned,
}

/// All operations in flight.
#[derive(Default)]
pub(crate) struct Ops {
    slab: Vec<Op>,
    free: Vec<OpId>,
}

impl Ops {
    /// Begins an operation without verbs.
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

    /// Completes the operation. Returns the waker to call, if its future has one of its own.
    pub fn complete(&mut self, id: OpId) -> Option<(Poster, Option<Waker>)> {
        let op = self.get(id);
        if op.stage == Stage::Abandoned {
            self.forget(id);
            return None;
        }
        op.stage = Stage::Done;
        Some((op.poster, op.waker.take()))
    }

    /// The operation, if it has completed; the caller then [forgets](Ops::forget) it. Otherwise `waker` is
    /// called on completion.
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

    /// Records that the future was dropped. The operation continues; its buffer belongs to the network until
    /// it has completed.
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
