//! Completion queues, and how to sleep until something comes to one.
//!
//! A client polls its queue. A memory server's thread sleeps when nothing has come for a while: it asks to be notified, looks
//! once more, and waits for the queue's channel.

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

/// Completions that are taken at once.
const POLL: usize = 32;

/// Where completions come to.
pub(crate) struct CompletionQueue {
    cq: NonNull<ibv_cq>,
    // Dropped after the queue, in this order.
    channel: Option<Channel>,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; it has locks of its own.
unsafe impl Sync for CompletionQueue {}

/// The end of a work request.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    pub id: u64,
    /// What went wrong, by libibverbs' number.
    pub result: std::result::Result<(), u32>,
    /// The number of the queue pair.
    pub queue_pair: u32,
    /// Bytes that a RECV brought into its buffer; 0 for anything else, also a WRITE that took a buffer and left it as it was.
    pub bytes: usize,
}

impl CompletionQueue {
    /// # Errors
    /// `System` if the device has no queue of so many entries.
    pub fn new(device: &Arc<Device>, entries: u32) -> Result<Self> {
        Self::make(device, entries, None)
    }

    /// One whose owner can sleep until something comes.
    ///
    /// # Errors
    /// As above, and if there is no channel for that.
    pub fn with_channel(device: &Arc<Device>, entries: u32) -> Result<Self> {
        Self::make(device, entries, Some(Channel::new(device)?))
    }

    fn make(device: &Arc<Device>, entries: u32, channel: Option<Channel>) -> Result<Self> {
        let entries = entries.clamp(1, i32::MAX as u32) as i32;
        let told = channel.as_ref().map_or(null_mut(), |channel| channel.0.as_ptr());
        // SAFETY: the device is open; the channel, if there is one, is there and will be until the queue is gone.
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

    /// Takes completions and tells `done` of each; whether there may be more.
    pub fn poll(&self, mut done: impl FnMut(Completion)) -> bool {
        let mut entries = [const { MaybeUninit::<ibv_wc>::zeroed() }; POLL];
        // SAFETY: the queue is there, and `entries` valid for `POLL` of them.
        let count = unsafe { ibv_poll_cq(self.cq.as_ptr(), POLL as i32, entries.as_mut_ptr().cast()) };
        let count = usize::try_from(count).unwrap_or(0);
        for entry in &entries[..count] {
            // SAFETY: it is plain numbers, zeroed, and filled by the call.
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

    /// Has the next completion make [`CompletionQueue::news`] readable. What came before this has to be looked for once more.
    pub fn ask_for_news(&self) {
        // SAFETY: the queue is there while `self` is.
        let error = unsafe { ibv_req_notify_cq(self.cq.as_ptr(), 0) };
        if error != 0 {
            tracing::error!("{} does not tell when something comes: error {error}", self.device.name);
        }
    }

    /// What becomes readable when there is news, if it has a channel.
    pub fn news(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(Channel::fd)
    }

    /// Takes the news that there are, so that it is not readable any more.
    pub fn take_news(&self) {
        let Some(channel) = &self.channel else { return };
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is there, it does not wait (`Channel::new`), and both places are valid for the call. News are
        // about the one queue of the channel, which is acknowledged as it has to be.
        unsafe {
            while ibv_get_cq_event(channel.0.as_ptr(), &raw mut cq, &raw mut context) == 0 {
                ibv_ack_cq_events(cq, 1);
            }
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold the queue, so none is left; all news were acknowledged.
        unsafe { ibv_destroy_cq(self.cq.as_ptr()) };
    }
}

/// What tells that something came to a completion queue.
struct Channel(NonNull<ibv_comp_channel>);

impl Channel {
    fn new(device: &Arc<Device>) -> Result<Self> {
        let failed = |error: &io::Error| system(&device.name, "no completion channel can be made", error);
        // SAFETY: the device is open; the queue that has the channel holds it.
        let channel = NonNull::new(unsafe { ibv_create_comp_channel(device.context()) });
        let channel = Self(channel.ok_or_else(|| failed(&io::Error::last_os_error()))?);
        // Who takes news does not wait for some.
        rustix::io::ioctl_fionbio(channel.fd(), true).map_err(|error| failed(&error.into()))?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel has this descriptor open for as long as it is there, as it is while `self` is.
        unsafe { BorrowedFd::borrow_raw(self.0.as_ref().fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: its queue is gone.
        unsafe { ibv_destroy_comp_channel(self.0.as_ptr()) };
    }
}
