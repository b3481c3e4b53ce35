//! A register outside the memory servers, as a server finds it when it starts.
//!
//! It must answer then: a wrong address is told at once, and not by a server that never serves. Later the server waits for
//! it as long as it takes.

use std::time::{Duration, Instant};

use pando_fabric::{FabricError, Result};
use pando_member::View;

use crate::group::{Etcd, RegisterAddress};

/// Longest time for its first answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two questions.
const PAUSE: Duration = Duration::from_millis(100);

/// A register outside the memory servers that has answered.
#[derive(Clone, Debug)]
pub struct OutsideRegister {
    pub(super) address: RegisterAddress,
    /// Where the rounds of this server reach its members.
    pub(super) endpoints: Vec<String>,
    /// The view that it had.
    pub(super) found: Option<View>,
}

impl OutsideRegister {
    /// Asks the register at `address`, for at most 5 s.
    ///
    /// # Errors
    /// `System` if it does not answer; `Open` if it has something else than a view of servers with this register.
    pub fn open(address: &RegisterAddress) -> Result<Self> {
        let (mut etcd, until) = (Etcd::new(address), Instant::now() + PATIENCE);
        loop {
            let path = "register".to_owned();
            match etcd.view(until) {
                Ok(found) => {
                    return Ok(Self {
                        address: address.clone(),
                        endpoints: address.endpoints().to_vec(),
                        found,
                    });
                }
                Err(error) if !error.is_silence() => {
                    return Err(FabricError::Open { path, reason: error.to_string() });
                }
                Err(error) if Instant::now() + PAUSE >= until => {
                    return Err(FabricError::System { path, reason: error.to_string() });
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// The register, reached at other endpoints by the rounds of the server: for tests that cut off one of several servers.
    #[doc(hidden)]
    pub fn reached_at(self, endpoints: impl Into<Vec<String>>) -> Self {
        Self { endpoints: endpoints.into(), ..self }
    }
}
