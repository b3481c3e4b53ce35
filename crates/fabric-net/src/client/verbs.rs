//! Verbs of one endpoint that are under way, and how they end.
//!
//! What a verb expects waits with it, buffers included, and becomes its outcome when the answer comes. A verb allocates nothing
//! but what its answer needs; one whose future is gone is still answered.

use pando_fabric::{ChainVerb, FabricError, PageBuf, Result, VerbResult, WORD};

use crate::pending::Pending;
use crate::wire::Malformed;

/// What a verb waits for, and what of it is waiting with it.
#[derive(Debug)]
pub(super) enum Expected {
    /// As many bytes as the window has.
    Bytes(PageBuf),
    Word,
    Nothing,
    /// What each verb brings, one after the other.
    Chain(Vec<ChainVerb>),
    /// Any bytes.
    Body,
}

/// What a verb brought.
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
    /// [`Malformed`] if `body` cannot be the answer.
    fn outcome(self, mut body: &[u8]) -> Result<Outcome, Malformed> {
        let outcome = match self {
            Self::Body => return Ok(Outcome::Body(body.to_vec())),
            Self::Bytes(buf) => {
                fill(&buf, &mut body)?;
                Outcome::Buf(buf)
            }
            Self::Word => Outcome::Word(take_word(&mut body)?),
            Self::Nothing => Outcome::Nothing,
            Self::Chain(verbs) => {
                let result = |verb| {
                    Ok(match verb {
                        ChainVerb::Read { into, .. } => {
                            fill(&into, &mut body)?;
                            VerbResult::Buf(into)
                        }
                        ChainVerb::Write { from, .. } => VerbResult::Buf(from),
                        ChainVerb::WriteWord { .. } => VerbResult::Done,
                        ChainVerb::CompareSwap { .. } | ChainVerb::FetchAdd { .. } => {
                            VerbResult::Word(take_word(&mut body)?)
                        }
                    })
                };
                Outcome::Chain(verbs.into_iter().map(result).collect::<Result<_, Malformed>>()?)
            }
        };
        if body.is_empty() { Ok(outcome) } else { Err(Malformed::WrongReply) }
    }
}

/// Fills the window of `buf` from the front of `body`.
fn fill(buf: &PageBuf, body: &mut &[u8]) -> Result<(), Malformed> {
    let (bytes, rest) = body.split_at_checked(buf.window_len()).ok_or(Malformed::WrongReply)?;
    let (bytes, _) = bytes.as_chunks();
    for (word, bytes) in buf.window_words().iter().zip(bytes) {
        word.store(u64::from_le_bytes(*bytes), std::sync::atomic::Ordering::Relaxed);
    }
    *body = rest;
    Ok(())
}

fn take_word(body: &mut &[u8]) -> Result<u64, Malformed> {
    let (word, rest) = body.split_first_chunk::<WORD>().ok_or(Malformed::WrongReply)?;
    *body = rest;
    Ok(u64::from_le_bytes(*word))
}

/// Verbs that are under way.
pub(super) type Verbs = Pending<Expected, Outcome>;

/// A verb was answered with `reply`; the bit of the slot that waits.
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
        // What it expects goes into the outcome, and nobody looks at it again.
        (Ok(body), Some(expected)) => Ok(std::mem::replace(expected, Expected::Nothing).outcome(body)?),
        (Ok(_), None) => Ok(Outcome::Nothing),
    };
    Ok(verbs.end(number, |_| outcome))
}
