//! The handshake of a connection: versions are compared, and each side proves that it knows the shared
//! secret, the server first.
//!
//! The client sends a hello with a nonce. The server answers with its own nonce and its proof: an HMAC over
//! the messages so far (RFC 2104, SHA-256), compared in constant time. Only then does the client send its
//! proof, so a false server learns nothing. The secret itself is never sent, a recorded handshake cannot be
//! replayed, and each guess at the secret costs a key derivation ([`Secret::key`]). Later messages are
//! neither encrypted nor signed: an attacker who can change packets can do so after the handshake
//! (`docs/security.md`).
//!
//! All protocols of Pando begin with this handshake, each with its own name and version ([`Protocol`]). A
//! client that connects to the port of another protocol is told so.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::secret::Secret;

/// A protocol spoken after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// First bytes sent by both sides.
    pub magic: [u8; 8],
    /// Peers with different versions do not talk to each other.
    pub version: u16,
    /// Kind of server that speaks it.
    pub server: &'static str,
}

impl Protocol {
    /// Verbs, for memory servers.
    pub const VERBS: Self =
        Self { magic: *b"PandoTCP", version: crate::wire::VERSION, server: "memory server" };
    /// Operations on an index, for compute servers; `pando::remote::wire` has its frames.
    pub const OPERATIONS: Self = Self { magic: *b"PandoOps", version: 3, server: "compute server" };

    /// The protocol with this magic.
    fn of_magic(magic: [u8; 8]) -> Option<Self> {
        [Self::VERBS, Self::OPERATIONS].into_iter().find(|protocol| protocol.magic == magic)
    }
}

/// Length of the client's first message.
pub(crate) const HELLO: usize = size_of::<Hello>();
/// Length of the server's answer to it. The server's proof follows, unless the server refuses; a server of
/// another version sends none.
pub(crate) const CHALLENGE: usize = size_of::<Challenge>();
/// Length of a proof.
pub(crate) const PROOF: usize = 32;
/// Length of the server's last message, including its proof.
pub(crate) const WELCOME: usize = size_of::<Welcome>();

/// Proof of one side over the messages so far.
fn mac(secret: &Secret, side: Side, said: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.key()).expect("a key of HMAC may have any length");
    mac.update(match side {
        Side::Client => &b"client of pando"[..],
        Side::Server => b"server of pando",
        Side::Welcome => b"welcome of pando",
    });
    for part in said {
        mac.update(part);
    }
    mac
}

/// Sent by a client in place of its proof to a server without a valid proof.
pub(crate) const NO_PROOF: [u8; PROOF] = [0; PROOF];

#[derive(Clone, Copy)]
enum Side {
    Client,
    Server,
    /// The server's proof of its last message.
    Welcome,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct Hello {
    magic: [u8; 8],
    version: U16,
    /// Number by which the client knows the memory server.
    server: U16,
    zero: U32,
    process: U64,
    link: U64,
    nonce: [u8; 32],
}

/// Identity of a connection: a random number of the process that made it, and the number of the connection
/// within it, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId {
    pub process: u64,
    pub link: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct Challenge {
    magic: [u8; 8],
    version: U16,
    verdict: U16,
    zero: U32,
    nonce: [u8; 32],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct Welcome {
    verdict: U16,
    zero: U16,
    body_max: U32,
    region_len: U64,
    incarnation: U64,
    proof: [u8; PROOF],
}

/// Reason why a server rejects a client, or a client a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    #[error("what answers there is no {wanted} of Pando")]
    NotPando { wanted: &'static str },
    #[error("this is the port of a {found}, not of a {wanted}")]
    OtherPort { found: &'static str, wanted: &'static str },
    #[error("it speaks version {theirs} of the protocol, and this program version {ours}")]
    Version { theirs: u16, ours: u16 },
    #[error("the shared secret is not the same on both sides")]
    WrongSecret,
    #[error("it has as many connections as it takes")]
    Full,
    #[error("this process was given up for dead, and others took over what it had")]
    Fenced,
    #[error("its answer makes no sense (verdict {0})")]
    Unknown(u16),
}

/// Verdicts on the wire; 0 is a welcome.
const FINE: u16 = 0;
const WRONG_VERSION: u16 = 1;
const WRONG_SECRET: u16 = 2;
const FULL: u16 = 3;
const FENCED: u16 = 4;
const OTHER_PORT: u16 = 5;

impl Rejection {
    fn verdict(self) -> u16 {
        match self {
            Self::NotPando { .. } | Self::Version { .. } => WRONG_VERSION,
            Self::OtherPort { .. } => OTHER_PORT,
            Self::WrongSecret => WRONG_SECRET,
            Self::Full => FULL,
            Self::Fenced => FENCED,
            Self::Unknown(verdict) => verdict,
        }
    }

    fn of(verdict: u16, ours: u16, theirs: u16) -> Result<(), Self> {
        match verdict {
            FINE => Ok(()),
            WRONG_VERSION => Err(Self::Version { theirs, ours }),
            WRONG_SECRET => Err(Self::WrongSecret),
            FULL => Err(Self::Full),
            FENCED => Err(Self::Fenced),
            other => Err(Self::Unknown(other)),
        }
    }
}

/// Parameters that a client gets with the welcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcomed {
    /// Length of a memory server's region in bytes.
    pub region_len: u64,
    /// Maximum body length of one request in bytes.
    pub body_max: u32,
    /// Changes when the server has lost the state that earlier connections knew.
    pub incarnation: u64,
}

pub(crate) fn nonce() -> [u8; 32] {
    let mut nonce = [0; 32];
    let mut filled = 0;
    while filled < nonce.len() {
        match rustix::rand::getrandom(&mut nonce[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel has no random numbers: {error}"),
        }
    }
    nonce
}

/// Random identity of a process.
pub fn random_nonzero() -> u64 {
    let nonce = nonce();
    let (word, _) = nonce.split_first_chunk().expect("a nonce is longer than a word");
    u64::from_le_bytes(*word).max(1)
}

/// The client's side of a handshake.
pub(crate) struct ClientHalf {
    protocol: Protocol,
    hello: Hello,
}

impl ClientHalf {
    /// Begins a connection to the server that the client knows as number `server`.
    pub fn new(protocol: Protocol, server: u16, id: LinkId) -> Self {
        let hello = Hello {
            magic: protocol.magic,
            version: protocol.version.into(),
            server: server.into(),
            zero: 0.into(),
            process: id.process.into(),
            link: id.link.into(),
            nonce: nonce(),
        };
        Self { protocol, hello }
    }

    pub fn hello(&self) -> &[u8] {
        self.hello.as_bytes()
    }

    /// Checks whether the server accepts the hello, so that its proof follows.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check(&self, challenge: &[u8; CHALLENGE]) -> Result<(), Rejection> {
        let said = Challenge::ref_from_bytes(challenge).expect("as many bytes as a challenge");
        let (theirs, Protocol { magic, version: ours, server: wanted }) = (said.version.get(), self.protocol);
        if said.magic != magic {
            return Err(Protocol::of_magic(said.magic).map_or(Rejection::NotPando { wanted }, |other| {
                Rejection::OtherPort { found: other.server, wanted }
            }));
        }
        Rejection::of(said.verdict.get(), ours, theirs)?;
        if theirs != ours {
            return Err(Rejection::Version { theirs, ours });
        }
        Ok(())
    }

    /// Verifies the server's proof and returns the client's.
    ///
    /// # Errors
    /// `WrongSecret` if the server does not know the secret. [`NO_PROOF`] tells it so.
    pub fn prove(
        &self,
        challenge: &[u8; CHALLENGE],
        proof: &[u8; PROOF],
        secret: &Secret,
    ) -> Result<[u8; PROOF], Rejection> {
        let said = [self.hello(), &challenge[..]];
        mac(secret, Side::Server, &said).verify_slice(proof).map_err(|_| Rejection::WrongSecret)?;
        Ok(mac(secret, Side::Client, &said).finalize().into_bytes().into())
    }

    /// Verifies the server's last message.
    pub fn finish(
        &self,
        challenge: &[u8; CHALLENGE],
        welcome: &[u8; WELCOME],
        secret: &Secret,
    ) -> Result<Welcomed, Rejection> {
        let said = Welcome::ref_from_bytes(welcome).expect("as many bytes as a welcome");
        let version = self.protocol.version;
        Rejection::of(said.verdict.get(), version, version)?;
        let numbers = &welcome[..WELCOME - PROOF];
        let mac = mac(secret, Side::Welcome, &[self.hello(), challenge, numbers]);
        mac.verify_slice(&said.proof).map_err(|_| Rejection::WrongSecret)?;
        Ok(Welcomed {
            region_len: said.region_len.get(),
            body_max: said.body_max.get(),
            incarnation: said.incarnation.get(),
        })
    }
}

/// The server's side of a handshake, after the hello.
#[derive(Clone)]
pub(crate) struct ServerHalf {
    hello: Hello,
    challenge: Challenge,
}

impl ServerHalf {
    /// Answers a hello. If it is refused and the client can understand the reason, the challenge contains it.
    pub fn new(protocol: Protocol, hello: &[u8; HELLO]) -> (Self, Result<(), Rejection>) {
        let said = *Hello::ref_from_bytes(hello).expect("as many bytes as a hello");
        let Protocol { magic, version, server: wanted } = protocol;
        let judged = if said.magic != magic {
            // The server found, and the one wanted.
            Err(Protocol::of_magic(said.magic).map_or(Rejection::NotPando { wanted }, |other| {
                Rejection::OtherPort { found: wanted, wanted: other.server }
            }))
        } else if said.version.get() != version {
            Err(Rejection::Version { theirs: said.version.get(), ours: version })
        } else {
            Ok(())
        };
        let verdict = judged.err().map_or(FINE, Rejection::verdict);
        let challenge = Challenge {
            magic,
            version: version.into(),
            verdict: verdict.into(),
            zero: 0.into(),
            nonce: nonce(),
        };
        (Self { hello: said, challenge }, judged)
    }

    pub fn challenge(&self) -> &[u8] {
        self.challenge.as_bytes()
    }

    /// The server's proof, sent after the challenge.
    pub fn proof(&self, secret: &Secret) -> [u8; PROOF] {
        let said = [self.hello.as_bytes(), self.challenge.as_bytes()];
        mac(secret, Side::Server, &said).finalize().into_bytes().into()
    }

    /// Number by which the client knows this server.
    pub fn number(&self) -> u16 {
        self.hello.server.get()
    }

    /// Identity of this connection.
    pub fn id(&self) -> LinkId {
        LinkId { process: self.hello.process.get(), link: self.hello.link.get() }
    }

    /// Verifies the client's proof.
    pub fn verify(&self, proof: &[u8; PROOF], secret: &Secret) -> Result<(), Rejection> {
        let said = [self.hello.as_bytes(), self.challenge.as_bytes()];
        mac(secret, Side::Client, &said).verify_slice(proof).map_err(|_| Rejection::WrongSecret)
    }

    /// The last message. A rejected client gets only the reason.
    pub fn welcome(&self, judged: Result<Welcomed, Rejection>, secret: &Secret) -> [u8; WELCOME] {
        let mut welcome = Welcome {
            verdict: judged.err().map_or(FINE, Rejection::verdict).into(),
            zero: 0.into(),
            body_max: 0.into(),
            region_len: 0.into(),
            incarnation: 0.into(),
            proof: [0; PROOF],
        };
        if let Ok(welcomed) = judged {
            welcome.body_max = welcomed.body_max.into();
            welcome.region_len = welcomed.region_len.into();
            welcome.incarnation = welcomed.incarnation.into();
            let numbers = &welcome.as_bytes()[..WELCOME - PROOF];
            let mac =
                mac(secret, Side::Welcome, &[self.hello.as_bytes(), self.challenge.as_bytes(), numbers]);
            welcome.proof = mac.finalize().into_bytes().into();
        }
        welcome.as_bytes().try_into().expect("as many bytes as a welcome")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEARNT: Welcomed = Welcomed { region_len: 1 << 30, body_max: 4096, incarnation: 5 };
    const VERBS: Protocol = Protocol::VERBS;
    const ID: LinkId = LinkId { process: 6, link: 7 };

    /// Results of a handshake on both sides.
    fn shake(client: &Secret, server: &Secret) -> (Result<Welcomed, Rejection>, Result<(), Rejection>) {
        let half = ClientHalf::new(VERBS, 3, ID);
        let (other, judged) = ServerHalf::new(VERBS, half.hello().try_into().expect("its size"));
        assert_eq!((judged, other.number(), other.id()), (Ok(()), 3, ID));
        let challenge = other.challenge().try_into().expect("its size");
        half.check(&challenge).expect("the same version");
        let proved = half.prove(&challenge, &other.proof(server), client);
        let judged = other.verify(&proved.unwrap_or(NO_PROOF), server);
        let welcome = other.welcome(judged.map(|()| LEARNT), server);
        (proved.and_then(|_| half.finish(&challenge, &welcome, client)), judged)
    }

    /// A change of these bytes needs a new protocol version.
    #[test]
    fn a_handshake_has_these_bytes() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let without_spaces = |text: &str| text.split_whitespace().collect::<String>();
        let mut half = ClientHalf::new(VERBS, 3, ID);
        half.hello.nonce = [0xaa; 32];
        let nonce = "aa".repeat(32);
        // Magic, version, number of the server, zero, process, link, nonce.
        let hello = format!("50616e646f544350 0400 0300 00000000 0600000000000000 0700000000000000 {nonce}");
        assert_eq!(hex(half.hello()), without_spaces(&hello));
        let hello = half.hello().try_into().expect("its size");
        let (mut other, judged) = ServerHalf::new(VERBS, hello);
        assert_eq!((judged, other.number(), other.id()), (Ok(()), 3, ID));
        other.challenge.nonce = [0xaa; 32];
        // Magic, version, verdict, zero, nonce.
        let challenge = format!("50616e646f544350 0400 0000 00000000 {nonce}");
        assert_eq!(hex(other.challenge()), without_spaces(&challenge));
        let (refusing, _) = ServerHalf::new(Protocol::OPERATIONS, hello);
        assert_eq!(hex(&refusing.challenge()[..16]), without_spaces("50616e646f4f7073 0300 0500 00000000"));
        // Verdict, zero, longest body, length of the region, incarnation; then a proof.
        let welcome = other.welcome(Ok(LEARNT), &Secret::default());
        let numbers = "0000 0000 00100000 0000004000000000 0500000000000000";
        assert_eq!(hex(&welcome[..WELCOME - PROOF]), without_spaces(numbers));
        let refused = other.welcome(Err(Rejection::Full), &Secret::default());
        assert_eq!(hex(&refused), format!("0300{}", "00".repeat(WELCOME - 2)));
    }

    #[test]
    fn who_knows_the_secret_is_welcome_and_nobody_else() {
        let (a, b) = (Secret::new("a"), Secret::new("b"));
        assert_eq!(shake(&a, &a.clone()), (Ok(LEARNT), Ok(())));
        assert_eq!(shake(&Secret::default(), &Secret::default()), (Ok(LEARNT), Ok(())));
        for (client, server) in [(&a, &b), (&a, &Secret::default()), (&Secret::default(), &b)] {
            let wrong = Rejection::WrongSecret;
            assert_eq!(shake(client, server), (Err(wrong), Err(wrong)));
        }
    }

    #[test]
    fn a_server_that_does_not_know_the_secret_is_found_out() {
        let secret = Secret::new("a");
        let half = ClientHalf::new(VERBS, 0, ID);
        let (other, _) = ServerHalf::new(VERBS, half.hello().try_into().expect("its size"));
        let challenge = other.challenge().try_into().expect("its size");
        // A false server gets no proof of the client on which it could test guesses.
        for proof in [NO_PROOF, other.proof(&Secret::default()), other.proof(&Secret::new("b"))] {
            assert_eq!(half.prove(&challenge, &proof, &secret), Err(Rejection::WrongSecret));
        }
        // It cannot send the client's own proof back either.
        let proof = half.prove(&challenge, &other.proof(&secret), &secret).expect("it knows the secret");
        assert_eq!(half.prove(&challenge, &proof, &secret), Err(Rejection::WrongSecret));
        // It welcomes the client, but cannot prove its welcome.
        let mut welcome = other.welcome(Ok(LEARNT), &secret);
        welcome[WELCOME - 1] ^= 1;
        assert_eq!(half.finish(&challenge, &welcome, &secret), Err(Rejection::WrongSecret));
        // A number of the welcome cannot be changed on the way either.
        let mut welcome = other.welcome(Ok(LEARNT), &secret);
        welcome[8] ^= 1;
        assert_eq!(half.finish(&challenge, &welcome, &secret), Err(Rejection::WrongSecret));
    }

    #[test]
    fn other_versions_full_servers_and_strangers_are_told() {
        let half = ClientHalf::new(VERBS, 0, ID);
        let mut hello: [u8; HELLO] = half.hello().try_into().expect("its size");
        let (other, judged) = ServerHalf::new(VERBS, &hello);
        assert_eq!(judged, Ok(()));
        let challenge = other.challenge().try_into().expect("its size");
        let welcome = other.welcome(Err(Rejection::Full), &Secret::default());
        assert_eq!(half.finish(&challenge, &welcome, &Secret::default()), Err(Rejection::Full));
        hello[8] = 77;
        let (other, judged) = ServerHalf::new(VERBS, &hello);
        assert_eq!(judged, Err(Rejection::Version { theirs: 77, ours: VERBS.version }));
        let challenge = other.challenge().try_into().expect("its size");
        let refused = half.check(&challenge);
        assert_eq!(refused, Err(Rejection::Version { theirs: VERBS.version, ours: VERBS.version }));
        hello[0] = b'G';
        let stranger = Rejection::NotPando { wanted: VERBS.server };
        assert_eq!(ServerHalf::new(VERBS, &hello).1, Err(stranger));
        let other = [b'H'; CHALLENGE];
        assert_eq!(half.check(&other), Err(stranger));
    }

    #[test]
    fn the_port_of_another_protocol_is_told_by_name() {
        for (ours, theirs, text) in [
            (VERBS, Protocol::OPERATIONS, "this is the port of a compute server, not of a memory server"),
            (Protocol::OPERATIONS, VERBS, "this is the port of a memory server, not of a compute server"),
        ] {
            let half = ClientHalf::new(ours, 0, ID);
            let (other, judged) = ServerHalf::new(theirs, half.hello().try_into().expect("its size"));
            assert_eq!(judged.expect_err("it is another one").to_string(), text);
            let challenge = other.challenge().try_into().expect("its size");
            let told = half.check(&challenge).expect_err("it is another one");
            assert_eq!(told.to_string(), text);
        }
    }
}
