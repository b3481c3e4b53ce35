//! Finds the memory servers of a pool that were not named, by those that were: each knows where the next one is.
//!
//! What is found is asked which memory server of which pool it is, and followed once, so this ends whatever memory servers say. Each
//! connection has the deadline that all have.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use pando_fabric::{Endpoint, Fabric, RegionInfo};
use pando_fabric_net::TcpFabric;
use pando_pool::{RegionPlace, next_of_region, place_of_region};
use pando_rt::block_on;

use crate::config::Config;
use crate::error::Result;
use crate::place::tcp_config;

/// What was found.
#[derive(Default)]
pub(crate) struct Found {
    /// The pool's memory servers in their order, as far as they are known, and behind them those named that are of no pool; `None` if
    /// some before the last one are missing.
    pub whole: Option<Vec<String>>,
    /// What could not be found, one sentence each.
    pub missed: Vec<String>,
}

/// Looks for the memory servers of the pool that `addresses`, which `ep` reaches, are some of; `places` are theirs.
pub(crate) fn find<E: Endpoint>(
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
        // That after the last one is the first one.
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
    let whole = servers.keys().copied().eq(0..servers.len()).then(|| {
        let of_none = addresses.iter().zip(places).filter(|(_, place)| place.is_none());
        servers.into_values().chain(of_none.map(|(address, _)| address.clone())).collect()
    });
    Ok(Found { whole, missed })
}

/// What is at `address`, and where the next one is.
fn look(config: &Config, address: &str, seed: u64) -> Result<(Option<RegionPlace>, Option<String>)> {
    let fabric = TcpFabric::connect(tcp_config(config, &[address.to_owned()]))?;
    let (ep, region) = (fabric.endpoint(seed)?, fabric.regions()[0]);
    let place = block_on(&ep, place_of_region(&ep, region))?;
    let next = place.map(|place| next(&ep, region, place)).transpose()?.flatten();
    Ok((place, next))
}

fn next<E: Endpoint>(ep: &E, region: RegionInfo, place: RegionPlace) -> Result<Option<String>> {
    Ok(block_on(ep, next_of_region(ep, region, place))?)
}
