//! What was busy, and for how long: which resource keeps a cluster from being faster.
//!
//! Everything that serves one thing at a time counts the time that it served. [`Usage`] is a look at these counts;
//! two looks give the shares of the time in between ([`Usage::since`]).

use pando_fabric::Nanos;
use serde::Serialize;

use crate::serial::Serial;
use crate::world::World;

/// What has been busy since the cluster began, in ns.
#[derive(Clone, Debug)]
pub struct Usage {
    now: Nanos,
    /// By NIC and direction.
    ports: Vec<Port>,
    /// By memory server: its busiest unit for atomics, all of them, and how long one that waited held up what came behind it.
    atomics: Vec<Vec<Nanos>>,
    blocked: Vec<Nanos>,
    /// Of all cores of each memory server together.
    cores: Vec<Nanos>,
    cores_each: u64,
    /// Of all threads together, with what they waited for each other, and that.
    computed: Nanos,
    contended: Nanos,
    threads: u64,
}

/// One direction of a NIC.
#[derive(Clone, Copy, Debug)]
struct Port {
    busy: Nanos,
    /// With messages that take as long as their payload.
    with_payload: Nanos,
}

impl Port {
    fn of(port: &Serial) -> Self {
        let (busy, with_payload) = port.busy();
        Self { busy, with_payload }
    }
}

/// Shares of a stretch of time, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shares {
    /// In which the busiest direction of a NIC was.
    pub nic: f64,
    /// Of that: with messages that take as long as their payload does; all others cost what any message costs.
    pub payload: f64,
    /// In which the busiest unit for atomics was.
    pub atomics: f64,
    /// In which the memory server with most of it had an atomic that waited hold up what came behind it.
    pub blocked: f64,
    /// In which the cores of the busiest memory server were.
    pub cores: f64,
    /// Of the time of all threads: computing.
    pub compute: f64,
    /// Of the time of all threads: waiting for another thread of the same server to let go of a latch, a queue and the like, and for
    /// its cache line.
    pub contention: f64,
}

impl Usage {
    pub(crate) fn of(world: &World) -> Self {
        let busy = world.workers.iter().filter(|worker| worker.computed > 0);
        Self {
            now: world.now,
            ports: world
                .nics
                .iter()
                .flat_map(|nic| [Port::of(&nic.outbound), Port::of(&nic.inbound)])
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

    /// The shares of the time since an earlier look at the same cluster.
    pub fn since(&self, before: &Self) -> Shares {
        let time = (self.now - before.now).max(1) as f64;
        let share = |busy: Nanos| busy as f64 / time;
        let ports = self.ports.iter().zip(&before.ports).map(|(now, before)| Port {
            busy: now.busy - before.busy,
            with_payload: now.with_payload - before.with_payload,
        });
        let busiest = ports.max_by_key(|port| port.busy).unwrap_or(Port { busy: 0, with_payload: 0 });
        let most = |now: &[Nanos], before: &[Nanos]| {
            now.iter().zip(before).map(|(now, before)| now - before).max().unwrap_or(0)
        };
        let units = self.atomics.iter().zip(&before.atomics).map(|(now, before)| most(now, before));
        let of_threads = |busy: Nanos| share(busy) / self.threads.max(1) as f64;
        let contended = self.contended - before.contended;
        Shares {
            nic: share(busiest.busy),
            payload: busiest.with_payload as f64 / busiest.busy.max(1) as f64,
            atomics: share(units.max().unwrap_or(0)),
            blocked: share(most(&self.blocked, &before.blocked)),
            cores: share(most(&self.cores, &before.cores)) / self.cores_each.max(1) as f64,
            compute: of_threads((self.computed - before.computed).saturating_sub(contended)),
            contention: of_threads(contended),
        }
    }
}

impl Shares {
    /// What keeps it from being faster, in a word or two: a resource that is busy nearly all of the time, or else where
    /// threads spend most of theirs. *Round trips* are waiting for the network though it is idle, for locks too.
    pub fn limit(&self) -> &'static str {
        const NEARLY: f64 = 0.85;
        let waiting = 1.0 - self.compute - self.contention;
        match self {
            _ if self.blocked > NEARLY || self.atomics > NEARLY => "atomics",
            _ if self.nic > NEARLY && self.payload > 0.5 => "bandwidth",
            _ if self.nic > NEARLY => "message rate",
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
            nic: 0.2,
            payload: 0.9,
            atomics: 0.0,
            blocked: 0.0,
            cores: 0.0,
            compute: 0.1,
            contention: 0.1,
        };
        assert_eq!(idle.limit(), "round trips");
        assert_eq!(Shares { nic: 0.95, ..idle }.limit(), "bandwidth");
        assert_eq!(Shares { nic: 0.95, payload: 0.1, ..idle }.limit(), "message rate");
        assert_eq!(Shares { atomics: 0.9, nic: 0.95, ..idle }.limit(), "atomics");
        assert_eq!(Shares { blocked: 0.9, ..idle }.limit(), "atomics");
        assert_eq!(Shares { cores: 0.9, ..idle }.limit(), "memory servers' cores");
        assert_eq!(Shares { contention: 0.5, ..idle }.limit(), "local contention");
        assert_eq!(Shares { compute: 0.6, ..idle }.limit(), "compute");
    }
}
