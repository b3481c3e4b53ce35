//! The threads of a memory server that work for its group.
//!
//! One begins the rounds of the server's lease, one for each other server asks it, and one changes the view without
//! servers that do not answer. They begin when the server learns its first view.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pando_fabric::{MemoryServerId, Nanos};
use pando_member::{Renew, Renewed, View};

use super::member::Member;
use crate::connect::Destination;
use crate::group::{Line, Register, kind};
use crate::handshake::Protocol;
use crate::secret::Secret;

/// Time between two looks at the clock, as a part of a lease.
const LOOKS: Nanos = 20;
/// Longest time for a change of the view, in leases.
const CHANGE: u32 = 4;

/// Ends the threads when it is dropped.
pub(super) struct Rounds {
    member: Arc<Member>,
    thread: Option<JoinHandle<()>>,
}

impl Rounds {
    pub fn start(member: Arc<Member>, secret: Secret) -> std::io::Result<Self> {
        let work = Work { member: Arc::clone(&member), secret };
        let thread = thread::Builder::new().name("pando-group".to_owned()).spawn(move || work.run())?;
        Ok(Self { member, thread: Some(thread) })
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        self.member.stop();
        if let Some(thread) = self.thread.take() {
            // A panic was already reported.
            let _ = thread.join();
        }
    }
}

/// What the thread for changes of the view is asked to do.
enum Change {
    /// Find out which view is decided.
    Read,
    /// Go on without these servers.
    Without(Vec<MemoryServerId>),
}

struct Work {
    member: Arc<Member>,
    secret: Secret,
}

impl Work {
    fn lease(&self) -> Duration {
        Duration::from_nanos(self.member.terms.lease)
    }

    fn run(&self) {
        thread::scope(|scope| {
            let (changes, to_change) = mpsc::sync_channel(1);
            let mut peers: BTreeMap<MemoryServerId, Sender<Renew>> = BTreeMap::new();
            scope.spawn(move || self.change_views(&to_change));
            let tick = Duration::from_nanos((self.member.terms.lease / LOOKS).max(1_000_000));
            loop {
                let mut known = self.member.known();
                if known.is_stopping {
                    // The other threads end with their channels.
                    break;
                }
                let now = self.member.now();
                let view = known.view.clone();
                let lease = known.lease.as_mut();
                let (me, renew, suspects) = match lease {
                    Some(lease) => (lease.me(), lease.round(now), lease.suspects(now).collect()),
                    None => (MemoryServerId(0), None, Vec::new()),
                };
                let is_behind =
                    known.behind_since.is_some_and(|since| now - since > self.member.terms.lease / 2);
                drop(known);
                if let (Some(view), Some(renew)) = (&view, renew) {
                    for (number, server) in
                        (0..).map(MemoryServerId).zip(view.servers()).filter(|(number, _)| *number != me)
                    {
                        let peer = peers.entry(number).or_insert_with(|| {
                            let (sender, receiver) = mpsc::channel();
                            let address = server.address().to_owned();
                            scope.spawn(move || self.ask_peer(number, &address, &receiver));
                            sender
                        });
                        // The thread runs as long as this channel.
                        let _ = peer.send(renew);
                    }
                    let own = self.member.renew_own(&renew);
                    self.take(me, &own);
                }
                if !suspects.is_empty() {
                    ask_for(&changes, Change::Without(suspects));
                } else if is_behind || (view.is_none() && self.member.accepted().is_some()) {
                    ask_for(&changes, Change::Read);
                }
                let wait = if view.is_none() { self.lease() } else { tick };
                let known = self.member.known();
                if !known.is_stopping {
                    drop(self.member.wait(known, wait));
                }
            }
        });
    }

    /// Sends rounds to another server.
    fn ask_peer(&self, number: MemoryServerId, address: &str, rounds: &Receiver<Renew>) {
        let destination =
            Destination { address: address.into(), protocol: Protocol::VERBS, number: number.0 };
        let mut line = Line::new(destination, self.secret.clone(), crate::random_nonzero());
        let patience = self.lease() / 2;
        while let Ok(mut renew) = rounds.recv() {
            // Rounds that waited for an answer to an earlier one are out of date.
            while let Ok(later) = rounds.try_recv() {
                renew = later;
            }
            let Ok(bytes) = line.ask(kind::RENEW, &renew.encode(), patience) else { continue };
            let Ok(renewed) = Renewed::decode(&bytes) else { continue };
            self.take(number, &renewed);
            if renewed.accepted > renew.epoch
                && let Ok(bytes) = line.ask(kind::VIEW, &[], patience)
                && let Ok(view) = View::decode(&bytes)
            {
                self.member.learn(view);
            }
        }
    }

    /// Takes the answer to a round.
    fn take(&self, from: MemoryServerId, renewed: &Renewed) {
        let now = self.member.now();
        let mut known = self.member.known();
        let Some(lease) = &mut known.lease else { return };
        lease.answered(from, renewed, now);
        if renewed.accepted > lease.epoch() {
            known.behind_since.get_or_insert(now);
        }
    }

    /// Changes the view, or finds out which one is decided.
    fn change_views(&self, changes: &Receiver<Change>) {
        while let Ok(change) = changes.recv() {
            let view = self.member.known().view.clone().or_else(|| self.member.accepted());
            let Some(view) = view else { continue };
            let addresses: Vec<String> =
                view.servers().iter().map(|server| server.address().to_owned()).collect();
            let mut register =
                Register::new(view.acceptors().collect(), &addresses, &self.secret, self.member.process);
            let until = Instant::now() + self.lease() * CHANGE;
            let changed = register.change(until, |view| {
                let Some(view) = view else { return Ok(None) };
                let mut next = None;
                if let Change::Without(servers) = &change {
                    for server in servers {
                        let current = next.as_ref().unwrap_or(&view);
                        match current.without(*server) {
                            Ok(changed) if changed.epoch() > current.epoch() => next = Some(changed),
                            Ok(_) => {}
                            Err(error) => tracing::error!("{error}"),
                        }
                    }
                }
                Ok(next)
            });
            match changed {
                Ok(Some(decided)) => {
                    if let Change::Without(servers) = &change
                        && servers.iter().any(|server| decided.incarnation(*server).is_none())
                    {
                        tracing::warn!(
                            "view {} of the memory servers goes on without {servers:?}, which do not answer",
                            decided.epoch()
                        );
                    }
                    self.member.learn(decided);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!("the view of the memory servers cannot be changed: {error}"),
            }
        }
    }
}

/// Asks for a change, unless one is under way.
fn ask_for(changes: &SyncSender<Change>, change: Change) {
    match changes.try_send(change) {
        Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
    }
}
