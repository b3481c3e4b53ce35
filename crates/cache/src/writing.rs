//! Write-backs under way: one of a frame at a time.
//!
//! Who writes a frame back has its flag; others leave the frame alone meanwhile. A future that is dropped in the middle of its
//! WRITE leaves the flag set: the WRITE may still take effect, over what a later one wrote. Such a write-back is *cut off*. It
//! rests for as long as a verb may take, counted from when somebody comes upon it, and then the flag is cleared. The node
//! stays dirty, so nothing is lost.

use std::future::Future;

use pando_fabric::{Endpoint, Nanos};

use crate::cache::{Cache, lock};
use crate::frame::FrameRef;
use crate::swip::FrameId;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, fence};

/// The write-back flag of a frame.
#[must_use]
pub struct Writing<'c> {
    frame: FrameRef<'c>,
    /// Its WRITE may be under way.
    is_sent: bool,
}

impl<'c> Writing<'c> {
    fn claim(frame: FrameRef<'c>) -> Option<Self> {
        let flag = &frame.cache.meta(frame.id()).writing;
        let free = flag.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // Pairs with the fence of who latched the frame to discard its node: one of the two sees the other.
        fence(Ordering::SeqCst);
        // Lazily: a value that is made only to be dropped would clear the flag of another.
        free.then(|| Self { frame, is_sent: false })
    }

    pub(crate) fn frame(&self) -> FrameRef<'c> {
        self.frame
    }

    /// Waits for the WRITE.
    pub async fn while_written<T>(&mut self, write: impl Future<Output = T>) -> T {
        self.is_sent = true;
        let written = write.await;
        self.is_sent = false;
        written
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        match self.is_sent {
            true => self.frame.cache.cut_off.push(self.frame.id()),
            false => self.frame.cache.end_write_back(self.frame.id()),
        }
    }
}

/// The frames whose write-backs were cut off, and until when they rest once that is known.
pub(crate) struct CutOff {
    frames: Mutex<Vec<(FrameId, Option<Nanos>)>>,
    count: AtomicU32,
    verbs_take: AtomicU64,
}

impl CutOff {
    pub fn new() -> Self {
        Self {
            frames: Mutex::new(Vec::new()),
            count: AtomicU32::new(0),
            verbs_take: AtomicU64::new(DEFAULT_VERBS_TAKE),
        }
    }

    fn push(&self, frame: FrameId) {
        lock(&self.frames).push((frame, None));
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Nanoseconds that a verb takes at most, unless somebody says otherwise.
const DEFAULT_VERBS_TAKE: Nanos = 5_000_000_000;

impl Cache {
    /// Says how many nanoseconds a verb takes at most: so long a write-back rests whose future was dropped. 5 s if nobody
    /// says it.
    pub fn set_verbs_take(&self, verbs_take: Nanos) {
        self.cut_off.verbs_take.store(verbs_take, Ordering::Relaxed);
    }

    /// The right to write a frame back, if nobody has it.
    pub fn claim_write_back<'c>(
        &'c self,
        endpoint: &impl Endpoint,
        frame: FrameRef<'c>,
    ) -> Option<Writing<'c>> {
        let claimed = Writing::claim(frame);
        if claimed.is_none() {
            self.end_cut_off(endpoint.now());
        }
        claimed
    }

    /// Whether write-backs that were cut off may still take effect.
    #[inline]
    pub fn has_cut_off(&self) -> bool {
        self.cut_off.count.load(Ordering::Relaxed) > 0
    }

    /// Ends the write-backs that were cut off and must be over at `now`. To be called by who waits for one.
    pub fn end_cut_off(&self, now: Nanos) {
        if !self.has_cut_off() {
            return;
        }
        let verbs_take = self.cut_off.verbs_take.load(Ordering::Relaxed);
        lock(&self.cut_off.frames).retain_mut(|(frame, until)| {
            let is_over = now >= *until.get_or_insert(now.saturating_add(verbs_take));
            if is_over {
                self.end_write_back(*frame);
                self.cut_off.count.fetch_sub(1, Ordering::Relaxed);
            }
            !is_over
        });
    }

    fn end_write_back(&self, frame: FrameId) {
        self.meta(frame).writing.store(0, Ordering::Release);
    }
}
