//! Queries of one thread on a store: in modelled time, or measured in the DRAM of this machine.
//!
//! Queries to warm up change the caches of the store; only the last ones also run on the model, which fills the
//! caches of its processor. With intervals there is no warm-up: they show what it does.

use std::sync::Arc;

use pando_elf::{
    CacheCounters, CacheOptions, Cached, Count, ElfLayout, Lfu, Linear, ListId, Lla, Lru, Naive, NoCache,
    Policy, Space, TwoQueue, exact, range,
};
use serde_json::{Value, json};

use super::data::{Dataset, Queries, Query, Shared, dataset};
use super::failed;
use super::policy::Observed;
use super::spec::{Base, ElfSpec, PolicyKind, QuerySpec};
use super::walker::Walker;
use crate::bench::{BenchError, Watch};
use crate::process::thread_time;

/// Queries of the warm-up that also run on the model, at least.
const MODELLED_WARM_UP: u64 = 20_000;
/// Queries between two looks for an interruption.
const PATIENCE: u64 = 1_024;

/// Queries of the warm-up that also run on the model.
fn modelled_warm_up(queries: &QuerySpec) -> u64 {
    queries.warm_up.min(queries.queries.max(MODELLED_WARM_UP))
}

/// Answers a query and returns the number of rows found.
pub fn answer<L: ElfLayout>(layout: &L, query: &Query) -> Result<u64, BenchError> {
    let mut found = Count::default();
    match query {
        Query::Exact(codes) => exact(layout, codes, &mut found),
        Query::Walk(filter) => {
            range(layout, filter, &mut found, |_| true);
        }
    }
    match found.0 {
        0 => Err(BenchError::Index("a query does not find the row that it was made from".to_owned())),
        found => Ok(found),
    }
}

/// One run of queries.
struct Run<'a> {
    spec: &'a QuerySpec,
    walker: &'a Walker,
    watch: &'a dyn Watch,
}

/// What a run has done.
struct Done {
    found: u64,
    ns: f64,
    series: Vec<Value>,
    /// Hits and misses of the measured queries.
    counted: (u64, u64),
}

impl Run<'_> {
    fn interrupted(&self, number: u64) -> Result<(), BenchError> {
        let asks = number.is_multiple_of(PATIENCE) || self.spec.kind != super::Kind::Exact;
        if asks && self.watch.interrupted() { Err(BenchError::Interrupted) } else { Ok(()) }
    }

    fn drive<L: ElfLayout>(
        &self,
        layout: &L,
        queries: &mut Queries<'_>,
        counters: impl Fn() -> CacheCounters,
    ) -> Result<Done, BenchError> {
        let QuerySpec { warm_up, queries: number, intervals, .. } = *self.spec;
        let modelled = modelled_warm_up(self.spec);
        for query in 0..warm_up {
            self.interrupted(query)?;
            self.walker.listen(query >= warm_up - modelled);
            self.one(layout, &queries.next())?;
        }
        self.walker.listen(true);
        let (start, before) = (self.walker.now_ns(), counters());
        let (mut found, mut series, mut last) = (0, Vec::new(), (0, start));
        for query in 1..=number {
            self.interrupted(query)?;
            found += self.one(layout, &queries.next())?;
            let ends = number * (series.len() as u64 + 1) / intervals.max(1);
            if intervals > 0 && query == ends {
                let now = self.walker.now_ns();
                let qps = (query - last.0) as f64 * 1e9 / (now - last.1);
                series.push(json!({ "queries": query, "qps": qps }));
                last = (query, now);
            }
        }
        let after = counters();
        let counted = (after.hits - before.hits, after.misses - before.misses);
        Ok(Done { found, ns: self.walker.now_ns() - start, series, counted })
    }

    fn one<L: ElfLayout>(&self, layout: &L, query: &Query) -> Result<u64, BenchError> {
        self.walker.begin();
        let found = answer(layout, query)?;
        self.walker.end();
        Ok(found)
    }
}

/// Lists and bytes of a store that are held in DRAM.
type Held = (usize, u64);

/// Queries in modelled time.
pub fn modelled(spec: &ElfSpec, queries: &QuerySpec, watch: &dyn Watch) -> Result<Value, BenchError> {
    let dataset = dataset(spec.data)?;
    let capacity = queries.store.cache.map_or(0, |cache| cache.lists);
    let policy = queries.store.cache.map(|cache| cache.policy);
    let walker = Walker::new(&spec.model, spec.costs(queries.kind), policy, capacity);
    let run = Run { spec: queries, walker: &walker, watch };
    let mut stream = Queries::new(&dataset, queries.kind, queries.range_percent, spec.seed)?;
    let (done, held) = through_store(&dataset, &run, &mut stream)?;
    let (counters, work) = (walker.counters(), walker.work());
    let number = queries.queries as f64;
    let (hits, misses) = done.counted;
    Ok(json!({
        "method": "modelled",
        "queries": queries.queries,
        "modelled_warm_up": modelled_warm_up(queries),
        "found": done.found,
        "seconds": done.ns / 1e9,
        "qps": number * 1e9 / done.ns,
        "us_per_query": done.ns / 1e3 / number,
        "image_bytes": dataset.image.bytes().len(),
        "held_lists": held.0,
        "held_bytes": held.1,
        "hit_ratio": (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64),
        "from_dram": counters.from_dram,
        "from_persistent": counters.from_persistent,
        "lines": counters.lines,
        "l2_misses": counters.l2_misses,
        "walks": counters.walks,
        "list_reads": work.lists,
        "list_words": work.list_words,
        "mono_list_reads": work.mono_lists,
        "mono_list_words": work.mono_words,
        "series": done.series,
    }))
}

fn through_store(
    dataset: &Dataset,
    run: &Run<'_>,
    stream: &mut Queries<'_>,
) -> Result<(Done, Held), BenchError> {
    let (image, walker, store) = (dataset.image.clone(), run.walker, &run.spec.store);
    let bytes = image.bytes().len() as u64;
    match store.base {
        Base::Dram => {
            let layout = image.metered(Space::Dram, walker);
            return Ok((run.drive(&layout, stream, CacheCounters::default)?, (0, bytes)));
        }
        Base::DualAccess => {
            let layout = image.dual_access(walker).map_err(failed)?;
            return Ok((run.drive(&layout, stream, CacheCounters::default)?, (0, bytes)));
        }
        Base::Persistent => {}
    }
    let layout = image.with_levels(store.levels).map_err(failed)?.with_meter(walker);
    if store.hashed {
        walker.hash_levels(layout.access().levels().lists());
    }
    let Some(cache) = store.cache else {
        let levels = layout.access().levels();
        let held = (levels.lists(), levels.bytes());
        return Ok((run.drive(&layout, stream, CacheCounters::default)?, held));
    };
    let options = CacheOptions::lists(cache.lists);
    match cache.policy {
        PolicyKind::Naive => cached(dataset, run, stream, layout, options, Naive),
        PolicyKind::Lru => cached(dataset, run, stream, layout, options, Lru::default()),
        PolicyKind::Lfu => cached(dataset, run, stream, layout, options, Lfu::default()),
        PolicyKind::TwoQueue => cached(dataset, run, stream, layout, options, TwoQueue::new(cache.lists)),
        PolicyKind::Lla => cached(dataset, run, stream, layout, options, Lla::new(dataset.weights())),
    }
}

fn cached<'w, P: Policy>(
    dataset: &Dataset,
    run: &Run<'w>,
    stream: &mut Queries<'_>,
    layout: Linear<Cached<Shared, NoCache, &'w Walker>>,
    options: CacheOptions,
    policy: P,
) -> Result<(Done, Held), BenchError> {
    let policy = Observed::new(policy, run.walker, |list: ListId| dataset.list_words(list));
    let layout = layout.with_cache(options, policy);
    let done = run.drive(&layout, stream, || layout.access().cache().counters())?;
    let (levels, cache) = (layout.access().levels(), layout.access().cache());
    let held = (levels.lists() + cache.len(), levels.bytes() + cache.bytes());
    Ok((done, held))
}

/// Queries on this machine, in DRAM.
pub fn measured(spec: &ElfSpec, queries: &QuerySpec, watch: &dyn Watch) -> Result<Value, BenchError> {
    let dataset: Arc<Dataset> = dataset(spec.data)?;
    let mut stream = Queries::new(&dataset, queries.kind, queries.range_percent, spec.seed)?;
    for _ in 0..queries.warm_up.min(queries.queries) {
        answer(&dataset.image, &stream.next())?;
    }
    let all: Vec<Query> = (0..queries.queries).map(|_| stream.next()).collect();
    let start = thread_time();
    let mut found = 0;
    for (number, query) in all.iter().enumerate() {
        if (number as u64).is_multiple_of(PATIENCE) && watch.interrupted() {
            return Err(BenchError::Interrupted);
        }
        found += answer(&dataset.image, query)?;
    }
    let seconds = (thread_time() - start).as_secs_f64();
    let number = queries.queries as f64;
    Ok(json!({
        "method": "measured, processor time of the thread",
        "queries": queries.queries,
        "found": found,
        "seconds": seconds,
        "measured_qps": number / seconds,
        "measured_us_per_query": seconds * 1e6 / number,
        "image_bytes": dataset.image.bytes().len(),
    }))
}
