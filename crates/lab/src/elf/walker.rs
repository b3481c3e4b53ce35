//! A core of the memory model that reads what a search of a store reads.
//!
//! A list is chained: its address comes from the list above it, and where it is left is not predicted. A MonoList
//! whose first comparison fails is read ahead: that is the predicted case, so the next entries of its list are
//! followed meanwhile. Other MonoLists are awaited. A probe of a hash table and the bookkeeping of a policy
//! read lines of DRAM at places that the hash of the list's number gives.

use std::cell::RefCell;
use std::ops::Range;

use pando_elf::{ListId, Meter, Part, Space, Touch};
use pando_sim::memory::{Core, Counters, Kind, Machine, MemoryModel, Order};
use pando_workload::mix64;

use super::spec::{PolicyKind, SearchCosts};

/// Cycles of a look-up in a hash table without its reads: an estimate.
const PER_PROBE: f64 = 15.0;
/// Allocating and filling a copy, and freeing one: estimates.
const PER_COPY: f64 = 150.0;
const PER_EVICTION: f64 = 60.0;

/// First bytes of the spaces in DRAM.
const LEVELS: u64 = 1 << 40;
const COPIES: u64 = 2 << 40;
const TABLE: u64 = 3 << 40;
const ENTRIES: u64 = 4 << 40;
const SLOTS: u64 = 5 << 40;
const CHAINS: u64 = 6 << 40;
const QUEUE: u64 = 7 << 40;
const WEIGHTS: u64 = 8 << 40;
/// Bytes of an entry of a hash table, of a slot, and of a link.
const ENTRY_BYTES: u64 = 16;
const SLOT_BYTES: u64 = 24;
const LINK_BYTES: u64 = 8;

/// What was read: pieces and words of lists, and of MonoLists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub lists: u64,
    pub list_words: u64,
    pub mono_lists: u64,
    pub mono_words: u64,
}

struct State {
    machine: Machine,
    core: Core,
    work: Work,
    costs: SearchCosts,
    is_listening: bool,
    policy: Option<PolicyKind>,
    /// Lists that the dynamic cache may hold.
    capacity: u64,
    cached: u64,
    /// Lists of the static levels, if they are looked up in a hash table.
    hashed: Option<u64>,
    /// Ends of what was read of the lists that the walk is in, from the top.
    open: Vec<u64>,
    /// Numbers places that are not known, such as those of neighbours in a chain.
    serial: u64,
}

/// Meter of a store, and clock of the thread that searches it.
pub struct Walker(RefCell<State>);

impl Walker {
    pub fn new(model: &MemoryModel, costs: SearchCosts, policy: Option<PolicyKind>, capacity: usize) -> Self {
        Self(RefCell::new(State {
            machine: Machine::new(model, 1),
            core: Core::new(model, 1),
            work: Work::default(),
            costs,
            is_listening: true,
            policy,
            capacity: capacity as u64,
            cached: 0,
            hashed: None,
            open: Vec::new(),
            serial: 0,
        }))
    }

    /// Looks up each of `lists` static lists in a hash table when a walk enters it.
    pub fn hash_levels(&self, lists: usize) {
        self.0.borrow_mut().hashed = Some(lists as u64);
    }

    /// Whether accesses count from now on.
    pub fn listen(&self, is_listening: bool) {
        self.0.borrow_mut().is_listening = is_listening;
    }

    /// A query begins.
    pub fn begin(&self) {
        let state = &mut *self.0.borrow_mut();
        if state.is_listening {
            state.machine.forget_before(state.core.now_ns());
            state.core.compute(state.costs.query);
            state.open.clear();
        }
    }

    /// Awaits all reads of a query.
    pub fn end(&self) {
        self.0.borrow_mut().core.settle();
    }

    pub fn now_ns(&self) -> f64 {
        self.0.borrow().core.now_ns()
    }

    pub fn work(&self) -> Work {
        self.0.borrow().work
    }

    pub fn counters(&self) -> Counters {
        self.0.borrow().core.counters()
    }

    fn with(&self, act: impl FnOnce(&mut State)) {
        let state = &mut *self.0.borrow_mut();
        if state.is_listening {
            act(state);
        }
    }

    /// A list was found in the cache.
    pub(super) fn hit(&self, slot: u32) {
        self.with(|state| {
            let place = u64::from(slot);
            state.dram(ENTRIES + place * ENTRY_BYTES, Order::Chained);
            state.dram(SLOTS + place * SLOT_BYTES, Order::Chained);
            match state.policy {
                Some(PolicyKind::Lru | PolicyKind::TwoQueue) => state.relink(place, 3),
                Some(PolicyKind::Lfu) => state.relink(place, 5),
                _ => {}
            }
        });
    }

    /// 2Q looks for a list among those that were read once.
    pub(super) fn nominated(&self, list: ListId) {
        self.with(|state| {
            if state.policy == Some(PolicyKind::TwoQueue) {
                let place = mix64(list.0) % state.capacity.max(1);
                state.dram(QUEUE + place, Order::Chained);
                state.dram(QUEUE + (1 << 38) + place * ENTRY_BYTES, Order::Chained);
                state.relink(place | 1 << 40, 2);
            }
        });
    }

    /// A full cache looks for a list to drop.
    pub(super) fn evicting(&self, list: ListId, evicts: bool) {
        self.with(|state| {
            if state.policy == Some(PolicyKind::Lla) {
                let place = mix64(list.0) % state.capacity.max(1);
                state.dram(WEIGHTS + place, Order::Chained);
                state.dram(WEIGHTS + (1 << 38) + place * ENTRY_BYTES, Order::Chained);
            }
            if evicts {
                state.core.compute(PER_EVICTION);
                let place = state.unknown();
                state.relink(place, 2);
                state.dram(ENTRIES + place * ENTRY_BYTES, Order::Ahead);
            }
        });
    }

    /// A list was copied into a slot: words of the image were read and written to DRAM.
    pub(super) fn copied(&self, slot: u32, words: Range<u64>) {
        self.with(|state| {
            let bytes = words.start * 4..words.end * 4;
            state.core.compute(PER_COPY);
            state.core.read(&mut state.machine, Kind::Persistent, bytes.clone(), Order::Chained, 8.0);
            let copy = COPIES + bytes.start..COPIES + bytes.end;
            state.core.read(&mut state.machine, Kind::Dram, copy, Order::Ahead, 8.0);
            let place = u64::from(slot);
            state.dram(ENTRIES + place * ENTRY_BYTES, Order::Ahead);
            state.dram(SLOTS + place * SLOT_BYTES, Order::Ahead);
            if !matches!(state.policy, Some(PolicyKind::Naive) | None) {
                state.relink(place, 2);
            }
        });
    }
}

impl State {
    fn dram(&mut self, byte: u64, order: Order) {
        self.core.read(&mut self.machine, Kind::Dram, byte..byte + 8, order, 2.0);
    }

    /// Changes `links` links: those of a place, and of its neighbours.
    fn relink(&mut self, place: u64, links: u64) {
        self.dram(CHAINS + place * LINK_BYTES, Order::Chained);
        for _ in 1..links {
            let neighbour = self.unknown();
            self.dram(CHAINS + neighbour * LINK_BYTES, Order::Ahead);
        }
    }

    fn unknown(&mut self) -> u64 {
        self.serial += 1;
        mix64(self.serial) % self.cached.max(1)
    }

    /// Charges the look-up of a static list that the walk has not been in before.
    fn look_up(&mut self, lists: u64, words: &Range<u64>) {
        match self.open.iter().rposition(|&end| end == words.start) {
            Some(place) => self.open.truncate(place),
            None => {
                self.core.compute(PER_PROBE);
                let place = mix64(words.start) % (lists * 5 / 4).max(1);
                self.dram(TABLE + place, Order::Chained);
                self.dram(ENTRIES + place * ENTRY_BYTES, Order::Chained);
            }
        }
        self.open.push(words.end);
    }

    fn touch(&mut self, touch: &Touch) {
        if let (Some(lists), Space::Levels) = (self.hashed, touch.space) {
            self.look_up(lists, &touch.words);
        }
        let words = touch.words.end - touch.words.start;
        let (pieces, all) = match touch.part {
            Part::List => (&mut self.work.lists, &mut self.work.list_words),
            Part::MonoList => (&mut self.work.mono_lists, &mut self.work.mono_words),
        };
        (*pieces, *all) = (*pieces + 1, *all + words);
        let (kind, base) = place_of(touch.space);
        let bytes = base + touch.words.start * 4..base + touch.words.end * 4;
        read(&mut self.core, &mut self.machine, touch, kind, bytes, &self.costs);
    }
}

/// Memory and first byte of a space.
pub(super) fn place_of(space: Space) -> (Kind, u64) {
    match space {
        Space::Persistent => (Kind::Persistent, 0),
        Space::Dram => (Kind::Dram, 0),
        Space::Levels => (Kind::Dram, LEVELS),
        Space::Cache => (Kind::Dram, COPIES),
    }
}

/// Lets a core read what was touched, and compute what the search computes.
pub(super) fn read(
    core: &mut Core,
    machine: &mut Machine,
    touch: &Touch,
    kind: Kind,
    bytes: Range<u64>,
    costs: &SearchCosts,
) {
    let words = (touch.words.end - touch.words.start) as f64;
    let lines = ((bytes.end - 1) / 64 - bytes.start / 64 + 1) as f64;
    match touch.part {
        Part::List => {
            core.read(machine, kind, bytes, Order::Chained, words * costs.list_word / lines);
            core.compute(costs.list);
        }
        Part::MonoList => {
            let order = if words > 1.0 { Order::Chained } else { Order::Ahead };
            core.read(machine, kind, bytes, order, words * costs.mono_word / lines);
        }
    }
}

impl Meter for Walker {
    fn touch(&self, touch: Touch) {
        self.with(|state| state.touch(&touch));
    }

    fn probe(&self, list: ListId, cached: usize) {
        self.with(|state| {
            state.cached = cached as u64;
            state.core.compute(PER_PROBE);
            // A byte of control for each place; the entry is read if the byte matches.
            let place = mix64(list.0) % (cached as u64 * 4 / 3).max(1);
            state.dram(TABLE + place, Order::Chained);
        });
    }
}
