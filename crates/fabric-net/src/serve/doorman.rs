//! The thread that accepts connections, performs handshakes, and distributes clients to the other threads.
//!
//! A *stranger* is a connection whose handshake is not complete. Clients cannot delay strangers, nor
//! strangers clients. A stranger has only a small buffer. When there are too many, or no descriptor is left,
//! the oldest stranger is closed. A client with the identity of an earlier connection waits here until no
//! request of that one is in progress.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::clients::Client;
use super::connection::End;
use super::descriptors::Spare;
use super::io_thread::{Arrival, EVENTS, Inbox, Wake, wait_for_events};
use super::{Service, Shared};
use crate::handshake::{HELLO, PROOF, Rejection, ServerHalf};
use crate::socket;

/// Connections accepted before other events are handled.
const ACCEPTS: usize = 64;
/// Pause of a listener that cannot accept, and interval between checks of strangers.
const PAUSE: Duration = Duration::from_millis(100);
/// Interval between checks whether a waiting client may enter.
const LOOK: Duration = Duration::from_millis(1);
const WAKE: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX - 1;

enum Stage {
    Hello,
    Proof(Box<ServerHalf>),
    /// Admitted, but a request of an earlier connection with the same identity is in progress.
    Waits(Box<(ServerHalf, Client)>),
}

/// A connection whose handshake is not complete.
struct Stranger {
    stream: TcpStream,
    peer: SocketAddr,
    since: Instant,
    stage: Stage,
    input: [u8; HELLO],
    filled: usize,
}

pub(super) struct Doorman<S: Service> {
    shared: Arc<Shared<S>>,
    inboxes: Arc<[Inbox]>,
    /// Index of the next client's inbox.
    next_inbox: usize,
    listener: TcpListener,
    epoll: OwnedFd,
    /// Strangers by number, in order of arrival.
    strangers: BTreeMap<u64, Stranger>,
    next_number: u64,
    /// Admitted clients that wait.
    waiting: Vec<u64>,
    spare: Spare,
    accepts_again_at: Option<Instant>,
}

impl<S: Service> Doorman<S> {
    pub fn new(
        shared: Arc<Shared<S>>,
        inboxes: Arc<[Inbox]>,
        wake: &Wake,
        listener: TcpListener,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, wake.fd(), EventData::new_u64(WAKE), EventFlags::IN)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        Ok(Self {
            shared,
            inboxes,
            next_inbox: 0,
            listener,
            epoll,
            strangers: BTreeMap::new(),
            next_number: 0,
            waiting: Vec::new(),
            spare: Spare::new(),
            accepts_again_at: None,
        })
    }

    pub fn run(mut self) {
        let mut room = [const { MaybeUninit::uninit() }; EVENTS];
        while !self.shared.core.is_stopping.load(SeqCst) {
            let wait = match () {
                () if !self.waiting.is_empty() => Some(LOOK),
                () if !self.strangers.is_empty() || self.accepts_again_at.is_some() => Some(PAUSE),
                () => None,
            };
            for event in wait_for_events(&self.epoll, &mut room, wait) {
                match event.data.u64() {
                    WAKE => {}
                    LISTENER => self.accept(),
                    number => self.advance(number),
                }
            }
            for number in std::mem::take(&mut self.waiting) {
                self.let_in(number);
            }
            self.sweep(Instant::now());
        }
    }

    /// Accepts some waiting connections.
    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            match self.listener.accept() {
                Ok((stream, peer)) => self.admit(stream, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_passing(&error) => {}
                Err(error) if is_lack_of_descriptors(&error) => {
                    // The oldest stranger makes room; without strangers, the next connection is turned away.
                    if !self.displace_oldest() && !self.spare.turn_away(&self.listener) {
                        return self.pause_accepting(&error);
                    }
                }
                Err(error) => return self.pause_accepting(&error),
            }
        }
    }

    fn pause_accepting(&mut self, error: &io::Error) {
        tracing::error!("a connection cannot be accepted: {error}");
        // The event would otherwise recur at once.
        let _ = epoll::delete(&self.epoll, &self.listener);
        self.accepts_again_at = Some(Instant::now() + PAUSE);
    }

    fn admit(&mut self, stream: TcpStream, peer: SocketAddr) {
        let core = &self.shared.core;
        core.counters.accepted.fetch_add(1, Relaxed);
        core.counters.connections.fetch_add(1, Relaxed);
        let strangers_max = core.settings.strangers_max.max(1);
        while self.strangers.len() >= strangers_max && self.displace_oldest() {}
        let number = self.next_number;
        self.next_number += 1;
        let added = socket::prepare(&stream)
            .and_then(|()| Ok(epoll::add(&self.epoll, &stream, EventData::new_u64(number), EventFlags::IN)?));
        let since = Instant::now();
        let stranger = Stranger { stream, peer, since, stage: Stage::Hello, input: [0; HELLO], filled: 0 };
        self.strangers.insert(number, stranger);
        if let Err(error) = added {
            self.close(number, &End::Io(error));
        }
    }

    /// Closes the oldest stranger, except for admitted ones that wait.
    fn displace_oldest(&mut self) -> bool {
        let is_stranger = |(_, stranger): &(&u64, &Stranger)| !matches!(stranger.stage, Stage::Waits(_));
        let oldest = self.strangers.iter().find(is_stranger).map(|(number, _)| *number);
        oldest.inspect(|number| self.close(*number, &End::Displaced)).is_some()
    }

    /// Must be called when the socket is readable.
    fn advance(&mut self, number: u64) {
        // An earlier event may have closed it.
        let Some(stranger) = self.strangers.get_mut(&number) else { return };
        if let Err(end) = Self::shake(&self.shared, stranger) {
            return self.close(number, &end);
        }
        if matches!(stranger.stage, Stage::Waits(_)) {
            // Its requests are read by the thread that gets it.
            if let Err(error) = epoll::delete(&self.epoll, &stranger.stream) {
                return self.close(number, &End::Io(error.into()));
            }
            self.let_in(number);
        }
    }

    fn shake(shared: &Shared<S>, stranger: &mut Stranger) -> Result<(), End> {
        let core = &shared.core;
        let secret = &core.settings.secret;
        let needed = if matches!(stranger.stage, Stage::Hello) { HELLO } else { PROOF };
        match stranger.stream.read(&mut stranger.input[stranger.filled..needed]) {
            Ok(0) => return Err(End::Closed),
            Ok(more) => {
                stranger.filled += more;
                core.counters.bytes_in.fetch_add(more as u64, Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock || is_passing(&error) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if stranger.filled < needed {
            return Ok(());
        }
        stranger.filled = 0;
        match &stranger.stage {
            Stage::Hello => {
                let (half, judged) = ServerHalf::new(S::PROTOCOL, &stranger.input);
                match judged {
                    // A peer with an unknown protocol gets no answer.
                    Err(rejection @ Rejection::NotPando { .. }) => return Err(End::Rejected(rejection)),
                    Err(rejection) => {
                        say(core, &stranger.stream, half.challenge())?;
                        return Err(End::Refused(rejection));
                    }
                    Ok(()) => say(core, &stranger.stream, &[half.challenge(), &half.proof(secret)].concat())?,
                }
                stranger.stage = Stage::Proof(Box::new(half));
            }
            Stage::Proof(half) => {
                let proof = stranger.input.first_chunk::<PROOF>().expect("a hello is longer than a proof");
                let client = half
                    .verify(proof, secret)
                    .and_then(|()| shared.service.check_number(half.number()))
                    .and_then(|()| core.admit(half.number(), half.id()));
                match client {
                    Ok(client) => stranger.stage = Stage::Waits(Box::new(((**half).clone(), client))),
                    Err(rejection) => {
                        say(core, &stranger.stream, &half.welcome(Err(rejection), secret))?;
                        return Err(End::Refused(rejection));
                    }
                }
            }
            Stage::Waits(_) => {}
        }
        Ok(())
    }

    /// Hands a client to a thread, unless a request of an earlier connection with its identity is in
    /// progress.
    fn let_in(&mut self, number: u64) {
        let core = &self.shared.core;
        let Some(Stranger { stream, stage: Stage::Waits(admitted), .. }) = self.strangers.get(&number) else {
            return;
        };
        let (half, client) = &**admitted;
        if !core.clients.is_quiet(client.id.process, client.id.link) {
            self.waiting.push(number);
            return;
        }
        let welcome = half.welcome(Ok(self.shared.service.welcomed()), &core.settings.secret);
        if let Err(end) = say(core, stream, &welcome) {
            return self.close(number, &end);
        }
        let Some(Stranger { stream, peer, stage: Stage::Waits(admitted), .. }) =
            self.strangers.remove(&number)
        else {
            unreachable!("it was looked at just now")
        };
        self.inboxes[self.next_inbox].put(Arrival { stream, peer, client: admitted.1 });
        self.next_inbox = (self.next_inbox + 1) % self.inboxes.len();
    }

    fn close(&mut self, number: u64, end: &End) {
        let Some(stranger) = self.strangers.remove(&number) else { return };
        let core = &self.shared.core;
        if let Stage::Waits(admitted) = &stranger.stage {
            core.leave(&admitted.1);
        }
        core.counters.connections.fetch_sub(1, Relaxed);
        match end {
            End::Closed => {
                tracing::debug!(peer = %stranger.peer, "a stranger closed the connection");
                return;
            }
            End::Refused(_) => core.counters.refused.fetch_add(1, Relaxed),
            End::Io(_) => 0,
            _ => core.counters.expelled.fetch_add(1, Relaxed),
        };
        core.stranger_log.tell(stranger.peer, end);
    }

    /// Closes strangers that took too long, and resumes accepting.
    fn sweep(&mut self, now: Instant) {
        let patience = self.shared.core.settings.patience;
        while let Some((&number, stranger)) = self.strangers.first_key_value()
            && now.saturating_duration_since(stranger.since) > patience
        {
            self.close(number, &End::TooSlow);
        }
        if self.accepts_again_at.is_some_and(|at| at <= now) {
            self.accepts_again_at = None;
            let _ = epoll::add(&self.epoll, &self.listener, EventData::new_u64(LISTENER), EventFlags::IN);
        }
    }
}

/// Sends a few bytes. A socket that has hardly been used has room for them.
fn say(core: &super::Core, mut stream: &TcpStream, bytes: &[u8]) -> Result<(), End> {
    let sent = stream.write(bytes)?;
    core.counters.bytes_out.fetch_add(sent as u64, Relaxed);
    if sent == bytes.len() { Ok(()) } else { Err(End::TooSlow) }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted)
}

fn is_lack_of_descriptors(error: &io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE];
    error.raw_os_error().is_some_and(|code| lacks.contains(&Errno::from_raw_os_error(code)))
}
