//! Copies of memory servers.
//!
//! What a pool calls a memory server is a *volume* here: a range of bytes of which several memory servers have
//! copies. [`Replicated`] wraps an endpoint of any fabric, and is one itself, with volumes in the place of memory
//! servers. So pools and indexes know nothing of copies. A [`Placement`] says which servers have copies of a
//! volume; the first copy is the *primary*, which all READs go to. It changes when a server is lost ([`Views`]).
//!
//! `docs/replicas.md` has the protocol, and what is promised.
#![forbid(unsafe_code)]

mod again;
pub mod defect;
mod endpoint;
mod judged;
mod placement;
mod views;

pub use endpoint::Replicated;
pub use judged::Judged;
pub use placement::{Placement, Replica, Volume};
pub use views::Views;
