//! One bucket of the mapping table under loom: lookups without a latch against changes under it.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::sync::atomic::Ordering::{Relaxed, SeqCst};
use loom::thread;
use pando_cache::{FrameId, Lookup, MappingTable};
use pando_fabric::{GlobalAddr, MemoryServerId};

fn addr(i: u64) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(0), 1024 * (i + 1))
}

/// A table of the minimum size.
fn table() -> Arc<MappingTable> {
    Arc::new(MappingTable::new(1))
}

fn publish(table: &MappingTable, i: u64) {
    match table.begin(addr(i)) {
        Lookup::Miss(ticket) => ticket.publish(FrameId(i as u32)),
        _ => panic!("{i} is there already"),
    }
}

/// One entry is removed and another added, possibly in the same slot, while one of the two is looked up.
fn replace_entry(a: u64, b: u64, wanted: u64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let table = table();
        publish(&table, a);
        // The reader must be the thread that loom runs last: loom explores other orders where a load follows
        // a store.
        let reader = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                let found = table.frame_of(addr(wanted));
                assert!(found.is_none_or(|frame| frame == FrameId(wanted as u32)));
            })
        };
        assert!(table.remove(addr(a), FrameId(a as u32)));
        publish(&table, b);
        reader.join().unwrap();
        assert_eq!(table.frame_of(addr(a)), None);
        assert_eq!(table.frame_of(addr(b)), Some(FrameId(b as u32)));
    });
}

/// The table has two buckets, so two of three addresses share one.
#[test]
fn a_lookup_never_mixes_two_entries() {
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        replace_entry(a, b, a);
        replace_entry(a, b, b);
    }
}

#[test]
fn a_ticket_is_exclusive() {
    loom::model(|| {
        let table = table();
        let holders = Arc::new(AtomicU32::new(0));
        let attempt = |table: &MappingTable, holders: &AtomicU32| match table.begin(addr(0)) {
            Lookup::Miss(ticket) => {
                assert_eq!(holders.fetch_add(1, SeqCst), 0, "two tickets");
                holders.fetch_sub(1, SeqCst);
                drop(ticket);
            }
            Lookup::InFlight | Lookup::Common => {}
            Lookup::Frame(_) => panic!("it was not published"),
        };
        let other = {
            let (table, holders) = (Arc::clone(&table), Arc::clone(&holders));
            thread::spawn(move || attempt(&table, &holders))
        };
        attempt(&table, &holders);
        other.join().unwrap();
        assert!(!table.is_in_flight(addr(0)));
    });
}

/// Operations share a ticket while another wants it exclusively: never both at once, and in the end it is
/// free.
#[test]
fn a_shared_ticket_is_not_exclusive() {
    loom::model(|| {
        let table = table();
        let sharers = Arc::new(AtomicU32::new(0));
        let share = |table: &MappingTable, sharers: &AtomicU32| {
            let ticket = match table.begin(addr(0)) {
                Lookup::Miss(ticket) => Some(ticket.share()),
                Lookup::Common => table.join(addr(0)),
                _ => None,
            };
            if let Some(ticket) = ticket {
                sharers.fetch_add(1, SeqCst);
                sharers.fetch_sub(1, SeqCst);
                drop(ticket);
            }
        };
        let other = {
            let (table, sharers) = (Arc::clone(&table), Arc::clone(&sharers));
            thread::spawn(move || share(&table, &sharers))
        };
        match table.begin(addr(0)) {
            Lookup::Miss(ticket) => {
                assert_eq!(sharers.load(SeqCst), 0, "shared and exclusive at once");
                drop(ticket);
            }
            Lookup::Common => {
                table.close(addr(0));
                share(&table, &sharers);
            }
            _ => {}
        }
        other.join().unwrap();
        assert!(!table.is_in_flight(addr(0)));
    });
}

/// The next holder of a ticket sees the changes of the last one: the ticket is a lock.
#[test]
fn changes_under_a_ticket_are_visible_to_its_next_holder() {
    loom::model(|| {
        let table = table();
        // Each addition has two relaxed steps, which only the ticket keeps together and in order.
        let (begun, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let attempt = |table: &MappingTable, begun: &AtomicU32, done: &AtomicU32| {
            if let Lookup::Miss(ticket) = table.begin(addr(0)) {
                begun.fetch_add(1, Relaxed);
                done.store(done.load(Relaxed) + 1, Relaxed);
                drop(ticket);
            }
        };
        let other = {
            let (table, begun, done) = (Arc::clone(&table), Arc::clone(&begun), Arc::clone(&done));
            thread::spawn(move || attempt(&table, &begun, &done))
        };
        attempt(&table, &begun, &done);
        other.join().unwrap();
        assert_eq!(done.load(SeqCst), begun.load(SeqCst));
    });
}
