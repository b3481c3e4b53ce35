//! Signals that would otherwise end a command before it closes its pool.
//!
//! Interrupt, termination and hang-up: the first signal asks the command to stop and close the pool, the
//! second one ends it. Under `nohup` hang-up is ignored. Output beyond the limit on file sizes is an error of
//! the write and does not end the process.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use crate::failure::Failure;

/// Interval at which a waiting command checks the flag.
const LOOK: Duration = Duration::from_millis(100);

/// Makes a write beyond the limit on file sizes fail like one to a full disk. Otherwise SIGXFSZ would end the
/// command at any point, with its pool open.
pub fn outlive_size_limit() -> Result<(), Failure> {
    // Handling the signal suffices; the flag is not read.
    flag::register(SIGXFSZ, Arc::default())
        .map(drop)
        .map_err(|error| Failure::failed(format_args!("cannot listen for signals: {error}")))
}

/// Whether the process was started with this signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignores(&status, signal)
}

/// [`is_ignored`] on the kernel's status text of a process.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// The request to stop the command.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    wanted: Arc<AtomicBool>,
}

impl Interrupt {
    /// Starts handling signals.
    pub fn listen() -> Result<Interrupt, Failure> {
        let (wanted, signalled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let hang_up = if is_ignored(SIGHUP) { None } else { Some(SIGHUP) };
        for signal in [SIGINT, SIGTERM].into_iter().chain(hang_up) {
            // In this order, the first signal finds the shutdown flag unset and sets both flags.
            flag::register_conditional_shutdown(signal, 1, Arc::clone(&signalled))
                .and_then(|_| flag::register(signal, Arc::clone(&signalled)))
                .and_then(|_| flag::register(signal, Arc::clone(&wanted)))
                .map_err(|error| Failure::failed(format_args!("cannot listen for signals: {error}")))?;
        }
        Ok(Interrupt { wanted })
    }

    /// Asks the command to stop for a reason other than a signal. The next signal still counts as the first.
    pub fn raise(&self) {
        self.wanted.store(true, Relaxed);
    }

    #[inline]
    pub fn wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// Waits for a request to stop.
    pub fn wait(&self) {
        while !self.wanted() {
            std::thread::sleep(LOOK);
        }
    }

    /// Whether work goes on that asks for that.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.wanted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Fails if the command must stop.
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
