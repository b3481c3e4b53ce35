//! The threads that perform operations, and who asks for them.
//!
//! A routed client hands its operation to the compute server that its thread's router names, where a thread takes it from
//! the queue. What is refused there, since the keys moved meanwhile, is taken by the same thread to the new owner.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use pando_dex::layout::Layout;
use pando_fabric::{Endpoint, Nanos};
use pando_sim::SimEndpoint;
use pando_workload::{KeyCodec, Op, OpKind, OpStream, Rng, ValueCodec, loaded_key};

use super::{Clients, ElasticSpec, Spread};
use crate::bench::Watch;
use crate::under_test::dex::Dex;
use crate::under_test::{Client, Port, SimPort};

/// Time after which a thread without work looks again.
const IDLE_NS: Nanos = 2_000;
/// Draws after which a thread that should find a key of its own compute server looks at the clock.
const DRAWS_MAX: usize = 256;

/// What all threads of a run share. They run on one thread of the host.
pub(super) struct Ground<'s> {
    pub spec: &'s ElasticSpec,
    /// Asked for each operation whether to stop.
    pub watch: &'s dyn Watch,
    pub keys: KeyCodec,
    pub values: ValueCodec,
    pub began: Nanos,
    /// Operations that wait, by compute server.
    pub queues: Vec<RefCell<VecDeque<Op>>>,
    /// Operations by compute server and interval.
    pub counts: Vec<RefCell<Vec<u64>>>,
    pub failed: Cell<u64>,
    pub complaint: RefCell<Option<String>>,
}

impl Ground<'_> {
    fn time(&self, ep: &SimEndpoint) -> Nanos {
        ep.now() - self.began
    }

    pub fn is_over(&self, ep: &SimEndpoint) -> bool {
        self.time(ep) >= self.spec.run_ns || self.watch.interrupted()
    }

    fn count(&self, server: usize, ep: &SimEndpoint) {
        let at = (self.time(ep) / self.spec.interval_ns) as usize;
        let mut counts = self.counts[server].borrow_mut();
        if counts.len() <= at {
            counts.resize(at + 1, 0);
        }
        counts[at] += 1;
    }
}

/// One thread of a compute server.
pub(super) struct Thread<'c, L: Layout> {
    pub ground: &'c Ground<'c>,
    pub client: Client<'c, Dex<L>, SimPort>,
    pub server: usize,
    pub stream: RefCell<OpStream>,
    pub rng: RefCell<Rng>,
}

impl<L: Layout> Thread<'_, L> {
    /// Performs operations until the run is over.
    pub async fn work(&self) {
        let (mut key, mut value) = (vec![0; self.ground.keys.size()], vec![0; self.ground.values.size()]);
        if let Clients::Routed { per_thread } = self.ground.spec.clients {
            (0..per_thread).for_each(|_| self.ask(&mut key));
        }
        while !self.ground.is_over(&self.client.port.ep) {
            self.client.port.pace().await;
            let Some(op) = self.next(&mut key) else {
                self.client.own.router.refresh();
                Endpoint::sleep_until(&self.client.port.ep, self.client.port.ep.now() + IDLE_NS).await;
                continue;
            };
            self.ground.keys.encode(op.key_number, &mut key);
            self.perform(op, &key, &mut value).await;
            self.ground.count(self.server, &self.client.port.ep);
            if let Clients::Routed { .. } = self.ground.spec.clients {
                self.ask(&mut key);
            }
        }
    }

    /// Has a routed client ask for an operation.
    fn ask(&self, key: &mut [u8]) {
        let op = self.draw();
        self.ground.keys.encode(op.key_number, key);
        self.client.own.router.refresh();
        let owner = self.client.own.router.owner_of(key);
        self.ground.queues[owner].borrow_mut().push_back(op);
    }

    /// The next operation, if there is one.
    fn next(&self, key: &mut [u8]) -> Option<Op> {
        if let Clients::Routed { .. } = self.ground.spec.clients {
            return self.ground.queues[self.server].borrow_mut().pop_front();
        }
        let router = &self.client.own.router;
        let mut is_own = |op: &Op| {
            self.ground.keys.encode(op.key_number, key);
            router.owner_of(key) == self.server
        };
        (0..DRAWS_MAX).map(|_| self.draw()).find(&mut is_own)
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

    async fn perform(&self, op: Op, key: &[u8], value: &mut Vec<u8>) {
        let done = match op.kind {
            OpKind::Read | OpKind::Scan { .. } => {
                value.clear();
                self.client.get(key, value).await
            }
            OpKind::Update | OpKind::ReadModifyWrite => {
                self.write_value(op, value);
                self.client.update(key, value).await
            }
            OpKind::Insert => {
                self.write_value(op, value);
                let put = self.client.put(key, value).await;
                put.map(|_| self.stream.borrow_mut().inserted(op.key_number)).map(|()| true)
            }
        };
        let trouble = match done {
            Ok(true) => return,
            Ok(false) => format!("key number {} was not found", op.key_number),
            Err(error) => error.to_string(),
        };
        self.ground.failed.set(self.ground.failed.get() + 1);
        self.ground.complaint.borrow_mut().get_or_insert(trouble);
    }

    fn write_value(&self, op: Op, value: &mut Vec<u8>) {
        value.resize(self.ground.values.size(), 0);
        self.ground.values.write(op.key_number, self.rng.borrow_mut().next_u64() as u32, value);
    }
}
