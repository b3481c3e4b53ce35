//! State that the endpoints of a cluster share, and the execution of calls.
//!
//! The world is locked while an event happens in it, and never while a slot is polled or a handler executes a
//! call, since both use endpoints.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use pando_fabric::{
    FabricError, Growing, LATER_MAX, MemoryServerId, Nanos, RegionInfo, RequestHandler, Result, ServerMemory,
    Work,
};

use crate::events::Event;
use crate::model::{Compute, MemoryServer, ModelError};
use crate::op::OpId;
use crate::world::World;

/// State shared by the endpoints of a cluster.
pub(crate) struct Shared {
    world: Mutex<World>,
    /// The list of regions after each addition; the last list is current.
    regions: Growing<Vec<RegionInfo>>,
    pub compute: Compute,
    memory_server: MemoryServer,
    handler: Mutex<Option<Arc<dyn RequestHandler>>>,
    /// Work charged by direct endpoints since the current call began, in ns.
    call_ns: AtomicU64,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(world: World, regions: Vec<RegionInfo>) -> Self {
        Self {
            compute: world.model.compute.clone(),
            memory_server: world.model.memory_server.clone(),
            world: Mutex::new(world),
            regions: Growing::new(vec![regions]),
            handler: Mutex::default(),
            call_ns: AtomicU64::new(0),
        }
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    pub fn regions(&self) -> &[RegionInfo] {
        &self.regions[self.regions.len() - 1]
    }

    /// Adds a memory server with an empty region of `bytes`.
    pub fn add_server(&self, bytes: u64) -> Result<MemoryServerId, ModelError> {
        let mut world = self.world();
        let mut regions = self.regions().to_vec();
        let server = MemoryServerId(regions.len() as u16);
        assert!(self.regions.len() <= LATER_MAX, "{LATER_MAX} memory servers have joined already");
        world.add_server(bytes)?;
        regions.push(RegionInfo { server, len: bytes });
        self.regions.push(regions).expect("there is room, and the world is borrowed");
        Ok(server)
    }

    pub fn set_handler(&self, handler: Option<Arc<dyn RequestHandler>>) {
        *lock(&self.handler) = handler;
    }

    pub fn next_time(&self) -> Option<Nanos> {
        self.world().next_time()
    }

    /// Lets the next event happen, unless it belongs to a run. Returns whether there was one.
    pub fn step(&self) -> bool {
        let mut world = self.world();
        match world.next_event() {
            None => return false,
            Some(Event::Handle(op)) => {
                drop(world);
                self.handle(op);
            }
            Some(Event::Run(_)) => {}
            Some(event) => {
                world.happen(event);
                let wakers = world.take_wakers();
                drop(world);
                wakers.into_iter().for_each(Waker::wake);
            }
        }
        true
    }

    /// Has the server's handler execute a call. The handler may use endpoints, so the world is not locked
    /// meanwhile.
    pub fn handle(&self, op: OpId) {
        let Some((server, mut call)) = self.world().take_call(op) else { return };
        self.call_ns.store(0, Relaxed);
        let result = self.execute(server, call.op, &call.body, &mut call.reply);
        if result.is_err() {
            call.reply.clear();
        }
        self.world().handled(op, call, result, self.call_ns.load(Relaxed));
    }

    /// Executes a request without regard to time.
    pub fn execute(&self, server: MemoryServerId, op: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        let handler = lock(&self.handler).clone();
        match handler {
            Some(handler) => {
                let region = self.world().region(server).ok_or(FabricError::UnknownServer(server))?;
                let charge = |work| self.charge_call(work);
                handler.handle(&ServerMemory::new(server, &region, &charge), op, body, reply)
            }
            None => {
                let reason = "it has no handler for requests".to_owned();
                Err(FabricError::Refused { server, op, reason })
            }
        }
    }

    /// Adds to the work of the current call.
    pub fn charge_call(&self, work: Work) {
        self.call_ns.fetch_add(self.memory_server.cost(work, &self.compute), Relaxed);
    }
}
