//! Queue pairs.
//!
//! A client's queue pair sends verbs, and its completions come to the one queue of its worker. A memory server's answers them,
//! which its device does alone, and sends replies to calls. A queue pair that goes is destroyed, and then its device neither
//! sends nor executes anything for it and touches none of its buffers any more.

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

/// How many times a packet is sent again that is not acknowledged. More than six would be without end on some devices.
const RETRIES: u8 = 6;
/// The same while the peer has no buffer for a message: without end, since verbs and calls have deadlines.
const RETRIES_NOT_READY: u8 = 7;
/// Bytes of a WRITE or message that travel inside its work request, if the device takes so many.
const INLINE: u32 = 64;

/// One end of a reliable connection between two devices.
pub(crate) struct QueuePair {
    qp: NonNull<ibv_qp>,
    completions: Arc<CompletionQueue>,
    /// Goes after it.
    _receives: Option<Arc<SharedReceives>>,
    /// Bytes of a WRITE that may travel inside its work request.
    inline: u32,
    psn: u32,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for QueuePair {}

/// Where messages come to that are sent to a queue pair.
pub(crate) enum Receives<'r> {
    /// To so many buffers of its own.
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

/// A place in the memory of a peer.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub address: u64,
    /// The peer's name for the memory.
    pub key: u32,
}

/// What a work request does with its buffer.
#[derive(Clone, Copy)]
pub(crate) enum What {
    Verb(Work, Remote),
    /// Sends it as a message, for which the peer has a buffer.
    Message,
}

/// A work request about the window of a buffer.
pub(crate) struct Request<'b> {
    pub id: u64,
    pub what: What,
    pub buffer: &'b PageBuf,
    pub local_key: u32,
    /// Whether its end is to be a completion.
    pub is_signalled: bool,
    /// Whether it waits for READs and atomics before it.
    pub is_fenced: bool,
}

/// Work requests that go out under one doorbell, and room for the next ones.
#[derive(Default)]
pub(crate) struct Doorbell {
    requests: Vec<ibv_send_wr>,
    places: Vec<ibv_sge>,
}

impl QueuePair {
    /// One that sends up to `work` requests at a time; none if it only answers.
    ///
    /// # Errors
    /// `System` if the device has no more of them.
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
            // SAFETY: the domain and the queue are there and held by the result; `init` lives during the call.
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
        // SAFETY: the queue pair is there while `self` is.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// How the other end reaches this one; `depth` READs and atomics at a time.
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

    /// Lets it answer `peer`, which may read, write and change what is open to remote devices; and send to it, with as much
    /// patience as that has.
    ///
    /// # Errors
    /// `System` if the device does not do it.
    pub fn answer(&self, peer: &Peer) -> Result<()> {
        let device = self.completions.device();
        self.receive(peer, peer.depth.min(device.depth_in))?;
        let timeout = if (1..=31).contains(&peer.timeout) { peer.timeout } else { device.timeout };
        self.begin_to_send(timeout, 1)
    }

    /// Lets it send to `peer`.
    ///
    /// # Errors
    /// `System` if the device does not do it.
    pub fn send(&self, peer: &Peer) -> Result<()> {
        let device = self.completions.device();
        self.receive(peer, 1)?;
        self.begin_to_send(device.timeout, peer.depth.min(device.depth_out))
    }

    /// Has its device neither send nor take anything any more.
    pub fn stop(&self) {
        let mut attr = no_attributes();
        attr.qp_state = ibv_qp_state::IBV_QPS_ERR;
        // One that cannot be stopped will be destroyed as well.
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
        // SAFETY: the queue pair is there while `self` is, and `attr` lives during the call.
        done(unsafe { ibv_modify_qp(self.qp.as_ptr(), attr, mask.0 as i32) }).map_err(|error| {
            system(&self.completions.device().name, "a queue pair cannot be connected", &error)
        })
    }

    /// Hands `requests` to the device in this order.
    ///
    /// # Errors
    /// Those of the device; then some requests may have been taken, and the queue pair is worth nothing any more.
    ///
    /// # Safety
    /// The words of each buffer must stay where they are until a completion of this queue pair says that the request has
    /// ended, or the queue pair is dropped.
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
        // SAFETY: the requests are linked to each other and to places that live during the call; what they point to is
        // the caller's obligation.
        done(unsafe { ibv_post_send(self.qp.as_ptr(), first, &raw mut bad) })
    }

    /// Has the next message come into all of `buffer`; its completion will have the name `id`.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Safety
    /// The words of the buffer must stay where they are until that completion came, or the queue pair is dropped.
    pub unsafe fn post_receive(&self, id: u64, buffer: &PageBuf, key: u32) -> io::Result<()> {
        receive_into(id, buffer, key, |request, bad| {
            // SAFETY: the queue pair is there while `self` is; what the buffer needs is the caller's obligation.
            unsafe { ibv_post_recv(self.qp.as_ptr(), request, bad) }
        })
    }
}

// SAFETY: the pointers of a doorbell are into itself, and set anew each time it is rung.
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

    /// Makes a list of the requests, once none is added any more.
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
        // SAFETY: it was made once and is not used any more.
        let error = unsafe { ibv_destroy_qp(self.qp.as_ptr()) };
        if error != 0 {
            tracing::error!(
                "a queue pair of {} cannot be destroyed: error {error}",
                self.completions.device().name
            );
        }
    }
}
