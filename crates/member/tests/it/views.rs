//! Views: where copies are placed, what changes do, which are refused, and what damage is found.

use pando_fabric::{GlobalAddr, MAX_SERVERS, MemoryServerId, Random};
use pando_member::{FIRST_EPOCH, LostVolumes, Place, Server, View, ViewError, VolumeCopy, VolumeId};

use crate::below;

const S: fn(u16) -> MemoryServerId = MemoryServerId;
const V: fn(u16) -> VolumeId = VolumeId;

fn view(n: u16, replicas: u16) -> View {
    View::new(7, replicas, (0..n).map(|i| Server::new(format!("host-{i}:1"), 1)).collect()).expect("a view")
}

fn copy(server: u16, slot: u16) -> VolumeCopy {
    VolumeCopy { server: S(server), slot, syncing: false }
}

#[test]
fn copies_are_chained() {
    let view = view(4, 3);
    assert_eq!((view.epoch(), view.pool(), view.replicas(), view.is_replicated()), (FIRST_EPOCH, 7, 3, true));
    assert_eq!(view.primary(V(3)), Some(copy(3, 0)));
    assert_eq!(view.backups(V(3)), [copy(0, 1), copy(1, 2)]);
    assert_eq!(copy(1, 2).shift(4096), 8192);
    assert_eq!((view.primary(V(4)), view.backups(V(4)), view.primary_since(V(4))), (None, &[][..], None));
    assert_eq!((view.free_slots().count(), view.wanting().count(), view.volumes()), (0, 0, 4));
    assert_eq!(view.members().collect::<Vec<_>>(), (0..4).map(S).collect::<Vec<_>>());
    assert_eq!(VolumeId::of(GlobalAddr::new(S(3), 64)), V(3));
    let single = self::view(2, 1);
    assert!(!single.is_replicated() && single.backups(V(0)).is_empty());
}

#[test]
fn impossible_views_are_refused() {
    let servers = |n: usize| vec![Server::new("", 0); n];
    assert_eq!(View::new(1, 0, servers(2)), Err(ViewError::Copies { replicas: 0, servers: 2 }));
    assert_eq!(View::new(1, 3, servers(2)), Err(ViewError::Copies { replicas: 3, servers: 2 }));
    assert_eq!(View::new(1, 1, servers(0)), Err(ViewError::Copies { replicas: 1, servers: 0 }));
    let many = MAX_SERVERS + 1;
    assert_eq!(View::new(1, 1, servers(many)), Err(ViewError::TooManyServers { servers: many }));
    assert!(View::new(1, 2, servers(MAX_SERVERS)).is_ok());
}

#[test]
fn a_server_leaves_and_comes_back() {
    let first = view(3, 2);
    let second = first.without(S(1)).expect("nothing is lost");
    assert_eq!((second.epoch(), second.incarnation(S(1))), (2, None));
    assert_eq!((second.primary(V(1)), second.primary_since(V(1))), (Some(copy(2, 1)), Some(2)));
    assert_eq!((second.primary(V(0)), second.primary_since(V(0))), (Some(copy(0, 0)), Some(1)));
    assert_eq!(second.wanting().collect::<Vec<_>>(), [V(0), V(1)]);
    assert_eq!(second.free_slots().count(), 0);
    assert_eq!(second.without(S(1)), Ok(second.clone()), "once is enough");
    assert_eq!(second.without(S(9)), Ok(second.clone()), "there is none");

    let lost = second.without(S(2)).expect_err("two volumes have one copy each");
    assert_eq!(lost, LostVolumes { server: S(2), volumes: vec![1] });
    assert_eq!(lost.to_string(), "without memory server 2, no whole copy would be left of the volumes [1]");

    assert_eq!(second.readmit(S(1), 1), Err(ViewError::Outdated { server: S(1), incarnation: 1 }));
    assert_eq!(second.readmit(S(0), 2), Err(ViewError::IsIn { server: S(0) }));
    assert_eq!(second.readmit(S(3), 2), Err(ViewError::NoServer { server: S(3) }));
    let third = second.readmit(S(1), 2).expect("it is out");
    assert_eq!(third.free_slots().collect::<Vec<_>>(), [0, 1].map(|slot| Place { server: S(1), slot }));

    assert_eq!(second.with_copy(V(1), S(1), 0), Err(ViewError::IsOut { server: S(1) }));
    assert_eq!(third.with_copy(V(3), S(1), 0), Err(ViewError::NoVolume { volume: 3 }));
    assert_eq!(third.with_copy(V(1), S(1), 2), Err(ViewError::NotFree { server: S(1), slot: 2 }));
    assert_eq!(third.with_copy(V(1), S(0), 0), Err(ViewError::NotFree { server: S(0), slot: 0 }));
    assert_eq!(third.with_copy(V(1), S(2), 0), Err(ViewError::HasCopy { volume: 1, server: S(2) }));
    let fourth = third.with_copy(V(1), S(1), 1).expect("a free slot");
    assert_eq!(fourth.backups(V(1)), [VolumeCopy { syncing: true, ..copy(1, 1) }]);
    assert_eq!((fourth.wanting().count(), fourth.free_slots().count()), (1, 1));

    // A copy that is being filled does not count as one.
    assert_eq!(fourth.without(S(2)).expect_err("no other whole copy").volumes, [1]);
    assert_eq!(fourth.copied(V(0), S(1)), Err(ViewError::NotSyncing { volume: 0, server: S(1) }));
    let fifth = fourth.copied(V(1), S(1)).expect("it is syncing");
    assert_eq!(fifth.copied(V(1), S(1)), Err(ViewError::NotSyncing { volume: 1, server: S(1) }));
    let sixth = fifth.without(S(2)).expect("a whole copy");
    assert_eq!((sixth.primary(V(1)), sixth.primary_since(V(1))), (Some(copy(1, 1)), Some(6)));
    assert_eq!(View::decode(&sixth.encode()), Ok(sixth));
}

#[test]
fn a_whole_backup_is_promoted_before_a_syncing_one() {
    let mut view = view(4, 3);
    view = view.without(S(1)).map(|view| view.readmit(S(1), 2).expect("it is out")).expect("3 copies");
    view = view.with_copy(V(0), S(1), 0).expect("a free slot");
    assert_eq!(view.backups(V(0)).iter().map(|copy| copy.syncing).collect::<Vec<_>>(), [false, true]);
    let next = view.without(S(0)).expect("a whole copy");
    assert_eq!((next.primary(V(0)), next.backups(V(0)).len()), (Some(copy(2, 2)), 1));
}

/// Fills all copies, and makes those that volumes lack, as servers do.
fn filled(mut view: View) -> View {
    loop {
        let syncing = (0..view.volumes() as u16).map(V).find_map(|volume| {
            let copy = view.backups(volume).iter().find(|copy| copy.syncing)?;
            Some((volume, copy.server))
        });
        if let Some((volume, server)) = syncing {
            view = view.copied(volume, server).expect("it is being filled");
            continue;
        }
        let wanting: Vec<_> = view.wanting().collect();
        let places: Vec<_> = view.free_slots().collect();
        let mut choices = wanting.iter().flat_map(|volume| places.iter().map(move |place| (*volume, *place)));
        match choices.find_map(|(volume, place)| view.with_copy(volume, place.server, place.slot).ok()) {
            Some(next) => view = next,
            None => return view,
        }
    }
}

/// Numbers of the servers with copies of each volume, the primary first.
fn holders(view: &View) -> Vec<Vec<u16>> {
    let of =
        |volume| view.primary(volume).iter().chain(view.backups(volume)).map(|copy| copy.server.0).collect();
    (0..view.volumes() as u16).map(V).map(of).collect()
}

#[test]
fn a_server_joins_and_one_more_volume_has_its_copies_on_different_servers() {
    let first = view(3, 2);
    let named = ViewError::IsNamed { address: "host-1:1".to_owned(), server: S(1) };
    assert_eq!(first.with_server("host-1:1", 5), Err(named));
    let joined = first.with_server("host-3:1", 5).expect("another one");
    assert_eq!(first.next_step(), None, "there are as many volumes as servers");
    assert!(joined.acceptors().eq(first.acceptors()), "it is no acceptor");
    assert_eq!((joined.incarnation(S(3)), joined.volumes(), joined.free_slots().count()), (Some(5), 3, 2));
    let moving = joined.next_step().expect("a backup moves");
    assert_eq!(holders(&moving), [vec![0, 1], vec![1, 2], vec![2, 0, 3]]);
    assert_eq!(moving.next_step(), None, "it is not filled");
    let moved = filled(moving).next_step().expect("two servers have room");
    assert_eq!(holders(&moved), [[0, 1], [1, 2], [2, 3]]);
    let planned = moved.next_step().expect("a volume");
    assert_eq!((planned.volumes(), planned.volumes_in_use()), (4, 3));
    assert_eq!(planned.primary(V(3)), Some(copy(3, 1)));
    assert_eq!(planned.without(S(3)).expect("nobody has used the volume").volumes(), 3);
    assert_eq!(planned.next_step(), None, "it has one copy");
    let whole = filled(planned);
    assert_eq!(holders(&whole), [[0, 1], [1, 2], [2, 3], [3, 0]]);
    let in_use = whole.next_step().expect("it may be used");
    assert_eq!((in_use.volumes_in_use(), in_use.next_step()), (4, None));
    assert_eq!(in_use.without(S(3)).expect("a copy of each is left").volumes(), 4);
}

/// All steps until there is nothing to do.
fn settled(mut view: View) -> View {
    view = filled(view);
    while let Some(next) = view.next_step() {
        view = filled(next);
    }
    view
}

fn acceptors(view: &View) -> Vec<u16> {
    view.acceptors().map(|id| id.server.0).collect()
}

#[test]
fn a_server_leaves_for_good_and_its_copies_are_on_others() {
    let first = view(4, 2);
    assert_eq!(first.retiring(S(0)), Err(ViewError::Needed { server: S(0) }));
    assert_eq!(first.retiring(S(4)), Err(ViewError::NoServer { server: S(4) }));
    let leaves = first.retiring(S(2)).expect("it may leave");
    assert_eq!(leaves.retiring(S(2)), Ok(leaves.clone()), "once is enough");
    assert_eq!(holders(&leaves), [vec![0, 1], vec![1, 2], vec![], vec![3, 0]]);
    assert!(leaves.is_retired(V(2)) && !leaves.is_retired(V(1)));
    assert_eq!(leaves.wanting().count(), 0, "nobody wants copies of the volume");
    assert_eq!(leaves.free_slots().collect::<Vec<_>>(), [Place { server: S(3), slot: 1 }]);
    let moving = leaves.next_step().expect("a copy moves");
    assert_eq!(holders(&moving), [vec![0, 1], vec![1, 2, 3], vec![], vec![3, 0]]);
    assert_eq!(moving.next_step(), None, "it is not filled");
    let moved = filled(moving).next_step().expect("it is whole");
    assert_eq!(holders(&moved), [vec![0, 1], vec![1, 3], vec![], vec![3, 0]]);
    let left = moved.next_step().expect("it has nothing any more");
    assert!(left.servers()[2].has_left() && !left.servers()[2].is_in());
    assert_eq!((acceptors(&moved), acceptors(&left)), (vec![0, 1, 2, 3], vec![0, 1, 3]));
    assert_eq!((left.next_step(), left.server_at("host-2:1")), (None, None));
    assert_eq!(left.readmit(S(2), 9), Err(ViewError::Leaves { server: S(2) }));
    // It may join as another one.
    let again = settled(left.with_server("host-2:1", 9).expect("it has left"));
    assert_eq!((again.volumes_in_use(), acceptors(&again)), (5, vec![0, 1, 3]));
    assert!(again.primary(V(4)).is_some() && again.wanting().next().is_none());
}

#[test]
fn a_primary_leaves_a_server_and_a_full_server_makes_place() {
    // Volume 1 is served by server 2.
    let first = view(3, 2).without(S(1)).map(|view| view.readmit(S(1), 2).expect("it is out"));
    let first = filled(first.expect("nothing is lost"));
    let since = first.epoch();
    let gone = settled(first.retiring(S(2)).expect("it may leave"));
    assert_eq!(gone.primary(V(1)).map(|copy| copy.server), Some(S(0)), "the copy that was filled last");
    assert!(gone.primary_since(V(1)).is_some_and(|epoch| epoch > since), "another server serves it");
    assert_eq!((holders(&gone)[0].len(), holders(&gone)[1].len(), acceptors(&gone)), (2, 2, vec![0, 1]));
    assert_eq!(gone.retiring(S(1)), Err(ViewError::TooFew { server: S(1), replicas: 2 }));
    // A third one joins, and becomes an acceptor: then one may be lost.
    let three = settled(gone.with_server("new:1", 5).expect("another one"));
    assert_eq!(acceptors(&three), [0, 1, 3]);
    // It takes the place of one that leaves.
    let four = settled(three.with_server("new:2", 6).expect("another one"));
    let gone = settled(four.retiring(S(1)).expect("it may leave"));
    assert_eq!((acceptors(&gone), gone.wanting().next()), (vec![0, 3, 4], None));
}

#[test]
fn servers_that_join_are_in_use_in_the_end_and_others_leave_whatever_is_lost_meanwhile() {
    for seed in 0..4000 {
        let random = Random::new(seed);
        let (n, replicas) = (2 + below(&random, 5) as u16, 1 + below(&random, 3) as u16);
        let mut view = view(n, replicas.min(n));
        for step in 0..40 {
            let server = S(below(&random, view.servers().len() as u64) as u16);
            view = match below(&random, 8) {
                0 if view.servers().len() < 9 => view.with_server(&format!("new-{step}:1"), 1000 + step),
                1 if view.servers().iter().all(Server::is_in) => {
                    view.without(server).map_or_else(|_| Ok(view.clone()), Ok)
                }
                2 => view.readmit(server, view.epoch() << 32).or(Ok(view.clone())),
                3 => Ok(filled(view)),
                4 if below(&random, 3) == 0 => view.retiring(server).or(Ok(view.clone())),
                _ => Ok(view.next_step().unwrap_or(view)),
            }
            .expect("a change");
            assert_eq!(View::decode(&view.encode()).as_ref(), Ok(&view), "seed {seed}");
        }
        for number in (0..view.servers().len() as u16).map(S) {
            view = view.readmit(number, view.epoch() << 32).unwrap_or(view);
        }
        view = settled(view);
        let copies = (0..).map(V).zip(holders(&view)).filter(|(volume, _)| !view.is_retired(*volume));
        let copies: Vec<usize> = copies.map(|(_, holders)| holders.len()).collect();
        // Where servers lost their parts in an odd order, the only free slot may be on a server that has a copy.
        let is_stuck = view.wanting().next().is_some();
        assert!(is_stuck || view.volumes_in_use() == view.servers().len(), "seed {seed}: {view:?}");
        let is_settled = |server: &Server| server.stays() || server.has_left();
        assert!(is_stuck || view.servers().iter().all(is_settled), "seed {seed}: {view:?}");
        assert!(
            is_stuck || copies.iter().all(|copies| *copies == usize::from(view.replicas())),
            "seed {seed}"
        );
    }
}

/// The encoded first view of two servers with empty addresses and two copies, with changes to it.
fn damaged(changes: &[(usize, u8)]) -> String {
    let mut bytes = View::new(7, 2, vec![Server::new("", 1); 2]).expect("a view").encode();
    // The head has 30 bytes, a server 21, the number of volumes 4, and a volume 12 with 5 for each copy.
    assert_eq!(bytes.len(), 30 + 2 * 21 + 4 + 2 * (12 + 2 * 5));
    changes.iter().for_each(|(at, byte)| bytes[*at] = *byte);
    View::decode(&bytes).map_or_else(|error| error.what.to_owned(), |_| "nothing".to_owned())
}

#[test]
fn damage_is_named() {
    let volume = 30 + 2 * 21 + 4;
    let (primary, backup) = (volume + 12, volume + 17);
    assert_eq!(damaged(&[]), "nothing");
    for (changes, what) in [
        (&[(0, 0)][..], "an epoch that cannot be"),
        (&[(7, 0x80)], "an epoch that cannot be"),
        (&[(16, 0)], "a number of servers that does not fit the copies"),
        (&[(16, 3)], "a number of servers that does not fit the copies"),
        (&[(18, 0)], "slots without bytes"),
        (&[(26, 200)], "more items than bytes"),
        (&[(46, 16)], "a standing that cannot be"),
        (&[(46, 9)], "a standing that cannot be"),
        (&[(46, 12)], "a standing that cannot be"),
        (&[(46, 3), (67, 3)], "no acceptors"),
        (&[(volume - 4, 0)], "a number of volumes that cannot be"),
        (&[(volume - 4, 1), (volume - 1, 0x80)], "a number of volumes that cannot be"),
        (&[(volume - 4, 3)], "cut short"),
        (&[(volume - 4, 1)], "more than belongs there"),
        (&[(volume, 2)], "a primary since an epoch that was not"),
        (&[(volume, 0)], "a primary since an epoch that was not"),
        (&[(volume + 8, 0)], "a primary since an epoch that was not"),
        (&[(primary + 4, 1)], "a primary that is being filled"),
        (&[(primary, 2)], "a copy on a server that is not in the view"),
        (&[(46, 0)], "a copy on a server that is not in the view"),
        (&[(primary + 2, 2)], "a copy in a slot that is not there or holds another one"),
        (&[(backup, 0)], "two copies of a volume on one server"),
        (&[(backup + 2, 0)], "a copy in a slot that is not there or holds another one"),
    ] {
        assert_eq!(damaged(changes), what, "{changes:?}");
    }
}
