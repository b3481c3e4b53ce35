//! Where the memory servers of a pool are: each knows the address of the next one, and the last that of the first.
//!
//! ```text
//! two copies of [bytes:8][host:port]         on each memory server, replaced as `twin.rs` says
//! ```
//! So whoever reaches one of them finds the others, however many there are. Of a pool whose memory servers have no addresses,
//! or that nobody has opened by them yet, nothing is stored. What is found at an address is a hint: the superblock there says
//! which memory server of which pool it is.
//!
//! Writers keep all others from attaching meanwhile; readers need not.

use std::net::IpAddr;

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, RegionInfo, WORD};

use crate::error::Result;
use crate::io::{bytes_of, push_bytes, until_answered};
use crate::layout::{ATTACH_TABLE_AT, NEXT_AT, NEXT_WORDS};
use crate::pool::{Pool, RegionPlace};
use crate::twin::Twin;

/// Bytes of the longest address.
const ADDRESS_MAX: usize = NEXT_WORDS * WORD - 1;

impl Pool {
    /// Has each memory server know where the next one is: `addresses` are those of memory servers 0, 1, ..., each `host:port`; more of
    /// them are ignored. What is there already costs a READ for each server. What is no address stays unknown to others, and
    /// one that leads to the own host only replaces none that may lead there from elsewhere.
    ///
    /// Nobody else may do so at the same time. Whatever fails, each memory server knows the old address or the new one.
    ///
    /// # Errors
    /// [`crate::PoolError::ReadOnly`]; those of verbs.
    pub async fn set_addresses<E: Endpoint>(&self, ep: &E, addresses: &[String]) -> Result<()> {
        self.writer_slot()?;
        let servers = self.servers();
        for number in 0..servers {
            if let Some(next) = addresses.get((number + 1) % servers).filter(|next| is_address(next)) {
                self.set_next(ep, number, next).await?;
            }
        }
        Ok(())
    }

    async fn set_next<E: Endpoint>(&self, ep: &E, number: usize, next: &str) -> Result<()> {
        let twin = twin(self.id(), number, MemoryServerId(number as u16));
        let deadline = self.deadline(ep);
        match twin.read(ep).await? {
            Some((version, words)) => {
                let known = decode(&words);
                let is_kept = |known: &str| known == next || is_local(next) && !is_local(known);
                if known.as_deref().is_some_and(is_kept) {
                    return Ok(());
                }
                twin.replace(ep, version, &encode(next), deadline).await
            }
            // Damaged: there is nothing to be kept.
            None => until_answered(ep, deadline, async || twin.write_first(ep, 1, &encode(next)).await).await,
        }
    }
}

/// Where the memory server after that of `region` is, whose place is `place`; `None` if nobody told it.
///
/// # Errors
/// Those of verbs.
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

/// What memory server `number` of the pool knows, which is reached as memory server `reached`. It is the same bytes by whatever
/// number that is.
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

/// Whether somebody could connect to it.
fn is_address(address: &str) -> bool {
    address.len() <= ADDRESS_MAX
        && address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0))
}

/// Whether it is another host's to nobody but the host itself.
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
