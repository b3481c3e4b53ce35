//! Few keys that everybody works on: what lookups see of puts and removals by others is checked for linearizability.
//!
//! Every value is put once. A lookup must not see a value before its put began, nor one that another put or removal
//! replaced which began after that put had ended and ended before the lookup began.

use std::cell::RefCell;

use pando_fabric::{Endpoint, Nanos};
use pando_smart::{Smart, SmartError};

use super::{number_of, value};

/// An operation that happened between two moments. `None` is no entry.
struct Event {
    key: u64,
    began: Nanos,
    /// Never, if nobody knows whether it took effect.
    ended: Nanos,
    is_change: bool,
    value: Option<u64>,
}

/// What was done to some keys.
pub struct History {
    keys: u64,
    events: RefCell<Vec<Event>>,
}

impl History {
    /// Of keys that are absent.
    pub fn new(keys: u64) -> Self {
        let nothing = |key| Event { key, began: 0, ended: 0, is_change: true, value: None };
        Self { keys, events: RefCell::new((0..keys).map(nothing).collect()) }
    }

    /// Two keys part late: where one is there is a leaf, where both are there is a node.
    pub fn name(key: u64) -> [u8; 8] {
        ((key / 2) << 56 | (key % 2) << 16).to_be_bytes()
    }

    /// A random operation, with a value that nobody else has. `excuses` says which errors may happen.
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
            // A removal or an update that found nothing is a lookup.
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

    /// A sentence for the first lookup that cannot be explained.
    pub fn violation(&self) -> Option<String> {
        let events = self.events.borrow();
        let changes = |key: u64| events.iter().filter(move |event| event.is_change && event.key == key);
        for seen in events.iter().filter(|event| !event.is_change) {
            let began_early = |change: &&Event| change.began < seen.ended && change.value == seen.value;
            let mut sources = changes(seen.key).filter(began_early);
            let replaced = |source: &Event| {
                changes(seen.key).any(|other| other.began > source.ended && other.ended < seen.began)
            };
            if sources.all(replaced) {
                let Event { key, value, began, ended, .. } = seen;
                return Some(format!("key {key} had {value:?} at {began}..{ended}"));
            }
        }
        None
    }
}
