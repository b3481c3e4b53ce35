//! Completion queues, and sleeping until a completion arrives.
//!
//! A client polls its queue. A memory server's thread sleeps after a while without completions: it asks for a
//! notification, polls once more, and waits for the queue's channel.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use pando_fabric::Result;
use rdma_mummy_sys::{
    ibv_ack_cq_events, ibv_comp_channel, ibv_cq, ibv_create_comp_channel, ibv_create_cq,
    ibv_destroy_comp_channel, ibv_destroy_cq, ibv_get_cq_event, ibv_poll_cq, ibv_req_notify_cq, ibv_wc,
    ibv_wc_opcode, ibv_wc_status,
};

use crate::device::{Device, system};

/// Maximum number of completions per poll.
const POLL: usize = 32;

/// A completion queue.
pub(crate) struct CompletionQueue {
    cq: NonNull<ibv_cq>,
    // Fields are dropped after the queue, in this order.
    channel: Option<Channel>,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; the queue has internal locks.
unsafe impl Sync for CompletionQueue {}

/// Completion of a work request.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    pub id: u64,
    /// libibverbs' status code of a failure.
    pub result: std::result::Result<(), u32>,
    /// Number of the queue pair.
    pub queue_pair: u32,
    /// Bytes received into the buffer of a RECV; 0 for any other work request.
    pub bytes: usize,
}

impl CompletionQueue {
    /// Creates a queue that is only polled.
    ///
    /// # Errors
    /// `System` if the device has no queue of `entries` entries.
    pub fn new(device: &Arc<Device>, entries: u32) -> Result<Self> {
        Self::make(device, entries, None)
    }

    /// Creates a queue whose owner can sleep until a completion arrives.
    ///
    /// # Errors
    /// As [`CompletionQueue::new`], and if no channel can be made.
    pub fn with_channel(device: &Arc<Device>, entries: u32) -> Result<Self> {
        Self::make(device, entries, Some(Channel::new(device)?))
    }

    fn make(device: &Arc<Device>, entries: u32, channel: Option<Channel>) -> Result<Self> {
        let entries = entries.clamp(1, i32::MAX as u32) as i32;
        let told = channel.as_ref().map_or(null_mut(), |channel| channel.0.as_ptr());
        // SAFETY: the device is open. The channel, if there is one, lives until the queue is destroyed.
        let cq = unsafe { ibv_create_cq(device.context(), entries, null_mut(), told, 0) };
        match NonNull::new(cq) {
            Some(cq) => Ok(Self { cq, channel, device: Arc::clone(device) }),
            None => Err(system(&device.name, "no completion queue can be made", &io::Error::last_os_error())),
        }
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub fn as_ptr(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    /// Passes completions to `done`; returns whether there may be more.
    pub fn poll(&self, mut done: impl FnMut(Completion)) -> bool {
        let mut entries = [const { MaybeUninit::<ibv_wc>::zeroed() }; POLL];
        // SAFETY: the queue exists, and `entries` is valid for `POLL` entries.
        let count = unsafe { ibv_poll_cq(self.cq.as_ptr(), POLL as i32, entries.as_mut_ptr().cast()) };
        let count = usize::try_from(count).unwrap_or(0);
        for entry in &entries[..count] {
            // SAFETY: the entry consists of plain numbers, zeroed, and filled by the call.
            let entry = unsafe { entry.assume_init_ref() };
            let is_well = entry.status == ibv_wc_status::IBV_WC_SUCCESS;
            done(Completion {
                id: entry.wr_id,
                result: if is_well { Ok(()) } else { Err(entry.status) },
                queue_pair: entry.qp_num,
                bytes: if entry.opcode == ibv_wc_opcode::IBV_WC_RECV { entry.byte_len as usize } else { 0 },
            });
        }
        count == POLL
    }

    /// Makes the next completion set [`CompletionQueue::news`] readable. The caller must then poll once more
    /// for earlier completions.
    pub fn ask_for_news(&self) {
        // SAFETY: the queue exists while `self` does.
        let error = unsafe { ibv_req_notify_cq(self.cq.as_ptr(), 0) };
        if error != 0 {
            tracing::error!("{} does not tell when something comes: error {error}", self.device.name);
        }
    }

    /// Descriptor that becomes readable on a completion, if the queue has a channel.
    pub fn news(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(Channel::fd)
    }

    /// Takes all notifications, so that the descriptor is no longer readable.
    pub fn take_news(&self) {
        let Some(channel) = &self.channel else { return };
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel exists, it is nonblocking (`Channel::new`), and both pointers are valid for the
        // call. Notifications are from the channel's only queue, and each is acknowledged.
        unsafe {
            while ibv_get_cq_event(channel.0.as_ptr(), &raw mut cq, &raw mut context) == 0 {
                ibv_ack_cq_events(cq, 1);
            }
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold the queue, so none is left. All notifications were acknowledged.
        unsafe { ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

/// Channel that reports completions of a queue.
struct Channel(NonNull<ibv_comp_channel>);

impl Channel {
    fn new(device: &Arc<Device>) -> Result<Self> {
        let failed = |error: &io::Error| system(&device.name, "no completion channel can be made", error);
        // SAFETY: the device is open; the channel's queue holds it.
        let channel = NonNull::new(unsafe { ibv_create_comp_channel(device.context()) });
        let channel = Self(channel.ok_or_else(|| failed(&io::Error::last_os_error()))?);
        // Nonblocking, so that taking notifications never waits.
        rustix::io::ioctl_fionbio(channel.fd(), true).map_err(|error| failed(&error.into()))?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel keeps this descriptor open while it exists, and it exists while `self` does.
        unsafe { BorrowedFd::borrow_raw(self.0.as_ref().fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its queue was destroyed before.
        unsafe { ibv_destroy_comp_channel(self.0.as_ptr()) };
    }
}
