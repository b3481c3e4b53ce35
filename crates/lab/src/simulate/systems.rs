//! Systems of seeds: the one that the caller names, or one of all, drawn by the seed.
//!
//! A named system has the techniques of its name and switches; the seed draws everything else. Otherwise the
//! seed draws the techniques, too: a step of an ablation, sometimes with one technique more or less,
//! partitions, the check of READs. Techniques that are unsound on purpose are never drawn.

use std::fmt;

use super::setup::Draw;
use crate::bench::{BenchSpec, System};

/// Steps of the two ablations: names and techniques.
const STEPS: [(&str, &[&str]); 12] = [
    ("fg", &[]),
    ("fg+", &[]),
    ("fg+", &["combine"]),
    ("fg+", &["combine", "on-chip"]),
    ("fg+", &["combine", "on-chip", "hierarchical"]),
    ("sherman", &[]),
    ("art", &[]),
    ("art", &["lock-free-nodes"]),
    ("art", &["lock-free-nodes", "in-place-leaves"]),
    ("art", &["lock-free-nodes", "in-place-leaves", "rear-locks"]),
    ("art", &["lock-free-nodes", "in-place-leaves", "rear-locks", "read-delegation"]),
    ("smart", &[]),
];
/// Index of the first step of SMART.
const SMART_STEPS: usize = 6;

/// Techniques that are sometimes switched against the step.
const SHERMAN_TURNED: [&str; 6] =
    ["index-cache", "write-release", "combine", "lock-table", "hierarchical", "two-level"];
const SMART_TURNED: [&str; 5] =
    ["lock-free-nodes", "in-place-leaves", "rear-locks", "read-delegation", "write-combining"];

/// Name of the pool itself. It is no index, and is simulated only if named.
pub const POOL: &str = "pool";

/// Systems that seeds may have.
#[derive(Clone, Debug, Default)]
pub struct Systems {
    /// `None` for all systems.
    named: Option<Named>,
    /// Whether the pool itself is simulated.
    pool: bool,
}

#[derive(Clone, Debug)]
struct Named {
    system: System,
    /// Name in the request.
    name: String,
    with: Vec<String>,
    without: Vec<String>,
}

impl Systems {
    /// The system with this name and these techniques switched on and off, or `all`.
    ///
    /// # Errors
    /// A sentence about an unknown name or a contradiction.
    pub fn new(name: &str, with: &[String], without: &[String]) -> Result<Self, String> {
        if name == "all" {
            return match (with, without) {
                ([], []) => Ok(Self::default()),
                _ => Err("techniques are those of one system: --with and --without go with --system".into()),
            };
        }
        if name == POOL {
            return match (with, without) {
                ([], []) => Ok(Self { named: None, pool: true }),
                _ => Err("the pool has no techniques".into()),
            };
        }
        let known = || System::named().filter(|system| is_simulated(*system));
        let Some(system) = known().find(|system| system.name() == name) else {
            let names: Vec<_> = known().map(System::name).collect();
            return Err(format!(
                "the system `{name}` is not simulated; there are all, {POOL} and {}",
                names.join(", ")
            ));
        };
        let system = system.switched(with, without).map_err(|error| error.to_string())?;
        BenchSpec { system, ..BenchSpec::default() }.validate().map_err(|error| error.to_string())?;
        let named = Named { system, name: name.into(), with: with.to_vec(), without: without.to_vec() };
        Ok(Self { named: Some(named), pool: false })
    }

    /// DEX alone.
    pub fn dex() -> Self {
        Self::new("dex", &[], &[]).expect("it is known")
    }

    /// Whether the pool itself is simulated.
    pub(super) fn are_pools(&self) -> bool {
        self.pool
    }

    /// The system of a seed.
    pub(super) fn draw(&self, seed: u64) -> System {
        match &self.named {
            Some(named) => named.system,
            None => {
                let techniques = Draw::of(seed, "techniques");
                match Draw::of(seed, "system").one_of(&["dex", "sherman", "smart"]) {
                    "sherman" => draw_peer(&techniques, &STEPS[..SMART_STEPS], &SHERMAN_TURNED),
                    "smart" => draw_peer(&techniques, &STEPS[SMART_STEPS..], &SMART_TURNED),
                    _ => System::Dex,
                }
            }
        }
    }
}

fn is_simulated(system: System) -> bool {
    matches!(system, System::Dex | System::Sherman(_) | System::Smart(_))
}

fn draw_peer(draw: &Draw, steps: &[(&str, &[&str])], turned: &[&str]) -> System {
    let known = "a technique of the system";
    let (name, techniques) = draw.one_of(steps);
    let system: System = name.parse().expect("a system");
    let mut system = system.switched(techniques, &[]).expect(known);
    let another = draw.one_of(turned);
    if draw.one_of(&[true, false, false, false]) {
        let is_on = system.techniques().expect("it has switches").contains(&another);
        system = system.with(another, !is_on).expect(known);
    }
    let has_parts = draw.one_of(&[true, false, false]);
    let switches: &[(&str, &[bool])] = match system {
        // Nodes of one compute server need checksums.
        System::Sherman(_) if has_parts => &[],
        System::Sherman(_) => &[("version-reads", &[true, false, false])],
        _ => &[("scalable-cache", &[true, false]), ("exact-nodes", &[true, false])],
    };
    for (technique, choices) in switches {
        system = system.with(technique, draw.one_of(choices)).expect(known);
    }
    system.partitioned(has_parts).expect("peers have partitions or not")
}

/// As on the command line.
impl fmt::Display for Systems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Named { name, with, without, .. }) = &self.named else {
            return write!(f, "--system {}", if self.pool { POOL } else { "all" });
        };
        write!(f, "--system {name}")?;
        for (option, techniques) in [("--with", with), ("--without", without)] {
            if !techniques.is_empty() {
                write!(f, " {option} {}", techniques.join(","))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn named(name: &str, with: &[&str], without: &[&str]) -> Result<Systems, String> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Systems::new(name, &owned(with), &owned(without))
    }

    #[test]
    fn every_step_is_drawn_and_nothing_unsound() {
        let described = |system: System| format!("{} {:?}", system.name(), system.techniques());
        let drawn: BTreeSet<_> = (0..2_000).map(|seed| described(Systems::default().draw(seed))).collect();
        for (name, techniques) in STEPS {
            let step = named(name, techniques, &[]).expect("known").draw(0);
            assert!(drawn.contains(&described(step)), "{step:?}");
            assert!(drawn.contains(&described(step.partitioned(true).expect("possible"))), "{step:?}");
        }
        assert!(drawn.contains("dex None") && drawn.iter().all(|system| !system.contains("unsound")));
        let has = |part: &str| drawn.iter().any(|system| system.contains(part));
        assert!(["version-reads", "scalable-cache", "exact-nodes", "lock-table"].into_iter().all(has));
    }

    #[test]
    fn what_is_named_is_what_a_seed_has() {
        let systems = named("fg+", &["combine", "lock-table"], &["write-release"]).expect("known");
        assert_eq!(systems.to_string(), "--system fg+ --with combine,lock-table --without write-release");
        assert_eq!(systems.draw(1), systems.draw(2));
        assert_eq!(systems.draw(1).techniques(), Some(vec!["index-cache", "combine", "lock-table"]));
        assert_eq!(Systems::dex().to_string(), "--system dex");
        assert_eq!(Systems::default().to_string(), "--system all");
    }

    #[test]
    fn what_cannot_be_is_said_in_a_sentence() {
        for (name, with, said) in [
            ("telepathy", "", "`telepathy` is not simulated; there are all, pool and dex,"),
            ("plain", "", "is not simulated"),
            ("pool", "combine", "has no techniques"),
            ("all", "combine", "--with and --without go with --system"),
            ("dex", "combine", "has no techniques"),
            ("sherman", "telepathy", "`telepathy` is not known"),
            ("p-sherman", "version-reads", "need"),
        ] {
            let with: &[&str] = if with.is_empty() { &[] } else { &[with] };
            let error = named(name, with, &[]).expect_err(name);
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
        }
    }
}
