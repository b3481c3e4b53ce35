//! The register of a group, as a process reaches it that changes or reads it: the acceptors on the servers, or etcd.
//!
//! A view names the register that it is in, so a process that knows a view knows where the next one is. What is done to
//! views is the same for both.

use std::time::Instant;

use pando_fabric::MemoryServerId;
use pando_member::View;

use super::acceptors::Acceptors;
use super::error::RegisterError;
use super::etcd::Etcd;
use crate::secret::Secret;

/// A way to the register.
pub(crate) enum Register {
    OnServers(Acceptors),
    Etcd(Etcd),
}

impl Register {
    /// The register of a decided view. `proposer` is the number of this start of this process.
    ///
    /// # Errors
    /// If the view names a register in a way that this version does not know.
    pub fn of(view: &View, secret: &Secret, proposer: u64) -> Result<Self, RegisterError> {
        Ok(match view.register() {
            None => Self::OnServers(Acceptors::of(view, secret, proposer)),
            Some(_) => Self::Etcd(Etcd::of(view)?.not_before(view.epoch())),
        })
    }

    /// The register that a first view of servers names which are to form a group, whatever groups they were in.
    ///
    /// # Errors
    /// Those of [`Register::of`].
    pub fn of_new_group(view: &View, secret: &Secret, proposer: u64) -> Result<Self, RegisterError> {
        Ok(match view.register() {
            None => Self::OnServers(Acceptors::of(view, secret, proposer).of_new_group()),
            Some(_) => Self::Etcd(Etcd::of(view)?),
        })
    }

    /// The register without servers that are known not to answer, so that nothing waits for them.
    pub fn without_asking(self, silent: &[MemoryServerId]) -> Self {
        match self {
            Self::OnServers(acceptors) => Self::OnServers(acceptors.without_asking(silent)),
            etcd @ Self::Etcd(_) => etcd,
        }
    }

    /// Replaces the view by what `change` makes of it, and returns the decided one. `change` gets `None` if there is no
    /// view yet, and may be called several times; if it returns `None`, the view stays, and is the one that is returned.
    ///
    /// # Errors
    /// If the register does not answer, or there is no end of other changes until `until`; what `change` refuses.
    pub fn change(
        &mut self,
        until: Instant,
        change: impl Fn(Option<View>) -> Result<Option<View>, String>,
    ) -> Result<Option<View>, RegisterError> {
        match self {
            Self::OnServers(acceptors) => acceptors.change(until, change),
            Self::Etcd(etcd) => etcd.change(until, change),
        }
    }
}
