//! Encodings: what was encoded comes back, and bytes that are damaged are an error or something valid, never a panic.

use proptest::collection::vec;
use proptest::prelude::*;

use pando_fabric::MemoryServerId;
use pando_member::{
    Acceptor, AcceptorId, Answer, Ask, Ballot, Renew, Renewed, Request, Server, View, VolumeId,
};

/// A view that random changes of a first one led to.
fn view() -> impl Strategy<Value = View> {
    let first = (1..8u16, any::<u64>(), 1..4u16, "[a-zä:0-9]{0,12}");
    let changes = vec((0..8u8, 0..8u16, 0..8u16), 0..40);
    (first, changes, "(etcd://[a-z]{1,9})?").prop_map(|((n, pool, replicas, address), changes, register)| {
        let servers = (0..n).map(|i| Server::new(format!("{address}{i}"), u64::from(i) + 1)).collect();
        let mut view = View::new(pool, replicas.min(n), servers).expect("enough servers");
        view = view.with_slots_of(pool >> 32).in_register(register);
        for (kind, volume, server) in changes {
            let (volume, server) = (VolumeId(volume % n), MemoryServerId(server % n));
            let next = match kind {
                0 => view.without(server).ok(),
                1 => {
                    let incarnation = view.epoch() << 32;
                    let with = view.readmit(server, incarnation).ok();
                    with.map(|view| view.with_acceptor(server, incarnation + u64::from(volume.0)))
                }
                2 => view.copied(volume, server).ok(),
                3 => view.with_server(&format!("{address}{}", view.epoch()), view.epoch() << 32).ok(),
                4 => view.next_step(),
                5 => view.retiring(server).ok(),
                _ => {
                    let mut free = view.free_slots().filter(|place| place.server == server);
                    free.next().and_then(|place| view.with_copy(volume, server, place.slot).ok())
                }
            };
            view = next.unwrap_or(view);
        }
        view
    })
}

fn ballot() -> impl Strategy<Value = Ballot> {
    (1..u64::MAX / 2, any::<u64>()).prop_map(|(counter, proposer)| Ballot { counter, proposer })
}

fn acceptor() -> impl Strategy<Value = Acceptor> {
    let requests = vec((any::<bool>(), 1..9u64, vec(any::<u8>(), 0..20)), 0..6);
    (any::<u16>(), any::<u64>(), requests).prop_map(|(server, incarnation, requests)| {
        let mut acceptor = Acceptor::new(AcceptorId { server: MemoryServerId(server), incarnation });
        for (accepts, counter, value) in requests {
            let ballot = Ballot { counter, proposer: 1 };
            let ask = if accepts { Ask::Accept(&value) } else { Ask::Prepare };
            acceptor.answer(&Request { incarnation, ballot, ask });
        }
        acceptor
    })
}

fn answer<'b>(kind: u8, ballots: &[Ballot; 2], value: &'b [u8]) -> Answer<'b> {
    let [ballot, other] = *ballots;
    match kind {
        0 => Answer::Promised { ballot, accepted: other, value },
        1 => Answer::Promised { ballot, accepted: Ballot::ZERO, value: &[] },
        2 => Answer::Accepted { ballot },
        3 => Answer::Refused { ballot, promised: other },
        _ => Answer::Stranger { ballot },
    }
}

/// Decodes bytes as everything; what is valid encodes to the same bytes.
fn decode_all(bytes: &[u8]) {
    if let Ok(view) = View::decode(bytes) {
        assert_eq!(view.encode(), bytes);
        // What has been accepted can be used and changed.
        for server in (0..view.servers().len()).map(|i| MemoryServerId(i as u16)) {
            if let Ok(next) = view.without(server) {
                assert_eq!(View::decode(&next.encode()), Ok(next));
            }
        }
        for volume in view.wanting() {
            assert!(view.primary(volume).is_some_and(|copy| !copy.syncing));
        }
        let free = view.free_slots().count();
        assert!(free <= view.servers().len() * usize::from(view.replicas()));
    }
    let _ = View::epoch_of(bytes);
    let _ = Request::decode(bytes).map(|request| assert_eq!(request.encode(), bytes));
    let _ = Answer::decode(bytes).map(|answer| assert_eq!(answer.encode(), bytes));
    let _ = Acceptor::decode(bytes).map(|acceptor| assert_eq!(acceptor.encode(), bytes));
    let _ = Renew::decode(bytes).map(|renew| assert_eq!(renew.encode(), bytes));
    let _ = Renewed::decode(bytes).map(|renewed| assert_eq!(renewed.encode(), bytes));
}

/// Decodes all kinds of damage to `bytes`.
fn damage(bytes: &[u8], changes: &[(usize, u8)], cut: usize) {
    let mut damaged = bytes.to_vec();
    for (at, byte) in changes {
        let at = at % damaged.len();
        damaged[at] = *byte;
        decode_all(&damaged);
    }
    decode_all(&bytes[..cut % bytes.len()]);
    decode_all(&[bytes, &[0]].concat());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn views_come_back(view in view(), changes in vec((any::<usize>(), any::<u8>()), 1..9), cut: usize) {
        let bytes = view.encode();
        prop_assert_eq!(View::epoch_of(&bytes), Ok(view.epoch()));
        prop_assert_eq!(View::acceptors_of(&bytes), Some(view.acceptors().collect()));
        prop_assert_eq!(View::decode(&bytes), Ok(view));
        prop_assert!(View::decode(&bytes[..cut % bytes.len()]).is_err());
        damage(&bytes, &changes, cut);
        let small: Vec<_> = changes.iter().map(|(at, byte)| (*at, byte % 4)).collect();
        damage(&bytes, &small, cut);
    }

    #[test]
    fn messages_and_acceptors_come_back(
        acceptor in acceptor(),
        ballots in [ballot(), ballot()],
        value in vec(any::<u8>(), 0..20),
        numbers: [u64; 4],
        kind in 0..5u8,
        changes in vec((any::<usize>(), any::<u8>()), 1..9),
        cut: usize,
    ) {
        let ask = if kind == 0 { Ask::Prepare } else { Ask::Accept(&value) };
        let request = Request { incarnation: numbers[0], ballot: ballots[0], ask };
        let answer = answer(kind, &ballots, &value);
        let [process, round, epoch, incarnation] = numbers;
        let renew = Renew { process, round, epoch };
        let accepted = if kind == 0 { epoch } else { process };
        let renewed = Renewed { acceptor: numbers[1], ..renew.answer(incarnation, accepted) };
        let encoded =
            [request.encode(), answer.encode(), acceptor.encode(), renew.encode(), renewed.encode()];
        prop_assert_eq!(Request::decode(&encoded[0]), Ok(request));
        prop_assert_eq!(Answer::decode(&encoded[1]), Ok(answer));
        prop_assert_eq!(Acceptor::decode(&encoded[2]), Ok(acceptor));
        prop_assert_eq!(Renew::decode(&encoded[3]), Ok(renew));
        prop_assert_eq!(Renewed::decode(&encoded[4]), Ok(renewed));
        encoded.iter().for_each(|bytes| damage(bytes, &changes, cut));
    }

    #[test]
    fn no_bytes_panic(bytes in vec(any::<u8>(), 0..200)) {
        decode_all(&bytes);
    }
}
