//! Busy times of resources, which show the bottleneck of a cluster.
//!
//! Every serial resource counts its busy time. [`Usage`] is a snapshot of these counts; two snapshots give
//! the shares of the time in between ([`Usage::since`]).

use pando_fabric::Nanos;
use serde::Serialize;

use crate::world::World;

/// Busy times since the start of the cluster, in ns.
#[derive(Clone, Debug)]
pub struct Usage {
    now: Nanos,
    /// Busy times of messages and fetches, by NIC, then direction.
    messages: Vec<Nanos>,
    /// Busy times of the wire, by NIC, then direction.
    wires: Vec<Nanos>,
    /// Busy times of the units for atomics, by memory server.
    atomics: Vec<Vec<Nanos>>,
    /// Time for which waiting atomics blocked later requests, by memory server.
    blocked: Vec<Nanos>,
    /// Busy time of all cores together, by memory server.
    cores: Vec<Nanos>,
    cores_each: u64,
    /// Computing time of all threads together, including their waits for each other.
    computed: Nanos,
    /// Waits of all threads for each other.
    contended: Nanos,
    threads: u64,
}

/// Shares of a period of time, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shares {
    /// Busy share of the busiest message engine of a NIC, in one direction or in fetching from host memory.
    pub messages: f64,
    /// Busy share of the busiest wire of a NIC, in one direction.
    pub bytes: f64,
    /// Busy share of the busiest unit for atomics.
    pub atomics: f64,
    /// Share in which a waiting atomic blocked later requests, of the memory server where it is largest.
    pub blocked: f64,
    /// Busy share of the cores of the busiest memory server.
    pub cores: f64,
    /// Share of the time of all threads spent computing.
    pub compute: f64,
    /// Share of the time of all threads spent waiting for another thread of the same server to release a
    /// latch, a queue or the like, and for its cache line.
    pub contention: f64,
}

impl Usage {
    pub(crate) fn of(world: &World) -> Self {
        let busy = world.workers.iter().filter(|worker| worker.computed > 0);
        Self {
            now: world.now,
            messages: world
                .nics
                .iter()
                .flat_map(|nic| {
                    let [outbound, inbound] = [&nic.outbound, &nic.inbound].map(|port| port.busy()[0]);
                    [outbound, inbound, nic.fetching()]
                })
                .collect(),
            wires: world
                .nics
                .iter()
                .flat_map(|nic| [&nic.outbound, &nic.inbound].map(|port| port.busy()[1]))
                .collect(),
            atomics: world.servers.iter().map(|server| server.atomics.busy()).collect(),
            blocked: world.servers.iter().map(|server| server.atomics.blocked()).collect(),
            cores: world.servers.iter().map(|server| server.cores_busy).collect(),
            cores_each: world.model.memory_server.cores as u64,
            computed: world.workers.iter().map(|worker| worker.computed).sum(),
            contended: world.workers.iter().map(|worker| worker.contended).sum(),
            threads: busy.count() as u64,
        }
    }

    /// Shares of the time since an earlier snapshot of the same cluster.
    pub fn since(&self, before: &Self) -> Shares {
        let time = (self.now - before.now).max(1) as f64;
        let share = |busy: Nanos| busy as f64 / time;
        // What has no entry before was not busy then.
        let most = |now: &[Nanos], before: &[Nanos]| {
            let before = before.iter().chain(std::iter::repeat(&0));
            now.iter().zip(before).map(|(now, before)| now - before).max().unwrap_or(0)
        };
        let units = self.atomics.iter().zip(&before.atomics).map(|(now, before)| most(now, before));
        let of_threads = |busy: Nanos| share(busy) / self.threads.max(1) as f64;
        let contended = self.contended - before.contended;
        Shares {
            messages: share(most(&self.messages, &before.messages)),
            bytes: share(most(&self.wires, &before.wires)),
            atomics: share(units.max().unwrap_or(0)),
            blocked: share(most(&self.blocked, &before.blocked)),
            cores: share(most(&self.cores, &before.cores)) / self.cores_each.max(1) as f64,
            compute: of_threads((self.computed - before.computed).saturating_sub(contended)),
            contention: of_threads(contended),
        }
    }
}

impl Shares {
    /// The bottleneck in a word or two: a resource that is busy nearly all of the time, otherwise the
    /// activity on which threads spend most of theirs. *Round trips* are waits for an idle network and for
    /// locks.
    pub fn limit(&self) -> &'static str {
        const NEARLY: f64 = 0.85;
        let waiting = 1.0 - self.compute - self.contention;
        match self {
            _ if self.blocked > NEARLY || self.atomics > NEARLY => "atomics",
            _ if self.bytes > NEARLY && self.bytes > self.messages => "bandwidth",
            _ if self.messages > NEARLY => "message rate",
            _ if self.cores > NEARLY => "memory servers' cores",
            _ if self.contention > self.compute && self.contention > waiting => "local contention",
            _ if self.compute > waiting => "compute",
            _ => "round trips",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_what_is_busy_or_where_time_goes() {
        let idle = Shares {
            messages: 0.2,
            bytes: 0.1,
            atomics: 0.0,
            blocked: 0.0,
            cores: 0.0,
            compute: 0.1,
            contention: 0.1,
        };
        assert_eq!(idle.limit(), "round trips");
        assert_eq!(Shares { bytes: 0.95, ..idle }.limit(), "bandwidth");
        assert_eq!(Shares { bytes: 0.9, messages: 0.95, ..idle }.limit(), "message rate");
        assert_eq!(Shares { atomics: 0.9, messages: 0.95, ..idle }.limit(), "atomics");
        assert_eq!(Shares { blocked: 0.9, ..idle }.limit(), "atomics");
        assert_eq!(Shares { cores: 0.9, ..idle }.limit(), "memory servers' cores");
        assert_eq!(Shares { contention: 0.5, ..idle }.limit(), "local contention");
        assert_eq!(Shares { compute: 0.6, ..idle }.limit(), "compute");
    }
}
