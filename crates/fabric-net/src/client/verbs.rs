//! Verbs of one endpoint that are under way, and how they end.
//!
//! A waiting verb keeps what it expects, buffers included, which becomes its outcome when the answer comes. A verb allocates only
//! what its answer needs. A verb whose future was dropped is still answered.

use pando_fabric::codec::{BadField, Reader};
use pando_fabric::{ChainVerb, FabricError, PageBuf, Result, VerbResult};

use crate::pending::Pending;
use crate::wire::Malformed;

/// What a verb waits for, with the buffers that its answer fills.
#[derive(Debug)]
pub(super) enum Expected {
    /// The bytes of the window.
    Bytes(PageBuf),
    Word,
    Nothing,
    /// The answers of the verbs, one after the other.
    Chain(Vec<ChainVerb>),
    /// Any bytes.
    Body,
}

/// Answer to a verb.
#[derive(Debug)]
pub(super) enum Outcome {
    Buf(PageBuf),
    Word(u64),
    Nothing,
    Chain(Vec<VerbResult>),
    Body(Vec<u8>),
}

impl Expected {
    /// # Errors
    /// If `body` cannot be the answer.
    fn outcome(self, body: &[u8]) -> Result<Outcome, BadField> {
        let mut left = Reader::new(body);
        let outcome = match self {
            Self::Body => return Ok(Outcome::Body(body.to_vec())),
            Self::Bytes(buf) => {
                fill(&buf, &mut left)?;
                Outcome::Buf(buf)
            }
            Self::Word => Outcome::Word(left.u64()?),
            Self::Nothing => Outcome::Nothing,
            Self::Chain(verbs) => {
                let result = |verb| {
                    Ok(match verb {
                        ChainVerb::Read { into, .. } => {
                            fill(&into, &mut left)?;
                            VerbResult::Buf(into)
                        }
                        ChainVerb::Write { from, .. } => VerbResult::Buf(from),
                        ChainVerb::WriteWord { .. } => VerbResult::Done,
                        ChainVerb::CompareSwap { .. } | ChainVerb::FetchAdd { .. } => {
                            VerbResult::Word(left.u64()?)
                        }
                    })
                };
                Outcome::Chain(verbs.into_iter().map(result).collect::<Result<_, BadField>>()?)
            }
        };
        left.end()?;
        Ok(outcome)
    }
}

/// Fills the window of `buf` from the front of `body`.
fn fill(buf: &PageBuf, body: &mut Reader<'_>) -> Result<(), BadField> {
    let (bytes, _) = body.bytes(buf.window_len())?.as_chunks();
    for (word, bytes) in buf.window_words().iter().zip(bytes) {
        word.store(u64::from_le_bytes(*bytes), std::sync::atomic::Ordering::Relaxed);
    }
    Ok(())
}

/// Verbs that are under way.
pub(super) type Verbs = Pending<Expected, Outcome>;

/// Ends a verb that was answered with `reply`. Returns the bit of the slot that waits for it.
///
/// # Errors
/// [`Malformed`] if that is no answer to it. The verb waits on.
pub(super) fn answer(
    verbs: &mut Verbs,
    number: u32,
    reply: Result<&[u8], FabricError>,
) -> Result<u64, Malformed> {
    let outcome = match (reply, verbs.waiting_mut(number)) {
        (Err(error), _) => Err(error),
        // The outcome takes what the verb expects, which is not looked at again.
        (Ok(body), Some(expected)) => Ok(std::mem::replace(expected, Expected::Nothing).outcome(body)?),
        (Ok(_), None) => Ok(Outcome::Nothing),
    };
    Ok(verbs.end(number, |_| outcome))
}
