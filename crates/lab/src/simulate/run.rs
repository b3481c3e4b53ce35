//! Runs one seed, from its configuration to the violations of its history.
//!
//! The operations of all slots run concurrently until each slot has done its share and faults are over. Then
//! a thread reads every key, by lookups and by scans; with several views, one thread of each view does. The
//! audit comes last. A panic of the code under test is a violation, too.

use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use pando_dex::layout::Layout;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_fabric::{Endpoint, Nanos, Work};
use pando_rt::block_on;
use pando_sherman::Sherman;
use pando_sim::{Fault, FaultBounds, FaultPlan};
use pando_smart::Smart;
use serde::Serialize;

use super::case_dex::{DexCase, Nodes};
use super::check::{self, Judged, Kind, Violation};
use super::client::Client;
use super::cluster::{Cluster, ClusterError};
use super::death::LAST_HEIRS_NS;
use super::dex::Dex;
use super::faults::{FaultSet, end_of};
use super::history::{Book, History, Op, Scan};
use super::index::Index;
use super::keys::draw_keys;
use super::peers::Peer;
use super::pool_case::serialize_setup;
use super::pool_run::run_pool;
use super::setup::{Case, PATIENCE_NS, Setup, random_of};
use super::systems::Systems;
use crate::copies::{Loss, SimEndpoint};

/// Operations of each slot after the last fault.
const CALM_OPERATIONS: usize = 8;

/// With cut-offs, an operation may wait for this many times its patience, for leftovers of several others.
const WAITS_FOR_LEFTOVERS: Nanos = 16;
/// Most operations that are cut off in a run: each unknown outcome makes the search for an order longer.
const CUTS_MAX: usize = 40;
/// Number and length of rests after operations were cut off. Leftovers are noticed before a rest, and can be
/// finished after it.
const RESTS: Nanos = 4;
const REST_NS: Nanos = 4 * PATIENCE_NS;

/// Time in which the heirs of a compute server come, one of which lives.
const HEIRS_NS: Nanos = PATIENCE_NS;

/// Result of one seed.
#[derive(Clone, Debug, Serialize)]
pub struct SeedReport {
    #[serde(serialize_with = "serialize_setup")]
    pub setup: Setup,
    pub operations: u64,
    pub failed_operations: u64,
    pub virtual_ns: Nanos,
    /// Hash of the whole history: equal for equal seeds, options and code.
    pub history_hash: u64,
    pub violations: Vec<Violation>,
}

/// Runs a seed with one of `systems`, and with those of `faults` that it draws.
pub fn run_seed(seed: u64, systems: &Systems, faults: FaultSet) -> SeedReport {
    run_setup(Setup::draw(seed, systems, faults))
}

/// Runs one configuration.
pub fn run_setup(setup: Setup) -> SeedReport {
    let ran = match setup.case {
        Case::Pool(case) => caught("pool", || run_pool(&setup, case)),
        _ => caught("index", || run_case(&setup)).map(Ran::judged),
    };
    let ran = ran.unwrap_or_else(|violation| Judged { violations: vec![violation], ..Judged::default() });
    SeedReport {
        setup,
        operations: ran.operations,
        failed_operations: ran.failed,
        virtual_ns: ran.ended,
        history_hash: ran.hash,
        violations: ran.violations,
    }
}

/// Runs `run`; a failure or a panic is a violation.
fn caught<T>(what: &str, run: impl FnOnce() -> Result<T, ClusterError>) -> Result<T, Violation> {
    let (kind, what) = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(ran)) => return Ok(ran),
        Ok(Err(error)) => (Kind::Failure, format!("the {what} could not be made: {error}")),
        Err(panic) => (Kind::Panic, said_by(&*panic).to_owned()),
    };
    Err(Violation { kind, what, excerpt: String::new() })
}

fn said_by(panic: &(dyn std::any::Any + Send)) -> &str {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    said.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

/// Result of a complete run.
struct Ran {
    history: History,
    /// Virtual time from which no fault has an effect.
    calm: Nanos,
    ended: Nanos,
    audit: Vec<Violation>,
}

impl Ran {
    /// Checks the history.
    fn judged(self) -> Judged {
        let records = &self.history.records;
        let mut violations = check::check(&self.history, self.calm);
        violations.extend(self.audit);
        Judged {
            operations: records.len() as u64,
            failed: records.iter().filter(|record| record.failure().is_some()).count() as u64,
            ended: self.ended,
            hash: self.history.hash(),
            violations,
        }
    }
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
    // 1. Make the cluster and the index, outside of virtual time.
    let keys = draw_keys(&random_of(setup.seed, "keys of the run"), setup.key_style, setup.sizes, setup.keys);
    let mut book = Book::new(keys);
    let (cluster, ep) = Cluster::new(setup)?;
    let index = Rc::new(make(&cluster, &ep, &mut book)?);
    drop(ep);
    // 2. Make a client for each thread.
    let began = cluster.fabric.now();
    let (shared_setup, book) = (Rc::new(setup.clone()), Rc::new(book));
    let clients: Vec<_> = (0..setup.threads)
        .map(|thread| {
            let seed = setup.seed.wrapping_mul(1_000).wrapping_add(thread as u64);
            let ep = cluster.fabric.thread(thread % setup.all_compute_servers(), seed);
            let ep = cluster.copies.endpoint(ep);
            let (setup, index, book) = (Rc::clone(&shared_setup), Rc::clone(&index), Rc::clone(&book));
            Rc::new(Client::new(setup, index, book, ep, thread as u32))
        })
        .collect();
    // 3. Plan the faults. Cut-offs last as long as the operations, and their leftovers need rests.
    let plan = plan_faults(setup, began, cluster.loss);
    cluster.fabric.plan(&plan);
    let (mut faulty_until, mut rest) = (end_of(&plan), 0);
    if let Some(loss) = cluster.loss {
        faulty_until = faulty_until.max(loss.is_over());
        *book.undone.borrow_mut() = setup.undone_by(loss);
    }
    if setup.faults.cuts_off() {
        (faulty_until, rest) = (faulty_until.max(began + setup.span()), RESTS * REST_NS);
        book.cuts_left.set(CUTS_MAX);
        book.waits.set(WAITS_FOR_LEFTOVERS);
    }
    book.waits.set(book.waits.get() * setup.waits_for_copies());
    if setup.deaths() > 0 {
        *book.deaths.borrow_mut() = plan_deaths(setup, began);
        // Threads notice the last ones within this time, and heirs have come.
        let deaths = setup.deaths() as Nanos * HEIRS_NS;
        faulty_until = faulty_until.max(began + setup.span() + deaths + LAST_HEIRS_NS);
        rest = rest.max(PATIENCE_NS);
    }
    let calm = faulty_until + rest;
    book.faulty_until.set(faulty_until);
    book.calm.set(calm);
    // 4. Run the operations of all slots: during the faults, during the rests, and some more.
    run_all(setup, &cluster, &clients, calm);
    // 5. Read every key. The clients run one after the other also in virtual time, since memory servers are
    //    busy up to the end of the previous one.
    let ended = look_at_the_end(&clients, &index, calm)?;
    // 6. Audit the index, unless an error that time does not heal was found.
    let mut audit = Vec::new();
    if !book.is_over.get() {
        let wrong =
            index.audit(&cluster.copies.endpoint(cluster.fabric.direct(setup.seed)), book.has_failures())?;
        let told = |what| Violation { kind: Kind::Audit, what, excerpt: String::new() };
        audit.extend(wrong.into_iter().take(5).map(told));
    }
    drop(clients);
    drop(index);
    drop(cluster);
    let book = Rc::into_inner(book).expect("the clients are gone");
    Ok(Ran { history: book.close(), calm, ended, audit })
}

/// Gives a run access to the endpoint of a client that it keeps alive.
struct Thread<I: Index>(Rc<Client<I>>);

impl<I: Index> Deref for Thread<I> {
    type Target = pando_sim::SimEndpoint;

    fn deref(&self) -> &pando_sim::SimEndpoint {
        self.0.ep.below()
    }
}

/// Runs the operations of all slots concurrently.
fn run_all<I: Index + 'static>(setup: &Setup, cluster: &Cluster, clients: &[Rc<Client<I>>], calm: Nanos) {
    let make = |thread: usize, slot| work(Rc::clone(&clients[thread]), calm, slot);
    let Some(preemption) = setup.preemption else {
        let endpoints: Vec<_> = clients.iter().map(|client| client.ep.below()).collect();
        cluster.fabric.run(&endpoints, setup.slots, make);
        return;
    };
    let threads = clients.iter().map(|client| Thread(Rc::clone(client))).collect();
    cluster.fabric.run_preempted(threads, setup.slots, preemption, make);
}

/// One slot's operations. No fault has an effect after `calm`.
async fn work<I: Index>(client: Rc<Client<I>>, calm: Nanos, slot: u32) {
    for n in 0..client.setup.operations_per_slot() {
        if client.book.is_over.get() {
            return;
        }
        client.operate(slot, n).await;
    }
    I::live(&client).await;
    while client.ep.now() <= client.book.faulty_until.get() {
        match client.setup.deaths() {
            0 => pass_time(&client.ep).await,
            _ => client.ep.sleep_until(client.book.faulty_until.get() + 1).await,
        }
    }
    if slot == 0 && !client.book.is_over.get() {
        I::settle(&client).await;
    }
    // Until the move is repeated, its keys have no owner.
    while client.index.has_to_move() && client.ep.now() <= calm && !client.book.is_over.get() {
        client.perform(slot, Op::Move).await;
        pass_time(&client.ep).await;
    }
    // Operations notice leftovers, and finish them once their verbs must have ended.
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

/// All clients look at everything, once more if the process died and recovered; returns the time after that.
fn look_at_the_end<I: Index>(
    clients: &[Rc<Client<I>>],
    index: &I,
    calm: Nanos,
) -> Result<Nanos, ClusterError> {
    let look = |begin: Nanos| {
        clients.iter().take(index.views()).fold(begin, |begin, client| {
            block_on(&client.ep, client.ep.sleep_until(begin));
            look_at_everything(client);
            client.ep.now()
        })
    };
    let (ended, last) = (look(calm), &clients[0]);
    block_on(&last.ep, last.ep.sleep_until(ended));
    let falls = !last.book.is_over.get() && block_on(&last.ep, I::fall(last))?;
    Ok(if falls { look(last.ep.now()) } else { ended })
}

/// Looks up every key and scans all of them, ascending and descending.
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

/// Draws the times at which compute servers die, and which, the first one last.
fn plan_deaths(setup: &Setup, began: Nanos) -> Vec<(Nanos, usize)> {
    let random = random_of(setup.seed, "deaths of the run");
    let mut times: Vec<_> = (0..setup.deaths()).map(|_| began + random.next() % setup.span()).collect();
    times.sort_unstable_by(|a, b| b.cmp(a));
    times.into_iter().map(|at| (at, (random.next() >> 32) as usize % setup.compute_servers)).collect()
}

/// Draws the faults during the operations.
fn plan_faults(setup: &Setup, began: Nanos, loss: Option<Loss>) -> FaultPlan {
    let bounds = FaultBounds {
        compute_servers: setup.all_compute_servers(),
        memory_servers: setup.memory_servers,
        from: began + 1,
        until: began + 2 + setup.span(),
        faults: 0,
        usual: setup.model().faults,
    };
    let mut plan = setup.faults.plan(&random_of(setup.seed, "faults of the run"), bounds);
    if let Some(Loss { server: lost, at: end }) = loss {
        // It does not come back, not even with its memory.
        let of_lost = |fault: &Fault| match fault {
            Fault::Stop { server } | Fault::Resume { server } | Fault::Kill { server } => *server == lost,
            Fault::Restart { server, .. } => *server == lost,
            _ => false,
        };
        plan.faults.retain(|(at, fault)| *at < end || !of_lost(fault));
        plan.faults.push((end, Fault::Kill { server: lost }));
    }
    plan
}

/// Lets some virtual time pass.
async fn pass_time(ep: &SimEndpoint) {
    ep.charge(Work::Copy { bytes: 1 << 16 });
    ep.pace().await;
    ep.yield_now().await;
}
