//! Interference of two threads: the time to change a cache line that another core has changed.
//!
//! The threads change one line in turns. If both run on one core, or on two hardware threads of one, the line
//! does not move, and the figure means little.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Changes of the line by each thread.
const TURNS: u64 = 5_000;
/// Changes that are timed together: a piece.
const PIECE: u64 = 50;
/// The result is the piece at a tenth of the sorted ones, since other load on the cores only makes pieces
/// longer.
const QUICK: usize = 10;
/// A longer result means that the two threads did not run concurrently.
const TOGETHER_NS: f64 = 1_000.0;
/// After this many spins a thread yields its core: the other may be waiting for it.
const SPINS: u32 = 2_000;

/// A word that shares its cache line with no other data.
#[repr(align(128))]
struct Line(AtomicU64);

/// Measures if the machine has at least two cores.
pub(super) fn measure(note: &mut impl FnMut(&'static str, &'static str, f64)) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if let Some(ns) = (cores >= 2).then(hand_over).filter(|ns| *ns < TOGETHER_NS) {
        note(
            "hand_over_ns",
            "A cache line taken over from another core of the machine, as near as it gets",
            ns,
        );
    }
}

/// Time in ns for one change of a word that two threads change in turns.
fn hand_over() -> f64 {
    let line = Line(AtomicU64::new(0));
    let mut pieces = Vec::new();
    let add = |parity: u64, times: &mut Vec<f64>| {
        let mut began = Instant::now();
        for turn in 0..TURNS {
            let mine = 2 * turn + parity;
            let mut spins = 0;
            while line.0.compare_exchange_weak(mine, mine + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                std::hint::spin_loop();
                spins += 1;
                if spins % SPINS == 0 {
                    thread::yield_now();
                }
            }
            if turn % PIECE == PIECE - 1 {
                times.push(began.elapsed().as_nanos() as f64 / (2 * PIECE) as f64);
                began = Instant::now();
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| add(1, &mut Vec::new()));
        add(0, &mut pieces);
    });
    pieces.sort_by(f64::total_cmp);
    pieces.get(pieces.len() / QUICK).copied().unwrap_or(f64::MAX)
}
