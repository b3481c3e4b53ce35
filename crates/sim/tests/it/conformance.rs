//! The conformance suite, for simulated threads and for direct endpoints. Simulated threads skip the checks
//! that race host threads, since they run on one.

use std::pin::Pin;

use pando_fabric::conformance::{self, Echo, Options};
use pando_fabric::{Fabric, MemoryServerId, RegionInfo, Result};
use pando_sim::{Faults, Model, SimConfig, SimEndpoint, SimFabric};

fn block_on(endpoint: &SimEndpoint, future: Pin<&mut dyn Future<Output = ()>>) {
    pando_rt::block_on(endpoint, future);
}

/// The cluster as a fabric of simulated threads.
struct Threads(SimFabric);

impl Fabric for Threads {
    type Endpoint = SimEndpoint;

    fn endpoint(&self, seed: u64) -> Result<SimEndpoint> {
        Ok(self.0.thread(0, seed))
    }

    fn regions(&self) -> &[RegionInfo] {
        self.0.regions()
    }
}

fn cluster(torn_share: f64) -> SimFabric {
    let faults = Faults { torn_share, ..Faults::default() };
    let model = Model { faults, ..Model::default() };
    let config = SimConfig { regions: vec![2 << 20, 1 << 20, 1 << 20], compute_servers: 2, seed: 3, model };
    SimFabric::new(&config).expect("a sound model")
}

#[test]
fn threads_while_all_servers_are_up() {
    for torn_share in [0.0, 1.0] {
        let cluster = Threads(cluster(torn_share));
        conformance::run_all(&cluster, &block_on, Options { threads: 0, ..Options::default() });
        cluster.0.set_handler(Echo::handler());
        conformance::run_all(&cluster, &block_on, Options { threads: 0, echo: true, ..Options::default() });
    }
}

#[test]
fn direct_endpoints_while_all_servers_are_up() {
    let cluster = cluster(1.0);
    conformance::run_all(&cluster, &block_on, Options { rounds: 2_000, ..Options::default() });
    cluster.set_handler(Echo::handler());
    conformance::run_all(&cluster, &block_on, Options { rounds: 2_000, echo: true, ..Options::default() });
    assert_eq!(cluster.now(), 0, "no time passes");
}

#[test]
fn one_server_down() {
    let cluster = cluster(0.01);
    cluster.set_down(MemoryServerId(1), true);
    let options = Options { threads: 0, down: Some(MemoryServerId(1)), ..Options::default() };
    conformance::servers_that_are_down(&conformance::Suite::new(&cluster, &block_on, options.clone()));
    conformance::servers_that_are_down(&conformance::Suite::new(&Threads(cluster), &block_on, options));
}
