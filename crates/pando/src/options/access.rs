//! Access to servers elsewhere: secrets, and how long operations may take.
//!
//! The same options apply to memory servers ([`crate::Config`]) and to the operation ports of compute servers
//! ([`crate::remote::ClientConfig`]).

use std::ops::RangeInclusive;
use std::time::Duration;

use pando_fabric_net::Secret;
use pando_fabric_verbs::VerbsOptions;

use crate::error::{Error, Result};

const DEADLINES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);

/// Access to servers elsewhere.
///
/// ```
/// use std::time::Duration;
/// use pando::{Access, Config};
///
/// let access = Access::default().secret("known to us alone").deadline(Duration::from_secs(2));
/// let config = Config::tcp(["memory-0:7100", "memory-1:7100"]).access(access);
/// # let _ = config;
/// ```
#[derive(Clone, Debug)]
pub struct Access {
    pub(crate) secret: Secret,
    operation_secret: Option<Secret>,
    pub(crate) deadline: Duration,
    pub(crate) verbs: VerbsOptions,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            secret: Secret::default(),
            operation_secret: None,
            deadline: Duration::from_secs(10),
            verbs: VerbsOptions::default(),
        }
    }
}

impl Access {
    /// Secret that servers require of their clients, at least 16 bytes; none.
    pub fn secret(mut self, secret: impl Into<Secret>) -> Self {
        self.secret = secret.into();
        self
    }

    /// Secret that the operation ports of compute servers require of their clients, if it differs from that
    /// of memory servers; the same ([`Access::secret`]). So a client of an index need not be able to reach
    /// the memory of the pool.
    pub fn operation_secret(mut self, secret: impl Into<Secret>) -> Self {
        self.operation_secret = Some(secret.into());
        self
    }

    /// Longest time that an operation may take, 1 ms to 1 h; 10 s. An operation that is not done by then
    /// fails, whether it waits for a server or for other operations. Half of it is the limit for one verb to
    /// a memory server and for connecting to one.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// RDMA device for memory that is reached by RDMA; the first one with an active port.
    pub fn verbs(mut self, options: VerbsOptions) -> Self {
        self.verbs = options;
        self
    }

    /// The RDMA device, see [`Access::verbs`].
    pub fn verbs_options(&self) -> &VerbsOptions {
        &self.verbs
    }

    /// Secret to present to the operation ports of compute servers.
    pub(crate) fn of_operations(&self) -> &Secret {
        self.operation_secret.as_ref().unwrap_or(&self.secret)
    }

    /// Longest time for one verb to a memory server, and for connecting to one.
    pub(crate) fn of_verb(&self) -> Duration {
        self.deadline / 2
    }

    /// Checks the bounds of all options.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a value out of its bounds.
    pub(crate) fn check(&self) -> Result<()> {
        for secret in [&self.secret, self.of_operations()] {
            secret.check().map_err(|error| Error::InvalidOption(error.to_string()))?;
        }
        if DEADLINES.contains(&self.deadline) {
            return Ok(());
        }
        let text = format!("a deadline of {:?} is not between 1 ms and 1 h", self.deadline);
        Err(Error::InvalidOption(text))
    }
}
