//! Processes as the pool names them: by an identity, and by the attach slot that the process holds.
//!
//! The pool knows no operating system. Identities come from the program that attaches; slots are numbered by
//! the attach table.

use std::fmt;

/// Identity by which other processes recognise a process. The pool stores and compares these numbers and
/// passes them to [`crate::AttachOptions::is_alive`]; it knows no operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ProcessIdentity {
    /// Process number on its host.
    pub pid: u32,
    /// Start time, in any unit that tells apart processes with the same number.
    pub start_time: u64,
    /// Hash of the host and its boot; 0 if the pool never leaves one host and one boot.
    pub host: u64,
}

/// Slot of an attached process in the attach table; 15 bits, so that it fits into a lock word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttachSlot(pub u16);

/// Number of attach slots that 15 bits can distinguish; one value is reserved for "none".
pub const MAX_ATTACHED: usize = (1 << 15) - 1;

impl fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)
    }
}

impl fmt::Display for AttachSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
