//! The register that the servers of a group hold together, as a process reaches it that changes or reads it.
//!
//! All acceptors are asked at once. A proposal that is refused, or whose acceptors were replaced, is followed by
//! another one, after a random pause.

use std::thread;
use std::time::{Duration, Instant};

use pando_fabric::codec::BadField;
use pando_fabric::{MemoryServerId, Random};
use pando_member::{AcceptorId, Answer, Ballot, Names, Proposal, Step, View};

use super::error::RegisterError;
use super::kind;
use super::line::{Line, LineError};
use crate::secret::Secret;

/// Longest time for an answer of an acceptor.
const ANSWER: Duration = Duration::from_millis(400);
/// Bounds of the random pause before another proposal, in milliseconds.
const PAUSE_MS: u64 = 20;

/// A way to the acceptors.
pub(crate) struct Acceptors {
    acceptors: Vec<AcceptorId>,
    lines: Vec<Line>,
    /// The decided view that names them, encoded.
    known: Vec<u8>,
    secret: Secret,
    /// Whether the acceptors are those of an existing group, and may have been replaced.
    follows: bool,
    /// Servers that are not asked, because they do not answer.
    silent: Vec<MemoryServerId>,
    proposer: u64,
    ballot: Ballot,
    random: Random,
}

impl Acceptors {
    /// The register of the acceptors that a view names. `proposer` is the number of this start of this process.
    pub fn of(view: &View, secret: &Secret, proposer: u64) -> Self {
        let (acceptors, lines) = acceptors_of(view, secret);
        let (ballot, random) = (Ballot::ZERO, Random::new(proposer));
        let (known, secret, silent) = (view.encode(), secret.clone(), Vec::new());
        Self { acceptors, lines, known, secret, follows: true, silent, proposer, ballot, random }
    }

    /// The register without servers that are known not to answer, so that nothing waits for them.
    pub fn without_asking(self, silent: &[MemoryServerId]) -> Self {
        Self { silent: silent.to_vec(), ..self }
    }

    /// The register of servers that are to form a group, whatever groups they were in.
    pub fn of_new_group(self) -> Self {
        Self { follows: false, ..self }
    }

    /// Goes to the acceptors that a decided view names.
    fn follow(&mut self, view: &View, encoded: Vec<u8>) {
        self.known = encoded;
        if view.acceptors().eq(self.acceptors.iter().copied()) {
            return;
        }
        (self.acceptors, self.lines) = acceptors_of(view, &self.secret);
    }

    /// See [`Register::change`](super::Register::change).
    ///
    /// # Errors
    /// If no majority answers, or there is no end of other changes until `until`; what `change` refuses.
    pub fn change(
        &mut self,
        until: Instant,
        change: impl Fn(Option<View>) -> Result<Option<View>, String>,
    ) -> Result<Option<View>, RegisterError> {
        loop {
            self.ballot = self.ballot.next(self.proposer);
            let mut wrong = None;
            let made = |bytes: &[u8]| {
                let current = match bytes {
                    [] => Ok(None),
                    bytes => View::decode(bytes).map(Some).map_err(|error| error.to_string()),
                };
                match current
                    .map_err(RegisterError::Damaged)
                    .and_then(|view| change(view).map_err(RegisterError::Refused))
                {
                    Ok(Some(view)) => view.encode(),
                    Ok(None) => bytes.to_vec(),
                    Err(error) => {
                        wrong = Some(error);
                        bytes.to_vec()
                    }
                }
            };
            let names: Names = if self.follows { View::acceptors_of } else { |_| None };
            let mut proposal = Proposal::new(&self.acceptors, names, self.ballot, made).after(&self.known);
            let (step, reason) = run(&mut proposal, &mut self.lines, &self.silent);
            let decided = proposal.value().map(<[u8]>::to_vec);
            let (to_beat, is_put_off) = (proposal.to_beat(), proposal.is_put_off());
            drop(proposal);
            if let Some(wrong) = wrong {
                return Err(wrong);
            }
            let damaged = |error: BadField| RegisterError::Damaged(error.to_string());
            match (step, decided) {
                (Step::Decided, Some(bytes)) if bytes.is_empty() => return Ok(None),
                (Step::Decided, Some(bytes)) => {
                    let view = View::decode(&bytes).map_err(damaged)?;
                    if self.follows {
                        self.follow(&view, bytes);
                    }
                    if !is_put_off {
                        return Ok(Some(view));
                    }
                }
                (Step::Refused(ballot), _) => self.ballot = ballot.max(to_beat),
                _ => {
                    if Instant::now() >= until {
                        let answering = self.acceptors.len().saturating_sub(reason.len());
                        let reason = reason.into_iter().next().unwrap_or_default();
                        return Err(RegisterError::NoMajority {
                            acceptors: self.acceptors.len(),
                            answering,
                            reason,
                        });
                    }
                    self.ballot = to_beat;
                }
            }
            if Instant::now() >= until {
                return Err(RegisterError::Contended);
            }
            thread::sleep(Duration::from_millis(1 + self.random.next() % PAUSE_MS));
        }
    }
}

/// The acceptors that a view names, and lines to them.
fn acceptors_of(view: &View, secret: &Secret) -> (Vec<AcceptorId>, Vec<Line>) {
    let acceptors: Vec<AcceptorId> = view.acceptors().collect();
    let address = |id: &AcceptorId| view.servers()[usize::from(id.server.0)].address();
    let lines = acceptors.iter().map(|id| Line::new(id.server.0, address(id), secret)).collect();
    (acceptors, lines)
}

/// Runs a proposal to its end. Returns also why acceptors did not answer.
fn run<F: FnOnce(&[u8]) -> Vec<u8>>(
    proposal: &mut Proposal<F>,
    lines: &mut [Line],
    silent: &[MemoryServerId],
) -> (Step, Vec<String>) {
    let mut reasons = Vec::new();
    loop {
        for server in silent {
            reasons.push(format!("memory server {server} does not answer"));
            proposal.failed(*server);
        }
        let requests: Vec<_> =
            proposal.requests().map(|(id, request)| (id.server, request.encode())).collect();
        // All at once: one that does not answer must not delay the others.
        let answers: Vec<_> = thread::scope(|scope| {
            let asked = lines.iter_mut().filter_map(|line| {
                let (server, body) = requests.iter().find(|(server, _)| *server == line.server())?;
                Some((*server, scope.spawn(move || line.ask(kind::REGISTER, body, ANSWER))))
            });
            let asked: Vec<_> = asked.collect();
            asked.into_iter().map(|(server, asked)| (server, asked.join())).collect()
        });
        let mut last = Step::Wait;
        for (server, answer) in answers {
            let answer: Result<Vec<u8>, LineError> = answer
                .unwrap_or_else(|_| Err(LineError::Broken(std::io::Error::other("its thread panicked"))));
            let step = match answer.as_ref().map(|bytes| Answer::decode(bytes)) {
                Ok(Ok(answer)) => proposal.answered(server, &answer),
                Ok(Err(error)) => {
                    reasons.push(format!("memory server {server}: {error}"));
                    proposal.failed(server)
                }
                Err(error) => {
                    reasons.push(format!("memory server {server}: {error}"));
                    proposal.failed(server)
                }
            };
            if step != Step::Wait {
                last = step;
                break;
            }
        }
        match last {
            Step::Accept => {}
            Step::Wait => return (Step::Hopeless, reasons),
            step => return (step, reasons),
        }
    }
}
