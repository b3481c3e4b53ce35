//! The index to measure, and which of its published techniques are on.
//!
//! A peer starts as one of the published designs (FG, FG+, Sherman; ART, SMART). Each technique is a named
//! switch: the steps of the ablations, and further alternatives that the papers compare.

use pando_sherman::{HAND_OVER, LeafFormat, LockPlace, Options, ReadCheck, Release, Shape, TABLE_LOCKS};
use pando_smart::{CachePolicy, NodeRoom, Techniques};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{BenchError, BenchSpec};

/// The index to measure. Trees without a cache and local ones run on the simulated cluster only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Dex,
    /// A B+-tree whose accesses are all remote, under remote locks: the baseline of DEX's ablation.
    Plain,
    /// [`System::Plain`] without remote synchronisation of nodes that one compute server owns.
    PlainPartitioned,
    /// A B+-tree in the memory of the only compute server: the baseline for the cost of distribution.
    LocalBTree,
    /// A B-link tree: Sherman, FG+ and FG.
    Sherman(ShermanSetup),
    /// An adaptive radix tree: SMART and ART.
    Smart(SmartSetup),
}

/// Published design that a peer starts as.
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

    /// Name of the design, and of its variant with keys divided among the compute servers.
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
    /// Each compute server has its own keys: P-Sherman.
    pub partitioned: bool,
    /// If there is an index cache, its size is [`BenchSpec::cache_bytes`], not the one in here.
    pub options: Options,
}

/// A radix tree with its techniques.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmartSetup {
    pub design: Design,
    /// Each compute server has its own keys: P-SMART.
    pub partitioned: bool,
    pub techniques: Techniques,
    pub node_room: NodeRoom,
    pub cache_policy: CachePolicy,
    pub late_followers_unsound: bool,
    pub cached_absence_unsound: bool,
}

/// A named technique of a setup `T`.
struct Switch<T> {
    name: &'static str,
    is_on: fn(&T) -> bool,
    set: fn(&mut T, bool),
}

/// Makes the [`Switch`] of one field of a setup: a flag, or a field with a value for on and one for off. For
/// values with a size, a pattern gives the values that count as on.
macro_rules! switch {
    ($name:literal, $($field:ident).+) => {
        Switch { name: $name, is_on: |setup| setup.$($field).+, set: |setup, on| setup.$($field).+ = on }
    };
    ($name:literal, $($field:ident).+, $is_on:pat => $on:expr, $off:expr) => {
        Switch {
            name: $name,
            is_on: |setup| matches!(setup.$($field).+, $is_on),
            set: |setup, on| setup.$($field).+ = if on { $on } else { $off },
        }
    };
    ($name:literal, $($field:ident).+, $on:path, $off:path) => {
        switch!($name, $($field).+, $on => $on, $off)
    };
}

const fn lock_table(on_chip: bool) -> LockPlace {
    LockPlace::Table { on_chip, locks: TABLE_LOCKS }
}

const SHERMAN_SWITCHES: [Switch<ShermanSetup>; 9] = [
    switch!("index-cache", options.index_cache, Some(0..) => Some(0), None),
    switch!("write-release", options.release, Release::Write, Release::FetchAdd),
    switch!("combine", options.combine),
    switch!("on-chip", options.locks, LockPlace::Table { on_chip: true, .. } => lock_table(true), LockPlace::Node),
    switch!("lock-table", options.locks, LockPlace::Table { on_chip: false, .. } => lock_table(false), LockPlace::Node),
    switch!("hierarchical", options.hand_over, Some(0..) => Some(HAND_OVER), None),
    switch!("two-level", options.leaf, LeafFormat::Unsorted, LeafFormat::Sorted),
    switch!("version-reads", options.check, ReadCheck::VersionReads, ReadCheck::Checksum),
    switch!("unsound-ends", options.check, ReadCheck::UnsoundEnds, ReadCheck::Checksum),
];

const SMART_SWITCHES: [Switch<SmartSetup>; 9] = [
    switch!("lock-free-nodes", techniques.lock_free_nodes),
    switch!("in-place-leaves", techniques.in_place_leaves),
    switch!("rear-locks", techniques.rear_locks),
    switch!("read-delegation", techniques.read_delegation),
    switch!("write-combining", techniques.write_combining),
    switch!("scalable-cache", cache_policy, CachePolicy::Scalable, CachePolicy::Fifo),
    switch!("exact-nodes", node_room, NodeRoom::Exact, NodeRoom::Full),
    switch!("unsound-late-followers", late_followers_unsound),
    switch!("unsound-cached-absence", cached_absence_unsound),
];

/// Sets the switch with this name. If there is none, the error lists all names.
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

    /// A published design with its own techniques.
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

    /// All systems that have a name.
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

    /// The same system with its keys divided among compute servers, or not; `None` if it does not have that
    /// variant.
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

    /// Whether each key belongs to one compute server, and only that server executes its operations.
    pub fn is_partitioned(self) -> bool {
        match self {
            System::Dex | System::Plain | System::PlainPartitioned | System::LocalBTree => true,
            System::Sherman(ShermanSetup { partitioned, .. })
            | System::Smart(SmartSetup { partitioned, .. }) => partitioned,
        }
    }

    /// The same system with the technique of this name switched on or off.
    ///
    /// # Errors
    /// An unknown name, with the list of the system's techniques.
    pub fn with(mut self, technique: &str, on: bool) -> Result<Self, BenchError> {
        let switched = match &mut self {
            System::Sherman(setup) => set(&SHERMAN_SWITCHES, setup, technique, on),
            System::Smart(setup) => set(&SMART_SWITCHES, setup, technique, on),
            other => Err(format!("the system `{}` has no techniques to be switched", other.name())),
        };
        switched.map(|()| self).map_err(BenchError::Invalid)
    }

    /// The same system with the techniques `with` switched on, and then `without` switched off.
    ///
    /// # Errors
    /// Those of [`System::with`].
    pub fn switched<S: AsRef<str>>(self, with: &[S], without: &[S]) -> Result<Self, BenchError> {
        let with = with.iter().map(|technique| (technique, true));
        let without = without.iter().map(|technique| (technique, false));
        with.chain(without).try_fold(self, |system, (technique, on)| system.with(technique.as_ref(), on))
    }

    /// Names of the techniques that are on; `None` for a system without switches.
    pub fn techniques(self) -> Option<Vec<&'static str>> {
        match self {
            System::Sherman(setup) => Some(names_of(&SHERMAN_SWITCHES, &setup)),
            System::Smart(setup) => Some(names_of(&SMART_SWITCHES, &setup)),
            _ => None,
        }
    }

    /// # Errors
    /// The first setting that this system does not support.
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

/// Two fields of a specification: the name, and the techniques if the system has switches.
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
