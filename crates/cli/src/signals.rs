//! Signals that would end a command before it closed its pool.
//!
//! Ctrl-C, termination and the end of the terminal: the first one asks the command to stop and close the pool, the second one
//! ends it. `nohup` works: a process that was started to outlive its terminal does. Output that outgrows the limit on the size
//! of files is an error of the write, not the end of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::failure::Failure;

/// Between two looks of who has nothing else to do.
const LOOK: Duration = Duration::from_millis(100);

/// Makes a write beyond the limit on the size of files fail like one to a full disk. Without, the command would be
/// ended at any point, and the pool that it uses would not be closed.
pub fn outlive_size_limit() -> Result<(), Failure> {
    // Nobody looks at the flag: it is enough that the signal is heard.
    flag::register(SIGXFSZ, Arc::default())
        .map(drop)
        .map_err(|error| Failure::failed(format_args!("cannot listen for signals: {error}")))
}

/// Whether the process was started so that it does not hear this signal.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignores(&status, signal)
}

/// The same by what the kernel says of a process.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Whether somebody wants the command to stop.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    wanted: Arc<AtomicBool>,
}

impl Interrupt {
    /// From now on signals are heard here.
    pub fn listen() -> Result<Interrupt, Failure> {
        let (wanted, signalled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let hang_up = if is_ignored(SIGHUP) { None } else { Some(SIGHUP) };
        for signal in [SIGINT, SIGTERM].into_iter().chain(hang_up) {
            // In this order: the first signal finds its flag down and only raises both.
            flag::register_conditional_shutdown(signal, 1, Arc::clone(&signalled))
                .and_then(|_| flag::register(signal, Arc::clone(&signalled)))
                .and_then(|_| flag::register(signal, Arc::clone(&wanted)))
                .map_err(|error| Failure::failed(format_args!("cannot listen for signals: {error}")))?;
        }
        Ok(Interrupt { wanted })
    }

    /// Asks the command to stop for another reason. A signal that comes after is the first all the same.
    pub fn raise(&self) {
        self.wanted.store(true, Relaxed);
    }

    #[inline]
    pub fn wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// Waits for that.
    pub fn wait(&self) {
        while !self.wanted() {
            std::thread::sleep(LOOK);
        }
    }

    /// An error if the command is to stop.
    pub fn check(&self) -> Result<(), Failure> {
        if self.wanted() { Err(Failure::failed("interrupted")) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_which_signals_are_ignored() {
        let status = "Name:\tpando\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001001\n";
        assert!(ignores(status, SIGHUP) && !ignores(status, SIGINT) && !ignores(status, SIGTERM));
        assert!(!ignores("", SIGHUP));
    }
}
