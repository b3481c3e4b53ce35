//! One hardware thread: its caches, translations, prefetchers and clock.
//!
//! A chained read is awaited, since its data are needed to go on. A read ahead is not: up to
//! [`Processor::overlapping`] of them are under way, and [`Core::settle`] awaits all. Within a range the lines are
//! requested some lines ahead of the one that is compared.

use std::collections::VecDeque;
use std::ops::Range;

use super::cache::Cache;
use super::medium::Kind;
use super::parameters::{CacheSize, MemoryModel, Processor};
use super::{LINE_BYTES, Machine};

/// How a read follows those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// What comes next depends on its data.
    Chained,
    /// What comes next does not depend on its data, or is predicted correctly.
    Ahead,
}

/// What a core has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Lines that were looked for.
    pub lines: u64,
    pub l1_misses: u64,
    pub l2_misses: u64,
    /// Lines that came from memory at the moment they were wanted, by kind.
    pub from_dram: u64,
    pub from_persistent: u64,
    pub walks: u64,
}

/// Ascending lines within one page.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    page: u64,
    last: u64,
    /// Last line that was prefetched.
    ahead: u64,
}

/// Streams that are followed: 32 for L2, half of them ascending (Intel optimisation manual).
const STREAMS: usize = 16;
/// Lines of a page of 4 KiB, at whose end prefetching stops.
const PAGE_LINES: u64 = 64;
/// Places for arrival times of prefetched lines.
const ARRIVALS: usize = 1 << 10;
/// Number of the first line of the page tables, in DRAM.
const TABLES: u64 = 1 << 54;

/// One thread of a socket.
#[derive(Clone, Debug)]
pub struct Core {
    processor: Processor,
    page_bytes: [u64; 2],
    cycle_ns: f64,
    clock_ns: f64,
    l1: Cache,
    l2: Cache,
    tlb: Cache,
    streams: VecDeque<Stream>,
    /// Line and arrival of prefetched lines, by the low bits of the line.
    arrivals: Vec<(u64, f64)>,
    /// Ends of reads under way, in the order of their starts.
    ahead: VecDeque<f64>,
    misses: VecDeque<f64>,
    counters: Counters,
}

impl Core {
    /// One of `threads` threads of a socket. Two threads of a core have half of its caches each.
    pub fn new(model: &MemoryModel, threads: usize) -> Self {
        let processor = model.processor.clone();
        let is_shared = threads > processor.cores;
        let part = if is_shared { 2 } else { 1 };
        let cache = |size: &CacheSize| Cache::new(size.bytes / LINE_BYTES / part, size.ways);
        let factor = if is_shared { processor.shared_core_factor } else { 1.0 };
        Self {
            page_bytes: [model.dram.page_bytes, model.persistent.page_bytes],
            cycle_ns: processor.cycle_ns * factor,
            clock_ns: 0.0,
            l1: cache(&processor.l1),
            l2: cache(&processor.l2),
            tlb: Cache::new(processor.tlb_entries / part, processor.tlb_ways),
            streams: VecDeque::new(),
            arrivals: vec![(u64::MAX, 0.0); ARRIVALS],
            ahead: VecDeque::new(),
            misses: VecDeque::new(),
            counters: Counters::default(),
            processor,
        }
    }

    /// Present of this thread.
    pub fn now_ns(&self) -> f64 {
        self.clock_ns
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Computes for a number of cycles.
    pub fn compute(&mut self, cycles: f64) {
        self.clock_ns += cycles * self.cycle_ns;
    }

    /// Stands still until `ns`.
    pub fn wait_until(&mut self, ns: f64) {
        self.clock_ns = self.clock_ns.max(ns);
    }

    /// Awaits all reads.
    pub fn settle(&mut self) {
        let last = self.ahead.drain(..).fold(self.clock_ns, f64::max);
        self.clock_ns = last;
    }

    /// Reads a range of `kind` and computes `cycles` for each of its lines.
    pub fn read(&mut self, machine: &mut Machine, kind: Kind, bytes: Range<u64>, order: Order, cycles: f64) {
        if bytes.is_empty() {
            return;
        }
        if order == Order::Ahead && self.ahead.len() >= self.processor.overlapping {
            let oldest = self.ahead.pop_front().unwrap_or(0.0);
            self.clock_ns = self.clock_ns.max(oldest);
        }
        let compute_ns = cycles * self.cycle_ns;
        let mut now = self.clock_ns;
        // Times at which the comparison of the last lines ended.
        let mut compared = VecDeque::with_capacity(self.processor.run_ahead_lines + 1);
        compared.push_back(now);
        let lines = kind.line(bytes.start)..=kind.line(bytes.end - 1);
        for line in lines {
            let requested = compared.front().copied().unwrap_or(now);
            let arrival = self.line(machine, kind, line, requested);
            now = now.max(arrival) + compute_ns;
            if compared.len() > self.processor.run_ahead_lines {
                compared.pop_front();
            }
            compared.push_back(now);
        }
        match order {
            Order::Chained => self.clock_ns = now,
            Order::Ahead => {
                self.clock_ns += compute_ns;
                self.ahead.push_back(now);
            }
        }
    }

    /// Reads one line, which is wanted from `at` on, and returns when it has arrived.
    fn line(&mut self, machine: &mut Machine, kind: Kind, line: u64, at: f64) -> f64 {
        self.counters.lines += 1;
        let at = self.translate(machine, kind, line, at);
        self.cached(machine, line, at, true)
    }

    /// The translation of a line's address: a walk if the page is not known.
    fn translate(&mut self, machine: &mut Machine, kind: Kind, line: u64, at: f64) -> f64 {
        let page_lines = self.page_bytes[kind as usize] / LINE_BYTES;
        let page = (line / page_lines) | ((kind as u64) << 62);
        if self.tlb.touch(page) {
            return at;
        }
        self.tlb.insert(page);
        self.counters.walks += 1;
        let entry = TABLES + (line & ((1 << 50) - 1)) / page_lines / 8 + ((kind as u64) << 40);
        let walked = self.cached(machine, entry, at, false);
        walked + self.processor.walk_cycles * self.cycle_ns
    }

    fn cached(&mut self, machine: &mut Machine, line: u64, at: f64, is_data: bool) -> f64 {
        let cycle = self.processor.cycle_ns;
        if self.l1.touch(line) {
            return (at + self.processor.l1.hit_cycles * cycle).max(self.arrival(line));
        }
        self.counters.l1_misses += 1;
        self.l1.insert(line);
        let hit = self.l2.touch(line);
        let ready = if hit {
            (at + self.processor.l2.hit_cycles * cycle).max(self.arrival(line))
        } else {
            self.counters.l2_misses += 1;
            self.fill(machine, line, at, true)
        };
        if is_data {
            if !hit && self.processor.prefetch_pairs {
                self.prefetch(machine, line ^ 1, at);
            }
            self.follow(machine, line, at);
        }
        ready
    }

    /// Arrival of a line that may have been prefetched.
    fn arrival(&self, line: u64) -> f64 {
        let (prefetched, ns) = self.arrivals[line as usize % ARRIVALS];
        if prefetched == line { ns } else { 0.0 }
    }

    /// Brings a line to L2, and what leaves L2 to L3.
    fn fill(&mut self, machine: &mut Machine, line: u64, at: f64, is_wanted: bool) -> f64 {
        if let Some(left) = self.l2.insert(line)
            && !machine.l3.touch(left)
        {
            machine.l3.insert(left);
        }
        if machine.l3.touch(line) {
            return at + self.processor.l3.hit_cycles * self.processor.cycle_ns;
        }
        if !is_wanted {
            return machine.media.read(line, at);
        }
        match Kind::of_line(line).0 {
            Kind::Dram => self.counters.from_dram += 1,
            Kind::Persistent => self.counters.from_persistent += 1,
        }
        let mut start = at;
        if self.misses.len() >= self.processor.outstanding {
            start = start.max(self.misses.pop_front().unwrap_or(0.0));
        }
        let done = machine.media.read(line, start);
        self.misses.push_back(done);
        done
    }

    /// Notes a read of L2, and prefetches behind the second of two neighbouring lines.
    fn follow(&mut self, machine: &mut Machine, line: u64, at: f64) {
        let depth = self.processor.prefetch_lines;
        if depth == 0 {
            return;
        }
        let page = line / PAGE_LINES;
        let known = self.streams.iter().position(|stream| stream.page == page);
        let before = known.and_then(|place| self.streams.remove(place));
        let mut stream = before.unwrap_or(Stream { page, last: line, ahead: line });
        if before.is_some() && line == stream.last + 1 {
            let end = (page + 1) * PAGE_LINES;
            // It runs further ahead with each line: two lines for each that is read.
            let from = stream.ahead.max(line) + 1;
            let to = (line + depth + 1).min(end).min(from + 2);
            (from..to).for_each(|next| self.prefetch(machine, next, at));
            stream.ahead = to.max(from) - 1;
        } else if line > stream.ahead || line < stream.last {
            stream.ahead = line;
        }
        stream.last = line;
        self.streams.push_front(stream);
        self.streams.truncate(STREAMS);
    }

    fn prefetch(&mut self, machine: &mut Machine, line: u64, at: f64) {
        if !self.l2.touch(line) {
            let ready = self.fill(machine, line, at, false);
            self.arrivals[line as usize % ARRIVALS] = (line, ready);
        }
    }
}
