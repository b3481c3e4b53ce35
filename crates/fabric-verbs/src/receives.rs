//! Buffers for messages to a memory server, in one shared receive queue for all clients.
//!
//! Each client may have a fixed number of messages in flight, and a buffer for each of them is posted before
//! the client learns of its queue pair. The buffers of a departed client stay for later ones: their number
//! follows the largest number of concurrent clients so far. A buffer is posted again as soon as its message
//! was copied out, before the message is executed.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_fabric::{Arena, PageBuf, Result};
use rdma_mummy_sys::{
    ibv_create_srq, ibv_destroy_srq, ibv_post_srq_recv, ibv_recv_wr, ibv_sge, ibv_srq, ibv_srq_init_attr,
};

use crate::device::{Device, done, system};
use crate::message::MESSAGE_MAX;

/// Number of buffers registered together.
const TOGETHER: usize = 64;

/// Registered buffers of [`MESSAGE_MAX`] bytes; more are registered when all are in use.
pub(crate) struct MessageBuffers {
    device: Arc<Device>,
    arenas: Mutex<Vec<Arc<Arena>>>,
}

impl MessageBuffers {
    pub fn new(device: &Arc<Device>) -> Self {
        Self { device: Arc::clone(device), arenas: Mutex::default() }
    }

    /// A buffer and the device's key for it.
    ///
    /// # Errors
    /// `System` if the device takes no more memory.
    pub fn take(&self) -> Result<(PageBuf, u32)> {
        let mut arenas = self.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = match arenas.iter().rev().find_map(Arena::take) {
            Some(buffer) => buffer,
            None => {
                let arena = self.device.arena(MESSAGE_MAX, TOGETHER)?;
                let buffer = arena.take().expect("a new arena has blocks");
                arenas.push(arena);
                buffer
            }
        };
        Ok(self.device.with_key(buffer))
    }
}

/// One shared receive queue. See the module documentation.
pub(crate) struct SharedReceives {
    srq: NonNull<ibv_srq>,
    // Dropped after the queue.
    posted: Mutex<Posted>,
    /// Maximum number of concurrent clients, and of messages of each.
    clients_max: u32,
    each: u32,
    device: Arc<Device>,
}

#[derive(Default)]
struct Posted {
    clients: u32,
    /// Buffers by the numbers of their RECVs.
    buffers: Vec<(PageBuf, u32)>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for SharedReceives {}
// SAFETY: as above; the queue has internal locks.
unsafe impl Sync for SharedReceives {}

impl SharedReceives {
    /// Creates a queue for `clients_max` clients with `each` messages in flight.
    ///
    /// # Errors
    /// `System` if the device has no such queue.
    pub fn new(device: &Arc<Device>, clients_max: u32, each: u32) -> Result<Self> {
        // SAFETY: zeros are a valid value of this struct of numbers and pointers.
        let mut init: ibv_srq_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        init.attr.max_wr = clients_max * each;
        init.attr.max_sge = 1;
        // SAFETY: the domain exists and is held by the result; `init` lives during the call.
        let srq = unsafe { ibv_create_srq(device.pd(), &raw mut init) };
        let Some(srq) = NonNull::new(srq) else {
            return Err(system(
                &device.name,
                "no shared receive queue can be made",
                &io::Error::last_os_error(),
            ));
        };
        Ok(Self { srq, posted: Mutex::default(), clients_max, each, device: Arc::clone(device) })
    }

    pub fn as_ptr(&self) -> *mut ibv_srq {
        self.srq.as_ptr()
    }

    fn posted(&self) -> MutexGuard<'_, Posted> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts buffers for one more client; returns `false` if there are too many clients.
    ///
    /// # Errors
    /// `System` if the device takes no more memory or buffers.
    pub fn enter(&self, buffers: &MessageBuffers) -> Result<bool> {
        let mut posted = self.posted();
        if posted.clients == self.clients_max {
            return Ok(false);
        }
        let wanted = ((posted.clients + 1) * self.each) as usize;
        while posted.buffers.len() < wanted {
            let number = posted.buffers.len();
            posted.buffers.push(buffers.take()?);
            if let Err(error) = self.post(&posted, number) {
                posted.buffers.pop();
                return Err(system(&self.device.name, "a buffer for messages is not taken", &error));
            }
        }
        posted.clients += 1;
        Ok(true)
    }

    /// Records that a client has left.
    pub fn leave(&self) {
        self.posted().clients -= 1;
    }

    /// Copies the first `len` bytes of buffer `number`, whose RECV ended, into `out`, and posts the buffer
    /// again. `len` is `None` if nothing was received.
    pub fn take(&self, number: u64, len: Option<usize>, out: &mut Vec<u8>) {
        let posted = self.posted();
        let Some((buffer, _)) = posted.buffers.get(number as usize) else { return };
        out.clear();
        if let Some(len) = len {
            buffer.append_bytes_to(len.min(MESSAGE_MAX), out);
        }
        if let Err(error) = self.post(&posted, number as usize) {
            tracing::error!("a buffer for messages is not taken by {} again: {error}", self.device.name);
        }
    }

    fn post(&self, posted: &Posted, number: usize) -> io::Result<()> {
        let (buffer, key) = &posted.buffers[number];
        receive_into(number as u64, buffer, *key, |request, bad| {
            // SAFETY: the queue exists. The buffer stays in `posted`, which is dropped after the queue, and
            // has no other user.
            unsafe { ibv_post_srq_recv(self.srq.as_ptr(), request, bad) }
        })
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold the queue, so none is left.
        let error = unsafe { ibv_destroy_srq(self.srq.as_ptr()) };
        if error != 0 {
            tracing::error!(
                "a shared receive queue of {} cannot be destroyed: error {error}",
                self.device.name
            );
        }
    }
}

/// Posts a RECV that fills all of `buffer`, by `post`. The second argument of `post` receives the first RECV
/// that was not taken.
///
/// # Errors
/// Errors of the device.
pub(crate) fn receive_into(
    id: u64,
    buffer: &PageBuf,
    key: u32,
    post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
) -> io::Result<()> {
    let words = buffer.words();
    let mut place = ibv_sge { addr: words.as_ptr() as u64, length: size_of_val(words) as u32, lkey: key };
    let mut request = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &raw mut place, num_sge: 1 };
    let mut bad = null_mut();
    done(post(&raw mut request, &raw mut bad))
}
