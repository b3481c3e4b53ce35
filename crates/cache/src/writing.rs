//! Write-backs in flight, at most one per frame.
//!
//! A write-back holds the flag of its frame; other operations leave the frame alone meanwhile. A future
//! dropped during its WRITE leaves the flag set, since the WRITE may still take effect and overwrite a later
//! one. Such a write-back is *cut off*. The flag is cleared after the longest time a verb may take, counted
//! from when an operation first meets it. The node stays dirty, so nothing is lost.

use std::future::Future;

use pando_fabric::Nanos;

use crate::frame::{FrameRef, Frames};
use crate::swip::FrameId;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// The write-back flag of a frame.
#[must_use]
pub struct Writing<'c> {
    frame: FrameRef<'c>,
    cut_off: &'c CutOff,
    /// Whether its WRITE may be in flight.
    is_sent: bool,
}

impl<'c> Writing<'c> {
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
            true => self.cut_off.push(self.frame.id()),
            false => self.frame.end_writing(),
        }
    }
}

/// Default for the longest time a verb may take, in nanoseconds.
const DEFAULT_VERBS_TAKE: Nanos = 5_000_000_000;

/// Frames whose write-backs were cut off, with the end of the waiting time once it is known.
pub(crate) struct CutOff {
    frames: Mutex<Vec<(FrameId, Option<Nanos>)>>,
    count: AtomicU32,
    /// The longest time a verb may take.
    pub verbs_take: AtomicU64,
    /// End of the last waiting time.
    rests_until: AtomicU64,
}

impl CutOff {
    pub fn new() -> Self {
        Self {
            frames: Mutex::new(Vec::new()),
            count: AtomicU32::new(0),
            verbs_take: AtomicU64::new(DEFAULT_VERBS_TAKE),
            rests_until: AtomicU64::new(0),
        }
    }

    /// Claims the flag of a frame, if it is free.
    pub fn claim<'c>(&'c self, frame: FrameRef<'c>) -> Option<Writing<'c>> {
        // Construct it lazily: dropping an unused value would clear the flag of another write-back.
        frame.begin_writing().then(|| Writing { frame, cut_off: self, is_sent: false })
    }

    fn push(&self, frame: FrameId) {
        lock(&self.frames).push((frame, None));
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// End of the waiting time of those that are met by now, or of the last one.
    pub fn rests_until(&self) -> Nanos {
        self.rests_until.load(Ordering::Relaxed)
    }

    /// Ends the write-backs that must be over at `now`.
    pub fn end(&self, now: Nanos, frames: &Frames) {
        if !self.any() {
            return;
        }
        let verbs_take = self.verbs_take.load(Ordering::Relaxed);
        lock(&self.frames).retain_mut(|(frame, until)| {
            let until = *until.get_or_insert(now.saturating_add(verbs_take));
            self.rests_until.fetch_max(until, Ordering::Relaxed);
            let is_over = now >= until;
            if is_over {
                frames.get(*frame).end_writing();
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
            !is_over
        });
    }
}
