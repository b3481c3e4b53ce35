//! What the memory servers of a pool in use want of the compute servers: that they leave one, or spread over all.
//!
//! A process that [drains](crate::Cluster::drain_memory_server) a memory server says so in the membership of the pool. One that
//! wants the indexes [spread](crate::Cluster::spread_indexes) says so in its notice in the attach table, under a number. Each
//! process that owns keys finds that at its next look ([`Index::follow`]), moves what is its own, and answers the number of a
//! spread in its own notice. Whether a drained server is empty is seen from outside; but where blocks are left that processes which
//! died had freed, the process that drains it asks each owner, under a number too, whether it has left the server.

use std::time::Duration;

use pando_fabric::MemoryServerId;
use pando_pool::ServerState;
use pando_rt::block_on;

use super::Index;
use crate::error::Result;
use crate::local::Servers;
use crate::place::AnyEndpoint;
use crate::shared::Spread;

/// Pause after a drain that found nothing more, although the server is not empty yet: keys may have come from other
/// processes since.
const REST: Duration = Duration::from_secs(2);

impl Index {
    /// Leaves memory servers that are drained, and spreads over all that there are for each of `wishes`. Returns the number
    /// of nodes and long values that were moved.
    pub(super) fn place_anew(
        &self,
        ep: &AnyEndpoint,
        servers: &Servers,
        wishes: Vec<Spread>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<u64> {
        let pool = &self.shared.pool;
        block_on(ep, pool.learn(ep))?;
        servers.forget_drained(ep)?;
        let all = (0..pool.servers() as u16).map(MemoryServerId);
        let is_draining =
            |server: &MemoryServerId| matches!(pool.server_state(*server), Ok(ServerState::Draining));
        let draining: Vec<_> = all.filter(is_draining).collect();
        let mut moved = 0;
        for server in draining.into_iter().filter(|&server| server != servers.record.root.server()) {
            if self.data.has_left(server, REST) {
                continue;
            }
            let drained = servers.drain(&self.shared, ep, server, &mut |_| goes_on())?;
            block_on(ep, pool.leave_inactive(ep))?;
            if drained.nodes + drained.values == 0 {
                self.data.note_left(server);
            }
            moved += drained.nodes + drained.values;
        }
        for wish in wishes {
            let nodes = match wish.leaves {
                None => servers.spread(ep, &mut |_| goes_on())?,
                Some(server) => {
                    let has_left = servers.has_left(&self.shared, ep, server, &mut |_| goes_on())?;
                    u64::from(!has_left)
                }
            };
            moved += if wish.leaves.is_none() { nodes } else { 0 };
            self.shared.set_spread(self.name(), Some(Spread { nodes, ..wish }))?;
        }
        Ok(moved)
    }
}
