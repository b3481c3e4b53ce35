//! A linearizable register by CASPaxos (Rystsov, "CASPaxos: Replicated State Machines without logs").
//!
//! The value is bytes, none at first. A change is a function of the current value; reading is the change to the
//! same value. A proposer collects promises of a majority of the acceptors (phase 1), takes the value that was
//! accepted with the largest ballot, changes it, and has a majority accept the result (phase 2). Then the value
//! is *decided*. A value may name the acceptors that decide on the next one: [`Proposal`] has the rules.
//!
//! A [`Ballot`] is used for one [`Proposal`] only. An acceptor's state is persisted before an answer leaves, and requests
//! name the memory that they are for, so an acceptor that has lost its promises never answers as if it had made none.
//! ```text
//! request   kind 1 | incarnation 8 | ballot 16 | Accept: length 4, value
//! answer    kind 1 | ballot 16 | Promised: ballot 16, length 4, value | Refused: ballot 16
//! acceptor  server 2 | incarnation 8 | promised 16 | accepted 16 | length 4, value
//! ballot    counter 8 | proposer 8
//! ```

use pando_fabric::MemoryServerId;
use pando_fabric::codec::{BadField, Put, Reader};
use pando_fabric::defect::defect;

use crate::defect::Defect;

/// No proposer counts so far; messages with larger counters are refused.
const COUNTER_END: u64 = 1 << 63;

/// Number of a proposal. Ballots are ordered by counter, then by proposer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot {
    pub counter: u64,
    /// Number of the proposing process, drawn at its start: a process that starts again needs another one.
    pub proposer: u64,
}

impl Ballot {
    /// Below every ballot of a proposal.
    pub const ZERO: Self = Self { counter: 0, proposer: 0 };

    /// A ballot of `proposer` that beats this one.
    pub fn next(self, proposer: u64) -> Self {
        Self { counter: self.counter + 1, proposer }
    }

    fn put(self, out: &mut Vec<u8>) {
        out.put_u64(self.counter);
        out.put_u64(self.proposer);
    }

    fn read(reader: &mut Reader) -> Result<Self, BadField> {
        let ballot = Self { counter: reader.u64()?, proposer: reader.u64()? };
        if ballot.counter >= COUNTER_END || (ballot.counter == 0 && ballot != Self::ZERO) {
            return Err(reader.bad("a ballot that cannot be"));
        }
        Ok(ballot)
    }

    /// Reads the ballot of a proposal.
    fn read_used(reader: &mut Reader) -> Result<Self, BadField> {
        let ballot = Self::read(reader)?;
        if ballot == Self::ZERO { Err(reader.bad("a ballot of no proposal")) } else { Ok(ballot) }
    }
}

/// An acceptor: a memory server, and the incarnation that it had when it became an acceptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AcceptorId {
    pub server: MemoryServerId,
    pub incarnation: u64,
}

/// What a proposer asks an acceptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'b> {
    /// To promise to take no smaller ballot.
    Prepare,
    /// To accept this value.
    Accept(&'b [u8]),
}

/// A message from a proposer to an acceptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'b> {
    /// Incarnation of the acceptor.
    pub incarnation: u64,
    pub ballot: Ballot,
    pub ask: Ask<'b>,
}

impl<'b> Request<'b> {
    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![if self.ask == Ask::Prepare { 1 } else { 2 }];
        out.put_u64(self.incarnation);
        self.ballot.put(&mut out);
        if let Ask::Accept(value) = self.ask {
            out.put_counted(value);
        }
        out
    }

    /// The message that `bytes` encode.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, BadField> {
        let reader = &mut Reader::new(bytes);
        let (kind, incarnation, ballot) = (reader.u8()?, reader.u64()?, Ballot::read_used(reader)?);
        let ask = match kind {
            1 => Ask::Prepare,
            2 => Ask::Accept(reader.counted()?),
            _ => return Err(reader.bad("an unknown kind of request")),
        };
        reader.end()?;
        Ok(Self { incarnation, ballot, ask })
    }
}

/// Answer of an acceptor to the proposer with this ballot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'b> {
    /// It takes no smaller ballot from here on. It has accepted `value`, by the ballot `accepted`.
    Promised {
        ballot: Ballot,
        accepted: Ballot,
        value: &'b [u8],
    },
    Accepted {
        ballot: Ballot,
    },
    /// It has promised the larger ballot `promised`.
    Refused {
        ballot: Ballot,
        promised: Ballot,
    },
    /// It is not the acceptor that was asked: that one's memory is lost. It will not answer again.
    Stranger {
        ballot: Ballot,
    },
}

impl<'b> Answer<'b> {
    /// Ballot of the request.
    pub fn ballot(&self) -> Ballot {
        let (Self::Promised { ballot, .. }
        | Self::Accepted { ballot }
        | Self::Refused { ballot, .. }
        | Self::Stranger { ballot }) = *self;
        ballot
    }

    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![match self {
            Self::Promised { .. } => 1,
            Self::Accepted { .. } => 2,
            Self::Refused { .. } => 3,
            Self::Stranger { .. } => 4,
        }];
        self.ballot().put(&mut out);
        match *self {
            Self::Promised { accepted, value, .. } => {
                accepted.put(&mut out);
                out.put_counted(value);
            }
            Self::Refused { promised, .. } => promised.put(&mut out),
            Self::Accepted { .. } | Self::Stranger { .. } => {}
        }
        out
    }

    /// The message that `bytes` encode.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn decode(bytes: &'b [u8]) -> Result<Self, BadField> {
        let reader = &mut Reader::new(bytes);
        let (kind, ballot) = (reader.u8()?, Ballot::read_used(reader)?);
        let answer = match kind {
            1 => {
                let (accepted, value) = read_accepted(reader)?;
                Self::Promised { ballot, accepted, value }
            }
            2 => Self::Accepted { ballot },
            3 => Self::Refused { ballot, promised: Ballot::read_used(reader)? },
            4 => Self::Stranger { ballot },
            _ => return Err(reader.bad("an unknown kind of answer")),
        };
        reader.end()?;
        Ok(answer)
    }
}

fn read_accepted<'b>(reader: &mut Reader<'b>) -> Result<(Ballot, &'b [u8]), BadField> {
    let (accepted, value) = (Ballot::read(reader)?, reader.counted()?);
    if accepted == Ballot::ZERO && !value.is_empty() {
        return Err(reader.bad("a value that nothing proposed"));
    }
    Ok((accepted, value))
}

/// One of the processes that hold the register together.
///
/// After each request its [`state`](Self::encode) is persisted before the answer is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acceptor {
    id: AcceptorId,
    promised: Ballot,
    accepted: Ballot,
    value: Vec<u8>,
}

impl Acceptor {
    /// An acceptor that has promised nothing. There may be one for each id, ever.
    pub fn new(id: AcceptorId) -> Self {
        Self { id, promised: Ballot::ZERO, accepted: Ballot::ZERO, value: Vec::new() }
    }

    pub fn id(&self) -> AcceptorId {
        self.id
    }

    /// The value that it has accepted, decided or not; no bytes if none.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Answers a request that reached this server.
    pub fn answer(&mut self, request: &Request<'_>) -> Answer<'_> {
        let ballot = request.ballot;
        if request.incarnation != self.id.incarnation && !defect(Defect::ForgetfulAcceptor) {
            return Answer::Stranger { ballot };
        }
        match request.ask {
            Ask::Prepare => self.prepare(ballot),
            Ask::Accept(value) => self.accept(ballot, value),
        }
    }

    /// Phase 1. The same request again gets the same answer.
    pub fn prepare(&mut self, ballot: Ballot) -> Answer<'_> {
        if ballot < self.promised {
            return Answer::Refused { ballot, promised: self.promised };
        }
        self.promised = ballot;
        Answer::Promised { ballot, accepted: self.accepted, value: &self.value }
    }

    /// Phase 2. The same request again gets the same answer.
    pub fn accept(&mut self, ballot: Ballot, value: &[u8]) -> Answer<'_> {
        if ballot < self.promised && !defect(Defect::PromiseIgnored) {
            return Answer::Refused { ballot, promised: self.promised };
        }
        (self.promised, self.accepted) = (ballot, ballot);
        self.value.clear();
        self.value.extend_from_slice(value);
        Answer::Accepted { ballot }
    }

    /// The state as bytes, to be persisted.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(self.id.server.0);
        out.put_u64(self.id.incarnation);
        self.promised.put(&mut out);
        self.accepted.put(&mut out);
        out.put_counted(&self.value);
        out
    }

    /// The acceptor whose state `bytes` are.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadField> {
        let reader = &mut Reader::new(bytes);
        let id = AcceptorId { server: MemoryServerId(reader.u16()?), incarnation: reader.u64()? };
        let promised = Ballot::read(reader)?;
        let (accepted, value) = read_accepted(reader)?;
        if accepted > promised {
            return Err(reader.bad("a value that was accepted against a promise"));
        }
        reader.end()?;
        Ok(Self { id, promised, accepted, value: value.to_vec() })
    }
}

/// What came of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing yet: more answers are needed.
    Wait,
    /// Phase 2 begins: there are new [requests](Proposal::requests).
    Accept,
    /// The [value](Proposal::value) is decided.
    Decided,
    /// A majority cannot be won any more. Another proposal needs a ballot above this one. In phase 2 the value may be
    /// decided nevertheless, by a later proposal.
    Refused(Ballot),
    /// Too many acceptors failed.
    Hopeless,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Nothing,
    Yes,
    No,
    Failed,
}

#[derive(Debug)]
enum Phase<F> {
    Prepare { change: F, accepted: Ballot, value: Vec<u8> },
    Accept { value: Vec<u8> },
    Over,
}

/// The acceptors that a value names; `None` if it names none, and those that were asked decide on the next value too.
pub type Names = fn(&[u8]) -> Option<Vec<AcceptorId>>;

/// One attempt to change the register.
///
/// The change may be made to a value that is never decided, and an attempt that is given up in phase 2 may take
/// effect later. So a change that is tried again must tell by the value whether it was made already.
///
/// # Acceptors that change
/// A value may name other acceptors than the one before it: others in the place of some, or one more, or one less. One that is
/// not named any more is never named again: a server that returns is another acceptor. A proposal asks the
/// acceptors `K` that a *decided* value names; it need not be the newest one. Of these, there must be
/// 1. in phase 1, a majority of `K`, and a majority of the acceptors that the value found names;
/// 2. in phase 2, a majority of the acceptors that the value found names, and one of those that the new value names, without
///    those that the value found does not name.
/// 3. If the new value names more or fewer acceptors, the value found must be [known](Self::after) to be decided. If it is not,
///    it is decided first, and the change is [put off](Self::is_put_off).
///
/// If too few of `K` are left, the proposer must learn a newer decided value.
///
/// So a value `D` is decided by majorities of the acceptors that it names and of those that the value before it names. Let a later
/// proposal have a larger ballot, and all before it be as they should. It finds `D` or a newer value:
/// - It does not find a value from before the decided one that it knows: that one was accepted by a majority of `K`.
/// - Suppose that it finds another value `F` from before `D`. Let `V` be the last decided value before `F`, or `F` if that is
///   decided, and `N` the decided value after `V`. With `n` acceptors named by `V`, at most `n - majority(n)` of them have not
///   accepted `N`. By 3, `F` names `n - 1` acceptors at least, and those among them that `V` does not name were
///   never asked: none of these is in `K`. So a majority that `F` names has one that accepted `N`, before its promise. It
///   tells of `N` or a newer value, and `F` was not the one with the largest ballot.
/// - An acceptor that is new in a value is asked only after that value was decided, and so does not decide on
///   another one instead of acceptors that know the decided one.
#[derive(Debug)]
pub struct Proposal<F> {
    acceptors: Vec<AcceptorId>,
    names: Names,
    ballot: Ballot,
    /// A decided value; no bytes if none is known.
    known: Vec<u8>,
    phase: Phase<F>,
    heard: Vec<Heard>,
    /// Both are needed for the next phase.
    quorums: [Quorum; 2],
    decided: bool,
    put_off: bool,
    /// Largest ballot that acceptors told to have promised.
    to_beat: Ballot,
}

/// A majority of some acceptors, of whom those count that are asked.
#[derive(Debug)]
struct Quorum {
    /// By place in the list of those that are asked.
    counts: Vec<bool>,
    needs: usize,
}

impl Quorum {
    /// A majority of the acceptors that a value names; of all of `asked` if it names none.
    fn of(asked: &[AcceptorId], names: Option<&[AcceptorId]>) -> Self {
        let is_named = |id| names.is_none_or(|names| names.contains(id)) || defect(Defect::OldAcceptors);
        let counts = asked.iter().map(is_named).collect();
        Self { counts, needs: majority(names.map_or(asked.len(), <[AcceptorId]>::len)) }
    }

    /// Whether it is there if all count from whom one of `these` was heard.
    fn is_there(&self, heard: &[Heard], these: &[Heard]) -> bool {
        let heard = self.counts.iter().zip(heard);
        heard.filter(|(counts, heard)| **counts && these.contains(heard)).count() >= self.needs
    }
}

impl<F: FnOnce(&[u8]) -> Vec<u8>> Proposal<F> {
    /// A proposal to `acceptors`, which are on different servers: all that some decided value names, or all of the
    /// first ones. `ballot` was never used before; one below a ballot that is in use is refused.
    pub fn new(acceptors: &[AcceptorId], names: Names, ballot: Ballot, change: F) -> Self {
        Self {
            acceptors: acceptors.to_vec(),
            names,
            ballot,
            known: Vec::new(),
            phase: Phase::Prepare { change, accepted: Ballot::ZERO, value: Vec::new() },
            heard: vec![Heard::Nothing; acceptors.len()],
            quorums: [Quorum::of(acceptors, None), Quorum::of(acceptors, None)],
            decided: false,
            put_off: false,
            to_beat: Ballot::ZERO,
        }
    }

    /// This proposal by a process that knows that the value `known` was decided.
    pub fn after(self, known: &[u8]) -> Self {
        Self { known: known.to_vec(), ..self }
    }

    /// Whether the value is the one that was found, because that must be decided before the change may be made.
    pub fn is_put_off(&self) -> bool {
        self.put_off
    }

    pub fn ballot(&self) -> Ballot {
        self.ballot
    }

    /// Largest ballot that is known to be in use, this one included.
    pub fn to_beat(&self) -> Ballot {
        self.to_beat.max(self.ballot)
    }

    /// The decided value.
    pub fn value(&self) -> Option<&[u8]> {
        match &self.phase {
            Phase::Accept { value } if self.decided => Some(value),
            _ => None,
        }
    }

    /// The acceptors that the decided value names, for later proposals.
    pub fn named(&self) -> Option<Vec<AcceptorId>> {
        match &self.phase {
            Phase::Accept { value } if self.decided || defect(Defect::UndecidedAcceptors) => {
                (self.names)(value)
            }
            _ => None,
        }
    }

    /// Requests to send, to begin with and after [`Step::Accept`]: those of this phase that are not answered. They may
    /// be sent again at any time, and after the decision too, so that all acceptors get the value.
    pub fn requests(&self) -> impl Iterator<Item = (AcceptorId, Request<'_>)> {
        let ask = match &self.phase {
            Phase::Prepare { .. } => Some(Ask::Prepare),
            Phase::Accept { value } => Some(Ask::Accept(value)),
            Phase::Over => None,
        };
        let unanswered = self.acceptors.iter().enumerate().filter(|(at, _)| {
            self.heard[*at] == Heard::Nothing && self.quorums.iter().any(|quorum| quorum.counts[*at])
        });
        unanswered.filter_map(move |(_, id)| {
            Some((*id, Request { incarnation: id.incarnation, ballot: self.ballot, ask: ask? }))
        })
    }

    /// Takes an answer of the acceptor on `from`. Answers to other proposals, late and repeated ones do no harm.
    pub fn answered(&mut self, from: MemoryServerId, answer: &Answer<'_>) -> Step {
        let Some(at) = self.acceptors.iter().position(|id| id.server == from) else { return Step::Wait };
        if answer.ballot() != self.ballot || matches!(self.heard[at], Heard::Yes | Heard::No) {
            return Step::Wait;
        }
        self.heard[at] = match (answer, &mut self.phase) {
            (
                Answer::Promised { accepted, value, .. },
                Phase::Prepare { accepted: newest, value: newest_value, .. },
            ) => {
                if *accepted > *newest && !defect(Defect::AcceptedIgnored) {
                    *newest = *accepted;
                    *newest_value = value.to_vec();
                    self.quorums[1] = Quorum::of(&self.acceptors, (self.names)(value).as_deref());
                }
                Heard::Yes
            }
            (Answer::Accepted { .. }, Phase::Accept { .. }) => Heard::Yes,
            (Answer::Refused { promised, .. }, _) => {
                self.to_beat = self.to_beat.max(*promised);
                Heard::No
            }
            (Answer::Stranger { .. }, _) => Heard::Failed,
            _ => return Step::Wait,
        };
        self.step()
    }

    /// Notes that the acceptor on `from` will not answer, or not soon.
    pub fn failed(&mut self, from: MemoryServerId) -> Step {
        match self.acceptors.iter().position(|id| id.server == from) {
            Some(at) if self.heard[at] == Heard::Nothing => self.heard[at] = Heard::Failed,
            _ => return Step::Wait,
        }
        self.step()
    }

    fn step(&mut self) -> Step {
        if self.decided || matches!(self.phase, Phase::Over) {
            return Step::Wait;
        }
        let with = |these: &[Heard]| self.quorums.iter().all(|quorum| quorum.is_there(&self.heard, these));
        if with(&[Heard::Yes]) {
            return match std::mem::replace(&mut self.phase, Phase::Over) {
                Phase::Prepare { change, value, .. } => self.begin_accept(change, value),
                phase => {
                    (self.phase, self.decided) = (phase, true);
                    Step::Decided
                }
            };
        }
        if with(&[Heard::Yes, Heard::Nothing]) {
            return Step::Wait;
        }
        let is_refused = with(&[Heard::Yes, Heard::Nothing, Heard::No]);
        self.phase = Phase::Over;
        if is_refused { Step::Refused(self.to_beat) } else { Step::Hopeless }
    }

    /// Phase 2, after `found` was the newest value that those who promised had accepted.
    fn begin_accept(&mut self, change: F, found: Vec<u8>) -> Step {
        let mut value = change(&found);
        let by_found = (self.names)(&found);
        let mut by_new = (self.names)(&value);
        let is_resized = matches!((&by_found, &by_new), (Some(old), Some(new)) if old.len() != new.len());
        self.put_off = is_resized && found != self.known && !defect(Defect::ResizedUndecided);
        if self.put_off {
            (value, by_new) = (found, by_found.clone());
        }
        let of_found = Quorum::of(&self.acceptors, by_found.as_deref());
        let mut of_new = Quorum::of(&self.acceptors, by_new.as_deref());
        of_new.counts.iter_mut().zip(&of_found.counts).for_each(|(new, found)| *new &= found);
        self.quorums = [of_found, of_new];
        self.heard.fill(Heard::Nothing);
        self.phase = Phase::Accept { value };
        Step::Accept
    }
}

/// Number of acceptors such that any two sets of that many, out of `all`, have one in common.
pub(crate) fn majority(all: usize) -> usize {
    if defect(Defect::Minority) { (all / 2).max(1) } else { all / 2 + 1 }
}
