//! The death of the only process of an index, with several compute servers that have logs, and its recovery
//! (`docs/durability.md`).
//!
//! It comes once all operations have ended, so each of them knows whether it was answered. The caches are gone, and what
//! they had and the pages lack must be in the logs, whatever keys had moved, and whatever moves had failed.

use pando_dex::layout::Layout;
use pando_dex::{KeyRange, TreeConfig, give_back_locks};

use super::client::Client;
use super::cluster::ClusterError;
use super::death;
use super::dex::{Dex, Life};

/// The process dies and recovers, if the seed says so. What it would do by itself must have ended: left locks and
/// unmade moves are in no log.
pub async fn fall<L: Layout>(client: &Client<Dex<L>>) -> Result<bool, ClusterError> {
    let (index, ep) = (&client.index, &client.ep);
    if !index.case.falls || index.pool.has_left_locks() || index.unmade_move().is_some() {
        return Ok(false);
    }
    let configs: Vec<_> =
        (0..index.servers()).map(|server| index.life(server).tree.config().clone()).collect();
    let mut contents = Vec::new();
    for config in &configs {
        contents.push(death::redone(client, config).await?);
    }
    give_back_locks(ep, index.layout, configs[0].root).await?;
    let table = index.routes[0].table();
    for (server, (config, contents)) in configs.into_iter().zip(contents).enumerate() {
        let log = Some(death::resumed(client, contents).await?);
        let range = table.range_of(server).unwrap_or_else(KeyRange::none);
        let tree = death::reopened(client, &index.pool, TreeConfig { log, range, ..config }).await?;
        index.replace(server, Life::new(0, index.pool.clone(), tree));
    }
    Ok(true)
}
