//! What can go wrong, and plans of it.
//!
//! A fault happens at a moment of virtual time ([`SimFabric::plan`](crate::SimFabric::plan)), so a run with faults repeats
//! itself like any other. [`FaultPlan::draw`] draws a plan from a seed in which everything is well again at its end, except
//! for compute servers that were killed and memory that was lost.

use std::fmt;
use std::str::FromStr;

use pando_fabric::{MemoryServerId, Nanos, Random};

/// One thing that goes wrong, or right again.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// Everything on the way to the memory server, in it and back takes so many times as long; 1 is as usual.
    Slow {
        server: MemoryServerId,
        factor: u32,
    },
    /// The memory server answers nothing. What reaches it is tried again until it times out, without effect.
    Stop {
        server: MemoryServerId,
    },
    /// It answers again, also what was tried meanwhile.
    Resume {
        server: MemoryServerId,
    },
    /// The memory server ends: verbs and calls in progress fail, wherever they are, and so do later ones.
    Kill {
        server: MemoryServerId,
    },
    /// It is back, with its memory as it was when it ended, or with zeros.
    Restart {
        server: MemoryServerId,
        memory_lost: bool,
    },
    /// The compute server ends. Its futures are dropped; its verbs that are under way still take effect.
    KillCompute {
        compute_server: usize,
    },
    /// All connections from a compute server to a memory server are lost: verbs fail at once, and those under way fail with
    /// or without having taken effect.
    Disconnect {
        compute_server: usize,
        server: MemoryServerId,
    },
    Reconnect {
        compute_server: usize,
        server: MemoryServerId,
    },
    /// From now on this share of READs and WRITEs of more than a line is torn.
    Torn {
        share: f64,
    },
    /// From now on this share of ways takes up to so much longer.
    Spikes {
        share: f64,
        ns: Nanos,
    },
    /// From now on this share of verbs and calls takes effect, but times out.
    LostAnswers {
        share: f64,
    },
}

/// Kinds of faults that a plan is drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FaultKind {
    /// Half or all of long READs and WRITEs are torn for a while.
    Torn,
    /// Delays of up to 100 µs.
    Spikes,
    /// A memory server that is 2 to 20 times slower.
    Slow,
    /// A memory server that answers nothing, for less or more than the timeout.
    Stop,
    /// A memory server that is restarted with its memory.
    Kill,
    /// A memory server that is restarted without its memory.
    KillMemory,
    /// A compute server that ends for good. Never the last one.
    KillCompute,
    /// Lost connections between a compute server and a memory server.
    Disconnect,
    /// Answers that are lost.
    LostAnswers,
}

impl FaultKind {
    /// All of them, in the order of their names here.
    pub const ALL: [Self; 9] = [
        Self::Torn,
        Self::Spikes,
        Self::Slow,
        Self::Stop,
        Self::Kill,
        Self::KillMemory,
        Self::KillCompute,
        Self::Disconnect,
        Self::LostAnswers,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Torn => "torn",
            Self::Spikes => "spikes",
            Self::Slow => "slow",
            Self::Stop => "stop",
            Self::Kill => "kill",
            Self::KillMemory => "kill-memory",
            Self::KillCompute => "kill-compute",
            Self::Disconnect => "disconnect",
            Self::LostAnswers => "lost-answers",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no kind of fault has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no fault {name:?}; there are {}", FaultKind::ALL.map(FaultKind::name).join(", "))]
pub struct UnknownFault {
    name: String,
}

impl FromStr for FaultKind {
    type Err = UnknownFault;

    fn from_str(name: &str) -> Result<Self, UnknownFault> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownFault { name: name.to_owned() })
    }
}

/// What a plan is drawn for.
#[derive(Clone, Debug)]
pub struct FaultBounds {
    pub compute_servers: usize,
    pub memory_servers: usize,
    /// Nothing happens before, and all is well again after.
    pub from: Nanos,
    pub until: Nanos,
    /// Faults at most; each is well again before or after the next one begins.
    pub faults: usize,
    /// The shares of torn verbs to go back to, and the timeout that stopped servers are to exceed or not.
    pub usual: crate::Faults,
}

/// Faults and when they happen, by time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    pub faults: Vec<(Nanos, Fault)>,
}

impl FaultPlan {
    /// A plan of faults of some kinds. The same seed is the same plan.
    ///
    /// # Panics
    /// If `until` is not after `from`, or there is no server of a kind.
    pub fn draw(seed: u64, kinds: &[FaultKind], bounds: &FaultBounds) -> Self {
        assert!(bounds.from < bounds.until, "{bounds:?}: no time to fail in");
        assert!(
            bounds.compute_servers > 0 && bounds.memory_servers > 0,
            "{bounds:?}: nothing that could fail"
        );
        let mut draw = Draw { random: Random::new(seed), bounds, alive: bounds.compute_servers };
        let mut plan = Self::default();
        if kinds.is_empty() {
            return plan;
        }
        for _ in 0..bounds.faults {
            let kind = kinds[draw.below(kinds.len() as u64) as usize];
            draw.add(kind, &mut plan);
        }
        // Sorted stably: what was drawn first happens first.
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Whether the plan has faults after which keys may be gone.
    pub fn loses_memory(&self) -> bool {
        self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Restart { memory_lost: true, .. }))
    }
}

struct Draw<'b> {
    random: Random,
    bounds: &'b FaultBounds,
    /// Compute servers that no fault kills: those of the lowest numbers.
    alive: usize,
}

impl Draw<'_> {
    fn below(&self, n: u64) -> u64 {
        ((u128::from(self.random.next()) * u128::from(n)) >> 64) as u64
    }

    /// A beginning and an end, the latter at most `longest` later.
    fn times(&self, longest: Nanos) -> (Nanos, Nanos) {
        let FaultBounds { from, until, .. } = *self.bounds;
        let begin = from + self.below(until - from);
        let end = begin + 1 + self.below(longest.max(1));
        (begin, end.min(until))
    }

    fn add(&mut self, kind: FaultKind, plan: &mut FaultPlan) {
        let usual = &self.bounds.usual;
        let window = self.bounds.until - self.bounds.from;
        let server = MemoryServerId(self.below(self.bounds.memory_servers as u64) as u16);
        let compute_server = self.below(self.bounds.compute_servers as u64) as usize;
        let (begin, end) = match kind {
            // As often within the timeout as beyond it.
            FaultKind::Stop => self.times(2 * usual.timeout_ns),
            _ => self.times(window / 4),
        };
        let share = [0.01, 0.1, 0.5, 1.0][self.below(4) as usize];
        let (wrong, right) = match kind {
            FaultKind::Torn => (Fault::Torn { share }, Fault::Torn { share: usual.torn_share }),
            FaultKind::Spikes => (
                Fault::Spikes { share, ns: 1 + self.below(100_000) },
                Fault::Spikes { share: usual.spike_share, ns: usual.spike_ns },
            ),
            FaultKind::Slow => {
                (Fault::Slow { server, factor: 2 + self.below(19) as u32 }, Fault::Slow { server, factor: 1 })
            }
            FaultKind::Stop => (Fault::Stop { server }, Fault::Resume { server }),
            FaultKind::Kill => (Fault::Kill { server }, Fault::Restart { server, memory_lost: false }),
            FaultKind::KillMemory => (Fault::Kill { server }, Fault::Restart { server, memory_lost: true }),
            FaultKind::Disconnect => {
                (Fault::Disconnect { compute_server, server }, Fault::Reconnect { compute_server, server })
            }
            FaultKind::LostAnswers => (
                Fault::LostAnswers { share: share / 10.0 },
                Fault::LostAnswers { share: usual.lost_answer_share },
            ),
            FaultKind::KillCompute if self.alive == 1 => return,
            FaultKind::KillCompute => {
                self.alive -= 1;
                plan.faults.push((begin, Fault::KillCompute { compute_server: self.alive }));
                return;
            }
        };
        // Another fault of the server may end this one early, but the last to end ends them all.
        plan.faults.push((begin, wrong));
        plan.faults.push((end, right));
    }
}
