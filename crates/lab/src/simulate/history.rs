//! What happened in a run: every operation with its invocation, its response and what it answered.
//!
//! A simulation happens on one thread of the host, so that all invocations and responses have one true order, their
//! *steps*. By steps the history is checked: one operation came before another if its response has the lower step. Virtual
//! times are for people, and for how long something took; clocks of threads run ahead of each other a little.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::Write;

use pando_fabric::Nanos;
use xxhash_rust::xxh3::Xxh3;

use super::keys::Values;
use super::linear::{Step, Value};

/// A key, by its place among the keys of the run; keys that are none of them come after.
pub type Key = u32;

/// What was asked for.
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
    /// Keys go from a compute server to another.
    Move,
}

impl Op {
    /// The key that it is about; of many, the first.
    pub fn key(&self) -> Option<Key> {
        match self {
            Self::Get(key) | Self::Put(key, _) | Self::Insert(key, _) | Self::Update(key, _) => Some(*key),
            Self::Remove(key) | Self::Swap { key, .. } => Some(*key),
            Self::MultiGet(keys) => keys.first().copied(),
            Self::Scan(_) | Self::Flush | Self::Move => None,
        }
    }
}

/// A scan.
#[derive(Clone, Debug)]
pub struct Scan {
    /// First key that it may hand out, and the one after the last.
    pub keys: std::ops::Range<Key>,
    pub limit: usize,
    pub reverse: bool,
}

/// What was answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Of a get, or of a swap that found something else.
    Found(Option<Value>),
    /// Existed, inserted, updated, removed.
    Flag(bool),
    Swapped,
    Values(Vec<Option<Value>>),
    Entries(Entries),
    Done,
    Failed(Failure),
    /// Not within the bound of virtual time.
    Stuck,
}

/// How an operation failed.
#[derive(Clone, Debug)]
pub struct Failure {
    pub why: String,
    /// Whether it may have taken effect, or may yet, by what it said.
    pub may_have_taken_effect: bool,
}

/// What a scan handed out.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    pub found: Vec<(Key, Value)>,
    /// Why it ended before its range did.
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
    /// `None` while it is under way.
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

    /// Whether it did not end, or failed although all was well from `calm` on.
    pub fn is_broken(&self, calm: Nanos) -> bool {
        let stuck = matches!(self.returned, None | Some((.., Answer::Stuck)));
        stuck || (self.invoked_at > calm && self.failure().is_some())
    }

    /// What went wrong with it, if it did.
    pub fn failure(&self) -> Option<&str> {
        match &self.returned.as_ref()?.2 {
            Answer::Failed(failure) => Some(&failure.why),
            Answer::Entries(entries) => entries.failed.as_deref(),
            _ => None,
        }
    }
}

/// How many times its patience an operation waits at most, where nothing is left over.
const WAITS: Nanos = 4;

/// The history under way. Its methods are called by all slots of a run, on one thread.
pub struct Book {
    pub keys: Vec<Vec<u8>>,
    numbers: RefCell<HashMap<Vec<u8>, Key>>,
    pub values: RefCell<Values>,
    /// What each key held when the operations began.
    pub before: Vec<Option<Value>>,
    records: RefCell<Vec<Record>>,
    step: Cell<Step>,
    operations: Cell<u64>,
    /// When the last fault has ended, in virtual time.
    pub faulty_until: Cell<Nanos>,
    /// When what it left can be finished.
    pub calm: Cell<Nanos>,
    /// How many times its patience an operation may wait.
    pub waits: Cell<Nanos>,
    /// How many operations still may be cut off while there are faults.
    pub cuts_left: Cell<usize>,
    /// No more operations are to begin: something is wrong that time will not mend.
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
            faulty_until: Cell::new(0),
            cuts_left: Cell::new(0),
            is_over: Cell::new(false),
        }
    }

    /// The number of a key that something gave back.
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

    /// A number that no operation had before.
    pub fn next_operation(&self) -> u64 {
        self.operations.set(self.operations.get() + 1);
        self.operations.get()
    }

    fn next_step(&self) -> Step {
        self.step.set(self.step.get() + 1);
        self.step.get()
    }

    pub fn begin(&self, (thread, slot): (u32, u32), op: Op, now: Nanos) -> usize {
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
            known,
            values: self.values.into_inner(),
            before: self.before,
            records: self.records.into_inner(),
        }
    }
}

/// A finished history.
pub struct History {
    /// The bytes of all keys by number: the `known` ones of the run, ascending, then any others that came up.
    pub names: Vec<Vec<u8>>,
    pub known: usize,
    /// How many times its patience an operation may wait.
    pub waits: Nanos,
    values: Values,
    pub before: Vec<Option<Value>>,
    pub records: Vec<Record>,
}

impl History {
    /// Two histories with one hash are the same.
    pub fn hash(&self) -> u64 {
        let mut hasher = Xxh3::new();
        for record in &self.records {
            hasher.update(format!("{record:?}").as_bytes());
        }
        hasher.digest()
    }

    /// The records that touch `key` at steps `from..to`, a line each.
    pub fn excerpt(&self, key: Key, from: Step, to: Step) -> String {
        let mut text = String::new();
        let touching = self.records.iter().filter(|record| record.touches(key));
        let last = |record: &Record| record.returned.as_ref().map_or(Step::MAX, |(step, ..)| *step);
        for record in touching.filter(|record| record.invoked < to && last(record) > from) {
            let _ = writeln!(text, "  {}", self.line(record, key));
        }
        text
    }

    /// One operation, as far as it concerns `key`.
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

    /// A key as people read it.
    pub fn name(&self, key: Key) -> String {
        let hex: String = self.names[key as usize].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("number {key}, bytes {}", if hex.is_empty() { "none" } else { &hex })
    }
}

fn micros(at: Nanos) -> String {
    format!("{}.{:03}", at / 1_000, at % 1_000)
}
