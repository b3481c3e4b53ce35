//! Which index is measured, and which of its published techniques it uses.
//!
//! A peer begins as one of the published designs (FG, FG+, Sherman; ART, SMART), and every technique is a switch by a name of its
//! own: what a step of an ablation adds, and what the papers compare besides.

use pando_sherman::{HAND_OVER, LeafFormat, LockPlace, Options, ReadCheck, Release, Shape, TABLE_LOCKS};
use pando_smart::{CachePolicy, NodeRoom, Techniques};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{BenchError, BenchSpec};

/// Which index is measured. Trees without a cache and local ones run on the simulated cluster only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Dex,
    /// A B+-tree whose every access is remote, under remote locks: what DEX's ablation begins with.
    Plain,
    /// The same, without remote synchronisation of nodes that one compute server owns.
    PlainPartitioned,
    /// A B+-tree in the memory of the one compute server: what distribution costs is measured against it.
    LocalBTree,
    /// A B-link tree: Sherman, FG+ and FG.
    Sherman(ShermanSetup),
    /// An adaptive radix tree: SMART and ART.
    Smart(SmartSetup),
}

/// The published design that a peer begins as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    Fg,
    FgPlus,
    Sherman,
    Art,
    Smart,
}

impl Design {
    const ALL: [Self; 5] = [Self::Fg, Self::FgPlus, Self::Sherman, Self::Art, Self::Smart];

    /// Alone, and with its keys divided among the compute servers.
    const fn names(self) -> [&'static str; 2] {
        match self {
            Self::Fg => ["fg", "p-fg"],
            Self::FgPlus => ["fg+", "p-fg+"],
            Self::Sherman => ["sherman", "p-sherman"],
            Self::Art => ["art", "p-art"],
            Self::Smart => ["smart", "p-smart"],
        }
    }
}

/// A B-link tree with its techniques.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShermanSetup {
    pub design: Design,
    /// Every compute server has keys of its own: P-Sherman.
    pub partitioned: bool,
    /// The bytes of the index cache are those of [`BenchSpec::cache_bytes`], if there is one.
    pub options: Options,
}

/// A radix tree with its techniques.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmartSetup {
    pub design: Design,
    /// Every compute server has keys of its own: P-SMART.
    pub partitioned: bool,
    pub techniques: Techniques,
    pub node_room: NodeRoom,
    pub cache_policy: CachePolicy,
    pub late_followers_unsound: bool,
    pub cached_absence_unsound: bool,
}

/// A technique by its name.
struct Switch<T> {
    name: &'static str,
    is_on: fn(&T) -> bool,
    set: fn(&mut T, bool),
}

/// What a read check becomes when it is switched on or off.
fn check(setup: &mut ShermanSetup, check: ReadCheck, on: bool) {
    setup.options.check = if on { check } else { ReadCheck::Checksum };
}

/// Where locks come when a kind of table is switched on or off.
fn lock_place(setup: &mut ShermanSetup, on_chip: bool, on: bool) {
    setup.options.locks = if on { LockPlace::Table { on_chip, locks: TABLE_LOCKS } } else { LockPlace::Node };
}

const SHERMAN_SWITCHES: [Switch<ShermanSetup>; 9] = [
    Switch {
        name: "index-cache",
        is_on: |setup| setup.options.index_cache.is_some(),
        set: |setup, on| setup.options.index_cache = on.then_some(0),
    },
    Switch {
        name: "write-release",
        is_on: |setup| setup.options.release == Release::Write,
        set: |setup, on| setup.options.release = if on { Release::Write } else { Release::FetchAdd },
    },
    Switch {
        name: "combine",
        is_on: |setup| setup.options.combine,
        set: |setup, on| setup.options.combine = on,
    },
    Switch {
        name: "on-chip",
        is_on: |setup| matches!(setup.options.locks, LockPlace::Table { on_chip: true, .. }),
        set: |setup, on| lock_place(setup, true, on),
    },
    Switch {
        name: "lock-table",
        is_on: |setup| matches!(setup.options.locks, LockPlace::Table { on_chip: false, .. }),
        set: |setup, on| lock_place(setup, false, on),
    },
    Switch {
        name: "hierarchical",
        is_on: |setup| setup.options.hand_over.is_some(),
        set: |setup, on| setup.options.hand_over = on.then_some(HAND_OVER),
    },
    Switch {
        name: "two-level",
        is_on: |setup| setup.options.leaf == LeafFormat::Unsorted,
        set: |setup, on| {
            setup.options.leaf = if on { LeafFormat::Unsorted } else { LeafFormat::Sorted };
        },
    },
    Switch {
        name: "version-reads",
        is_on: |setup| setup.options.check == ReadCheck::VersionReads,
        set: |setup, on| check(setup, ReadCheck::VersionReads, on),
    },
    Switch {
        name: "unsound-ends",
        is_on: |setup| setup.options.check == ReadCheck::UnsoundEnds,
        set: |setup, on| check(setup, ReadCheck::UnsoundEnds, on),
    },
];

const SMART_SWITCHES: [Switch<SmartSetup>; 9] = [
    Switch {
        name: "lock-free-nodes",
        is_on: |setup| setup.techniques.lock_free_nodes,
        set: |setup, on| setup.techniques.lock_free_nodes = on,
    },
    Switch {
        name: "in-place-leaves",
        is_on: |setup| setup.techniques.in_place_leaves,
        set: |setup, on| setup.techniques.in_place_leaves = on,
    },
    Switch {
        name: "rear-locks",
        is_on: |setup| setup.techniques.rear_locks,
        set: |setup, on| setup.techniques.rear_locks = on,
    },
    Switch {
        name: "read-delegation",
        is_on: |setup| setup.techniques.read_delegation,
        set: |setup, on| setup.techniques.read_delegation = on,
    },
    Switch {
        name: "write-combining",
        is_on: |setup| setup.techniques.write_combining,
        set: |setup, on| setup.techniques.write_combining = on,
    },
    Switch {
        name: "scalable-cache",
        is_on: |setup| setup.cache_policy == CachePolicy::Scalable,
        set: |setup, on| {
            setup.cache_policy = if on { CachePolicy::Scalable } else { CachePolicy::Fifo };
        },
    },
    Switch {
        name: "exact-nodes",
        is_on: |setup| setup.node_room == NodeRoom::Exact,
        set: |setup, on| setup.node_room = if on { NodeRoom::Exact } else { NodeRoom::Full },
    },
    Switch {
        name: "unsound-late-followers",
        is_on: |setup| setup.late_followers_unsound,
        set: |setup, on| setup.late_followers_unsound = on,
    },
    Switch {
        name: "unsound-cached-absence",
        is_on: |setup| setup.cached_absence_unsound,
        set: |setup, on| setup.cached_absence_unsound = on,
    },
];

/// Sets the switch of this name; the names that there are if there is none.
fn set<T>(switches: &[Switch<T>], setup: &mut T, name: &str, on: bool) -> Result<(), String> {
    match switches.iter().find(|switch| switch.name == name) {
        Some(switch) => {
            (switch.set)(setup, on);
            Ok(())
        }
        None => {
            let names: Vec<_> = switches.iter().map(|switch| switch.name).collect();
            Err(format!("the technique `{name}` is not known; there are {}", names.join(", ")))
        }
    }
}

fn names_of<T>(switches: &[Switch<T>], setup: &T) -> Vec<&'static str> {
    switches.iter().filter(|switch| (switch.is_on)(setup)).map(|switch| switch.name).collect()
}

impl System {
    /// Sherman with all of its techniques.
    pub fn sherman() -> Self {
        Self::peer(Design::Sherman)
    }

    /// SMART with all of its techniques.
    pub fn smart() -> Self {
        Self::peer(Design::Smart)
    }

    /// A published design.
    pub fn peer(design: Design) -> Self {
        let sherman = |options| Self::Sherman(ShermanSetup { design, partitioned: false, options });
        let smart = |techniques| {
            Self::Smart(SmartSetup {
                design,
                partitioned: false,
                techniques,
                node_room: NodeRoom::Full,
                cache_policy: CachePolicy::Fifo,
                late_followers_unsound: false,
                cached_absence_unsound: false,
            })
        };
        match design {
            Design::Fg => sherman(Options::fg()),
            Design::FgPlus => sherman(Options::fg_plus(0)),
            Design::Sherman => sherman(Options::sherman(0)),
            Design::Art => smart(Techniques::ART),
            Design::Smart => smart(Techniques::SMART),
        }
    }

    /// Those that have names.
    pub fn named() -> impl Iterator<Item = Self> {
        let trees = [Self::Dex, Self::Plain, Self::PlainPartitioned, Self::LocalBTree];
        let peers = Design::ALL.into_iter().map(Self::peer);
        let partitioned = Design::ALL.into_iter().map(|design| Self::peer(design).partitioned(true));
        trees.into_iter().chain(peers).chain(partitioned.flatten())
    }

    pub fn name(self) -> &'static str {
        match self {
            System::Dex => "dex",
            System::Plain => "plain",
            System::PlainPartitioned => "plain-partitioned",
            System::LocalBTree => "local-b-tree",
            System::Sherman(ShermanSetup { design, partitioned, .. })
            | System::Smart(SmartSetup { design, partitioned, .. }) => {
                design.names()[usize::from(partitioned)]
            }
        }
    }

    /// The same with its keys divided among compute servers, or not; `None` where there is no choice.
    pub fn partitioned(self, partitioned: bool) -> Option<Self> {
        match self {
            System::Plain | System::PlainPartitioned if partitioned => Some(System::PlainPartitioned),
            System::Plain | System::PlainPartitioned => Some(System::Plain),
            System::Dex => partitioned.then_some(self),
            System::LocalBTree => (!partitioned).then_some(self),
            System::Sherman(setup) => Some(System::Sherman(ShermanSetup { partitioned, ..setup })),
            System::Smart(setup) => Some(System::Smart(SmartSetup { partitioned, ..setup })),
        }
    }

    /// Whether every key belongs to one compute server, which alone is asked for it.
    pub fn is_partitioned(self) -> bool {
        match self {
            System::Dex | System::Plain | System::PlainPartitioned | System::LocalBTree => true,
            System::Sherman(ShermanSetup { partitioned, .. })
            | System::Smart(SmartSetup { partitioned, .. }) => partitioned,
        }
    }

    /// The same with the technique of this name switched on or off.
    ///
    /// # Errors
    /// A sentence with the names that the system has.
    pub fn with(mut self, technique: &str, on: bool) -> Result<Self, BenchError> {
        let switched = match &mut self {
            System::Sherman(setup) => set(&SHERMAN_SWITCHES, setup, technique, on),
            System::Smart(setup) => set(&SMART_SWITCHES, setup, technique, on),
            other => Err(format!("the system `{}` has no techniques to be switched", other.name())),
        };
        switched.map(|()| self).map_err(BenchError::Invalid)
    }

    /// Names of the techniques that are on, if there are switches.
    pub fn techniques(self) -> Option<Vec<&'static str>> {
        match self {
            System::Sherman(setup) => Some(names_of(&SHERMAN_SWITCHES, &setup)),
            System::Smart(setup) => Some(names_of(&SMART_SWITCHES, &setup)),
            _ => None,
        }
    }

    /// # Errors
    /// The first thing that this system cannot do as asked.
    pub(super) fn validate(self, spec: &BenchSpec) -> Result<(), BenchError> {
        let System::Sherman(setup) = self else { return Ok(()) };
        Shape::new(spec.key_size, spec.value_size, spec.node_size, &setup.options)
            .map_err(|error| BenchError::Invalid(error.to_string()))?;
        if setup.partitioned && setup.options.check != ReadCheck::Checksum {
            let sentence = "nodes of one compute server are written without remote locks, so that readers need \
                            checksums: --partitioned does not go with version-reads and unsound-ends";
            return Err(BenchError::Invalid(sentence.to_owned()));
        }
        Ok(())
    }
}

impl std::str::FromStr for System {
    type Err = BenchError;

    fn from_str(name: &str) -> Result<Self, BenchError> {
        Self::named().find(|system| system.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::named().map(Self::name).collect();
            BenchError::Invalid(format!("the system `{name}` is not known; there are {}", names.join(", ")))
        })
    }
}

/// Two fields of a specification: the name, and the techniques where there is a choice of them.
impl Serialize for System {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        fields.serialize_entry("system", self.name())?;
        if let Some(techniques) = self.techniques() {
            fields.serialize_entry("techniques", &techniques)?;
        }
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_that_of_its_system() {
        for system in System::named() {
            assert_eq!(system.name().parse::<System>().expect("known"), system);
        }
        let error = "telepathy".parse::<System>().expect_err("unknown").to_string();
        assert!(error.contains("`telepathy` is not known; there are dex,"), "{error}");
    }

    #[test]
    fn the_steps_of_the_ablations_are_reached_by_switches() {
        let mut system = System::peer(Design::FgPlus);
        for (technique, (name, options)) in
            ["", "combine", "on-chip", "hierarchical", "two-level"].into_iter().zip(Options::ladder(0))
        {
            if !technique.is_empty() {
                system = system.with(technique, true).expect("known");
            }
            let System::Sherman(setup) = system else { unreachable!() };
            assert_eq!(setup.options, options, "{name}");
        }
        let mut system = System::peer(Design::Art);
        for (step, (name, techniques)) in Techniques::STEPS.into_iter().enumerate() {
            if step > 0 {
                system = system.with(SMART_SWITCHES[step - 1].name, true).expect("known");
            }
            let System::Smart(setup) = system else { unreachable!() };
            assert_eq!(setup.techniques, techniques, "{name}");
        }
    }

    #[test]
    fn every_switch_is_told_when_it_is_on_and_goes_off_again() {
        let of_peer = |system: System, names: Vec<&'static str>| {
            for name in names {
                let on = system.with(name, true).expect("known");
                assert!(on.techniques().expect("switches").contains(&name));
                let off = on.with(name, false).expect("known");
                assert!(!off.techniques().expect("switches").contains(&name));
            }
        };
        of_peer(System::sherman(), SHERMAN_SWITCHES.iter().map(|switch| switch.name).collect());
        of_peer(System::smart(), SMART_SWITCHES.iter().map(|switch| switch.name).collect());
        assert!(System::Dex.with("combine", true).is_err() && System::smart().with("combine", true).is_err());
    }

    #[test]
    fn own_nodes_need_checksums() {
        let torn = System::sherman().with("version-reads", true).expect("known");
        let spec = BenchSpec { system: torn.partitioned(true).expect("possible"), ..BenchSpec::default() };
        assert!(spec.validate().expect_err("unsound").is_bad_input());
        BenchSpec { system: torn, ..BenchSpec::default() }.validate().expect("sound");
        let long = BenchSpec { key_size: 65, system: System::sherman(), ..BenchSpec::default() };
        assert!(long.validate().expect_err("too long").is_bad_input());
    }
}
