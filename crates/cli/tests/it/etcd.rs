//! Memory servers whose register is in etcd, as processes: two of them suffice, and either one may be lost; so may etcd
//! for a while. What does not fit is refused in one sentence.
//!
//! `COPIES_TIMES` sets how often a server is lost, 6 by default.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::Place;
use crate::common::running::{Daemon, send};
use crate::common::up::Up;
use crate::copies::{MemoryServers, report, times};
use crate::heirs::{await_answers, beside_clients};
use crate::up::children;

#[path = "../../../fabric-net/tests/it/real_etcd.rs"]
mod real_etcd;

use real_etcd::RealEtcd;

const WAIT: Duration = Duration::from_secs(60);

fn register(etcd: &RealEtcd, prefix: &str) -> String {
    format!("etcd://{}/{prefix}", etcd.endpoint())
}

#[test]
fn either_of_two_memory_servers_is_lost_and_clients_go_on() {
    let Some(mut etcd) = RealEtcd::start() else { return };
    let register = register(&etcd, "pools/n");
    let mut memory = MemoryServers::with(2, &format!("--register {register}"));
    let told = memory.place.ok(&format!("pool copies --pool {}", memory.pool));
    assert!(told.starts_with(&format!("view 1, in {register}, 2 copies\n")), "{told}");
    let cluster = memory.cluster();
    let server = cluster.compute_server().join().expect("it starts");
    let mut took = Vec::new();
    let errors = beside_clients(&cluster, |answered| {
        for round in 0..times() {
            await_answers(answered);
            memory.wait_for_copies();
            match round % 3 {
                0 => took.push(memory.restart(round / 3 % 2, "-KILL", || await_answers(answered))),
                1 => took.push(memory.stop_while(round / 3 % 2, || await_answers(answered))),
                _ => {
                    // Nothing is served without etcd, and nothing is lost.
                    etcd.kill();
                    thread::sleep(Duration::from_secs(2));
                    etcd.restart();
                    await_answers(answered);
                }
            }
        }
        await_answers(answered);
        memory.wait_for_copies();
    });
    report("one of two memory servers", took, &errors);
    memory.stop(server);
}

#[test]
fn a_cluster_of_one_command_replaces_a_memory_server() {
    let Some(etcd) = RealEtcd::start() else { return };
    let place = Place::new();
    let register = register(&etcd, "up");
    let options = "--memory 64MiB --cache 1MiB --replicas 2 --durability process";
    let up = Up::start(&place, &format!("{options} --register {register}"));
    let pool = up.pool();
    assert_eq!(pool.split(',').count(), 2, "{pool}");
    place.ok(&format!("put --pool {pool} --index main fig green"));
    // Memory servers were started first.
    send("-KILL", children(up.child.id())[0]);
    let begun = Instant::now();
    loop {
        let told = place.run(&format!("pool copies --pool {pool} --json -"));
        let document: serde_json::Value = serde_json::from_str(&told.stdout).unwrap_or_default();
        let is_back = document["view"].as_u64().is_some_and(|view| view > 3);
        if is_back && document["lacking"] == serde_json::json!([]) && document["register"] == *register {
            break;
        }
        assert!(begun.elapsed() < WAIT, "{told:?}");
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(place.ok(&format!("get --pool {pool} --index main fig")), "fig\tgreen\n");
    up.signal("-TERM");
    let (status, stderr) = up.end();
    assert_eq!(status, 0, "{stderr}");
    // The memory is gone, and its view is still there.
    let again = place.run(&format!("up --port 0 {options} --register {register}"));
    assert_eq!(again.status, 1, "{again:?}");
    assert!(
        again.stderr.contains(&format!("the register {register} has the view of another pool")),
        "{again:?}"
    );
}

#[test]
fn a_register_that_does_not_fit_is_refused() {
    let place = Place::new();
    let nowhere = "etcd://127.0.0.1:1/trees";
    let told =
        place.refused(&format!("memory-server --size 16MiB --listen 127.0.0.1:0 --register {nowhere}"), 1);
    assert!(
        told.starts_with(&format!("pando: register: the register {nowhere} does not answer: ")),
        "{told}"
    );
    let Some(etcd) = RealEtcd::start() else { return };
    let memory_server =
        |options: &str| Daemon::start(&place, &format!("memory-server --size 64MiB --listen HERE {options}"));
    let (ours, other) = (register(&etcd, "ours"), register(&etcd, "other"));
    let pair =
        [ours.as_str(), other.as_str()].map(|register| memory_server(&format!("--register {register}")));
    let addresses = pair.each_ref().map(|server| server.address.clone());
    let create = |addresses: &[String; 2]| {
        format!("create --pool tcp://{} --replicas 2 --index n --node-size 512", addresses.join(","))
    };
    let told = place.refused(&create(&addresses), 2);
    assert!(told.contains("were started with different registers"), "{told}");
    assert!(told.contains(&ours) && told.contains(&other), "{told}");
    // The view of a pool is not replaced by that of another one.
    let first = [0, 1].map(|_| memory_server(&format!("--register {ours}")));
    place.ok(&create(&first.each_ref().map(|server| server.address.clone())));
    let second = [0, 1].map(|_| memory_server(&format!("--register {ours}")));
    let told = place.refused(&create(&second.each_ref().map(|server| server.address.clone())), 1);
    assert!(told.contains(&format!("the register {ours} has the view of another pool")), "{told}");
    assert!(told.contains(&first[0].address), "{told}");
}
