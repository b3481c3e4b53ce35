//! Values that a concurrent reader may legally see: the oracle behind `--verify`.
//!
//! Every write of a key gets the key's next sequence number ([`Expectation::issue`]) and is acknowledged when
//! it is done ([`Expectation::ack`]). A write is *overwritten* once another write, issued after its
//! acknowledgement, is acknowledged too. A read may return any write that was not overwritten when the read
//! began and that was issued before it ended. An older value is a stale read or a lost update; a newer one
//! was never written.
//!
//! The table takes 2 bytes per key number, and memory is touched only for keys that are written. That is
//! enough for a key without concurrent writers: its word holds the sequence, and a bit that marks the write
//! as in flight. A key that is written concurrently moves permanently to a side table, which lists the writes
//! that may still be visible exactly. Only popular keys get there.
//!
//! A new key (see [`crate::keys`]) is absent at sequence 0 and stays present after its first insert.

use crate::error::SpecError;
use crate::keys::{NewKeyOrder, is_loaded};
use crate::rng::mix64;
use crate::values::ValueCodec;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zerocopy::FromZeros;

/// The word's key is in the side table; the other bits are meaningless.
const CONTENDED: u16 = 1 << 15;
/// The write with the word's sequence is not acknowledged yet. The only other candidate is the one before it.
const IN_FLIGHT: u16 = 1 << 14;
const WORD_SEQUENCE: u16 = IN_FLIGHT - 1;
const SHARDS: usize = 64;

/// A wrong answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    #[error("key number {key_number} is missing")]
    Missing { key_number: u64 },
    #[error("key number {key_number} was found, though it was never inserted")]
    NeverInserted { key_number: u64 },
    #[error(
        "key number {key_number} has the value of write {found}, which is not one of {oldest} to {newest}"
    )]
    WrongWrite { key_number: u64, found: u32, oldest: u32, newest: u32 },
    #[error("key number {key_number} came out of order")]
    OutOfOrder { key_number: u64 },
}

/// Certain facts about a key when a read of it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// The oldest write that may be visible.
    oldest: u32,
    /// Whether the key is certainly present.
    present: bool,
}

impl Floor {
    pub(crate) fn is_present(self) -> bool {
        self.present
    }
}

/// Legal answers for every key number of a workload, shared by all threads.
#[derive(Debug)]
pub struct Expectation {
    records: u64,
    sequence_bits: u32,
    /// Loaded keys first, then new keys in their insertion order, so that memory is touched only for inserted
    /// keys.
    words: Box<[AtomicU16]>,
    order: NewKeyOrder,
    /// One bit per new key, in the same order: set once an insert of it was acknowledged.
    present: Box<[AtomicU64]>,
    contended: Box<[Mutex<ContendedKeys>]>,
}

type ContendedKeys = HashMap<u64, Contended, BuildHasherDefault<KeyHasher>>;

impl Expectation {
    /// Creates a table for `records` loaded records, each at sequence 0, and as many absent new keys.
    ///
    /// # Errors
    /// There is no memory for 4 bytes per record.
    pub fn new(records: u64, values: &ValueCodec) -> Result<Expectation, SpecError> {
        let no_memory = || SpecError::NoMemory { bytes: records.saturating_mul(4) };
        let key_numbers =
            records.checked_mul(2).and_then(|n| usize::try_from(n).ok()).ok_or_else(no_memory)?;
        let bitmap_words = key_numbers.div_ceil(2).div_ceil(64);
        Ok(Expectation {
            records,
            sequence_bits: values.sequence_bits(),
            order: NewKeyOrder::new(records.max(1)),
            words: <[AtomicU16]>::new_box_zeroed_with_elems(key_numbers).map_err(|_| no_memory())?,
            present: <[AtomicU64]>::new_box_zeroed_with_elems(bitmap_words).map_err(|_| no_memory())?,
            contended: (0..SHARDS).map(|_| Mutex::default()).collect(),
        })
    }

    /// Announces a write, before it starts. Returns the sequence for the value.
    pub fn issue(&self, key_number: u64) -> u32 {
        let word = self.word(key_number);
        loop {
            let old = word.load(Ordering::Acquire);
            if old & (CONTENDED | IN_FLIGHT) == 0 {
                let next = (old + 1) & WORD_SEQUENCE;
                if swap(word, old, next | IN_FLIGHT) {
                    return u32::from(next);
                }
            } else if let Some(sequence) = self.issue_contended(key_number, old) {
                return sequence;
            }
        }
    }

    /// Reports a completed write: readers that begin from now on must see it or a later one.
    pub fn ack(&self, key_number: u64, sequence: u32) {
        self.mark_present(key_number);
        let word = self.word(key_number);
        let settled = sequence as u16 & WORD_SEQUENCE;
        if !swap(word, settled | IN_FLIGHT, settled) {
            self.with_contended(key_number, |key| key.finish(sequence, true));
        }
    }

    /// Reports a failed write, which may or may not have happened.
    pub fn fail(&self, key_number: u64, sequence: u32) {
        self.contend(key_number);
        self.with_contended(key_number, |key| key.finish(sequence, false));
    }

    /// Records what is certain now. Call it before the read starts.
    #[inline]
    pub fn before_read(&self, key_number: u64) -> Floor {
        // Presence first: the first insert sets it after its sequence.
        let present = self.surely_present(key_number);
        let word = self.word(key_number).load(Ordering::Acquire);
        let oldest = if word & CONTENDED != 0 {
            self.with_contended(key_number, |key| key.oldest())
        } else {
            let in_flight = u16::from(word & IN_FLIGHT != 0);
            u32::from((word & WORD_SEQUENCE).wrapping_sub(in_flight) & WORD_SEQUENCE)
        };
        Floor { oldest, present }
    }

    /// Checks the result of a read: the sequence of the value, or `None` for no value. Call it after the read
    /// ended.
    ///
    /// # Errors
    /// No legal order of the writes allows that answer.
    #[inline]
    pub fn check_read(&self, key_number: u64, before: Floor, found: Option<u32>) -> Result<(), Violation> {
        let Some(found) = found else {
            return if before.present { Err(Violation::Missing { key_number }) } else { Ok(()) };
        };
        self.check_exists(key_number)?;
        let word = self.word(key_number).load(Ordering::Acquire);
        let (newest, bits) = if word & CONTENDED != 0 {
            (self.with_contended(key_number, |key| key.newest()), u32::BITS)
        } else {
            (u32::from(word & WORD_SEQUENCE), WORD_SEQUENCE.count_ones())
        };
        let span = modulo(newest.wrapping_sub(before.oldest), bits);
        let bits = bits.min(self.sequence_bits);
        let age = modulo(found.wrapping_sub(before.oldest), bits);
        if span >> bits.min(31) == 0 && age > span {
            return Err(Violation::WrongWrite { key_number, found, oldest: before.oldest, newest });
        }
        Ok(())
    }

    /// Checks that a key that was found may exist: it was loaded, or an insert of it was issued.
    #[inline]
    pub(crate) fn check_exists(&self, key_number: u64) -> Result<(), Violation> {
        let is_written = || self.word(key_number).load(Ordering::Acquire) != 0;
        if self.surely_present(key_number) || is_written() {
            Ok(())
        } else {
            Err(Violation::NeverInserted { key_number })
        }
    }

    /// Whether the key is loaded, or an insert of it was acknowledged.
    #[inline]
    pub fn surely_present(&self, key_number: u64) -> bool {
        is_loaded(key_number) || {
            let (word, bit) = self.presence(key_number);
            word.load(Ordering::Acquire) & bit != 0
        }
    }

    /// Number of records that are certainly present: loaded ones and acknowledged new keys.
    pub fn present_count(&self) -> u64 {
        let inserted: u32 = self.present.iter().map(|word| word.load(Ordering::Acquire).count_ones()).sum();
        self.records + u64::from(inserted)
    }

    /// Number of keys that were written concurrently, which cost more than 2 bytes.
    pub fn contended_count(&self) -> usize {
        self.contended.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Number of loaded records.
    pub const fn records(&self) -> u64 {
        self.records
    }

    #[inline]
    fn word(&self, key_number: u64) -> &AtomicU16 {
        let at = match is_loaded(key_number) {
            true => key_number / 2,
            false => self.records + self.order.place(key_number),
        };
        &self.words[at as usize]
    }

    fn presence(&self, key_number: u64) -> (&AtomicU64, u64) {
        let place = self.order.place(key_number);
        (&self.present[(place / 64) as usize], 1 << (place % 64))
    }

    fn mark_present(&self, key_number: u64) {
        if !self.surely_present(key_number) {
            let (word, bit) = self.presence(key_number);
            word.fetch_or(bit, Ordering::AcqRel);
        }
    }

    fn shard(&self, key_number: u64) -> MutexGuard<'_, ContendedKeys> {
        lock(&self.contended[mix64(key_number) as usize % SHARDS])
    }

    /// Issues a write of a key that is contended, or becomes so because another write is in flight. `None` if
    /// the word has changed meanwhile.
    #[cold]
    fn issue_contended(&self, key_number: u64, old: u16) -> Option<u32> {
        let mut shard = self.shard(key_number);
        if old & CONTENDED == 0 {
            let key = Contended::from_word(old);
            if !swap(self.word(key_number), old, CONTENDED) {
                return None;
            }
            shard.insert(key_number, key);
        }
        let key =
            shard.get_mut(&key_number).expect("a contended word has an entry, made under the same lock");
        Some(key.issue())
    }

    /// Moves the key to the side table if it is not there.
    fn contend(&self, key_number: u64) {
        let mut shard = self.shard(key_number);
        let word = self.word(key_number);
        loop {
            let old = word.load(Ordering::Acquire);
            if old & CONTENDED != 0 {
                return;
            }
            if swap(word, old, CONTENDED) {
                shard.insert(key_number, Contended::from_word(old));
                return;
            }
        }
    }

    fn with_contended<R>(&self, key_number: u64, act: impl FnOnce(&mut Contended) -> R) -> R {
        let mut shard = self.shard(key_number);
        act(shard
            .get_mut(&key_number)
            .expect("only an issued write ends, and a contended key stays contended"))
    }
}

fn swap(word: &AtomicU16, old: u16, new: u16) -> bool {
    word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

fn modulo(x: u32, bits: u32) -> u32 {
    if bits >= u32::BITS { x } else { x & ((1 << bits) - 1) }
}

/// A thread that panicked while holding the lock has failed the run anyway; the table is still readable.
fn lock(shard: &Mutex<ContendedKeys>) -> MutexGuard<'_, ContendedKeys> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A key with concurrent writers: its writes that may still be visible, in order of issue.
#[derive(Debug)]
struct Contended {
    /// Counts issues and acknowledgements, to order them.
    clock: u64,
    writes: Vec<Write>,
}

#[derive(Debug)]
struct Write {
    sequence: u32,
    issued: u64,
    /// Time of completion; `u64::MAX` while it is in flight.
    ended: u64,
}

impl Contended {
    fn from_word(word: u16) -> Contended {
        let sequence = u32::from(word & WORD_SEQUENCE);
        if word & IN_FLIGHT == 0 {
            return Contended { clock: 0, writes: vec![Write { sequence, issued: 0, ended: 0 }] };
        }
        let previous = u32::from((word & WORD_SEQUENCE).wrapping_sub(1) & WORD_SEQUENCE);
        let settled = Write { sequence: previous, issued: 0, ended: 0 };
        Contended { clock: 1, writes: vec![settled, Write { sequence, issued: 1, ended: u64::MAX }] }
    }

    fn oldest(&self) -> u32 {
        self.writes.first().expect("the last write issued stays").sequence
    }

    fn newest(&self) -> u32 {
        self.writes.last().expect("the last write issued stays").sequence
    }

    fn issue(&mut self) -> u32 {
        self.clock += 1;
        let sequence = self.newest().wrapping_add(1);
        self.writes.push(Write { sequence, issued: self.clock, ended: u64::MAX });
        sequence
    }

    /// Ends a write. If it certainly happened, all writes that had ended before it was issued are
    /// overwritten.
    fn finish(&mut self, sequence: u32, happened: bool) {
        self.clock += 1;
        let write = self.writes.iter_mut().find(|write| write.sequence == sequence);
        let Some(write) = write else { return };
        write.ended = self.clock;
        let issued = write.issued;
        if happened {
            self.writes.retain(|other| other.ended > issued);
        }
    }
}

/// Key numbers are small and regular, so mixing them is enough.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, x: u64) {
        self.0 = mix64(self.0 ^ x);
    }
}
