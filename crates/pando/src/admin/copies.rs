//! Which memory server has copies of which memory.
//!
//! The memory servers decide that among themselves (`pando_member`); a process learns of it from any of them. Nothing
//! is asked here.

use pando_fabric::MemoryServerId;

use crate::cluster::Cluster;
use crate::error::Result;

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

impl Copies {
    /// Parts of the pool that have fewer copies than they shall have, copies that are being filled not counted.
    pub fn lacking(&self) -> Vec<MemoryServerId> {
        let parts = (0..self.servers.len() as u16).map(MemoryServerId);
        let has = |part: &MemoryServerId| {
            self.servers.iter().filter(|of| of.serves.contains(part) || of.backs_up.contains(part)).count()
        };
        parts.filter(|part| has(part) < self.replicas).collect()
    }
}

impl Cluster {
    /// The memory servers as they have copies of each other's memory, as far as this process knows; `None` for a pool
    /// without copies.
    ///
    /// # Errors
    /// [`crate::Error::Closed`].
    pub fn copies(&self) -> Result<Option<Copies>> {
        self.shared.check_open()?;
        Ok(self.shared.fabric.view().map(|view| {
            let servers = (0..).map(MemoryServerId).zip(view.servers());
            let of_server = |(server, named): (MemoryServerId, &pando_fabric_net::NamedServer)| {
                let mut copies = ServerCopies {
                    address: named.address().to_owned(),
                    is_in: named.is_in(),
                    serves: Vec::new(),
                    backs_up: Vec::new(),
                    fills: Vec::new(),
                };
                for part in 0..view.volumes() as u16 {
                    let volume = pando_fabric_net::VolumeId(part);
                    if view.primary(volume).is_some_and(|copy| copy.server == server) {
                        copies.serves.push(MemoryServerId(part));
                    }
                    for copy in view.backups(volume).iter().filter(|copy| copy.server == server) {
                        let list = if copy.syncing { &mut copies.fills } else { &mut copies.backs_up };
                        list.push(MemoryServerId(part));
                    }
                }
                copies
            };
            Copies {
                epoch: view.epoch(),
                replicas: view.replicas().into(),
                register: view.register().map(str::to_owned),
                servers: servers.map(of_server).collect(),
            }
        }))
    }
}
