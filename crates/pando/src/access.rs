//! How servers elsewhere are reached: what they want their clients to know, and how long they may take.
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
/// let access = Access::default().secret("between us").deadline(Duration::from_secs(2));
/// let config = Config::tcp(["memory-0:7100", "memory-1:7100"]).access(access);
/// # let _ = config;
/// ```
#[derive(Clone, Debug)]
pub struct Access {
    pub(crate) secret: Secret,
    pub(crate) deadline: Duration,
    pub(crate) verbs: VerbsOptions,
}

impl Default for Access {
    fn default() -> Self {
        Self { secret: Secret::default(), deadline: Duration::from_secs(5), verbs: VerbsOptions::default() }
    }
}

impl Access {
    /// What servers want their clients to know; nothing.
    pub fn secret(mut self, secret: impl Into<Secret>) -> Self {
        self.secret = secret.into();
        self
    }

    /// How long a server may take to answer, and to be connected to, 1 ms to 1 h; 5 s. What it did not answer by then fails.
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

    /// # Errors
    /// [`Error::InvalidOption`] for what is out of its bounds.
    pub(crate) fn check(&self) -> Result<()> {
        match self.deadline {
            within if DEADLINES.contains(&within) => Ok(()),
            other => {
                Err(Error::InvalidOption(format!("a deadline of {other:?} is not between 1 ms and 1 h")))
            }
        }
    }
}
