//! One run: cluster, threads, and their results.
//!
//! Besides the threads of the compute servers there is one thread that executes the moves, and helpers for
//! its flushing. Both belong to the compute server that keys leave first.

use std::cell::{Cell, RefCell};

use pando::VerbCounts;
use pando_dex::layout::fixed::FixedLayout;
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_sim::SimFabric;
use pando_workload::{Lane as StreamLane, OpStream, Rng};

use super::clients::{Clientele, Ground};
use super::movers::{Mover, Work};
use super::{ElasticReport, ElasticSpec, Spread};
use crate::bench::load::{Generated, boundaries};
use crate::bench::{
    BenchError, Driver, PhaseResult, Quota, Series, Shared, Task, Watch, latency, make_fabric,
};
use crate::copies::{Copies, SimEndpoint};
use crate::under_test::dex::{Dex, DexThread};
use crate::under_test::{Client, EndpointPort, SimPort, SystemUnderTest};

/// Role of a simulated thread.
enum Role<'c, 'd> {
    Operates(Box<Operating<'c>>),
    Moves(Mover<'c, 'd, FixedLayout>),
    Balances(Mover<'c, 'd, FixedLayout>, u64),
    Helps(Mover<'c, 'd, FixedLayout>),
}

type Operating<'c> = Driver<'c, Dex<FixedLayout>, SimPort, Clientele<'c, FixedLayout>>;

/// Executes a run, unless `watch` interrupts it.
///
/// # Errors
/// Impossible settings, and an interrupt. Failures within the run are in the report.
pub fn run(spec: &ElasticSpec, watch: &dyn Watch) -> Result<ElasticReport, BenchError> {
    spec.validate()?;
    let bench = spec.bench();
    let fabric = make_fabric(&bench, spec.all_servers())?;
    let copies = Copies::none();
    let ep = copies.endpoint(fabric.direct(spec.seed));
    let dex = load(spec, &ep)?;
    let movers = 1 + if spec.moves.is_empty() { 0 } else { spec.flush_workers - 1 };
    let source = spec.moves.first().map_or(0, |step| step.from);
    let workers = spec.all_servers() * spec.threads;
    let ports: Vec<SimPort> = (0..workers + movers)
        .map(|thread| {
            let server = if thread < workers { thread / spec.threads } else { source };
            let seed = spec.seed.wrapping_add(1 + thread as u64);
            EndpointPort::simulated(copies.endpoint(fabric.thread(server, seed)))
        })
        .collect();
    let mut report = measure(spec, watch, &fabric, &dex, &ports)?;
    if watch.interrupted() {
        return Err(BenchError::Interrupted);
    }
    let audited = dex.audit(&|| Ok(EndpointPort::simulated(copies.endpoint(fabric.direct(spec.seed)))))?;
    report.audit_violations = audited.violation_count;
    report.complaints.extend(audited.violations.into_iter().take(3));
    Ok(report)
}

fn load(spec: &ElasticSpec, ep: &SimEndpoint) -> Result<Dex<FixedLayout>, BenchError> {
    let bench = spec.bench();
    let (keys, values) = (bench.workload_spec()?.keys, bench.value_codec());
    let layout =
        FixedLayout::new(bench.node_size, bench.key_size, bench.value_size).map_err(BenchError::index)?;
    let pool = block_on(ep, Pool::create(ep, PoolOptions::embedded())).map_err(pando::Error::from)?;
    let boundaries = boundaries(&keys, spec.compute_servers);
    let source = Generated::new(keys, values, 1);
    let loaded = Dex::load(&bench, spec.spare_servers, ep, pool, layout, boundaries, &source);
    Ok(block_on(ep, loaded)?)
}

fn measure(
    spec: &ElasticSpec,
    watch: &dyn Watch,
    fabric: &SimFabric,
    dex: &Dex<FixedLayout>,
    ports: &[SimPort],
) -> Result<ElasticReport, BenchError> {
    let bench = spec.bench();
    let shared = Shared::new(&bench)?;
    let began = fabric.now();
    let queues = (0..spec.all_servers()).map(|_| RefCell::default()).collect();
    let ground = Ground { spec, watch, keys: shared.keys, began, queues };
    let work = Work::default();
    let workers = spec.all_servers() * spec.threads;
    let server_of = |thread: usize| if thread < workers { thread / spec.threads } else { 0 };
    let own: Vec<DexThread> = (0..ports.len()).map(|thread| dex.begin_thread(server_of(thread))).collect();
    let latency = RefCell::new(latency::empty());
    let mut roles = Vec::with_capacity(ports.len());
    for (thread, (port, own)) in ports.iter().zip(&own).enumerate() {
        let client = Client { system: dex, port, own };
        if thread < workers {
            let driver = Driver::new(&shared, client, task(&ground, client, thread)?, &latency);
            roles.push(Role::Operates(Box::new(driver)));
            continue;
        }
        let mover = Mover { ground: &ground, work: &work, dex, client };
        roles.push(match spec.balance_every_ns {
            _ if thread > workers => Role::Helps(mover),
            Some(every) => Role::Balances(mover, every),
            None => Role::Moves(mover),
        });
    }
    let threads: Vec<_> = ports.iter().map(|port| port.ep.below()).collect();
    fabric.run(&threads, 1, |thread, _| {
        let role = &roles[thread];
        async move {
            match role {
                Role::Operates(driver) => driver.slot().await,
                Role::Moves(mover) => mover.follow_plan().await,
                Role::Balances(mover, every) => mover.balance(*every).await,
                Role::Helps(mover) => mover.help().await,
            }
        }
    });
    let results = roles.into_iter().filter_map(|role| match role {
        Role::Operates(driver) => Some(driver.finish(VerbCounts::default())),
        _ => None,
    });
    let results: Vec<_> = results.collect();
    let report = conclude(spec, PhaseResult::of(&bench, &results), &work);
    drop(results);
    own.into_iter().for_each(|own| dex.end_thread(own));
    Ok(report)
}

/// Makes the task of a compute server's thread that performs operations.
fn task<'c>(
    ground: &'c Ground<'c>,
    client: Client<'c, Dex<FixedLayout>, SimPort>,
    thread: usize,
) -> Result<Task<Clientele<'c, FixedLayout>>, BenchError> {
    let Ground { spec, began, .. } = *ground;
    let lane = StreamLane::new(thread as u64, (spec.all_servers() * spec.threads) as u64);
    let stream = OpStream::new(&spec.bench().workload_spec()?, spec.seed, lane)?;
    let source = Clientele {
        ground,
        client,
        server: thread / spec.threads,
        stream: RefCell::new(stream),
        rng: RefCell::new(Rng::new(spec.seed ^ thread as u64)),
        has_begun: Cell::new(false),
    };
    let (quota, series) = (Quota::Until(began + spec.run_ns), Some(Series::new(began, spec.interval_ns)));
    Ok(Task { source, thread, quota, series })
}

fn conclude(spec: &ElasticSpec, phase: PhaseResult, work: &Work<'_, FixedLayout>) -> ElasticReport {
    let PhaseResult { tally, series, .. } = phase;
    let failure = work.failure.take();
    let seconds = spec.run_ns as f64 * 1e-9;
    let mut report = ElasticReport {
        ops: tally.ops,
        failed_ops: tally.failed + u64::from(failure.is_some()),
        complaints: failure.into_iter().chain(tally.complaints.into_iter().take(1)).collect(),
        throughput_ops: tally.ops as f64 / seconds,
        virtual_seconds: seconds,
        interval_ns: spec.interval_ns,
        series: series.unwrap_or_default(),
        moves: work.moves.take(),
        ..ElasticReport::default()
    };
    let places = match &spec.spread {
        Spread::HotSpot { spots, .. } => spots.len(),
        Spread::Workload => 1,
    };
    report.conclude(spec.compute_servers, places);
    report
}
