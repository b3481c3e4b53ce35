//! History of a run: every operation with its invocation, response and answer.
//!
//! A simulation runs on one thread of the host, so all invocations and responses have one total order, their
//! *steps*. The checks use steps: an operation precedes another if its response has a lower step than the
//! other's invocation. Virtual times serve readers and bounds of durations; clocks of threads may be a little
//! ahead of each other.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;

use pando_fabric::Nanos;
use xxhash_rust::xxh3::Xxh3;

use super::keys::Values;
use super::linear::{Step, Value};

/// A key, by its index among the keys of the run; unknown keys have higher numbers.
pub type Key = u32;

/// Request of an operation.
#[derive(Clone, Debug)]
pub enum Op {
    Get(Key),
    Put(Key, Value),
    Insert(Key, Value),
    Update(Key, Value),
    Remove(Key),
    Swap {
        key: Key,
        expected: Option<Value>,
        new: Option<Value>,
    },
    MultiGet(Vec<Key>),
    Scan(Scan),
    Flush,
    /// Keys move from one compute server to another.
    Move,
}

impl Op {
    /// The key of the operation; of several keys, the first one.
    pub fn key(&self) -> Option<Key> {
        match self {
            Self::Get(key) | Self::Put(key, _) | Self::Insert(key, _) | Self::Update(key, _) => Some(*key),
            Self::Remove(key) | Self::Swap { key, .. } => Some(*key),
            Self::MultiGet(keys) => keys.first().copied(),
            Self::Scan(_) | Self::Flush | Self::Move => None,
        }
    }
}

/// Request of a scan.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The keys that it may return.
    pub keys: std::ops::Range<Key>,
    pub limit: usize,
    pub reverse: bool,
}

/// Answer of an operation.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Answer of a get, or of a swap that found another value.
    Found(Option<Value>),
    /// Existed, inserted, updated or removed.
    Flag(bool),
    Swapped,
    Values(Vec<Option<Value>>),
    Entries(Entries),
    Done,
    Failed(Failure),
    /// It did not end within the bound of virtual time.
    Stuck,
}

/// Failure of an operation.
#[derive(Clone, Debug)]
pub struct Failure {
    pub why: String,
    /// Whether the operation may have taken effect or may still do so, according to the error.
    pub may_have_taken_effect: bool,
}

/// Result of a scan.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    pub found: Vec<(Key, Value)>,
    /// Reason for an end before the end of the range.
    pub failed: Option<String>,
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Record {
    pub thread: u32,
    pub slot: u32,
    pub op: Op,
    pub invoked: Step,
    pub invoked_at: Nanos,
    /// `None` while it is in progress.
    pub returned: Option<(Step, Nanos, Answer)>,
}

impl Record {
    pub fn touches(&self, key: Key) -> bool {
        match &self.op {
            Op::MultiGet(keys) => keys.contains(&key),
            Op::Scan(scan) => scan.keys.contains(&key),
            op => op.key() == Some(key),
        }
    }

    /// Whether the operation did not end, or began after `calm`, when all faults were over, and failed.
    pub fn is_broken(&self, calm: Nanos) -> bool {
        let stuck = matches!(self.returned, None | Some((.., Answer::Stuck)));
        stuck || (self.invoked_at > calm && self.failure().is_some())
    }

    /// Reason of the failure, if the operation failed.
    pub fn failure(&self) -> Option<&str> {
        match &self.returned.as_ref()?.2 {
            Answer::Failed(failure) => Some(&failure.why),
            Answer::Entries(entries) => entries.failed.as_deref(),
            _ => None,
        }
    }
}

/// An operation may wait for this many times its patience, if there are no leftovers.
const WAITS: Nanos = 4;

/// History in progress. All slots of a run use it, on one thread.
pub struct Book {
    pub keys: Vec<Vec<u8>>,
    numbers: RefCell<HashMap<Vec<u8>, Key>>,
    pub values: RefCell<Values>,
    /// Value of each key when the operations began.
    pub before: Vec<Option<Value>>,
    records: RefCell<Vec<Record>>,
    step: Cell<Step>,
    operations: Cell<u64>,
    /// Virtual time at which the last fault has ended.
    pub faulty_until: Cell<Nanos>,
    /// Virtual time from which no leftovers of faults disturb operations.
    pub calm: Cell<Nanos>,
    /// An operation may wait for this many times its patience.
    pub waits: Cell<Nanos>,
    /// What was read at these virtual times may have been undone: [`History::undone`].
    pub undone: RefCell<Range<Nanos>>,
    /// Virtual times at which compute servers die, and their numbers, the next one last.
    pub deaths: RefCell<Vec<(Nanos, usize)>>,
    /// Number of operations that may still be cut off.
    pub cuts_left: Cell<usize>,
    /// No further operations begin, since an error was found that time does not heal.
    pub is_over: Cell<bool>,
}

impl Book {
    pub fn new(keys: Vec<Vec<u8>>) -> Self {
        let numbers = keys.iter().cloned().zip(0..).collect();
        Self {
            before: vec![None; keys.len()],
            keys,
            numbers: RefCell::new(numbers),
            values: RefCell::default(),
            records: RefCell::default(),
            step: Cell::new(0),
            operations: Cell::new(0),
            calm: Cell::new(0),
            waits: Cell::new(WAITS),
            undone: RefCell::new(0..0),
            faulty_until: Cell::new(0),
            deaths: RefCell::default(),
            cuts_left: Cell::new(0),
            is_over: Cell::new(false),
        }
    }

    /// Number of a key that the index returned; unknown keys get new numbers.
    pub fn key(&self, bytes: &[u8]) -> Key {
        let mut numbers = self.numbers.borrow_mut();
        let next = numbers.len() as Key;
        *numbers.entry(bytes.to_vec()).or_insert(next)
    }

    pub fn value(&self, key: Key, bytes: &[u8]) -> Value {
        self.values.borrow_mut().number(key, bytes)
    }

    pub fn bytes(&self, value: Value) -> Vec<u8> {
        self.values.borrow().bytes(value).to_vec()
    }

    /// Returns a number that no other operation has.
    pub fn next_operation(&self) -> u64 {
        self.operations.set(self.operations.get() + 1);
        self.operations.get()
    }

    fn next_step(&self) -> Step {
        self.step.set(self.step.get() + 1);
        self.step.get()
    }

    pub fn begin(&self, thread: u32, slot: u32, op: Op, now: Nanos) -> usize {
        let invoked = self.next_step();
        let mut records = self.records.borrow_mut();
        records.push(Record { thread, slot, op, invoked, invoked_at: now, returned: None });
        records.len() - 1
    }

    pub fn end(&self, record: usize, answer: Answer, now: Nanos) {
        let step = self.next_step();
        let record = &mut self.records.borrow_mut()[record];
        record.returned = Some((step, now, answer));
        if record.is_broken(self.calm.get()) {
            self.is_over.set(true);
        }
    }

    /// Whether any operation failed.
    pub fn has_failures(&self) -> bool {
        self.records.borrow().iter().any(|record| record.failure().is_some())
    }

    pub fn close(self) -> History {
        let mut names = self.keys;
        let mut strange: Vec<_> = self
            .numbers
            .into_inner()
            .into_iter()
            .filter(|(_, number)| *number as usize >= names.len())
            .collect();
        strange.sort_unstable_by_key(|(_, number)| *number);
        let known = names.len();
        names.extend(strange.into_iter().map(|(key, _)| key));
        History {
            names,
            waits: self.waits.get(),
            undone: self.undone.into_inner(),
            known,
            values: self.values.into_inner(),
            before: self.before,
            records: self.records.into_inner(),
        }
    }
}

/// A finished history.
pub struct History {
    /// Bytes of all keys by number: the `known` ones of the run, ascending, then unknown ones.
    pub names: Vec<Vec<u8>>,
    pub known: usize,
    /// An operation may wait for this many times its patience.
    pub waits: Nanos,
    /// An operation that was in progress at some of these virtual times may have seen an atomic that was lost with a memory server,
    /// although others have read it (docs/replicas.md).
    pub undone: Range<Nanos>,
    values: Values,
    pub before: Vec<Option<Value>>,
    pub records: Vec<Record>,
}

impl History {
    /// Hash of all records; equal for equal histories.
    pub fn hash(&self) -> u64 {
        let mut hasher = Xxh3::new();
        for record in &self.records {
            hasher.update(format!("{record:?}").as_bytes());
        }
        hasher.digest()
    }

    /// The records that touch `key` between steps `from` and `to`, one per line.
    pub fn excerpt(&self, key: Key, from: Step, to: Step) -> String {
        let mut text = String::new();
        let touching = self.records.iter().filter(|record| record.touches(key));
        let last = |record: &Record| record.returned.as_ref().map_or(Step::MAX, |(step, ..)| *step);
        for record in touching.filter(|record| record.invoked < to && last(record) > from) {
            let _ = writeln!(text, "  {}", self.line(record, key));
        }
        text
    }

    /// One operation as far as it concerns `key`.
    pub fn line(&self, record: &Record, key: Key) -> String {
        let until = match &record.returned {
            Some((_, at, _)) => micros(*at),
            None => "never".into(),
        };
        let Record { thread, slot, .. } = record;
        let of_key = |value: &Option<Value>| value.map_or("nothing".into(), |value| self.value(value));
        let op = match &record.op {
            Op::Get(_) => "get".into(),
            Op::Put(_, value) => format!("put {}", self.value(*value)),
            Op::Insert(_, value) => format!("insert {}", self.value(*value)),
            Op::Update(_, value) => format!("update {}", self.value(*value)),
            Op::Remove(_) => "remove".into(),
            Op::Swap { expected, new, .. } => format!("swap {} for {}", of_key(expected), of_key(new)),
            Op::MultiGet(keys) => format!("multi_get of {} keys", keys.len()),
            Op::Scan(Scan { reverse: false, .. }) => "scan up".into(),
            Op::Scan(_) => "scan down".into(),
            Op::Flush => "flush".into(),
            Op::Move => "move of keys".into(),
        };
        let answer = match (&record.op, record.returned.as_ref().map(|(.., answer)| answer)) {
            (_, None) => "no answer".into(),
            (Op::MultiGet(keys), Some(Answer::Values(values))) => {
                let mut found = keys.iter().zip(values).filter(|(own, _)| **own == key);
                found.next().map_or(String::new(), |(_, value)| of_key(value))
            }
            (_, Some(Answer::Entries(entries))) => {
                let found = entries.found.iter().find(|(own, _)| *own == key).map(|(_, value)| *value);
                of_key(&found) + entries.failed.as_ref().map_or("", |_| ", then failed")
            }
            (Op::Put(..), Some(Answer::Flag(existed))) => {
                format!("{} before", if *existed { "there" } else { "not there" })
            }
            (_, Some(Answer::Flag(done))) => if *done { "done" } else { "not done" }.into(),
            (_, Some(Answer::Found(found))) => of_key(found),
            (_, Some(Answer::Failed(Failure { why, may_have_taken_effect }))) => {
                let perhaps = if *may_have_taken_effect { "perhaps" } else { "nothing happened" };
                format!("failed, {perhaps}: {why}")
            }
            (_, Some(Answer::Stuck)) => "stuck".into(),
            (_, Some(_)) => "done".into(),
        };
        format!(
            "{:>12} to {until:>12} µs  thread {thread} slot {slot}  {op} -> {answer}",
            micros(record.invoked_at)
        )
    }

    pub fn value(&self, value: Value) -> String {
        format!("v{value} ({} bytes)", self.values.bytes(value).len())
    }

    /// A key as readable text.
    pub fn name(&self, key: Key) -> String {
        let hex: String = self.names[key as usize].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("number {key}, bytes {}", if hex.is_empty() { "none" } else { &hex })
    }
}

fn micros(at: Nanos) -> String {
    format!("{}.{:03}", at / 1_000, at % 1_000)
}
