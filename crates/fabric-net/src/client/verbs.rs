//! Verbs of one endpoint in flight, and their completion.
//!
//! A waiting verb keeps the expected kind of answer with its buffers, from which the outcome is made when the
//! answer comes. A verb allocates only the memory of its answer. A verb whose future was dropped is still
//! answered.

use pando_fabric::codec::{BadField, Reader};
use pando_fabric::{ChainVerb, FabricError, PageBuf, Result, VerbResult};

use crate::pending::Pending;
use crate::wire::Malformed;

/// The answer that a verb expects, with the buffers to fill.
#[derive(Debug)]
pub(super) enum Expected {
    /// Bytes of the window.
    Bytes(PageBuf),
    Word,
    Nothing,
    /// Results of the verbs, one after the other.
    Chain(Vec<ChainVerb>),
    /// Any bytes.
    Body,
}

/// Successful answer to a verb.
#[derive(Debug)]
pub(super) enum Outcome {
    Buf(PageBuf),
    Word(u64),
    Nothing,
    Chain(Vec<VerbResult>),
    Body(Vec<u8>),
}

impl Expected {
    /// Decodes the body of the answer.
    ///
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

/// Verbs in flight.
pub(super) type Verbs = Pending<Expected, Outcome>;

/// Ends a verb with its `reply`; returns the bit of the waiting slot.
///
/// # Errors
/// [`Malformed`] if the reply does not fit the verb. The verb then stays in flight.
pub(super) fn answer(
    verbs: &mut Verbs,
    number: u32,
    reply: Result<&[u8], FabricError>,
) -> Result<u64, Malformed> {
    let outcome = match (reply, verbs.waiting_mut(number)) {
        (Err(error), _) => Err(error),
        // `outcome` takes the buffers; the rest of the entry is not read again.
        (Ok(body), Some(expected)) => Ok(std::mem::replace(expected, Expected::Nothing).outcome(body)?),
        (Ok(_), None) => Ok(Outcome::Nothing),
    };
    Ok(verbs.end(number, |_| outcome))
}
