//! Few keys that everybody works on, on a simulated cluster; the history is checked for linearizability (`common/history.rs`).

mod common;

use common::Setup;
use common::history::History;
use pando_fabric::Endpoint;
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_sim::{Faults, Model, SimConfig, SimFabric};
use pando_smart::{NodeRoom, Smart, SmartConfig, Techniques};

const SERVERS: usize = 2;

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
    let history = History::new(keys);
    fabric.run(&threads.iter().collect::<Vec<_>>(), 4, |thread, slot| {
        let (ep, smart, history) = (&threads[thread], &indexes[thread % SERVERS], &history);
        async move {
            for n in 0..30 {
                let number = (thread as u64 * 4 + u64::from(slot)) * 1000 + n * 11 + 1;
                history.operate(smart, ep, number, |_| false).await;
                ep.pace().await;
            }
        }
    });
    history.violation()
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
