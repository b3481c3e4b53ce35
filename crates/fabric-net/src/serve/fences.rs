//! Processes given up for dead, which are not admitted again.
//!
//! Any admitted client may fence as often as it likes, so the oldest fences are forgotten beyond a limit: a
//! process is readmitted after that many later deaths. A server whose memory outlives it keeps the fences in
//! a file, so that a restart of the server does not readmit a process. The file is a sequence of numbers of 8
//! bytes, little-endian; an incomplete number at its end is ignored.

use std::collections::{HashSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Maximum number of remembered processes.
pub(super) const FENCES_MAX: usize = 1 << 16;
const NUMBER: usize = size_of::<u64>();

#[derive(Default)]
pub(super) struct Fences {
    known: HashSet<u64>,
    /// The same processes, oldest first.
    order: VecDeque<u64>,
    file: Option<Kept>,
}

/// The file that keeps them.
struct Kept {
    path: PathBuf,
    file: File,
    /// Numbers in the file, including forgotten ones.
    written: usize,
}

impl Fences {
    /// Reads the fences from the file at `path`, which is created if missing.
    pub fn kept_at(path: &Path) -> io::Result<Self> {
        let mut fences = Self::default();
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        for number in bytes.as_chunks::<NUMBER>().0 {
            fences.remember(u64::from_le_bytes(*number));
        }
        let file = rewrite(path, &fences.order)?;
        fences.file = Some(Kept { path: path.to_owned(), file, written: fences.order.len() });
        Ok(fences)
    }

    /// All remembered processes.
    pub fn all(&self) -> impl Iterator<Item = u64> {
        self.order.iter().copied()
    }

    pub fn contains(&self, process: u64) -> bool {
        self.known.contains(&process)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Adds a process.
    ///
    /// # Errors
    /// Errors of the file; the process is still fenced until the server ends.
    pub fn add(&mut self, process: u64) -> io::Result<()> {
        if !self.remember(process) {
            return Ok(());
        }
        let Some(kept) = &mut self.file else { return Ok(()) };
        if kept.written >= 2 * FENCES_MAX {
            kept.file = rewrite(&kept.path, &self.order)?;
            kept.written = self.order.len();
            return Ok(());
        }
        kept.file.write_all(&process.to_le_bytes())?;
        kept.written += 1;
        Ok(())
    }

    /// Returns whether the process is new.
    fn remember(&mut self, process: u64) -> bool {
        let is_new = self.known.insert(process);
        if is_new {
            self.order.push_back(process);
        }
        if self.order.len() > FENCES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        is_new
    }
}

/// Replaces the file atomically by a complete one, and opens it for appending.
fn rewrite(path: &Path, numbers: &VecDeque<u64>) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&bytes)?;
    fs::rename(&new, path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_remembered_and_no_more() {
        let mut fences = Fences::default();
        (0..3 * FENCES_MAX as u64).for_each(|process| fences.add(process).expect("no file"));
        assert_eq!((fences.len(), fences.known.len()), (FENCES_MAX, FENCES_MAX));
        assert!(fences.order.capacity() <= 2 * FENCES_MAX);
        assert!(!fences.contains(0) && fences.contains(3 * FENCES_MAX as u64 - 1));
    }

    #[test]
    fn a_file_has_them_after_a_restart_and_stays_short() {
        let path = std::env::temp_dir().join(format!("pando-fences-{}", std::process::id()));
        // The file exists only if an earlier run failed.
        let _ = fs::remove_file(&path);
        let mut fences = Fences::kept_at(&path).expect("it is made");
        (7..10).for_each(|process| fences.add(process).expect("it is written"));
        drop(fences);
        fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .expect("it is there")
            .write_all(&[1; 5])
            .expect("cut");
        let mut fences = Fences::kept_at(&path).expect("it is read");
        assert!((7..10).all(|process| fences.contains(process)) && fences.len() == 3);
        (0..4 * FENCES_MAX as u64).for_each(|process| fences.add(process).expect("it is written"));
        assert!(fs::metadata(&path).expect("it is there").len() <= (2 * FENCES_MAX * NUMBER) as u64);
        fs::remove_file(&path).expect("it is there");
    }
}
