//! Contention of the threads of one compute server for exclusive resources: latches, buckets, queues.
//!
//! The simulation runs one thread at a time, so a thread never finds a latch taken. Its wait is computed
//! instead: each resource records the intervals in which it is held, and a request gets the first gap that is
//! long enough. A computing thread is ahead of the present, so requests may come for any time, and gaps are
//! filled.
//!
//! Taking a resource over from another thread costs the transfer of a cache line. The cost is higher across
//! sockets and grows with the number of spinning threads. A thread that only reads what holders change pays
//! for the transfer once after each change, and the next holder pays for taking the line from its readers.
//! Readers that come while it is held spin like everyone else.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use pando_fabric::{Nanos, Resource};

use crate::model::Compute;

/// Time without use after which a cache line is in no other core's cache.
const FORGOTTEN_NS: Nanos = 100_000;
/// Number of resources kept before the unused ones are dropped.
const KNOWN: usize = 4_096;

#[derive(Clone, Copy)]
struct Interval {
    begin: Nanos,
    end: Nanos,
    core: u32,
    /// Threads that spin until its begin or its end: the one that takes it if it is a lock, and readers.
    spinners: u64,
}

/// A resource that was held.
#[derive(Default)]
struct Line {
    /// Intervals in which it is held, in order of time. The first one may be over.
    holds: Vec<Interval>,
    /// Cores that have read it since it was held last, as bits, by their number modulo 64.
    readers: u64,
}

pub(crate) struct Contended {
    lines: HashMap<u64, Line, BuildHasherDefault<Mix>>,
    /// Current limit; it grows if more than [`KNOWN`] resources are in use.
    limit: usize,
    compute: Compute,
}

impl Contended {
    pub fn new(compute: &Compute) -> Self {
        Self { lines: HashMap::default(), limit: KNOWN, compute: compute.clone() }
    }

    /// Reserves the resource for `core` from `at` on, which is not before `now`; returns when it is released.
    pub fn hold(&mut self, resource: Resource, core: u32, at: Nanos, now: Nanos) -> Nanos {
        self.take(resource, core, at, now, u64::from(is_lock(resource)), self.compute.held(resource))
    }

    /// Fetches the line for `core`, which keeps it for `held`; returns when it is done.
    fn take(
        &mut self,
        resource: Resource,
        core: u32,
        at: Nanos,
        now: Nanos,
        spinners: u64,
        held: Nanos,
    ) -> Nanos {
        let Self { lines, limit, compute } = self;
        if lines.len() >= *limit {
            lines.retain(|_, line| line.holds.last().is_some_and(|last| last.end + FORGOTTEN_NS > now));
            *limit = KNOWN.max(2 * lines.len());
        }
        let Line { holds, readers } = lines.entry(number(resource)).or_default();
        let readers = std::mem::take(readers);
        // Keep the last interval that is over: its core has the cache line.
        let over = holds.iter().take_while(|hold| hold.end <= now).count();
        holds.drain(..over.saturating_sub(1));
        let mut begin = at;
        let mut before = None;
        let mut ahead = 0;
        let mut place = 0;
        let needed = loop {
            let taking = before.map_or(0, |before| take_over(compute, before, core, begin, ahead));
            let taking = taking.max(take_from(compute, readers, core));
            let needed = taking + held;
            let Some(next) = holds.get(place) else { break needed };
            if begin + needed.max(1) <= next.begin {
                break needed;
            }
            ahead += if next.end > at { next.spinners } else { 0 };
            begin = begin.max(next.end);
            before = Some(*next);
            place += 1;
        };
        holds.insert(place, Interval { begin, end: begin + needed, core, spinners });
        begin + needed
    }

    /// Reads the resource on `core` from `at` on; returns when the core has it. A holder is waited for.
    /// The first reader after a change occupies the line while it fetches it; for others it is shared by then.
    pub fn observe(&mut self, resource: Resource, core: u32, at: Nanos, now: Nanos) -> Nanos {
        let Self { lines, compute, .. } = self;
        let Some(Line { holds, readers }) = lines.get_mut(&number(resource)) else { return at };
        let Some(last) = holds.iter_mut().rev().find(|hold| hold.begin <= at) else { return at };
        let begin = at.max(last.end);
        if *readers == 0 && last.core != core && (begin == at || !is_lock(resource)) {
            let end = self.take(resource, core, at, now, 0, 0);
            self.lines.entry(number(resource)).or_default().readers = bit(core);
            return end;
        }
        let is_known = *readers & bit(core) != 0 && begin == at;
        *readers |= bit(core);
        if is_known {
            return at;
        }
        if begin == at {
            return at + take_over(compute, *last, core, at, 0);
        }
        let ahead = last.spinners.saturating_sub(1);
        last.spinners += u64::from(last.spinners > 0);
        begin + take_over(compute, *last, core, begin, ahead)
    }
}

/// Whether those who want the resource spin until it is released.
fn is_lock(resource: Resource) -> bool {
    !matches!(resource, Resource::Word(_))
}

fn bit(core: u32) -> u64 {
    1 << (core % u64::BITS)
}

/// Cost of taking a line from the cores that have read it.
fn take_from(compute: &Compute, readers: u64, core: u32) -> Nanos {
    let others = readers & !bit(core);
    let first = core / compute.threads_per_socket * compute.threads_per_socket;
    let near = (first..first + compute.threads_per_socket).fold(0, |all, core| all | bit(core));
    match () {
        () if others & !near != 0 => compute.hand_over_far_ns,
        () if others != 0 => compute.hand_over_ns,
        () => 0,
    }
}

/// Cost of taking a resource over from its previous holder when `ahead` other requests precede this one.
fn take_over(compute: &Compute, before: Interval, core: u32, begin: Nanos, ahead: u64) -> Nanos {
    if before.core == core || before.end + FORGOTTEN_NS < begin {
        return 0;
    }
    let socket = |core: u32| core / compute.threads_per_socket;
    let line = match socket(before.core) == socket(core) {
        true => compute.hand_over_ns,
        false => compute.hand_over_far_ns,
    };
    line + compute.spinner_ns * ahead
}

fn number(resource: Resource) -> u64 {
    let (kind, number) = match resource {
        Resource::Frame(frame) => (0, frame),
        Resource::CoolingBucket(bucket) => (1, bucket),
        Resource::CoolingQueue => (2, 0),
        Resource::Word(number) => (5, number),
        Resource::LockQueue(part) => (3, part),
        _ => (4, 0),
    };
    u64::from(number) << 3 | kind
}

/// Hash function of resource numbers: a multiplication.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compute() -> Compute {
        Compute {
            latch_ns: 10,
            bucket_ns: 100,
            hand_over_ns: 50,
            hand_over_far_ns: 150,
            spinner_ns: 5,
            threads_per_socket: 2,
            ..Compute::default()
        }
    }

    #[test]
    fn one_thread_never_waits() {
        let mut local = Contended::new(&compute());
        assert_eq!(local.hold(Resource::Frame(7), 0, 1_000, 1_000), 1_010);
        assert_eq!(local.hold(Resource::Frame(7), 0, 1_010, 1_000), 1_020);
        assert_eq!(local.hold(Resource::Frame(7), 0, 5_000, 5_000), 5_010);
        assert_eq!(local.hold(Resource::Frame(8), 1, 1_010, 1_000), 1_020, "another frame");
    }

    #[test]
    fn who_comes_second_waits_and_pays_for_the_line() {
        let mut local = Contended::new(&compute());
        assert_eq!(local.hold(Resource::CoolingQueue, 0, 1_000, 1_000), 1_100);
        // One holder ahead, on the same socket; then two ahead, on another socket.
        assert_eq!(local.hold(Resource::CoolingQueue, 1, 1_050, 1_000), 1_100 + 50 + 5 + 100);
        assert_eq!(local.hold(Resource::CoolingQueue, 2, 1_060, 1_000), 1_255 + 150 + 10 + 100);
        // Long after the last use, and after the line was forgotten.
        assert_eq!(local.hold(Resource::CoolingQueue, 0, 50_000, 50_000), 50_000 + 150 + 100);
        assert_eq!(local.hold(Resource::CoolingQueue, 1, 500_000, 500_000), 500_100);
    }

    #[test]
    fn who_asks_late_for_an_earlier_time_gets_a_gap() {
        let mut local = Contended::new(&compute());
        assert_eq!(local.hold(Resource::CoolingQueue, 0, 2_000, 1_000), 2_100);
        assert_eq!(local.hold(Resource::CoolingQueue, 1, 1_000, 1_000), 1_100);
        // No gap of 250 ns is left before 2,000.
        assert_eq!(local.hold(Resource::CoolingQueue, 3, 1_800, 1_000), 2_100 + 150 + 5 + 100);
    }

    #[test]
    fn readers_pay_once_after_each_change_and_the_next_writer_pays_for_them() {
        let mut local = Contended::new(&compute());
        let frame = Resource::Frame(7);
        assert_eq!(local.observe(frame, 1, 500, 500), 500, "nobody changed it");
        assert_eq!(local.hold(frame, 0, 1_000, 1_000), 1_010);
        assert_eq!(local.observe(frame, 0, 1_020, 1_020), 1_020, "its own change");
        assert_eq!(local.observe(frame, 1, 1_005, 1_005), 1_010 + 50, "it waits for the holder");
        assert_eq!(local.observe(frame, 1, 1_100, 1_100), 1_100, "it has the line");
        assert_eq!(local.observe(frame, 2, 1_100, 1_100), 1_100 + 150, "from another socket");
        assert_eq!(
            local.hold(frame, 0, 1_500, 1_500),
            1_500 + 150 + 10,
            "from its readers, of whom none spins"
        );
        assert_eq!(local.hold(frame, 0, 1_700, 1_700), 1_710, "it has the line");
        assert_eq!(local.observe(frame, 1, 1_800, 1_800), 1_850);
    }

    #[test]
    fn the_first_reader_occupies_the_line_while_it_fetches_it() {
        let mut local = Contended::new(&compute());
        let frame = Resource::Frame(7);
        assert_eq!(local.hold(frame, 0, 1_000, 1_000), 1_010);
        assert_eq!(local.observe(frame, 2, 1_020, 1_020), 1_020 + 150);
        assert_eq!(local.observe(frame, 3, 1_030, 1_030), 1_170 + 50, "then its neighbour has it");
        assert_eq!(local.hold(frame, 1, 1_040, 1_040), 1_170 + 150 + 10, "and a writer after the first");
    }

    #[test]
    fn nobody_spins_for_a_word() {
        let mut local = Contended::new(&compute());
        let word = Resource::Word(0);
        assert_eq!(local.hold(word, 0, 1_000, 1_000), 1_100);
        assert_eq!(local.hold(word, 1, 1_000, 1_000), 1_100 + 50 + 100);
        assert_eq!(local.hold(word, 2, 1_000, 1_000), 1_250 + 150 + 100);
        assert_eq!(local.observe(word, 3, 1_000, 1_000), 1_500 + 50, "readers take their turns");
        assert_eq!(local.hold(word, 0, 1_000, 1_000), 1_550 + 150 + 100);
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut local = Contended::new(&compute());
        for frame in 0..100_000 {
            let at = u64::from(frame) * 1_000;
            local.hold(Resource::Frame(frame), 0, at, at);
        }
        assert!(local.lines.len() <= KNOWN, "{} resources", local.lines.len());
    }
}
