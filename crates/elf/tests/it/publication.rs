//! A crash at any step of a publication leaves the old image or the new one, whichever cache lines are lost.

use std::collections::BTreeMap;
use std::ops::Range;

use pando_elf::{
    BuildOptions, CodeTable, Elf, Error, LayoutKind, Medium, PersistentFile, Result, build_linear,
};
use proptest::prelude::*;

const LINE: u64 = 64;
type Line = [u8; LINE as usize];

/// Persistent memory that loses lines. Stores of 8 bytes reach a line in order, so a crash keeps a prefix of those
/// that were not fenced: a line may be written back at any time, or not at all.
#[derive(Clone, Debug, Default)]
struct Pmem {
    durable: Vec<u8>,
    /// States of each line after each store since its durable state.
    pending: BTreeMap<u64, Vec<Line>>,
    /// Number of states of each line that were flushed.
    flushed: BTreeMap<u64, usize>,
    /// Calls until the first one that fails.
    steps: Option<usize>,
    /// Calls that succeed after that failure, before all others fail.
    again: Option<usize>,
    /// A defect: nothing is written back.
    ignores_flushes: bool,
    /// A defect: bytes behind the root do not arrive as they are.
    garbles: bool,
}

impl Pmem {
    fn step(&mut self) -> Result<()> {
        match &mut self.steps {
            Some(0) => {
                self.steps = self.again.take().or(Some(0));
                Err(Error::Storage { action: "use", reason: "power is off".into() })
            }
            Some(steps) => {
                *steps -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn durable_line(&self, line: u64) -> Line {
        let at = (line * LINE) as usize;
        self.durable[at..at + LINE as usize].try_into().expect("a whole line")
    }

    fn line(&self, line: u64) -> Line {
        let last = self.pending.get(&line).and_then(|states| states.last());
        last.copied().unwrap_or_else(|| self.durable_line(line))
    }

    /// What a crash leaves if `kept` says how many of the pending states of each line reached it.
    fn survivor(&self, mut kept: impl FnMut(usize) -> usize) -> Self {
        let mut durable = self.durable.clone();
        for (&line, states) in &self.pending {
            if let Some(state) = kept(states.len()).checked_sub(1).map(|last| states[last]) {
                durable[(line * LINE) as usize..][..LINE as usize].copy_from_slice(&state);
            }
        }
        Self { durable, ignores_flushes: self.ignores_flushes, ..Self::default() }
    }

    /// Everything that a crash may leave if each line is lost or kept as a whole.
    fn survivors(&self) -> impl Iterator<Item = Self> {
        assert!(self.pending.len() < 16, "{} lines have too many subsets", self.pending.len());
        (0..1_u32 << self.pending.len()).map(|mut lost| {
            self.survivor(|states| {
                let is_lost = lost & 1 == 1;
                lost >>= 1;
                if is_lost { 0 } else { states }
            })
        })
    }
}

impl Medium for Pmem {
    type Loan = Vec<u8>;

    fn bytes(&self) -> u64 {
        self.durable.len() as u64
    }

    fn grow(&mut self, bytes: u64) -> Result<()> {
        self.step()?;
        self.durable.resize(bytes as usize, 0);
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.step()?;
        let mut next = 0;
        while next < bytes.len() {
            let place = at + next as u64;
            let part = (8 - place % 8).min((bytes.len() - next) as u64) as usize;
            let mut line = self.line(place / LINE);
            line[(place % LINE) as usize..][..part].copy_from_slice(&bytes[next..next + part]);
            line[(place % LINE) as usize] ^= u8::from(self.garbles && place > LINE);
            self.pending.entry(place / LINE).or_default().push(line);
            next += part;
        }
        Ok(())
    }

    fn store(&mut self, at: u64, word: u64) -> Result<()> {
        assert_eq!(at % 8, 0);
        self.write(at, &word.to_le_bytes())
    }

    fn flush(&mut self, range: Range<u64>) -> Result<()> {
        self.step()?;
        for line in range.start / LINE..range.end.div_ceil(LINE) {
            self.flushed.insert(line, self.pending.get(&line).map_or(0, Vec::len));
        }
        Ok(())
    }

    fn fence(&mut self) -> Result<()> {
        self.step()?;
        for (line, number) in std::mem::take(&mut self.flushed) {
            let Some(states) = self.pending.get_mut(&line).filter(|_| number > 0 && !self.ignores_flushes)
            else {
                continue;
            };
            let state = states.drain(..number).next_back().expect("flushed states are pending");
            self.durable[(line * LINE) as usize..][..LINE as usize].copy_from_slice(&state);
            self.pending.retain(|_, states| !states.is_empty());
        }
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(&self.lend(at..at + into.len() as u64)?);
        Ok(())
    }

    fn lend(&self, range: Range<u64>) -> Result<Vec<u8>> {
        assert!(range.end <= self.bytes());
        let lines = (range.start / LINE..range.end.div_ceil(LINE)).flat_map(|line| self.line(line));
        Ok(lines.skip((range.start % LINE) as usize).take((range.end - range.start) as usize).collect())
    }

    fn lent(&self) -> Vec<Range<u64>> {
        Vec::new()
    }
}

/// An image of `rows` rows, in one of the layouts; different numbers give different images.
fn image(rows: u32) -> Vec<u8> {
    let column = |factor: u32| (0..rows).map(|row| row * factor % 7 + rows % 3).collect();
    let table = CodeTable::new(vec![column(1), column(3)]).expect("two columns");
    let layout = if rows.is_multiple_of(2) { LayoutKind::Linear } else { LayoutKind::Columnar };
    let elf = Elf::build(&table, &[0, 1], layout, &BuildOptions::default()).expect("a small table");
    elf.bytes().to_vec()
}

/// The image after a restart, which must be whole.
fn recovered(pmem: &Pmem) -> Result<Vec<u8>> {
    let image = PersistentFile::recover(pmem.clone())?.image()?;
    Elf::open(image.clone()).map(|_| image)
}

/// Publishes on a medium that fails after `steps` calls. Returns what it holds then.
fn publish(pmem: &Pmem, image: &[u8], steps: Option<usize>) -> (Result<()>, Pmem) {
    let mut file = PersistentFile::recover(Pmem { steps, ..pmem.clone() }).expect("a prepared medium");
    let result = file.publish(image);
    (result, file.medium().clone())
}

/// All crashes while `new` replaces `old`; calls `check` with what each leaves.
fn crash_everywhere(before: &Pmem, new: &[u8], mut check: impl FnMut(&Pmem)) -> usize {
    for steps in 0.. {
        let (result, after) = publish(before, new, Some(steps));
        after.survivors().for_each(|survivor| check(&survivor));
        if result.is_ok() {
            return steps;
        }
    }
    unreachable!("a publication has an end")
}

#[test]
pub fn a_crash_at_any_step_leaves_the_old_image_or_the_new_one() {
    let empty = PersistentFile::format(Pmem::default()).expect("room").medium().clone();
    for (old, new, next) in [(None, 51, 8), (Some(6), 101, 2), (Some(120), 44, 13), (Some(3), 80, 7)] {
        let new = image(new);
        let (before, old) = match old.map(image) {
            Some(old) => (publish(&empty, &old, None).1, Ok(old)),
            None => (empty.clone(), Err(Error::NothingPublished)),
        };
        assert_eq!(recovered(&before), old);
        let (mut olds, mut news) = (0, 0);
        crash_everywhere(&before, &new, |survivor| {
            let found = recovered(survivor);
            assert!(found == old || found.as_ref() == Ok(&new), "neither: {found:?}");
            if found == old {
                olds += 1
            } else {
                news += 1
            }
            // The medium can be used after every crash.
            let (result, after) = publish(survivor, &image(next), None);
            assert_eq!((result, recovered(&after.survivor(|_| 0))), (Ok(()), Ok(image(next))));
        });
        assert!(olds > 20 && news > 1, "{olds} old, {news} new");
        let (result, after) = publish(&before, &new, None);
        assert_eq!((result, recovered(&after.survivor(|_| 0))), (Ok(()), Ok(new)));
    }
}

#[test]
fn a_crash_during_creation_leaves_an_empty_file_or_none() {
    let created = PersistentFile::format(Pmem { ignores_flushes: true, ..Pmem::default() }).expect("room");
    for state in created.medium().survivors().chain([Pmem::default()]) {
        let file = PersistentFile::recover(state.clone()).or_else(|_| PersistentFile::format(state));
        assert_eq!(file.and_then(|file| file.image()), Err(Error::NothingPublished));
    }
}

#[test]
fn a_medium_without_flushes_is_found_out() {
    let pmem = Pmem { ignores_flushes: true, ..Pmem::default() };
    let pmem = PersistentFile::format(pmem).expect("room").medium().survivor(|states| states);
    let before = publish(&pmem, &image(6), None).1.survivor(|states| states);
    let mut mixtures = 0;
    crash_everywhere(&before, &image(3), |survivor| {
        let found = recovered(survivor);
        mixtures += usize::from(found != Ok(image(6)) && found != Ok(image(3)));
    });
    assert!(mixtures > 0);
}

#[test]
pub fn bytes_that_do_not_arrive_are_not_published() {
    let empty = PersistentFile::format(Pmem::default()).expect("room").medium().clone();
    let before = publish(&empty, &image(6), None).1;
    let (result, after) = publish(&Pmem { garbles: true, ..before }, &image(9), None);
    assert!(result.is_err());
    assert_eq!(recovered(&after.survivor(|states| states)), Ok(image(6)));
}

#[test]
fn a_failed_publication_does_not_endanger_either_image() {
    let empty = PersistentFile::format(Pmem::default()).expect("room").medium().clone();
    let before = publish(&empty, &image(6), None).1;
    for (steps, again) in (0..10).flat_map(|steps| (0..12).map(move |again| (steps, again))) {
        let pmem = Pmem { steps: Some(steps), again: Some(again), ..before.clone() };
        let mut file = PersistentFile::recover(pmem).expect("a file");
        let results = [9, 11].map(|rows| file.publish(&image(rows)));
        for survivor in file.medium().survivors() {
            let found = recovered(&survivor).expect("a whole image");
            assert!([6, 9, 11].map(image).contains(&found), "{results:?}");
            assert!(results[1].is_err() || found == image(11));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn any_number_of_crashes_leaves_one_of_two_images(
        publications in prop::collection::vec((1..300_u32, prop::option::of(0..14_usize)), 1..12),
        seed: u64,
    ) {
        let mut state = seed;
        let mut pmem = PersistentFile::format(Pmem::default()).expect("room").medium().clone();
        let mut current = Err(Error::NothingPublished);
        for (rows, steps) in publications {
            let new = image(rows);
            let (result, after) = publish(&pmem, &new, steps);
            pmem = after.survivor(|states| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % (states + 1)
            });
            let found = recovered(&pmem);
            if result.is_ok() {
                prop_assert_eq!(&found, &Ok(new));
            } else {
                prop_assert!(found == current || found == Ok(new));
            }
            current = found;
        }
    }
}

#[test]
fn readers_keep_their_image_while_others_are_published() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("elf");
    let mut file = PersistentFile::create(&path).expect("a new file");
    let mut readers = Vec::new();
    for rows in [300, 20, 5, 4_000, 7] {
        file.publish(&image(rows)).expect("a whole image");
        readers.push((rows, file.image().expect("an image")));
        assert!(readers.iter().all(|(rows, loan)| loan.as_ref() == image(*rows)));
    }
    let ranges = file.medium().lent();
    assert!(
        ranges
            .iter()
            .enumerate()
            .all(|(i, a)| ranges[i + 1..].iter().all(|b| a.end <= b.start || b.end <= a.start))
    );
    readers.clear();
    let bytes = file.medium().bytes();
    (0..10).for_each(|rows| file.publish(&image(rows + 1)).expect("a whole image"));
    assert_eq!(file.medium().bytes(), bytes, "the space of old images is used again");
    drop(file);
    let file = PersistentFile::open(&path).expect("a file");
    assert_eq!(file.image().expect("an image").as_ref(), image(10));
    let incomplete = PersistentFile::open_read_only(&path).err();
    assert_eq!(incomplete, Some(Error::FileInUse));
    let built = build_linear(&CodeTable::new(vec![vec![1]]).expect("a row"), &[0], &BuildOptions::default());
    drop(file);
    let mut file = PersistentFile::open(&path).expect("a file");
    let image = pando_elf::ElfLayout::bytes(&built.expect("a row")).to_vec();
    let error = file.publish(&image[..image.len() - 1]).expect_err("a part of an image");
    assert_eq!(error, Error::WrongSize { found: image.len() as u64 - 1, expected: image.len() as u64 });
}
