//! Verbs, chains and calls of one endpoint in flight, with the buffers that the device uses.
//!
//! A job is a list of work requests that end together, or a call. Its buffers stay here until the device is
//! done with them, even if the future of the verb was dropped. They are returned with the end of the job.

use pando_fabric::{GlobalAddr, PageBuf};
use pando_fabric_net::Pending;

use crate::queue::Work;

/// One work request of a verb or of a chain.
pub(super) struct Step {
    pub at: GlobalAddr,
    pub work: Work,
    /// A registered buffer.
    pub buffer: PageBuf,
    /// The device's key for `buffer`.
    pub key: u32,
}

impl Step {
    /// Whether the step may change memory.
    pub fn changes(&self) -> bool {
        self.work != Work::Read
    }
}

/// Work that ends together.
pub(super) enum Job {
    One(Step),
    Chain(Vec<Step>),
    /// `body` is that of the request, and finally that of the reply.
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
            // Messages of calls have their own buffers.
            Self::Call { .. } => &[],
        }
    }
}

/// Jobs in flight; a job ends with its own content.
pub(super) type Jobs = Pending<Job, Job>;

/// Work requests of a job that has not ended.
pub(super) fn steps(jobs: &Jobs, number: u32) -> &[Step] {
    jobs.waiting(number).map_or(&[], Job::steps)
}
