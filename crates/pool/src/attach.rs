//! Attached processes: their identities, and the attach table on memory server 0.
//!
//! A process claims an entry by compare-and-swap, writes its identity behind it, and marks the entry
//! complete. Then it checks the other entries and, if it may proceed, settles its own. A clean detach clears
//! the entry. So a settled entry whose process is gone means that the pool was not closed cleanly: that
//! process's allocation bitmaps and cached pages are lost. This also holds after a crash of the machine: an
//! entry is persisted before its process changes anything, and these changes are persisted before the entry
//! is cleared.
//!
//! An entry that is not complete counts as none: its process will see those that are. One that is complete
//! but not settled has changed nothing. Both steps are compare-and-swaps, so a process whose entry others
//! cleared or took meanwhile is told.
//!
//! Processes that are settled when another dies continue without its partitions, and while there are any, new
//! processes may attach too. Otherwise the pool is refused. Unsettled processes do not count here, since two
//! that attach at once would vouch for each other.

use std::sync::Arc;

use pando_fabric::defect::defect;
use pando_fabric::{Chain, Endpoint, GlobalAddr, Nanos, VerbResult};

use crate::defect::OfReclaim;
use crate::error::{PoolError, Result};
use crate::io::{buf_of_words, read_words, until_answered};
use crate::layout::{ATTACH_ENTRY_BYTES, ATTACH_TABLE_AT};
use crate::process::{AttachSlot, MAX_ATTACHED, ProcessIdentity};

/// Rights of an attached process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AttachMode {
    /// All operations. Refused if the pool was not closed cleanly, unless other processes continue to work on
    /// it.
    #[default]
    ReadWrite,
    /// Reads beside writers, in a pool that is closed cleanly or in use; refused like
    /// [`AttachMode::ReadWrite`]. A reader takes no attach slot, locks and changes nothing, and keeps no
    /// process out, so its end never makes the pool unclean.
    ///
    /// It sees the current catalog, and nodes and values as they were last written back. Other processes do
    /// not know of it: what it reads may be replaced or freed meanwhile, and only versions, checksums and
    /// hashes tell. A repair that starts later does not wait for it.
    ReadOnly,
    /// Reads even a pool that was not closed cleanly. Takes no attach slot and changes nothing; the view may
    /// be incomplete while processes are attached.
    ReadOnlyUnclean,
    /// [`crate::Pool::rebuild_allocation`]; refused while a live process is attached.
    Repair,
}

/// Tells whether a process still runs.
pub type IsAlive = Arc<dyn Fn(&ProcessIdentity) -> bool + Send + Sync>;

/// Options for attaching to a pool.
#[derive(Clone)]
pub struct AttachOptions {
    /// The attaching process.
    pub process: ProcessIdentity,
    pub mode: AttachMode,
    /// Liveness check of other attached processes, called when attaching and when a lock is not released in
    /// time.
    pub is_alive: IsAlive,
    /// Longest wait for a lock or for the next step of another process, in nanoseconds of [`Endpoint::now`].
    pub wait_ns_max: Nanos,
    /// Longest time that a verb takes, in nanoseconds: leftovers of an operation whose future was dropped
    /// rest this long. Defaults to `wait_ns_max`.
    pub verbs_take_ns: Option<Nanos>,
    /// Whether the process stores the bitmaps of its chunks, so that others can reclaim them if it dies (`reclaim.rs`). All
    /// that it links is in a log, or stored before.
    pub keeps_bitmaps: bool,
}

impl AttachOptions {
    /// Read and write, with waits of at most five seconds.
    pub fn new(process: ProcessIdentity, is_alive: IsAlive) -> Self {
        let wait_ns_max = 5_000_000_000;
        let mode = AttachMode::ReadWrite;
        Self { process, mode, is_alive, wait_ns_max, verbs_take_ns: None, keeps_bitmaps: false }
    }

    /// For a pool in the memory of one process, to which no other can attach.
    pub fn embedded() -> Self {
        Self::new(ProcessIdentity::default(), Arc::new(|_| true))
    }

    pub fn mode(mut self, mode: AttachMode) -> Self {
        self.mode = mode;
        self
    }

    pub fn wait_ns_max(mut self, wait_ns_max: Nanos) -> Self {
        self.wait_ns_max = wait_ns_max;
        self
    }

    pub fn keeps_bitmaps(mut self, keeps_bitmaps: bool) -> Self {
        self.keeps_bitmaps = keeps_bitmaps;
        self
    }

    pub fn verbs_take_ns(mut self, verbs_take_ns: Nanos) -> Self {
        self.verbs_take_ns = Some(verbs_take_ns);
        self
    }
}

/// State of an entry, in the low byte of its word; a random number follows, so that each claim differs, and then how often the
/// place was retired.
const CLAIMED: u64 = 1;
const ATTACHED: u64 = 2;
const REPAIRING: u64 = 3;
const COMING: u64 = 4;

const TAKEN_FOR_DEAD: PoolError =
    PoolError::WaitedTooLong { what: "its own attach entry: others took it for dead" };

const GENERATION_SHIFT: u32 = 48;
/// In the second word of an entry, above the number of the process.
const KEEPS_BITMAPS: u64 = 1 << 32;

/// Address of the entry of `slot` in a table with `places` places. Slots of different generations share a place.
pub(crate) fn entry_addr(places: usize, slot: AttachSlot) -> GlobalAddr {
    let place = u64::from(slot.0) % places as u64;
    GlobalAddr::new(pando_fabric::MemoryServerId(0), ATTACH_TABLE_AT + place * ATTACH_ENTRY_BYTES)
}

fn slot_of(places: usize, place: usize, generation: u64) -> AttachSlot {
    AttachSlot((place as u64 + places as u64 * generation) as u16)
}

/// Progress of a complete table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryState {
    /// Its process has not checked the others yet.
    Coming,
    Attached,
    Repairing,
}

/// A complete entry of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttachEntry {
    pub slot: AttachSlot,
    pub process: ProcessIdentity,
    pub state: EntryState,
    pub keeps_bitmaps: bool,
    at: GlobalAddr,
    /// How often the place was retired.
    generation: u64,
    word: u64,
}

pub(crate) const ENTRY_WORDS: usize = (ATTACH_ENTRY_BYTES / 8) as usize;

/// Reads the entry of `slot`; `None` if it is not complete, or of another generation.
pub(crate) async fn read_entry<E: Endpoint>(
    ep: &E,
    places: usize,
    slot: AttachSlot,
) -> Result<Option<AttachEntry>> {
    let words = read_words(ep, entry_addr(places, slot), ENTRY_WORDS).await?;
    let found = entry_of(places, usize::from(slot.0) % places, &words)?;
    Ok(found.filter(|entry| entry.slot == slot))
}

fn entry_of(places: usize, place: usize, words: &[u64]) -> Result<Option<AttachEntry>> {
    let generation = words[0] >> GENERATION_SHIFT;
    let slot = slot_of(places, place, generation);
    let at = entry_addr(places, slot);
    let state = match words[0] & 0xff {
        0 | CLAIMED => return Ok(None),
        COMING => EntryState::Coming,
        ATTACHED => EntryState::Attached,
        REPAIRING => EntryState::Repairing,
        _ => return Err(PoolError::Corrupt { addr: at, reason: "this is no attach entry" }),
    };
    let process = ProcessIdentity { pid: words[1] as u32, start_time: words[2], host: words[3] };
    let keeps_bitmaps = words[1] & KEEPS_BITMAPS != 0;
    Ok(Some(AttachEntry { slot, process, state, keeps_bitmaps, at, generation, word: words[0] }))
}

/// All complete entries of a table with `places` slots.
pub(crate) async fn read_table<E: Endpoint>(ep: &E, places: usize) -> Result<Vec<AttachEntry>> {
    let words = read_words(ep, entry_addr(places, AttachSlot(0)), places * ENTRY_WORDS).await?;
    let entries = words.chunks(ENTRY_WORDS).enumerate();
    entries.filter_map(|(place, words)| entry_of(places, place, words).transpose()).collect()
}

/// Claims an entry for `process`, to be settled by [`settle_entry`]: a free one or, if there is none until
/// `deadline`, one that was claimed all the time and not completed.
pub(crate) async fn claim_entry<E: Endpoint>(
    ep: &E,
    places: usize,
    options: &AttachOptions,
    deadline: Nanos,
) -> Result<AttachEntry> {
    let &AttachOptions { process, mode, keeps_bitmaps, .. } = options;
    let salt = ep.random() << 8 & !(!0 << GENERATION_SHIFT);
    let (state, coming) = match mode {
        AttachMode::Repair => (EntryState::Repairing, REPAIRING),
        _ => (EntryState::Coming, COMING),
    };
    let table = read_words(ep, entry_addr(places, AttachSlot(0)), places * ENTRY_WORDS).await?;
    let in_state = |state| {
        let words = table.iter().step_by(ENTRY_WORDS).enumerate();
        words.filter(move |(_, word)| **word & 0xff == state)
    };
    for (place, &before) in in_state(0).chain(in_state(CLAIMED)) {
        while before & 0xff != 0 && ep.now() < deadline {
            ep.yield_now().await;
        }
        let at = entry_addr(places, AttachSlot(place as u16));
        let generation = before >> GENERATION_SHIFT;
        let marked = generation << GENERATION_SHIFT | salt;
        let (claimed, complete) = (marked | CLAIMED, marked | coming);
        if !swapped(ep, at, before, claimed, deadline).await? {
            continue;
        }
        let slot = slot_of(places, place, generation);
        let entry = AttachEntry { slot, process, state, keeps_bitmaps, at, generation, word: complete };
        let flag = if keeps_bitmaps { KEEPS_BITMAPS } else { 0 };
        let identity = [u64::from(process.pid) | flag, process.start_time, process.host];
        let completed = until_answered(ep, deadline, async || {
            let identify = Chain::new().write(at.add(8), buf_of_words(ep, &identity));
            match ep.submit(identify.compare_swap(at, claimed, complete)).await?.pop() {
                Some(VerbResult::Word(before)) if before == claimed || before == complete => Ok(()),
                _ => Err(TAKEN_FOR_DEAD),
            }
        });
        return match completed.await {
            Ok(()) => Ok(entry),
            Err(error) => {
                let _ = clear_entry(ep, &entry, deadline).await;
                Err(error)
            }
        };
    }
    Err(PoolError::AttachTableFull { max: places })
}

/// Changes the word of the entry at `at` from `before` to `new`, which is this process's own; `false` if it is
/// neither.
async fn swapped<E: Endpoint>(
    ep: &E,
    at: GlobalAddr,
    before: u64,
    new: u64,
    deadline: Nanos,
) -> Result<bool> {
    // Without an answer, the word tells.
    let swap = async || Ok(ep.compare_swap(at, before, new).await?);
    let found = until_answered(ep, deadline, swap).await?;
    Ok(found == before || found == new)
}

/// Settles `entry` and persists it, before any change of its process can outlive a crash.
pub(crate) async fn settle_entry<E: Endpoint>(
    ep: &E,
    entry: &mut AttachEntry,
    deadline: Nanos,
) -> Result<()> {
    if entry.state == EntryState::Coming {
        let word = entry.word & !0xff | ATTACHED;
        if !swapped(ep, entry.at, entry.word, word, deadline).await? {
            return Err(TAKEN_FOR_DEAD);
        }
        (entry.state, entry.word) = (EntryState::Attached, word);
    }
    persist_entry(ep, entry).await
}

/// Clears `entry`, in whatever state, unless it belongs to another claim by now.
pub(crate) async fn clear_entry<E: Endpoint>(ep: &E, entry: &AttachEntry, deadline: Nanos) -> Result<()> {
    let (at, free) = (entry.at, entry.free_word());
    until_answered(ep, deadline, async || {
        let mut word = entry.word;
        // A failed step may have taken effect.
        while word >> 8 == entry.word >> 8 && word != free {
            match ep.compare_swap(at, word, free).await? {
                before if before == word => break,
                before => word = before,
            }
        }
        Ok(())
    })
    .await
}

/// Persists `entry`, or the fact that it was cleared.
pub(crate) async fn persist_entry<E: Endpoint>(ep: &E, entry: &AttachEntry) -> Result<()> {
    Ok(ep.persist(entry.at, ATTACH_ENTRY_BYTES).await?)
}

/// Clears the entry of a dead process, and gives its place the next generation.
pub(crate) async fn retire_entry<E: Endpoint>(
    ep: &E,
    places: usize,
    entry: &AttachEntry,
    deadline: Nanos,
) -> Result<()> {
    // As many as there are numbers of slots for.
    let next = (entry.generation + 1) % (MAX_ATTACHED / places) as u64;
    let generation = if defect(OfReclaim::SameGeneration) { entry.generation } else { next };
    clear_entry(ep, &AttachEntry { generation, ..*entry }, deadline).await?;
    persist_entry(ep, entry).await
}

impl AttachEntry {
    /// Word of the entry once it is free: the generation of its place, and the state 0.
    fn free_word(&self) -> u64 {
        self.generation << GENERATION_SHIFT
    }

    pub fn is_alive(&self, is_alive: &IsAlive) -> bool {
        is_alive(&self.process)
    }

    /// Whether its process died before it could change anything.
    fn never_came(&self, is_alive: &IsAlive) -> bool {
        self.state == EntryState::Coming && !self.is_alive(is_alive)
    }
}

/// Whether the process with slot `mine`, if any, may proceed in `mode` beside the other processes in the
/// table.
///
/// A process may clear its entry and exit between the read of the table and the liveness check. So a dead
/// process counts only if its entry is still there afterwards.
pub(crate) async fn judge_table<E: Endpoint>(
    ep: &E,
    places: usize,
    mine: Option<AttachSlot>,
    mode: AttachMode,
    is_alive: &IsAlive,
    deadline: Nanos,
) -> Result<()> {
    let mut entries = read_table(ep, places).await?;
    loop {
        let judged = judge(mine, &entries, mode, is_alive);
        let Err(PoolError::NotClosedCleanly { process }) = &judged else { break judged? };
        let words = |entries: &[AttachEntry]| -> Vec<u64> {
            entries.iter().filter(|entry| entry.process == *process).map(|entry| entry.word).collect()
        };
        let now = read_table(ep, places).await?;
        if words(&now) == words(&entries) || ep.now() >= deadline {
            return judged;
        }
        entries = now;
    }
    if mine.is_some() {
        for entry in entries.iter().filter(|entry| mine != Some(entry.slot) && entry.never_came(is_alive)) {
            swapped(ep, entry.at, entry.word, entry.free_word(), deadline).await?;
        }
    }
    Ok(())
}

/// Decides the same for given entries.
fn judge(
    mine: Option<AttachSlot>,
    entries: &[AttachEntry],
    mode: AttachMode,
    is_alive: &IsAlive,
) -> Result<()> {
    let counts = |entry: &&AttachEntry| mine != Some(entry.slot) && !entry.never_came(is_alive);
    let others = || entries.iter().filter(counts);
    let in_use = others().any(|entry| entry.state == EntryState::Attached && entry.is_alive(is_alive));
    for entry in others() {
        let process = entry.process;
        match (mode, entry.is_alive(is_alive)) {
            (AttachMode::ReadOnlyUnclean, _) | (AttachMode::Repair, false) => {}
            (AttachMode::Repair, true) => return Err(PoolError::InUse { process }),
            (AttachMode::ReadWrite | AttachMode::ReadOnly, false) if in_use => {}
            (AttachMode::ReadWrite | AttachMode::ReadOnly, false) => {
                return Err(PoolError::NotClosedCleanly { process });
            }
            (AttachMode::ReadWrite | AttachMode::ReadOnly, true) => {
                if entry.state == EntryState::Repairing {
                    return Err(PoolError::BeingRepaired { process });
                }
            }
        }
    }
    Ok(())
}
