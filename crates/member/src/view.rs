//! Views: which memory servers hold the copies of each volume.
//!
//! The region of a memory server is divided into equal *slots*, as many as each volume shall have copies. A
//! copy of a volume fills one slot. The first copy is the *primary*, which serves; the others are *backups*. A
//! *syncing* copy is being filled: it is written, never read and never promoted. A view is not changed:
//! each function that changes something returns the view of the next epoch.
//!
//! ```text
//! epoch 8 | pool 8 | copies wanted 2 | bytes of a slot 8 | count 4, servers | count 4, volumes | register
//! server   incarnation 8 | incarnation as an acceptor 8, 0 if it is not known | standing 1 | length 4, address
//! volume   epoch since which it has this primary 8 | count 4, copies, the primary first; none if it is retired
//! copy     server 2 | slot 2 | syncing 1
//! register length 4, name; only if the top bit of the count of servers says that it is outside the servers
//! ```
//!
//! A server may be in the view (1 in its standing), be no acceptor of the register (2), be about to leave (4), or have left for
//! good (8). The top bit of the count of volumes says that the last one is *planned*: nobody has used it, because it has not had
//! all its copies yet ([`View::with_server`]).

mod steps;

use std::collections::BTreeSet;

use pando_fabric::codec::{BadField, Put, Reader, text};
use pando_fabric::defect::defect;
use pando_fabric::{GlobalAddr, MAX_SERVERS, MemoryServerId};

use crate::defect::Defect;
use crate::register::AcceptorId;

/// Epoch of the first view of a pool.
pub const FIRST_EPOCH: u64 = 1;
/// No view gets so far by changes; encoded views from here on are damaged.
const EPOCH_END: u64 = 1 << 63;
/// Least bytes of an encoded server and of a volume, and those of a copy.
const SERVER_BYTES: usize = 21;
const VOLUME_BYTES: usize = 12;
const COPY_BYTES: usize = 5;
/// Bit in the count of servers: the name of a register follows the volumes.
const NAMES_REGISTER: u32 = 1 << 31;
/// Bit in the count of volumes: the last one is planned.
const PLANS_ONE: u32 = 1 << 31;
/// Incarnation of an acceptor that is not known.
const NO_ACCEPTOR: u64 = 0;
/// Bits of the standing of a server.
const IS_IN: u8 = 1;
const IS_NO_ACCEPTOR: u8 = 2;
const LEAVES: u8 = 4;
const HAS_LEFT: u8 = 8;

/// A register outside the memory servers, as the one acceptor of the views that are in it. No server has this number.
pub const OUTSIDE: AcceptorId = AcceptorId { server: MemoryServerId(u16::MAX), incarnation: 0 };
const _: () = assert!((OUTSIDE.server.0 as usize) >= MAX_SERVERS);

/// Number of a volume: the memory server part of a global address in a replicated pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct VolumeId(pub u16);

impl VolumeId {
    /// Volume that `addr` lies in.
    #[inline]
    pub fn of(addr: GlobalAddr) -> Self {
        Self(addr.server().0)
    }
}

/// A slot of a memory server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub server: MemoryServerId,
    pub slot: u16,
}

/// A copy of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeCopy {
    pub server: MemoryServerId,
    pub slot: u16,
    /// Whether it is being filled.
    pub syncing: bool,
}

impl VolumeCopy {
    fn whole(server: MemoryServerId, slot: u16) -> Self {
        Self { server, slot, syncing: false }
    }

    /// One that is being filled.
    fn filling(place: Place) -> Self {
        Self { server: place.server, slot: place.slot, syncing: true }
    }

    /// Offset in the region of the server at which the copy begins, in bytes, if slots have `slot_bytes` bytes.
    #[inline]
    pub fn shift(&self, slot_bytes: u64) -> u64 {
        u64::from(self.slot) * slot_bytes
    }

    pub fn place(&self) -> Place {
        Place { server: self.server, slot: self.slot }
    }
}

/// A memory server as a view knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    address: String,
    incarnation: u64,
    /// Incarnation as an acceptor of the register, or [`NO_ACCEPTOR`].
    acceptor: u64,
    is_acceptor: bool,
    is_in: bool,
    stay: Stay,
}

/// Whether a server is there for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    Stays,
    /// It takes no more copies, and those that it has go to others.
    Leaves,
    Left,
}

impl Server {
    /// A server in the view. `incarnation` changes whenever its memory is lost or outdated.
    pub fn new(address: impl Into<String>, incarnation: u64) -> Self {
        let (acceptor, is_acceptor, stay) = (incarnation, true, Stay::Stays);
        Self { address: address.into(), incarnation, acceptor, is_acceptor, is_in: true, stay }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Whether the server may hold copies. One that is out has missed writes.
    pub fn is_in(&self) -> bool {
        self.is_in
    }

    /// Whether it is there for good. One that is not takes no more copies, and never returns.
    pub fn stays(&self) -> bool {
        self.stay == Stay::Stays
    }

    /// Whether it has left for good.
    pub fn has_left(&self) -> bool {
        self.stay == Stay::Left
    }

    fn encode_standing(&self) -> u8 {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let acceptor = bit(!self.is_acceptor && self.acceptor != NO_ACCEPTOR, IS_NO_ACCEPTOR);
        let stay = match self.stay {
            Stay::Stays => 0,
            Stay::Leaves => LEAVES,
            Stay::Left => HAS_LEFT,
        };
        bit(self.is_in, IS_IN) | acceptor | stay
    }
}

/// What a memory server has a copy for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Primary,
    Backup,
    /// It is being filled.
    Syncing,
}

/// A copy of a volume, as its memory server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldCopy {
    pub volume: VolumeId,
    pub slot: u16,
    pub role: Role,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Volume {
    /// `None` if the volume is retired: nobody uses it any more.
    primary: Option<VolumeCopy>,
    /// Epoch of the first of the views, up to this one, that all have this primary.
    since: u64,
    backups: Vec<VolumeCopy>,
}

impl Volume {
    fn copies(&self) -> impl Iterator<Item = &VolumeCopy> {
        self.primary.iter().chain(&self.backups)
    }

    fn is_retired(&self) -> bool {
        self.primary.is_none()
    }

    /// Whether no copy is being filled.
    fn is_whole(&self) -> bool {
        !self.backups.iter().any(|copy| copy.syncing)
    }

    fn is_on(&self, server: MemoryServerId) -> bool {
        self.copies().any(|copy| copy.server == server)
    }

    /// Removes the copy on `server`, if there is one. If it is the primary, the last whole backup is the primary from `epoch` on: a
    /// WRITE reaches it after all others, so these have what it has. Returns whether a primary is left.
    fn leave(&mut self, server: MemoryServerId, epoch: u64) -> bool {
        self.backups.retain(|copy| copy.server != server);
        if self.primary.is_none_or(|copy| copy.server != server) {
            return true;
        }
        let whole = |copy: &VolumeCopy| !copy.syncing || defect(Defect::SyncingPromoted);
        let Some(at) = self.backups.iter().rposition(whole) else { return false };
        (self.primary, self.since) = (Some(VolumeCopy { syncing: false, ..self.backups.remove(at) }), epoch);
        true
    }
}

/// Volumes that would be lost if a memory server left the view, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("without memory server {server}, no whole copy would be left of the volumes {volumes:?}")]
pub struct LostVolumes {
    pub server: MemoryServerId,
    pub volumes: Vec<u16>,
}

/// Reason why a view cannot be made, or cannot be changed like this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    #[error(
        "{servers} memory servers cannot hold {replicas} copies of each volume: it needs one, and a server for each"
    )]
    Copies { replicas: u16, servers: usize },
    #[error("a view of {servers} memory servers has more than {MAX_SERVERS}")]
    TooManyServers { servers: usize },
    #[error("{address} is memory server {server} of the view already")]
    IsNamed { address: String, server: MemoryServerId },
    #[error("there is no volume {volume}")]
    NoVolume { volume: u16 },
    #[error("there is no memory server {server}")]
    NoServer { server: MemoryServerId },
    #[error("memory server {server} is not in the view")]
    IsOut { server: MemoryServerId },
    #[error("memory server {server} is in the view already")]
    IsIn { server: MemoryServerId },
    #[error(
        "memory server {server} left the view with incarnation {incarnation} and can return with a new one only"
    )]
    Outdated { server: MemoryServerId, incarnation: u64 },
    #[error("slot {slot} of memory server {server} is not free")]
    NotFree { server: MemoryServerId, slot: u16 },
    #[error("memory server {server} has a copy of volume {volume} already")]
    HasCopy { volume: u16, server: MemoryServerId },
    #[error("memory server {server} leaves the pool for good, or has left it")]
    Leaves { server: MemoryServerId },
    #[error("memory server {server} has what the pool needs, and cannot leave it")]
    Needed { server: MemoryServerId },
    #[error("without memory server {server}, there are too few for {replicas} copies of each volume")]
    TooFew { server: MemoryServerId, replicas: u16 },
    #[error("memory server {server} has no copy of volume {volume} that is being filled")]
    NotSyncing { volume: u16, server: MemoryServerId },
}

/// Where the copies of all volumes are, at one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    epoch: u64,
    pool: u64,
    replicas: u16,
    slot_bytes: u64,
    servers: Vec<Server>,
    volumes: Vec<Volume>,
    /// Whether the last volume has not had all its copies yet.
    plans_one: bool,
    /// Empty: the servers hold the register.
    register: String,
}

impl View {
    /// First view of the pool with id `pool`: each of `servers` is in it, there are as many volumes as servers,
    /// and copy `k` of volume `v` is in slot `k` of server `(v + k) % servers`.
    ///
    /// # Errors
    /// If there are too many servers, or too few for `replicas` copies on different ones, or `replicas` is 0.
    pub fn new(pool: u64, replicas: u16, mut servers: Vec<Server>) -> Result<Self, ViewError> {
        let n = servers.len();
        if n > MAX_SERVERS {
            return Err(ViewError::TooManyServers { servers: n });
        }
        if replicas == 0 || usize::from(replicas) > n {
            return Err(ViewError::Copies { replicas, servers: n });
        }
        servers.iter_mut().for_each(|server| server.is_in = true);
        let volume = |v: usize| {
            let copy = |k| VolumeCopy::whole(MemoryServerId(((v + usize::from(k)) % n) as u16), k);
            Volume { primary: Some(copy(0)), since: FIRST_EPOCH, backups: (1..replicas).map(copy).collect() }
        };
        let volumes = (0..n).map(volume).collect();
        let register = String::new();
        let plans_one = false;
        Ok(Self { epoch: FIRST_EPOCH, pool, replicas, slot_bytes: 1, servers, volumes, plans_one, register })
    }

    /// This view with slots of `bytes` bytes, at least 1: volumes have as many.
    pub fn with_slots_of(self, bytes: u64) -> Self {
        Self { slot_bytes: bytes.max(1), ..self }
    }

    /// This view, in a register outside the servers that has this `name`, and is linearizable by itself.
    pub fn in_register(self, name: impl Into<String>) -> Self {
        Self { register: name.into(), ..self }
    }

    /// This first view of a pool as the successor of the last view of another pool on the same servers.
    pub fn in_place_of(mut self, old: &Self) -> Self {
        self.epoch = old.epoch + 1;
        self.volumes.iter_mut().for_each(|volume| volume.since = self.epoch);
        self
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Id of the pool.
    pub fn pool(&self) -> u64 {
        self.pool
    }

    /// Number of copies that each volume shall have: also the number of slots of each server.
    pub fn replicas(&self) -> u16 {
        self.replicas
    }

    /// Whether volumes shall have more than one copy.
    #[inline]
    pub fn is_replicated(&self) -> bool {
        self.replicas > 1
    }

    /// All servers, those that are out too, by number.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Number of the server with this address, in the view or not; one that has left does not count.
    pub fn server_at(&self, address: &str) -> Option<MemoryServerId> {
        let at = self.servers.iter().position(|server| server.address == address && !server.has_left())?;
        Some(MemoryServerId(at as u16))
    }

    /// Bytes that each server needs: those of its slots.
    pub fn server_bytes(&self) -> u64 {
        self.slot_bytes * u64::from(self.replicas)
    }

    /// Numbers of the servers in the view.
    pub fn members(&self) -> impl Iterator<Item = MemoryServerId> {
        let all = self.servers.iter().enumerate();
        all.filter(|(_, server)| server.is_in).map(|(i, _)| MemoryServerId(i as u16))
    }

    /// Incarnation with which `server` is in the view; `None` if it is not.
    pub fn incarnation(&self, server: MemoryServerId) -> Option<u64> {
        let server = self.servers.get(usize::from(server.0))?;
        server.is_in.then_some(server.incarnation)
    }

    /// Name of the register outside the servers that has the views of this pool; `None` if the servers hold it.
    pub fn register(&self) -> Option<&str> {
        (!self.register.is_empty()).then_some(&*self.register)
    }

    /// The acceptors of the register, on servers of the pool; [`OUTSIDE`] alone if the register is outside the servers.
    pub fn acceptors(&self) -> impl Iterator<Item = AcceptorId> {
        let outside = self.register().map(|_| OUTSIDE);
        let servers = if outside.is_none() { &self.servers[..] } else { &[] };
        let on_servers = (0..).zip(servers).map(|(number, server)| AcceptorId {
            server: MemoryServerId(number),
            incarnation: server.acceptor,
        });
        let on_servers = on_servers.zip(servers).filter(|(_, server)| server.is_acceptor).map(|(id, _)| id);
        outside.into_iter().chain(on_servers)
    }

    /// Bytes of a slot.
    #[inline]
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Number of volumes, with one that is planned.
    pub fn volumes(&self) -> usize {
        self.volumes.len()
    }

    /// Number of volumes that may be used.
    pub fn volumes_in_use(&self) -> usize {
        self.volumes.len() - usize::from(self.plans_one)
    }

    /// The copy of `volume` that serves; `None` if there is no such volume, or it is retired.
    #[inline]
    pub fn primary(&self, volume: VolumeId) -> Option<VolumeCopy> {
        self.volumes.get(usize::from(volume.0))?.primary
    }

    /// Whether `volume` was retired: it is empty, has no copies, and is never used again.
    pub fn is_retired(&self, volume: VolumeId) -> bool {
        self.volumes.get(usize::from(volume.0)).is_some_and(Volume::is_retired)
    }

    /// The other copies of `volume`, syncing ones too; none if there is no such volume.
    #[inline]
    pub fn backups(&self, volume: VolumeId) -> &[VolumeCopy] {
        self.volumes.get(usize::from(volume.0)).map_or(&[], |volume| &volume.backups)
    }

    /// The copies that `server` has, by volume.
    pub fn held_by(&self, server: MemoryServerId) -> impl Iterator<Item = HeldCopy> {
        (0..).map(VolumeId).zip(&self.volumes).filter_map(move |(id, volume)| {
            let copy = volume.copies().find(|copy| copy.server == server)?;
            let role = match copy {
                copy if Some(*copy) == volume.primary => Role::Primary,
                copy if copy.syncing => Role::Syncing,
                _ => Role::Backup,
            };
            Some(HeldCopy { volume: id, slot: copy.slot, role })
        })
    }

    /// Epoch of the first of the views, up to this one, that all have the same primary of `volume`.
    pub fn primary_since(&self, volume: VolumeId) -> Option<u64> {
        self.volumes.get(usize::from(volume.0)).map(|volume| volume.since)
    }

    /// Volumes with fewer copies than they shall have. A syncing copy counts.
    pub fn wanting(&self) -> impl Iterator<Item = VolumeId> {
        let all = self.volumes.iter().enumerate();
        let wanting = all.filter(|(_, volume)| {
            !volume.is_retired() && volume.copies().count() < usize::from(self.replicas)
        });
        wanting.map(|(v, _)| VolumeId(v as u16))
    }

    /// Slots without a copy of servers that are in the view and stay.
    pub fn free_slots(&self) -> impl Iterator<Item = Place> {
        let used: BTreeSet<_> =
            self.volumes.iter().flat_map(|volume| volume.copies().map(VolumeCopy::place)).collect();
        let staying = self.members().filter(|server| self.servers[usize::from(server.0)].stays());
        let all = staying.flat_map(|server| (0..self.replicas).map(move |slot| Place { server, slot }));
        all.filter(move |place| !used.contains(place))
    }

    fn next(&self) -> Self {
        Self { epoch: self.epoch + 1, ..self.clone() }
    }

    /// This view without `server`: it is out, its copies are gone, and of each volume that it served the last
    /// whole backup is the primary. A planned volume is given up if no copy is left. The same view, of the same epoch, if `server` is not in it.
    ///
    /// # Errors
    /// If no whole copy of a volume would be left.
    pub fn without(&self, server: MemoryServerId) -> Result<Self, LostVolumes> {
        if self.incarnation(server).is_none() {
            return Ok(self.clone());
        }
        let mut next = self.next();
        next.servers[usize::from(server.0)].is_in = false;
        let mut lost = Vec::new();
        for (v, volume) in next.volumes.iter_mut().enumerate() {
            if !volume.leave(server, next.epoch) {
                lost.push(v as u16);
            }
        }
        if next.plans_one && lost.last().is_some_and(|lost| usize::from(*lost) + 1 == next.volumes.len()) {
            lost.pop();
            next.volumes.pop();
            next.plans_one = false;
        }
        if lost.is_empty() { Ok(next) } else { Err(LostVolumes { server, volumes: lost }) }
    }

    /// This view with a syncing copy of `volume` in a free slot of `server`.
    ///
    /// # Errors
    /// If there is no such volume, the slot is not free, or the server has a copy of the volume.
    pub fn with_copy(&self, volume: VolumeId, server: MemoryServerId, slot: u16) -> Result<Self, ViewError> {
        self.check_server(server, true)?;
        let mut next = self.next();
        let of_volume = next.volume_mut(volume)?;
        if of_volume.is_retired() {
            return Err(ViewError::NoVolume { volume: volume.0 });
        }
        if of_volume.is_on(server) {
            return Err(ViewError::HasCopy { volume: volume.0, server });
        }
        let place = Place { server, slot };
        of_volume.backups.push(VolumeCopy::filling(place));
        if !self.free_slots().any(|free| free == place) {
            return Err(ViewError::NotFree { server, slot });
        }
        Ok(next)
    }

    /// This view with the copy of `volume` on `server` as a whole one.
    ///
    /// # Errors
    /// If `server` has no syncing copy of `volume`.
    pub fn copied(&self, volume: VolumeId, server: MemoryServerId) -> Result<Self, ViewError> {
        let mut next = self.next();
        let mut copies = next.volume_mut(volume)?.backups.iter_mut();
        let Some(copy) = copies.find(|copy| copy.server == server && copy.syncing) else {
            return Err(ViewError::NotSyncing { volume: volume.0, server });
        };
        copy.syncing = false;
        Ok(next)
    }

    /// This view with `server` in it again, without copies. It needs another incarnation than before, because its
    /// memory is outdated if it is not lost.
    ///
    /// # Errors
    /// If there is no such server, it is in the view or leaves for good, or the incarnation is the old one.
    pub fn readmit(&self, server: MemoryServerId, incarnation: u64) -> Result<Self, ViewError> {
        self.check_server(server, false)?;
        if !self.servers[usize::from(server.0)].stays() {
            return Err(ViewError::Leaves { server });
        }
        let mut next = self.next();
        let of_server = &mut next.servers[usize::from(server.0)];
        if of_server.incarnation == incarnation {
            return Err(ViewError::Outdated { server, incarnation });
        }
        (of_server.incarnation, of_server.is_in) = (incarnation, true);
        Ok(next)
    }

    /// This view, before it is proposed, with an acceptor of this `incarnation` on `server`, or one that may become an acceptor. The
    /// one that it had must have lost its memory, so that it never answers again.
    pub fn with_acceptor(mut self, server: MemoryServerId, incarnation: u64) -> Self {
        if let Some(of_server) = self.servers.get_mut(usize::from(server.0)) {
            of_server.acceptor = incarnation;
        }
        self
    }

    fn check_server(&self, server: MemoryServerId, in_view: bool) -> Result<(), ViewError> {
        match self.servers.get(usize::from(server.0)) {
            None => Err(ViewError::NoServer { server }),
            Some(found) if found.is_in == in_view => Ok(()),
            Some(_) if in_view => Err(ViewError::IsOut { server }),
            Some(_) => Err(ViewError::IsIn { server }),
        }
    }

    fn volume_mut(&mut self, volume: VolumeId) -> Result<&mut Volume, ViewError> {
        self.volumes.get_mut(usize::from(volume.0)).ok_or(ViewError::NoVolume { volume: volume.0 })
    }

    /// The view as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u64(self.epoch);
        out.put_u64(self.pool);
        out.put_u16(self.replicas);
        out.put_u64(self.slot_bytes);
        let names_register = if self.register.is_empty() { 0 } else { NAMES_REGISTER };
        out.put_u32(self.servers.len() as u32 | names_register);
        for server in &self.servers {
            out.put_u64(server.incarnation);
            out.put_u64(server.acceptor);
            out.push(server.encode_standing());
            out.put_counted(server.address.as_bytes());
        }
        out.put_u32(self.volumes.len() as u32 | if self.plans_one { PLANS_ONE } else { 0 });
        for volume in &self.volumes {
            out.put_u64(volume.since);
            out.put_u32(volume.copies().count() as u32);
            for copy in volume.copies() {
                out.put_u16(copy.server.0);
                out.put_u16(copy.slot);
                out.push(u8::from(copy.syncing));
            }
        }
        if let Some(register) = self.register() {
            out.put_counted(register.as_bytes());
        }
        out
    }

    /// Epoch of an encoded view, without a look at the rest of it; 0 for no bytes, the value of a new register.
    ///
    /// # Errors
    /// If the bytes are no view.
    pub fn epoch_of(bytes: &[u8]) -> Result<u64, BadField> {
        if bytes.is_empty() { Ok(0) } else { read_epoch(&mut Reader::new(bytes)) }
    }

    /// The acceptors that an encoded view names; `None` if the bytes are no view.
    pub fn acceptors_of(bytes: &[u8]) -> Option<Vec<AcceptorId>> {
        Self::decode(bytes).ok().map(|view| view.acceptors().collect())
    }

    /// The view that `bytes` encode.
    ///
    /// # Errors
    /// If they are damaged; the error says where, and what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadField> {
        let reader = &mut Reader::new(bytes);
        let epoch = read_epoch(reader)?;
        let (pool, replicas, slot_bytes) = (reader.u64()?, reader.u16()?, reader.u64()?);
        if slot_bytes == 0 {
            return Err(reader.bad("slots without bytes"));
        }
        let counted = reader.u32()?;
        let (n, names_register) = ((counted & !NAMES_REGISTER) as usize, counted & NAMES_REGISTER != 0);
        if n > reader.rest().len() / SERVER_BYTES {
            return Err(reader.bad("more items than bytes"));
        }
        if n > MAX_SERVERS || replicas == 0 || usize::from(replicas) > n {
            return Err(reader.bad("a number of servers that does not fit the copies"));
        }
        let servers = (0..n).map(|_| read_server(reader)).collect::<Result<_, _>>()?;
        let counted = reader.u32()?;
        let (volumes, plans_one) = ((counted & !PLANS_ONE) as usize, counted & PLANS_ONE != 0);
        if volumes > reader.rest().len() / VOLUME_BYTES {
            return Err(reader.bad("more items than bytes"));
        }
        if volumes <= usize::from(plans_one) || volumes > MAX_SERVERS {
            return Err(reader.bad("a number of volumes that cannot be"));
        }
        let (of_volumes, register) = (Vec::with_capacity(volumes), String::new());
        let mut view =
            Self { epoch, pool, replicas, slot_bytes, servers, volumes: of_volumes, plans_one, register };
        let mut used = BTreeSet::new();
        for _ in 0..volumes {
            let volume = view.read_volume(reader, &mut used)?;
            view.volumes.push(volume);
        }
        if names_register {
            view.register = read_name(reader)?;
        }
        if view.acceptors().next().is_none() {
            return Err(reader.bad("no acceptors"));
        }
        reader.end()?;
        Ok(view)
    }

    fn read_volume(&self, reader: &mut Reader, used: &mut BTreeSet<Place>) -> Result<Volume, BadField> {
        let since = reader.u64()?;
        if since < FIRST_EPOCH || since > self.epoch {
            return Err(reader.bad("a primary since an epoch that was not"));
        }
        let copies = reader.count(COPY_BYTES)?;
        if copies == 0 {
            return Ok(Volume { primary: None, since, backups: Vec::new() });
        }
        let primary = self.read_copy(reader, used)?;
        if primary.syncing {
            return Err(reader.bad("a primary that is being filled"));
        }
        let mut holders = BTreeSet::from([primary.server]);
        let mut backups = Vec::with_capacity(copies - 1);
        for _ in 1..copies {
            let copy = self.read_copy(reader, used)?;
            if !holders.insert(copy.server) {
                return Err(reader.bad("two copies of a volume on one server"));
            }
            backups.push(copy);
        }
        Ok(Volume { primary: Some(primary), since, backups })
    }

    fn read_copy(&self, reader: &mut Reader, used: &mut BTreeSet<Place>) -> Result<VolumeCopy, BadField> {
        let (server, slot) = (MemoryServerId(reader.u16()?), reader.u16()?);
        let copy = VolumeCopy { server, slot, syncing: read_bool(reader)? };
        if self.incarnation(server).is_none() {
            return Err(reader.bad("a copy on a server that is not in the view"));
        }
        if slot >= self.replicas || !used.insert(copy.place()) {
            return Err(reader.bad("a copy in a slot that is not there or holds another one"));
        }
        Ok(copy)
    }
}

fn read_epoch(reader: &mut Reader) -> Result<u64, BadField> {
    let epoch = reader.u64()?;
    if !(FIRST_EPOCH..EPOCH_END).contains(&epoch) {
        return Err(reader.bad("an epoch that cannot be"));
    }
    Ok(epoch)
}

fn read_bool(reader: &mut Reader) -> Result<bool, BadField> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(reader.bad("neither yes nor no")),
    }
}

fn read_name(reader: &mut Reader) -> Result<String, BadField> {
    match text(reader.counted()?) {
        Ok("") | Err(_) => Err(reader.bad("a register without a name")),
        Ok(name) => Ok(name.to_owned()),
    }
}

fn read_server(reader: &mut Reader) -> Result<Server, BadField> {
    let (incarnation, acceptor, standing) = (reader.u64()?, reader.u64()?, reader.u8()?);
    let has = |bit| standing & bit != 0;
    let stay = match standing & !(IS_IN | IS_NO_ACCEPTOR) {
        0 => Stay::Stays,
        LEAVES => Stay::Leaves,
        HAS_LEFT if !has(IS_IN) => Stay::Left,
        _ => return Err(reader.bad("a standing that cannot be")),
    };
    if acceptor == NO_ACCEPTOR && has(IS_NO_ACCEPTOR) {
        return Err(reader.bad("a standing that cannot be"));
    }
    let is_acceptor = acceptor != NO_ACCEPTOR && !has(IS_NO_ACCEPTOR);
    let Ok(address) = text(reader.counted()?) else { return Err(reader.bad("an address that is no text")) };
    Ok(Server { address: address.to_owned(), incarnation, acceptor, is_acceptor, is_in: has(IS_IN), stay })
}
