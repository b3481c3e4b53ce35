//! One seed, from its configuration to what is wrong with its history.
//!
//! The operations of all slots run side by side until each has done its share and faults are over. Then a thread looks
//! at every key, by lookups and by scans; so does one of each compute server that has a view of its own. The auditor comes last. A
//! panic of the code under test is a violation like any other.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use pando_dex::layout::Layout;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_fabric::{Endpoint, Nanos, Work};
use pando_rt::block_on;
use pando_sherman::Sherman;
use pando_sim::{FaultBounds, FaultPlan, SimEndpoint};
use pando_smart::Smart;
use serde::Serialize;

use super::case_dex::{DexCase, Nodes};
use super::check::{self, Kind, Violation};
use super::client::Client;
use super::cluster::{Cluster, ClusterError};
use super::dex::Dex;
use super::faults::{FaultSet, end_of};
use super::history::{Book, History, Op, Scan};
use super::index::Index;
use super::keys::draw_keys;
use super::peers::Peer;
use super::pool_case::{PoolCase, serialize_setup};
use super::pool_run::run_pool;
use super::setup::{Case, PATIENCE_NS, Setup, random_of};
use super::systems::Systems;

/// Operations of each slot after the last fault.
const CALM_OPERATIONS: usize = 8;

/// Where operations were cut off one may wait for what several of them left.
const WAITS_FOR_LEFTOVERS: Nanos = 16;
/// Operations that are cut off in a run at most: what nobody knows makes the search for an order long.
const CUTS_MAX: usize = 40;
/// After operations were cut off, all rests so often for so long: what they left is seen, and can be finished then.
const RESTS: Nanos = 4;
const REST_NS: Nanos = 4 * PATIENCE_NS;

/// What became of one seed.
#[derive(Clone, Debug, Serialize)]
pub struct SeedReport {
    #[serde(serialize_with = "serialize_setup")]
    pub setup: Setup,
    pub operations: u64,
    pub failed_operations: u64,
    pub virtual_ns: Nanos,
    /// Of the whole history: the same whenever the same seed runs with the same options and the same code.
    pub history_hash: u64,
    pub violations: Vec<Violation>,
}

/// Runs a seed with one of `systems` and those of `faults` that it has.
pub fn run_seed(seed: u64, systems: &Systems, faults: FaultSet) -> SeedReport {
    run_setup(Setup::draw(seed, systems, faults))
}

/// Runs one configuration.
pub fn run_setup(setup: Setup) -> SeedReport {
    if let Case::Pool(case) = setup.case {
        return run_setup_of_pool(setup, case);
    }
    let ran = catch_unwind(AssertUnwindSafe(|| run_case(&setup)));
    let told = |kind, what: String| vec![Violation { kind, what, excerpt: String::new() }];
    let mut report = SeedReport {
        setup,
        operations: 0,
        failed_operations: 0,
        virtual_ns: 0,
        history_hash: 0,
        violations: Vec::new(),
    };
    match ran {
        Ok(Ok(ran)) => {
            let records = &ran.history.records;
            report.operations = records.len() as u64;
            report.failed_operations =
                records.iter().filter(|record| record.failure().is_some()).count() as u64;
            report.virtual_ns = ran.ended;
            report.history_hash = ran.history.hash();
            report.violations = check::check(&ran.history, ran.calm);
            report.violations.extend(ran.audit);
        }
        Ok(Err(error)) => {
            report.violations = told(Kind::Failure, format!("the index could not be made: {error}"))
        }
        Err(panic) => {
            report.violations = told(Kind::Panic, said_by(&*panic).to_owned());
        }
    }
    report
}

/// The same for the pool by itself.
fn run_setup_of_pool(setup: Setup, case: PoolCase) -> SeedReport {
    let told = |kind, what| vec![Violation { kind, what, excerpt: String::new() }];
    let (ran, violations) = match catch_unwind(AssertUnwindSafe(|| run_pool(&setup, case))) {
        Ok(Ok(mut ran)) => {
            let violations = std::mem::take(&mut ran.violations);
            (Some(ran), violations)
        }
        Ok(Err(error)) => (None, told(Kind::Failure, format!("the pool could not be made: {error}"))),
        Err(panic) => (None, told(Kind::Panic, said_by(&*panic).to_owned())),
    };
    SeedReport {
        operations: ran.as_ref().map_or(0, |ran| ran.operations),
        failed_operations: ran.as_ref().map_or(0, |ran| ran.failed),
        virtual_ns: ran.as_ref().map_or(0, |ran| ran.ended),
        history_hash: ran.as_ref().map_or(0, |ran| ran.hash),
        violations,
        setup,
    }
}

fn said_by(panic: &(dyn std::any::Any + Send)) -> &str {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    said.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

/// A run that came to its end.
struct Ran {
    history: History,
    /// When the last fault ended, in virtual time.
    calm: Nanos,
    ended: Nanos,
    audit: Vec<Violation>,
}

fn run_case(setup: &Setup) -> Result<Ran, ClusterError> {
    match &setup.case {
        Case::Dex(case) => match case.nodes {
            Nodes::Fixed { bytes, fanout } => {
                let layout = FixedLayout::new(bytes, setup.sizes.key, setup.sizes.value)?;
                run_dex(setup, *case, layout.with_fanout_limit(fanout))
            }
            Nodes::Slotted { bytes, fanout } => {
                run_dex(setup, *case, SlottedLayout::new(bytes)?.with_fanout_limit(fanout))
            }
        },
        Case::Sherman(case) => {
            run_on(setup, |cluster, ep, book| Peer::<Sherman>::new(setup, case, cluster, ep, book))
        }
        Case::Pool(_) => unreachable!("it has no index"),
        Case::Smart(case) => {
            run_on(setup, |cluster, ep, book| Peer::<Smart>::new(setup, case, cluster, ep, book))
        }
    }
}

fn run_dex<L: Layout>(setup: &Setup, case: DexCase, layout: L) -> Result<Ran, ClusterError> {
    run_on(setup, |cluster, ep, book| Dex::new(setup, case, layout, cluster, ep, book))
}

/// Runs `setup` on the index that `make` makes and loads.
fn run_on<I: Index + 'static>(
    setup: &Setup,
    make: impl FnOnce(&Cluster, &SimEndpoint, &mut Book) -> Result<I, ClusterError>,
) -> Result<Ran, ClusterError> {
    let keys = draw_keys(&random_of(setup.seed, "keys of the run"), setup.key_style, setup.sizes, setup.keys);
    let mut book = Book::new(keys);
    let (cluster, ep) = Cluster::new(setup)?;
    let index = Rc::new(make(&cluster, &ep, &mut book)?);
    drop(ep);
    let began = cluster.fabric.now();
    let (shared_setup, book) = (Rc::new(setup.clone()), Rc::new(book));
    let clients: Vec<_> = (0..setup.threads)
        .map(|thread| {
            let seed = setup.seed.wrapping_mul(1_000).wrapping_add(thread as u64);
            let ep = cluster.fabric.thread(thread % setup.all_compute_servers(), seed);
            let (setup, index, book) = (Rc::clone(&shared_setup), Rc::clone(&index), Rc::clone(&book));
            Rc::new(Client::new(setup, index, book, ep, thread as u32))
        })
        .collect();
    let plan = plan_faults(setup, began);
    cluster.fabric.plan(&plan);
    let (mut faulty_until, mut rest) = (end_of(&plan), 0);
    if setup.faults.cuts_off() {
        (faulty_until, rest) = (faulty_until.max(began + span_of(setup)), RESTS * REST_NS);
        book.cuts_left.set(CUTS_MAX);
        book.waits.set(WAITS_FOR_LEFTOVERS);
    }
    let calm = faulty_until + rest;
    book.faulty_until.set(faulty_until);
    book.calm.set(calm);
    run_all(setup, &cluster, &clients, calm);
    // One after the other, also by their clocks: memory servers are busy until the one before has ended.
    let ended = clients.iter().take(index.views()).fold(calm, |begin, client| {
        block_on(&client.ep, client.ep.sleep_until(begin));
        look_at_everything(client);
        client.ep.now()
    });
    let mut audit = Vec::new();
    if !book.is_over.get() {
        let wrong = index.audit(&cluster.fabric.direct(setup.seed), book.has_failures())?;
        let told = |what| Violation { kind: Kind::Audit, what, excerpt: String::new() };
        audit.extend(wrong.into_iter().take(5).map(told));
    }
    drop(clients);
    drop(index);
    drop(cluster);
    let book = Rc::into_inner(book).expect("the clients are gone");
    Ok(Ran { history: book.close(), calm, ended, audit })
}

/// The way from a client to its endpoint, for as long as a run.
struct Thread<I: Index>(Rc<Client<I>>);

impl<I: Index> Deref for Thread<I> {
    type Target = SimEndpoint;

    fn deref(&self) -> &SimEndpoint {
        &self.0.ep
    }
}

/// The operations of all slots, side by side.
fn run_all<I: Index + 'static>(setup: &Setup, cluster: &Cluster, clients: &[Rc<Client<I>>], calm: Nanos) {
    let make = |thread: usize, slot| work(Rc::clone(&clients[thread]), calm, slot);
    let Some(preemption) = setup.preemption else {
        let endpoints: Vec<_> = clients.iter().map(|client| &client.ep).collect();
        cluster.fabric.run(&endpoints, setup.slots, make);
        return;
    };
    let threads = clients.iter().map(|client| Thread(Rc::clone(client))).collect();
    cluster.fabric.run_preempted(threads, setup.slots, preemption, make);
}

/// The life of one slot. All is well again from `calm` on.
async fn work<I: Index>(client: Rc<Client<I>>, calm: Nanos, slot: u32) {
    for n in 0..client.setup.operations_per_slot() {
        if client.book.is_over.get() {
            return;
        }
        client.operate(slot, n).await;
    }
    while client.ep.now() <= client.book.faulty_until.get() {
        pass_time(&client.ep).await;
    }
    // Until then nobody has these keys.
    while client.index.has_to_move() && client.ep.now() <= calm && !client.book.is_over.get() {
        client.perform(slot, Op::Move).await;
        pass_time(&client.ep).await;
    }
    // What was cut off is seen now and then, and finished when its verbs must have ended.
    while client.ep.now() <= calm && !client.book.is_over.get() {
        client.operate(slot, 0).await;
        client.ep.sleep_until(client.ep.now() + REST_NS).await;
    }
    for n in 0..CALM_OPERATIONS {
        if client.book.is_over.get() {
            return;
        }
        client.operate(slot, n).await;
    }
}

/// Looks up every key and scans all of them, up and down.
fn look_at_everything<I: Index>(client: &Client<I>) {
    if client.book.is_over.get() {
        return;
    }
    for key in 0..client.book.keys.len() {
        block_on(&client.ep, client.perform(0, Op::Get(key as u32)));
    }
    for reverse in [false, true].into_iter().take(if I::DESCENDS { 2 } else { 1 }) {
        let scan = Scan { keys: 0..client.book.keys.len() as u32, limit: usize::MAX, reverse };
        block_on(&client.ep, client.perform(0, Op::Scan(scan)));
    }
}

/// About as long as the operations take when all is well.
fn span_of(setup: &Setup) -> Nanos {
    (setup.operations_per_slot() as f64 * 8_000.0 * setup.latency_scale) as Nanos
}

/// What goes wrong while the operations run.
fn plan_faults(setup: &Setup, began: Nanos) -> FaultPlan {
    let bounds = FaultBounds {
        compute_servers: setup.all_compute_servers(),
        memory_servers: setup.memory_servers,
        from: began + 1,
        until: began + 2 + span_of(setup),
        faults: 0,
        usual: setup.model().faults,
    };
    setup.faults.plan(&random_of(setup.seed, "faults of the run"), bounds)
}

/// Lets some virtual time pass.
async fn pass_time(ep: &SimEndpoint) {
    ep.charge(Work::Copy { bytes: 1 << 16 });
    ep.pace().await;
    ep.yield_now().await;
}
