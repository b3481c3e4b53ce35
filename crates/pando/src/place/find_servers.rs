//! Finding the unnamed memory servers of a pool by way of the named ones: each stores the address of the next
//! one.
//!
//! Each server found is asked for its pool and number. A server is followed only once, so the search ends
//! whatever the servers answer. Each connection has the usual deadline.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use pando_fabric::{Endpoint, Fabric, RegionInfo};
use pando_fabric_net::{Finder, TcpEndpoint, TcpFabric};
use pando_pool::{RegionPlace, drained_servers, next_of_region, place_of_region};
use pando_rt::block_on;

use super::tcp_config;
use crate::error::Result;
use crate::options::Config;

/// Result of the search.
#[derive(Default)]
pub(super) struct Found {
    /// The pool's memory servers as far as they are known, in their order, followed by the named servers that
    /// belong to no pool; `None` if the known ones have gaps. A drained server that was not found has an empty address.
    pub whole: Option<Vec<String>>,
    /// Servers that were not found, one sentence each.
    pub missed: Vec<String>,
}

/// Searches for the memory servers of a pool, some of which are at `addresses` and reached by `ep`. `places`
/// are the pools and numbers of these.
pub(super) fn find<E: Endpoint>(
    config: &Config,
    ep: &E,
    addresses: &[String],
    places: &[Option<RegionPlace>],
    seed: u64,
) -> Result<Found> {
    let (mut servers, mut leads, mut missed) = (BTreeMap::new(), Vec::new(), Vec::new());
    let Some(pool) = places.iter().flatten().next().map(|place| place.pool) else {
        return Ok(Found::default());
    };
    for ((address, place), &region) in addresses.iter().zip(places).zip(ep.regions()) {
        if let Some(place) = place {
            servers.insert(place.server, address.clone());
            leads.push((place.server, next(ep, region, *place)?));
        }
    }
    while let Some((server, next)) = leads.pop() {
        let Some(address) = next else { continue };
        // The server after the last one is the first one.
        let is_known = servers.contains_key(&server.saturating_add(1));
        if is_known || servers.values().any(|known| *known == address) {
            continue;
        }
        match look(config, &address, seed) {
            Ok((Some(place), next)) if place.pool == pool => {
                if let Entry::Vacant(vacant) = servers.entry(place.server) {
                    vacant.insert(address);
                    leads.push((place.server, next));
                }
            }
            Ok(_) => missed.push(format!(
                "the one after memory server {server} is not at {address} any more, where it was last"
            )),
            Err(error) => {
                missed.push(format!("the one after memory server {server}, last at {address}: {error}"));
            }
        }
    }
    // What there is, in the order of the numbers; of a server that is drained, nothing need be.
    let (count, drained) = match servers.get(&0) {
        Some(home) => ask(config, home, seed, |ep, region| Ok(block_on(ep, drained_servers(ep, region))?))?,
        None => (0, Vec::new()),
    };
    let count = servers.keys().last().map_or(0, |last| last + 1).max(count);
    let place = |number| servers.get(&number).cloned().or(drained.contains(&number).then(String::new));
    let whole = (0..count).map(place).collect::<Option<Vec<String>>>().map(|whole| {
        let of_none = addresses.iter().zip(places);
        let of_none = of_none.filter(|(address, place)| place.is_none() && !address.is_empty());
        whole.into_iter().chain(of_none.map(|(address, _)| address.clone())).collect()
    });
    Ok(Found { whole, missed })
}

/// Asks the memory server at `address`.
fn ask<T>(
    config: &Config,
    address: &str,
    seed: u64,
    question: impl FnOnce(&TcpEndpoint, RegionInfo) -> Result<T>,
) -> Result<T> {
    let fabric = TcpFabric::connect(tcp_config(config, &[address.to_owned()]))?;
    question(&fabric.endpoint(seed)?, fabric.regions()[0])
}

/// Pool and number of the server at `address`, and the address of the next one.
pub(super) fn look(
    config: &Config,
    address: &str,
    seed: u64,
) -> Result<(Option<RegionPlace>, Option<String>)> {
    ask(config, address, seed, |ep, region| {
        let place = block_on(ep, place_of_region(ep, region))?;
        let next = place.map(|place| next(ep, region, place)).transpose()?.flatten();
        Ok((place, next))
    })
}

fn next<E: Endpoint>(ep: &E, region: RegionInfo, place: RegionPlace) -> Result<Option<String>> {
    Ok(block_on(ep, next_of_region(ep, region, place))?)
}

/// Finds memory servers of `pool` that join while it is open: the one before it knows its address.
pub(super) fn joining(config: &Config, pool: u64) -> Finder {
    let config = config.clone();
    Box::new(move |server, before| {
        let (_, next) = look(&config, before, 0).ok()?;
        let next = next?;
        let (place, _) = look(&config, &next, 0).ok()?;
        (place? == RegionPlace { pool, server }).then_some(next)
    })
}
