//! The register of a group in etcd: the view is the value of one key.
//!
//! It is read linearizably, and changed by a transaction that compares the revision that was read, so each view derives from the
//! one before. What etcd has is decided. A transaction without an answer may have taken effect, or may yet; then the key is read
//! again: it has the proposed view, or the same change is made to what it has. A late transaction compares an older
//! revision by then, or writes what was proposed. Members of etcd are asked one after the other, from the one on that
//! answered last.

mod address;
mod base64;
mod http;
mod messages;
#[cfg(test)]
mod tests;

use std::thread;
use std::time::{Duration, Instant};

use pando_fabric::Random;
use pando_member::View;

use super::error::RegisterError;
pub use address::{BadRegister, RegisterAddress};
use http::HttpError;
use messages::{Found, RANGE, TXN};

/// Longest time for a read or a transaction of a change; one member of etcd has its share of it.
const ANSWER: Duration = Duration::from_secs(1);
/// Bounds of the random pause before another attempt, in milliseconds.
const PAUSE_MS: u64 = 20;

/// A way to the register.
pub(crate) struct Etcd {
    address: RegisterAddress,
    /// `host:port` of its members.
    endpoints: Vec<String>,
    /// Member that is asked first.
    first: usize,
    /// Epoch of the newest view that is known to be decided; 0 if any view, or none, may be there.
    known: u64,
    /// Longest time for a request of a change.
    answer: Duration,
    random: Random,
}

/// What has become of a transaction.
enum Swap {
    Made,
    /// The key had changed.
    Refused,
    /// Nothing, for this reason.
    NotSent(String),
    Unknown(String),
}

impl Etcd {
    pub fn new(address: &RegisterAddress) -> Self {
        let random = Random::new(crate::random_nonzero());
        let endpoints = address.endpoints().to_vec();
        Self { address: address.clone(), endpoints, first: 0, known: 0, answer: ANSWER, random }
    }

    /// The register that a view names.
    ///
    /// # Errors
    /// If it names none in etcd.
    pub fn of(view: &View) -> Result<Self, RegisterError> {
        let name = view.register().unwrap_or_default();
        let address = name.parse::<RegisterAddress>();
        address.map(|address| Self::new(&address)).map_err(|error| RegisterError::Damaged(error.to_string()))
    }

    /// The register, which must have view `epoch` or a newer one.
    pub fn not_before(self, epoch: u64) -> Self {
        Self { known: epoch, ..self }
    }

    /// The register, whose members are asked at other endpoints than its name says.
    pub fn reached_at(self, endpoints: &[String]) -> Self {
        Self { endpoints: endpoints.to_vec(), ..self }
    }

    /// The decided view, as of some moment after this call began; `None` if there is none.
    ///
    /// # Errors
    /// If no member of etcd answers until `until`, or it has something else than a view.
    pub fn view(&mut self, until: Instant) -> Result<Option<View>, RegisterError> {
        let found = self.read(until).map_err(|reason| self.silent(reason))?;
        self.decode(found.as_ref())
    }

    /// See [`Register::change`](super::Register::change).
    ///
    /// # Errors
    /// If etcd does not answer, has lost the view or has something else, or there is no end of other changes until
    /// `until`; what `change` refuses.
    pub fn change(
        &mut self,
        until: Instant,
        change: impl Fn(Option<View>) -> Result<Option<View>, String>,
    ) -> Result<Option<View>, RegisterError> {
        // What a transaction without an answer would have written.
        let mut unknown: Option<Vec<u8>> = None;
        loop {
            let failed = match self.read(Instant::now() + self.answer) {
                Err(reason) => Some(reason),
                Ok(found) => {
                    let view = self.decode(found.as_ref())?;
                    // Or another process has proposed the same, which is as good.
                    if found.as_ref().is_some_and(|found| Some(&found.value) == unknown.as_ref()) {
                        return Ok(view);
                    }
                    self.check_known(view.as_ref())?;
                    let Some(next) = change(view.clone()).map_err(RegisterError::Refused)? else {
                        return Ok(view);
                    };
                    let value = next.encode();
                    match self.swap(found.as_ref(), &value, Instant::now() + self.answer) {
                        Swap::Made => return Ok(Some(next)),
                        Swap::Refused => None,
                        Swap::NotSent(reason) => Some(reason),
                        Swap::Unknown(reason) => {
                            unknown = Some(value);
                            Some(reason)
                        }
                    }
                }
            };
            if Instant::now() >= until {
                return Err(match failed {
                    None => RegisterError::Contended,
                    Some(reason) if unknown.is_none() => self.silent(reason),
                    Some(reason) => RegisterError::Unknown { register: self.address.to_string(), reason },
                });
            }
            thread::sleep(Duration::from_millis(1 + self.random.next() % PAUSE_MS));
        }
    }

    fn silent(&self, reason: String) -> RegisterError {
        RegisterError::Silent { register: self.address.to_string(), reason }
    }

    fn decode(&self, found: Option<&Found>) -> Result<Option<View>, RegisterError> {
        let Some(found) = found else { return Ok(None) };
        let (register, key) = (self.address.to_string(), self.address.key());
        match View::decode(&found.value) {
            Ok(view) if view.register() == Some(&register) => Ok(Some(view)),
            Ok(view) => {
                let reason =
                    format!("it names {}", view.register().unwrap_or("no register outside the servers"));
                Err(RegisterError::Foreign { register, key, reason })
            }
            Err(error) => Err(RegisterError::Foreign { register, key, reason: error.to_string() }),
        }
    }

    /// Checks that etcd has not gone back.
    fn check_known(&mut self, view: Option<&View>) -> Result<(), RegisterError> {
        let epoch = view.map_or(0, View::epoch);
        if epoch < self.known {
            let found = if epoch == 0 { "no view".to_owned() } else { format!("view {epoch}") };
            return Err(RegisterError::Lost { register: self.address.to_string(), found, known: self.known });
        }
        // A value that was read is decided.
        self.known = if self.known == 0 { 0 } else { epoch };
        Ok(())
    }

    /// Reads the key. Each member that does not answer takes its share of the time.
    fn read(&mut self, until: Instant) -> Result<Option<Found>, String> {
        let (endpoints, body) = (&self.endpoints, messages::range(&self.address.key()));
        let mut reasons = Vec::new();
        for turn in 0..endpoints.len() {
            let member = (self.first + turn) % endpoints.len();
            let endpoint = &endpoints[member];
            let left = until.saturating_duration_since(Instant::now());
            let share = left / (endpoints.len() - turn) as u32;
            let answer = http::post(endpoint, RANGE, &body, Instant::now() + share);
            match answer.map_err(|error| error.to_string()).and_then(|answer| messages::found(&answer)) {
                Ok(found) => {
                    self.first = member;
                    return Ok(found);
                }
                Err(reason) => reasons.push(format!("{endpoint} {reason}")),
            }
        }
        Err(reasons.join("; "))
    }

    /// Asks the member that answered last to write the key, if it is as it was found.
    fn swap(&mut self, found: Option<&Found>, value: &[u8], until: Instant) -> Swap {
        let endpoint = &self.endpoints[self.first % self.endpoints.len()];
        let body = messages::swap(&self.address.key(), found, value);
        let answer = http::post(endpoint, TXN, &body, until);
        let may_have_taken_effect = answer.as_ref().err().is_none_or(HttpError::may_have_taken_effect);
        let reason =
            match answer.map_err(|error| error.to_string()).and_then(|answer| messages::swapped(&answer)) {
                Ok(true) => return Swap::Made,
                Ok(false) => return Swap::Refused,
                Err(reason) => format!("{endpoint} {reason}"),
            };
        // Another one is asked next.
        self.first += 1;
        if may_have_taken_effect { Swap::Unknown(reason) } else { Swap::NotSent(reason) }
    }
}
