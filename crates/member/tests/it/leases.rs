//! Leases step by step: from when until when a server serves, and whom it suspects.

use pando_fabric::MemoryServerId;
use pando_member::{AcceptorId, OUTSIDE, Renew, Renewed, Server, ServerLease, Serves, Terms, View, VolumeId};

const TERMS: Terms = Terms { lease: 1000, suspect_after: 1500 };
const S: fn(u16) -> MemoryServerId = MemoryServerId;
const V: fn(u16) -> VolumeId = VolumeId;

fn acceptors() -> Vec<AcceptorId> {
    (0..3).map(|i| AcceptorId { server: S(i), incarnation: 1 }).collect()
}

fn first() -> View {
    View::new(7, 2, (0..3).map(|i| Server::new(format!("host-{i}:1"), 1)).collect()).expect("a view")
}

fn lease(me: u16, incarnation: u64) -> ServerLease {
    ServerLease::new(S(me), incarnation, 50, &acceptors(), TERMS)
}

/// Feeds answers of these servers, which have accepted the view `epoch`.
fn answer(lease: &mut ServerLease, renew: Renew, servers: &[u16], epoch: u64, now: u64) {
    servers.iter().for_each(|from| lease.answered(S(*from), &renew.answer(1, epoch), now));
}

#[test]
fn a_lease_lasts_from_the_sending_of_a_round_that_a_majority_agreed_to() {
    let mut lease = lease(0, 1);
    assert_eq!((lease.round(0), lease.epoch()), (None, 0));
    lease.learn(&first(), 10);
    let round = lease.round(100).expect("it is due");
    assert_eq!((round.epoch, lease.round(299), lease.next_round()), (1, None, 300));
    answer(&mut lease, round, &[0, 0], 1, 200);
    assert!(!lease.serves(200), "one acceptor twice is no majority");
    answer(&mut lease, round, &[1], 2, 200);
    answer(&mut lease, Renew { round: 9, ..round }, &[1], 1, 200);
    lease.answered(S(1), &Renewed { process: 51, ..round.answer(1, 1) }, 200);
    assert_eq!(lease.serves_volume(V(0), 200), Serves::Expired, "none of these counts");
    answer(&mut lease, round, &[2], 1, 600);
    assert!(lease.serves(1099) && !lease.serves(1100));
    assert_eq!(lease.serves_volume(V(0), 1099), Serves::Yes);
    assert_eq!(lease.serves_volume(V(1), 1099), Serves::Elsewhere);
    assert_eq!(lease.serves_volume(V(9), 1099), Serves::Elsewhere);
    // An older round takes nothing away.
    let rounds = [700, 900].map(|now| lease.round(now).expect("it is due"));
    answer(&mut lease, rounds[1], &[0, 1], 1, 1000);
    answer(&mut lease, rounds[0], &[0, 1], 1, 1000);
    assert!(lease.serves(1899) && !lease.serves(1900));
}

#[test]
fn a_promoted_server_waits() {
    let mut lease = lease(1, 1);
    lease.learn(&first(), 0);
    let round = lease.round(0).expect("it is due");
    answer(&mut lease, round, &[0, 1], 1, 10);
    let second = first().without(S(0)).expect("nothing is lost");
    lease.learn(&second, 500);
    assert_eq!(lease.serves_volume(V(0), 500), Serves::Waits(1100));
    assert_eq!(lease.serves_volume(V(1), 500), Serves::Yes, "it served this one before");
    lease.learn(&first(), 510);
    // Later views change nothing about the wait.
    let third = second.readmit(S(0), 2).expect("it is out");
    lease.learn(&third, 600);
    assert_eq!((lease.epoch(), lease.serves_volume(V(0), 1000)), (3, Serves::Waits(600)));
    let round = lease.round(1000).expect("it is due");
    assert_eq!(round.epoch, 3);
    answer(&mut lease, round, &[1, 2], 3, 1010);
    assert_eq!([1599, 1600].map(|now| lease.serves_volume(V(0), now)), [Serves::Waits(1), Serves::Yes]);
    // A process that starts anew cannot know who served before.
    let mut again = self::lease(1, 1);
    again.learn(&third, 2000);
    assert_eq!(again.serves_volume(V(0), 2000), Serves::Waits(1100));
    assert_eq!(again.serves_volume(V(1), 2000), Serves::Expired, "no other server ever served this one");
}

#[test]
fn a_server_that_is_the_primary_again_waits() {
    let mut lease = lease(1, 1);
    lease.learn(&first(), 0);
    // A later view, in which the primary of volume 1 is so since epoch 3: another one was in between. The last two
    // volumes are the last 44 bytes.
    let mut bytes = first().encode();
    let since = bytes.len() - 44;
    (bytes[0], bytes[since]) = (4, 3);
    lease.learn(&View::decode(&bytes).expect("a view"), 100);
    assert_eq!(lease.serves_volume(V(1), 100), Serves::Waits(1100));
    bytes[0] = 5;
    lease.learn(&View::decode(&bytes).expect("a view"), 200);
    assert_eq!(lease.serves_volume(V(1), 200), Serves::Waits(1000), "the wait goes on");
}

#[test]
fn a_server_that_has_left_never_serves_again() {
    let mut left = lease(0, 1);
    left.learn(&first(), 0);
    let round = left.round(0).expect("it is due");
    answer(&mut left, round, &[0, 1], 1, 10);
    assert!(left.serves(20));
    let second = first().without(S(0)).expect("nothing is lost");
    let third = second.readmit(S(0), 2).expect("it is out");
    left.learn(&third, 20);
    assert!(left.is_out() && !left.serves(20) && left.round(500).is_none());
    left.learn(&third.without(S(0)).map(|view| view.readmit(S(0), 1).expect("out")).expect("a view"), 30);
    assert!(left.is_out());
    assert_eq!(left.serves_volume(V(0), 30), Serves::Elsewhere);

    // One with new memory waits to be admitted.
    let mut new = lease(0, 2);
    new.learn(&first(), 0);
    let round = new.round(0).expect("it is due");
    answer(&mut new, round, &[0, 1], 1, 10);
    assert!(!new.is_out() && !new.serves(20));
    new.learn(&second, 20);
    new.learn(&third, 30);
    assert!(!new.is_out() && new.serves(40));
    let mut late = lease(0, 1);
    late.learn(&second, 0);
    assert!(late.is_out());
}

#[test]
fn silent_servers_are_suspects_of_those_with_a_lease() {
    let mut lease = lease(0, 1);
    lease.learn(&first(), 0);
    let suspects = |lease: &ServerLease, now| lease.suspects(now).collect::<Vec<_>>();
    assert_eq!(suspects(&lease, 5000), [], "it has no lease");
    let round = lease.round(1000).expect("it is due");
    answer(&mut lease, round, &[0, 1], 1, 1100);
    lease.heard(S(2), 2, 1100);
    lease.heard(S(9), 1, 1100);
    assert_eq!((suspects(&lease, 1499), suspects(&lease, 1500)), (vec![], vec![S(2)]));
    lease.heard(S(2), 1, 1500);
    assert_eq!(suspects(&lease, 1999), []);
    let round = lease.round(2500).expect("it is due");
    answer(&mut lease, round, &[0, 2], 1, 2510);
    assert_eq!((suspects(&lease, 2599), suspects(&lease, 2600)), (vec![], vec![S(1)]));
    let second = first().without(S(1)).expect("nothing is lost");
    lease.learn(&second, 2600);
    assert_eq!(suspects(&lease, 2700), []);
    lease.learn(&second.readmit(S(1), 2).expect("it is out"), 2700);
    assert_eq!(suspects(&lease, 2800), [], "it is heard from now on");
}

#[test]
fn a_round_counts_the_acceptors_of_one_view() {
    let mut lease = lease(0, 1);
    lease.learn(&first(), 0);
    let round = lease.round(0).expect("it is due");
    answer(&mut lease, round, &[2], 1, 10);
    let second = first().without(S(2)).expect("nothing is lost");
    let third = second.readmit(S(2), 2).expect("it is out").with_acceptor(S(2), 3);
    lease.learn(&third, 20);
    answer(&mut lease, round, &[0], 1, 30);
    assert!(!lease.serves(30), "the round was for other acceptors");
    let round = lease.round(200).expect("it is due");
    answer(&mut lease, round, &[0, 2], 3, 210);
    assert!(!lease.serves(210), "this acceptor was replaced");
    lease.answered(S(2), &Renewed { acceptor: 3, ..round.answer(2, 3) }, 220);
    assert!(lease.serves(220));
}

#[test]
fn a_register_outside_the_servers_is_a_majority_and_no_server_is() {
    let servers = (0..2).map(|i| Server::new(format!("host-{i}:1"), 1)).collect();
    let first = View::new(7, 2, servers).expect("a view").in_register("etcd://oak:2379/trees");
    assert_eq!(first.acceptors().collect::<Vec<_>>(), [OUTSIDE]);
    let mut lease = lease(0, 1);
    lease.learn(&first, 0);
    let round = lease.round(100).expect("it is due");
    answer(&mut lease, round, &[0, 1], 1, 150);
    assert!(!lease.serves(150), "servers do not decide");
    for decided in [0, 2] {
        lease.answered(OUTSIDE.server, &round.answer_outside(decided), 150);
        assert!(!lease.serves(150), "the register does not have this view");
    }
    lease.answered(OUTSIDE.server, &round.answer_outside(1), 400);
    assert!(lease.serves(1099) && !lease.serves(1100), "from the sending on");
    // While the register does not answer, this server suspects no one, and for some time after.
    let round = lease.round(5000).expect("it is due");
    lease.answered(OUTSIDE.server, &round.answer_outside(1), 5100);
    assert_eq!(lease.suspects(5100).count(), 0);
    let round = lease.round(5900).expect("it is due");
    lease.answered(OUTSIDE.server, &round.answer_outside(1), 5950);
    assert_eq!(lease.suspects(6599).count(), 0);
    assert_eq!(lease.suspects(6600).collect::<Vec<_>>(), [S(1)]);
    // The changes of a view leave the register as it is.
    let second = first.without(S(1)).expect("nothing is lost");
    assert_eq!(second.register(), Some("etcd://oak:2379/trees"));
    assert_eq!(View::decode(&second.encode()).as_ref(), Ok(&second));
    lease.learn(&second, 6700);
    lease.answered(OUTSIDE.server, &round.answer_outside(1), 6710);
    assert!(lease.serves(6899) && !lease.serves(6900), "a late answer is about its own round");
}
