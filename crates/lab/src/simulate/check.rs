//! Conditions that a history must meet.
//!
//! - *Operations on one key* are linearizable, key by key ([`linear`](super::linear)). What SMART read while a memory server was
//!   lost is not looked at ([`History::undone`]).
//! - *Scans* return keys of their range, in order, each once, up to their limit. For each key that a scan
//!   passed, its result states what the key held at some time during the scan: that value, or nothing. These
//!   statements are lookups in the histories of their keys, so a scan must neither miss a key that was
//!   present throughout nor show one that was absent.
//! - *Failures* occur only during faults: an operation that began after the last fault ended succeeds.
//! - *Progress*: every operation ends within a bound of virtual time after its start and after the end of
//!   faults.
//!
//! The effect of a failed change is unknown, unless its error says that nothing happened: it may take effect
//! at any later time, or never.

use pando_fabric::Nanos;
use serde::Serialize;

use super::client::longest;
use super::history::{Answer, Entries, History, Key, Op, Record, Scan};
use super::linear::{self, Event, Found, Held, Left, Rejection, Step, Value};

/// Kind of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// No order explains the answers on one key.
    Answers,
    /// A scan returned an entry that it must not return.
    Scan,
    /// An operation failed without a fault.
    Failure,
    /// An operation did not end in time.
    Progress,
    /// The auditor found a violation at rest.
    Audit,
    /// The code under test panicked.
    Panic,
    /// The search for an order took too long; no error is proven.
    Undecided,
}

/// A condition that was not met.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    pub kind: Kind,
    /// Description in one sentence.
    pub what: String,
    /// The operations around it, one per line.
    pub excerpt: String,
}

/// Result of a complete run, checked.
#[derive(Default)]
pub struct Judged {
    pub operations: u64,
    /// Number of failed operations.
    pub failed: u64,
    /// Virtual time of the end.
    pub ended: Nanos,
    /// Hash of the whole history.
    pub hash: u64,
    pub violations: Vec<Violation>,
}

/// Number of reported violations of one kind; further ones are mostly repetitions.
const TOLD: usize = 5;
/// Number of steps shown before a violation; half as many are shown after it.
const AROUND: usize = 12;

/// Returns all violations of a history whose last fault ended at `calm`.
pub fn check(history: &History, calm: Nanos) -> Vec<Violation> {
    let mut violations = Vec::new();
    let failures = history.records.iter().filter_map(|record| check_end(history, record, calm));
    violations.extend(failures.take(TOLD));
    violations.extend(history.records.iter().filter_map(|record| check_scan(history, record)).take(TOLD));
    let mut events: Vec<Vec<Event>> = vec![Vec::new(); history.known];
    for (number, record) in history.records.iter().enumerate() {
        add_events(&mut events, history, number, record);
    }
    let keys = events.iter().zip(0..);
    violations.extend(keys.filter_map(|(events, key)| check_key(history, key, events)).take(TOLD));
    violations
}

/// Checks that the operation ended in time and, after `calm`, without failure.
fn check_end(history: &History, record: &Record, calm: Nanos) -> Option<Violation> {
    let key = history.names.len() as Key;
    let longest = longest(&record.op, history.names.len(), history.waits);
    let began = record.invoked_at.max(calm);
    let told = |kind, what: String| {
        Some(Violation { kind, what, excerpt: format!("  {}\n", history.line(record, key)) })
    };
    match &record.returned {
        None => told(Kind::Progress, "an operation never ended".into()),
        Some((_, _, Answer::Stuck)) => {
            told(Kind::Progress, format!("an operation did not end within {} ms", longest / 1_000_000))
        }
        Some((_, at, _)) if at.saturating_sub(began) > longest => {
            told(Kind::Progress, format!("an operation took {} ms", (at - began) / 1_000_000))
        }
        Some(_) => {
            let why = record.failure().filter(|_| record.is_broken(calm))?;
            told(Kind::Failure, format!("an operation failed although nothing was wrong any more: {why}"))
        }
    }
}

fn check_scan(history: &History, record: &Record) -> Option<Violation> {
    let (Op::Scan(scan), Some((.., Answer::Entries(Entries { found, .. })))) = (&record.op, &record.returned)
    else {
        return None;
    };
    let told = |what: String, key| {
        let excerpt = format!("  {}\n", history.line(record, key));
        Some(Violation { kind: Kind::Scan, what, excerpt })
    };
    if let Some((key, _)) = found.iter().find(|(key, _)| !scan.keys.contains(key)) {
        let range = format!("{} to {}", scan.keys.start, scan.keys.end - 1);
        return told(format!("a scan of keys {range} handed out key {}", history.name(*key)), *key);
    }
    let in_order =
        |pair: &&[(Key, Value)]| if scan.reverse { pair[0].0 > pair[1].0 } else { pair[0].0 < pair[1].0 };
    if let Some(pair) = found.windows(2).find(|pair| !in_order(pair)) {
        let (before, after) = (history.name(pair[0].0), history.name(pair[1].0));
        return told(format!("a scan handed out key {after} after key {before}"), pair[1].0);
    }
    if found.len() > scan.limit {
        return told(format!("a scan of {} entries handed out {}", scan.limit, found.len()), found[0].0);
    }
    None
}

/// The keys that a scan passed: its whole range, unless it ended early.
fn passed(scan: &Scan, entries: &Entries) -> std::ops::Range<Key> {
    let ended_early = entries.failed.is_some() || entries.found.len() >= scan.limit;
    match (ended_early, entries.found.last(), scan.reverse) {
        (false, ..) => scan.keys.clone(),
        (true, None, _) => scan.keys.start..scan.keys.start,
        (true, Some((last, _)), false) => scan.keys.start..last + 1,
        (true, Some((last, _)), true) => *last..scan.keys.end,
    }
}

/// Adds the effects of an operation to the histories of its keys.
fn add_events(events: &mut [Vec<Event>], history: &History, number: usize, record: &Record) {
    let returned = record.returned.as_ref();
    let step = returned.map(|(step, ..)| *step);
    let undone = &history.undone;
    let is_sure = record.invoked_at >= undone.end || returned.is_some_and(|(_, at, _)| *at < undone.start);
    let mut add = |key: Key, found: Found, left: Left, returned: Option<Step>| {
        let found = if is_sure { found } else { Found::Anything };
        // A key that is not of the run is a violation of its scan.
        if let Some(events) = events.get_mut(key as usize) {
            events.push(Event { found, left, invoked: record.invoked, returned, record: number });
        }
    };
    let holds = |value: Option<Value>| value.map_or(Found::Absent, Found::Exactly);
    let leaves = |value: Option<Value>| value.map_or(Left::Absent, Left::Value);
    let known = |present: bool| if present { Found::Present } else { Found::Absent };
    match (&record.op, returned.map(|(.., answer)| answer)) {
        (Op::Get(key) | Op::Swap { key, .. }, Some(Answer::Found(found))) => {
            add(*key, holds(*found), Left::AsItWas, step);
        }
        (Op::Put(key, value), Some(Answer::Flag(existed))) => {
            add(*key, known(*existed), Left::Value(*value), step);
        }
        (Op::Insert(key, value), Some(Answer::Flag(done))) => {
            add(*key, known(!*done), if *done { Left::Value(*value) } else { Left::AsItWas }, step);
        }
        (Op::Update(key, value), Some(Answer::Flag(done))) => {
            add(*key, known(*done), if *done { Left::Value(*value) } else { Left::AsItWas }, step);
        }
        (Op::Remove(key), Some(Answer::Flag(existed))) => {
            add(*key, known(*existed), if *existed { Left::Absent } else { Left::AsItWas }, step);
        }
        (Op::Swap { key, expected, new }, Some(Answer::Swapped)) => {
            add(*key, holds(*expected), leaves(*new), step)
        }
        (Op::MultiGet(keys), Some(Answer::Values(values))) => {
            keys.iter().zip(values).for_each(|(key, value)| add(*key, holds(*value), Left::AsItWas, step));
        }
        (Op::Scan(scan), Some(Answer::Entries(entries))) => {
            let mut found: Vec<Option<Value>> = vec![None; scan.keys.len()];
            for (key, value) in entries.found.iter().filter(|(key, _)| scan.keys.contains(key)) {
                found[(key - scan.keys.start) as usize] = Some(*value);
            }
            for key in passed(scan, entries) {
                add(key, holds(found[(key - scan.keys.start) as usize]), Left::AsItWas, step);
            }
        }
        // It failed without effect.
        (_, Some(Answer::Failed(failure))) if !failure.may_have_taken_effect => {}
        // It failed, or never returned: the event that occurs if it takes effect.
        (Op::Put(key, value), _) => add(*key, Found::Anything, Left::Value(*value), None),
        (Op::Insert(key, value), _) => add(*key, Found::Absent, Left::Value(*value), None),
        (Op::Update(key, value), _) => add(*key, Found::Present, Left::Value(*value), None),
        (Op::Remove(key), _) => add(*key, Found::Present, Left::Absent, None),
        (Op::Swap { key, expected, new }, _) => add(*key, holds(*expected), leaves(*new), None),
        (Op::Get(_) | Op::MultiGet(_) | Op::Scan(_) | Op::Flush | Op::Move, _) => {}
    }
}

fn check_key(history: &History, key: Key, events: &[Event]) -> Option<Violation> {
    let (held, record) = match linear::check(events, history.before[key as usize]) {
        Ok(()) => return None,
        Err(Rejection::Undecided) => {
            let what =
                format!("the search gave up on {} operations on key {}", events.len(), history.name(key));
            return Some(Violation { kind: Kind::Undecided, what, excerpt: String::new() });
        }
        Err(Rejection::Impossible { held, record }) => (held, record),
    };
    let held = match held {
        Held::Absent => "nothing".to_owned(),
        Held::Value(value) => history.value(value),
        Held::Unseen => "a value that nobody saw".to_owned(),
    };
    let blamed = &history.records[record];
    let what = format!(
        "no order explains the answers on key {}: where it holds {held}, there is no place for `{}`",
        history.name(key),
        history.line(blamed, key).trim_start()
    );
    Some(Violation { kind: Kind::Answers, what, excerpt: around(history, key, events, blamed) })
}

/// The operations on `key` shortly before and after `blamed`.
fn around(history: &History, key: Key, events: &[Event], blamed: &Record) -> String {
    let mut steps: Vec<Step> =
        events.iter().flat_map(|event| [Some(event.invoked), event.returned]).flatten().collect();
    steps.sort_unstable();
    let end = blamed.returned.as_ref().map_or(blamed.invoked, |(step, ..)| *step);
    let before = steps.partition_point(|&step| step < blamed.invoked).saturating_sub(AROUND);
    let after = (steps.partition_point(|&step| step <= end) + AROUND / 2).min(steps.len() - 1);
    history.excerpt(key, steps[before], steps[after])
}
