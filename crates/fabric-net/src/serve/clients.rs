//! Who the clients of a server are, and which of them are not heard any more.
//!
//! A client that lost a connection does not know which of its last verbs were executed, and some may still be on their way:
//! in a buffer of this host, while this process was stopped. Executed later, they would undo what the client has done since
//! over another connection. So a client that goes on *fences off* the connection it lost: none of its verbs is executed after
//! that. The fence travels over the new connection ahead of the verbs that need it, and the same holds for a whole process
//! that others have given up for dead.
//!
//! A batch of requests is executed while its gate is held, so a fence waits for the batch and no longer.
//!
//! Here is also what processes ask of a server about each other: which of them are there, and one lock. A process is there if
//! it said something lately: one that is stopped has connections still, and is as good as gone to those who wait for it.
//! It may be wrong to give it up, and does no harm, since it is fenced off first.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::handshake::{LinkId, Rejection};

/// A client that was let in.
pub struct Client {
    /// The number by which it knows this server.
    pub number: u16,
    pub id: LinkId,
    pub gate: Arc<Gate>,
}

/// What the requests of one connection pass.
pub struct Gate(Mutex<Passage>);

/// The state of a gate.
pub struct Passage {
    is_open: bool,
    /// When something passed last.
    heard: Instant,
    /// Another way in for the same client, which is closed with the gate.
    other_way: Option<Box<dyn Send>>,
}

impl Passage {
    /// Keeps another way in for this client until the gate is closed. An earlier one goes.
    pub fn keep(&mut self, other_way: Box<dyn Send>) {
        self.other_way = Some(other_way);
    }
}

impl Gate {
    fn new() -> Self {
        Self(Mutex::new(Passage { is_open: true, heard: Instant::now(), other_way: None }))
    }

    /// Keeps the gate open until the guard goes; `None` if it is closed for good.
    pub fn pass(&self) -> Option<MutexGuard<'_, Passage>> {
        let mut passage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        passage.heard = Instant::now();
        passage.is_open.then_some(passage)
    }

    /// Nothing passes from now on, nor comes the other way once this has returned.
    fn close(&self) {
        let mut passage = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        passage.is_open = false;
        passage.other_way = None;
    }

    /// Whether something passes just now, or did within `time`.
    fn is_in_use(&self, time: Duration) -> bool {
        match self.0.try_lock() {
            Ok(passage) => passage.heard.elapsed() < time,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().heard.elapsed() < time,
            Err(TryLockError::WouldBlock) => true,
        }
    }
}

pub struct Clients {
    known: Mutex<Known>,
    started: Instant,
    /// How long a process is there after it was heard last; a part of that after its last connection went, which a process that
    /// lives makes anew at once.
    grace: Duration,
}

/// What part of the grace a process has to make its connections anew.
const TO_COME_BACK: u32 = 3;

#[derive(Default)]
struct Known {
    gates: HashMap<LinkId, Arc<Gate>>,
    /// Processes none of whose connections is heard, nor let in again.
    fenced: HashSet<u64>,
    /// When processes that have no connection lost their last one.
    left: HashMap<u64, Instant>,
    /// Who holds the lock.
    holder: Option<LinkId>,
}

impl Clients {
    pub fn new(grace: Duration) -> Self {
        Self { known: Mutex::default(), started: Instant::now(), grace }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a client in. An earlier connection with the same name is fenced off.
    pub fn enter(&self, number: u16, id: LinkId) -> Result<Client, Rejection> {
        let gate = Arc::new(Gate::new());
        let mut known = self.known();
        if known.fenced.contains(&id.process) {
            return Err(Rejection::Fenced);
        }
        known.left.remove(&id.process);
        let earlier = known.gates.insert(id, Arc::clone(&gate));
        drop(known);
        if let Some(earlier) = earlier {
            earlier.close();
        }
        Ok(Client { number, id, gate })
    }

    /// To be called when the connection of a client is closed.
    pub fn leave(&self, client: &Client) {
        client.gate.close();
        let mut known = self.known();
        // A later connection of the same name stays.
        if !known.gates.get(&client.id).is_some_and(|gate| Arc::ptr_eq(gate, &client.gate)) {
            return;
        }
        known.gates.remove(&client.id);
        known.holder.take_if(|holder| *holder == client.id);
        let (process, now) = (client.id.process, Instant::now());
        if !known.gates.keys().any(|id| id.process == process) {
            known.left.retain(|_, since| now.duration_since(*since) < self.grace);
            known.left.insert(process, now);
        }
    }

    /// Closes all gates, when nobody is left who would pass one.
    pub fn close(&self) {
        let gates = std::mem::take(&mut self.known().gates);
        gates.values().for_each(|gate| gate.close());
    }

    /// Takes the lock for a client, if nobody else holds it.
    pub fn lock(&self, client: &Client) -> bool {
        let mut known = self.known();
        *known.holder.get_or_insert(client.id) == client.id
    }

    /// Whether a process is there. A server that was started a moment ago does not know who was.
    pub fn is_present(&self, process: u64) -> bool {
        let known = self.known();
        let in_use = |(id, gate): (&LinkId, &Arc<Gate>)| id.process == process && gate.is_in_use(self.grace);
        !known.fenced.contains(&process)
            && (known.gates.iter().any(in_use)
                || known.left.get(&process).is_some_and(|since| since.elapsed() < self.grace / TO_COME_BACK)
                || self.started.elapsed() < self.grace)
    }

    /// Nothing that came over connection `link` of `process` is executed once this has returned; if `link` is 0, over none of
    /// the process, now or later.
    pub fn fence(&self, process: u64, link: u64) {
        let mut known = self.known();
        let gates: Vec<Arc<Gate>> = if link == 0 {
            known.fenced.insert(process);
            let gates = known.gates.iter().filter(|(id, _)| id.process == process);
            gates.map(|(_, gate)| Arc::clone(gate)).collect()
        } else {
            known.gates.get(&LinkId { process, link }).into_iter().cloned().collect()
        };
        if known.holder.is_some_and(|holder| holder.process == process && (link == 0 || link == holder.link))
        {
            known.holder = None;
        }
        drop(known);
        for gate in gates {
            gate.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(clients: &Clients, process: u64, link: u64) -> Client {
        clients.enter(0, LinkId { process, link }).expect("it is not fenced")
    }

    #[test]
    fn a_fenced_connection_is_heard_no_more_and_others_are() {
        let clients = Clients::new(Duration::ZERO);
        let (a, b) = (enter(&clients, 1, 1), enter(&clients, 1, 2));
        clients.fence(1, 1);
        clients.fence(1, 9);
        assert!(a.gate.pass().is_none() && b.gate.pass().is_some());
        // The same name again is another connection.
        let again = enter(&clients, 1, 1);
        clients.leave(&a);
        assert!(again.gate.pass().is_some());
        let instead = enter(&clients, 1, 1);
        assert!(again.gate.pass().is_none() && instead.gate.pass().is_some());
    }

    #[test]
    fn a_fenced_process_has_no_connections_and_gets_none() {
        let clients = Clients::new(Duration::ZERO);
        let (a, b, c) = (enter(&clients, 1, 1), enter(&clients, 1, 2), enter(&clients, 2, 1));
        clients.fence(1, 0);
        assert!(a.gate.pass().is_none() && b.gate.pass().is_none() && c.gate.pass().is_some());
        let refused = clients.enter(0, LinkId { process: 1, link: 3 });
        assert_eq!(refused.err(), Some(Rejection::Fenced));
    }

    #[test]
    fn a_process_is_there_while_it_is_heard_and_a_moment_longer() {
        let mut clients = Clients::new(Duration::from_secs(1000));
        clients.started = Instant::now().checked_sub(Duration::from_secs(2000)).expect("the clock is older");
        let (a, b) = (enter(&clients, 1, 1), enter(&clients, 1, 2));
        clients.leave(&a);
        assert!(clients.is_present(1) && !clients.is_present(2));
        // It has a connection, and is silent.
        b.gate.0.lock().expect("nobody panics").heard = clients.started;
        assert!(!clients.is_present(1));
        let passing = b.gate.pass().expect("it is open");
        assert!(clients.is_present(1), "a batch is under way");
        drop(passing);
        assert!(clients.is_present(1));
        clients.leave(&b);
        assert!(clients.is_present(1), "links break and are made again");
        clients.known().left.insert(1, clients.started);
        assert!(!clients.is_present(1));
        // Everybody was there a moment ago, for all that a young server knows.
        let clients = Clients::new(Duration::from_secs(1000));
        assert!(clients.is_present(1));
        clients.fence(1, 0);
        assert!(!clients.is_present(1) && clients.is_present(2));
    }

    #[test]
    fn the_lock_goes_with_its_holder() {
        let clients = Clients::new(Duration::ZERO);
        let (a, b) = (enter(&clients, 1, 1), enter(&clients, 2, 1));
        assert!(clients.lock(&a) && clients.lock(&a) && !clients.lock(&b));
        clients.leave(&a);
        assert!(clients.lock(&b));
        let c = enter(&clients, 3, 1);
        clients.fence(2, 0);
        assert!(clients.lock(&c));
    }

    #[test]
    fn the_other_way_in_is_closed_with_the_gate() {
        struct Way(Arc<std::sync::atomic::AtomicUsize>);
        impl Drop for Way {
            fn drop(&mut self) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let closed = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = || closed.load(std::sync::atomic::Ordering::SeqCst);
        let clients = Clients::new(Duration::ZERO);
        let keep = |client: &Client| {
            client.gate.pass().expect("it is open").keep(Box::new(Way(Arc::clone(&closed))));
        };
        let (a, b, c) = (enter(&clients, 1, 1), enter(&clients, 1, 2), enter(&clients, 2, 1));
        [&a, &a, &b, &c].into_iter().for_each(keep);
        assert_eq!(count(), 1, "the second one of a client takes the place of the first");
        clients.leave(&a);
        assert_eq!(count(), 2);
        clients.fence(1, 2);
        assert_eq!(count(), 3);
        clients.fence(2, 0);
        assert_eq!(count(), 4);
    }

    #[test]
    fn a_fence_waits_for_the_batch_that_is_under_way() {
        let clients = Clients::new(Duration::ZERO);
        let a = enter(&clients, 1, 1);
        std::thread::scope(|scope| {
            let pass = a.gate.pass().expect("it is open");
            let fence = scope.spawn(|| clients.fence(1, 1));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!fence.is_finished());
            drop(pass);
        });
        assert!(a.gate.pass().is_none());
    }
}
