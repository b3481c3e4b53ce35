//! The suite of all fabrics, without the checks that race threads of the host: a simulated cluster has none.

use std::pin::Pin;

use pando_fabric::MemoryServerId;
use pando_fabric::conformance::{self, Echo, Options};
use pando_sim::{Faults, Model, SimConfig, SimEndpoint, SimFabric};

fn block_on(endpoint: &SimEndpoint, future: Pin<&mut dyn Future<Output = ()>>) {
    pando_rt::block_on(endpoint, future);
}

fn cluster(torn_share: f64) -> SimFabric {
    let faults = Faults { torn_share, ..Faults::default() };
    let model = Model { faults, ..Model::default() };
    let config = SimConfig { regions: vec![2 << 20, 1 << 20, 1 << 20], compute_servers: 2, seed: 3, model };
    SimFabric::new(&config).expect("a sound model")
}

#[test]
fn all_servers_up() {
    for torn_share in [0.0, 1.0] {
        let cluster = cluster(torn_share);
        conformance::run_all(&cluster, &block_on, Options { threads: 0, ..Options::default() });
        cluster.set_handler(Echo::handler());
        conformance::run_all(&cluster, &block_on, Options { threads: 0, echo: true, ..Options::default() });
    }
}

#[test]
fn one_server_down() {
    let cluster = cluster(0.01);
    cluster.set_down(MemoryServerId(1), true);
    let options = Options { threads: 0, down: Some(MemoryServerId(1)), ..Options::default() };
    conformance::servers_that_are_down(&conformance::Suite::new(&cluster, &block_on, options));
}
