//! Where the copies of each volume are.
//!
//! A server's region may hold copies of several volumes, each at its own offset, so an address within a volume
//! becomes one within a server by an addition. Server numbers are those of the fabric below.

use pando_fabric::{GlobalAddr, MemoryServerId, RegionInfo};

/// One copy of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    pub server: MemoryServerId,
    /// Bytes between the beginnings of the server's region and of the copy.
    pub shift: u64,
    /// Whether the copy is still being filled. It is written and never read.
    pub is_syncing: bool,
}

impl Replica {
    /// Address in the fabric below of byte `offset` of the volume.
    #[inline]
    pub fn at(&self, offset: u64) -> GlobalAddr {
        GlobalAddr::new(self.server, self.shift + offset)
    }
}

/// The copies of a volume that are in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Bytes of the volume.
    pub len: u64,
    pub primary: Replica,
    pub backups: Vec<Replica>,
}

impl Volume {
    /// The copies in the order in which a WRITE reaches them: the primary is the last one.
    ///
    /// So a READ finds at the primary only what all others have too, and nothing that was read is lost with the
    /// primary.
    pub fn in_write_order(&self) -> impl Iterator<Item = Replica> {
        self.backups.iter().copied().chain([self.primary])
    }
}

/// The copies of all volumes in one view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Number of the view; a later view has a larger one.
    pub epoch: u64,
    /// By number of the volume.
    pub volumes: Vec<Volume>,
}

impl Placement {
    /// Divides the regions of `servers` equally among `copies` copies: copy `k` of volume `v` is the part `k` of
    /// server `v + k`, counted around. Volumes have as many bytes as the smallest part, in units of 4 KiB.
    ///
    /// # Panics
    /// If there are no servers, no copies, or more copies than servers.
    pub fn chained(epoch: u64, servers: &[RegionInfo], copies: usize) -> Self {
        assert!((1..=servers.len()).contains(&copies), "{copies} copies on {} servers", servers.len());
        let smallest = servers.iter().map(|server| server.len).min().expect("there is a server");
        let len = smallest / copies as u64 / PART_UNIT * PART_UNIT;
        let replica = |volume: usize, copy: usize| Replica {
            server: servers[(volume + copy) % servers.len()].server,
            shift: copy as u64 * len,
            is_syncing: false,
        };
        let volume = |volume| Volume {
            len,
            primary: replica(volume, 0),
            backups: (1..copies).map(|copy| replica(volume, copy)).collect(),
        };
        Self { epoch, volumes: (0..servers.len()).map(volume).collect() }
    }

    /// The next placement, without a server. `None` if it has the last whole copy of a volume.
    pub fn without(&self, server: MemoryServerId) -> Option<Self> {
        let volumes = self.volumes.iter().map(|volume| {
            let all = [volume.primary].into_iter().chain(volume.backups.iter().copied());
            let left = all.filter(|copy| copy.server != server);
            let mut whole = left.clone().filter(|copy| !copy.is_syncing);
            // Else the last one that a WRITE reaches: all others have what it has.
            let primary = whole.clone().find(|copy| *copy == volume.primary).or(whole.next_back())?;
            Some(Volume { len: volume.len, primary, backups: left.filter(|copy| *copy != primary).collect() })
        });
        Some(Self { epoch: self.epoch + 1, volumes: volumes.collect::<Option<_>>()? })
    }

    /// The next placement, with copies to be filled in the parts of `server`, which has none: of volumes that have
    /// fewer than `copies`.
    pub fn with(&self, server: MemoryServerId, copies: usize) -> Self {
        let mut next = Self { epoch: self.epoch + 1, ..self.clone() };
        let wanting = next.volumes.iter_mut().filter(|volume| volume.backups.len() + 1 < copies);
        for (part, volume) in (0..).zip(wanting.take(copies)) {
            volume.backups.push(Replica { server, shift: part * volume.len, is_syncing: true });
        }
        next
    }

    /// The next placement, in which the copies on `server` are whole.
    pub fn filled(&self, server: MemoryServerId) -> Self {
        let mut next = Self { epoch: self.epoch + 1, ..self.clone() };
        let copies = next.volumes.iter_mut().flat_map(|volume| &mut volume.backups);
        copies.filter(|copy| copy.server == server).for_each(|copy| copy.is_syncing = false);
        next
    }

    /// The volumes as memory servers, for who does not know of copies.
    pub fn regions(&self) -> Vec<RegionInfo> {
        let region =
            |(number, volume): (u16, &Volume)| RegionInfo { server: MemoryServerId(number), len: volume.len };
        (0..).zip(&self.volumes).map(region).collect()
    }
}

/// Volumes are as long as a multiple of this many bytes, so that pages of the system belong to one copy.
const PART_UNIT: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(count: u16) -> Vec<RegionInfo> {
        (0..count)
            .map(|number| RegionInfo { server: MemoryServerId(number), len: (1 << 20) + 4096 })
            .collect()
    }

    /// `(server, shift)` of the copies of each volume, the primary first.
    fn copies(placement: &Placement) -> Vec<Vec<(u16, u64)>> {
        let volume = |volume: &Volume| {
            [volume.primary].iter().chain(&volume.backups).map(|copy| (copy.server.0, copy.shift)).collect()
        };
        placement.volumes.iter().map(volume).collect()
    }

    #[test]
    fn copies_are_chained_over_the_servers() {
        let placement = Placement::chained(1, &servers(3), 2);
        let half = 1 << 19;
        assert_eq!(copies(&placement), [[(0, 0), (1, half)], [(1, 0), (2, half)], [(2, 0), (0, half)]]);
        assert!(placement.regions().iter().all(|region| region.len == half));
        let alone = Placement::chained(1, &servers(2), 1);
        assert_eq!(copies(&alone), [[(0, 0)], [(1, 0)]]);
        assert_eq!(alone.regions(), servers(2));
    }

    #[test]
    fn a_lost_server_is_replaced_by_what_has_copies() {
        let placement = Placement::chained(1, &servers(3), 2);
        let half = 1 << 19;
        let left = placement.without(MemoryServerId(1)).expect("every volume has another copy");
        assert_eq!(copies(&left), [vec![(0, 0)], vec![(2, half)], vec![(2, 0), (0, half)]]);
        assert_eq!(left.epoch, 2);
        assert_eq!(left.without(MemoryServerId(0)), None);
        assert_eq!(Placement::chained(1, &servers(3), 1).without(MemoryServerId(0)), None);
        // What the new primary has, the other copy has as well.
        let last = Placement::chained(1, &servers(3), 3).without(MemoryServerId(0)).expect("two are left");
        assert_eq!((last.volumes[0].primary.server.0, last.volumes[0].backups[0].server.0), (2, 1));
    }

    #[test]
    fn a_copy_that_is_being_filled_is_written_and_never_promoted() {
        let mut placement = Placement::chained(1, &servers(3), 3);
        placement.volumes[0].backups[0].is_syncing = true;
        let order: Vec<u16> = placement.volumes[0].in_write_order().map(|copy| copy.server.0).collect();
        assert_eq!(order, [1, 2, 0]);
        let left = placement.without(MemoryServerId(0)).expect("server 2 has a whole copy");
        assert_eq!((left.volumes[0].primary.server.0, left.volumes[0].backups[0].server.0), (2, 1));
        assert_eq!(left.without(MemoryServerId(2)), None, "nothing whole is left of volume 0");
    }
}
