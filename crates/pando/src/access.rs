//! How servers elsewhere are reached: what they want their clients to know, and how long operations may take.
//!
//! The same for memory servers ([`crate::Config`]) and for the operation ports of compute servers
//! ([`crate::remote::ClientConfig`]).

use std::ops::RangeInclusive;
use std::time::Duration;

use pando_fabric_net::Secret;
use pando_fabric_verbs::VerbsOptions;

use crate::error::{Error, Result};

const DEADLINES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);

/// How servers elsewhere are reached.
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
    /// What servers want their clients to know, 16 bytes at least; nothing.
    pub fn secret(mut self, secret: impl Into<Secret>) -> Self {
        self.secret = secret.into();
        self
    }

    /// What the operation ports of compute servers want their clients to know, if it is not what memory servers do; the same
    /// ([`Access::secret`]). Who works on an index need not be able to reach the memory that it is in.
    pub fn operation_secret(mut self, secret: impl Into<Secret>) -> Self {
        self.operation_secret = Some(secret.into());
        self
    }

    /// How long an operation may take, 1 ms to 1 h; 10 s. What was not done by then fails, whether it waited for a server or for
    /// others. A memory server has half of it for one verb, or to be connected to.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Which RDMA device to use for memory that is reached so, and how; the first one with an active port.
    pub fn verbs(mut self, options: VerbsOptions) -> Self {
        self.verbs = options;
        self
    }

    pub fn verbs_options(&self) -> &VerbsOptions {
        &self.verbs
    }

    /// What to show to the operation ports of compute servers.
    pub(crate) fn of_operations(&self) -> &Secret {
        self.operation_secret.as_ref().unwrap_or(&self.secret)
    }

    /// How long a verb to a memory server may take, and being connected to one.
    pub(crate) fn of_verb(&self) -> Duration {
        self.deadline / 2
    }

    /// # Errors
    /// [`Error::InvalidOption`] for what is out of its bounds.
    pub(crate) fn check(&self) -> Result<()> {
        for secret in [&self.secret, self.of_operations()] {
            secret.check().map_err(|error| Error::InvalidOption(error.to_string()))?;
        }
        match self.deadline {
            within if DEADLINES.contains(&within) => Ok(()),
            other => {
                Err(Error::InvalidOption(format!("a deadline of {other:?} is not between 1 ms and 1 h")))
            }
        }
    }
}
