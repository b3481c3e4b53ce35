//! The input of the fuzz target.

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use pando::{CacheOptions, Eviction, IndexOptions};

#[derive(Arbitrary, Clone, Debug)]
pub struct Case {
    pub shape: Shape,
    cache: CacheChoice,
    pub in_file: bool,
    pub tight_pool: bool,
    memory_servers: u8,
    pub compute_servers: u8,
    pub loaded: Vec<(Key, Value)>,
    pub fill: u8,
    pub ops: Vec<Op>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Shape {
    Fixed { large_nodes: bool, entries: u8 },
    Slotted { large_nodes: bool, entries: u8 },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct CacheChoice {
    frames: u8,
    leaf_admission: u8,
    random: bool,
    fifo: bool,
    unswizzled: bool,
}

/// A key by its number, from which [`Shape::key`] computes its bytes.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Key {
    number: u16,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Value {
    len: u8,
    filler: u8,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Bound {
    None,
    With(Key),
    Without(Key),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Run {
    first: u16,
    step: u8,
    count: u8,
}

#[derive(Arbitrary, Clone, Debug)]
pub enum Op {
    Get(Key),
    MultiGet(Vec<Key>),
    Put(Key, Value),
    Insert(Key, Value),
    Update(Key, Value),
    Remove(Key),
    /// Uses the present value as the expected one if the first field is true.
    Swap(bool, Key, Option<Value>, Option<Value>),
    PutRun(Run, Value),
    RemoveRun(Run),
    Scan {
        low: Bound,
        high: Bound,
        limit: Option<u8>,
        reverse: bool,
    },
    /// Puts keys, or removes them if there is no value, in this many slots.
    InFlight {
        slots: u8,
        run: Run,
        value: Option<Value>,
    },
    Flush,
    Check,
    /// Closes a pool in a file and reopens it with this many compute servers.
    Reopen(Option<u8>),
    /// Removes everything and loads these entries.
    Reload(Vec<(Key, Value)>, u8),
}

/// Number of distinct keys.
const NUMBERS: u16 = 1024;

impl Case {
    pub fn index_options(&self) -> IndexOptions {
        let (options, entries) = match self.shape {
            Shape::Fixed { entries, .. } => (IndexOptions::integers(), entries),
            Shape::Slotted { entries, .. } => (IndexOptions::bytes(), entries),
        };
        let options = options.node_size(self.node_size());
        match entries % 8 {
            0 => options,
            limit => options.fanout_limit(usize::from(limit) + 2),
        }
    }

    fn node_size(&self) -> usize {
        match self.shape {
            Shape::Fixed { large_nodes, .. } => 256 << u8::from(large_nodes),
            Shape::Slotted { large_nodes, .. } => 512 << u8::from(large_nodes),
        }
    }

    pub fn cache_bytes(&self) -> u64 {
        let frames = 8 + u64::from(self.cache.frames % 32);
        frames * self.node_size() as u64
    }

    pub fn cache_options(&self) -> CacheOptions {
        CacheOptions {
            leaf_admission: f64::from(self.cache.leaf_admission) / 255.0,
            eviction: if self.cache.random { Eviction::Random } else { Eviction::PathAware },
            fifo: self.cache.fifo,
            swizzle: !self.cache.unswizzled,
            ..CacheOptions::default()
        }
    }

    pub fn memory_servers(&self) -> usize {
        1 + usize::from(self.memory_servers % 3)
    }
}

pub fn servers(choice: u8) -> usize {
    1 + usize::from(choice % 5)
}

impl Run {
    pub fn keys(self) -> impl Iterator<Item = Key> {
        (0..u16::from(self.count % 128))
            .map(move |i| Key { number: self.first.wrapping_add(i.wrapping_mul(u16::from(self.step) + 1)) })
    }
}

impl Shape {
    /// Keys of 8 bytes, or of 2 to 128, some of which are prefixes of others.
    pub fn key(self, key: Key) -> Vec<u8> {
        let number = key.number % NUMBERS;
        match self {
            Self::Fixed { .. } => (u64::from(number) << 54).to_be_bytes().to_vec(),
            Self::Slotted { .. } => {
                let mut bytes = number.to_be_bytes().to_vec();
                bytes[0] = bytes[0] << 6 | (number % 5) as u8;
                let tail = if number % 2 == 0 { 0 } else { 0xff };
                bytes.extend(std::iter::repeat_n(tail, usize::from(number) * 7 % 127));
                bytes
            }
        }
    }

    /// Values of 8 bytes, or of none up to more than fits into a node.
    pub fn value(self, value: Value) -> Vec<u8> {
        match self {
            Self::Fixed { .. } => vec![value.filler; 8],
            Self::Slotted { .. } => {
                let len = usize::from(value.len);
                let len = if len < 224 { len % 60 } else { (len - 223) * 100 };
                (0..len).map(|i| value.filler.wrapping_add(i as u8)).collect()
            }
        }
    }
}
