//! Verbs of one endpoint that are under way, and how they end.
//!
//! An entry belongs to the future of its verb until that takes the outcome or is dropped; a verb whose future is gone is still
//! answered, and its entry kept until then. Entries are used again, so a verb allocates nothing but what its answer needs.

use std::task::Waker;

use pando_fabric::{ChainVerb, FabricError, PageBuf, Result, VerbResult, WORD};

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

enum State {
    Free,
    Waiting(Expected),
    /// Nobody waits any more, but it will be answered.
    Abandoned,
    Ended(Result<Outcome>),
}

struct Entry {
    state: State,
    /// Of the slot that waits.
    slot_bit: u64,
    waker: Option<Waker>,
}

#[derive(Default)]
pub(super) struct Verbs {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Verbs {
    /// Enters a verb of a slot.
    pub fn enter(&mut self, expected: Expected, slot_bit: u64) -> u32 {
        let entry = Entry { state: State::Waiting(expected), slot_bit, waker: None };
        match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = entry;
                number
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        }
    }

    /// The outcome, if it is there; the entry is free then. If not, `waker` will be woken.
    pub fn take(&mut self, number: u32, waker: &Waker) -> Option<Result<Outcome>> {
        let entry = &mut self.entries[number as usize];
        if matches!(entry.state, State::Ended(_)) {
            let State::Ended(outcome) = std::mem::replace(&mut entry.state, State::Free) else {
                unreachable!("it was looked at just now")
            };
            self.free.push(number);
            return Some(outcome);
        }
        if !entry.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            entry.waker = Some(waker.clone());
        }
        None
    }

    /// The future of the verb is gone.
    pub fn abandon(&mut self, number: u32) {
        let entry = &mut self.entries[number as usize];
        match std::mem::replace(&mut entry.state, State::Free) {
            State::Waiting(_) => entry.state = State::Abandoned,
            State::Free | State::Abandoned | State::Ended(_) => self.free.push(number),
        }
    }

    /// The verb was answered with `reply`; the bit of the slot that waits.
    ///
    /// # Errors
    /// [`Malformed`] if that is no answer to it. The verb waits on.
    pub fn answer(&mut self, number: u32, reply: Result<&[u8], FabricError>) -> Result<u64, Malformed> {
        let entry = &mut self.entries[number as usize];
        let outcome = match (reply, &mut entry.state) {
            (Err(error), _) => Err(error),
            // What it expects goes into the outcome, and nobody looks at it again.
            (Ok(body), State::Waiting(expected)) => {
                Ok(std::mem::replace(expected, Expected::Nothing).outcome(body)?)
            }
            (Ok(_), _) => Ok(Outcome::Nothing),
        };
        Ok(self.end(number, outcome))
    }

    /// Ends a verb; the bit of the slot that waits.
    pub fn end(&mut self, number: u32, outcome: Result<Outcome>) -> u64 {
        let entry = &mut self.entries[number as usize];
        match entry.state {
            State::Waiting(_) => {
                entry.state = State::Ended(outcome);
                if let Some(waker) = entry.waker.take() {
                    waker.wake();
                }
                entry.slot_bit
            }
            State::Abandoned => {
                entry.state = State::Free;
                self.free.push(number);
                0
            }
            State::Free | State::Ended(_) => unreachable!("a verb ends once"),
        }
    }
}
