//! Ctrl-C and termination: the first one asks the command to stop and close the pool, the second one ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::Failure;

/// Whether somebody wants the command to stop.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on signals are heard here.
    pub fn listen() -> Result<Interrupt, Failure> {
        let wanted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag down and only raises it.
            flag::register_conditional_shutdown(signal, 1, Arc::clone(&wanted))
                .and_then(|_| flag::register(signal, Arc::clone(&wanted)))
                .map_err(|error| Failure::failed(format_args!("cannot listen for signals: {error}")))?;
        }
        Ok(Interrupt(wanted))
    }

    #[inline]
    pub fn wanted(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// An error if the command is to stop.
    pub fn check(&self) -> Result<(), Failure> {
        if self.wanted() { Err(Failure::failed("interrupted")) } else { Ok(()) }
    }
}
