//! The answer of an endpoint that cannot sleep.

use pando_fabric::{Endpoint, Fabric};
use pando_fabric_local::{LocalConfig, LocalFabric};

#[test]
fn an_endpoint_that_cannot_sleep_does_not_say_that_it_slept() {
    let config = LocalConfig { server_sizes: vec![1 << 20], huge_pages: false };
    let endpoint = LocalFabric::new(config).expect("memory").endpoint(1).expect("an endpoint");
    // Otherwise an executor would never offer its core to others.
    assert!(!endpoint.idle());
}
