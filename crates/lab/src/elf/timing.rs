//! Times of one way to answer a predicate, with buffers that are reused, so that no way pays for fresh memory.
//!
//! Ways that are compared take turns, and medians are compared. Times are processor times of one thread of this
//! machine.

use pando_elf::{Bitmap, CodeTable, Count, Elf, Ids, Kernel, Method, Output, Predicate, Sink, scan};

use super::failed;
use crate::bench::BenchError;
use crate::process::thread_time;

pub const OUTPUTS: [(&str, Output); 3] =
    [("count", Output::Count), ("ids", Output::Ids), ("bitmap", Output::Bitmap)];

pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A way to answer predicates.
#[derive(Clone, Copy)]
pub enum Way<'a> {
    Scan { table: &'a CodeTable, kernel: Kernel },
    Elf(&'a Elf),
}

impl Way<'_> {
    /// Gives `sink` the rows; returns whether an Elf was walked.
    fn find<S: Sink>(self, output: Output, predicate: &Predicate, sink: &mut S) -> Result<bool, BenchError> {
        match self {
            Way::Scan { table, kernel } => scan(table, predicate, kernel, sink).map(|()| false),
            Way::Elf(elf) => elf.select(predicate).map(|found| found.run(output, sink) == Method::Walk),
        }
        .map_err(failed)
    }

    fn kernel(self) -> Kernel {
        match self {
            Way::Scan { kernel, .. } => kernel,
            Way::Elf(elf) => elf.kernel(),
        }
    }
}

/// One answer.
pub struct Timed {
    pub us: f64,
    /// Number of rows found.
    pub rows: u64,
    /// Whether an Elf was walked.
    pub is_walk: bool,
}

pub struct Buffers {
    ids: Vec<u32>,
    pub bitmap: Bitmap,
}

impl Buffers {
    pub fn new(rows: usize) -> Self {
        Self { ids: Vec::with_capacity(rows + 128), bitmap: Bitmap::new(rows as u64) }
    }

    /// Answers a predicate.
    pub fn time(&mut self, output: Output, predicate: &Predicate, way: Way<'_>) -> Result<Timed, BenchError> {
        self.ids.clear();
        let mut count = Count::default();
        let start = thread_time();
        let is_walk = match output {
            Output::Count => way.find(output, predicate, &mut count)?,
            Output::Ids => way.find(output, predicate, &mut Ids::new(&mut self.ids, way.kernel()))?,
            Output::Bitmap => {
                self.bitmap.restart();
                way.find(output, predicate, &mut self.bitmap)?
            }
        };
        let us = (thread_time() - start).as_secs_f64() * 1e6;
        let rows = match output {
            Output::Count => count.0,
            Output::Ids => self.ids.len() as u64,
            Output::Bitmap => self.bitmap.count(),
        };
        Ok(Timed { us, rows, is_walk })
    }
}
