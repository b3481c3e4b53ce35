//! Errors of the register of a group.
//!
//! Each says whether the view is as it was: only of a change that etcd was asked for and did not answer it may be
//! unknown ([`RegisterError::Unknown`]).

/// Reason why the register was not read or changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegisterError {
    #[error(
        "of the {acceptors} memory servers that decide, only {answering} answer, which is no majority: {reason}"
    )]
    NoMajority { acceptors: usize, answering: usize, reason: String },
    #[error("the view of the memory servers is damaged: {0}")]
    Damaged(String),
    #[error("others change the view of the memory servers all the time")]
    Contended,
    #[error("{0}")]
    Refused(String),
    #[error("the register {register} does not answer: {reason}")]
    Silent { register: String, reason: String },
    #[error("the register {register} does not answer, and may have changed the view nevertheless: {reason}")]
    Unknown { register: String, reason: String },
    #[error(
        "what the register {register} has at key {key} is no view of memory servers in this register: {reason}"
    )]
    Foreign { register: String, key: String, reason: String },
    #[error(
        "the register {register} has {found}, although view {known} was decided: its data is lost, or it is not the same etcd"
    )]
    Lost { register: String, found: String, known: u64 },
}

impl RegisterError {
    /// Whether there was no answer, so that another attempt may have one.
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Silent { .. } | Self::NoMajority { .. } | Self::Unknown { .. })
    }
}
