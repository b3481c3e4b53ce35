//! Signals that would end a command before it closed its pool.
//!
//! Ctrl-C and termination: the first one asks the command to stop and close the pool, the second one ends it. Output
//! that outgrows the limit on the size of files is an error of the write, not the end of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
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

/// Whether somebody wants the command to stop.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    wanted: Arc<AtomicBool>,
}

impl Interrupt {
    /// From now on signals are heard here.
    pub fn listen() -> Result<Interrupt, Failure> {
        let (wanted, signalled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for signal in [SIGINT, SIGTERM] {
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
