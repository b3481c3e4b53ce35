//! All operations over the network: one process with two compute servers, compared with a `BTreeMap`; long
//! values; refused requests; many clients while boundaries move.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use crate::support::{AtEnd, Draw, Model, connect, key, look_around, operate, operate_at_once, serve};
use pando::remote::{ErrorCode, RemoteError};
use pando::{Answers, Cluster, Config, Error, Index, IndexError, IndexLayout, IndexOptions};

fn embedded(options: &IndexOptions) -> (Cluster, Index) {
    let config = Config::embedded().memory(256 << 20).compute_servers(2).cache(1 << 20);
    let cluster = Cluster::open(config).expect("memory");
    let index = cluster.create_index("x", options).expect("new");
    (cluster, index)
}

#[test]
fn every_operation_is_what_it_is_on_a_map() {
    for (options, fixed) in [(IndexOptions::integers(), true), (IndexOptions::bytes(), false)] {
        let (cluster, index) = embedded(&options);
        let server = serve(&index, 2);
        let remote = connect(&[server.addr()]).open_index("x").expect("it is served");
        assert_eq!(remote.layout(), index.layout());
        let session = remote.session();
        let (mut model, mut draw) = (Model::new(), Draw(7));
        let keys: Vec<_> = (0..200).map(|n| key(n * 300)).collect();
        for round in 0..1500u64 {
            let long = if fixed { 8 } else { 1 + draw.below(300) as usize };
            let value = round.to_le_bytes().repeat(long.div_ceil(8))[..long].to_vec();
            let at = keys[draw.below(200) as usize].clone();
            operate(&session, &mut model, &mut draw, &at, &value);
            if round % 10 == 0 {
                operate_at_once(&session, &mut model, &mut draw, &keys[..30], &value);
                look_around(&session, &model, &mut draw, &keys);
            }
        }
        assert!(session.iter().map(|entry| entry.expect("served")).eq(model.clone()));
        let above: Vec<_> = session.range(keys[50].clone()..).reverse().limit(3).collect();
        let expected: Vec<_> = model.range(keys[50].clone()..).rev().take(3).collect();
        assert_eq!(above.len(), expected.len());
        assert!(session.ping().iter().all(|(_, took)| took.is_ok()));
        let counts = server.counts();
        assert_eq!(counts.errors(), 0);
        assert!(counts.done("get") > 100 && counts.done("scan") > 100 && counts.done("multi_get") > 100);
        assert!(counts.kinds.iter().all(|kind| kind.latencies.count() == kind.done + kind.not_owned));
        drop((session, server));
        assert!(cluster.check().expect("at rest").is_clean());
    }
}

#[test]
fn long_values_and_long_answers_travel_whole() {
    let (_cluster, index) = embedded(&IndexOptions::bytes());
    let server = serve(&index, 1);
    let session = connect(&[server.addr()]).open_index("x").expect("it is served").session();
    let longest = vec![5; 16 << 20];
    assert!(!session.put(&[9; 200], &longest).expect("the longest value"));
    assert_eq!(session.get(&[9; 200]).expect("served"), Some(longest.clone()));
    let error = session.put(b"k", &vec![5; (16 << 20) + 1]).expect_err("one more");
    assert!(
        matches!(error, Error::Index(IndexError::ValueTooLong { .. })) && error.is_bad_input(),
        "{error}"
    );
    let error = session.get(&[0; (64 << 10) + 1]).expect_err("no index has such keys");
    assert!(matches!(error, Error::Index(IndexError::KeyTooLong { .. })), "{error}");
    // Several answers of about 1 MiB each, and one that is longer.
    let mut batch = session.batch();
    for n in 0..40u64 {
        batch.put(&key(n), &[n as u8; 100 << 10]);
    }
    assert!(batch.run().into_iter().all(|answer| answer.is_ok()));
    let keys: Vec<_> = (0..40).map(key).chain([vec![9; 200], vec![1]]).collect();
    let mut answers = Answers::default();
    session.multi_get(&keys, &mut answers).expect("served");
    assert!((0..40).all(|n| answers.get(n) == Some(&[n as u8; 100 << 10][..])));
    assert_eq!((answers.get(40), answers.get(41)), (Some(&longest[..]), None));
    // A few values that together exceed the largest answer.
    let few: Vec<_> = (100..108).map(key).collect();
    for key in &few {
        session.put(key, &longest[..5 << 19]).expect("served");
    }
    session.multi_get(&few, &mut answers).expect("served");
    assert!(answers.len() == 8 && answers.iter().all(|value| value == Some(&longest[..5 << 19])));
    for key in &few {
        assert!(session.remove(key).expect("served"));
    }
    for reverse in [false, true] {
        let range = session.iter();
        let range = if reverse { range.reverse() } else { range };
        let lengths: Vec<_> = range.map(|entry| entry.expect("served").1.len()).collect();
        assert_eq!((lengths.len(), lengths.iter().sum::<usize>()), (41, (4000 << 10) + (16 << 20)));
    }
}

#[test]
fn what_an_index_refuses_is_an_error_with_its_sentence() {
    let (_cluster, index) = embedded(&IndexOptions::integers());
    let server = serve(&index, 1);
    let client = connect(&[server.addr()]);
    let session = client.open_index("x").expect("it is served").session();
    let error = session.get(b"short").expect_err("keys have 8 bytes");
    assert!(error.is_bad_input() && !error.may_have_taken_effect(), "{error:?}");
    assert!(error.to_string().contains("a key of 5 bytes in an index whose keys have 8 bytes"), "{error}");
    let error = session.put(&key(1), b"short").expect_err("values have 8 bytes");
    assert!(error.to_string().contains("a value of 5 bytes"), "{error}");
    assert_eq!(session.get(&key(1)).expect("the connection stands"), None);
    // The other operations of a batch are executed.
    let mut batch = session.batch();
    let answers = batch.put(&key(1), &key(2)).put(b"bad", &key(2)).get(&key(1)).run();
    assert!(answers[0].is_ok() && answers[1].is_err() && answers[2].is_ok());
    let error = client.open_index("y").expect_err("there is none");
    let told = matches!(&error, Error::Remote(RemoteError::Answered { code, .. }) if *code == ErrorCode::UnknownIndex);
    assert!(told && error.to_string().contains("there is no index \"y\""), "{error:?}");
    assert_eq!(server.counts().errors(), 4);
    assert_eq!(
        client.open_index("x").expect("it is served").layout(),
        IndexLayout::Fixed { key_size: 8, value_size: 8 }
    );
}

#[test]
fn clients_go_on_while_boundaries_move() {
    const CLIENTS: u64 = 3;
    let (cluster, index) = embedded(&IndexOptions::integers());
    let server = serve(&index, 2);
    let remote = connect(&[server.addr()]).open_index("x").expect("it is served");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (remote, over) = (remote.clone(), &over);
                scope.spawn(move || {
                    let session = remote.session();
                    let (mut model, mut draw) = (Model::new(), Draw(client + 1));
                    // Each client has its own keys, spread over the key space.
                    let keys: Vec<_> = (0..100).map(|n| key(n * 600 + client)).collect();
                    let mut rounds = 0u64;
                    while !over.load(Relaxed) || rounds < 5 {
                        for _ in 0..20 {
                            let at = keys[draw.below(100) as usize].clone();
                            operate(&session, &mut model, &mut draw, &at, &rounds.to_le_bytes());
                        }
                        operate_at_once(&session, &mut model, &mut draw, &keys, &rounds.to_le_bytes());
                        let mine = |entry: &(Vec<u8>, Vec<u8>)| keys.binary_search(&entry.0).is_ok();
                        let entries = session.iter().map(|entry| entry.expect("served"));
                        assert!(entries.filter(mine).eq(model.clone()));
                        rounds += 1;
                    }
                    model
                })
            })
            .collect();
        let at_end = AtEnd(&over);
        for n in 0..60u64 {
            index.move_boundary(0, &key(1 + (n * 7919) % 60_000)).expect("among its own");
            if n % 20 == 7 {
                let added = index.add_compute_server(&key(60_001)).expect("there is room");
                index.remove_compute_server(added).expect("there are others");
            }
        }
        drop(at_end);
        let models = clients.into_iter().map(|client| client.join().expect("all that it saw was right"));
        let all: Model = models.flatten().collect();
        assert!(remote.session().iter().map(|entry| entry.expect("served")).eq(all));
    });
    assert_eq!(server.counts().errors(), 0);
    drop(server);
    assert!(cluster.check().expect("at rest").is_clean());
}
