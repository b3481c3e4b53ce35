//! The register alone: competing proposers append numbers to a list, while messages are lost, repeated and
//! overtaken, and acceptors crash with and without their memory. All decided lists are one list that grows, and
//! what is decided later is not shorter.

use pando_fabric::{MemoryServerId, Random};
use pando_member::{Acceptor, AcceptorId, Answer, Ballot, Proposal, Request, Step};

use crate::{below, seeds};

type Change = Box<dyn FnOnce(&[u8]) -> Vec<u8>>;

struct Proposer {
    /// Changes with each start.
    process: u64,
    highest: Ballot,
    attempt: Option<Attempt>,
}

struct Attempt {
    proposal: Proposal<Change>,
    /// Length of the longest list that had been decided when it began.
    decided: usize,
    /// The number that it appends; a read has none.
    appends: Option<u16>,
}

enum Message {
    Request { to: usize, from: usize, bytes: Vec<u8> },
    Answer { to: usize, from: usize, bytes: Vec<u8> },
}

struct Sim {
    random: Random,
    ids: Vec<AcceptorId>,
    acceptors: Vec<Acceptor>,
    proposers: Vec<Proposer>,
    messages: Vec<Message>,
    longest: Vec<u8>,
    numbers: u16,
    processes: u64,
    /// Memories that may still be lost.
    losses: u64,
}

impl Sim {
    fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        let n = 2 + below(&random, 6) as u16;
        let ids: Vec<_> = (0..n).map(|i| AcceptorId { server: MemoryServerId(i), incarnation: 1 }).collect();
        let acceptors = ids.iter().map(|id| Acceptor::new(*id)).collect();
        let proposers = 2 + below(&random, 3);
        let proposer = |process| Proposer { process, highest: Ballot::ZERO, attempt: None };
        Self {
            ids,
            acceptors,
            proposers: (1..=proposers).map(proposer).collect(),
            messages: Vec::new(),
            longest: Vec::new(),
            numbers: 0,
            processes: proposers,
            losses: below(&random, n.into()),
            random,
        }
    }

    fn begin(&mut self, at: usize) {
        let appends = (below(&self.random, 4) > 0).then_some(self.numbers);
        self.numbers += 1;
        let change: Change = Box::new(move |list| {
            let mut list = list.to_vec();
            list.extend(appends.iter().flat_map(|number| number.to_le_bytes()));
            list
        });
        let proposer = &mut self.proposers[at];
        let ballot = proposer.highest.next(proposer.process);
        proposer.highest = ballot;
        let proposal = Proposal::new(&self.ids, |_| None, ballot, change);
        proposer.attempt = Some(Attempt { proposal, decided: self.longest.len(), appends });
        self.send(at);
    }

    fn send(&mut self, from: usize) {
        let Some(attempt) = &self.proposers[from].attempt else { return };
        for (to, request) in attempt.proposal.requests() {
            let to = usize::from(to.server.0);
            self.messages.push(Message::Request { to, from, bytes: request.encode() });
        }
    }

    fn deliver(&mut self, message: Message) -> Result<(), String> {
        let broken = |error: pando_fabric::codec::BadField| error.to_string();
        match message {
            Message::Request { to, from, bytes } => {
                let request = Request::decode(&bytes).map_err(broken)?;
                let bytes = self.acceptors[to].answer(&request).encode();
                self.messages.push(Message::Answer { to: from, from: to, bytes });
                Ok(())
            }
            Message::Answer { to, from, bytes } => {
                let answer = Answer::decode(&bytes).map_err(broken)?;
                self.answered(to, MemoryServerId(from as u16), &answer)
            }
        }
    }

    fn answered(&mut self, to: usize, from: MemoryServerId, answer: &Answer<'_>) -> Result<(), String> {
        let proposer = &mut self.proposers[to];
        let Some(attempt) = &mut proposer.attempt else { return Ok(()) };
        let step = attempt.proposal.answered(from, answer);
        proposer.highest = proposer.highest.max(attempt.proposal.to_beat());
        match step {
            Step::Wait => {}
            Step::Accept => self.send(to),
            Step::Decided | Step::Others => {
                let attempt = proposer.attempt.take().expect("just used");
                self.decided(&attempt)?;
            }
            Step::Refused(_) | Step::Hopeless => proposer.attempt = None,
        }
        Ok(())
    }

    fn decided(&mut self, attempt: &Attempt) -> Result<(), String> {
        let list = attempt.proposal.value().expect("decided");
        let (short, long) =
            if list.len() < self.longest.len() { (list, &*self.longest) } else { (&*self.longest, list) };
        if !long.starts_with(short) {
            return Err(format!("{short:?} and {long:?} were decided"));
        }
        if list.len() < attempt.decided {
            return Err(format!("{list:?} was decided after {:?}", self.longest));
        }
        if attempt.appends.is_some_and(|number| !list.ends_with(&number.to_le_bytes())) {
            return Err(format!("{list:?} does not end with {:?}", attempt.appends));
        }
        self.longest = long.to_vec();
        Ok(())
    }

    fn step(&mut self, faults: u64) -> Result<(), String> {
        let proposer = below(&self.random, self.proposers.len() as u64) as usize;
        let acceptor = below(&self.random, self.acceptors.len() as u64) as usize;
        match below(&self.random, 1000) {
            0..80 => match &self.proposers[proposer].attempt {
                None => self.begin(proposer),
                Some(_) => self.send(proposer),
            },
            // It gives up, in doubt.
            80..90 => self.proposers[proposer].attempt = None,
            100..110 => {
                self.processes += 1;
                self.proposers[proposer] =
                    Proposer { process: self.processes, highest: Ballot::ZERO, attempt: None };
            }
            110..120 => {
                let state = self.acceptors[acceptor].encode();
                self.acceptors[acceptor] = Acceptor::decode(&state).map_err(|error| error.to_string())?;
            }
            120..124 if self.losses > 0 => {
                self.losses -= 1;
                let id = self.acceptors[acceptor].id();
                let id = AcceptorId { incarnation: id.incarnation + 1, ..id };
                self.acceptors[acceptor] = Acceptor::new(id);
            }
            _ if self.messages.is_empty() => {}
            _ => {
                let at = below(&self.random, self.messages.len() as u64) as usize;
                let message = self.messages.swap_remove(at);
                match below(&self.random, 100) {
                    chance if chance < faults => {}
                    chance if chance < 2 * faults => {
                        let again = match &message {
                            Message::Request { to, from, bytes } => {
                                Message::Request { to: *to, from: *from, bytes: bytes.clone() }
                            }
                            Message::Answer { to, from, bytes } => {
                                Message::Answer { to: *to, from: *from, bytes: bytes.clone() }
                            }
                        };
                        self.messages.push(again);
                        self.deliver(message)?;
                    }
                    _ => self.deliver(message)?,
                }
            }
        }
        Ok(())
    }
}

/// Number of bytes of the decided list of a random run.
///
/// # Errors
/// What is not linearizable.
pub fn run(seed: u64) -> Result<usize, String> {
    let mut sim = Sim::new(seed);
    let faults = [0, 2, 10][below(&sim.random, 3) as usize];
    for _ in 0..600 {
        sim.step(faults)?;
    }
    Ok(sim.longest.len())
}

#[test]
fn the_register_is_linearizable() {
    let mut decided = 0;
    let seeds = seeds(4000);
    for seed in seeds.clone() {
        decided += run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    println!("seeds {seeds:?}: {decided} bytes");
    assert!(decided as u64 > 4 * (seeds.end - seeds.start), "only {decided} bytes were decided");
}

/// A proposal to five acceptors with its answers made by hand.
#[test]
fn outcomes_that_are_not_decisions() {
    let ids: Vec<_> = (0..5).map(|i| AcceptorId { server: MemoryServerId(i), incarnation: 1 }).collect();
    let ballot = Ballot::ZERO.next(3);
    let larger = Ballot { counter: 9, proposer: 1 };
    let begin = || Proposal::new(&ids, |_| None, ballot, |value: &[u8]| value.to_vec());
    let server = MemoryServerId;

    let mut refused = begin();
    assert_eq!(refused.answered(server(0), &Answer::Refused { ballot, promised: larger }), Step::Wait);
    assert_eq!(refused.failed(server(1)), Step::Wait);
    assert_eq!(refused.answered(server(1), &Answer::Stranger { ballot }), Step::Wait);
    // The same answer again, one to another proposal, and one of a stranger to the list.
    assert_eq!(refused.answered(server(0), &Answer::Refused { ballot, promised: larger }), Step::Wait);
    assert_eq!(refused.answered(server(2), &Answer::Stranger { ballot: larger }), Step::Wait);
    assert_eq!(refused.failed(server(7)), Step::Wait);
    assert_eq!(refused.failed(server(2)), Step::Refused(larger));
    assert_eq!((refused.to_beat(), refused.requests().count(), refused.value()), (larger, 0, None));

    let mut hopeless = begin();
    assert_eq!([0, 1].map(|i| hopeless.failed(server(i))), [Step::Wait; 2]);
    // An answer after all.
    assert_eq!(hopeless.answered(server(0), &Answer::Accepted { ballot }), Step::Wait);
    let promise = Answer::Promised { ballot, accepted: Ballot::ZERO, value: &[] };
    assert_eq!(hopeless.answered(server(0), &promise), Step::Wait);
    assert_eq!(hopeless.failed(server(2)), Step::Wait);
    assert_eq!(hopeless.failed(server(3)), Step::Hopeless);

    let mut decided = begin();
    let steps = [0, 1, 2].map(|i| decided.answered(server(i), &promise));
    assert_eq!(steps, [Step::Wait, Step::Wait, Step::Accept]);
    assert_eq!(decided.answered(server(3), &promise), Step::Wait, "late");
    let steps = [4, 3, 0].map(|i| decided.answered(server(i), &Answer::Accepted { ballot }));
    assert_eq!(steps, [Step::Wait, Step::Wait, Step::Decided]);
    // The others get the value too.
    assert_eq!((decided.value(), decided.requests().count()), (Some(&[][..]), 2));
    assert_eq!(decided.answered(server(1), &Answer::Accepted { ballot }), Step::Wait);
}

fn acceptors(incarnations: [u64; 3]) -> Vec<AcceptorId> {
    let ids = (0..).map(MemoryServerId).zip(incarnations);
    ids.map(|(server, incarnation)| AcceptorId { server, incarnation }).collect()
}

/// A value of three bytes names acceptors by their incarnations.
fn names(value: &[u8]) -> Option<Vec<AcceptorId>> {
    value.try_into().ok().map(|value: [u8; 3]| acceptors(value.map(u64::from)))
}

/// A proposal to the first acceptors, of which the second one answers first, and has been replaced when the others do.
#[test]
fn acceptors_that_the_value_does_not_name_do_not_count() {
    let (ballot, old) = (Ballot { counter: 9, proposer: 3 }, Ballot { counter: 4, proposer: 1 });
    let ids = acceptors([1, 1, 1]);
    let server = MemoryServerId;
    let mut late = Proposal::new(&ids, names, ballot, |_: &[u8]| unreachable!("it may not change this"));
    let promise = |value| Answer::Promised { ballot, accepted: old, value };
    let accepted = Answer::Accepted { ballot };
    assert_eq!(late.answered(server(1), &promise(&[1, 1, 1])), Step::Wait);
    let newer = Answer::Promised { ballot, accepted: old.next(2), value: &[1, 2, 1] };
    assert_eq!(late.answered(server(0), &newer), Step::Wait, "the second one does not count any more");
    assert_eq!(late.answered(server(2), &promise(&[1, 1, 1])), Step::Accept);
    assert_eq!(late.requests().map(|(to, _)| to).collect::<Vec<_>>(), [ids[0], ids[2]]);
    assert_eq!(
        [1, 0, 2].map(|i| late.answered(server(i), &accepted)),
        [Step::Wait, Step::Wait, Step::Others]
    );
    assert_eq!(late.value(), Some(&[1, 2, 1][..]));

    // The change that replaces an acceptor is decided by those that both values name.
    let mut replaces = Proposal::new(&ids, names, ballot, |_: &[u8]| vec![1, 1, 2]);
    assert_eq!(
        [0, 2].map(|i| replaces.answered(server(i), &promise(&[1, 1, 1]))),
        [Step::Wait, Step::Accept]
    );
    assert_eq!(
        [2, 0, 1].map(|i| replaces.answered(server(i), &accepted)),
        [Step::Wait, Step::Wait, Step::Decided]
    );

    // Too few of those that were asked are left.
    let mut hopeless = Proposal::new(&ids, names, ballot, |_: &[u8]| unreachable!("it may not change this"));
    assert_eq!(hopeless.answered(server(0), &promise(&[1, 2, 2])), Step::Hopeless);
}
