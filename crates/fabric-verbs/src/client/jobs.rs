//! Verbs, chains and calls of one endpoint that are under way, with the buffers that the device uses meanwhile.
//!
//! A job is a list of work requests that end together, or a call. Its buffers stay here until the device is done with
//! them, also when the future of the verb is gone; they come back with the end.

use pando_fabric::{GlobalAddr, PageBuf};
use pando_fabric_net::Pending;

use crate::queue::Work;

/// One work request: of a verb, or of a chain.
pub(super) struct Step {
    pub at: GlobalAddr,
    pub work: Work,
    /// Registered memory.
    pub buffer: PageBuf,
    /// The device's name for it.
    pub key: u32,
}

impl Step {
    /// Whether others may see that it was executed.
    pub fn changes(&self) -> bool {
        self.work != Work::Read
    }
}

/// What ends together.
pub(super) enum Job {
    One(Step),
    Chain(Vec<Step>),
    /// The body is that of the request, and in the end that of the reply.
    Call {
        kind: u16,
        body: Vec<u8>,
    },
}

impl Job {
    pub fn steps(&self) -> &[Step] {
        match self {
            Self::One(step) => std::slice::from_ref(step),
            Self::Chain(steps) => steps,
            // Its messages have buffers of their own.
            Self::Call { .. } => &[],
        }
    }
}

/// Jobs that are under way: what waits comes back.
pub(super) type Jobs = Pending<Job, Job>;

/// The work requests of a job that has not ended.
pub(super) fn steps(jobs: &Jobs, number: u32) -> &[Step] {
    jobs.waiting(number).map_or(&[], Job::steps)
}
