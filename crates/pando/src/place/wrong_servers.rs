//! Diagnosis of a wrong list of memory servers: some missing, of another pool, named twice, or in the wrong
//! order.
//!
//! The superblock of each memory server contains its pool and its number; it is examined only after attaching
//! has failed. A list without contradictions is then completed (`find_servers.rs`). If that fails, the error
//! says what to name instead.

use pando_fabric::Endpoint;
use pando_pool::{PoolError, RegionPlace, place_of_region};
use pando_rt::block_on;

use crate::error::Result;

/// Largest number of memory servers named in a sentence.
const TOLD_MAX: usize = 8;

/// Whether a wrong list of memory servers may cause this error.
pub(super) fn may_be_why(error: &PoolError) -> bool {
    match error {
        PoolError::WrongServers { .. } | PoolError::ForeignRegion { .. } => true,
        // A server that may join is in the position of one of the pool's.
        PoolError::NotAPool { server } => server.0 > 0,
        _ => false,
    }
}

/// A wrong list, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// Some servers are missing, or the order is wrong.
    Incomplete(String),
    /// Two servers belong to different pools, or are the same one.
    Contradictory(String),
}

impl Wrong {
    pub fn sentence(&self) -> &str {
        match self {
            Self::Incomplete(sentence) | Self::Contradictory(sentence) => sentence,
        }
    }
}

/// Pool and number of each memory server that `ep` reaches, in the order in which they were named. Those that are `drained` are
/// not asked.
pub(super) fn places<E: Endpoint>(
    ep: &E,
    drained: impl Fn(usize) -> bool,
) -> Result<Vec<Option<RegionPlace>>> {
    let place = |(at, &region)| match drained(at) {
        true => Ok(None),
        false => Ok(block_on(ep, place_of_region(ep, region))?),
    };
    ep.regions().iter().enumerate().map(place).collect()
}

/// The fault of `addresses`, where servers with the places `found` are; `servers` is the number of servers of
/// the pool, if known. Those that are `drained` need not be there.
pub(super) fn diagnosis(
    addresses: &[String],
    found: &[Option<RegionPlace>],
    servers: Option<usize>,
    drained: impl Fn(usize) -> bool,
) -> Option<Wrong> {
    let places = || addresses.iter().zip(found).filter_map(|(address, place)| Some((address, (*place)?)));
    let (first, pool) = places().find(|(_, place)| place.server == 0).or_else(|| places().next())?;
    let (pool, of_first) = (pool.pool, pool.server);
    if let Some((address, other)) = places().find(|(_, place)| place.pool != pool) {
        return Some(Wrong::Contradictory(format!(
            "{address} is memory server {} of another pool than {first}, which is memory server {of_first} of this one",
            other.server
        )));
    }
    for (at, (address, place)) in places().enumerate() {
        if let Some((earlier, _)) = places().take(at).find(|(_, earlier)| earlier.server == place.server) {
            let sentence = format!("{earlier} and {address} are the same memory server, {}", place.server);
            return Some(Wrong::Contradictory(sentence));
        }
    }
    let named = |server: usize| places().any(|(_, place)| place.server == server);
    let known = places().map(|(_, place)| place.server + 1).max().unwrap_or(0);
    let missing: Vec<usize> = (0..servers.unwrap_or(known).max(known))
        .filter(|&server| !named(server) && !drained(server))
        .collect();
    if !missing.is_empty() {
        let at_least = if servers.is_some() { "" } else { "at least " };
        let servers = servers.unwrap_or(known).max(known);
        let are_missing = match missing.len() {
            1 => format!("memory server {} is missing", missing[0]),
            _ => format!("memory servers {} are missing", list(&missing)),
        };
        let named = addresses.len();
        let were_named = if named == 1 { "was named" } else { "were named" };
        return Some(Wrong::Incomplete(format!(
            "the pool has {at_least}{servers} memory servers, {named} {were_named}: {are_missing}"
        )));
    }
    let mut ordered: Vec<(&String, RegionPlace)> = places().collect();
    ordered.sort_by_key(|(_, place)| place.server);
    let ordered: Vec<&str> = ordered.iter().map(|(address, _)| address.as_str()).collect();
    let is_ordered = found.iter().enumerate().all(|(at, place)| place.is_none_or(|place| place.server == at));
    let in_order = || format!("the memory servers are to be named in the order {}", ordered.join(","));
    (!is_ordered).then(|| Wrong::Incomplete(in_order()))
}

/// Numbers as part of a sentence; only the first ones if there are many.
fn list(numbers: &[usize]) -> String {
    let told: Vec<String> = numbers.iter().take(TOLD_MAX).map(usize::to_string).collect();
    match numbers.len() - told.len() {
        0 => told.join(", "),
        more => format!("{} and {more} more", told.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(places: &[Option<(u64, usize)>], servers: Option<usize>) -> Option<String> {
        let addresses: Vec<String> = (0..places.len()).map(|at| format!("host{at}:1")).collect();
        let places = places.iter().map(|place| place.map(|(pool, server)| RegionPlace { pool, server }));
        let wrong = diagnosis(&addresses, &places.collect::<Vec<_>>(), servers, |server| {
            server == 9 && servers == Some(11)
        });
        wrong.map(|wrong| wrong.sentence().to_owned())
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (places, servers, said) in [
            (
                &[Some((7, 1)), Some((7, 0))][..],
                None,
                "the memory servers are to be named in the order host1:1,host0:1",
            ),
            (
                &[Some((7, 0)), Some((7, 2))],
                Some(4),
                "the pool has 4 memory servers, 2 were named: memory servers 1, 3 are missing",
            ),
            (
                &[Some((7, 3)), Some((7, 0))],
                Some(1 << 15),
                "the pool has 32768 memory servers, 2 were named: memory servers 1, 2, 4, 5, 6, 7, 8, 9 and 32758 more are missing",
            ),
            (
                &[Some((7, 2)), Some((7, 1))],
                None,
                "the pool has at least 3 memory servers, 2 were named: memory server 0 is missing",
            ),
            (
                &[Some((7, 0)), Some((8, 1))],
                None,
                "host1:1 is memory server 1 of another pool than host0:1, which is memory server 0 of this one",
            ),
            (
                &[Some((7, 0)), Some((7, 1)), Some((7, 1))],
                Some(2),
                "host1:1 and host2:1 are the same memory server, 1",
            ),
        ] {
            assert_eq!(of(places, servers).as_deref(), Some(said));
        }
        assert_eq!(of(&[Some((7, 0)), Some((7, 1)), None], Some(2)), None);
        let mut one_is_drained: Vec<_> = (0..12).map(|server| Some((7, server))).collect();
        one_is_drained[9] = None;
        assert_eq!(of(&one_is_drained, Some(11)), None);
        assert_eq!(of(&[None, None], None), None);
    }
}
