//! A few keys shared by all slots: lookups are checked for linearizability against concurrent puts and
//! removals.
//!
//! Every value is put once. A lookup must not see a value before its put began, nor a value replaced by a put
//! or removal that began after the value's put had ended and ended before the lookup began.

use std::cell::RefCell;

use pando_fabric::{Endpoint, Nanos};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_sim::{Faults, Model, SimConfig, SimFabric};
use pando_smart::{Smart, SmartConfig, SmartError};

use super::{Setup, number_of, value};

/// An operation that happened between two moments. `None` is no entry.
struct Event {
    key: u64,
    began: Nanos,
    /// Never, if it is not known whether it took effect.
    ended: Nanos,
    is_change: bool,
    value: Option<u64>,
}

/// Operations on some keys.
pub struct History {
    keys: u64,
    events: RefCell<Vec<Event>>,
}

impl History {
    /// A history of absent keys.
    pub fn new(keys: u64) -> Self {
        let nothing = |key| Event { key, began: 0, ended: 0, is_change: true, value: None };
        Self { keys, events: RefCell::new((0..keys).map(nothing).collect()) }
    }

    /// Two keys part late: one of them alone is a leaf, both are below a node.
    pub fn name(key: u64) -> [u8; 8] {
        ((key / 2) << 56 | (key % 2) << 16).to_be_bytes()
    }

    /// Performs a random operation with a unique value. `excuses` tells which errors may happen.
    pub async fn operate<E: Endpoint>(
        &self,
        smart: &Smart,
        ep: &E,
        number: u64,
        excuses: impl Fn(&SmartError) -> bool,
    ) {
        let key = ep.random() % self.keys;
        let (name, new) = (Self::name(key), value(key, number));
        let began = ep.now();
        let (wanted, done) = match ep.random() >> 40 & 7 {
            // A removal or an update that found nothing counts as a lookup.
            0 => (Some(None), smart.remove(ep, &name).await.map(|existed| (existed, None))),
            1 | 2 => (Some(Some(number)), smart.put(ep, &name, &new).await.map(|_| (true, Some(number)))),
            3 => {
                let updated = smart.update(ep, &name, &new).await;
                (Some(Some(number)), updated.map(|updated| (updated, updated.then_some(number))))
            }
            _ => {
                let mut out = Vec::new();
                let found = smart.get(ep, &name, &mut out).await;
                (None, found.map(|found| (false, found.then(|| number_of(key, &out)))))
            }
        };
        let (is_change, value, ended) = match (done, wanted) {
            (Ok((is_change, value)), _) => (is_change, value, ep.now()),
            (Err(error), wanted) => {
                assert!(excuses(&error), "{error}");
                match wanted {
                    Some(wanted) if error.may_have_taken_effect() => (true, wanted, Nanos::MAX),
                    _ => return,
                }
            }
        };
        self.events.borrow_mut().push(Event { key, began, ended, is_change, value });
    }

    /// Describes the first lookup that cannot be explained.
    pub fn violation(&self) -> Option<String> {
        let events = self.events.borrow();
        let changes = |key: u64| events.iter().filter(move |event| event.is_change && event.key == key);
        // Time at which a lookup first returned a value: its put had taken effect by then.
        let first_seen = |seen: &Event| {
            let same =
                |event: &&Event| !event.is_change && event.key == seen.key && event.value == seen.value;
            let ended = events.iter().filter(same).map(|event| event.ended).min();
            ended.filter(|_| seen.value.is_some()).unwrap_or(Nanos::MAX)
        };
        for seen in events.iter().filter(|event| !event.is_change) {
            let began_early = |change: &&Event| change.began < seen.ended && change.value == seen.value;
            let mut sources = changes(seen.key).filter(began_early);
            let replaced = |source: &Event| {
                let over = source.ended.min(first_seen(seen));
                changes(seen.key).any(|other| other.began > over && other.ended < seen.began)
            };
            if sources.all(replaced) {
                let Event { key, value, began, ended, .. } = seen;
                return Some(format!("key {key} had {value:?} at {began}..{ended}"));
            }
        }
        None
    }
}

/// Runs one history on a simulated cluster; returns a violation in it, or in the index at the end.
pub fn run(
    seed: u64,
    setup: Setup,
    keys: u64,
    lost_answer_share: f64,
    change: impl Fn(&mut SmartConfig),
) -> Option<String> {
    const SERVERS: usize = 2;
    let faults = Faults { torn_share: 0.2, spike_share: 0.1, lost_answer_share, ..Faults::default() };
    let model = Model { faults, ..Model::default() };
    let config = SimConfig { regions: vec![4 << 20; 2], compute_servers: SERVERS, seed, model };
    let fabric = SimFabric::new(&config).expect("a sound model");
    let ep = fabric.direct(seed);
    let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
    let mut config = block_on(&ep, setup.create(&ep, &pool));
    config.patience_ns = 10_000_000;
    change(&mut config);
    let indexes: Vec<_> = (0..SERVERS)
        .map(|_| block_on(&ep, Smart::open(&ep, pool.clone(), config.clone())).expect("opened"))
        .collect();
    let threads: Vec<_> =
        (0..4).map(|thread| fabric.thread(thread % SERVERS, seed * 10 + thread as u64)).collect();
    let history = History::new(keys);
    fabric.run(&threads.iter().collect::<Vec<_>>(), 4, |thread, slot| {
        let (ep, smart, history) = (&threads[thread], &indexes[thread % SERVERS], &history);
        async move {
            for n in 0..30 {
                let number = (thread as u64 * 4 + u64::from(slot)) * 1000 + n * 11 + 1;
                history.operate(smart, ep, number, |_| lost_answer_share > 0.0).await;
                ep.pace().await;
            }
        }
    });
    let audit = block_on(&ep, indexes[0].audit(&ep)).expect("no error");
    let wrong =
        audit.violations.into_iter().find(|what| lost_answer_share == 0.0 || !what.contains("frozen"));
    history.violation().or(wrong)
}
