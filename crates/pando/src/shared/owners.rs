//! Owners of the partitions of an index and their addresses, from the catalog and the attach table.
//!
//! A process that serves an index at an operation port *announces* the port in its notice in the attach
//! table. So a client that knows only the memory servers finds the compute servers too. A notice is a
//! sequence of `[length:16][index][length:16][address]`. It ends with its process; the notice of a process
//! that died stays beside its entry. An entry without a name is a wish of the process ([`Wish`]), and some names are those of
//! another one ([`Spread`]).

use std::collections::BTreeMap;

use pando_dex::KeyRange;
use pando_elf_remote::is_elf;
use pando_fabric::MemoryServerId;
use pando_pool::{AttachSlot, Attached, ProcessIdentity};
use pando_rt::block_on;

use super::{Shared, lock};
use crate::error::{Error, Owner, Result};
use crate::place::AnyEndpoint;

/// Place of a wish in a notice. No index has this name.
const OF_WISH: &str = "";
/// Beginning of the places of a wish to spread, and of what was done of it for each index.
const OF_SPREAD: &str = "\0spread ";
/// Bytes of the longest address: a host name of 253, and a port.
const ADDRESS_MAX: usize = 260;

/// A process that is attached to a pool, or died while it was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Process {
    pub identity: ProcessIdentity,
    /// `false` if it ended without closing the pool. Changes that only its caches held are lost.
    pub is_alive: bool,
    /// Whether it is this process.
    pub is_this: bool,
    /// Addresses of its operation ports, by the name of the index that they serve.
    pub ports: BTreeMap<String, String>,
}

impl Process {
    /// This process as the owner of keys of `index`.
    pub(crate) fn owner(&self, index: &str) -> Owner {
        let address = self.ports.get(index).map(|address| address.as_str().into());
        Owner { process: self.identity, address }
    }
}

/// Owner of the keys of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartitionOwner {
    /// No process; any may claim it.
    Nobody,
    /// A living process, which answers requests if it serves the index.
    Process(Process),
    /// A process that ended without closing the pool. Its cached changes of the partition are lost.
    Lost(Process),
}

impl PartitionOwner {
    /// The owning process, alive or dead.
    pub fn process(&self) -> Option<&Process> {
        match self {
            Self::Nobody => None,
            Self::Process(process) | Self::Lost(process) => Some(process),
        }
    }

    /// `host:port` of the owner's operation port for the index.
    pub fn address(&self, index: &str) -> Option<&str> {
        match self {
            Self::Process(process) => process.ports.get(index).map(String::as_str),
            _ => None,
        }
    }
}

/// A partition of an index in the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Partition {
    pub keys: KeyRange,
    pub owner: PartitionOwner,
}

impl Shared {
    /// Announces that this process serves `index` at `address`, or withdraws the announcement.
    pub fn set_port(&self, index: &str, address: Option<&str>) -> Result<()> {
        address.map_or(Ok(()), check_address)?;
        self.set_notice(index, address)
    }

    /// Says to all processes of the pool what this process wishes, or that it wishes nothing any more.
    pub fn set_wish(&self, wish: Option<&Wish>) -> Result<()> {
        self.set_notice(OF_WISH, wish.map(Wish::to_text).as_deref())
    }

    fn set_notice(&self, name: &str, text: Option<&str>) -> Result<()> {
        self.writable()?;
        let mut notice = lock(&self.notice);
        let mut changed = notice.clone();
        match text {
            Some(text) => changed.insert(name.to_owned(), text.to_owned()),
            None => changed.remove(name),
        };
        self.with_endpoint(|ep| Ok(block_on(ep, self.pool.set_notice(ep, &encode(&changed)))?))?;
        *notice = changed;
        Ok(())
    }

    /// What other processes that live wish of an index.
    pub fn wishes(&self, attached: &[Attached], index: &str) -> Vec<Wish> {
        let living = attached.iter().filter(|process| process.is_alive);
        let wishes = living.filter_map(|process| Wish::from_text(decode(&process.notice).get(OF_WISH)?));
        wishes.filter(|wish| wish.index == index).collect()
    }

    /// Says that the indexes should spread over the memory servers, if `index` is "", or what was done of that for one; or
    /// neither any more.
    pub fn set_spread(&self, index: &str, spread: Option<Spread>) -> Result<()> {
        self.set_notice(&format!("{OF_SPREAD}{index}"), spread.map(Spread::to_text).as_deref())
    }

    /// What the living owners of an index, other than this process, have done of spread `number`; `None` for one that has not
    /// answered.
    pub fn spread_by_owners(
        &self,
        ep: &AnyEndpoint,
        index: &str,
        number: u64,
    ) -> Result<Vec<Option<Spread>>> {
        let record = self.record(ep, index)?;
        let attached = block_on(ep, self.pool.processes(ep))?;
        let is_owner = |other: &&Attached| {
            other.is_alive
                && Some(other.slot) != self.pool.slot()
                && record.owners.contains(&Some(other.slot))
        };
        let done = |owner: &Attached| {
            Spread::within(&decode(&owner.notice), index).filter(|spread| spread.number == number)
        };
        Ok(attached.iter().filter(is_owner).map(done).collect())
    }

    /// Who owns which keys of all indexes.
    pub fn owned(&self, ep: &AnyEndpoint) -> Result<Vec<OwnedKeys>> {
        let records = block_on(ep, self.pool.list_indexes(ep))?.into_iter();
        let owned = records.map(|record| OwnedKeys {
            id: record.id,
            is_elf: is_elf(&record),
            boundaries: record.boundaries,
            owners: record.owners,
        });
        Ok(owned.collect())
    }

    /// Spreads that other processes that live wish, and that this process has not done for `index`.
    pub fn spread_wishes(&self, attached: &[Attached], index: &str) -> Vec<Spread> {
        let done = Spread::within(&lock(&self.notice), index);
        let others = attached.iter().filter(|other| other.is_alive && Some(other.slot) != self.pool.slot());
        let wishes = others.filter_map(|other| Spread::within(&decode(&other.notice), ""));
        wishes.filter(|wish| done.is_none_or(|done| done.number != wish.number)).collect()
    }

    pub fn process(&self, attached: &Attached) -> Process {
        Process {
            identity: attached.process,
            is_alive: attached.is_alive,
            is_this: Some(attached.slot) == self.pool.slot(),
            ports: ports_in(&attached.notice),
        }
    }

    pub fn partitions(&self, ep: &AnyEndpoint, index: &str) -> Result<Vec<Partition>> {
        let record = self.record(ep, index)?;
        let attached = block_on(ep, self.pool.processes(ep))?;
        let owner = |slot: Option<AttachSlot>| {
            let found = attached.iter().find(|attached| Some(attached.slot) == slot);
            match found.map(|attached| self.process(attached)) {
                // A process that detached owns nothing any more.
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

/// Who owns which keys of an index, by partition.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OwnedKeys {
    id: u32,
    pub is_elf: bool,
    boundaries: Vec<Vec<u8>>,
    pub owners: Vec<Option<AttachSlot>>,
}

/// A wish that the indexes spread over the memory servers, or that they leave one, or what was done of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    /// No other wish has it.
    pub number: u64,
    /// Nodes that were moved. If a server is to be left, 0 means that nothing is there any more.
    pub nodes: u64,
    /// The server that is to be left, if that is the wish.
    pub leaves: Option<MemoryServerId>,
}

impl Spread {
    fn to_text(self) -> String {
        let leaves = self.leaves.map(|server| format!(" {server}")).unwrap_or_default();
        format!("{} {}{leaves}", self.number, self.nodes)
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (number, nodes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let leaves = words.next().map(|server| server.parse().map(MemoryServerId)).transpose().ok()?;
        Some(Self { number, nodes, leaves })
    }

    /// The one of `index` in a notice.
    fn within(notice: &BTreeMap<String, String>, index: &str) -> Option<Self> {
        Self::from_text(notice.get(&format!("{OF_SPREAD}{index}"))?)
    }
}

/// A wish that the boundary of an index at key `from` is at key `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub index: String,
    pub from: Vec<u8>,
    pub to: Vec<u8>,
}

impl Wish {
    /// `from>to>index`, the keys as hexadecimal digits.
    fn to_text(&self) -> String {
        let hex = |key: &[u8]| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        format!("{}>{}>{}", hex(&self.from), hex(&self.to), self.index)
    }

    fn from_text(text: &str) -> Option<Self> {
        let key = |hex: &str| {
            let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok());
            bytes.collect::<Option<Vec<u8>>>()
        };
        let mut parts = text.splitn(3, '>');
        let (from, to) = (key(parts.next()?)?, key(parts.next()?)?);
        Some(Self { index: parts.next()?.to_owned(), from, to })
    }
}

/// Checks an address to be announced.
///
/// # Errors
/// [`Error::InvalidOption`] unless it is `host:port` and other hosts can connect to it.
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

/// Operation ports in a notice.
fn ports_in(notice: &[u8]) -> BTreeMap<String, String> {
    let mut ports = decode(notice);
    ports.retain(|name, _| name != OF_WISH && !name.starts_with(OF_SPREAD));
    ports
}

fn encode(ports: &BTreeMap<String, String>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for text in ports.iter().flat_map(|(index, address)| [index, address]) {
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// Decodes a notice. Ignores bytes that it cannot read, which may be of a later version.
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
    fn a_wish_comes_back_and_garbage_is_none() {
        let wish = Wish { index: "a>b".to_owned(), from: vec![0, 0xff], to: b"k".to_vec() };
        assert_eq!(Wish::from_text(&wish.to_text()), Some(wish));
        for garbage in ["", ">", "0>1", "zz>00>a", "0>00>a", "é>00>a"] {
            assert_eq!(Wish::from_text(garbage), None, "{garbage}");
        }
    }

    #[test]
    fn a_spread_comes_back_and_is_no_port() {
        let leaves = Spread { number: 5, nodes: 0, leaves: Some(MemoryServerId(3)) };
        let spread = Spread { number: u64::MAX, nodes: 7, leaves: None };
        let notice: BTreeMap<String, String> = [
            (format!("{OF_SPREAD}n"), spread.to_text()),
            (format!("{OF_SPREAD}l"), leaves.to_text()),
            (format!("{OF_SPREAD}m"), "7".to_owned()),
            ("n".to_owned(), "host:1".to_owned()),
        ]
        .into();
        assert_eq!(
            [Spread::within(&notice, "n"), Spread::within(&notice, "l")],
            [Some(spread), Some(leaves)]
        );
        assert_eq!([Spread::within(&notice, "m"), Spread::within(&notice, "")], [None, None]);
        assert_eq!(ports_in(&encode(&notice)), [("n".to_owned(), "host:1".to_owned())].into());
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
