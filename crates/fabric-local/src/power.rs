//! What a loss of power may leave of a file (feature `power`, for tests).
//!
//! `FILE.disk` has what is surely on the disk: the bytes of each range as they were when a call that persisted it
//! began. [`lose_power`] gives each sector of a file either these or its last bytes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_fabric::WORD;
use pando_fabric::sectors::SECTOR;

/// Bytes compared at once: many sectors.
const PIECE: usize = 1 << 16;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn on_disk(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".disk");
    name.into()
}

/// A range that is being persisted.
pub(crate) struct Persisting {
    _alone: MutexGuard<'static, ()>,
    disk: File,
    start: usize,
    bytes: Vec<u8>,
}

impl Persisting {
    /// Takes the bytes as they are now.
    pub fn begin(path: &Path, words: &[AtomicU64], start: usize, len: usize) -> io::Result<Self> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let disk =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(on_disk(path))?;
        let (first, end) = (start / WORD, (start + len).div_ceil(WORD));
        let bytes = words[first..end].iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
        Ok(Self { _alone: alone, disk, start: first * WORD, bytes })
    }

    /// They are on the disk.
    pub fn end(self) -> io::Result<()> {
        let mut before = vec![0; PIECE];
        for (i, piece) in self.bytes.chunks(PIECE).enumerate() {
            let at = (self.start + i * PIECE) as u64;
            if read_some(&self.disk, &mut before[..piece.len()], at)? != piece {
                self.disk.write_all_at(piece, at)?;
            }
        }
        Ok(())
    }
}

/// Reads bytes; those behind the end are zeros.
fn read_some<'b>(file: &File, bytes: &'b mut [u8], at: u64) -> io::Result<&'b [u8]> {
    bytes.fill(0);
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], at + done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    Ok(bytes)
}

/// Gives each sector of `path`, which no process has open, its last bytes or those that are surely on the disk,
/// as `is_lost` says; returns the number of sectors that lost something.
///
/// # Errors
/// Errors of the file system.
pub fn lose_power(path: &Path, mut is_lost: impl FnMut() -> bool) -> io::Result<u64> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let disk = match File::open(on_disk(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::write(on_disk(path), [])?;
            File::open(on_disk(path))?
        }
        opened => opened?,
    };
    let (mut now, mut then, mut lost) = (vec![0; PIECE], vec![0; PIECE], 0);
    for at in (0..file.metadata()?.len()).step_by(PIECE) {
        read_some(&file, &mut now, at)?;
        read_some(&disk, &mut then, at)?;
        for (i, sector) in then.chunks(SECTOR as usize).enumerate() {
            let place = i * SECTOR as usize;
            if now[place..place + sector.len()] != *sector && is_lost() {
                file.write_all_at(sector, at + place as u64)?;
                lost += 1;
            }
        }
    }
    Ok(lost)
}
