//! A tap on a log: from one moment to another, each logical change of the index is also given to a sink, for a
//! backup (`docs/backup.md`).
//!
//! The changer holds the latch or the ticket of the leaf from the change until it has appended the record and
//! looked whether there is a tap. So changes of one key reach the sink in the order of their numbers.
//!
//! **A reader of the index that begins after a tap was opened sees every change that the sink lacks.** Opening
//! sets a flag and then adds 0 to the log's clock. A changer draws its number from the clock and then loads the
//! flag. If its number is drawn after the 0 was added, it sees the flag, since both are read-modify-writes of
//! one word. If before, the opener sees everything that the changer did before: the leaf is latched, or
//! changed. The reader waits for the latch. So the load may be relaxed.
//!
//! **Closing is one moment for several logs.** It holds the locks of all taps at once. A change is in its sink
//! before that moment, or its changer finds no sink. A change that begins after another one was answered is
//! therefore in a sink only if the other one is.

use crate::sync::{AtomicU64, Mutex, Ordering::Relaxed, lock};

/// Takes a key and its new value, or `None` if the key was removed. It is called under the latch of a leaf, by
/// one thread at a time, and must not use the index.
pub type Sink = Box<dyn FnMut(&[u8], Option<&[u8]>) + Send>;

#[derive(Default)]
pub(crate) struct Tap {
    /// 1 while there is a sink.
    is_open: AtomicU64,
    sink: Mutex<Option<Sink>>,
}

impl Tap {
    /// Opens it; `false` if it is open already. `pass` takes a place in the order of the log's records.
    pub fn open(&self, sink: Sink, pass: impl FnOnce()) -> bool {
        {
            let mut place = lock(&self.sink);
            if place.is_some() {
                return false;
            }
            *place = Some(sink);
        }
        self.is_open.store(1, Relaxed);
        pass();
        true
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.is_open.load(Relaxed) == 1
    }

    /// Gives a change to the sink, if there is still one.
    pub fn note(&self, key: &[u8], value: Option<&[u8]>) {
        if let Some(sink) = &mut *lock(&self.sink) {
            sink(key, value);
        }
    }

    /// Closes several taps at one moment, and calls `at` in it.
    pub fn close<T>(taps: &[&Self], at: impl FnOnce() -> T) -> T {
        let mut sinks: Vec<_> = taps.iter().map(|tap| lock(&tap.sink)).collect();
        let moment = at();
        taps.iter().for_each(|tap| tap.is_open.store(0, Relaxed));
        sinks.iter_mut().for_each(|sink| **sink = None);
        moment
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tap {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::SeqCst;

    use shuttle::thread;

    use super::*;

    /// An index of one leaf with one key, its tap, and the clock of its log.
    #[derive(Default)]
    struct Index {
        leaf: Mutex<u64>,
        clock: AtomicU64,
        tap: Tap,
    }

    impl Index {
        fn change(&self, value: u64) {
            let mut leaf = lock(&self.leaf);
            *leaf = value;
            self.clock.fetch_add(1, SeqCst);
            if self.tap.is_open() {
                self.tap.note(b"key", Some(&value.to_le_bytes()));
            }
        }

        fn open(&self) -> Arc<std::sync::Mutex<Option<u64>>> {
            let last = Arc::new(std::sync::Mutex::new(None));
            let sink = Arc::clone(&last);
            let note = move |_: &[u8], value: Option<&[u8]>| {
                let value = value.and_then(|value| value.first_chunk().copied()).map(u64::from_le_bytes);
                *sink.lock().expect("no panic") = value;
            };
            let pass = || {
                self.clock.fetch_add(0, SeqCst);
            };
            assert!(self.tap.open(Box::new(note), pass));
            last
        }
    }

    /// A thread changes two indexes in turn, while both are copied.
    fn run() {
        let indexes = Arc::new([Index::default(), Index::default()]);
        let changing = Arc::clone(&indexes);
        let changer = thread::spawn(move || {
            for value in 1..4 {
                changing.iter().for_each(|index| index.change(value));
            }
        });
        let last = indexes.each_ref().map(Index::open);
        let scanned = indexes.each_ref().map(|index| *lock(&index.leaf));
        Tap::close(&indexes.each_ref().map(|index| &index.tap), || ());
        let copied = |at: usize| last[at].lock().expect("no panic").unwrap_or(scanned[at]);
        let (first, second) = (copied(0), copied(1));
        assert!((second..=second + 1).contains(&first), "{first}, {second}");
        changer.join().expect("no panic");
    }

    #[test]
    fn copies_of_two_indexes_are_of_one_moment() {
        let iterations = std::env::var("SHUTTLE_ITERATIONS");
        let iterations = iterations.ok().and_then(|text| text.parse().ok()).unwrap_or(1_000);
        shuttle::check_random(run, iterations);
        shuttle::check_pct(run, iterations, 3);
    }
}
