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
