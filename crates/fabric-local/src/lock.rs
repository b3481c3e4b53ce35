//! A lock between processes, for short critical sections such as the creation of a pool or an attach.
//!
//! It is a `flock` on its own open file description, so it excludes threads as well as processes. The kernel
//! releases it when the holder ends, in whatever way. The lock of an existing pool is on its first file, the
//! lock of a pool to be created on its parent directory.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use pando_fabric::Result;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::region::{open_error, system_error};

const WAIT_MAX: Duration = Duration::from_secs(30);
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The held lock of a pool. It excludes all other threads and processes while it lives. The kernel releases
/// it when the holder's process ends, in whatever way.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct ExclusiveLock {
    _description: File,
}

impl ExclusiveLock {
    /// Locks the file behind `file`; waits up to 30 s for another holder.
    pub(crate) fn of(file: &File, path: &Path) -> Result<Self> {
        // A `flock` belongs to the open file description, so each thread needs its own to exclude the others.
        // Opening through the descriptor finds the mapped file even if its name is gone.
        let description = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .or_else(|_| File::open(path))
            .map_err(|err| system_error(path, format!("cannot be opened for locking: {err}")))?;
        Self::wait_for(description, path)
    }

    /// Locks `directory`; waits up to 30 s for another holder.
    pub(crate) fn of_directory(directory: &Path) -> Result<Self> {
        let description = File::open(directory).map_err(|err| match err.kind() {
            ErrorKind::NotFound => open_error(directory, "there is no such directory"),
            _ => system_error(directory, format!("cannot be opened for locking: {err}")),
        })?;
        Self::wait_for(description, directory)
    }

    fn wait_for(description: File, path: &Path) -> Result<Self> {
        let deadline = Instant::now() + WAIT_MAX;
        let mut pause = PAUSE_MIN;
        loop {
            match flock(&description, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _description: description }),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    thread::sleep(pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Err(Errno::WOULDBLOCK) => {
                    let seconds = WAIT_MAX.as_secs();
                    return Err(system_error(
                        path,
                        format!("another process kept it locked for {seconds} s"),
                    ));
                }
                Err(err) => return Err(system_error(path, format!("cannot be locked: {err}"))),
            }
        }
    }
}
