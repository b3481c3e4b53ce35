//! Write-backs in flight, at most one per frame.
//!
//! A write-back holds the flag of its frame; other operations leave the frame alone meanwhile. A future
//! dropped during its WRITE leaves the flag set, since the WRITE may still take effect and overwrite a later
//! one. Such a write-back is *cut off*. The flag is cleared after the longest time a verb may take, counted
//! from when an operation first meets it. The node stays dirty, so nothing is lost.

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
    /// Whether its WRITE may be in flight.
    is_sent: bool,
}

impl<'c> Writing<'c> {
    fn claim(frame: FrameRef<'c>) -> Option<Self> {
        let flag = &frame.cache.meta(frame.id()).writing;
        let free = flag.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // Pairs with the fence in `is_writing`, called under the latch to discard the node: one of the two
        // threads sees the other.
        fence(Ordering::SeqCst);
        // Construct it lazily: dropping an unused value would clear the flag of another
        // write-back.
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

/// Frames whose write-backs were cut off, with the end of the waiting time once it is known.
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

/// Default for the longest time a verb may take, in nanoseconds.
const DEFAULT_VERBS_TAKE: Nanos = 5_000_000_000;

impl Cache {
    /// Sets the longest time a verb may take, in nanoseconds, for which the flag of a cut-off write-back
    /// stays set. The default is 5 s.
    pub fn set_verbs_take(&self, verbs_take: Nanos) {
        self.cut_off.verbs_take.store(verbs_take, Ordering::Relaxed);
    }

    /// Claims the right to write a frame back, if it is free.
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

    /// Whether cut-off write-backs may still take effect.
    #[inline]
    pub fn has_cut_off(&self) -> bool {
        self.cut_off.count.load(Ordering::Relaxed) > 0
    }

    /// Ends the cut-off write-backs that must be over at `now`. Called by operations that wait for one.
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
