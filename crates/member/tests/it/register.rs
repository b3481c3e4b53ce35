//! The register alone: competing proposers append numbers to a list, while messages are lost, repeated and
//! overtaken, and acceptors crash with and without their memory. Acceptors with new memory take the place of lost
//! ones, or do not; others leave, and servers that have left return as new acceptors. All decided lists are one list that
//! grows, and what is decided later is not shorter.
//!
//! ```text
//! value   number of servers 1 | incarnation 1, for each server | number 2, for each appended one
//! ```
//!
//! The top bit of an incarnation says that the server is no acceptor any more, and the incarnation 0 that it was none.

use pando_fabric::{MemoryServerId, Random};
use pando_member::{Acceptor, AcceptorId, Answer, Ballot, Proposal, Request, Step};

use crate::{below, seeds};

/// Bit of an incarnation in a value.
const HAS_LEFT: u8 = 0x80;

/// What becomes of the acceptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptors {
    Stay,
    /// Some are replaced.
    Replaced,
    /// Some are replaced, some leave, some return.
    Resized,
}

type Change = Box<dyn FnOnce(&[u8]) -> Vec<u8>>;

struct Proposer {
    /// Changes with each start.
    process: u64,
    highest: Ballot,
    /// Acceptors that a decided value names, or the first ones.
    asks: Vec<AcceptorId>,
    /// A decided value.
    knows: Vec<u8>,
    attempt: Option<Attempt>,
}

impl Proposer {
    fn new(process: u64, asks: Vec<AcceptorId>) -> Self {
        Self { process, highest: Ballot::ZERO, asks, knows: Vec::new(), attempt: None }
    }
}

/// The acceptors that a value names.
fn names(value: &[u8]) -> Option<Vec<AcceptorId>> {
    let (n, rest) = value.split_first()?;
    let ids = (0..).map(MemoryServerId).zip(&rest[..usize::from(*n)]);
    Some(
        ids.filter(|(_, incarnation)| (1..HAS_LEFT).contains(*incarnation))
            .map(|(server, incarnation)| AcceptorId { server, incarnation: u64::from(*incarnation) })
            .collect(),
    )
}

/// The list in a value, as bytes.
fn list(value: &[u8]) -> &[u8] {
    value.split_first().map_or(&[], |(n, rest)| &rest[usize::from(*n)..])
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
    acceptors: Vec<Acceptor>,
    proposers: Vec<Proposer>,
    messages: Vec<Message>,
    /// The decided value with the longest list.
    longest: Vec<u8>,
    changes: Acceptors,
    numbers: u16,
    processes: u64,
    /// Memories that may still be lost.
    losses: u64,
}

impl Sim {
    fn new(seed: u64, changes: Acceptors) -> Self {
        let random = Random::new(seed);
        let n = [2 + below(&random, 6), 3]
            [usize::from(changes == Acceptors::Replaced && below(&random, 2) == 0)] as u16;
        let ids: Vec<_> = (0..n).map(|i| AcceptorId { server: MemoryServerId(i), incarnation: 1 }).collect();
        let acceptors = ids.iter().map(|id| Acceptor::new(*id)).collect();
        let proposers = 2 + below(&random, 3);
        Self {
            acceptors,
            proposers: (1..=proposers).map(|process| Proposer::new(process, ids.clone())).collect(),
            messages: Vec::new(),
            longest: Vec::new(),
            changes,
            numbers: 0,
            processes: proposers,
            losses: below(&random, n.into()),
            random,
        }
    }

    fn begin(&mut self, at: usize) {
        // One of the acceptors may be new: it runs, so the one before it is lost.
        let id = self.acceptors[self.any_acceptor()].id();
        let replaces = self.replaces() && below(&self.random, 2) == 0;
        let resizes = self.changes == Acceptors::Resized && below(&self.random, 2) == 0;
        let appends = (replaces || below(&self.random, 4) > 0).then_some(self.numbers);
        self.numbers += 1;
        let first = std::iter::once(self.acceptors.len() as u8).chain(self.acceptors.iter().map(|_| 1));
        let first: Vec<u8> = first.collect();
        let change: Change = Box::new(move |value| {
            let Some(number) = appends else { return value.to_vec() };
            let mut value = if value.is_empty() { first } else { value.to_vec() };
            let others = names(&value).map_or(0, |named| named.len() - usize::from(named.contains(&id)));
            let of_server = &mut value[1 + usize::from(id.server.0)];
            match *of_server {
                named if named < HAS_LEFT && resizes && others > 1 => *of_server |= HAS_LEFT,
                named if named < HAS_LEFT && replaces => *of_server = id.incarnation as u8,
                left if resizes && id.incarnation > u64::from(left & !HAS_LEFT) => {
                    *of_server = id.incarnation as u8;
                }
                _ => {}
            }
            value.extend(number.to_le_bytes());
            value
        });
        let is_slow = self.is_slow(at);
        let proposer = &mut self.proposers[at];
        if let Some(names) = names(&self.longest).filter(|_| below(&self.random, 4) == 0) {
            (proposer.asks, proposer.knows) = (names, self.longest.clone());
        }
        let mut ballot = proposer.highest.next(proposer.process);
        if is_slow {
            // Those that others use meanwhile are smaller.
            ballot.counter += below(&self.random, 30);
        }
        proposer.highest = ballot;
        let proposal = Proposal::new(&proposer.asks, names, ballot, change).after(&proposer.knows);
        proposer.attempt = Some(Attempt { proposal, decided: list(&self.longest).len(), appends });
        self.send(at);
    }

    /// Whether acceptors take the place of those that are lost.
    fn replaces(&self) -> bool {
        self.changes != Acceptors::Stay
    }

    fn any_acceptor(&self) -> usize {
        let first = self.replaces() && below(&self.random, 2) == 0;
        if first { 0 } else { below(&self.random, self.acceptors.len() as u64) as usize }
    }

    /// Whether only the first acceptor, which is replaced most often, answers this proposer soon.
    fn is_slow(&self, proposer: usize) -> bool {
        self.replaces() && proposer == 0
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
        proposer.asks = attempt.proposal.named().unwrap_or(std::mem::take(&mut proposer.asks));
        if let Some(value) = attempt.proposal.value() {
            proposer.knows = value.to_vec();
        }
        match step {
            Step::Wait => {}
            Step::Accept => self.send(to),
            Step::Decided => {
                let attempt = proposer.attempt.take().expect("just used");
                self.decided(&attempt)?;
            }
            Step::Refused(_) | Step::Hopeless => proposer.attempt = None,
        }
        Ok(())
    }

    fn decided(&mut self, attempt: &Attempt) -> Result<(), String> {
        let value = attempt.proposal.value().expect("decided");
        let is_longer = list(value).len() > list(&self.longest).len();
        let (short, long) = if is_longer { (&*self.longest, value) } else { (value, &*self.longest) };
        if !list(long).starts_with(list(short)) {
            return Err(format!("{short:?} and {long:?} were decided"));
        }
        if list(value).len() < attempt.decided {
            return Err(format!("{value:?} was decided after {:?}", self.longest));
        }
        let is_made = attempt.appends.is_none_or(|number| value.ends_with(&number.to_le_bytes()));
        if !is_made && !attempt.proposal.is_put_off() {
            return Err(format!("{value:?} does not end with {:?}", attempt.appends));
        }
        self.longest = long.to_vec();
        Ok(())
    }

    /// Whether a majority of the acceptors is left without this one.
    fn can_lose(&self, acceptor: usize) -> bool {
        if !self.replaces() {
            return self.losses > 0;
        }
        let Some(named) = names(&self.longest) else { return false };
        let left = named.iter().filter(|id| {
            let at = usize::from(id.server.0);
            at != acceptor && self.acceptors[at].id() == **id
        });
        left.count() > named.len() / 2
    }

    fn step(&mut self, faults: u64) -> Result<(), String> {
        let proposer = below(&self.random, self.proposers.len() as u64) as usize;
        let acceptor = self.any_acceptor();
        let chance = below(&self.random, 1000);
        match chance {
            0..80 => match &self.proposers[proposer].attempt {
                None => self.begin(proposer),
                Some(_) if self.is_slow(proposer) => {}
                Some(_) => self.send(proposer),
            },
            // It gives up, in doubt.
            80..90 if !self.is_slow(proposer) => self.proposers[proposer].attempt = None,
            100..110 if !self.is_slow(proposer) => {
                self.processes += 1;
                let asks = self.proposers[proposer].asks.clone();
                self.proposers[proposer] = Proposer::new(self.processes, asks);
            }
            110..120 => {
                let state = self.acceptors[acceptor].encode();
                self.acceptors[acceptor] = Acceptor::decode(&state).map_err(|error| error.to_string())?;
            }
            120..140 if (self.replaces() || chance < 124) && self.can_lose(acceptor) => {
                self.losses = self.losses.saturating_sub(1);
                let id = self.acceptors[acceptor].id();
                let id = AcceptorId { incarnation: id.incarnation + 1, ..id };
                self.acceptors[acceptor] = Acceptor::new(id);
            }
            _ if self.messages.is_empty() => {}
            _ => {
                let at = below(&self.random, self.messages.len() as u64) as usize;
                let (Message::Request { from: proposer, to: acceptor, .. }
                | Message::Answer { to: proposer, from: acceptor, .. }) = &self.messages[at];
                if self.is_slow(*proposer) && *acceptor > 0 && below(&self.random, 256) > 0 {
                    return Ok(());
                }
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
pub fn run(seed: u64, changes: Acceptors) -> Result<usize, String> {
    let mut sim = Sim::new(seed, changes);
    let faults = [0, 2, 10][below(&sim.random, 3) as usize];
    for _ in 0..if sim.replaces() { 2000 } else { 600 } {
        sim.step(faults)?;
    }
    Ok(list(&sim.longest).len())
}

#[test]
fn the_register_is_linearizable() {
    for changes in [Acceptors::Stay, Acceptors::Replaced, Acceptors::Resized] {
        let mut decided = 0;
        let seeds = seeds(4000);
        for seed in seeds.clone() {
            decided += run(seed, changes).unwrap_or_else(|error| panic!("seed {seed}, {changes:?}: {error}"));
        }
        println!("seeds {seeds:?}, acceptors {changes:?}: {decided} bytes");
        assert!(decided as u64 > 4 * (seeds.end - seeds.start), "only {decided} bytes were decided");
    }
}

/// Asks these acceptors what a proposal has to ask them, in this order. Returns the decided value.
fn ask<F: FnOnce(&[u8]) -> Vec<u8>>(
    proposal: &mut Proposal<F>,
    acceptors: &mut [Acceptor],
    order: &[usize],
) -> Option<Vec<u8>> {
    for at in order {
        let server = MemoryServerId(*at as u16);
        let requests: Vec<_> = proposal.requests().map(|(to, request)| (to, request.encode())).collect();
        let Some((_, request)) = requests.iter().find(|(to, _)| to.server == server) else { continue };
        let answer = acceptors[*at].answer(&Request::decode(request).expect("a request"));
        proposal.answered(server, &answer);
    }
    proposal.value().map(<[u8]>::to_vec)
}

/// A proposer has the promise of an acceptor that loses its memory then. It asks the others when that acceptor has been
/// replaced, and the new one has decided with one of them.
///
/// # Errors
/// Which decided value is lost.
pub fn promise_of_a_replaced_acceptor() -> Result<(), String> {
    let first = names(&[3, 1, 1, 1]).expect("three acceptors");
    let mut acceptors: Vec<_> = first.iter().map(|id| Acceptor::new(*id)).collect();
    let ballot = |counter| Ballot { counter, proposer: counter };
    let append = |number: u8| move |value: &[u8]| [value, &[number, 0]].concat();
    let mut late = Proposal::new(&first, names, ballot(50), append(9));
    let mut begin = Proposal::new(&first, names, ballot(1), |_: &[u8]| vec![3, 1, 1, 1, 0, 0]);
    ask(&mut begin, &mut acceptors, &[0, 1, 2, 0, 1, 2]).ok_or("nothing is decided")?;
    ask(&mut late, &mut acceptors, &[0]);
    acceptors[0] = Acceptor::new(AcceptorId { incarnation: 2, ..first[0] });
    let replace = |value: &[u8]| [&[3, 2, 1, 1], list(value), &[1, 0]].concat();
    let mut replace = Proposal::new(&first, names, ballot(2), replace);
    ask(&mut replace, &mut acceptors, &[1, 2, 1, 2]).ok_or("no acceptor is replaced")?;
    let second = replace.named().ok_or("no acceptors are named")?;
    let mut next = Proposal::new(&second, names, ballot(3), append(2));
    let decided = ask(&mut next, &mut acceptors, &[0, 2, 0, 2]).ok_or("the new acceptor does not decide")?;
    let later = ask(&mut late, &mut acceptors, &[1, 2, 1, 2]).ok_or("the late proposal does not end")?;
    if later.starts_with(&decided) { Ok(()) } else { Err(format!("{later:?} was decided after {decided:?}")) }
}

#[test]
fn the_promise_of_a_replaced_acceptor_does_no_harm() {
    assert_eq!(promise_of_a_replaced_acceptor(), Ok(()));
}

/// A proposer begins to replace a lost acceptor, and makes another proposal before that is decided. A late proposer has
/// the promise of the lost acceptor.
///
/// # Errors
/// Which decided value is lost.
pub fn acceptor_of_an_undecided_value() -> Result<(), String> {
    let first = names(&[3, 1, 1, 1]).expect("three acceptors");
    let mut acceptors: Vec<_> = first.iter().map(|id| Acceptor::new(*id)).collect();
    let ballot = |counter| Ballot { counter, proposer: counter };
    let append = |number: u8| move |value: &[u8]| [value, &[number, 0]].concat();
    let mut begin = Proposal::new(&first, names, ballot(1), |_: &[u8]| vec![3, 1, 1, 1, 0, 0]);
    ask(&mut begin, &mut acceptors, &[0, 2, 0, 2]).ok_or("nothing is decided")?;
    let mut late = Proposal::new(&first, names, ballot(50), append(9));
    ask(&mut late, &mut acceptors, &[0]);
    acceptors[0] = Acceptor::new(AcceptorId { incarnation: 2, ..first[0] });
    let replace = |value: &[u8]| [&[3, 2, 1, 1], list(value), &[1, 0]].concat();
    let mut replace = Proposal::new(&first, names, ballot(2), replace);
    ask(&mut replace, &mut acceptors, &[1, 2, 1]);
    let asks = replace.named().unwrap_or_else(|| first.clone());
    let mut next = Proposal::new(&asks, names, ballot(3), append(7));
    let decided = ask(&mut next, &mut acceptors, &[0, 1, 0, 1]);
    let later = ask(&mut late, &mut acceptors, &[2, 1, 2, 1]);
    match (decided, later) {
        (Some(decided), Some(later)) if !later.starts_with(&decided) => {
            Err(format!("{later:?} was decided after {decided:?}"))
        }
        _ => Ok(()),
    }
}

#[test]
fn new_acceptors_do_not_decide_before_the_value_that_names_them_is_decided() {
    assert_eq!(acceptor_of_an_undecided_value(), Ok(()));
}

/// Two proposers take one acceptor away, the second one after the value of the first, of which neither is decided. What is
/// decided then is not lost to a late proposer, who knows a value with as few acceptors from before.
///
/// # Errors
/// Which decided value is lost.
pub fn undecided_values_that_name_fewer() -> Result<(), String> {
    let named = |value: &[u8]| names(value).expect("acceptors");
    let all = named(&[5, 1, 1, 1, 1, 1]);
    let mut acceptors: Vec<_> = all.iter().map(|id| Acceptor::new(*id)).collect();
    let ballot = |counter| Ballot { counter, proposer: counter };
    let mut known: Vec<u8> = vec![5, 1, 1, 1, 0, 0];
    let first = known.clone();
    for (counter, next) in (1..).zip([[5, 1, 1, 1, 0, 0], [5, 1, 1, 1, 1, 0], [5, 1, 1, 1, 1, 1]]) {
        let mut begin = Proposal::new(&named(&known), names, ballot(counter), move |_: &[u8]| next.to_vec());
        begin = begin.after(&known);
        known = ask(&mut begin, &mut acceptors, &[0, 1, 2, 3, 0, 1, 2, 3]).ok_or("nothing is decided")?;
    }
    let without = |at: usize| {
        move |value: &[u8]| {
            let mut value = value.to_vec();
            value[1 + at] |= HAS_LEFT;
            value
        }
    };
    for (counter, at, order) in [(4, 4, [0, 1, 2, 0]), (5, 3, [0, 1, 3, 0])] {
        let mut fewer = Proposal::new(&all, names, ballot(counter), without(at)).after(&known);
        ask(&mut fewer, &mut acceptors, &order);
    }
    let append = |number: u8| move |value: &[u8]| [value, &[number, 0]].concat();
    let mut next = Proposal::new(&all, names, ballot(6), append(7)).after(&known);
    let decided = ask(&mut next, &mut acceptors, &[2, 3, 4, 2, 3, 4]).ok_or("nothing more is decided")?;
    let mut late = Proposal::new(&named(&first), names, ballot(7), append(9));
    let later = ask(&mut late, &mut acceptors, &[0, 1, 0, 1]);
    match later {
        Some(later) if !list(&later).starts_with(list(&decided)) => {
            Err(format!("{later:?} was decided after {decided:?}"))
        }
        _ => Ok(()),
    }
}

#[test]
fn the_number_of_acceptors_changes_after_decided_values_only() {
    assert_eq!(undecided_values_that_name_fewer(), Ok(()));
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

/// A proposal to the first acceptors, of which the second one answers first, and has been replaced when the others do.
#[test]
fn acceptors_that_the_value_does_not_name_do_not_count() {
    let (ballot, old) = (Ballot { counter: 9, proposer: 3 }, Ballot { counter: 4, proposer: 1 });
    let ids = names(&[3, 1, 1, 1]).expect("three");
    let server = MemoryServerId;
    let mut late = Proposal::new(&ids, names, ballot, <[u8]>::to_vec);
    let promise = |value| Answer::Promised { ballot, accepted: old, value };
    let accepted = Answer::Accepted { ballot };
    assert_eq!(late.answered(server(1), &promise(&[3, 1, 1, 1])), Step::Wait);
    let newer = Answer::Promised { ballot, accepted: old.next(2), value: &[3, 1, 2, 1] };
    assert_eq!(late.answered(server(0), &newer), Step::Wait, "the second one does not count any more");
    assert_eq!(late.answered(server(2), &promise(&[3, 1, 1, 1])), Step::Accept);
    assert_eq!(late.requests().map(|(to, _)| to).collect::<Vec<_>>(), [ids[0], ids[2]]);
    assert_eq!(
        [1, 0, 2].map(|i| late.answered(server(i), &accepted)),
        [Step::Wait, Step::Wait, Step::Decided]
    );
    assert_eq!((late.value(), late.named()), (Some(&[3, 1, 2, 1][..]), names(&[3, 1, 2, 1])));

    // The change that replaces an acceptor is decided by those that both values name.
    let mut replaces = Proposal::new(&ids, names, ballot, |_: &[u8]| vec![3, 1, 1, 2]);
    assert_eq!(
        [0, 2].map(|i| replaces.answered(server(i), &promise(&[3, 1, 1, 1]))),
        [Step::Wait, Step::Accept]
    );
    assert_eq!(
        [2, 0, 1].map(|i| replaces.answered(server(i), &accepted)),
        [Step::Wait, Step::Wait, Step::Decided]
    );

    // Too few of those that were asked are left.
    let mut hopeless = Proposal::new(&ids, names, ballot, |_: &[u8]| unreachable!("too few are left"));
    assert_eq!(hopeless.answered(server(0), &promise(&[3, 1, 2, 2])), Step::Hopeless);
}
