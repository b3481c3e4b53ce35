//! Queue pairs.
//!
//! A client's queue pair sends verbs; its completions go to the queue of its worker. A memory server's queue
//! pair answers them, which its device does alone, and sends replies to calls. A dropped queue pair is
//! destroyed; after that its device neither sends nor executes anything for it and uses none of its buffers.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use pando_fabric::{PageBuf, Result};
use rdma_mummy_sys::{
    ibv_access_flags, ibv_create_qp, ibv_destroy_qp, ibv_gid, ibv_modify_qp, ibv_post_recv, ibv_post_send,
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
    ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
};

use crate::completions::CompletionQueue;
use crate::device::{ETHERNET, done, system};
use crate::hello::Peer;
use crate::receives::{SharedReceives, receive_into};

/// Number of times that an unacknowledged packet is sent again. On some devices more than six means forever.
const RETRIES: u8 = 6;
/// Retries while the peer has no buffer for a message: 7 means forever, since verbs and calls have deadlines.
const RETRIES_NOT_READY: u8 = 7;
/// Maximum bytes of a WRITE or message carried inside its work request, if the device allows it.
const INLINE: u32 = 64;

/// One end of a reliable connection between two devices.
pub(crate) struct QueuePair {
    qp: NonNull<ibv_qp>,
    completions: Arc<CompletionQueue>,
    /// Dropped after the queue pair.
    _receives: Option<Arc<SharedReceives>>,
    /// Maximum bytes carried inside a work request.
    inline: u32,
    psn: u32,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for QueuePair {}

/// Buffers for messages received by a queue pair.
pub(crate) enum Receives<'r> {
    /// The queue pair has this many buffers of its own.
    Own(u32),
    Shared(&'r Arc<SharedReceives>),
}

/// A one-sided verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Read,
    Write,
    CompareSwap { expected: u64, new: u64 },
    FetchAdd { add: u64 },
}

/// An address in the memory of a peer.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub address: u64,
    /// The peer's key for the memory.
    pub key: u32,
}

/// Action of a work request on its buffer.
#[derive(Clone, Copy)]
pub(crate) enum What {
    Verb(Work, Remote),
    /// Sends the buffer as a message, for which the peer has a buffer.
    Message,
}

/// A work request on the window of a buffer.
pub(crate) struct Request<'b> {
    pub id: u64,
    pub what: What,
    pub buffer: &'b PageBuf,
    pub local_key: u32,
    /// Whether its end produces a completion.
    pub is_signalled: bool,
    /// Whether it waits for earlier READs and atomics.
    pub is_fenced: bool,
}

/// Work requests posted under one doorbell; its vectors are reused.
#[derive(Default)]
pub(crate) struct Doorbell {
    requests: Vec<ibv_send_wr>,
    places: Vec<ibv_sge>,
}

impl QueuePair {
    /// Creates a queue pair that sends up to `work` requests at a time.
    ///
    /// # Errors
    /// `System` if the device has no more queue pairs.
    pub fn new(
        completions: &Arc<CompletionQueue>,
        work: u32,
        receives: &Receives<'_>,
        psn: u32,
    ) -> Result<Self> {
        let device = completions.device();
        let (own, shared) = match receives {
            Receives::Own(count) => (*count, None),
            Receives::Shared(shared) => (0, Some(Arc::clone(shared))),
        };
        let make = |inline: u32| {
            // SAFETY: zeros are a valid value of this struct of numbers and pointers.
            let mut init: ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
            init.send_cq = completions.as_ptr();
            init.recv_cq = completions.as_ptr();
            init.qp_type = ibv_qp_type::IBV_QPT_RC;
            init.cap.max_send_wr = work.clamp(1, device.work_max);
            init.cap.max_recv_wr = own.max(1);
            init.srq = shared.as_ref().map_or(null_mut(), |shared| shared.as_ptr());
            init.cap.max_send_sge = 1;
            init.cap.max_recv_sge = 1;
            init.cap.max_inline_data = inline;
            // SAFETY: the domain and the queue exist and are held by the result; `init` lives during the
            // call.
            let qp = unsafe { ibv_create_qp(device.pd(), &raw mut init) };
            NonNull::new(qp).map(|qp| (qp, init.cap.max_inline_data))
        };
        let Some((qp, inline)) = make(INLINE).or_else(|| make(0)) else {
            return Err(system(&device.name, "no queue pair can be made", &io::Error::last_os_error()));
        };
        let completions = Arc::clone(completions);
        let made = Self { qp, completions, _receives: shared, inline, psn: psn & 0xff_ffff };
        made.begin()?;
        Ok(made)
    }

    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair exists while `self` does.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// Address of this queue pair for the other end; `depth` READs and atomics at a time.
    pub fn peer(&self, depth: u8) -> Peer {
        let device = self.completions.device();
        let port = &device.port;
        Peer {
            queue_pair: self.number().into(),
            psn: self.psn.into(),
            gid: port.gid,
            lid: port.lid.into(),
            mtu: port.mtu,
            depth,
            link_layer: port.link_layer,
            timeout: device.timeout,
            zero: [0; 2],
        }
    }

    /// Connects it to `peer`, which may READ, WRITE and change all memory registered for remote access, and
    /// lets it send to `peer` with the peer's timeout.
    ///
    /// # Errors
    /// `System` if the device fails.
    pub fn answer(&self, peer: &Peer) -> Result<()> {
        let device = self.completions.device();
        self.receive(peer, peer.depth.min(device.depth_in))?;
        let timeout = if (1..=31).contains(&peer.timeout) { peer.timeout } else { device.timeout };
        self.begin_to_send(timeout, 1)
    }

    /// Connects it to `peer` for sending.
    ///
    /// # Errors
    /// `System` if the device fails.
    pub fn send(&self, peer: &Peer) -> Result<()> {
        let device = self.completions.device();
        self.receive(peer, 1)?;
        self.begin_to_send(device.timeout, peer.depth.min(device.depth_out))
    }

    /// Stops its device from sending and receiving.
    pub fn stop(&self) {
        let mut attr = no_attributes();
        attr.qp_state = ibv_qp_state::IBV_QPS_ERR;
        // A queue pair that cannot be stopped is destroyed later anyway.
        let _ = self.modify(&mut attr, Mask::IBV_QP_STATE);
    }

    fn begin_to_send(&self, timeout: u8, depth: u8) -> Result<()> {
        let mut attr = no_attributes();
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attr.timeout = timeout;
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = RETRIES_NOT_READY;
        attr.sq_psn = self.psn;
        attr.max_rd_atomic = depth;
        self.modify(
            &mut attr,
            Mask::IBV_QP_STATE
                | Mask::IBV_QP_TIMEOUT
                | Mask::IBV_QP_RETRY_CNT
                | Mask::IBV_QP_RNR_RETRY
                | Mask::IBV_QP_SQ_PSN
                | Mask::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    fn begin(&self) -> Result<()> {
        let mut attr = no_attributes();
        attr.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = self.completions.device().port.number;
        attr.qp_access_flags = (ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)
            .0;
        let mask =
            Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, mask)
    }

    fn receive(&self, peer: &Peer, depth: u8) -> Result<()> {
        let port = &self.completions.device().port;
        let mut attr = no_attributes();
        attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attr.path_mtu = u32::from(peer.mtu.min(port.mtu));
        attr.dest_qp_num = peer.queue_pair.get();
        attr.rq_psn = peer.psn.get();
        attr.max_dest_rd_atomic = depth;
        attr.min_rnr_timer = 12;
        attr.ah_attr.port_num = port.number;
        attr.ah_attr.dlid = peer.lid.get();
        if port.link_layer == ETHERNET || peer.lid.get() == 0 {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid = ibv_gid { raw: peer.gid };
            attr.ah_attr.grh.sgid_index = port.gid_index;
            attr.ah_attr.grh.hop_limit = 64;
        }
        self.modify(
            &mut attr,
            Mask::IBV_QP_STATE
                | Mask::IBV_QP_AV
                | Mask::IBV_QP_PATH_MTU
                | Mask::IBV_QP_DEST_QPN
                | Mask::IBV_QP_RQ_PSN
                | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | Mask::IBV_QP_MIN_RNR_TIMER,
        )
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: Mask) -> Result<()> {
        // SAFETY: the queue pair exists while `self` does, and `attr` lives during the call.
        done(unsafe { ibv_modify_qp(self.qp.as_ptr(), attr, mask.0 as i32) }).map_err(|error| {
            system(&self.completions.device().name, "a queue pair cannot be connected", &error)
        })
    }

    /// Posts `requests` to the device in this order.
    ///
    /// # Errors
    /// Errors of the device. Some requests may have been taken; the queue pair must be given up.
    ///
    /// # Safety
    /// The words of each buffer must not move or be freed until a completion of this queue pair reports the
    /// end of the request, or the queue pair is dropped.
    pub unsafe fn post<'b>(
        &self,
        doorbell: &mut Doorbell,
        requests: impl Iterator<Item = Request<'b>>,
    ) -> io::Result<()> {
        doorbell.requests.clear();
        doorbell.places.clear();
        for request in requests {
            doorbell.add(&request, self.inline);
        }
        doorbell.link();
        let Some(first) = doorbell.requests.first_mut() else { return Ok(()) };
        let mut bad = null_mut();
        // SAFETY: the requests are linked to each other and to places that live during the call. The buffers
        // are the caller's obligation.
        done(unsafe { ibv_post_send(self.qp.as_ptr(), first, &raw mut bad) })
    }

    /// Posts a RECV into all of `buffer`; its completion has the id `id`.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Safety
    /// The words of the buffer must not move or be freed until that completion, or until the queue pair is
    /// dropped.
    pub unsafe fn post_receive(&self, id: u64, buffer: &PageBuf, key: u32) -> io::Result<()> {
        receive_into(id, buffer, key, |request, bad| {
            // SAFETY: the queue pair exists while `self` does; the buffer is the caller's obligation.
            unsafe { ibv_post_recv(self.qp.as_ptr(), request, bad) }
        })
    }
}

// SAFETY: the pointers of a doorbell point into itself, and are set anew each time it is rung.
unsafe impl Send for Doorbell {}

impl Doorbell {
    fn add(&mut self, request: &Request<'_>, inline: u32) {
        let words = request.buffer.window_words();
        let len = size_of_val(words) as u32;
        let mut flags = ibv_send_flags(0);
        if request.is_signalled {
            flags |= ibv_send_flags::IBV_SEND_SIGNALED;
        }
        if request.is_fenced {
            flags |= ibv_send_flags::IBV_SEND_FENCE;
        }
        // SAFETY: zeros are a valid value of this struct of numbers, pointers and unions of these.
        let mut wr: ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        wr.wr_id = request.id;
        wr.num_sge = i32::from(len > 0);
        let (opcode, may_be_inline) = match request.what {
            What::Message => (ibv_wr_opcode::IBV_WR_SEND, true),
            What::Verb(Work::Read, remote) => {
                wr.wr.rdma = remote.of_window();
                (ibv_wr_opcode::IBV_WR_RDMA_READ, false)
            }
            What::Verb(Work::Write, remote) => {
                wr.wr.rdma = remote.of_window();
                (ibv_wr_opcode::IBV_WR_RDMA_WRITE, true)
            }
            What::Verb(Work::CompareSwap { expected, new }, remote) => {
                wr.wr.atomic = remote.of_atomic(expected, new);
                (ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, false)
            }
            What::Verb(Work::FetchAdd { add }, remote) => {
                wr.wr.atomic = remote.of_atomic(add, 0);
                (ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, false)
            }
        };
        wr.opcode = opcode;
        if may_be_inline && len > 0 && len <= inline {
            flags |= ibv_send_flags::IBV_SEND_INLINE;
        }
        wr.send_flags = flags.0;
        self.requests.push(wr);
        self.places.push(ibv_sge { addr: words.as_ptr() as u64, length: len, lkey: request.local_key });
    }

    /// Links the requests into a list, after the last one was added.
    fn link(&mut self) {
        let mut next = null_mut();
        for (wr, place) in self.requests.iter_mut().zip(&mut self.places).rev() {
            wr.next = next;
            wr.sg_list = &raw mut *place;
            next = &raw mut *wr;
        }
    }
}

impl Remote {
    fn of_window(self) -> rdma_mummy_sys::rdma_t {
        rdma_mummy_sys::rdma_t { remote_addr: self.address, rkey: self.key }
    }

    fn of_atomic(self, compare_add: u64, swap: u64) -> rdma_mummy_sys::atomic_t {
        rdma_mummy_sys::atomic_t { remote_addr: self.address, compare_add, swap, rkey: self.key }
    }
}

fn no_attributes() -> ibv_qp_attr {
    // SAFETY: zeros are a valid value of this struct of numbers.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the queue pair was created once and is no longer used.
        let error = unsafe { ibv_destroy_qp(self.qp.as_ptr()) };
        if error != 0 {
            tracing::error!(
                "a queue pair of {} cannot be destroyed: error {error}",
                self.completions.device().name
            );
        }
    }
}
