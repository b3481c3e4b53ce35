//! Leases of memory servers: one that was cut off stops serving before another one is promoted.
//!
//! A memory server serves while it has a lease, and each volume from a certain moment on. It renews the lease
//! by *rounds*: it asks all acceptors whether the view that they have accepted has the epoch that it knows, and
//! if a majority agrees, the lease lasts until [`Terms::lease`] after the round was sent. A server that becomes
//! the primary of a volume waits longer than any lease that the former primary can have. [`ServerLease`] has
//! the argument why two servers never serve a volume at the same time.
//!
//! ```text
//! renew     process 8 | round 8 | epoch 8
//! renewed   process 8 | round 8 | incarnation 8 | that of the acceptor 8 | epoch of the accepted view 8 | agrees 1
//! ```

use std::collections::VecDeque;

use pando_fabric::codec::{BadField, Put, Reader};
use pando_fabric::defect::defect;
use pando_fabric::{MemoryServerId, Nanos};

use crate::defect::Defect;
use crate::register::{AcceptorId, majority};
use crate::view::{FIRST_EPOCH, OUTSIDE, View, VolumeId};

/// While one clock advances by `d + d / DRIFT`, every other one advances by `d` at least.
const DRIFT: Nanos = 10;
/// Rounds in the time of a lease.
const ROUNDS: Nanos = 5;

/// Times of the servers of a pool, the same for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a server may serve after it sent a round that a majority agreed to.
    pub lease: Nanos,
    /// How long a server may be silent before others suspect it.
    pub suspect_after: Nanos,
}

impl Terms {
    /// How long a server waits before it serves a volume that another one may have served: a lease, and a tenth of it
    /// for clocks that go wrong.
    pub fn wait(&self) -> Nanos {
        self.lease.saturating_add(self.lease.div_ceil(DRIFT))
    }
}

/// One round of a server: a question to every acceptor and to the other servers of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renew {
    /// Number of the asking process, as in [`Ballot`](crate::Ballot).
    pub process: u64,
    pub round: u64,
    /// Epoch of the newest decided view that the server knows.
    pub epoch: u64,
}

impl Renew {
    /// Answer of a server of this `incarnation`. `accepted` is the epoch of the view that its acceptor has accepted,
    /// 0 if there is none, or it has no acceptor.
    pub fn answer(&self, incarnation: u64, accepted: u64) -> Renewed {
        let agrees = accepted == self.epoch || (accepted > self.epoch && defect(Defect::OlderEpoch));
        let acceptor = incarnation;
        Renewed { process: self.process, round: self.round, incarnation, acceptor, accepted, agrees }
    }

    /// Answer of the register outside the servers ([`OUTSIDE`]): `decided` is the epoch of the view that a linearizable
    /// read found, begun after this round; 0 if it found none.
    pub fn answer_outside(&self, decided: u64) -> Renewed {
        self.answer(OUTSIDE.incarnation, decided)
    }

    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        [self.process, self.round, self.epoch].iter().for_each(|number| out.put_u64(*number));
        out
    }

    /// The message that `bytes` encode.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadField> {
        let mut reader = Reader::new(bytes);
        let renew = Self { process: reader.u64()?, round: reader.u64()?, epoch: reader.u64()? };
        reader.end()?;
        Ok(renew)
    }
}

/// Answer to a [`Renew`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    pub process: u64,
    pub round: u64,
    /// Incarnation of the answering server.
    pub incarnation: u64,
    /// Incarnation of its acceptor: another one if the server counts its memory as new, but has kept its promises.
    pub acceptor: u64,
    /// Epoch of the view that it has accepted, decided or not; 0 if none.
    pub accepted: u64,
    /// Whether that is the epoch that was asked for.
    pub agrees: bool,
}

impl Renewed {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let numbers = [self.process, self.round, self.incarnation, self.acceptor, self.accepted];
        numbers.iter().for_each(|number| out.put_u64(*number));
        out.push(u8::from(self.agrees));
        out
    }

    /// The message that `bytes` encode.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadField> {
        let reader = &mut Reader::new(bytes);
        let (process, round) = (reader.u64()?, reader.u64()?);
        let (incarnation, acceptor, accepted) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let agrees = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(reader.bad("neither yes nor no")),
        };
        reader.end()?;
        Ok(Self { process, round, incarnation, acceptor, accepted, agrees })
    }
}

/// Whether a server serves a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    Yes,
    /// It is the primary, but another server may serve the volume for this time.
    Waits(Nanos),
    /// It is the primary, but its lease is over. Others may have taken its place.
    Expired,
    /// It is not the primary in the newest view that it knows.
    Elsewhere,
}

#[derive(Debug)]
struct Round {
    number: u64,
    sent: Nanos,
    /// By place in the list of acceptors.
    agreed: Vec<bool>,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    /// That of the view; `None` if the server is out.
    incarnation: Option<u64>,
    heard: Nanos,
}

/// What one process of a memory server may serve, and which other servers it suspects.
///
/// # Why two servers never serve a volume at the same time
/// Let server `S` be the primary of a volume up to epoch `e`, and `P` another one from a later epoch on. Let `T` be
/// the moment at which a majority of the acceptors had accepted, by one ballot, the first decided view that is newer
/// than `e`.
/// 1. All values that are accepted by larger ballots come from that view by changes, so their epochs are larger than
///    `e`. An acceptor of this majority agrees to no round with an epoch up to `e` after `T`.
/// 2. While `S` knows no view that is newer than `e`, it sends rounds with epochs up to `e` only. A majority that
///    agrees has an acceptor in common with the majority of 1, which agreed before `T`. So the round was sent
///    before `T`, and by the clock of `S`, it serves for less than a lease after `T`.
/// 3. If `S` learns of a newer view, it does not serve what is not its own there. If the volume is its own again, that
///    view says that it is so since an epoch beyond `e`, and `S` waits like `P`.
/// 4. `P` learns of decided views only, so after `T`, and waits 1.1 leases by its own clock. Meanwhile a lease at least
///    passes by the clock of `S`.
///
/// The order of `S` and `P` does not matter, so this holds for any two servers.
///
/// # A register outside the servers
/// The views name one acceptor then, [`OUTSIDE`], which is a majority by itself, and `T` is the moment at which the
/// newer view became the value of the register. What it holds is decided. A linearizable read that began after `T`
/// finds the newer view or a later one, so a read that finds epoch `e` began before `T`: this is 1 and 2. 3 and 4
/// do not name acceptors. So the register must be linearizable, and must not return to an earlier value: one that was
/// restored from a backup is not the same register. Its clocks and its own leases play no part.
///
/// It relies on these assumptions:
/// - While one clock advances by 1.1 of some time, every other clock advances by that time at least, also while a
///   process is stopped. They need not show the same time.
/// - [`learn`](Self::learn) is called with decided views only, and each change of a view makes its epoch larger.
/// - Acceptors persist what they accept before they answer. A view may name another acceptor in the place of one that
///   has lost its memory ([`View::with_acceptor`]), or one more or less ([`View::next_step`]). It is decided by a majority of the
///   acceptors that the view before it names ([`Proposal`](crate::Proposal)), and a round asks those of a decided view. So the
///   majorities of 2 have an acceptor in common if `S` knows the view before the newer one, or one with the same acceptors,
///   or with one more or less: of `n + 1` acceptors, any majority of `n` of them and any majority of all have one in common. If not,
///   `S` has missed an earlier change of the acceptors, and the argument holds from that change on.
/// - Each start of a process has a number of its own, so that answers to an earlier one do not count.
/// - The caller does nothing for clients after the lease is over. What it has begun before must have taken effect by
///   then, or be prevented: connections are closed, the right to one-sided verbs is revoked. If that takes time, the
///   caller asks whether it serves at that much later than now.
#[derive(Debug)]
pub struct ServerLease {
    me: MemoryServerId,
    incarnation: u64,
    process: u64,
    acceptors: Vec<AcceptorId>,
    terms: Terms,
    /// Epoch of the newest view that it knows; 0 if none.
    epoch: u64,
    admitted: bool,
    out: bool,
    /// From when on this server may serve each volume; `None` if it is not the primary.
    from: Vec<Option<Nanos>>,
    /// Number of the next round.
    number: u64,
    /// Rounds that may still prolong the lease, oldest first: as many as fit into a lease.
    rounds: VecDeque<Round>,
    due: Nanos,
    /// End of the lease.
    until: Option<Nanos>,
    peers: Vec<Peer>,
}

impl ServerLease {
    /// For a process of server `me`, whose memory has this `incarnation`. No other start of any process may have the
    /// number `process`. It knows no view and serves nothing.
    pub fn new(
        me: MemoryServerId,
        incarnation: u64,
        process: u64,
        acceptors: &[AcceptorId],
        terms: Terms,
    ) -> Self {
        Self {
            me,
            incarnation,
            process,
            acceptors: acceptors.to_vec(),
            terms,
            epoch: 0,
            admitted: false,
            out: false,
            from: Vec::new(),
            number: 0,
            rounds: VecDeque::new(),
            due: 0,
            until: None,
            peers: Vec::new(),
        }
    }

    /// Number of this server.
    pub fn me(&self) -> MemoryServerId {
        self.me
    }

    /// Epoch of the newest view that it knows; 0 if none.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether it has left the view. Then it never serves again: its memory is outdated. A server with new memory, or
    /// one that counts its memory as new, has another incarnation, and a new [`ServerLease`].
    pub fn is_out(&self) -> bool {
        self.out
    }

    /// Takes a decided view; one that is not newer than the known one changes nothing.
    pub fn learn(&mut self, view: &View, now: Nanos) {
        if self.out || view.epoch() <= self.epoch {
            return;
        }
        if !view.acceptors().eq(self.acceptors.iter().copied()) {
            // Each round counts the acceptors of one view.
            self.acceptors = view.acceptors().collect();
            self.rounds.clear();
        }
        let was_admitted = self.admitted;
        self.admitted = view.incarnation(self.me) == Some(self.incarnation);
        let named = view.servers().get(usize::from(self.me.0));
        let named = named.is_some_and(|server| server.incarnation() == self.incarnation);
        self.out = !self.admitted && (was_admitted || named);
        let known = std::mem::replace(&mut self.epoch, view.epoch());
        self.from.resize(view.volumes(), None);
        for (v, from) in self.from.iter_mut().enumerate() {
            let volume = VolumeId(v as u16);
            let mine = self.admitted && view.primary(volume).is_some_and(|copy| copy.server == self.me);
            let since = view.primary_since(volume).unwrap_or(u64::MAX);
            *from = match *from {
                _ if !mine => None,
                Some(from) if since <= known => Some(from),
                // It had no other primary before.
                _ if since == FIRST_EPOCH || defect(Defect::NoWait) => Some(now),
                _ => Some(now.saturating_add(self.terms.wait())),
            };
        }
        self.peers.resize(view.servers().len(), Peer { incarnation: None, heard: now });
        for (i, peer) in self.peers.iter_mut().enumerate() {
            let incarnation = view.incarnation(MemoryServerId(i as u16));
            if peer.incarnation != incarnation {
                *peer = Peer { incarnation, heard: now };
            }
        }
    }

    /// When the next round is due.
    pub fn next_round(&self) -> Nanos {
        self.due
    }

    /// Begins a round if one is due; then the question goes to all acceptors and all servers of the view.
    pub fn round(&mut self, now: Nanos) -> Option<Renew> {
        if now < self.due || self.epoch == 0 || self.out {
            return None;
        }
        let lease = self.terms.lease;
        self.rounds.retain(|round| now < round.sent.saturating_add(lease));
        self.due = now.saturating_add((lease / ROUNDS).max(1));
        let number = self.number;
        self.number += 1;
        self.rounds.push_back(Round { number, sent: now, agreed: vec![false; self.acceptors.len()] });
        Some(Renew { process: self.process, round: number, epoch: self.epoch })
    }

    /// Takes the answer of server `from`.
    pub fn answered(&mut self, from: MemoryServerId, renewed: &Renewed, now: Nanos) {
        if renewed.process != self.process {
            return;
        }
        self.heard(from, renewed.incarnation, now);
        let id = AcceptorId { server: from, incarnation: renewed.acceptor };
        let acceptor = self.acceptors.iter().position(|acceptor| *acceptor == id);
        let round = self.rounds.iter_mut().find(|round| round.number == renewed.round);
        let (Some(acceptor), Some(round), true) = (acceptor, round, renewed.agrees) else { return };
        let had_lease = self.until.is_some_and(|until| now < until);
        round.agreed[acceptor] = true;
        if round.agreed.iter().filter(|agreed| **agreed).count() >= majority(self.acceptors.len()) {
            let begin = if defect(Defect::LeaseFromAnswer) { now } else { round.sent };
            self.until = self.until.max(Some(begin.saturating_add(self.terms.lease)));
            if !had_lease && id == OUTSIDE {
                // The register was away, and servers that it does not answer are silent.
                self.peers.iter_mut().for_each(|peer| peer.heard = peer.heard.max(now));
            }
        }
    }

    /// Notes that `server` answered something, with this incarnation.
    pub fn heard(&mut self, server: MemoryServerId, incarnation: u64, now: Nanos) {
        if let Some(peer) = self.peers.get_mut(usize::from(server.0))
            && peer.incarnation == Some(incarnation)
        {
            peer.heard = peer.heard.max(now);
        }
    }

    /// Whether the server is in the view and has a lease. Without one it must not change its memory for clients.
    #[inline]
    pub fn serves(&self, now: Nanos) -> bool {
        self.admitted && self.until.is_some_and(|until| now < until)
    }

    /// Nanoseconds that are left of the lease; 0 if it has none.
    pub fn left(&self, now: Nanos) -> Nanos {
        if self.admitted { self.until.map_or(0, |until| until.saturating_sub(now)) } else { 0 }
    }

    /// Whether the server serves `volume`.
    #[inline]
    pub fn serves_volume(&self, volume: VolumeId, now: Nanos) -> Serves {
        match self.from.get(usize::from(volume.0)) {
            Some(Some(from)) if now < *from => Serves::Waits(from - now),
            Some(Some(_)) if self.serves(now) => Serves::Yes,
            Some(Some(_)) => Serves::Expired,
            _ => Serves::Elsewhere,
        }
    }

    /// Other servers of the view that answered nothing for [`Terms::suspect_after`]. A server without a lease suspects
    /// no one: it may be the one that is cut off, or was stopped.
    pub fn suspects(&self, now: Nanos) -> impl Iterator<Item = MemoryServerId> {
        let peers = self.peers.iter().enumerate().filter(move |_| self.serves(now));
        let silent = peers.filter(move |(i, peer)| {
            let limit = peer.heard.saturating_add(self.terms.suspect_after);
            peer.incarnation.is_some() && *i != usize::from(self.me.0) && now >= limit
        });
        silent.map(|(i, _)| MemoryServerId(i as u16))
    }
}
