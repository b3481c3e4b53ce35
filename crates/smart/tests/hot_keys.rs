//! Few keys that everybody works on, on a simulated cluster: what lookups see of puts and removals by others is checked for linearizability.
//!
//! Every value is put once. A lookup must not see a value before its put began, nor one that another put or removal
//! replaced which began after that put had ended and ended before the lookup began.

mod common;

use std::cell::RefCell;

use common::{Setup, number_of, value};
use pando_fabric::{Endpoint, Nanos};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_sim::{Faults, Model, SimConfig, SimFabric};
use pando_smart::{NodeRoom, Smart, SmartConfig, Techniques};

const SERVERS: usize = 2;

/// An operation that happened between two moments. `None` is no entry.
struct Event {
    key: u64,
    began: Nanos,
    ended: Nanos,
    is_change: bool,
    value: Option<u64>,
}

/// A sentence for the first lookup that cannot be explained.
fn violation(events: &[Event]) -> Option<String> {
    let changes = |key: u64| events.iter().filter(move |event| event.is_change && event.key == key);
    for seen in events.iter().filter(|event| !event.is_change) {
        let began_early = |change: &&Event| change.began < seen.ended && change.value == seen.value;
        let mut sources = changes(seen.key).filter(began_early);
        let replaced = |source: &Event| {
            changes(seen.key).any(|other| other.began > source.ended && other.ended < seen.began)
        };
        if sources.all(replaced) {
            return Some(format!("key {} had {:?} at {}..{}", seen.key, seen.value, seen.began, seen.ended));
        }
    }
    None
}

/// Runs one history; its violation.
fn run(seed: u64, setup: Setup, keys: u64, change: impl Fn(&mut SmartConfig)) -> Option<String> {
    let faults = Faults { torn_share: 0.2, spike_share: 0.1, ..Faults::default() };
    let model = Model { faults, ..Model::default() };
    let config = SimConfig { regions: vec![4 << 20; 2], compute_servers: SERVERS, seed, model };
    let fabric = SimFabric::new(&config).expect("a sound model");
    let ep = fabric.direct(seed);
    let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
    let mut config = block_on(&ep, setup.create(&ep, &pool));
    config.patience_ns = 100_000_000;
    change(&mut config);
    let indexes: Vec<_> = (0..SERVERS)
        .map(|_| block_on(&ep, Smart::open(&ep, pool.clone(), config.clone())).expect("opened"))
        .collect();
    let threads: Vec<_> =
        (0..4).map(|thread| fabric.thread(thread % SERVERS, seed * 10 + thread as u64)).collect();
    let nothing = |key| Event { key, began: 0, ended: 0, is_change: true, value: None };
    let events = RefCell::new((0..keys).map(nothing).collect::<Vec<_>>());
    fabric.run(&threads.iter().collect::<Vec<_>>(), 4, |thread, slot| {
        let (ep, smart, events) = (&threads[thread], &indexes[thread % SERVERS], &events);
        async move {
            for n in 0..30 {
                let key = ep.random() % keys;
                // Two keys part late: where one is there is a leaf, where both are there is a node.
                let name = ((key / 2) << 56 | (key % 2) << 16).to_be_bytes();
                let number = (thread as u64 * 4 + u64::from(slot)) * 1000 + n * 11 + 1;
                let began = ep.now();
                let (is_change, value) = match ep.random() >> 40 & 7 {
                    0 => {
                        let existed = smart.remove(ep, &name).await.expect("no error");
                        // One that found nothing is a lookup.
                        (existed, None)
                    }
                    1 | 2 => {
                        smart.put(ep, &name, &value(key, number)).await.expect("no error");
                        (true, Some(number))
                    }
                    3 => match smart.update(ep, &name, &value(key, number)).await.expect("no error") {
                        true => (true, Some(number)),
                        false => (false, None),
                    },
                    _ => {
                        let mut out = Vec::new();
                        let found = smart.get(ep, &name, &mut out).await.expect("no error");
                        (false, found.then(|| number_of(key, &out)))
                    }
                };
                events.borrow_mut().push(Event { key, began, ended: ep.now(), is_change, value });
                ep.pace().await;
            }
        }
    });
    violation(&events.into_inner())
}

#[test]
fn lookups_see_what_was_put() {
    for seed in 0..40 {
        for (name, techniques) in Techniques::STEPS {
            eprintln!("seed {seed}, {name}");
            let room = if seed % 2 == 0 { NodeRoom::Full } else { NodeRoom::Exact };
            let setup = Setup { node_room: room, ..Setup::new(techniques) };
            assert_eq!(run(seed, setup, 1 + seed % 4 * 3, |_| {}), None, "seed {seed}, {name}");
        }
    }
}

#[test]
fn unsound_shortcuts_are_caught() {
    let late = (0..200).find_map(|seed| {
        run(seed, Setup::new(Techniques::SMART), 1, |config| config.late_followers_unsound = true)
    });
    assert!(late.is_some(), "followers that come late");
    let absent = (0..200).find_map(|seed| {
        run(seed, Setup::new(Techniques::SMART), 40, |config| config.cached_absence_unsound = true)
    });
    assert!(absent.is_some(), "absence by what was cached");
}
