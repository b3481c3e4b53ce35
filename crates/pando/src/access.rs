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
        Self { secret: Secret::default(), deadline: Duration::from_secs(10), verbs: VerbsOptions::default() }
    }
}

impl Access {
    /// What servers want their clients to know; nothing.
    pub fn secret(mut self, secret: impl Into<Secret>) -> Self {
        self.secret = secret.into();
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

    /// How long a verb to a memory server may take, and being connected to one.
    pub(crate) fn of_verb(&self) -> Duration {
        self.deadline / 2
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
