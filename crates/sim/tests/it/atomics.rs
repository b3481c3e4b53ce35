//! Costs of atomics: on host memory, in on-chip memory, and for the requests behind them.

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, Nanos};
use pando_rt::block_on;
use pando_sim::{Faults, Model, ModelError, SimConfig, SimFabric};

const SERVER: MemoryServerId = MemoryServerId(0);
/// Default memory of a NIC in bytes.
const CHIP: u64 = 256 << 10;
const THREADS: u64 = 100;

fn cluster(atomics_block: bool) -> SimFabric {
    let mut model = Model { faults: Faults { torn_share: 0.0, ..Faults::default() }, ..Model::default() };
    model.network.atomics_block = atomics_block;
    let config = SimConfig { regions: vec![1 << 20; 2], compute_servers: 8, seed: 1, model };
    SimFabric::new(&config).expect("a sound model")
}

fn word(offset: u64) -> GlobalAddr {
    GlobalAddr::new(SERVER, offset)
}

/// Action of a thread.
#[derive(Clone, Copy)]
enum Act {
    Add(u64),
    /// A swap that fails.
    Fail(u64),
    Read(u64),
}

/// Time that threads need for one action each, all at once.
fn elapsed(cluster: &SimFabric, acts: impl Iterator<Item = Act>) -> Nanos {
    let acts: Vec<_> = acts.collect();
    let threads: Vec<_> = (0..acts.len()).map(|n| cluster.thread(1 + n % 7, n as u64)).collect();
    let begin = cluster.now();
    let outcomes = cluster.run(&threads.iter().collect::<Vec<_>>(), 1, |thread, _| {
        let (ep, act) = (&threads[thread], acts[thread]);
        async move {
            match act {
                Act::Add(at) => ep.fetch_add(word(at), 1).await,
                Act::Fail(at) => ep.compare_swap(word(at), u64::MAX, 1).await,
                Act::Read(at) => ep.read_word(word(at)).await,
            }
        }
    });
    assert!(outcomes.into_iter().flatten().all(|outcome| outcome.is_ok()));
    cluster.now() - begin
}

#[test]
fn a_unit_is_kept_for_two_transactions_and_by_a_swap_that_fails_for_one() {
    let cluster = cluster(true);
    let network = Model::default().network;
    let idle = elapsed(&cluster, [Act::Add(64)].into_iter());
    let all = |act: fn(u64) -> Act| elapsed(&cluster, (0..THREADS).map(|_| act(64))) - idle;
    let (adds, failures) = (all(Act::Add), all(Act::Fail));
    let ns = (THREADS - 1) * network.atomic_unit_ns;
    assert!((ns..ns + 500).contains(&adds), "{adds} for {THREADS} additions");
    assert!((ns / 2..ns / 2 + 500).contains(&failures), "{failures} for as many swaps that fail");
    // The same 12 low bits select the same unit, other bits another one.
    let near = elapsed(&cluster, (0..THREADS).map(|n| Act::Add(n * 4096)));
    let apart = elapsed(&cluster, (0..THREADS).map(|n| Act::Add(n * 8)));
    assert!(near >= idle + ns && apart < idle + 5_000, "{near} and {apart}");
}

#[test]
fn atomics_on_the_chip_need_no_pcie_transaction() {
    let cluster = cluster(true);
    let network = Model::default().network;
    let host = elapsed(&cluster, [Act::Add(64)].into_iter());
    cluster.set_on_chip(word(0), CHIP).expect("there is room");
    let chip = elapsed(&cluster, [Act::Add(64)].into_iter());
    assert_eq!(host - chip, network.atomic_unit_ns);
    let all = elapsed(&cluster, (0..THREADS).map(|n| Act::Add(8 * n)));
    // The messages of the NIC take longer than the atomics: 35 per microsecond.
    assert!(all < chip + THREADS * 1_000 / network.messages_per_us + 500, "{all}");
    // On one word they wait for each other.
    let one = elapsed(&cluster, (0..THREADS).map(|_| Act::Add(64)));
    let ns = (THREADS - 1) * network.on_chip_conflict_ns;
    assert!((ns..ns + 500).contains(&(one - chip)), "{one}");
    let direct = cluster.direct(1);
    assert_eq!(block_on(&direct, direct.read_word(word(64))).expect("up"), THREADS + 3);
}

#[test]
fn who_comes_behind_an_atomic_that_waits_waits_too() {
    // The READ is posted last.
    let last = |block| {
        let acts = (0..THREADS).map(|_| Act::Add(64)).chain([Act::Read(8)]);
        let cluster = cluster(block);
        let reader = cluster.thread(0, 1);
        let threads: Vec<_> = (0..THREADS).map(|n| cluster.thread(1 + n as usize % 7, n)).collect();
        let mut all: Vec<_> = threads.iter().collect();
        all.push(&reader);
        let acts: Vec<_> = acts.collect();
        let ends = cluster.run(&all, 1, |thread, _| {
            let (ep, act) = (all[thread], acts[thread]);
            async move {
                match act {
                    Act::Read(at) => {
                        ep.sleep_until(500).await;
                        ep.read_word(word(at)).await.expect("up");
                    }
                    Act::Add(at) | Act::Fail(at) => drop(ep.fetch_add(word(at), 1).await.expect("up")),
                }
                ep.now()
            }
        });
        ends[THREADS as usize][0]
    };
    let (behind, beside) = (last(true), last(false));
    assert!(behind > 20_000 && beside < 5_000, "{behind} and {beside}");
}

#[test]
fn a_chip_has_so_much_memory() {
    let cluster = cluster(true);
    cluster.set_on_chip(word(4096), CHIP / 2).expect("there is room");
    cluster.set_on_chip(word(4096), CHIP / 2).expect("it is there already");
    cluster.set_on_chip(GlobalAddr::new(MemoryServerId(1), 0), CHIP).expect("another NIC");
    let error = cluster.set_on_chip(word(4096 + CHIP / 2), CHIP).expect_err("no room");
    assert!(matches!(error, ModelError::NoOnChipMemory { server: SERVER, room: CHIP, .. }), "{error}");
    for at in [word((1 << 20) - 8), word(1 << 30), GlobalAddr::new(MemoryServerId(2), 0)] {
        assert!(matches!(cluster.set_on_chip(at, 16), Err(ModelError::OutOfRegion { .. })), "{at}");
    }
}
