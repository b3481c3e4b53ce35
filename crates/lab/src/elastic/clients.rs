//! Operations of a run: drawn by the threads of the compute servers, or by routed clients.
//!
//! A routed client passes its operation to the compute server that its thread's router names; a thread there
//! takes it from the queue. If the keys have moved in the meantime, that thread passes the refused operation
//! to the new owner.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use pando_dex::layout::Layout;
use pando_fabric::{Endpoint, Nanos};
use pando_workload::{KeyCodec, Op, OpStream, Rng, loaded_key};

use super::{Clients, ElasticSpec, Spread};
use crate::bench::{Source, Watch};
use crate::copies::SimEndpoint;
use crate::under_test::dex::Dex;
use crate::under_test::{Client, SimPort};

/// Time that a thread without work waits before it checks the queue again.
const IDLE_NS: Nanos = 2_000;
/// Most draws in search of a key of the own compute server before the thread checks the clock.
const DRAWS_MAX: usize = 256;

/// State shared by all threads of a run, which run on one thread of the host.
pub(super) struct Ground<'s> {
    pub spec: &'s ElasticSpec,
    /// Asked with each operation whether the run must stop.
    pub watch: &'s dyn Watch,
    pub keys: KeyCodec,
    pub began: Nanos,
    /// Waiting operations by compute server.
    pub queues: Vec<RefCell<VecDeque<Op>>>,
}

impl Ground<'_> {
    fn time(&self, ep: &SimEndpoint) -> Nanos {
        ep.now() - self.began
    }

    pub fn is_over(&self, ep: &SimEndpoint) -> bool {
        self.time(ep) >= self.spec.run_ns || self.watch.interrupted()
    }
}

/// Source of operations of one thread of a compute server.
pub(super) struct Clientele<'c, L: Layout> {
    pub ground: &'c Ground<'c>,
    pub client: Client<'c, Dex<L>, SimPort>,
    pub server: usize,
    pub stream: RefCell<OpStream>,
    pub rng: RefCell<Rng>,
    /// Whether the routed clients have issued their first operations.
    pub has_begun: Cell<bool>,
}

impl<L: Layout> Clientele<'_, L> {
    fn owner_of(&self, op: &Op) -> usize {
        self.client.own.router.owner_of(&self.ground.keys.encode_vec(op.key_number))
    }

    /// Issues an operation of a routed client.
    fn ask(&self) {
        let op = self.draw();
        self.client.own.router.refresh();
        self.ground.queues[self.owner_of(&op)].borrow_mut().push_back(op);
    }

    fn draw(&self) -> Op {
        let op = self.stream.borrow_mut().next_op();
        let Spread::HotSpot { share, width, spots } = &self.ground.spec.spread else { return op };
        let (ground, mut rng) = (self.ground, self.rng.borrow_mut());
        let records = ground.keys.records();
        let place = ground.time(&self.client.port.ep) * spots.len() as u64 / ground.spec.run_ns;
        let spot = spots[(place as usize).min(spots.len() - 1)];
        let is_hot = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 <= *share;
        let record = match is_hot {
            true => {
                let hot = ((records as f64 * width) as u64).max(1);
                ((records as f64 * spot) as u64 + rng.below(hot)) % records
            }
            false => rng.below(records),
        };
        Op { key_number: loaded_key(record), ..op }
    }
}

impl<L: Layout> Source for Clientele<'_, L> {
    fn next(&self) -> Option<Op> {
        match self.ground.spec.clients {
            Clients::Routed { per_thread } => {
                if !self.has_begun.replace(true) {
                    (0..per_thread).for_each(|_| self.ask());
                }
                self.ground.queues[self.server].borrow_mut().pop_front()
            }
            Clients::OfServers => {
                (0..DRAWS_MAX).map(|_| self.draw()).find(|op| self.owner_of(op) == self.server)
            }
        }
    }

    async fn idle(&self) {
        let ep = &self.client.port.ep;
        self.client.own.router.refresh();
        Endpoint::sleep_until(ep, ep.now() + IDLE_NS).await;
    }

    fn inserted(&self, key_number: u64) {
        self.stream.borrow_mut().inserted(key_number);
    }

    fn sequence(&self) -> u32 {
        self.rng.borrow_mut().next_u64() as u32
    }

    fn ended(&self) {
        if let Clients::Routed { .. } = self.ground.spec.clients {
            self.ask();
        }
    }

    fn is_over(&self) -> bool {
        self.ground.watch.interrupted()
    }
}
