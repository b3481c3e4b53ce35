//! The clients of a server, their fences, and their liveness.
//!
//! A client that lost a connection does not know which of its last verbs were executed. Some may still be in
//! a buffer of this host while this process is stopped. Executed later, they would undo changes that the
//! client has made since over another connection. So a client *fences off* a lost connection before it
//! continues: none of its verbs is executed after that. The fence travels over the new connection ahead of
//! the verbs that need it. A process given up for dead is fenced off as a whole.
//!
//! A batch of requests is executed inside its gate. A gate is closed at once, and quiet when the last batch
//! has left it. A fence polls for that ([`Clients::is_quiet`]), so no thread waits for another one's batch.
//!
//! Processes also ask a server which of them are present, and for one lock. A process is present if it has
//! sent anything lately: a stopped process still has connections but must not block others. Giving up a live
//! process by mistake does no harm, since it is fenced off first.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pando_fabric::Nanos;

use super::fences::Fences;
use crate::handshake::{LinkId, Rejection};

/// An admitted client.
pub struct Client {
    /// Number by which the client knows this server.
    pub number: u16,
    pub id: LinkId,
    pub gate: Arc<Gate>,
}

/// Gate that the requests of one connection pass.
pub struct Gate(Mutex<Passage>);

/// The state of a gate.
struct Passage {
    is_open: bool,
    /// Number of batches inside.
    inside: u32,
    /// Time at which a batch last entered or left.
    heard: Instant,
    /// Another way of the same client to the memory, closed with the gate.
    other_way: Option<Box<dyn Send>>,
}

/// A batch inside its gate.
pub struct Pass(Arc<Gate>);

impl Pass {
    /// Keeps another way of this client until the gate is closed, and drops an earlier one. If the gate is
    /// already closed, `other_way` is dropped.
    pub fn keep(&mut self, other_way: Box<dyn Send>) {
        let mut passage = self.0.passage();
        if passage.is_open {
            passage.other_way = Some(other_way);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut passage = self.0.passage();
        passage.inside -= 1;
        passage.heard = Instant::now();
    }
}

impl Gate {
    fn new() -> Self {
        Self(Mutex::new(Passage { is_open: true, inside: 0, heard: Instant::now(), other_way: None }))
    }

    fn passage(&self) -> MutexGuard<'_, Passage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters until the returned pass is dropped; `None` if the gate is closed.
    pub fn pass(self: &Arc<Self>) -> Option<Pass> {
        let mut passage = self.passage();
        passage.heard = Instant::now();
        if !passage.is_open {
            return None;
        }
        passage.inside += 1;
        Some(Pass(Arc::clone(self)))
    }

    /// Closes the gate: no batch enters it from now on, and the other way has ended when this returns.
    fn close(&self) {
        let mut passage = self.passage();
        passage.is_open = false;
        passage.other_way = None;
    }

    /// Whether the gate is closed and no batch is inside.
    fn is_quiet(&self) -> bool {
        let passage = self.passage();
        !passage.is_open && passage.inside == 0
    }

    /// Time since its last batch; 0 if one is inside.
    fn silent_ns(&self) -> Nanos {
        let passage = self.passage();
        if passage.inside > 0 { 0 } else { passage.heard.elapsed().as_nanos() as Nanos }
    }

    /// Whether a batch is inside, or entered or left within `time`.
    fn is_in_use(&self, time: Duration) -> bool {
        let passage = self.passage();
        passage.inside > 0 || passage.heard.elapsed() < time
    }
}

pub struct Clients {
    known: Mutex<Known>,
    /// Since when this server hears of all processes.
    started: Mutex<Instant>,
    /// How long a process counts as present after its last request. After its last connection closed, only a
    /// part of that: a live process reconnects at once.
    grace: Duration,
}

/// Divisor of the grace for a process without connections.
const TO_COME_BACK: u32 = 5;

#[derive(Default)]
struct Known {
    gates: HashMap<LinkId, Arc<Gate>>,
    /// Closed gates that were not quiet when last checked.
    closing: Vec<(LinkId, Arc<Gate>)>,
    /// Processes that are fenced off, none of which is admitted again.
    fenced: Fences,
    /// Processes without connections, with the time at which they lost their last one.
    left: HashMap<u64, Instant>,
    /// Holder of the lock.
    holder: Option<LinkId>,
}

/// A process, as a server hears it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeardProcess {
    /// Its number in its connections' [`LinkId`].
    pub number: u64,
    /// Time since its last request.
    pub silent_ns: Nanos,
}

/// Result of an attempt to take the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    /// Another client holds it.
    No,
    Yes,
    /// Taken over from this process, which was silent for so long that it was fenced off. Other servers do
    /// not know of that fence.
    InsteadOf(u64),
}

impl Known {
    /// Closes a gate that was replaced or fenced off.
    fn close(&mut self, id: LinkId, gate: Arc<Gate>) {
        gate.close();
        self.closing.push((id, gate));
        self.closing.retain(|(_, gate)| !gate.is_quiet());
    }

    fn is_in_use(&self, process: u64, time: Duration) -> bool {
        self.gates.iter().any(|(id, gate)| id.process == process && gate.is_in_use(time))
    }

    /// Closes the gates of one connection, or of the whole process if `link` is 0.
    fn fence(&mut self, process: u64, link: u64) -> io::Result<()> {
        let is_meant = |id: &LinkId| id.process == process && (link == 0 || link == id.link);
        if self.holder.is_some_and(|holder| is_meant(&holder)) {
            self.holder = None;
        }
        let kept = if link == 0 { self.fenced.add(process) } else { Ok(()) };
        let meant: Vec<_> = match link {
            0 => self
                .gates
                .iter()
                .filter(|(id, _)| is_meant(id))
                .map(|(id, gate)| (*id, Arc::clone(gate)))
                .collect(),
            _ => {
                let id = LinkId { process, link };
                self.gates.get(&id).map(|gate| (id, Arc::clone(gate))).into_iter().collect()
            }
        };
        // The gates stay with their connections, which find them closed.
        meant.into_iter().for_each(|(id, gate)| self.close(id, gate));
        kept
    }
}

impl Clients {
    /// Creates the state of a server; a process counts as alive for `grace` after its last request.
    pub fn new(grace: Duration) -> Self {
        Self::with_fences(grace, Fences::default())
    }

    pub(super) fn with_fences(grace: Duration, fenced: Fences) -> Self {
        Self {
            known: Mutex::new(Known { fenced, ..Known::default() }),
            started: Mutex::new(Instant::now()),
            grace,
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a client. An earlier connection with the same identity is fenced off; the client's requests
    /// must wait until [`Clients::is_quiet`] confirms that none of it is in progress.
    pub fn enter(&self, number: u16, id: LinkId) -> Result<Client, Rejection> {
        let gate = Arc::new(Gate::new());
        let mut known = self.known();
        if known.fenced.contains(id.process) {
            return Err(Rejection::Fenced);
        }
        known.left.remove(&id.process);
        if let Some(earlier) = known.gates.insert(id, Arc::clone(&gate)) {
            known.close(id, earlier);
        }
        Ok(Client { number, id, gate })
    }

    /// Must be called when the connection of a client is closed.
    pub fn leave(&self, client: &Client) {
        let mut known = self.known();
        known.close(client.id, Arc::clone(&client.gate));
        // A later connection with the same identity stays.
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

    /// Closes all gates, when the server ends.
    pub fn close(&self) {
        let gates = std::mem::take(&mut self.known().gates);
        gates.values().for_each(|gate| gate.close());
    }

    /// Takes the lock for a client, if no other client holds it. A holder whose process was silent for the
    /// grace, on all its connections, is fenced off first: it may be stopped, which is detected only here.
    ///
    /// # Errors
    /// Errors of recording the fence.
    pub fn lock(&self, client: &Client) -> io::Result<Locked> {
        let mut known = self.known();
        let holder = *known.holder.get_or_insert(client.id);
        if holder == client.id {
            return Ok(Locked::Yes);
        }
        if holder.process == client.id.process || known.is_in_use(holder.process, self.grace) {
            return Ok(Locked::No);
        }
        known.fence(holder.process, 0)?;
        known.holder = Some(client.id);
        Ok(Locked::InsteadOf(holder.process))
    }

    /// Milliseconds for which a process will still count as present from its last request on, even if it loses all
    /// connections with that; 0 if it is not present.
    pub fn lease_ms(&self, process: u64) -> u64 {
        let lease = (self.grace / TO_COME_BACK).as_millis() as u64;
        if self.is_present(process) { lease.max(1) } else { 0 }
    }

    fn started(&self) -> Instant {
        *self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts all processes as present for the grace from now on, because none was heard here before.
    pub fn assume_presence(&self) {
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Whether a process is present. A server that has just started assumes so.
    pub fn is_present(&self, process: u64) -> bool {
        let known = self.known();
        !known.fenced.contains(process)
            && (known.is_in_use(process, self.grace)
                || known.left.get(&process).is_some_and(|since| since.elapsed() < self.grace / TO_COME_BACK)
                || self.started().elapsed() < self.grace)
    }

    /// Processes with connections, in the order of their numbers.
    pub fn heard(&self) -> Vec<HeardProcess> {
        let mut silent = BTreeMap::new();
        for (id, gate) in &self.known().gates {
            let of_process = silent.entry(id.process).or_insert(Nanos::MAX);
            *of_process = gate.silent_ns().min(*of_process);
        }
        silent.into_iter().map(|(number, silent_ns)| HeardProcess { number, silent_ns }).collect()
    }

    /// Fences off connection `link` of `process`, or all present and future connections of the process if
    /// `link` is 0: no further request is begun. The requests in progress have ended once
    /// [`Clients::is_quiet`] returns `true`.
    ///
    /// # Errors
    /// Errors of recording the fence, which then holds until the server ends.
    pub fn fence(&self, process: u64, link: u64) -> io::Result<()> {
        self.known().fence(process, link)
    }

    /// Processes that are fenced off.
    pub fn fenced(&self) -> Vec<u64> {
        self.known().fenced.all().collect()
    }

    /// Whether no request of closed connections with this identity is in progress; of the whole process if
    /// `link` is 0.
    pub fn is_quiet(&self, process: u64, link: u64) -> bool {
        let mut known = self.known();
        known.closing.retain(|(_, gate)| !gate.is_quiet());
        !known.closing.iter().any(|(id, _)| id.process == process && (link == 0 || link == id.link))
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
        clients.fence(1, 1).expect("no file");
        clients.fence(1, 9).expect("no file");
        assert!(a.gate.pass().is_none() && b.gate.pass().is_some());
        // The same identity again is another connection.
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
        clients.fence(1, 0).expect("no file");
        assert!(a.gate.pass().is_none() && b.gate.pass().is_none() && c.gate.pass().is_some());
        let refused = clients.enter(0, LinkId { process: 1, link: 3 });
        assert_eq!(refused.err(), Some(Rejection::Fenced));
    }

    #[test]
    fn a_process_is_there_while_it_is_heard_and_a_moment_longer() {
        let mut clients = Clients::new(Duration::from_secs(1000));
        let long_ago = Instant::now().checked_sub(Duration::from_secs(2000)).expect("the clock is older");
        clients.started = Mutex::new(long_ago);
        let (a, b) = (enter(&clients, 1, 1), enter(&clients, 1, 2));
        clients.leave(&a);
        assert!(clients.is_present(1) && !clients.is_present(2));
        // It has a connection, but is silent.
        b.gate.passage().heard = long_ago;
        assert!(!clients.is_present(1));
        let passing = b.gate.pass().expect("it is open");
        assert!(clients.is_present(1), "a batch is under way");
        drop(passing);
        assert!(clients.is_present(1));
        clients.leave(&b);
        assert!(clients.is_present(1), "links break and are made again");
        clients.known().left.insert(1, long_ago);
        assert!(!clients.is_present(1));
        // A young server assumes that every process was present recently.
        let clients = Clients::new(Duration::from_secs(1000));
        assert!(clients.is_present(1));
        clients.fence(1, 0).expect("no file");
        assert!(!clients.is_present(1) && clients.is_present(2));
    }

    fn lock(clients: &Clients, client: &Client) -> Locked {
        clients.lock(client).expect("no file")
    }

    #[test]
    fn the_lock_goes_with_its_holder() {
        let clients = Clients::new(Duration::from_secs(1000));
        let (a, b) = (enter(&clients, 1, 1), enter(&clients, 2, 1));
        assert_eq!(
            [lock(&clients, &a), lock(&clients, &a), lock(&clients, &b)],
            [Locked::Yes, Locked::Yes, Locked::No]
        );
        clients.leave(&a);
        assert_eq!(lock(&clients, &b), Locked::Yes);
        let c = enter(&clients, 3, 1);
        clients.fence(2, 0).expect("no file");
        assert_eq!(lock(&clients, &c), Locked::Yes);
    }

    #[test]
    fn a_silent_holder_of_the_lock_is_fenced_off_and_one_that_is_heard_is_not() {
        let clients = Clients::new(Duration::from_secs(1000));
        let (lock_of_a, a, b) = (enter(&clients, 1, 1), enter(&clients, 1, 2), enter(&clients, 2, 1));
        assert_eq!(lock(&clients, &lock_of_a), Locked::Yes);
        let long_ago = Instant::now().checked_sub(Duration::from_secs(2000)).expect("the clock is older");
        // The connection that took the lock is silent, as always; another one of the process is not.
        lock_of_a.gate.passage().heard = long_ago;
        assert_eq!(lock(&clients, &b), Locked::No);
        a.gate.passage().heard = long_ago;
        assert_eq!(lock(&clients, &b), Locked::InsteadOf(1));
        assert!(lock_of_a.gate.pass().is_none() && a.gate.pass().is_none());
        assert_eq!(clients.enter(0, LinkId { process: 1, link: 3 }).err(), Some(Rejection::Fenced));
        assert_eq!(lock(&clients, &b), Locked::Yes);
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
        clients.fence(1, 2).expect("no file");
        assert_eq!(count(), 3);
        clients.fence(2, 0).expect("no file");
        assert_eq!(count(), 4);
    }

    #[test]
    fn what_is_under_way_keeps_a_closed_gate_from_being_quiet_and_nobody_waiting() {
        let clients = Clients::new(Duration::ZERO);
        let a = enter(&clients, 1, 1);
        let pass = a.gate.pass().expect("it is open");
        let again = enter(&clients, 1, 1);
        assert!(a.gate.pass().is_none() && !clients.is_quiet(1, 1) && clients.is_quiet(1, 2));
        clients.fence(1, 1).expect("no file");
        clients.leave(&a);
        assert!(!clients.is_quiet(1, 1) && !clients.is_quiet(1, 0) && clients.is_quiet(2, 0));
        drop(pass);
        assert!(clients.is_quiet(1, 1) && again.gate.pass().is_none());
        assert!(clients.known().closing.is_empty());
    }
}
