//! Helpers of the integration tests.
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use pando::remote::{Answer, Client, ClientConfig, RemoteSession};
use pando::{Access, Answers, Index, ScanRange, Swapped};
use pando_server::{OperationConfig, OperationServer};

/// Long enough for a slow machine; ends a hanging test.
pub const DEADLINE: Duration = Duration::from_secs(300);

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a port")
}

pub fn serve(index: &Index, threads: usize) -> OperationServer {
    let config = OperationConfig { threads, ..OperationConfig::default() };
    OperationServer::start(listener(), index.clone(), config).expect("a server")
}

pub fn config(servers: &[SocketAddr]) -> ClientConfig {
    ClientConfig::new(servers.iter().map(SocketAddr::to_string)).access(Access::default().deadline(DEADLINE))
}

pub fn connect(servers: &[SocketAddr]) -> Client {
    Client::connect(config(servers)).expect("they are there")
}

/// Waits for an event on another thread.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Sets the flag when it is dropped, also by a panic, so that threads which work until then end.
pub struct AtEnd<'a>(pub &'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Small pseudo-random numbers from a seed.
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// Encodes a number as 8 bytes in the order of the numbers, spread over the key space.
pub fn key(n: u64) -> Vec<u8> {
    (n << 48).to_be_bytes().to_vec()
}

/// Executes one operation on `key`, on the session and on the model.
pub fn operate(session: &RemoteSession, model: &mut Model, draw: &mut Draw, key: &[u8], value: &[u8]) {
    let before = model.get(key).cloned();
    let was = before.is_some();
    match draw.below(7) {
        0 => assert_eq!(session.get(key).expect("served"), before),
        1 => {
            assert_eq!(session.put(key, value).expect("served"), was);
            model.insert(key.to_vec(), value.to_vec());
        }
        2 => {
            assert_eq!(session.insert(key, value).expect("served"), !was);
            model.entry(key.to_vec()).or_insert_with(|| value.to_vec());
        }
        3 => {
            assert_eq!(session.update(key, value).expect("served"), was);
            model.entry(key.to_vec()).and_modify(|found| *found = value.to_vec());
        }
        4 => {
            assert_eq!(session.remove(key).expect("served"), was);
            model.remove(key);
        }
        5 => {
            let expected = if draw.below(3) == 0 { None } else { before.clone() };
            let new = (draw.below(4) > 0).then_some(value);
            let swapped = session.compare_and_swap(key, expected.as_deref(), new).expect("served");
            assert_eq!(swapped, swap(model, key, expected.as_deref(), new));
        }
        _ => {
            let mut found = b"before".to_vec();
            assert_eq!(session.get_into(key, &mut found).expect("served"), was);
            assert_eq!(found[6..], before.unwrap_or_default());
            assert_eq!(session.contains(key).expect("served"), was);
        }
    }
}

fn swap(model: &mut Model, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Swapped {
    let before = model.get(key).cloned();
    if before.as_deref() != expected {
        return Swapped::Found(before);
    }
    match new {
        Some(new) => drop(model.insert(key.to_vec(), new.to_vec())),
        None => drop(model.remove(key)),
    }
    Swapped::Done
}

/// Executes many operations at once, some of them on the same keys, on the session and on the model.
pub fn operate_at_once(
    session: &RemoteSession,
    model: &mut Model,
    draw: &mut Draw,
    keys: &[Vec<u8>],
    value: &[u8],
) {
    let mut batch = session.batch();
    let mut expected = Vec::new();
    for _ in 0..40 {
        let key = &keys[draw.below(keys.len() as u64) as usize];
        let before = model.get(key).cloned();
        let was = before.is_some();
        match draw.below(6) {
            0 | 1 => {
                batch.get(key);
                expected.push(Answer::Value(before));
            }
            2 => {
                batch.put(key, value);
                model.insert(key.clone(), value.to_vec());
                expected.push(Answer::Was(was));
            }
            3 => {
                batch.remove(key);
                model.remove(key);
                expected.push(Answer::Was(was));
            }
            4 => {
                batch.insert(key, value);
                model.entry(key.clone()).or_insert_with(|| value.to_vec());
                expected.push(Answer::Was(!was));
            }
            _ => {
                batch.compare_and_swap(key, before.as_deref(), None);
                expected.push(Answer::Swapped(swap(model, key, before.as_deref(), None)));
            }
        }
    }
    let answers: Vec<Answer> = batch.run().into_iter().map(|answer| answer.expect("served")).collect();
    assert_eq!(answers, expected);
    assert!(batch.is_empty());
}

/// Checks that scans and lookups of many keys agree with the model.
pub fn look_around(session: &RemoteSession, model: &Model, draw: &mut Draw, keys: &[Vec<u8>]) {
    let mut bound = || {
        let key = keys[draw.below(keys.len() as u64) as usize].clone();
        match draw.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(key),
            _ => Bound::Excluded(key),
        }
    };
    let (low, high) = (bound(), bound());
    let (low, high) = (low.as_ref().map(Vec::as_slice), high.as_ref().map(Vec::as_slice));
    let limit = [usize::MAX, 0, 1, 7][draw.below(4) as usize];
    let range = ScanRange { low, high, limit, reverse: draw.below(2) == 1 };
    let mut expected: Vec<_> =
        model.iter().filter(|(key, _)| range.above_low(key) && range.below_high(key)).collect();
    if range.reverse {
        expected.reverse();
    }
    expected.truncate(limit);
    let mut found = Vec::new();
    let count = session.scan(&range, |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        true
    });
    assert_eq!(count.expect("served"), found.len(), "{range:?}");
    assert!(found.iter().map(|(key, value)| (key, value)).eq(expected), "{range:?}");
    let some: Vec<&Vec<u8>> = (0..50).map(|_| &keys[draw.below(keys.len() as u64) as usize]).collect();
    let mut answers = Answers::default();
    session.multi_get(&some, &mut answers).expect("served");
    assert!(answers.iter().eq(some.iter().map(|key| model.get(*key).map(Vec::as_slice))));
}
