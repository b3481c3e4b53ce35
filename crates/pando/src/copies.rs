//! Which memory server has copies of which memory.
//!
//! The memory servers decide that among themselves (`pando_member`); a process learns of it from any of them. Nothing
//! is asked here.

use pando_fabric::MemoryServerId;
use pando_fabric_net::{NamedServer, Role, View};

/// The memory servers of a pool with copies, in one view.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copies {
    /// Number of the view. It grows with every change.
    pub epoch: u64,
    /// Number of copies that all memory shall have.
    pub replicas: usize,
    /// The register outside the memory servers that has the views; `None` if the servers hold it.
    pub register: Option<String>,
    /// By number.
    pub servers: Vec<ServerCopies>,
}

/// What a memory server has in a view.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCopies {
    /// `host:port`.
    pub address: String,
    /// Whether it is in the view. The others go on without one that is not.
    pub is_in: bool,
    /// Parts of the pool that it serves, by the number of the memory server that they stand for.
    pub serves: Vec<MemoryServerId>,
    /// Parts of which it has another copy.
    pub backs_up: Vec<MemoryServerId>,
    /// Parts of which it is filling a copy.
    pub fills: Vec<MemoryServerId>,
}

/// How far memory servers have filled copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyProgress {
    /// Bytes that are whole.
    pub whole: u64,
    /// Bytes of these copies.
    pub bytes: u64,
}

impl Copies {
    pub(crate) fn of(view: &View) -> Self {
        let of_server = |(number, named): (u16, &NamedServer)| {
            let server = MemoryServerId(number);
            let with = |role: Role| {
                let held = view.held_by(server).filter(|copy| copy.role == role);
                held.map(|copy| MemoryServerId(copy.volume.0)).collect()
            };
            ServerCopies {
                address: named.address().to_owned(),
                is_in: named.is_in(),
                serves: with(Role::Primary),
                backs_up: with(Role::Backup),
                fills: with(Role::Syncing),
            }
        };
        Self {
            epoch: view.epoch(),
            replicas: view.replicas().into(),
            register: view.register().map(str::to_owned),
            servers: (0..).zip(view.servers()).map(of_server).collect(),
        }
    }

    /// Parts of the pool that have fewer copies than they shall have, copies that are being filled not counted.
    pub fn lacking(&self) -> Vec<MemoryServerId> {
        let parts = (0..self.servers.len() as u16).map(MemoryServerId);
        let has = |part: &MemoryServerId| {
            self.servers.iter().filter(|of| of.serves.contains(part) || of.backs_up.contains(part)).count()
        };
        parts.filter(|part| has(part) < self.replicas).collect()
    }
}
