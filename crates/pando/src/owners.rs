//! Who owns the partitions of an index, and where they can be asked: what the catalog and the attach table say.
//!
//! A process that serves an index at an operation port *announces* that port in its notice in the attach table. So whoever
//! names the memory servers alone finds the compute servers too. A notice is `[length:16][index][length:16][address]`, again
//! and again, and goes with its process; that of a process that died stays beside its entry.

use std::collections::BTreeMap;

use crate::endpoint::AnyEndpoint;
use pando_dex::KeyRange;
use pando_pool::{AttachSlot, Attached, PoolError, ProcessIdentity};
use pando_rt::block_on;

use crate::cluster::{Cluster, Shared, lock};
use crate::error::{Error, Result};
use crate::index::Index;

/// Bytes of the longest address: a name of 253, and a port.
const ADDRESS_MAX: usize = 260;

/// A process that is attached to a pool, or ended while it was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Process {
    pub identity: ProcessIdentity,
    /// `false` if it ended without closing the pool. What only its caches had is lost.
    pub is_alive: bool,
    /// Whether it is this process.
    pub is_this: bool,
    /// The indexes that it serves, each with the address of its operation port.
    pub ports: BTreeMap<String, String>,
}

/// Who has the keys of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartitionOwner {
    /// Any process may take it.
    Nobody,
    /// It owns the partition, and can be asked if it serves the index.
    Process(Process),
    /// The process ended without closing the pool, so what it had cached of the partition is lost.
    Lost(Process),
}

impl PartitionOwner {
    pub fn process(&self) -> Option<&Process> {
        match self {
            Self::Nobody => None,
            Self::Process(process) | Self::Lost(process) => Some(process),
        }
    }

    /// Where its keys can be asked for.
    pub fn address(&self, index: &str) -> Option<&str> {
        match self {
            Self::Process(process) => process.ports.get(index).map(String::as_str),
            _ => None,
        }
    }
}

/// A partition of an index, as the catalog has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Partition {
    pub keys: KeyRange,
    pub owner: PartitionOwner,
}

impl Cluster {
    /// The processes in the pool's attach table, this one included, also those that ended without closing it.
    ///
    /// # Errors
    /// Those of the fabric.
    pub fn processes(&self) -> Result<Vec<Process>> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| {
            let processes = block_on(ep, self.shared.pool.processes(ep))?;
            Ok(processes.iter().map(|attached| self.shared.process(attached)).collect())
        })
    }

    /// The partitions of an index in the order of their keys, and who owns each. It changes when processes come and go, and
    /// when they move boundaries.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`]; those of the fabric.
    pub fn partitions(&self, index: &str) -> Result<Vec<Partition>> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| self.shared.partitions(ep, index))
    }
}

impl Index {
    /// Tells all who come to the pool that this process serves the index at `address`, the `host:port` of an operation port as
    /// others reach it, in place of an earlier one. That ends with [`Index::withdraw`] or when the cluster is closed.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for what is no address that others can connect to; [`Error::ReadOnly`]; no room on the first
    /// memory server.
    pub fn announce(&self, address: &str) -> Result<()> {
        check_address(address)?;
        self.shared.set_port(self.name(), Some(address))
    }

    /// Takes back what [`Index::announce`] said.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; those of the fabric.
    pub fn withdraw(&self) -> Result<()> {
        self.shared.set_port(self.name(), None)
    }
}

impl Shared {
    fn set_port(&self, index: &str, address: Option<&str>) -> Result<()> {
        self.writable()?;
        let mut ports = lock(&self.ports);
        let mut changed = ports.clone();
        match address {
            Some(address) => changed.insert(index.to_owned(), address.to_owned()),
            None => changed.remove(index),
        };
        self.with_endpoint(|ep| Ok(block_on(ep, self.pool.set_notice(ep, &encode(&changed)))?))?;
        *ports = changed;
        Ok(())
    }

    pub fn process(&self, attached: &Attached) -> Process {
        Process {
            identity: attached.process,
            is_alive: attached.is_alive,
            is_this: Some(attached.slot) == self.pool.slot(),
            ports: decode(&attached.notice),
        }
    }

    /// The process in a place of the attach table.
    pub async fn process_at(&self, ep: &AnyEndpoint, slot: AttachSlot) -> Result<Option<Process>, PoolError> {
        let attached = self.pool.processes(ep).await?;
        Ok(attached.iter().find(|attached| attached.slot == slot).map(|attached| self.process(attached)))
    }

    pub fn partitions(&self, ep: &AnyEndpoint, index: &str) -> Result<Vec<Partition>> {
        let record = self.record(ep, index)?;
        let attached = block_on(ep, self.pool.processes(ep))?;
        let owner = |slot: Option<AttachSlot>| {
            let found = attached.iter().find(|attached| Some(attached.slot) == slot);
            match found.map(|attached| self.process(attached)) {
                // One that left in order owns nothing any more.
                None => PartitionOwner::Nobody,
                Some(process) if process.is_alive => PartitionOwner::Process(process),
                Some(process) => PartitionOwner::Lost(process),
            }
        };
        let ranges = KeyRange::from_boundaries(&record.boundaries);
        let partitions = ranges.into_iter().zip(&record.owners);
        Ok(partitions.map(|(keys, &slot)| Partition { keys, owner: owner(slot) }).collect())
    }
}

/// # Errors
/// [`Error::InvalidOption`] unless it is `host:port` of something that one can connect to.
fn check_address(address: &str) -> Result<()> {
    let refused = |reason: &str| Err(Error::InvalidOption(format!("{address:?} {reason}")));
    let Some((host, port)) = address.rsplit_once(':') else { return refused("is not HOST:PORT") };
    if host.is_empty() || address.len() > ADDRESS_MAX || port.parse::<u16>().is_err() {
        return refused("is not HOST:PORT");
    }
    if port.parse() == Ok(0_u16) || ["0.0.0.0", "[::]"].contains(&host) {
        return refused(
            "is no address that others can connect to; name the host and the port that they reach",
        );
    }
    Ok(())
}

fn encode(ports: &BTreeMap<String, String>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for text in ports.iter().flat_map(|(index, address)| [index, address]) {
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// What cannot be read is left out: it may be of a later version.
fn decode(mut bytes: &[u8]) -> BTreeMap<String, String> {
    let mut text = || {
        let (len, rest) = bytes.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        bytes = rest;
        String::from_utf8(text.to_vec()).ok()
    };
    std::iter::from_fn(|| text().zip(text())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_come_back_and_garbage_is_none() {
        let ports: BTreeMap<String, String> =
            [("a", "host:1"), ("b\n", "[::1]:65535")].map(|(i, a)| (i.to_owned(), a.to_owned())).into();
        let bytes = encode(&ports);
        assert_eq!(decode(&bytes), ports);
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).len() < 2, "{len} bytes");
        }
        assert_eq!(decode(&[0xff; 40]), BTreeMap::new());
    }

    #[test]
    fn only_what_can_be_connected_to_is_announced() {
        for good in ["host:1", "127.0.0.1:7150", "[::1]:65535"] {
            assert!(check_address(good).is_ok(), "{good}");
        }
        for bad in ["", "host", ":1", "host:", "host:0", "host:65536", "0.0.0.0:7150", "[::]:1"] {
            assert!(check_address(bad).is_err_and(|error| error.is_bad_input()), "{bad}");
        }
    }
}
