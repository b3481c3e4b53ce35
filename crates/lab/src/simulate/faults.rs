//! Kinds of faults that may occur, and those that a seed has.
//!
//! The caller names the kinds. A seed takes or omits each of them, and draws the times of faults
//! ([`pando_sim::FaultPlan`]). All faults end, but for two: a compute server that dies has an heir, and a memory server
//! that is lost has copies.

use std::fmt;
use std::str::FromStr;

use pando_fabric::{Nanos, Random};
use pando_sim::{FaultBounds, FaultKind, FaultPlan};
use serde::{Serialize, Serializer};

/// Kinds of faults of the cluster.
const KINDS: [FaultKind; 7] = FaultKind::PASSING;

/// Name of the kind that drops futures of operations.
const CUT_OFF: &str = "cut-off";
/// Name of the kind that preempts threads while they compute.
const PREEMPT: &str = "preempt";
/// Name of the kind that ends the process of a compute server, which has a log and an heir.
const DEATH: &str = "kill-compute";
/// Name of the kind that ends a memory server, of which there are copies.
const LOSS: &str = "kill-memory";

/// Maximum number of faults in one run.
const FAULTS_MAX: u64 = 6;

/// A set of kinds of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSet(u32);

impl FaultSet {
    pub const NONE: Self = Self(0);
    /// All kinds of the cluster, the death of a compute server, and the loss of a memory server.
    pub const ALL: Self = Self(Self::CLUSTER.0 | Self::DEATH.0 | Self::LOSS.0);
    const CLUSTER: Self = Self((1 << KINDS.len()) - 1);
    /// Operations are dropped while they wait; not a fault of the cluster.
    const CUT_OFF: Self = Self(1 << KINDS.len());
    /// Threads are preempted while they compute; not a fault of the cluster.
    const PREEMPT: Self = Self(1 << (KINDS.len() + 1));
    /// The compute server dies, and an heir goes on; not a fault of the cluster.
    const DEATH: Self = Self(1 << (KINDS.len() + 2));
    /// A memory server is lost, and others have copies.
    const LOSS: Self = Self(1 << (KINDS.len() + 3));

    pub fn of(kind: FaultKind) -> Self {
        Self(
            KINDS
                .iter()
                .zip(0..)
                .filter(|(known, _)| **known == kind)
                .fold(0, |set, (_, bit)| set | 1 << bit),
        )
    }

    pub fn has(self, kind: FaultKind) -> bool {
        self.0 & Self::of(kind).0 != 0
    }

    /// The kinds of the cluster alone.
    pub fn of_cluster(self) -> Self {
        Self(self.0 & Self::CLUSTER.0)
    }

    /// Whether futures of operations are dropped.
    pub fn cuts_off(self) -> bool {
        self.0 & Self::CUT_OFF.0 != 0
    }

    /// Whether threads are preempted.
    pub fn preempts(self) -> bool {
        self.0 & Self::PREEMPT.0 != 0
    }

    /// Whether a compute server may die.
    pub fn kills_compute(self) -> bool {
        self.0 & Self::DEATH.0 != 0
    }

    /// Whether a memory server that lives may not answer.
    pub fn lose_answers(self) -> bool {
        let losing = [FaultKind::LostAnswers, FaultKind::Disconnect, FaultKind::Stop, FaultKind::Kill];
        losing.into_iter().any(|kind| self.has(kind))
    }

    /// Whether a memory server may be lost.
    pub fn kills_memory(self) -> bool {
        self.0 & Self::LOSS.0 != 0
    }

    fn names(self) -> impl Iterator<Item = &'static str> {
        let others = [
            self.cuts_off().then_some(CUT_OFF),
            self.preempts().then_some(PREEMPT),
            self.kills_compute().then_some(DEATH),
            self.kills_memory().then_some(LOSS),
        ];
        self.kinds().map(FaultKind::name).chain(others.into_iter().flatten())
    }

    fn kinds(self) -> impl Iterator<Item = FaultKind> {
        KINDS.into_iter().filter(move |kind| self.has(*kind))
    }

    /// Draws the kinds of one seed: each kind of this set with probability one half.
    pub fn draw(self, random: &Random) -> Self {
        Self(self.0 & (random.next() >> 32) as u32)
    }

    /// Draws the faults of a run with these kinds, and their times.
    pub fn plan(self, random: &Random, mut bounds: FaultBounds) -> FaultPlan {
        bounds.faults = 1 + (random.next() >> 32) as usize % FAULTS_MAX as usize;
        FaultPlan::draw(random.next(), &self.kinds().collect::<Vec<_>>(), &bounds)
    }
}

/// Time at which the last fault has ended.
pub fn end_of(plan: &FaultPlan) -> Nanos {
    plan.faults.iter().map(|(at, _)| *at).max().unwrap_or(0)
}

impl fmt::Display for FaultSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NONE => f.write_str("none"),
            Self::ALL => f.write_str("all"),
            _ => f.write_str(&self.names().collect::<Vec<_>>().join(",")),
        }
    }
}

impl Serialize for FaultSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.names())
    }
}

impl FromStr for FaultSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut set = Self::NONE;
        for name in text.split(',') {
            set.0 |= match name {
                "none" if text == "none" => 0,
                "all" => Self::ALL.0,
                CUT_OFF => Self::CUT_OFF.0,
                PREEMPT => Self::PREEMPT.0,
                DEATH => Self::DEATH.0,
                LOSS => Self::LOSS.0,
                _ => match KINDS.iter().find(|kind| kind.name() == name) {
                    Some(kind) => Self::of(*kind).0,
                    None => {
                        let known = Self(Self::ALL.0 | Self::CUT_OFF.0 | Self::PREEMPT.0).names();
                        let known = known.collect::<Vec<_>>().join(", ");
                        return Err(format!(
                            "`{name}` is no fault of a simulation; there are {known}, all and none"
                        ));
                    }
                },
            };
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_faults_comes_back_as_it_was_written() {
        for text in [
            "none",
            "all",
            "torn",
            "spikes,stop,lost-answers",
            "kill-compute,kill-memory",
            "torn,cut-off,preempt",
        ] {
            assert_eq!(text.parse::<FaultSet>().expect(text).to_string(), text);
        }
        assert_eq!("stop,torn,stop".parse::<FaultSet>().expect("valid").to_string(), "torn,stop");
        for text in ["", "tornado", "torn,none", "torn, stop"] {
            let error = text.parse::<FaultSet>().expect_err(text);
            assert!(error.contains("is no fault"), "{error}");
        }
    }
}
