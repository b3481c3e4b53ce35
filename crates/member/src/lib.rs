//! Membership of a replicated pool: which memory server serves which volume (`docs/durability.md`).
//!
//! A [`View`] says where the copies of each volume are. The current view is the value of a linearizable
//! register, which the [`Acceptor`]s on the memory servers hold together; a [`Proposal`] changes or reads it. Or the
//! view names another linearizable register, outside the servers ([`OUTSIDE`]).
//! A [`ServerLease`] tells a memory server whether it may serve, so that one that was cut off stops before
//! another one takes its place. All of this is data and state machines: the caller sends messages, persists
//! bytes and reads clocks.
//!
//! ```
//! use pando_fabric::MemoryServerId;
//! use pando_member::{Acceptor, AcceptorId, Ballot, Proposal, Request, Server, Step, View, VolumeId};
//!
//! let view = View::new(7, 2, ["oak:1", "elm:1", "ash:1"].map(|address| Server::new(address, 1)).into())?;
//! let ids: Vec<_> = (0..3).map(|i| AcceptorId { server: MemoryServerId(i), incarnation: 1 }).collect();
//! let mut acceptors: Vec<_> = ids.iter().map(|id| Acceptor::new(*id)).collect();
//!
//! let change = |current: &[u8]| if current.is_empty() { view.encode() } else { current.to_vec() };
//! let mut proposal = Proposal::new(&ids, View::acceptors_of, Ballot::ZERO.next(99), change);
//! let decided = 'decided: loop {
//!     let requests: Vec<_> = proposal.requests().map(|(to, request)| (to, request.encode())).collect();
//!     for (to, request) in requests {
//!         let answer = acceptors[to.server.0 as usize].answer(&Request::decode(&request)?);
//!         if let Step::Decided = proposal.answered(to.server, &answer) {
//!             break 'decided View::decode(proposal.value().expect("decided"))?;
//!         }
//!     }
//! };
//! assert_eq!(decided.primary(VolumeId(1)).map(|copy| copy.server), Some(MemoryServerId(1)));
//! let without = decided.without(MemoryServerId(1))?;
//! assert_eq!(without.primary(VolumeId(1)).map(|copy| copy.server), Some(MemoryServerId(2)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod defect;
mod lease;
mod register;
mod view;

pub use lease::{Renew, Renewed, ServerLease, Serves, Terms};
pub use register::{Acceptor, AcceptorId, Answer, Ask, Ballot, Names, Proposal, Request, Step};
pub use view::{
    FIRST_EPOCH, HeldCopy, LostVolumes, OUTSIDE, Place, Role, Server, View, ViewError, VolumeCopy, VolumeId,
};
