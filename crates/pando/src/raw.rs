//! The memory of a cluster for other index structures.
//!
//! Another index structure on the same pool needs the pool's allocator, and for each thread an endpoint of
//! the cluster's fabric. The catalog does not know such an index; it must free its blocks itself.

use pando_fabric::{Endpoint, Nanos};
use pando_pool::Pool;

use crate::cluster::Cluster;
use crate::error::Result;

impl Cluster {
    /// One thread's endpoint. It must not be used once the cluster is closed.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed); errors of the fabric.
    pub fn endpoint(&self) -> Result<impl Endpoint + use<>> {
        self.shared.check_open()?;
        self.shared.endpoint()
    }

    /// The pool: the allocator of the memory servers, and all metadata.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// Nanoseconds after which an operation should begin nothing that may take long, so that it ends before
    /// the deadline ([`limited`](pando_fabric::limited)).
    pub fn operation_ns(&self) -> Nanos {
        self.shared.config.operation_ns()
    }
}
