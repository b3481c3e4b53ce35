//! A client of a cluster. It has no cache and is not attached to the pool; it asks the compute server that
//! owns a key.
//!
//! `cargo run -p pando --example remote_client` starts a memory server and a compute server in this process
//! and asks those. With an index and the addresses that `pando up` prints, it asks that cluster:
//!
//! `... remote_client INDEX HOST:PORT,HOST:PORT`

use std::net::TcpListener;

use pando::remote::{Client, ClientConfig};
use pando::{Access, Cluster, Config, Create, IndexOptions, MemoryServer, MemoryServerConfig};
use pando_server::{OperationConfig, OperationServer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [index, addresses] = &arguments[..] {
        return Ok(work(index, addresses.split(','), Access::default())?);
    }
    // As `pando memory-server` does.
    let secret = "known to us alone";
    let memory = MemoryServerConfig::new("127.0.0.1:0").size(64 << 20).secret(secret);
    let memory = MemoryServer::start(&memory)?;
    // As `pando compute-server` does: it owns all keys and caches them.
    let access = Access::default().secret(secret);
    let config = Config::tcp([memory.addr().to_string()]).access(access.clone()).create(Create::New);
    let cluster = Cluster::open(config)?;
    let index = cluster.create_index("trees", &IndexOptions::bytes())?;
    let options = OperationConfig { secret: secret.into(), ..OperationConfig::default() };
    let compute = OperationServer::start(TcpListener::bind("127.0.0.1:0")?, index, options)?;

    work("trees", [compute.addr().to_string().as_str()], access)?;
    // Stop the operation port first, then close the pool, then stop its memory server.
    drop(compute);
    cluster.close()?;
    Ok(memory.stop()?)
}

fn work<'a>(index: &str, addresses: impl IntoIterator<Item = &'a str>, access: Access) -> pando::Result<()> {
    let client = Client::connect(ClientConfig::new(addresses).access(access))?;
    let trees = client.open_index(index)?;
    // A remote session has the operations of a local one. Each thread opens its own.
    let session = trees.session();
    let mut batch = session.batch();
    for tree in ["alder", "ash", "aspen", "beech"] {
        batch.put(tree.as_bytes(), b"a tree");
    }
    batch.run().into_iter().try_for_each(|answer| answer.map(drop))?;
    for entry in session.prefix("as") {
        let (tree, what) = entry?;
        println!("{} is {}", String::from_utf8_lossy(&tree), String::from_utf8_lossy(&what));
    }
    println!("oak: {:?}", session.get(b"oak")?);
    Ok(())
}
