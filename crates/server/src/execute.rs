//! Execution of one request on the index.
//!
//! A refused operation has no effect. An error of a local session becomes a code, a sentence, and whether the
//! operation may have taken effect. A key of another process is no error: the client must find its owner.

use std::ops::Bound;

use pando::remote::wire::{
    ANSWER_BYTES, Keys, Opened, ReplyEncoder, Request, UNLIMITED, put_entry, put_value,
};
use pando::remote::{Described, ErrorCode};
use pando::{Answers, AsyncSession, Error, Index, IndexError, OwnedKeys, Result, ScanRange, Swapped};

use crate::counts::Ended;
use crate::part::first_part;

/// Keys that are looked up concurrently; their values bound the memory of one request.
const KEYS: usize = 32;

/// The index that operations are executed on, and the keys that this process owns.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'s> {
    pub index: &'s Index,
    pub described: &'s Described,
    pub owned: &'s OwnedKeys,
}

/// Answer of an operation that was done.
enum Done {
    /// The value or the body, if any, has been appended; the flag is the boolean answer, or whether there is
    /// a value.
    Yes(bool),
    Swapped(Swapped),
    Opened(Opened),
    Described,
    /// The bound from which a scan continues.
    Page(Option<Bound<Vec<u8>>>),
}

/// Executes `request` and appends the reply to `out`.
pub(crate) async fn execute(
    session: AsyncSession<'_>,
    scope: Scope<'_>,
    request: &Request<'_>,
    out: &mut Vec<u8>,
) -> Ended {
    let reply = ReplyEncoder::begin(out, request.op());
    let is_keyed =
        !matches!(request, Request::Open { .. } | Request::Routes | Request::Ping | Request::Describe);
    if is_keyed && scope.owned.ranges.is_empty() {
        reply.not_owned(out);
        return Ended::NotOwned;
    }
    match attempt(session, scope, request, &reply, out).await {
        Ok(Done::Yes(yes)) => reply.finish(out, yes),
        Ok(Done::Swapped(Swapped::Done)) => reply.swapped(out, Ok(())),
        Ok(Done::Swapped(Swapped::Found(found))) => reply.swapped(out, Err(found.as_deref())),
        Ok(Done::Opened(opened)) => reply.opened(out, &opened),
        Ok(Done::Described) => {
            let log = scope.index.log_stats();
            reply.described(out, &Described { log, ..scope.described.clone() });
        }
        Ok(Done::Page(next)) => {
            reply.finish_page(out, next.as_ref().map(|next| next.as_ref().map(Vec::as_slice)));
        }
        Err(error) if is_not_owned(&error) => {
            reply.not_owned(out);
            return Ended::NotOwned;
        }
        Err(error) => {
            reply.fail(out, code_of(&error), error.may_have_taken_effect(), &error.to_string());
            return Ended::Failed;
        }
    }
    Ended::Done
}

async fn attempt(
    session: AsyncSession<'_>,
    scope: Scope<'_>,
    request: &Request<'_>,
    reply: &ReplyEncoder,
    out: &mut Vec<u8>,
) -> Result<Done> {
    let yes = match *request {
        Request::Open { name } if name != scope.index.name() => {
            let existing = vec![scope.index.name().to_owned()];
            return Err(Error::UnknownIndex { name: name.to_owned(), existing });
        }
        Request::Open { .. } | Request::Routes => {
            let OwnedKeys { epoch, ranges } = scope.owned.clone();
            return Ok(Done::Opened(Opened { epoch, layout: scope.index.layout(), ranges }));
        }
        Request::Ping => false,
        Request::Describe => return Ok(Done::Described),
        Request::Get { key } => session.get_into(key, out).await?,
        Request::Put { key, value } => session.put(key, value).await?,
        Request::Insert { key, value } => session.insert(key, value).await?,
        Request::Update { key, value } => session.update(key, value).await?,
        Request::Remove { key } => session.remove(key).await?,
        Request::CompareAndSwap { key, expected, new } => {
            return session.compare_and_swap(key, expected, new).await.map(Done::Swapped);
        }
        Request::MultiGet(keys) => {
            multi_get(session, keys, reply, out).await?;
            false
        }
        Request::Scan { low, high, limit, reverse } => {
            let limit = if limit == UNLIMITED { usize::MAX } else { limit as usize };
            let range = ScanRange { low, high, limit, reverse };
            return scan(session, scope, &range, reply, out).await.map(Done::Page);
        }
    };
    Ok(Done::Yes(yes))
}

/// Appends the values of the first of `keys`, until the answer is full.
async fn multi_get(
    session: AsyncSession<'_>,
    mut keys: Keys<'_>,
    reply: &ReplyEncoder,
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut answers = Answers::default();
    loop {
        let some: Vec<&[u8]> = keys.by_ref().take(KEYS).collect();
        if some.is_empty() {
            return Ok(());
        }
        session.multi_get(&some, &mut answers).await?;
        for value in answers.iter() {
            put_value(out, value);
            // Stop here, because the next value may be long.
            if reply.len(out) >= ANSWER_BYTES {
                return Ok(());
            }
        }
    }
}

/// Appends the entries of the part of a scan that this process owns, until the answer is full. Returns the
/// bound from which the scan continues.
async fn scan(
    session: AsyncSession<'_>,
    scope: Scope<'_>,
    range: &ScanRange<'_>,
    reply: &ReplyEncoder,
    out: &mut Vec<u8>,
) -> Result<Option<Bound<Vec<u8>>>> {
    let part = first_part(range, &scope.owned.ranges).ok_or(IndexError::NotOwned);
    let part = part.map_err(Error::from)?;
    reply.begin_page(out);
    let (mut is_cut, mut last) = (false, None);
    let scanned = session
        .scan(&part.range, |key, value| {
            last = Some(out.len() + 4..out.len() + 4 + key.len());
            put_entry(out, key, value);
            is_cut = reply.len(out) >= ANSWER_BYTES;
            !is_cut
        })
        .await;
    let behind_last = last.map(|last| Bound::Excluded(out[last].to_vec()));
    match scanned {
        Ok(entries) if entries == range.limit => Ok(None),
        Ok(_) if is_cut => Ok(behind_last),
        Ok(_) => Ok(part.rest.map(|rest| rest.map(<[u8]>::to_vec))),
        // The entries found are valid. The client finds the current owner of the next keys.
        Err(error) if is_not_owned(&error) && behind_last.is_some() => Ok(behind_last),
        Err(error) => Err(error),
    }
}

fn is_not_owned(error: &Error) -> bool {
    matches!(
        error,
        Error::NotOwned { .. } | Error::OtherComputeServer { .. } | Error::Index(IndexError::NotOwned)
    )
}

fn code_of(error: &Error) -> ErrorCode {
    match error {
        Error::UnknownIndex { .. } => ErrorCode::UnknownIndex,
        Error::Busy { .. } | Error::Closed => ErrorCode::Unavailable,
        error if error.is_full() => ErrorCode::Full,
        error if error.is_bad_input() => ErrorCode::BadInput,
        _ => ErrorCode::Other,
    }
}
