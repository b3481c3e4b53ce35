//! Methods that find rows, and their times when they take turns.

use std::hint::black_box;

use pando_elf::{Bitmap, CodeTable, Count, Elf, Ids, Kernel, Method, Output, Predicate, Sink, scan};
use rustix::time::{ClockId, clock_gettime};

/// Buffers that are reused, so that no method pays for fresh memory.
pub struct Buffers {
    ids: Vec<u32>,
    bitmap: Bitmap,
}

impl Buffers {
    pub fn new(rows: usize) -> Self {
        Self { ids: Vec::with_capacity(rows + 128), bitmap: Bitmap::new(rows as u64) }
    }

    /// Processor time in nanoseconds of one result of `find`, which does not grow while other work has the core.
    fn time(&mut self, output: Output, find: &dyn Find) -> f64 {
        self.ids.clear();
        let start = processor_ns();
        match output {
            Output::Count => {
                let mut count = Count::default();
                find.count(&mut count);
                black_box(count.0);
            }
            Output::Ids => find.ids(&mut Ids::new(&mut self.ids, Kernel::detect())),
            Output::Bitmap => {
                self.bitmap.restart();
                find.bitmap(&mut self.bitmap);
            }
        }
        black_box((&self.ids, &self.bitmap));
        processor_ns() - start
    }
}

/// Time that this thread had a core, in nanoseconds.
pub fn processor_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// A method that finds rows.
pub trait Find {
    fn count(&self, sink: &mut Count);
    fn ids(&self, sink: &mut Ids<'_, u32>);
    fn bitmap(&self, sink: &mut Bitmap);
}

pub struct Select<'a>(pub &'a Elf, pub &'a Predicate);

impl Select<'_> {
    pub fn run(&self, output: Output, sink: &mut impl Sink) -> Method {
        self.0.select(self.1).expect("known columns").run(output, sink)
    }
}

impl Find for Select<'_> {
    fn count(&self, sink: &mut Count) {
        self.run(Output::Count, sink);
    }

    fn ids(&self, sink: &mut Ids<'_, u32>) {
        self.run(Output::Ids, sink);
    }

    fn bitmap(&self, sink: &mut Bitmap) {
        self.run(Output::Bitmap, sink);
    }
}

pub struct Scan<'a>(pub &'a CodeTable, pub &'a Predicate, pub Kernel);

impl Scan<'_> {
    fn run(&self, sink: &mut impl Sink) {
        scan(self.0, self.1, self.2, sink).expect("known columns");
    }
}

impl Find for Scan<'_> {
    fn count(&self, sink: &mut Count) {
        self.run(sink);
    }

    fn ids(&self, sink: &mut Ids<'_, u32>) {
        self.run(sink);
    }

    fn bitmap(&self, sink: &mut Bitmap) {
        self.run(sink);
    }
}

pub const OUTPUTS: [Output; 3] = [Output::Count, Output::Ids, Output::Bitmap];

/// Median times of methods in nanoseconds, for each output.
pub fn medians(methods: &[&dyn Find], buffers: &mut Buffers, rounds: usize) -> Vec<[f64; 3]> {
    let mut times = vec![[const { Vec::new() }; 3]; methods.len()];
    for _ in 0..rounds {
        for (method, times) in methods.iter().zip(&mut times) {
            for (output, times) in OUTPUTS.into_iter().zip(times) {
                times.push(buffers.time(output, *method));
            }
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    times.into_iter().map(|times| times.map(median)).collect()
}
