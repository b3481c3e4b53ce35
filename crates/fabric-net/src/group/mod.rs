//! Messages between the memory servers of a pool with copies, and from their clients.
//!
//! Such servers are a *group*: a register has the view, which says which server has which copy ([`pando_member`]). The servers
//! hold it together, or it is in etcd ([`Register`]). A message is a request `Group` of the protocol for verbs, with a
//! kind; its answer is the body of the reply. Servers and clients send them over connections of their own, one message at a
//! time ([`Line`]).

mod acceptors;
mod condition;
mod error;
mod etcd;
mod line;
mod register;

pub use condition::{Fill, MemberCondition, ServerCondition};
pub(crate) use etcd::Etcd;
pub use etcd::{BadRegister, RegisterAddress};
pub(crate) use line::{Line, LineError};
pub(crate) use register::Register;

/// Kinds of messages.
pub(crate) mod kind {
    /// A request to the acceptor; the answer is the acceptor's.
    pub const REGISTER: u16 = 1;
    /// A round of a server ([`pando_member::Renew`]); the answer is a [`pando_member::Renewed`].
    pub const RENEW: u16 = 2;
    /// Asks for the newest decided view that the server knows; nothing if it belongs to no group.
    pub const VIEW: u16 = 3;
    /// A decided view. From now on this connection's verbs belong to it. No answer.
    pub const ENTER: u16 = 4;
    /// Asks which processes were given up for dead; the answer is their numbers.
    pub const FENCES: u16 = 5;
    /// Asks which register outside the servers this one was given; the answer is its name, or nothing.
    pub const WHICH_REGISTER: u16 = 6;
    /// Asks how the server is; the answer is a [`super::ServerCondition`].
    pub const CONDITION: u16 = 7;
}
