//! Costs of verbs over TCP on one host: latencies of single verbs, rates with many in flight, and costs of
//! idling.
//!
//! `cargo run --release -p pando-fabric-net --example loopback [SECONDS]` starts a memory server with one
//! thread as a separate process, and one worker here. It prints the medians of several interleaved rounds.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pando_fabric::{Endpoint, Fabric, FabricError, GlobalAddr, MemoryServerId};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_fabric_net::{ServerConfig, TcpConfig, TcpEndpoint, TcpFabric, TcpServer};
use pando_rt::Worker;

const ROUNDS: usize = 5;
const REGION: u64 = 64 << 20;
const PAGE: usize = 1024;
/// Time for which the server's thread and the worker are idle while their processor time is measured.
const IDLE: Duration = Duration::from_secs(5);

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn serve() -> Outcome {
    let local = LocalFabric::new(LocalConfig { server_sizes: vec![REGION], huge_pages: true })?;
    let region = local.served_region(MemoryServerId(0))?;
    let server = TcpServer::start(TcpListener::bind("127.0.0.1:0")?, region, None, ServerConfig::default())?;
    println!("{}", server.addr());
    // Until the parent ends.
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// The server process, which ends with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Clone, Copy)]
enum Verb {
    Read,
    Write,
    Swap,
}

/// Performs verbs with `slots` in flight for a while; returns their rate per second, and the sorted latencies
/// in ns.
fn run(ep: &TcpEndpoint, verb: Verb, slots: usize, time: Duration) -> Result<(f64, Vec<u64>), FabricError> {
    let started = Instant::now();
    let results = Worker::new(ep, slots).run(|slot| async move {
        let mut latencies = Vec::new();
        let mut buf = Some(ep.buffer(PAGE));
        let mut at = u64::from(slot) * 7919;
        let mut word = 0;
        while started.elapsed() < time {
            at = (at + 104_729) % (REGION / PAGE as u64 / 2);
            let begun = Instant::now();
            let place = GlobalAddr::new(MemoryServerId(0), at * PAGE as u64);
            match verb {
                Verb::Read => buf = Some(ep.read(place, buf.take().expect("it came back")).await?),
                Verb::Write => buf = Some(ep.write(place, buf.take().expect("it came back")).await?),
                Verb::Swap => {
                    let own = GlobalAddr::new(MemoryServerId(0), REGION - 64 * (1 + u64::from(slot)));
                    let before = ep.compare_swap(own, word, word + 1).await?;
                    word = if before == word { word + 1 } else { before };
                }
            }
            latencies.push(begun.elapsed().as_nanos() as u64);
        }
        Ok::<_, FabricError>(latencies)
    });
    let seconds = started.elapsed().as_secs_f64();
    let mut all = Vec::new();
    for latencies in results {
        all.extend(latencies?);
    }
    all.sort_unstable();
    Ok((all.len() as f64 / seconds, all))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Processor time used by a process so far, in ms.
fn processor_ms(pid: u32) -> Result<f64, Box<dyn std::error::Error>> {
    let mut ns = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        ns += text.split(' ').next().ok_or("an empty schedstat")?.parse::<u64>()?;
    }
    Ok(ns as f64 / 1e6)
}

fn main() -> Outcome {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("serve") {
        return serve();
    }
    let time = Duration::from_secs_f64(argument.as_deref().unwrap_or("1").parse()?);
    let child = Command::new(std::env::current_exe()?)
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut server = Server(child);
    let mut address = String::new();
    BufReader::new(server.0.stdout.take().ok_or("it has a standard output")?).read_line(&mut address)?;
    let fabric = TcpFabric::connect(TcpConfig::new([address.trim()]))?;
    let ep = fabric.endpoint(1)?;

    let cells = [("READ of 1 KiB", Verb::Read), ("WRITE of 1 KiB", Verb::Write), ("CAS", Verb::Swap)];
    let depths = [1, 8, 64];
    let mut rounds = vec![Vec::new(); cells.len() * depths.len()];
    for _ in 0..ROUNDS {
        for (cell, &(_, verb)) in cells.iter().enumerate() {
            for (depth, &slots) in depths.iter().enumerate() {
                let (rate, latencies) = run(&ep, verb, slots, time)?;
                let percentile = |p: usize| latencies[latencies.len() * p / 100] as f64;
                rounds[cell * depths.len() + depth].push((rate, percentile(50), percentile(99)));
            }
        }
    }
    for (number, rounds) in rounds.iter().enumerate() {
        let (name, slots) = (cells[number / depths.len()].0, depths[number % depths.len()]);
        let rate = median(rounds.iter().map(|round| round.0).collect());
        let p50 = median(rounds.iter().map(|round| round.1).collect()) / 1e3;
        let p99 = median(rounds.iter().map(|round| round.2).collect()) / 1e3;
        println!("{name:<14} depth {slots:>2}: {rate:>9.0} a second, p50 {p50:7.2} us, p99 {p99:7.2} us");
    }
    let pids = [("server", server.0.id()), ("client", std::process::id())];
    let before = [processor_ms(pids[0].1)?, processor_ms(pids[1].1)?];
    std::thread::sleep(IDLE);
    for (before, (name, pid)) in before.into_iter().zip(pids) {
        let spent = processor_ms(pid)? - before;
        println!("idle {name}: {spent:.3} ms of a core in {} s", IDLE.as_secs());
    }
    Ok(())
}
