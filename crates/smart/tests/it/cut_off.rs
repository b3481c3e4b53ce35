//! Operations whose futures are dropped during a verb, on a simulated cluster: each was done or not, with an
//! unknown outcome, and later operations find everything whole.
//!
//! `PANDO_SIM_SEEDS=A..B` replays seeds A to B - 1.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::ops::{Bound, Range};
use std::pin::pin;
use std::task::Poll;

use crate::common::{Setup, Shape, number_of, value};
use pando_fabric::{Endpoint, Nanos};
use pando_pool::{AttachOptions, Pool, PoolError, PoolOptions};
use pando_rt::block_on;
use pando_sim::{Faults, Model, SimConfig, SimEndpoint, SimFabric};
use pando_smart::{Partition, Smart, SmartConfig, SmartError, Techniques};

const SERVERS: usize = 2;
const THREADS: usize = 4;
const SLOTS: u64 = 3;
const KEYS: u64 = 60;
const SPIKE_NS: Nanos = 40_000;
/// Longer than any verb takes.
const PATIENCE_NS: Nanos = 200_000;
/// Time by which a cut-off operation has been finished, or never will be.
const SETTLED_NS: Nanos = 4 * PATIENCE_NS;
const OVER_AT: Nanos = 4_000_000;
/// Maximum time after which an operation is cut off.
const CUT_NS_MAX: Nanos = 12_000;
/// One in this number of operations is cut off.
const CUT_EVERY: u64 = 8;

fn seeds(usually: u64) -> Range<u64> {
    let Ok(text) = std::env::var("PANDO_SIM_SEEDS") else { return 0..usually };
    let (first, end) = text.split_once("..").expect("PANDO_SIM_SEEDS=A..B");
    first.parse().expect("a number")..end.parse().expect("a number")
}

/// Result of `operation`, unless it takes longer than `after`.
async fn cut_off<F: Future>(ep: &SimEndpoint, after: Nanos, operation: F) -> Option<F::Output> {
    let (mut operation, mut alarm) = (pin!(operation), pin!(ep.sleep_until(ep.now() + after)));
    poll_fn(|cx| match operation.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => alarm.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Whether the operation waited too long for others, or was combined with one that was cut off.
fn is_excused(error: &SmartError) -> bool {
    matches!(
        error,
        SmartError::TimedOut { .. }
            | SmartError::Combined
            | SmartError::Pool(PoolError::LockTimedOut { .. } | PoolError::WaitedTooLong { .. })
    )
}

/// Possible contents of a key: the number of a value, or `None`.
#[derive(Default)]
struct May {
    /// Current possibilities.
    now: BTreeSet<Option<u64>>,
    /// Effects of cut-off operations; a verb still in flight may take effect after later operations.
    late: Vec<Late>,
}

#[derive(Debug)]
struct Late {
    wanted: Option<u64>,
    since: Nanos,
    /// The key got a new value meanwhile, to which the late effect does not apply.
    is_over: bool,
}

impl May {
    fn absent() -> Self {
        Self { now: BTreeSet::from([None]), late: Vec::new() }
    }

    fn cut(&mut self, since: Nanos, wanted: Option<u64>) {
        if wanted.is_none() {
            self.may_be_absent();
        }
        self.late.push(Late { wanted, since, is_over: false });
    }

    /// A slot may have its earlier content again.
    fn may_be_absent(&mut self) {
        self.late.iter_mut().for_each(|late| late.is_over = false);
    }

    /// Notes the content after an operation that began at `begun`, and changed or found it.
    fn is_now(&mut self, begun: Nanos, now: Option<u64>, is_change: bool) {
        self.now = BTreeSet::from([now]);
        self.late.retain(|late| begun < late.since + SETTLED_NS);
        match now {
            None => self.may_be_absent(),
            Some(_) if is_change => self.late.iter_mut().for_each(|late| late.is_over = true),
            Some(_) => {}
        }
    }

    fn check(&self, k: u64, found: Option<u64>) {
        let Self { now, late } = self;
        let is_late = late.iter().any(|late| late.wanted == found && !late.is_over);
        assert!(now.contains(&found) || is_late, "key {k}: {found:?}, but {now:?} and late {late:?}");
    }
}

/// A slot with its own keys.
struct Owner<'c> {
    smart: &'c Smart,
    ep: &'c SimEndpoint,
    may: BTreeMap<u64, May>,
    cut: u64,
}

impl Owner<'_> {
    async fn operate(&mut self, k: u64, n: u64) {
        let (smart, ep, key, new) = (self.smart, self.ep, Shape::Dense.key(k), value(k, n));
        let kind = ep.random() >> 40 & 3;
        let wanted = (kind != 0).then_some(n);
        let change = async {
            match kind {
                0 => smart.remove(ep, &key).await,
                _ => smart.put(ep, &key, &new).await.map(|_| true),
            }
        };
        let after = match (ep.random() >> 20).is_multiple_of(CUT_EVERY) {
            true => ep.random() % CUT_NS_MAX,
            false => Nanos::MAX / 2,
        };
        let may = self.may.get_mut(&k).expect("an own key");
        let begun = ep.now();
        match cut_off(ep, after, change).await {
            Some(Ok(true)) => may.is_now(begun, wanted, true),
            Some(Ok(false)) => {
                may.check(k, None);
                may.is_now(begun, None, false);
            }
            Some(Err(error)) => {
                assert!(is_excused(&error), "{error}");
                may.cut(ep.now(), wanted);
            }
            None => {
                self.cut += 1;
                may.cut(ep.now(), wanted);
            }
        }
        let (begun, mut out) = (ep.now(), Vec::new());
        match smart.get(ep, &key, &mut out).await {
            Ok(found) => {
                let found = found.then(|| number_of(k, &out));
                may.check(k, found);
                may.is_now(begun, found, false);
            }
            Err(error) => assert!(is_excused(&error), "{error}"),
        }
    }
}

/// Runs one history; returns the number of operations that were cut off.
fn run(seed: u64, techniques: Techniques, is_partitioned: bool) -> u64 {
    // WRITEs that are in flight for long, and in parts.
    let faults = Faults { torn_share: 0.5, spike_share: 0.1, spike_ns: SPIKE_NS, ..Faults::default() };
    let model = Model { faults, ..Model::default() };
    let config = SimConfig { regions: vec![8 << 20; 2], compute_servers: SERVERS, seed, model };
    let fabric = SimFabric::new(&config).expect("a sound model");
    let ep = fabric.direct(seed);
    let options = PoolOptions::new(AttachOptions::embedded().wait_ns_max(PATIENCE_NS));
    let pool = block_on(&ep, Pool::create(&ep, options)).expect("a pool");
    let mut config = block_on(&ep, Setup::new(techniques).create(&ep, &pool));
    config.patience_ns = PATIENCE_NS;
    let middle = (KEYS / 2).to_be_bytes().to_vec();
    let parts = [
        Partition { low: Bound::Unbounded, high: Bound::Excluded(middle.clone()) },
        Partition { low: Bound::Included(middle), high: Bound::Unbounded },
    ];
    let open = |part: &Partition| {
        let config = SmartConfig { partition: is_partitioned.then(|| part.clone()), ..config.clone() };
        block_on(&ep, Smart::open(&ep, pool.clone(), config)).expect("opened")
    };
    let indexes: Vec<_> = parts.iter().map(open).collect();
    let threads: Vec<_> =
        (0..THREADS).map(|thread| fabric.thread(thread % SERVERS, seed * 10 + thread as u64)).collect();
    let owned = fabric.run(&threads.iter().collect::<Vec<_>>(), SLOTS as u32, |thread, slot| {
        let (smart, ep) = (&indexes[thread % SERVERS], &threads[thread]);
        let row = KEYS / SERVERS as u64;
        let first = (thread % SERVERS) as u64 * row;
        let member = (thread / SERVERS) as u64 * SLOTS + u64::from(slot);
        let members = THREADS as u64 * SLOTS / SERVERS as u64;
        async move {
            let own: Vec<u64> = (first + member..first + row).step_by(members as usize).collect();
            let may = own.iter().map(|&k| (k, May::absent())).collect();
            let mut owner = Owner { smart, ep, may, cut: 0 };
            let mut n = 0;
            while ep.now() < OVER_AT {
                n += 1;
                let k = own[(ep.random() >> 20) as usize % own.len()];
                owner.operate(k, n).await;
            }
            // Verbs in flight have ended, and leftovers can be finished.
            for _ in 0..2 {
                smart.settle(ep).await.expect("no error");
                ep.sleep_until(ep.now() + PATIENCE_NS).await;
            }
            smart.settle(ep).await.expect("no error");
            (thread % SERVERS, owner.may, owner.cut)
        }
    });
    let audit = block_on(&ep, indexes[0].audit(&ep)).expect("no error");
    let wrong: Vec<_> = audit.violations.iter().filter(|what| !what.contains("frozen")).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let ep = fabric.thread(0, 1);
    let mut cut_off = 0;
    for (server, may, cut) in owned.into_iter().flatten() {
        cut_off += cut;
        for (k, may) in may {
            let (key, mut out) = (Shape::Dense.key(k), Vec::new());
            let found = block_on(&ep, indexes[server].get(&ep, &key, &mut out)).expect("no error");
            let found = found.then(|| number_of(k, &out));
            may.check(k, found);
            let put = || block_on(&ep, indexes[server].put(&ep, &key, &value(k, 5)));
            // The replacement of a node may take longer than the time limit.
            let excused =
                (0..5).map_while(|_| put().err()).inspect(|error| assert!(is_excused(error), "{error}"));
            assert!(excused.count() < 5, "key {k} cannot be changed any more");
        }
    }
    cut_off
}

#[test]
fn what_was_cut_off_was_done_or_not() {
    for seed in seeds(20) {
        for (name, techniques) in Techniques::STEPS {
            eprintln!("seed {seed}, {name}");
            assert!(run(seed, techniques, false) > 0, "nothing was cut off");
        }
    }
}

#[test]
fn what_was_cut_off_was_done_or_not_with_partitions() {
    for seed in seeds(20) {
        for (name, techniques) in Techniques::STEPS {
            eprintln!("seed {seed}, {name}");
            assert!(run(seed, techniques, true) > 0, "nothing was cut off");
        }
    }
}
