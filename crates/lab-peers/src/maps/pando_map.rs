//! Pando in the comparison, with everything cached.
//!
//! There are two entries: one lookup at a time, and many lookups in flight in slots. Measurements use the
//! public interface, like any user's program. No other file of this crate depends on the index.

use std::ops::Bound;

use pando::{Answers, BulkOptions, Cluster, Config, Index, IndexOptions, ScanRange, SortedSource};

use super::{Entry, entry};
use crate::measure::{Feed, Job, Phase, Tally, WrongAnswer, check};
use crate::{Contender, Kind, Loaded, OrderedMap, Session};

/// Lookups in flight per thread.
const SLOTS: usize = 16;

/// Entries of this project.
pub fn entries() -> Vec<Entry> {
    let one = Entry {
        ours: true,
        ..entry::<Pando>(
            "Pando",
            Kind::BTree,
            "one compute server with everything cached, a session per thread",
        )
    };
    let slots = Entry {
        name: "Pando 16 slots",
        note: "16 lookups in flight per thread, all cached",
        load: |pairs, sorted| Ok(Box::new(InSlots(Loaded(Pando::load(pairs, sorted)?)))),
        ..one
    };
    vec![one, slots]
}

/// Pairs in ascending order, as input of the bulk load.
struct Pairs<'p>(&'p [(u64, u64)]);

impl SortedSource for Pairs<'_> {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn visit(
        &self,
        range: std::ops::Range<u64>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<(), pando::IndexError>,
    ) -> Result<(), pando::IndexError> {
        self.0[range.start as usize..range.end as usize]
            .iter()
            .try_for_each(|(key, value)| each(&key.to_be_bytes(), &value.to_le_bytes()))
    }
}

/// An embedded cluster of one memory server and one compute server.
pub struct Pando {
    index: Index,
}

impl OrderedMap for Pando {
    type Session<'a> = PandoSession;

    fn load(pairs: &[(u64, u64)], sorted: bool) -> anyhow::Result<Self> {
        // Nodes are about nine tenths full. Unused bytes of both sizes take no memory of the host.
        let bytes = pairs.len() as u64 * 24 + (64 << 20);
        let config = Config::embedded().memory_servers(1).memory(bytes).cache(bytes).huge_pages(true);
        let cluster = Cluster::open(config)?;
        let index = cluster.create_index("peers", &IndexOptions::integers())?;
        if sorted {
            index.bulk_load(&Pairs(pairs), &BulkOptions::default())?;
        } else {
            let mut pairs = pairs.to_vec();
            pairs.sort_unstable();
            index.bulk_load(&Pairs(&pairs), &BulkOptions::default())?;
        }
        // A full scan brings every node into the cache.
        let session = index.session()?;
        session.scan(&ScanRange::all(), |_, _| true)?;
        Ok(Self { index })
    }

    fn session(&self, _threads: usize) -> PandoSession {
        let session = self.index.session().expect("a cluster of this process");
        PandoSession { session, value: Vec::with_capacity(8), answers: Answers::default() }
    }
}

pub struct PandoSession {
    session: pando::Session,
    value: Vec<u8>,
    answers: Answers,
}

fn integer(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("values have 8 bytes"))
}

impl Session for PandoSession {
    #[inline]
    fn get(&mut self, key: u64) -> Option<u64> {
        self.value.clear();
        let found =
            self.session.get_into(&key.to_be_bytes(), &mut self.value).expect("memory of this process");
        found.then(|| integer(&self.value))
    }

    fn update(&mut self, key: u64, value: u64) -> bool {
        self.session.update(&key.to_be_bytes(), &value.to_le_bytes()).expect("memory of this process")
    }

    fn scan(&mut self, start: u64, len: usize) -> (usize, u64) {
        let start = start.to_be_bytes();
        let range = ScanRange { low: Bound::Included(&start), limit: len, ..ScanRange::all() };
        let (mut count, mut sum) = (0, 0_u64);
        let add = |_: &[u8], value: &[u8]| {
            count += 1;
            sum = sum.wrapping_add(integer(value));
            true
        };
        self.session.scan(&range, add).expect("memory of this process");
        (count, sum)
    }

    fn multi_get(&mut self, keys: &[u64], values: &mut [Option<u64>]) {
        let keys: Vec<_> = keys.iter().map(|key| key.to_be_bytes()).collect();
        self.session.multi_get(&keys, &mut self.answers).expect("memory of this process");
        for (value, answer) in values.iter_mut().zip(self.answers.iter()) {
            *value = answer.map(integer);
        }
    }
}

/// [`Pando`] with several lookups in flight per thread: while one waits for memory, the others continue.
struct InSlots(Loaded<Pando>);

impl Contender for InSlots {
    fn run(&self, job: &Job<'_>) -> Result<Tally, WrongAnswer> {
        if job.phase != Phase::Lookup {
            return self.0.run(job);
        }
        let session = self.0.0.session(job.threads);
        // Each slot takes the next batch when it is free, as the workers of a server take requests.
        let feed = Feed::new(job);
        let slots = session.session.in_flight(SLOTS, |_, lookups| {
            let feed = &feed;
            async move {
                let mut value = Vec::with_capacity(8);
                while let Some(draws) = feed.next() {
                    for draw in draws {
                        value.clear();
                        let found = lookups.get_into(&draw.key.to_be_bytes(), &mut value).await;
                        check(draw.key, found.expect("memory of this process").then(|| integer(&value)))?;
                    }
                }
                Ok(())
            }
        });
        slots.expect("a legal number of slots").into_iter().collect::<Result<(), _>>()?;
        Ok(feed.tally())
    }
}
