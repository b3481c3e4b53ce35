//! A device of libibverbs that is open, and memory that it was told of.
//!
//! The device, its port, GID and MTU are chosen here. Who offers or uses memory opens the device once and shares it; it is
//! closed when the last registration and queue is gone.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pando_fabric::{Arena, FabricError, PageBuf, Registration, Result};
use pando_fabric_local::ServedRegion;
use rdma_mummy_sys::{
    IBV_GID_TYPE_ROCE_V2, ibv_access_flags, ibv_alloc_pd, ibv_atomic_cap, ibv_close_device, ibv_context,
    ibv_dealloc_pd, ibv_dereg_mr, ibv_device, ibv_device_attr, ibv_free_device_list, ibv_get_device_list,
    ibv_get_device_name, ibv_gid_entry, ibv_mr, ibv_open_device, ibv_pd, ibv_port_attr, ibv_port_state,
    ibv_query_device, ibv_query_gid, ibv_query_gid_ex, ibv_query_port, ibv_reg_mr,
};

use crate::VerbsOptions;

/// `link_layer` of a port of Ethernet.
pub(crate) const ETHERNET: u8 = 2;
/// READs and atomics under way of one queue pair at most; devices seldom take more.
const DEPTH_MAX: i32 = 16;

/// The port that is used, and how others reach it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub number: u8,
    pub lid: u16,
    pub link_layer: u8,
    pub gid_index: u8,
    pub gid: [u8; 16],
    /// Code of the MTU.
    pub mtu: u8,
    pub message_max: u32,
}

pub(crate) struct Device {
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    /// Which one, among those that this process ever opened.
    pub id: u64,
    pub name: String,
    pub port: Port,
    /// Code of how long a packet may go without being acknowledged.
    pub timeout: u8,
    /// Work requests of a queue pair at most.
    pub work_max: u32,
    /// Buffers of a shared receive queue at most, and entries of a completion queue.
    pub receives_max: u32,
    pub completions_max: u32,
    /// READs and atomics that a queue pair sends, and takes, at a time.
    pub depth_out: u8,
    pub depth_in: u8,
}

// SAFETY: libibverbs may be called from any thread, for the same device too.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device that `options` name, or the first that can be used.
    ///
    /// # Errors
    /// `Open` if there is none like that, `System` if it cannot be used.
    pub fn open(options: &VerbsOptions) -> Result<Arc<Self>> {
        let failed =
            |reason: &str| Err(FabricError::Open { path: "verbs".to_owned(), reason: reason.to_owned() });
        let mut count = 0;
        // SAFETY: `count` is valid for the call; where libibverbs is missing the answer is null.
        let list = unsafe { ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return failed("there is no RDMA device, or libibverbs is not installed");
        }
        // SAFETY: libibverbs says that `list` has `count` entries; it is freed below, after its last use.
        let devices = unsafe { std::slice::from_raw_parts(list, count.max(0) as usize) };
        let tried = try_devices(devices, options);
        // SAFETY: `list` came from `ibv_get_device_list`, and open devices outlive it.
        unsafe { ibv_free_device_list(list) };
        match tried {
            Some(device) => device.map(Arc::new),
            None if count == 0 => failed("there is no RDMA device"),
            None => match &options.device {
                Some(name) => failed(&format!("no RDMA device `{name}` has an active port as was asked for")),
                None => failed("no RDMA device has an active port as was asked for"),
            },
        }
    }

    fn open_one(device: *mut ibv_device, name: String, options: &VerbsOptions) -> Option<Result<Self>> {
        let fail = |what: &str| Some(Err(system(&name, what, &io::Error::last_os_error())));
        // SAFETY: `device` is an entry of a list that is not freed yet.
        let Some(context) = NonNull::new(unsafe { ibv_open_device(device) }) else {
            return fail("it cannot be opened");
        };
        // SAFETY: `context` was opened just now.
        let Some(pd) = NonNull::new(unsafe { ibv_alloc_pd(context.as_ptr()) }) else {
            // SAFETY: nothing was made of `context`.
            unsafe { ibv_close_device(context.as_ptr()) };
            return fail("it has no protection domain");
        };
        static OPENED: AtomicU64 = AtomicU64::new(1);
        let port =
            Port { number: 0, lid: 0, link_layer: 0, gid_index: 0, gid: [0; 16], mtu: 0, message_max: 0 };
        // From here on it is closed when it goes.
        let mut device = Self {
            context,
            pd,
            id: OPENED.fetch_add(1, Relaxed),
            name,
            port,
            timeout: options.timeout_code(),
            work_max: 0,
            receives_max: 0,
            completions_max: 0,
            depth_out: 0,
            depth_in: 0,
        };
        let attr = match device.attributes() {
            Ok(attr) => attr,
            Err(error) => return Some(Err(error)),
        };
        if attr.atomic_cap == ibv_atomic_cap::IBV_ATOMIC_NONE {
            let reason = "it has no atomics".to_owned();
            return Some(Err(FabricError::Open { path: device.name.clone(), reason }));
        }
        device.work_max = attr.max_qp_wr.max(1) as u32;
        device.receives_max = if attr.max_srq > 0 { attr.max_srq_wr.max(0) as u32 } else { 0 };
        device.completions_max = attr.max_cqe.max(1) as u32;
        device.depth_out = attr.max_qp_init_rd_atom.clamp(1, DEPTH_MAX) as u8;
        device.depth_in = attr.max_qp_rd_atom.clamp(1, DEPTH_MAX) as u8;
        let mut ports = 1..=attr.phys_port_cnt;
        let port = ports.find_map(|number| device.port(number, options))?;
        device.port = port;
        Some(Ok(device))
    }

    fn attributes(&self) -> Result<ibv_device_attr> {
        let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the device is open, and `attr` valid for writes of its type.
        done(unsafe { ibv_query_device(self.context(), attr.as_mut_ptr()) })
            .map_err(|error| system(&self.name, "it says nothing about itself", &error))?;
        // SAFETY: it is plain numbers, zeroed, and filled by the call.
        Ok(unsafe { attr.assume_init() })
    }

    /// Port `number`, if it is active and as asked for.
    fn port(&self, number: u8, options: &VerbsOptions) -> Option<Port> {
        if options.port.is_some_and(|wanted| wanted != number) {
            return None;
        }
        let mut attr = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the device is open, and `attr` valid for writes of its type.
        if unsafe { ibv_query_port(self.context(), number, attr.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: it is plain numbers, zeroed, and filled by the call.
        let attr = unsafe { attr.assume_init() };
        if attr.state != ibv_port_state::IBV_PORT_ACTIVE {
            return None;
        }
        let gids = 0..attr.gid_tbl_len.clamp(0, 256) as u32;
        let gid_index = match options.gid {
            Some(index) => u32::from(index),
            None if attr.link_layer == ETHERNET => {
                gids.min_by_key(|&index| self.rank(number, index)).unwrap_or(0)
            }
            None => 0,
        };
        let gid = self.gid(number, gid_index)?;
        let mtu = options.mtu_code().map_or(attr.active_mtu, |mtu| mtu.min(attr.active_mtu)) as u8;
        let (lid, link_layer, message_max) = (attr.lid, attr.link_layer, attr.max_msg_sz);
        Some(Port { number, lid, link_layer, gid_index: gid_index as u8, gid, mtu, message_max })
    }

    fn gid(&self, port: u8, index: u32) -> Option<[u8; 16]> {
        let mut gid = rdma_mummy_sys::ibv_gid { raw: [0; 16] };
        // SAFETY: the device is open, and `gid` valid for writes of its type, of which any 16 bytes are one.
        let found = unsafe {
            match ibv_query_gid(self.context(), port, index as i32, &raw mut gid) {
                0 => gid.raw,
                _ => return None,
            }
        };
        Some(found)
    }

    /// How good a GID of an Ethernet port is; less is better.
    fn rank(&self, port: u8, index: u32) -> u8 {
        let mut entry = MaybeUninit::<ibv_gid_entry>::zeroed();
        // SAFETY: the device is open, and `entry` valid for writes of its type, of which zeros are one.
        let (found, entry) = unsafe {
            let found = ibv_query_gid_ex(self.context(), u32::from(port), index, entry.as_mut_ptr(), 0);
            (found, entry.assume_init())
        };
        // SAFETY: any 16 bytes are a GID.
        let gid = unsafe { entry.gid.raw };
        let is_ipv4 = gid[..10] == [0; 10] && gid[10..12] == [0xff; 2];
        match found == 0 && gid != [0; 16] {
            true if entry.gid_type == IBV_GID_TYPE_ROCE_V2 && is_ipv4 => 0,
            true if entry.gid_type == IBV_GID_TYPE_ROCE_V2 => 1,
            true => 2,
            false => 3,
        }
    }

    pub fn context(&self) -> *mut ibv_context {
        self.context.as_ptr()
    }

    pub fn pd(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }

    /// Blocks of memory that the device knows.
    ///
    /// # Errors
    /// `System` if it does not take them.
    pub fn arena(self: &Arc<Self>, block_len: usize, blocks: usize) -> Result<Arc<Arena>> {
        Arena::new(block_len, blocks, |words| {
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
            // SAFETY: an arena keeps its words where they are for as long as it keeps the guard, which goes first.
            let memory = unsafe { Memory::register(self, words, access) }?;
            Ok(Registration {
                device: self.id,
                key: memory.local_key(),
                guard: Box::new(memory) as Box<dyn Any + Send + Sync>,
            })
        })
    }

    /// A buffer out of one of its arenas, with the device's name for the memory.
    ///
    /// # Panics
    /// If the buffer is another one.
    pub fn with_key(&self, buffer: PageBuf) -> (PageBuf, u32) {
        let key = buffer.key(self.id).expect("it is registered");
        (buffer, key)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: whatever was made of the device holds it, so nothing is left.
        unsafe {
            ibv_dealloc_pd(self.pd.as_ptr());
            ibv_close_device(self.context.as_ptr());
        }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} port {} gid {}", self.name, self.port.number, self.port.gid_index)
    }
}

/// The first device that can be used, or the failure of one that was asked for by name.
fn try_devices(devices: &[*mut ibv_device], options: &VerbsOptions) -> Option<Result<Device>> {
    let mut failed = None;
    for &device in devices {
        // SAFETY: `device` is an entry of a list that is not freed yet; names are strings that last as long.
        let name = unsafe { CStr::from_ptr(ibv_get_device_name(device)) }.to_string_lossy().into_owned();
        if options.device.as_ref().is_some_and(|wanted| *wanted != name) {
            continue;
        }
        match Device::open_one(device, name, options) {
            Some(Ok(opened)) => return Some(Ok(opened)),
            Some(Err(error)) => failed = Some(Err(error)),
            None => {}
        }
    }
    failed
}

/// Memory that a device was told of, until it goes.
struct Memory {
    mr: NonNull<ibv_mr>,
    device: Arc<Device>,
}

// SAFETY: as of the device.
unsafe impl Send for Memory {}
// SAFETY: as of the device.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// `words` must stay where they are until the result is dropped.
    unsafe fn register(device: &Arc<Device>, words: &[AtomicU64], access: ibv_access_flags) -> Result<Self> {
        let (start, bytes) = (words.as_ptr().cast_mut().cast(), size_of_val(words));
        // SAFETY: the words are valid, and atomics may change at any time, by a device too. The caller keeps them.
        let mr = unsafe { ibv_reg_mr(device.pd(), start, bytes, access.0 as i32) };
        match NonNull::new(mr) {
            Some(mr) => Ok(Self { mr, device: Arc::clone(device) }),
            None => {
                let error = io::Error::last_os_error();
                let what = format!(
                    "{bytes} bytes cannot be registered (they must fit into memory and the limit of locked memory)"
                );
                Err(system(&device.name, &what, &error))
            }
        }
    }

    fn local_key(&self) -> u32 {
        // SAFETY: the registration is there while `self` is.
        unsafe { self.mr.as_ref() }.lkey
    }

    fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref() }.rkey
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was registered once and is not used any more.
        let error = unsafe { ibv_dereg_mr(self.mr.as_ptr()) };
        if error != 0 {
            tracing::error!("memory of {} cannot be taken back from it: error {error}", self.device.name);
        }
    }
}

/// The region of a memory server, open to queue pairs of its device.
pub(crate) struct OpenRegion {
    // Dropped in this order: the device forgets the memory before it may go.
    memory: Memory,
    region: ServedRegion,
}

impl OpenRegion {
    /// # Errors
    /// `Open` if it is in a file, `System` if the device does not take it.
    pub fn new(device: &Arc<Device>, region: ServedRegion) -> Result<Self> {
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
        // SAFETY: `region` keeps its words mapped, and is dropped after the registration.
        let memory = unsafe { Memory::register(device, region.words_of_device()?, access) }?;
        Ok(Self { memory, region })
    }

    pub fn address(&self) -> u64 {
        // SAFETY: the registration is there while `self` is.
        unsafe { self.memory.mr.as_ref() }.addr as u64
    }

    pub fn bytes(&self) -> u64 {
        self.region.bytes()
    }

    pub fn key(&self) -> u32 {
        self.memory.remote_key()
    }
}

/// What a function of libibverbs means by the number that it returns: nothing went wrong, or the system's number of an error,
/// which some providers negate.
pub(crate) fn done(returned: i32) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.abs())),
    }
}

pub(crate) fn system(device: &str, what: &str, error: &io::Error) -> FabricError {
    FabricError::System { path: format!("RDMA device {device}"), reason: format!("{what}: {error}") }
}
