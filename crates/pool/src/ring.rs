//! Network addresses of a pool's memory servers: each stores the address of the next one, the last that of
//! the first.
//!
//! ```text
//! two copies of [bytes:8][host:port]         on each memory server, replaced as `twin.rs` says
//! ```
//! So one reachable memory server leads to all others, however many there are. Those that are drained are left
//! out. Nothing is stored for a pool whose memory servers have no addresses, or that was never opened by
//! addresses. An address is a hint: the superblock found there tells its pool and server number.
//!
//! Writers keep other processes from attaching meanwhile; readers need not.

use std::net::IpAddr;

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, RegionInfo, WORD};

use crate::error::Result;
use crate::io::{bytes_of, push_bytes, until_answered};
use crate::layout::{ATTACH_TABLE_AT, NEXT_AT, NEXT_WORDS};
use crate::pool::{Pool, RegionPlace};
use crate::twin::Twin;

/// Maximum length of an address in bytes.
const ADDRESS_MAX: usize = NEXT_WORDS * WORD - 1;

impl Pool {
    /// Stores on each memory server the address of the next one. `addresses` are those of memory servers 0,
    /// 1, ..., each `host:port`; surplus ones are ignored. Addresses that are stored already cost a READ per
    /// server. An invalid address is not stored, and a loopback address does not replace one that other hosts
    /// can reach, unless that is the one of a drained server.
    ///
    /// The caller must be the only writer of addresses. After any error, each memory server has the old
    /// address or the new one.
    ///
    /// # Errors
    /// [`crate::PoolError::ReadOnly`]; errors of verbs.
    pub async fn set_addresses<E: Endpoint>(&self, ep: &E, addresses: &[String]) -> Result<()> {
        self.writer_slot()?;
        let of_state = |is_drained| move |&number: &usize| self.has_drained(id(number)) == is_drained;
        let ring: Vec<usize> = (0..self.servers()).filter(of_state(false)).collect();
        let left_out = (0..self.servers()).filter(of_state(true));
        let left_out: Vec<&String> = left_out.filter_map(|number| addresses.get(number)).collect();
        let next = ring.iter().cycle().skip(1);
        for (&number, &next) in ring.iter().zip(next) {
            if let Some(next) = addresses.get(next).filter(|next| is_address(next)) {
                self.set_next(ep, number, next, &left_out).await?;
            }
        }
        Ok(())
    }

    /// Stores the addresses beside that of server `number`, which is about to join: it comes after the last one, and before
    /// the first. The caller holds the catalog lock.
    pub(crate) async fn set_addresses_of_joining<E: Endpoint>(
        &self,
        ep: &E,
        number: usize,
        addresses: &[String],
    ) -> Result<()> {
        let last = (0..number).rev().find(|&number| !self.has_drained(id(number))).unwrap_or(0);
        for (server, next) in [(number, addresses.first()), (last, addresses.get(number))] {
            if let Some(next) = next.filter(|next| is_address(next)) {
                self.set_next(ep, server, next, &[]).await?;
            }
        }
        Ok(())
    }

    async fn set_next<E: Endpoint>(
        &self,
        ep: &E,
        number: usize,
        next: &str,
        left_out: &[&String],
    ) -> Result<()> {
        let twin = twin(self.id(), number, id(number));
        let deadline = self.deadline(ep);
        match twin.read(ep).await? {
            Some((version, words)) => {
                let known = decode(&words);
                let is_left_out = |known: &str| left_out.iter().any(|left_out| *left_out == known);
                let is_kept =
                    |known: &str| known == next || is_local(next) && !is_local(known) && !is_left_out(known);
                if known.as_deref().is_some_and(is_kept) {
                    return Ok(());
                }
                twin.replace(ep, version, &encode(next), deadline).await
            }
            // Damaged: there is no old address to keep.
            None => until_answered(ep, deadline, async || twin.write_first(ep, 1, &encode(next)).await).await,
        }
    }
}

fn id(number: usize) -> MemoryServerId {
    MemoryServerId(number as u16)
}

/// Address of the memory server after that of `region`, whose pool and number are `place`; `None` if none is
/// stored.
///
/// # Errors
/// Errors of verbs.
pub async fn next_of_region<E: Endpoint>(
    ep: &E,
    region: RegionInfo,
    place: RegionPlace,
) -> Result<Option<String>> {
    if region.len < ATTACH_TABLE_AT {
        return Ok(None);
    }
    let found = twin(place.pool, place.server, region.server).read(ep).await?;
    Ok(found.and_then(|(_, words)| decode(&words)))
}

/// The address block of memory server `number`, reached as memory server `reached`. Its bytes do not depend
/// on `reached`.
fn twin(pool: u64, number: usize, reached: MemoryServerId) -> Twin {
    let at = GlobalAddr::new(reached, NEXT_AT);
    let identity = pool ^ (number as u64).rotate_right(16) ^ NEXT_AT;
    Twin { at, content: NEXT_WORDS, pool_id: identity ^ at.raw() }
}

fn encode(address: &str) -> Vec<u64> {
    let mut bytes = vec![address.len() as u8];
    bytes.extend(address.as_bytes());
    let mut words = Vec::with_capacity(NEXT_WORDS);
    push_bytes(&mut words, &bytes);
    words.resize(NEXT_WORDS, 0);
    words
}

fn decode(words: &[u64]) -> Option<String> {
    let bytes = bytes_of(words);
    let (&len, rest) = bytes.split_first()?;
    let address = str::from_utf8(rest.get(..usize::from(len))?).ok()?;
    is_address(address).then(|| address.to_owned())
}

/// Whether the address has a host and a nonzero port.
fn is_address(address: &str) -> bool {
    address.len() <= ADDRESS_MAX
        && address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0))
}

/// Whether the address leads back to the host that uses it.
fn is_local(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let is_local_ip = ip.is_ok_and(|ip| ip.to_canonical().is_loopback() || ip.is_unspecified());
    is_local_ip || host.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_and_what_is_none_is_refused() {
        let longest = format!("{}:65535", "h".repeat(ADDRESS_MAX - 6));
        for address in ["10.0.0.1:7100", "[::1]:7100", "h:1", &longest] {
            assert_eq!(decode(&encode(address)).as_deref(), Some(address));
        }
        for none in
            ["", "host", "host:", "host:0", ":7100", "host:70000", "host:http", &format!("h{longest}")]
        {
            assert!(!is_address(none), "{none}");
        }
        assert_eq!(decode(&vec![0; NEXT_WORDS]), None);
        assert_eq!(decode(&vec![u64::MAX; NEXT_WORDS]), None);
    }

    #[test]
    fn what_leads_to_the_own_host_is_told_apart() {
        for local in
            ["127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "0.0.0.0:1", "LocalHost:1", "[::ffff:127.0.0.1]:1"]
        {
            assert!(is_local(local), "{local}");
        }
        for elsewhere in ["10.0.0.1:1", "host:1", "[fe80::1]:1", "localhost.example:1"] {
            assert!(!is_local(elsewhere), "{elsewhere}");
        }
    }
}
