//! The death of the only process of an index, with several compute servers that have logs, and its recovery
//! (`docs/durability.md`).
//!
//! It comes once all operations have ended, so each of them knows whether it was answered. The caches are gone, and what
//! they had and the pages lack must be in the logs, whatever keys had moved, and whatever moves had failed.

use std::sync::Arc;

use pando_cache::Cache;
use pando_dex::layout::Layout;
use pando_dex::{Ctx, DexError, KeyRange, Tree, TreeConfig, give_back_locks, redo};
use pando_log::{Contents, Log, Options, Space};

use super::client::Client;
use super::cluster::ClusterError;
use super::dex::{Dex, Life};
use super::setup::PATIENCE_NS;

/// The process dies and recovers, if the seed says so. What it would do by itself must have ended: left locks and
/// unmade moves are in no log.
pub async fn fall<L: Layout>(client: &Client<Dex<L>>) -> Result<bool, ClusterError> {
    let (index, ep) = (&client.index, &client.ep);
    if !index.case.falls || index.pool.has_left_locks() || index.unmade_move().is_some() {
        return Ok(false);
    }
    let configs: Vec<_> =
        (0..index.servers()).map(|server| index.life(server).tree.config().clone()).collect();
    let mut redone = Vec::new();
    for config in &configs {
        let log = config.log.as_ref().expect("it has a log");
        let space = Space::read(ep, log.space().root()).await.map_err(DexError::from)?;
        let contents = Contents::read(ep, space).await.map_err(DexError::from)?;
        redo(ep, index.layout, &contents, |_, _| ()).await?;
        redone.push(contents);
    }
    give_back_locks(ep, index.layout, configs[0].root).await?;
    let table = index.routes[0].table();
    for (server, (config, contents)) in configs.into_iter().zip(redone).enumerate() {
        let verbs_take_ns = client.setup.verbs_take_ns();
        let options = Options { patience_ns: PATIENCE_NS, verbs_take_ns, ..Options::default() };
        let log = Some(Arc::new(Log::resume(ep, contents, options).await.map_err(DexError::from)?));
        let range = table.range_of(server).unwrap_or_else(KeyRange::none);
        let cache = Arc::new(Cache::new(&index.case.cache_config())?);
        let worker = cache.worker();
        let ctx = Ctx { ep, worker: &worker };
        let config = TreeConfig { log, range, ..config };
        let tree = Tree::open(ctx, Arc::clone(&cache), index.pool.clone(), index.layout, config).await;
        cache.retire(&worker);
        index.replace(server, Life::new(0, index.pool.clone(), tree?));
    }
    Ok(true)
}
