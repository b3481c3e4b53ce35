//! Defects that can be seeded into the protocols of membership, to test that the checks find them.
//!
//! [`pando_fabric::defect`] activates a defect; builds without the feature pay nothing. The tests of this
//! crate find each of them (`tests/it/defects.rs`).

use pando_fabric::defect;

/// A protocol step that is skipped or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// An acceptor accepts whatever it has promised.
    PromiseIgnored,
    /// A proposer ignores the values that came with the promises.
    AcceptedIgnored,
    /// Fewer than a majority of the acceptors suffice.
    Minority,
    /// A server whose memory is lost answers requests to the acceptor that was in it.
    ForgetfulAcceptor,
    /// A lease is counted from the answer, not from the sending of its round.
    LeaseFromAnswer,
    /// A promoted server serves at once.
    NoWait,
    /// An acceptor agrees to the lease of a server that knows an older view than it.
    OlderEpoch,
    /// A copy that is being filled may become the primary.
    SyncingPromoted,
    /// Acceptors that an older view names decide on a change of a view that names others.
    OldAcceptors,
    /// A proposer goes to the acceptors that a view names before that view is decided.
    UndecidedAcceptors,
    /// A proposer changes the number of acceptors after a value that may not be decided.
    ResizedUndecided,
    /// A new volume is used before it has all its copies.
    UnplannedVolume,
}

impl Defect {
    pub const ALL: [Self; 12] = [
        Self::PromiseIgnored,
        Self::AcceptedIgnored,
        Self::Minority,
        Self::ForgetfulAcceptor,
        Self::LeaseFromAnswer,
        Self::NoWait,
        Self::OlderEpoch,
        Self::SyncingPromoted,
        Self::OldAcceptors,
        Self::UndecidedAcceptors,
        Self::ResizedUndecided,
        Self::UnplannedVolume,
    ];
}

impl defect::Defect for Defect {
    fn number(self) -> u8 {
        self as u8
    }
}
