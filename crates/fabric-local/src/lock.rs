//! A lock between processes, for short critical sections such as making a pool or attaching to one.
//!
//! It is `flock` on a file description of its own, so it excludes threads as well as processes, and the kernel releases
//! it when the holder ends, however it ends. A pool that is there is locked by its first file, one that is yet to be
//! made by the directory that it will be in.

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

/// Nobody else, in this process or another, holds the lock of the same pool while this lives. The kernel releases
/// it when the holder's process ends, however it ends.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct ExclusiveLock {
    _description: File,
}

impl ExclusiveLock {
    /// Locks the file behind `file`; waits up to 30 s for another holder.
    pub(crate) fn of(file: &File, path: &Path) -> Result<Self> {
        // Such a lock belongs to the open file description, so that threads only exclude each other with one each.
        // The way through the descriptor finds the mapped file even if its name is gone.
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
