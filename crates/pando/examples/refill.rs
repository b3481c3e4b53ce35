//! What the refilling of copies costs those who work on the pool meanwhile: rates and latencies while all copies are
//! there, and while a memory server that was killed is filled again, in turns.
//!
//! `cargo run --release -p pando --example refill -- [MIB OF A SERVER] [MIB/S OF REFILLING] [TURNS]`
//!
//! The memory servers are processes of their own: this program again. The pool has two copies; the client's cache holds a
//! tenth of the leaves, so most operations READ or WRITE memory servers.

use std::io::{BufRead, BufReader, Read, stdin};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pando::{
    BulkOptions, Cluster, Config, Create, Durability, IndexOptions, IntegerSession, MemoryServer,
    MemoryServerConfig,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const KEYS: u64 = 2_000_000;
/// Bytes of a leaf's entries, and of the cache.
const CACHE: u64 = 4 << 20;
const SERVERS: usize = 3;
/// Time of a measurement while all copies are there.
const WHOLE: Duration = Duration::from_secs(4);

/// A memory server in a process of its own.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(listen: &str, mib: u64, rate: u64) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", listen, &mib.to_string(), &rate.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut address = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut address)?;
        Ok(Self { child, address: address.trim().to_owned() })
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone.
        let _ = self.kill();
    }
}

fn serve(listen: &str, mib: u64, rate: u64) -> Result<()> {
    let config = MemoryServerConfig::new(listen).size(mib << 20).copy_rate(rate << 20);
    let server = MemoryServer::start(&config)?;
    println!("{}", server.addr());
    // Until the parent is gone.
    stdin().read_to_end(&mut Vec::new())?;
    Ok(server.stop()?)
}

/// Latencies of operations, in nanoseconds.
struct Measured {
    took: Duration,
    sorted: Vec<u64>,
}

impl Measured {
    fn at(&self, share: f64) -> f64 {
        self.sorted[((self.sorted.len() - 1) as f64 * share) as usize] as f64 / 1e3
    }

    fn tell(&self, what: &str) {
        let rate = self.sorted.len() as f64 / self.took.as_secs_f64();
        let (p50, p99, max) = (self.at(0.5), self.at(0.99), self.at(1.0) / 1e3);
        let took = self.took.as_secs_f64();
        println!(
            "{what:<8} {took:>5.1} s {rate:>8.0} /s   p50 {p50:>6.1} µs   p99 {p99:>6.1} µs   longest {max:.1} ms"
        );
    }
}

/// Lookups and updates of random keys while `goes_on`, which is asked every thousand operations.
fn measure(
    session: &IntegerSession,
    seed: &mut u64,
    mut goes_on: impl FnMut(Duration) -> Result<bool>,
) -> Result<Measured> {
    let (begun, mut sorted) = (Instant::now(), Vec::new());
    while goes_on(begun.elapsed())? {
        for number in 0..1000 {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (key, at) = ((*seed >> 33) % KEYS, Instant::now());
            match number % 2 {
                0 => drop(session.get(key)?.expect("it was loaded")),
                _ => drop(session.update(key, number)?),
            }
            sorted.push(at.elapsed().as_nanos() as u64);
        }
    }
    let took = begun.elapsed();
    sorted.sort_unstable();
    Ok(Measured { took, sorted })
}

fn fills(cluster: &Cluster) -> Result<bool> {
    let copies = cluster.copies()?.expect("the pool has copies");
    Ok(copies.servers.iter().any(|server| !server.fills.is_empty()))
}

fn run(mib: u64, rate: u64, turns: usize) -> Result<()> {
    let start = || Server::start("127.0.0.1:0", mib, rate);
    let mut servers = (0..SERVERS).map(|_| start()).collect::<Result<Vec<_>>>()?;
    let addresses: Vec<String> = servers.iter().map(|server| server.address.clone()).collect();
    let config = Config::tcp(addresses).create(Create::New).replicas(2).cache(CACHE);
    let cluster = Cluster::open(config.durability(Durability::Process))?;
    let index = cluster.create_index("n", &IndexOptions::integers())?;
    let entries: Vec<([u8; 8], [u8; 8])> =
        (0..KEYS).map(|key| (key.to_be_bytes(), key.to_be_bytes())).collect();
    index.bulk_load(&entries[..], &BulkOptions::default())?;
    drop(entries);
    let session = index.integers()?;
    let (mut seed, mut ratios) = (1, Vec::new());
    measure(&session, &mut seed, |time| Ok(time < WHOLE))?;
    for turn in 0..turns {
        let whole = measure(&session, &mut seed, |time| Ok(time < WHOLE))?;
        let lost = &mut servers[turn % SERVERS];
        lost.kill()?;
        let (address, killed) = (lost.address.clone(), Instant::now());
        *lost = Server::start(&address, mib, rate)?;
        while !fills(&cluster)? {
            session.get(0)?;
        }
        println!("killed, and filled again from {:.1} s on", killed.elapsed().as_secs_f64());
        let filling = measure(&session, &mut seed, |_| fills(&cluster))?;
        whole.tell("whole");
        filling.tell("filling");
        ratios.push(filling.at(0.99) / whole.at(0.99));
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "p99 while copies are filled, to that while they are whole: {:.2} (median of {turns}), at most {:.2}",
        ratios[turns / 2],
        ratios[turns - 1]
    );
    drop(session);
    Ok(cluster.close()?)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse());
    match arguments.first().map(String::as_str) {
        Some("serve") => serve(&arguments[1], number(2, 0)?, number(3, 0)?),
        _ => run(number(0, 512)?, number(1, 256)?, number(2, 5)?.max(1) as usize),
    }
}
