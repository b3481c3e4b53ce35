//! An open device of libibverbs, and memory registered with it.
//!
//! The device, its port, GID and MTU are chosen here. Offers and clients open the device once and share it.
//! It is closed when the last registration and queue is gone.

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

/// `link_layer` of an Ethernet port.
pub(crate) const ETHERNET: u8 = 2;
/// Maximum number of READs and atomics in flight per queue pair; few devices take more.
const DEPTH_MAX: i32 = 16;

/// The port in use, and its addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub number: u8,
    pub lid: u16,
    pub link_layer: u8,
    pub gid_index: u8,
    pub gid: [u8; 16],
    /// MTU code.
    pub mtu: u8,
    pub message_max: u32,
}

pub(crate) struct Device {
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    /// Number of the device among all that this process opened.
    pub id: u64,
    pub name: String,
    pub port: Port,
    /// Code of the time after which an unacknowledged packet is sent again.
    pub timeout: u8,
    /// Maximum number of work requests of a queue pair.
    pub work_max: u32,
    /// Maximum number of buffers of a shared receive queue, and of entries of a completion queue.
    pub receives_max: u32,
    pub completions_max: u32,
    /// Maximum number of READs and atomics that a queue pair sends, and takes, at a time.
    pub depth_out: u8,
    pub depth_in: u8,
}

// SAFETY: libibverbs may be called from any thread, also for the same device.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device that `options` name, or the first usable one.
    ///
    /// # Errors
    /// `Open` if there is no such device, `System` if it cannot be used.
    pub fn open(options: &VerbsOptions) -> Result<Arc<Self>> {
        let failed =
            |reason: &str| Err(FabricError::Open { path: "verbs".to_owned(), reason: reason.to_owned() });
        let mut count = 0;
        // SAFETY: `count` is valid for the call. Without libibverbs the result is null.
        let list = unsafe { ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return failed("there is no RDMA device, or libibverbs is not installed");
        }
        // SAFETY: `list` has `count` entries. It is freed below, after its last use.
        let devices = unsafe { std::slice::from_raw_parts(list, count.max(0) as usize) };
        let tried = try_devices(devices, options);
        // SAFETY: `list` came from `ibv_get_device_list`, and open devices do not depend on it.
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
        // SAFETY: `context` was opened above.
        let Some(pd) = NonNull::new(unsafe { ibv_alloc_pd(context.as_ptr()) }) else {
            // SAFETY: nothing was made of `context`.
            unsafe { ibv_close_device(context.as_ptr()) };
            return fail("it has no protection domain");
        };
        static OPENED: AtomicU64 = AtomicU64::new(1);
        let port =
            Port { number: 0, lid: 0, link_layer: 0, gid_index: 0, gid: [0; 16], mtu: 0, message_max: 0 };
        // From here on, dropping `device` closes it.
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
        // SAFETY: the device is open, and `attr` is valid for writes of its type.
        done(unsafe { ibv_query_device(self.context(), attr.as_mut_ptr()) })
            .map_err(|error| system(&self.name, "it says nothing about itself", &error))?;
        // SAFETY: `attr` consists of plain numbers, zeroed, and filled by the call.
        Ok(unsafe { attr.assume_init() })
    }

    /// Port `number`, if it is active and matches `options`.
    fn port(&self, number: u8, options: &VerbsOptions) -> Option<Port> {
        if options.port.is_some_and(|wanted| wanted != number) {
            return None;
        }
        let mut attr = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the device is open, and `attr` is valid for writes of its type.
        if unsafe { ibv_query_port(self.context(), number, attr.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: `attr` consists of plain numbers, zeroed, and filled by the call.
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
        // SAFETY: the device is open, and `gid` is valid for writes. Any 16 bytes are a GID.
        let found = unsafe {
            match ibv_query_gid(self.context(), port, index as i32, &raw mut gid) {
                0 => gid.raw,
                _ => return None,
            }
        };
        Some(found)
    }

    /// Rank of a GID of an Ethernet port; lower is better.
    fn rank(&self, port: u8, index: u32) -> u8 {
        let mut entry = MaybeUninit::<ibv_gid_entry>::zeroed();
        // SAFETY: the device is open, and `entry` is valid for writes. Zeros are a valid entry.
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

    /// Blocks of memory registered with the device.
    ///
    /// # Errors
    /// `System` if the device refuses the memory.
    pub fn arena(self: &Arc<Self>, block_len: usize, blocks: usize) -> Result<Arc<Arena>> {
        Arena::new(block_len, blocks, |words| {
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
            // SAFETY: an arena does not move its words while it holds the guard, which it drops first.
            let memory = unsafe { Memory::register(self, words, access) }?;
            Ok(Registration {
                device: self.id,
                key: memory.local_key(),
                guard: Box::new(memory) as Box<dyn Any + Send + Sync>,
            })
        })
    }

    /// A buffer of one of this device's arenas, with the device's key for it.
    ///
    /// # Panics
    /// If the buffer is not registered with this device.
    pub fn with_key(&self, buffer: PageBuf) -> (PageBuf, u32) {
        let key = buffer.key(self.id).expect("it is registered");
        (buffer, key)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: all objects made of the device hold it, so none is left.
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

/// The first usable device, or the error of the last one that matches but cannot be used.
fn try_devices(devices: &[*mut ibv_device], options: &VerbsOptions) -> Option<Result<Device>> {
    let mut failed = None;
    for &device in devices {
        // SAFETY: `device` is an entry of a list that is not freed yet; its name lives as long.
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

/// Memory registered with a device until it is dropped.
struct Memory {
    mr: NonNull<ibv_mr>,
    device: Arc<Device>,
}

// SAFETY: as for `Device`.
unsafe impl Send for Memory {}
// SAFETY: as for `Device`.
unsafe impl Sync for Memory {}

impl Memory {
    /// Registers `words` with `access`.
    ///
    /// # Safety
    /// `words` must not move or be freed until the result is dropped.
    unsafe fn register(device: &Arc<Device>, words: &[AtomicU64], access: ibv_access_flags) -> Result<Self> {
        let (start, bytes) = (words.as_ptr().cast_mut().cast(), size_of_val(words));
        // SAFETY: the words are valid, and atomics may be changed at any time, also by a device. The caller
        // keeps them alive.
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
        // SAFETY: the registration exists while `self` does.
        unsafe { self.mr.as_ref() }.lkey
    }

    fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.mr.as_ref() }.rkey
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory was registered once and is no longer used.
        let error = unsafe { ibv_dereg_mr(self.mr.as_ptr()) };
        if error != 0 {
            tracing::error!("memory of {} cannot be taken back from it: error {error}", self.device.name);
        }
    }
}

/// The region of a memory server, registered for remote access.
pub(crate) struct OpenRegion {
    // Drop order: the memory is deregistered before it may be freed.
    memory: Memory,
    region: ServedRegion,
}

impl OpenRegion {
    /// Registers `region` with `device`.
    ///
    /// # Errors
    /// `Open` if the region is a file, `System` if the device refuses it.
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
        // SAFETY: the registration exists while `self` does.
        unsafe { self.memory.mr.as_ref() }.addr as u64
    }

    pub fn bytes(&self) -> u64 {
        self.region.bytes()
    }

    pub fn key(&self) -> u32 {
        self.memory.remote_key()
    }
}

/// Converts the result of a libibverbs function: 0 is success, otherwise an `errno`, which some providers
/// negate.
pub(crate) fn done(returned: i32) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.abs())),
    }
}

pub(crate) fn system(device: &str, what: &str, error: &io::Error) -> FabricError {
    FabricError::System { path: format!("RDMA device {device}"), reason: format!("{what}: {error}") }
}
