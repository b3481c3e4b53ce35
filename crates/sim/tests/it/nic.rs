//! Rates of a NIC: small messages, small READs, READs of a node, both directions, and all of them at once.

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, Nanos, Result};
use pando_sim::{Faults, Model, SimConfig, SimEndpoint, SimFabric};

const LENGTH: Nanos = 200_000;
/// Threads of a compute server: more than enough for a NIC.
const THREADS: usize = 60;

/// What a thread does all the time, with one memory server.
#[derive(Clone, Copy, PartialEq)]
enum Act {
    Read(usize),
    Write(usize),
}

async fn act(ep: &SimEndpoint, act: Act, at: GlobalAddr) -> Result<()> {
    match act {
        Act::Read(len) => {
            let buf = ep.read(at, ep.buffer(len)).await?;
            ep.recycle(buf);
        }
        Act::Write(len) => {
            let buf = ep.write(at, ep.buffer(len)).await?;
            ep.recycle(buf);
        }
    }
    Ok(())
}

/// Million operations a second of each kind of thread: a compute server, a memory server and an act.
fn rates<const N: usize>(model: &Model, kinds: [(usize, u16, Act); N]) -> [f64; N] {
    let config = SimConfig { regions: vec![1 << 20; 2], compute_servers: 4, seed: 1, model: model.clone() };
    let cluster = SimFabric::new(&config).expect("a sound model");
    let threads: Vec<_> = (0..N * THREADS).map(|n| cluster.thread(kinds[n % N].0, n as u64)).collect();
    let counts = cluster.run(&threads.iter().collect::<Vec<_>>(), 4, |thread, _| {
        let (ep, (_, server, doing)) = (&threads[thread], kinds[thread % N]);
        async move {
            let mut count = 0u64;
            while ep.now() < LENGTH {
                let at = GlobalAddr::new(MemoryServerId(server), (ep.random() % 1_000) * 1_024);
                act(ep, doing, at).await.expect("it is up");
                count += u64::from(ep.now() < LENGTH);
            }
            count
        }
    });
    std::array::from_fn(|kind| {
        let of_kind = counts.iter().skip(kind).step_by(N).flatten();
        of_kind.sum::<u64>() as f64 * 1e3 / LENGTH as f64
    })
}

fn model() -> Model {
    Model { faults: Faults { torn_share: 0.0, ..Faults::default() }, ..Model::default() }
}

/// Rate of one act by three machines on the memory of a fourth.
fn rate_of(doing: Act) -> f64 {
    rates(&model(), [1, 2, 3].map(|server| (server, 0, doing))).iter().sum()
}

#[test]
fn a_nic_has_the_published_rates() {
    let [node, word, message] = [Act::Read(1024), Act::Read(8), Act::Write(8)].map(rate_of);
    assert!((10.0..10.75).contains(&node), "{node} million READs of 1 KiB, 10.4 to 11 GB/s");
    assert!((19.0..=20.5).contains(&word), "{word} million small READs");
    assert!((33.5..=35.5).contains(&message), "{message} million small WRITEs");
}

#[test]
fn both_directions_work_at_once() {
    let [there, back] = rates(&model(), [(0, 1, Act::Read(1024)), (1, 0, Act::Read(1024))]);
    // The requests of one direction share the wire with the answers of the other one.
    assert!(there.min(back) >= 9.5 && there.max(back) < 10.75, "{there} and {back} million READs of 1 KiB");
    let [there, back] = rates(&model(), [(0, 1, Act::Read(1024)), (0, 1, Act::Write(1024))]);
    assert!(there.min(back) >= 9.5 && there.max(back) < 10.75, "{there} READs and {back} WRITEs");
}

#[test]
fn a_mixture_has_no_more_of_anything_than_the_card() {
    let kinds = [(1, 0, Act::Read(8)), (2, 0, Act::Write(8)), (3, 0, Act::Read(1024))];
    let [words, messages, nodes] = rates(&model(), kinds);
    let all = words + messages + nodes;
    assert!((27.0..=35.5).contains(&all), "{words} + {messages} + {nodes} million messages");
    assert!(words + nodes <= 20.5, "{words} + {nodes} million fetches");
    assert!(nodes * 1.024 + words * 0.008 <= 11.0, "{nodes} million READs of 1 KiB");
    // If messages and bytes shared one queue, an answer and an acknowledgement would take 126 ns, 7.9 million of each.
    let [nodes, messages] = rates(&model(), [(1, 0, Act::Read(1024)), (2, 0, Act::Write(8))]);
    assert!(nodes > 9.5 && messages > 9.5, "{nodes} READs of 1 KiB and {messages} small WRITEs");
}

#[test]
fn a_nic_with_too_many_connections_slows_down() {
    let mut model = model();
    model.network.connections_cached = 60;
    model.network.connection_miss_ns = 100;
    let few = rate_of(Act::Write(8));
    let many: f64 = rates(&model, [1, 2, 3].map(|server| (server, 0, Act::Write(8)))).iter().sum();
    assert!(many < 0.5 * few, "{many} million small WRITEs with 180 connections, {few} with a large cache");
}
