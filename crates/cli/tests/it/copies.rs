//! Memory servers with copies of each other's memory, as processes: one after the other is killed or stopped, and comes
//! back; compute servers and clients go on, and everything that was answered is there.
//!
//! `COPIES_TIMES` sets how often a memory server is lost, 6 by default.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::Place;
use crate::common::running::Daemon;
use crate::heirs::{Cluster, await_answers, beside_clients};

/// Number of memory servers.
const SERVERS: usize = 3;
const LEASE: &str = "800ms";
const WAIT: Duration = Duration::from_secs(60);

fn memory_server(place: &Arc<Place>, listen: &str) -> Daemon {
    let arguments = format!("memory-server --size 64MiB --listen {listen} --grace 2s --lease {LEASE}");
    Daemon::start(place, &arguments)
}

fn addresses(servers: &[Daemon]) -> String {
    servers.iter().map(|server| server.address.as_str()).collect::<Vec<_>>().join(",")
}

/// Waits until all copies are there.
fn wait_for_copies(place: &Place, pool: &str) {
    let begun = Instant::now();
    loop {
        let told = place.run(&format!("pool copies --pool {pool} --json -"));
        let document: serde_json::Value = serde_json::from_str(&told.stdout).unwrap_or_default();
        let servers = document["servers"].as_array().map_or(0, |servers| {
            servers
                .iter()
                .filter(|server| server["in_view"] == true && server["fills"] == serde_json::json!([]))
                .count()
        });
        if servers == SERVERS && document["lacking"] == serde_json::json!([]) {
            return;
        }
        assert!(begun.elapsed() < WAIT, "{told:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn memory_servers_are_lost_one_after_the_other_and_clients_go_on() {
    let times = std::env::var("COPIES_TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let place = Arc::new(Place::new());
    let mut servers: Vec<Daemon> = (0..SERVERS).map(|_| memory_server(&place, "127.0.0.1:0")).collect();
    let pool = format!("tcp://{}", addresses(&servers));
    place.ok(&format!("create --pool {pool} --replicas 2 --index n --boundaries @ --node-size 512"));
    let cluster = Cluster::of(Arc::clone(&place), addresses(&servers));
    let server = cluster.compute_server().join().expect("it starts");
    let mut took = Vec::new();
    beside_clients(&cluster, |answered| {
        for round in 0..times {
            await_answers(answered);
            wait_for_copies(&place, &pool);
            let number = round % SERVERS;
            if round % 2 == 0 {
                servers[number].process.signal("-KILL");
                took.push(await_answers(answered));
                let killed = servers.remove(number);
                let listen = killed.address.clone();
                // It is gone before the new one listens.
                drop(killed);
                servers.insert(number, memory_server(&place, &listen));
            } else {
                let lost = &servers[number];
                // It goes on later, and must not serve what it missed.
                lost.process.signal("-STOP");
                took.push(await_answers(answered));
                lost.process.signal("-CONT");
            }
        }
        await_answers(answered);
        wait_for_copies(&place, &pool);
    });
    took.sort();
    println!(
        "{times} times a memory server was lost; served again after {:?}, at most {:?}",
        took[times / 2],
        took[times - 1]
    );
    server.process.signal("-TERM");
    let ended = server.process.end();
    assert_eq!(ended.status, 0, "{ended:?}");
    place.ok(&format!("check --pool {pool}"));
}
