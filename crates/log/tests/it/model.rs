//! A log beside a model of it: what was appended, what was answered, and how far it was truncated.

use std::cell::Cell;
use std::collections::BTreeMap;

use pando_fabric::GlobalAddr;
use pando_log::{
    Change, Contents, Entered, Entry, Log, LogError, Options, Persistence, Record, Share, Space, persist_all,
};
use pando_rt::block_on;

use crate::faulty::{Faulty, USED_BLOCKS, block, blocks, fabric};

pub const LANES: usize = 3;
/// Bytes of a segment: laps are short.
const SEGMENT: u64 = 768;

#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Appends a record to a lane.
    Append {
        lane: usize,
        bytes: usize,
    },
    /// Waits until everything is durable.
    Durable {
        lane: usize,
    },
    /// Of the WRITEs to come, one arrives only up to some byte.
    Fault {
        until: u32,
        bytes: usize,
    },
    /// Truncates the log, except for the last records that are durable.
    Truncate {
        except: u64,
    },
    Crash,
    /// Persists what is in the log.
    Persist,
    /// Moves the log away from those of its blocks that a bit selects.
    Move {
        leaves: u32,
    },
    /// Power is lost, if the log is to survive that; else the process dies.
    PowerCut,
    /// The process that recovers dies as well, while it opens the log.
    CrashTwice {
        until: u32,
        bytes: usize,
    },
}

pub struct Model {
    ep: Faulty,
    log: Log,
    /// Block with the root of the log.
    root: Cell<GlobalAddr>,
    /// Value of each record.
    records: BTreeMap<u64, Vec<u8>>,
    /// Everything up to here was answered.
    answered: u64,
    /// Everything up to here must survive a loss of power.
    persisted: u64,
    persistence: Persistence,
    /// Horizons that the log may have: at least the first, at most the second.
    horizons: Cell<(u64, u64)>,
}

/// How far an heir came with a log.
#[derive(Clone, Copy)]
enum Opened {
    /// It read the log, and changed nothing.
    Not,
    /// It redid what it had read.
    Perhaps,
    /// It also opened the log, empty.
    Empty,
}

fn page() -> GlobalAddr {
    block(99)
}

fn put(value: &[u8]) -> Record<'_> {
    Record::Entry(Entry { page: page(), key: b"key", change: Change::Put(value) })
}

async fn read(ep: &Faulty, root: GlobalAddr) -> Result<Contents, String> {
    let read = async { Contents::read(ep, Space::read(ep, root).await?).await };
    read.await.map_err(|error| format!("it cannot be read: {error}"))
}

fn values(contents: &Contents) -> Result<BTreeMap<u64, Vec<u8>>, String> {
    let mut values = BTreeMap::new();
    for record in contents.records() {
        match record.map_err(|error| error.to_string())? {
            (gsn, Record::Entry(Entry { change: Change::Put(value), .. })) => {
                values.insert(gsn, value.to_vec())
            }
            (gsn, other) => return Err(format!("record {gsn} is {other:?}")),
        };
    }
    Ok(values)
}

impl Model {
    pub fn new(persistence: Persistence) -> Self {
        let fabric = fabric();
        let ep = Faulty::new(&fabric);
        block_on(&ep, Log::create(&ep, 7, blocks(&ep, LANES, 2, SEGMENT))).expect("a log");
        let root = Cell::new(block(1));
        let contents = block_on(&ep, read(&ep, root.get())).expect("a new log");
        assert!(contents.is_empty() && contents.clock() == 0);
        let options = Options { persistence, ..Options::default() };
        let log = block_on(&ep, Log::resume(&ep, contents, options)).expect("it opens");
        let (records, horizons) = (BTreeMap::new(), Cell::new((1, 1)));
        Self { ep, log, root, records, answered: 0, persisted: 0, persistence, horizons }
    }

    async fn resume(&self, contents: Contents) -> Result<Log, LogError> {
        let options = Options { persistence: self.persistence, ..Options::default() };
        Log::resume(&self.ep, contents, options).await
    }

    /// # Errors
    /// What the log has lost or made up.
    pub fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Append { lane, bytes } => return self.append(lane, bytes),
            Step::Durable { lane } => {
                let clock = self.log.clock();
                if block_on(&self.ep, self.log.durable(&self.ep, lane, clock)).is_ok() {
                    self.answered = clock;
                }
            }
            Step::Fault { until, bytes } => {
                self.ep.until.set(Some(until));
                self.ep.bytes.set(bytes);
            }
            Step::Truncate { except } => {
                let unanswered = self.log.clock() - self.answered;
                let _ = block_on(&self.ep, self.truncate(unanswered + except));
            }
            Step::Crash => return self.crash(false, None),
            Step::Persist => {
                let answered = self.answered;
                block_on(&self.ep, self.log.persist(&self.ep)).map_err(|error| error.to_string())?;
                self.persisted = answered;
            }
            Step::PowerCut => return self.crash(true, None),
            Step::Move { leaves } => return self.move_blocks(leaves),
            Step::CrashTwice { until, bytes } => return self.crash(true, Some((until, bytes))),
        }
        Ok(())
    }

    async fn truncate(&self, except: u64) -> Result<(), LogError> {
        // The pages are written.
        self.log.settled(&self.ep, 0, self.answered).await?;
        let checkpoint = self.log.begin_checkpoint().expect("one at a time").except(except);
        let (horizon, (least, most)) = (checkpoint.horizon(), self.horizons.get());
        self.horizons.set((least, most.max(horizon)));
        checkpoint.end(&self.ep).await?;
        self.horizons.set((least.max(horizon), most.max(horizon)));
        Ok(())
    }

    /// Afterwards all blocks that are not the log's are free, with what was written there.
    fn move_blocks(&self, leaves: u32) -> Result<(), String> {
        let space = self.log.space();
        let used: Vec<_> = space.blocks().map(|(at, _)| at).collect();
        let mut free = (1..USED_BLOCKS).map(block).filter(|at| !used.contains(at));
        let selected = |at: GlobalAddr| leaves >> (at.offset() / block(1).offset()) & 1 == 1;
        let alloc = async |_| free.next().ok_or(LogError::Expired);
        let blocks = block_on(&self.ep, space.without(selected, alloc)).map_err(|error| error.to_string())?;
        let enter = async |root| {
            self.root.set(root);
            Entered::<LogError>::Yes
        };
        match block_on(&self.ep, self.log.move_to(&self.ep, blocks, enter)) {
            // A WRITE failed.
            Err(LogError::Fabric(_)) if self.root.get() == space.root() => Ok(()),
            Err(error) => Err(error.to_string()),
            Ok(left) => {
                let is_left = |at: &GlobalAddr| left.iter().any(|(block, _)| block == at);
                let stays = used.iter().filter(|at| !is_left(at)).all(|&at| !selected(at));
                let all_there = left.iter().all(|(at, _)| used.contains(at));
                if stays && all_there { Ok(()) } else { Err(format!("it left {left:?} of {used:?}")) }
            }
        }
    }

    fn append(&mut self, lane: usize, bytes: usize) -> Result<(), String> {
        let value = vec![self.records.len() as u8; bytes];
        let record = put(&value);
        let answered = Cell::new(self.answered);
        let appended = block_on(&self.ep, async {
            loop {
                let room = self.log.reserve(&self.ep, lane, record.stored_len(), Share::Most).await?;
                if let Some(room) = room {
                    return Ok(self.log.begin(room).append(&self.ep, &record));
                }
                let clock = self.log.clock();
                self.log.durable(&self.ep, lane, clock).await?;
                answered.set(clock);
                self.truncate(0).await?;
            }
        });
        self.answered = answered.get();
        match appended {
            Ok(gsn) => drop(self.records.insert(gsn, value)),
            Err(LogError::Fabric(_)) => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    fn crash(&mut self, cuts: bool, again: Option<(u32, usize)>) -> Result<(), String> {
        self.ep.until.set(None);
        let cuts = cuts && self.persistence != Persistence::Never;
        if cuts {
            block_on(&self.ep, self.ep.lose_power());
            if self.persistence == Persistence::Later {
                self.answered = self.persisted;
            }
        }
        if again.is_none() {
            block_on(&self.ep, self.ep.lose_primary());
        }
        let mut contents = block_on(&self.ep, read(&self.ep, self.root.get()))?;
        let found = values(&contents)?;
        self.check(&found, contents.clock())?;
        if let Some((until, bytes)) = again {
            self.step(Step::Fault { until, bytes })?;
            let opened = self.first_heir(contents.space());
            self.ep.until.set(None);
            if cuts {
                block_on(&self.ep, self.ep.lose_power());
            }
            block_on(&self.ep, self.ep.lose_primary());
            contents = block_on(&self.ep, read(&self.ep, self.root.get()))?;
            let second = values(&contents)?;
            match opened {
                Opened::Not => self.check(&second, contents.clock())?,
                Opened::Perhaps if second == found => {}
                _ if second.is_empty() => {}
                _ => return Err(format!("{second:?} of {found:?} is there after a second crash")),
            }
        }
        let clock = contents.clock();
        let contents = block_on(&self.ep, Contents::read_to_redo(&self.ep, contents.space().clone()));
        let contents = contents.map_err(|error| error.to_string())?;
        self.log = block_on(&self.ep, self.resume(contents)).map_err(|error| error.to_string())?;
        self.records.clear();
        (self.answered, self.persisted) = (clock, clock);
        self.horizons.set((clock + 1, clock + 1));
        Ok(())
    }

    /// What an heir did before it died.
    fn first_heir(&self, space: &Space) -> Opened {
        block_on(&self.ep, async {
            let Ok(contents) = Contents::read_to_redo(&self.ep, space.clone()).await else {
                return Opened::Not;
            };
            persist_all(&self.ep).await.expect("memory");
            // From here on pages change.
            if self.resume(contents).await.is_ok() { Opened::Empty } else { Opened::Perhaps }
        })
    }

    fn check(&self, found: &BTreeMap<u64, Vec<u8>>, clock: u64) -> Result<(), String> {
        let (least, most) = self.horizons.get();
        let last = found.keys().last().copied().unwrap_or(most - 1);
        if last < self.answered {
            return Err(format!("record {last} is the last, but {} was answered", self.answered));
        }
        let first = found.keys().next().copied().unwrap_or(least);
        if first < least || first > most {
            return Err(format!("record {first} is the first, but the horizon is in {least}..={most}"));
        }
        if found.len() as u64 != (last + 1).saturating_sub(first) && !found.is_empty() {
            return Err(format!("there is a gap in {:?}", found.keys().collect::<Vec<_>>()));
        }
        for (gsn, value) in found {
            if self.records.get(gsn) != Some(value) {
                return Err(format!("record {gsn} is {value:?}"));
            }
        }
        if clock < last || clock > self.log.clock() {
            return Err(format!("its clock is {clock}"));
        }
        Ok(())
    }
}
