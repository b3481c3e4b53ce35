//! The memory of a cluster for indexes of one's own.
//!
//! Who builds another index on the same pool needs its allocator and a way to the memory servers for each thread, whatever
//! carries the verbs. The catalog knows nothing of such an index: what it allocated is its own to free.

use pando_fabric::{Endpoint, Nanos};
use pando_pool::Pool;

use crate::cluster::Cluster;
use crate::error::Result;

impl Cluster {
    /// One thread's way to the memory servers. It must not be used any more once the cluster is closed.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed) and those of the fabric.
    pub fn endpoint(&self) -> Result<impl Endpoint + use<>> {
        self.shared.check_open()?;
        self.shared.endpoint()
    }

    /// The allocator of the memory servers, and everything else that the pool knows.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// How long an operation may begin what takes long, in ns, so that it ends within the deadline
    /// ([`limited`](pando_fabric::limited)).
    pub fn operation_ns(&self) -> Nanos {
        self.shared.config.operation_ns()
    }
}
