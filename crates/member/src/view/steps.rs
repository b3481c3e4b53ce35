//! The way to as many volumes as servers, view by view: after a server joined, and after one was told to leave for good.
//!
//! Whoever proposes a step does not have to remember the way: [`View::next_step`] tells the next one from the view. Each server
//! fills the copies that it has got, and takes those that volumes lack. Any server may be lost between two steps.

use std::collections::BTreeSet;

use pando_fabric::defect::defect;
use pando_fabric::{MAX_SERVERS, MemoryServerId};

use super::{NO_ACCEPTOR, Place, Server, Stay, View, ViewError, Volume, VolumeCopy};
use crate::defect::Defect;

/// Number of acceptors up to which servers that join become acceptors: two may be lost then.
const ACCEPTORS: usize = 5;

impl View {
    /// This view with one more server, as its last. It is no acceptor of the register yet. Its slots are free; from then on,
    /// [`next_step`](Self::next_step) leads to one more volume.
    ///
    /// # Errors
    /// If there are too many servers, or one that has not left has this address.
    pub fn with_server(&self, address: &str, incarnation: u64) -> Result<Self, ViewError> {
        if let Some(server) = self.server_at(address) {
            return Err(ViewError::IsNamed { address: address.to_owned(), server });
        }
        if self.servers.len() >= MAX_SERVERS {
            return Err(ViewError::TooManyServers { servers: self.servers.len() + 1 });
        }
        let mut next = self.next();
        next.servers.push(Server { is_acceptor: false, ..Server::new(address, incarnation) });
        Ok(next)
    }

    /// This view without the volume that has the number of `server`, which is empty and not used any more, and with `server` about to
    /// leave. From then on, [`next_step`](Self::next_step) leads to a view in which its copies are on others, and
    /// it [has left](Server::has_left). The same view, of the same epoch, if it leaves or has left.
    ///
    /// # Errors
    /// If there is no such server, or it is the first one; if its volume is not in use yet, or too few servers would be left.
    pub fn retiring(&self, server: MemoryServerId) -> Result<Self, ViewError> {
        let at = usize::from(server.0);
        match self.servers.get(at) {
            None => return Err(ViewError::NoServer { server }),
            Some(named) if !named.stays() => return Ok(self.clone()),
            Some(_) if at == 0 => return Err(ViewError::Needed { server }),
            Some(_) if at >= self.volumes_in_use() => return Err(ViewError::NoVolume { volume: server.0 }),
            Some(_) => {}
        }
        if self.servers.iter().filter(|server| server.stays()).count() <= usize::from(self.replicas) {
            return Err(ViewError::TooFew { server, replicas: self.replicas });
        }
        let mut next = self.next();
        next.servers[at].stay = Stay::Leaves;
        next.volumes[at] = Volume { primary: None, since: next.epoch, backups: Vec::new() };
        Ok(next)
    }

    /// The next step on the way to as many volumes as servers that stay, and to enough acceptors among them; `None` if there is nothing
    /// to do, or something has to happen first: a server that is out comes back, or a copy is filled.
    ///
    /// A new volume has its copies on different servers, but only the server that [joined](Self::with_server) has free slots. So
    /// backups of other volumes move there first, until enough servers have one. The new volume is *planned*
    /// until it has all its copies. Who uses volumes does not know of it, so it may be given up.
    ///
    /// A server that [leaves](Self::retiring) has copies of volumes that stay. They move to the slots that its own volume had.
    pub fn next_step(&self) -> Option<Self> {
        let replicas = usize::from(self.replicas);
        if let Some(at) = self.volumes.iter().position(|of| of.is_whole() && of.copies().count() > replicas) {
            let mut next = self.next();
            next.volumes[at].leave(self.superfluous(&self.volumes[at]), next.epoch);
            return Some(next);
        }
        if !self.servers.iter().all(|server| server.is_in || !server.stays())
            || !self.volumes.iter().all(Volume::is_whole)
        {
            return None;
        }
        if let Some(leaver) = self.servers.iter().position(|server| server.stay == Stay::Leaves) {
            return match self.lacking() {
                Some(lacking) => self.with_place_for(lacking),
                None => Some(self.left(leaver)),
            };
        }
        let has_all = |volume: &Volume| volume.is_retired() || volume.copies().count() == replicas;
        if !self.volumes.iter().all(has_all) {
            return None;
        }
        if self.plans_one {
            return Some(Self { plans_one: false, ..self.next() });
        }
        if self.volumes.len() < self.servers.len() { self.growing() } else { self.with_more_acceptors() }
    }

    fn stays(&self, server: MemoryServerId) -> bool {
        self.servers[usize::from(server.0)].stays()
    }

    /// The first volume with too few copies on servers that stay.
    fn lacking(&self) -> Option<&Volume> {
        let staying = |of: &Volume| of.copies().filter(|copy| self.stays(copy.server)).count();
        self.volumes.iter().find(|of| !of.is_retired() && staying(of) < usize::from(self.replicas))
    }

    /// The server that a volume leaves which has a copy more than it shall have: one that leaves; or one that has no copy yet of
    /// the volume that lacks a place; or one that has no room yet for a new volume.
    fn superfluous(&self, volume: &Volume) -> MemoryServerId {
        let leaves = volume.copies().find(|copy| !self.stays(copy.server));
        // The last is the one that was filled. The order of the others stays: what a later one has, those before it have.
        let earlier = &volume.backups[..volume.backups.len() - 1];
        let makes_place = || {
            let lacking = self.lacking().filter(|_| self.servers.iter().any(|server| !server.stays()))?;
            earlier.iter().chain(&volume.primary).find(|copy| !lacking.is_on(copy.server))
        };
        let with_room = self.with_room();
        let makes_room = || earlier.iter().find(|copy| !with_room.contains(&copy.server));
        let found = leaves.or_else(makes_place).or_else(makes_room);
        found.unwrap_or(&volume.backups[0]).server
    }

    /// Servers with free slots.
    fn with_room(&self) -> BTreeSet<MemoryServerId> {
        self.free_slots().map(|place| place.server).collect()
    }

    /// One more copy, of a volume in a free slot: of `lacking`, or of one that leaves a server then which may have `lacking`.
    fn with_place_for(&self, lacking: &Volume) -> Option<Self> {
        let is_free = |place: &Place| !lacking.is_on(place.server);
        let direct = self.free_slots().find(is_free).map(|place| (lacking, place));
        let (volume, place) = direct.or_else(|| {
            let room: Vec<Place> = self.free_slots().collect();
            let may_leave = |copy: &VolumeCopy| self.stays(copy.server) && !lacking.is_on(copy.server);
            let moves = |volume: &&Volume, place: &Place| {
                !volume.is_on(place.server) && volume.copies().any(may_leave)
            };
            // Who serves a volume goes on to do so, if possible.
            let by_backup = |volume: &&Volume| !volume.backups.iter().any(may_leave);
            let pairs = self.volumes.iter().flat_map(|volume| room.iter().map(move |place| (volume, *place)));
            pairs.filter(|(volume, place)| moves(volume, place)).min_by_key(|(volume, _)| by_backup(volume))
        })?;
        let at = self.volumes.iter().position(|other| std::ptr::eq(other, volume))?;
        let mut next = self.next();
        next.volumes[at].backups.push(VolumeCopy::filling(place));
        Some(next)
    }

    /// This view when nothing needs server `leaver` any more. If it is an acceptor, another one takes its place where that lets more of
    /// them be lost.
    fn left(&self, leaver: usize) -> Self {
        // Two acceptors decide on nothing that names only one of them.
        let are_two = self.acceptors().count() == 2;
        if let Some(more) = self.with_more_acceptors().filter(|_| are_two) {
            return more;
        }
        let mut next = self.next();
        let of_leaver = &mut next.servers[leaver];
        (of_leaver.is_in, of_leaver.stay) = (false, Stay::Left);
        if std::mem::take(&mut of_leaver.is_acceptor)
            && next.acceptors().count().is_multiple_of(2)
            && let Some(spare) = next.servers.iter_mut().find(|server| server.is_spare())
        {
            spare.is_acceptor = true;
        }
        next
    }

    /// A step on the way to a volume more.
    fn growing(&self) -> Option<Self> {
        let mut next = self.next();
        let (free, with_room): (Vec<Place>, _) = (self.free_slots().collect(), self.with_room());
        if with_room.len() >= usize::from(self.replicas) {
            // The server that joined, if nothing else took its slots.
            let own = MemoryServerId(self.volumes.len() as u16);
            let place = free.iter().find(|place| place.server == own).or(free.first())?;
            let primary = Some(VolumeCopy::whole(place.server, place.slot));
            next.volumes.push(Volume { primary, since: next.epoch, backups: Vec::new() });
            next.plans_one = !defect(Defect::UnplannedVolume);
            return Some(next);
        }
        // Each of the servers has room for one copy of the new volume; whoever has more takes a backup of another one.
        let room = |server| free.iter().filter(|place| place.server == server).count();
        let place = free.iter().find(|place| room(place.server) > 1)?;
        let moves = next.volumes.iter_mut().filter_map(|volume| {
            let from = volume.backups.iter().find(|copy| !with_room.contains(&copy.server))?.server;
            (!volume.is_on(place.server)).then_some((from, volume))
        });
        let (_, moves) = moves.min_by_key(|(from, _)| *from)?;
        moves.backups.push(VolumeCopy::filling(*place));
        Some(next)
    }

    /// This view with one acceptor more, if more of them may be lost then, by this step and the next one: an even number stands no more
    /// than the number before it. Those that leave do not count.
    fn with_more_acceptors(&self) -> Option<Self> {
        let now = self.servers.iter().filter(|server| server.stays() && server.is_acceptor).count();
        let spares = self.servers.iter().filter(|server| server.is_spare()).count();
        if self.register().is_some() || now >= ACCEPTORS || spares < 1 + now % 2 {
            return None;
        }
        let mut next = self.next();
        next.servers.iter_mut().find(|server| server.is_spare())?.is_acceptor = true;
        Some(next)
    }
}

impl Server {
    /// Whether it may become an acceptor.
    fn is_spare(&self) -> bool {
        self.is_in && self.stays() && !self.is_acceptor && self.acceptor != NO_ACCEPTOR
    }
}
