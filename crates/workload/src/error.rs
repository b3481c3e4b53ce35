//! Errors of workload specifications. Errors of data sets are in [`crate::dataset`].
//!
//! Every invalid request of a user has a variant whose message names the request and the alternatives, and
//! can be printed as it is.

/// A workload that cannot be generated as requested. Each message is a sentence for a command line.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    #[error(
        "the distribution `{0}` is not one of `uniform`, `zipf:THETA`, `latest:THETA`, `hotspot:SHARE:WIDTH[:FROM]`"
    )]
    UnknownDistribution(String),
    #[error("the exponent theta of a Zipf distribution must be a number from 0 up, not {0}")]
    BadTheta(f64),
    #[error(
        "a hot spot is a share of the operations from 0 to 1, the width of a stretch above 0 and its beginning; it must \
         not reach beyond 1, and must leave some keys for the other operations; `{0}` is invalid"
    )]
    BadHotSpot(String),
    #[error("the scatter `{0}` is not one of `hash`, `permutation`, `none`")]
    UnknownScatter(String),
    #[error("the key space `{0}` is not one of `dense`, `random64`")]
    UnknownKeySpace(String),
    #[error("the choice of insert keys `{0}` is not one of `drawn`, `half-new`, `new`")]
    UnknownInsertKeys(String),
    #[error("the workload `{name}` is not one of {names}")]
    UnknownMix { name: String, names: String },
    #[error("the shares of a workload's operations add up to {0}%, not 100%")]
    BadShares(u32),
    #[error("the length of a scan must be at least one record, not {min} to {max}")]
    BadScanLength { min: u32, max: u32 },
    #[error("the number of keys must be from 1 to {max}, not {keys}")]
    BadKeyCount { keys: u64, max: u64 },
    #[error("a key size of {size} bytes is too small for {keys} keys, which need {needed}")]
    KeySizeTooSmall { size: usize, keys: u64, needed: usize },
    #[error("thread {thread} of {threads} does not exist")]
    NoSuchThread { thread: u64, threads: u64 },
    #[error("there is no memory for a table of {bytes} bytes")]
    NoMemory { bytes: u64 },
    #[error("the range of keys from {first} to {last} holds no loaded key")]
    EmptyRange { first: u64, last: u64 },
    #[error(
        "ranks within a range of keys need keys in the order of records, which `random64` keys are not in"
    )]
    NoOwnRanks,
}
