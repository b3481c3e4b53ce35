//! The register in etcd: against a server that loses, delays and spoils answers as a script says, and against a real etcd
//! that is killed, stopped and cut off.
//!
//! All changes of a test are made by [`Proposed::advance`]: server 2 leaves the view, or comes back, each time with a
//! number that was never used. So the history of views shows whether each one derives from the one before.

mod real;
mod scripted;

#[path = "../../../../tests/it/real_etcd.rs"]
mod real_etcd;

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pando_fabric::MemoryServerId;
use pando_member::{Server, View};

use super::RegisterAddress;

fn first(address: &RegisterAddress) -> View {
    let servers = (0..3).map(|i| Server::new(format!("host-{i}:1"), 1)).collect();
    View::new(7, 2, servers).expect("a view").in_register(address.to_string())
}

/// Changes that were proposed, before and after, encoded.
#[derive(Default)]
struct Proposed {
    changes: Mutex<HashSet<(Vec<u8>, Vec<u8>)>>,
    numbers: AtomicU64,
}

impl Proposed {
    /// The successor of a view.
    fn advance(&self, view: &View) -> View {
        let (server, number) = (MemoryServerId(2), 100 + self.numbers.fetch_add(1, Relaxed));
        let next = match view.incarnation(server) {
            Some(_) => view.without(server).expect("others have copies"),
            None => view.readmit(server, number).expect("it is out"),
        };
        // Two proposals are never equal.
        let next = next.with_acceptor(server, number);
        let change = (view.encode(), next.encode());
        self.changes.lock().expect("no panic").insert(change);
        next
    }

    /// Checks that each view derives from the one before.
    fn check(&self, history: &[Vec<u8>]) {
        let changes = self.changes.lock().expect("no panic");
        for pair in history.windows(2) {
            let epochs = pair.iter().map(|value| View::epoch_of(value)).collect::<Vec<_>>();
            assert!(changes.contains(&(pair[0].clone(), pair[1].clone())), "epochs {epochs:?}");
        }
    }
}
