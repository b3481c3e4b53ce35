//! The mapping table (DEX §5.1): global address to frame, or to the mark of an I/O in flight.
//!
//! A bucket is two cache lines: a latch and seven addresses, then seven values and the number of entries that
//! spilled into a side map. Lookups take no latch: they read under the bucket's sequence number.
//!
//! The I/O mark (DEX §5.4) is exclusive. Only the holder of the [`IoTicket`] of an address may read, write,
//! create or free that node in this compute server, until the ticket is published as a frame or dropped.
//! Operations that a memory server executes below a missing node (§6.2) share a ticket: [`CommonTicket`].

use std::collections::HashMap;

use pando_fabric::GlobalAddr;
use pando_fabric::defect::defect;

use crate::defect::Defect;
use crate::swip::FrameId;
use crate::sync::{AtomicU64, Mutex, Ordering, fence, lock, spin_loop};

const SLOTS: usize = 7;
/// Entries per bucket that the table is sized for.
const LOAD: usize = 3;
const IO: u64 = u64::MAX;
const LOCKED: u64 = 1;
/// Set in the value of a shared ticket, whose low bits count the shares.
const COMMON: u64 = 1 << 62;
/// Set once no further operation may join.
const CLOSED: u64 = 1 << 61;

#[repr(align(128))]
struct Bucket {
    /// Sequence number; odd while a writer is inside.
    latch: AtomicU64,
    addrs: [AtomicU64; SLOTS],
    values: [AtomicU64; SLOTS],
    overflow: AtomicU64,
}

impl Bucket {
    fn new() -> Self {
        Self {
            latch: AtomicU64::new(0),
            addrs: std::array::from_fn(|_| AtomicU64::new(0)),
            values: std::array::from_fn(|_| AtomicU64::new(0)),
            overflow: AtomicU64::new(0),
        }
    }

    fn slot_of(&self, addr: u64) -> Option<usize> {
        self.addrs.iter().position(|slot| slot.load(Ordering::Relaxed) == addr)
    }
}

/// Table entry of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Frame(FrameId),
    Io,
    Common,
}

fn entry_of(value: u64) -> Entry {
    match value {
        IO => Entry::Io,
        _ if value & COMMON != 0 => Entry::Common,
        _ => Entry::Frame(FrameId(value as u32)),
    }
}

/// Result of [`MappingTable::begin`].
#[must_use]
pub enum Lookup<'t> {
    /// The node is in this frame.
    Frame(FrameId),
    /// Another operation has the ticket: do not read, and descend again later.
    InFlight,
    /// Other operations share the ticket: [`MappingTable::join`] them, or [`MappingTable::close`] it and
    /// descend again later.
    Common,
    /// The ticket was free; the caller has it now.
    Miss(IoTicket<'t>),
}

/// See the module documentation.
pub struct MappingTable {
    buckets: Box<[Bucket]>,
    overflow: Mutex<HashMap<u64, u64>>,
}

impl MappingTable {
    /// Creates a table for about `entries` entries; it holds more, but is slower then.
    pub fn new(entries: usize) -> Self {
        let buckets = (entries / LOAD).max(2).next_power_of_two();
        Self { buckets: (0..buckets).map(|_| Bucket::new()).collect(), overflow: Mutex::new(HashMap::new()) }
    }

    /// Size of the table in bytes.
    pub fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    #[inline]
    fn bucket(&self, addr: u64) -> &Bucket {
        let hash = (addr >> 6 ^ addr >> 47).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }

    /// Frame of `addr`, if it has one now.
    pub fn frame_of(&self, addr: GlobalAddr) -> Option<FrameId> {
        match self.get(addr.raw()) {
            Some(Entry::Frame(frame)) => Some(frame),
            _ => None,
        }
    }

    /// Whether the ticket of `addr` is taken now, exclusively or shared.
    pub fn is_in_flight(&self, addr: GlobalAddr) -> bool {
        matches!(self.get(addr.raw()), Some(Entry::Io | Entry::Common))
    }

    fn get(&self, addr: u64) -> Option<Entry> {
        let bucket = self.bucket(addr);
        loop {
            let before = bucket.latch.load(Ordering::Acquire);
            if before & LOCKED == 0 {
                let found = bucket.slot_of(addr).map(|i| bucket.values[i].load(Ordering::Relaxed));
                let spilled = bucket.overflow.load(Ordering::Relaxed);
                fence(Ordering::Acquire);
                if bucket.latch.load(Ordering::Relaxed) == before {
                    return match found {
                        Some(value) => Some(entry_of(value)),
                        None if spilled > 0 => self.spill().get(&addr).copied().map(entry_of),
                        None => None,
                    };
                }
            }
            spin_loop();
        }
    }

    /// Returns the frame of `addr`, or the ticket to bring it in.
    pub fn begin(&self, addr: GlobalAddr) -> Lookup<'_> {
        let seen = self.get(addr.raw());
        if seen == Some(Entry::Io) && defect(Defect::NoIoMark) {
            return Lookup::Miss(IoTicket { table: self, addr });
        }
        let get_or_mark = |writer: &mut BucketWriter<'_>| {
            let found = writer.get().map(entry_of);
            if found.is_none() {
                writer.set(IO);
            }
            found
        };
        match seen.or_else(|| self.with_bucket(addr.raw(), get_or_mark)) {
            None => {
                // The mark must be visible before the caller checks whether its parent changed: a thread that
                // latches the parent to evict it looks for marks after that.
                fence(Ordering::SeqCst);
                Lookup::Miss(IoTicket { table: self, addr })
            }
            Some(Entry::Frame(frame)) => Lookup::Frame(frame),
            Some(Entry::Io) => Lookup::InFlight,
            Some(Entry::Common) => Lookup::Common,
        }
    }

    /// Joins the sharers of a ticket, unless an operation waits for them to finish.
    pub fn join(&self, addr: GlobalAddr) -> Option<CommonTicket<'_>> {
        self.with_bucket(addr.raw(), |writer| {
            let open = writer.get().filter(|value| value & (COMMON | CLOSED) == COMMON && *value != IO)?;
            writer.set(open + 1);
            Some(CommonTicket { table: self, addr })
        })
    }

    /// Stops further operations from joining the sharers of the ticket of `addr`, so that it becomes free
    /// once they finish.
    pub fn close(&self, addr: GlobalAddr) {
        self.with_bucket(addr.raw(), |writer| {
            if let Some(value) = writer.get().filter(|&value| entry_of(value) == Entry::Common) {
                writer.set(value | CLOSED);
            }
        });
    }

    /// Removes the entry of `addr` if it names `frame`; returns whether it did.
    pub fn remove(&self, addr: GlobalAddr, frame: FrameId) -> bool {
        self.with_bucket(addr.raw(), |writer| {
            let present = writer.get() == Some(u64::from(frame.0));
            if present {
                writer.clear();
            }
            present
        })
    }

    /// Recovers the ticket that was [kept](IoTicket::keep) at `addr`.
    pub fn kept(&self, addr: GlobalAddr) -> IoTicket<'_> {
        IoTicket { table: self, addr }
    }

    /// Recovers the share of a ticket that was [kept](CommonTicket::keep) at `addr`.
    pub fn kept_share(&self, addr: GlobalAddr) -> CommonTicket<'_> {
        CommonTicket { table: self, addr }
    }

    /// Turns the frame entry of `addr` into a ticket, so that a node that leaves its frame for good cannot be
    /// brought back before the ticket's holder is done.
    ///
    /// # Panics
    /// If `addr` is not in `frame`. The caller holds that frame's latch.
    pub fn frame_to_ticket(&self, addr: GlobalAddr, frame: FrameId) -> IoTicket<'_> {
        self.with_bucket(addr.raw(), |writer| {
            assert_eq!(writer.get(), Some(u64::from(frame.0)), "{addr} is in another frame");
            writer.set(IO);
        });
        IoTicket { table: self, addr }
    }

    /// Visits every entry; the table may change meanwhile. A value of `None` is an I/O mark.
    pub fn for_each(&self, mut visit: impl FnMut(GlobalAddr, Option<FrameId>)) {
        let mut each = |addr: u64, value: u64| {
            if let Some(addr) = GlobalAddr::from_raw(addr).filter(|addr| !addr.is_null()) {
                let Entry::Frame(frame) = entry_of(value) else { return visit(addr, None) };
                visit(addr, Some(frame));
            }
        };
        for bucket in &self.buckets {
            for (addr, value) in bucket.addrs.iter().zip(&bucket.values) {
                each(addr.load(Ordering::Relaxed), value.load(Ordering::Relaxed));
            }
        }
        let mut spilled: Vec<_> = self.spill().iter().map(|(&addr, &value)| (addr, value)).collect();
        // Sort: a hash map's order differs from run to run, and the visitor may write.
        spilled.sort_unstable();
        spilled.into_iter().for_each(|(addr, value)| each(addr, value));
    }

    fn spill(&self) -> impl std::ops::DerefMut<Target = HashMap<u64, u64>> + '_ {
        lock(&self.overflow)
    }

    fn with_bucket<R>(&self, addr: u64, change: impl FnOnce(&mut BucketWriter<'_>) -> R) -> R {
        let bucket = self.bucket(addr);
        let before = loop {
            let seen = bucket.latch.load(Ordering::Relaxed);
            if seen & LOCKED == 0
                && bucket
                    .latch
                    .compare_exchange_weak(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                break seen;
            }
            spin_loop();
        };
        fence(Ordering::Release);
        let result = change(&mut BucketWriter { table: self, bucket, addr });
        bucket.latch.store(before.wrapping_add(2), Ordering::Release);
        result
    }
}

/// One address inside its latched bucket.
struct BucketWriter<'t> {
    table: &'t MappingTable,
    bucket: &'t Bucket,
    addr: u64,
}

impl BucketWriter<'_> {
    fn spilled(&self) -> bool {
        self.bucket.overflow.load(Ordering::Relaxed) > 0
    }

    fn get(&self) -> Option<u64> {
        match self.bucket.slot_of(self.addr) {
            Some(i) => Some(self.bucket.values[i].load(Ordering::Relaxed)),
            None if self.spilled() => self.table.spill().get(&self.addr).copied(),
            None => None,
        }
    }

    fn set(&mut self, value: u64) {
        if let Some(i) = self.bucket.slot_of(self.addr) {
            self.bucket.values[i].store(value, Ordering::Relaxed);
        } else if self.spilled() && self.table.spill().contains_key(&self.addr) {
            self.table.spill().insert(self.addr, value);
        } else if let Some(i) = self.bucket.slot_of(0) {
            self.bucket.values[i].store(value, Ordering::Relaxed);
            self.bucket.addrs[i].store(self.addr, Ordering::Relaxed);
        } else {
            self.table.spill().insert(self.addr, value);
            self.bucket.overflow.store(self.bucket.overflow.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    fn clear(&mut self) {
        if let Some(i) = self.bucket.slot_of(self.addr) {
            self.bucket.addrs[i].store(0, Ordering::Relaxed);
        } else if self.table.spill().remove(&self.addr).is_some() {
            self.bucket.overflow.store(self.bucket.overflow.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        }
    }
}

/// Exclusive right to a node that is in no frame. Dropping it ends the I/O without a frame.
#[must_use]
pub struct IoTicket<'t> {
    table: &'t MappingTable,
    addr: GlobalAddr,
}

impl<'t> IoTicket<'t> {
    pub fn addr(&self) -> GlobalAddr {
        self.addr
    }

    /// Publishes the node as being in `frame`. The caller holds that frame's latch.
    pub fn publish(self, frame: FrameId) {
        self.table.with_bucket(self.addr.raw(), |writer| writer.set(u64::from(frame.0)));
        std::mem::forget(self);
    }

    /// Turns this into a ticket that other operations may share.
    pub fn share(self) -> CommonTicket<'t> {
        let Self { table, addr } = self;
        table.with_bucket(addr.raw(), |writer| writer.set(COMMON | 1));
        std::mem::forget(self);
        CommonTicket { table, addr }
    }

    /// Leaves the mark in the table until the ticket is [recovered](MappingTable::kept) and dropped.
    pub fn keep(self) -> GlobalAddr {
        let addr = self.addr;
        std::mem::forget(self);
        addr
    }
}

/// A share of the right to a node that is in no frame. Holders of a share do not touch the node themselves.
/// Dropping the last share ends the I/O.
#[must_use]
pub struct CommonTicket<'t> {
    table: &'t MappingTable,
    addr: GlobalAddr,
}

impl CommonTicket<'_> {
    pub fn addr(&self) -> GlobalAddr {
        self.addr
    }

    /// Leaves the share in the table until it is [recovered](MappingTable::kept_share) and dropped.
    pub fn keep(self) -> GlobalAddr {
        let addr = self.addr;
        std::mem::forget(self);
        addr
    }
}

impl Drop for CommonTicket<'_> {
    fn drop(&mut self) {
        self.table.with_bucket(self.addr.raw(), |writer| {
            let value = writer.get().expect("a ticket is in the table until its last share is gone");
            match value & !(COMMON | CLOSED) {
                1 => writer.clear(),
                _ => writer.set(value - 1),
            }
        });
    }
}

impl Drop for IoTicket<'_> {
    fn drop(&mut self) {
        self.table.with_bucket(self.addr.raw(), |writer| writer.clear());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use pando_fabric::MemoryServerId;

    fn addr(i: u64) -> GlobalAddr {
        GlobalAddr::new(MemoryServerId((i % 3) as u16), 1024 * (i + 1))
    }

    #[test]
    fn a_ticket_is_exclusive_until_published_or_dropped() {
        let table = MappingTable::new(8);
        let Lookup::Miss(ticket) = table.begin(addr(1)) else { panic!("not there yet") };
        assert!(matches!(table.begin(addr(1)), Lookup::InFlight) && table.is_in_flight(addr(1)));
        drop(ticket);
        let Lookup::Miss(ticket) = table.begin(addr(1)) else { panic!("dropped") };
        ticket.publish(FrameId(7));
        assert!(matches!(table.begin(addr(1)), Lookup::Frame(FrameId(7))));
        assert!(!table.remove(addr(1), FrameId(8)) && table.remove(addr(1), FrameId(7)));
        assert_eq!(table.frame_of(addr(1)), None);
    }

    #[test]
    fn a_ticket_is_shared_until_it_is_closed_and_all_are_done() {
        let table = MappingTable::new(8);
        assert!(table.join(addr(1)).is_none(), "the ticket is free");
        let Lookup::Miss(ticket) = table.begin(addr(1)) else { panic!("not there yet") };
        assert!(table.join(addr(1)).is_none(), "the ticket is exclusive");
        let first = ticket.share();
        assert!(matches!(table.begin(addr(1)), Lookup::Common) && table.is_in_flight(addr(1)));
        let second = table.join(addr(1)).expect("it is common");
        drop(first);
        let third = table.join(addr(1)).expect("it still is");
        table.close(addr(1));
        assert!(table.join(addr(1)).is_none(), "closed");
        drop(second);
        assert!(table.is_in_flight(addr(1)) && table.frame_of(addr(1)).is_none());
        drop(third);
        let Lookup::Miss(ticket) = table.begin(addr(1)) else { panic!("all are done") };
        ticket.publish(FrameId(7));
        table.close(addr(1));
        assert!(matches!(table.begin(addr(1)), Lookup::Frame(FrameId(7))), "there was nothing to close");
    }

    #[test]
    fn a_kept_ticket_stays_until_it_is_recovered() {
        let table = MappingTable::new(8);
        let Lookup::Miss(ticket) = table.begin(addr(1)) else { panic!("not there yet") };
        assert_eq!(ticket.keep(), addr(1));
        assert!(matches!(table.begin(addr(1)), Lookup::InFlight));
        let share = table.kept(addr(1)).share();
        assert_eq!(share.keep(), addr(1));
        let other = table.join(addr(1)).expect("it is common");
        drop(table.kept_share(addr(1)));
        assert!(table.is_in_flight(addr(1)));
        drop(other);
        assert!(!table.is_in_flight(addr(1)));
    }

    #[test]
    fn a_frame_becomes_a_ticket() {
        let table = MappingTable::new(8);
        let Lookup::Miss(ticket) = table.begin(addr(1)) else { panic!() };
        ticket.publish(FrameId(3));
        let ticket = table.frame_to_ticket(addr(1), FrameId(3));
        assert!(matches!(table.begin(addr(1)), Lookup::InFlight));
        drop(ticket);
        assert_eq!(table.frame_of(addr(1)), None);
    }

    #[test]
    fn many_more_entries_than_it_was_sized_for_come_back() {
        let table = MappingTable::new(4);
        for i in 0..500 {
            let Lookup::Miss(ticket) = table.begin(addr(i)) else { panic!("fresh") };
            ticket.publish(FrameId(i as u32));
        }
        for i in (0..500).step_by(2) {
            assert!(table.remove(addr(i), FrameId(i as u32)));
        }
        for i in 0..500 {
            assert_eq!(table.frame_of(addr(i)), (i % 2 == 1).then_some(FrameId(i as u32)));
        }
        let mut seen = 0;
        table.for_each(|_, frame| seen += usize::from(frame.is_some()));
        assert_eq!(seen, 250);
    }
}
