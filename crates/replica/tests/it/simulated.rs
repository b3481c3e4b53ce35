//! Threads of a simulated cluster read and change volumes while a memory server is lost.
//!
//! Each page has one writer, which fills it with ascending numbers. Nobody may read an older number than one that was
//! read or whose WRITE was answered before the READ began. Counters have as much as was added to them. Flags go up and
//! down by swaps of all threads. In the end all copies are equal.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use pando_fabric::{
    Chain, Endpoint, Fabric, FabricError, GlobalAddr, LINE, MemoryServerId, Nanos, VerbResult, WORD,
};
use pando_replica::{Judged, Placement, Replicated, Views};
use pando_rt::block_on;
use pando_sim::{Fault, FaultPlan, Model, SimConfig, SimEndpoint, SimFabric};

const SERVERS: u16 = 3;
const COMPUTE_SERVERS: usize = 2;
const THREADS: usize = 6;
const SLOTS: u32 = 2;
const OPERATIONS: usize = 60;
const PAGE: usize = 256;
const COUNTERS: u64 = 3;
const FLAGS: u64 = 2;
const PATIENCE_NS: Nanos = 20_000_000;

type Ep = Replicated<SimEndpoint>;

fn page(writer: usize) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(writer as u16 % SERVERS), 4096 + (writer * PAGE) as u64)
}

fn counter(number: u64) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(number as u16 % SERVERS), 64 * (1 + number))
}

fn flag(number: u64) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(number as u16 % SERVERS), 1024 + 8 * number)
}

/// What is known of the state of the volumes.
struct Known {
    /// Least number that a READ of each line of each page must find.
    least: RefCell<Vec<[u64; PAGE / LINE]>>,
    /// Last number that each writer began to write.
    begun: RefCell<Vec<u64>>,
    /// Additions that succeeded, and those of unknown outcome.
    added: RefCell<[(u64, u64); COUNTERS as usize]>,
    unknown_swaps: Cell<u64>,
    wrong: RefCell<Option<String>>,
}

impl Known {
    fn new() -> Self {
        Self {
            least: RefCell::new(vec![[0; PAGE / LINE]; THREADS]),
            begun: RefCell::new(vec![0; THREADS]),
            added: RefCell::default(),
            unknown_swaps: Cell::new(0),
            wrong: RefCell::default(),
        }
    }

    fn blame(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }

    fn at_least(&self, writer: usize, lines: [u64; PAGE / LINE]) {
        let least = &mut self.least.borrow_mut()[writer];
        least.iter_mut().zip(lines).for_each(|(least, line)| *least = line.max(*least));
    }
}

async fn write(ep: &Ep, known: &Known, writer: usize) {
    let number = known.begun.borrow()[writer] + 1;
    known.begun.borrow_mut()[writer] = number;
    let buf = ep.buffer(PAGE);
    (0..PAGE / WORD).for_each(|word| buf.set(word, number));
    // With a word of its own at the end, as an unlock has one.
    let last = page(writer).add((PAGE - WORD) as u64);
    let written = if number.is_multiple_of(2) {
        let front = buf.with_window(0..PAGE - WORD);
        ep.submit(Chain::new().write(page(writer), front).write_word(last, number)).await.map(drop)
    } else {
        ep.write(page(writer), buf).await.map(drop)
    };
    match written {
        Ok(()) => known.at_least(writer, [number; PAGE / LINE]),
        Err(error) => known.blame(format!("a WRITE failed: {error}")),
    }
}

async fn read(ep: &Ep, known: &Known, writer: usize) {
    let least = known.least.borrow()[writer];
    let read =
        match ep.random() % 2 {
            0 => ep.read(page(writer), ep.buffer(PAGE)).await,
            _ => ep.submit(Chain::new().read(page(writer), ep.buffer(PAGE))).await.map(|mut results| {
                match results.pop() {
                    Some(VerbResult::Buf(buf)) => buf,
                    other => unreachable!("a READ gives its buffer back, not {other:?}"),
                }
            }),
        };
    let buf = match read {
        Ok(buf) => buf,
        Err(error) => return known.blame(format!("a READ failed: {error}")),
    };
    let mut found = [0; PAGE / LINE];
    for (line, found) in found.iter_mut().enumerate() {
        *found = buf.get(line * LINE / WORD);
        if *found < least[line] {
            known.blame(format!("line {line} of page {writer} had {}, and now {found}", least[line]));
        }
    }
    known.at_least(writer, found);
    ep.recycle(buf);
}

async fn add(ep: &Ep, known: &Known) {
    let number = ep.random() % COUNTERS;
    let result = ep.fetch_add(counter(number), 1).await;
    let (added, unknown) = &mut known.added.borrow_mut()[number as usize];
    match result {
        Ok(_) => *added += 1,
        Err(error) if error.may_have_taken_effect() => *unknown += 1,
        Err(error) => known.blame(format!("an addition failed: {error}")),
    }
}

async fn swap(ep: &Ep, known: &Known) {
    let at = flag(ep.random() % FLAGS);
    let up = ep.random() % 2;
    match ep.compare_swap(at, up, 1 - up).await {
        Err(FabricError::ServerUnreachable(_) | FabricError::TimedOut(_)) => {
            known.unknown_swaps.set(known.unknown_swaps.get() + 1);
        }
        Err(error) => known.blame(format!("a swap failed: {error}")),
        Ok(_) => {}
    }
}

async fn operate(ep: Rc<Ep>, known: Rc<Known>, thread: usize, slot: u32) {
    for _ in 0..OPERATIONS {
        match ep.random() % 8 {
            0..3 if slot == 0 => write(&ep, &known, thread).await,
            0..5 => read(&ep, &known, ep.random() as usize % THREADS).await,
            5 => add(&ep, &known).await,
            _ => swap(&ep, &known).await,
        }
    }
}

/// Compares the copies that are left, and the counters with what was added.
fn check_end(cluster: &SimFabric, placement: &Placement, known: &Known) {
    let ep = cluster.direct(1);
    for (number, volume) in placement.volumes.iter().enumerate() {
        for offset in (0..8192).step_by(8) {
            let words = volume.in_write_order().map(|copy| block_on(&ep, ep.read_word(copy.at(offset))));
            let words: Vec<u64> = words.map(|word| word.expect("the server is there")).collect();
            if words.iter().any(|word| *word != words[0]) {
                known.blame(format!("copies of byte {offset} of volume {number} are {words:?}"));
            }
        }
    }
    for number in 0..COUNTERS {
        let at = counter(number);
        let primary = placement.volumes[usize::from(at.server().0)].primary;
        let found = block_on(&ep, ep.read_word(primary.at(at.offset()))).expect("the server is there");
        let (added, unknown) = known.added.borrow()[number as usize];
        if !(added..=added + unknown).contains(&found) {
            known.blame(format!("a counter has {found}, not {added} and at most {unknown} more"));
        }
    }
}

/// Runs one seed; returns what was wrong.
fn run(seed: u64, copies: usize, kills: bool) -> Option<String> {
    let mut model = Model::default();
    model.faults.torn_share = 0.3;
    model.faults.spike_share = 0.1;
    model.faults.spike_ns = 20_000;
    let config =
        SimConfig { regions: vec![96 << 10; SERVERS.into()], compute_servers: COMPUTE_SERVERS, seed, model };
    let cluster = SimFabric::new(&config).expect("a sound model");
    let random = pando_fabric::Random::new(seed);
    let victim = MemoryServerId((random.next() % u64::from(SERVERS)) as u16);
    let dies = if kills { 20_000 + random.next() % 400_000 } else { Nanos::MAX };
    if kills {
        cluster.plan(&FaultPlan { faults: vec![(dies, Fault::Kill { server: victim })] });
    }
    let placement = Placement::chained(1, cluster.regions(), copies);
    let judged =
        Judged::new(placement, 100_000, PATIENCE_NS, move |server, now| server == victim && now >= dies);
    let views: Arc<dyn Views> = Arc::new(judged);
    let thread = |thread| {
        Replicated::new(cluster.thread(thread % COMPUTE_SERVERS, seed ^ thread as u64), Arc::clone(&views))
    };
    let threads: Vec<Rc<Ep>> = (0..THREADS).map(thread).map(Rc::new).collect();
    let known = Rc::new(Known::new());
    let below: Vec<&SimEndpoint> = threads.iter().map(|ep| ep.below()).collect();
    cluster.run(&below, SLOTS, |thread, slot| {
        operate(Rc::clone(&threads[thread]), Rc::clone(&known), thread, slot)
    });
    let lost = kills && views.epoch(cluster.now()) > 1;
    if lost || !kills {
        check_end(&cluster, &views.placement(), &known);
    }
    known.wrong.take()
}

fn seeds() -> u64 {
    std::env::var("REPLICA_SEEDS").map_or(300, |seeds| seeds.parse().expect("a number"))
}

#[test]
fn nothing_answered_or_read_is_lost_with_a_server() {
    for seed in 0..seeds() {
        for (copies, kills) in [(2, true), (3, true), (2, false)] {
            if let Some(wrong) = run(seed, copies, kills) {
                panic!("seed {seed}, {copies} copies, a server is lost: {kills}: {wrong}");
            }
        }
    }
}

#[cfg(feature = "defects")]
#[test]
fn each_defect_is_found() {
    use pando_fabric::defect::with_defect;
    use pando_replica::defect::Defect;

    for defect in Defect::ALL {
        let found = (0..2_000).find_map(|seed| {
            with_defect(Some(defect), || run(seed, 2, true).or_else(|| run(seed, 2, false)))
                .map(|wrong| (seed, wrong))
        });
        let (seed, wrong) = found.unwrap_or_else(|| panic!("{defect:?} is not found"));
        println!("{defect:?}: seed {seed}: {wrong}");
    }
}
