//! Faults and plans of faults.
//!
//! A fault happens at a time of virtual time ([`SimFabric::plan`](crate::SimFabric::plan)), so a run with
//! faults repeats like any other. [`FaultPlan::draw`] draws a plan from a seed. At its end all faults are
//! over, except for killed compute servers and lost memory.

use std::fmt;
use std::str::FromStr;

use pando_fabric::{MemoryServerId, Nanos, Random};

/// One fault, or its end.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// The way to the memory server, its work and the way back take `factor` times as long; 1 is normal.
    Slow {
        server: MemoryServerId,
        factor: u32,
    },
    /// The memory server does not answer. Requests to it are retried until they time out, without effect.
    Stop {
        server: MemoryServerId,
    },
    /// The memory server answers again, also retried requests.
    Resume {
        server: MemoryServerId,
    },
    /// The memory server ends: all verbs and calls in progress fail, and so do later ones.
    Kill {
        server: MemoryServerId,
    },
    /// The memory server is back, with its memory as it was when it ended, or with zeros.
    Restart {
        server: MemoryServerId,
        memory_lost: bool,
    },
    /// The compute server ends. Its futures are dropped; its verbs in flight still take effect.
    KillCompute {
        compute_server: usize,
    },
    /// All connections from a compute server to a memory server are lost: new verbs fail at once, and verbs
    /// in flight fail with or without having taken effect.
    Disconnect {
        compute_server: usize,
        server: MemoryServerId,
    },
    Reconnect {
        compute_server: usize,
        server: MemoryServerId,
    },
    /// From this time on, this share of READs and WRITEs longer than a line is torn.
    Torn {
        share: f64,
    },
    /// From this time on, this share of one-way trips takes up to `ns` longer.
    Spikes {
        share: f64,
        ns: Nanos,
    },
    /// From this time on, this share of verbs and calls takes effect but times out.
    LostAnswers {
        share: f64,
    },
}

/// Kinds of faults from which a plan is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FaultKind {
    /// Torn READs and WRITEs for a while, with one of several shares.
    Torn,
    /// Delays of up to 100 µs.
    Spikes,
    /// A memory server that is 2 to 20 times slower.
    Slow,
    /// A memory server that does not answer, for less or more than the timeout.
    Stop,
    /// A memory server that is restarted with its memory.
    Kill,
    /// A memory server that is restarted without its memory.
    KillMemory,
    /// A compute server that ends permanently. Never the last one.
    KillCompute,
    /// Lost connections between a compute server and a memory server.
    Disconnect,
    /// Lost answers.
    LostAnswers,
}

impl FaultKind {
    /// All kinds, in the order of their declaration.
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

    /// Those that lose no memory and end no compute server.
    pub const PASSING: [Self; 7] =
        [Self::Torn, Self::Spikes, Self::Slow, Self::Stop, Self::Kill, Self::Disconnect, Self::LostAnswers];

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

/// An unknown name of a kind of fault.
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

/// Parameters of the drawing of a plan.
#[derive(Clone, Debug)]
pub struct FaultBounds {
    pub compute_servers: usize,
    pub memory_servers: usize,
    /// No fault begins before `from`, and all are over at `until`.
    pub from: Nanos,
    pub until: Nanos,
    /// Maximum number of faults. They may overlap.
    pub faults: usize,
    /// Values to which shares return, and the timeout that stopped servers may exceed.
    pub usual: crate::Faults,
}

/// Faults with their times, in order of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    pub faults: Vec<(Nanos, Fault)>,
}

impl FaultPlan {
    /// Draws a plan of faults of the given kinds. Equal seeds give equal plans.
    ///
    /// # Panics
    /// If `until` is not after `from`, or there is no compute server or no memory server.
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
        // The sort is stable: at equal times the order of drawing stays.
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Whether the plan has faults that may lose keys.
    pub fn loses_memory(&self) -> bool {
        self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Restart { memory_lost: true, .. }))
    }
}

struct Draw<'b> {
    random: Random,
    bounds: &'b FaultBounds,
    /// Number of compute servers not killed by the plan; they have the lowest numbers.
    alive: usize,
}

impl Draw<'_> {
    fn below(&self, n: u64) -> u64 {
        ((u128::from(self.random.next()) * u128::from(n)) >> 64) as u64
    }

    /// A beginning, and an end at most `longest` later.
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
            // Equally often within the timeout and beyond it.
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
        // The end of another fault of the same server may end this one early, but after the last end none is
        // left.
        plan.faults.push((begin, wrong));
        plan.faults.push((end, right));
    }
}
