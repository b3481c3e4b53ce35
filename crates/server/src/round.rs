//! Selection of the requests of a connection that may be executed concurrently.
//!
//! A *round* takes complete requests from a connection that may be executed in any order, because their keys
//! differ. A request on the same key as an earlier one of the round ends it, unless both are lookups, which
//! share one answer. A scan or a lookup of many keys is a round of its own. So requests of one connection on
//! one key are executed in their order, and a scan after all requests before it and before all requests after
//! it. Requests of different connections are not ordered.

use std::collections::HashMap;

use pando::remote::wire::{Malformed, Op, Request, decode_request};

/// Approximate limit of the requests in flight on a thread.
pub(crate) const JOBS_MAX: usize = 1024;

/// A request of a round.
pub(crate) struct Job<'b> {
    request: Request<'b>,
    /// Bytes of its frame.
    pub used: usize,
    /// Earlier lookup of the same key, which has the same answer.
    pub same_as: Option<usize>,
}

impl Job<'_> {
    pub fn op(&self) -> Op {
        self.request.op()
    }
}

/// Use of a key by an earlier request of the round.
#[derive(Clone, Copy)]
enum Use {
    Lookup(usize),
    Change,
}

/// Keys in a round of one connection. Most connections send one request at a time, which needs no hash table.
#[derive(Default)]
struct Keys<'b> {
    first: Option<(&'b [u8], Use)>,
    others: HashMap<&'b [u8], Use>,
}

impl<'b> Keys<'b> {
    fn find(&self, key: &[u8]) -> Option<Use> {
        match self.first {
            Some((first, of)) if first == key => Some(of),
            _ => self.others.get(key).copied(),
        }
    }

    fn insert(&mut self, key: &'b [u8], of: Use) {
        match self.first {
            None => self.first = Some((key, of)),
            Some(_) => drop(self.others.insert(key, of)),
        }
    }
}

/// How a request may be combined with others.
enum Kind<'b> {
    /// Changes nothing and depends on nothing.
    Free,
    Lookup(&'b [u8]),
    Change(&'b [u8]),
    Alone,
}

fn kind_of<'b>(request: &Request<'b>) -> Kind<'b> {
    match *request {
        Request::Open { .. } | Request::Routes | Request::Ping | Request::Describe => Kind::Free,
        Request::Get { key } => Kind::Lookup(key),
        Request::Put { key, .. }
        | Request::Insert { key, .. }
        | Request::Update { key, .. }
        | Request::Remove { key }
        | Request::CompareAndSwap { key, .. } => Kind::Change(key),
        Request::MultiGet(_) | Request::Scan { .. } => Kind::Alone,
    }
}

/// The next round: requests at the front of a connection's `input`, at most `limit`. `admit` checks whether a
/// request is permitted.
///
/// # Errors
/// If the first request is malformed or not permitted. Requests before such a one are executed first.
pub(crate) fn gather<'b>(
    input: &'b [u8],
    body_max: u32,
    limit: usize,
    admit: impl Fn(&Request<'b>) -> Result<(), String>,
) -> Result<Vec<Job<'b>>, String> {
    let (mut jobs, mut taken, mut keys): (Vec<Job<'b>>, _, _) = (Vec::new(), 0, Keys::default());
    while jobs.len() < limit {
        let is_first = jobs.is_empty();
        let decoded = decode_request(&input[taken..], body_max);
        let decoded = decoded.map_err(|malformed: Malformed| malformed.to_string()).and_then(|decoded| {
            decoded.map(|(request, used)| admit(&request).map(|()| (request, used))).transpose()
        });
        let (request, used) = match decoded {
            Ok(Some(request)) => request,
            Err(wrong) if is_first => return Err(wrong),
            Ok(None) | Err(_) => break,
        };
        let number = jobs.len();
        let same_as = match kind_of(&request) {
            Kind::Free => None,
            Kind::Alone if is_first => None,
            Kind::Alone => break,
            Kind::Change(key) => match keys.find(key) {
                Some(_) => break,
                None => {
                    keys.insert(key, Use::Change);
                    None
                }
            },
            Kind::Lookup(key) => match keys.find(key) {
                Some(Use::Change) => break,
                Some(Use::Lookup(earlier)) => Some(earlier),
                None => {
                    keys.insert(key, Use::Lookup(number));
                    None
                }
            },
        };
        let is_alone = matches!(kind_of(&request), Kind::Alone);
        jobs.push(Job { request, used, same_as });
        taken += used;
        if is_alone {
            break;
        }
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando::remote::wire::put_keys;

    const MAX: u32 = 1 << 20;

    /// Size of each round, and which of its requests share the answer of another one.
    fn rounds(requests: &[Request<'_>]) -> Vec<(usize, Vec<Option<usize>>)> {
        let mut bytes = Vec::new();
        for request in requests {
            request.encode(&mut bytes);
        }
        let (mut rest, mut rounds) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let jobs = gather(rest, MAX, JOBS_MAX, |_| Ok(())).expect("they are requests");
            assert!(!jobs.is_empty());
            rounds.push((jobs.len(), jobs.iter().map(|job| job.same_as).collect()));
            rest = &rest[jobs.iter().map(|job| job.used).sum::<usize>()..];
        }
        rounds
    }

    fn sizes(requests: &[Request<'_>]) -> Vec<usize> {
        rounds(requests).into_iter().map(|(len, _)| len).collect()
    }

    #[test]
    fn what_must_keep_its_order_is_in_different_rounds() {
        let (get, put) = (|key| Request::Get { key }, |key| Request::Put { key, value: b"v" });
        let (a, b): (&[u8], &[u8]) = (b"a", b"b");
        assert_eq!(sizes(&[put(a), put(b), get(b"c"), Request::Ping]), [4]);
        assert_eq!(sizes(&[put(a), put(a), put(b), get(a)]), [1, 2, 1]);
        assert_eq!(sizes(&[get(a), Request::Remove { key: a }]), [1, 1]);
        assert_eq!(
            sizes(&[get(b), get(a), Request::CompareAndSwap { key: a, expected: None, new: None }]),
            [2, 1]
        );
        let same = rounds(&[get(b), get(a), get(a), put(b"c"), get(a), put(a)]);
        assert_eq!(same, [(5, vec![None, None, Some(1), None, Some(1)]), (1, vec![None])]);
        let scan = Request::scan(&pando::ScanRange::all());
        assert_eq!(sizes(&[put(a), scan, put(b), scan, scan]), [1, 1, 1, 1, 1]);
    }

    #[test]
    fn many_keys_are_looked_up_alone() {
        let mut bytes = Vec::new();
        Request::Ping.encode(&mut bytes);
        put_keys(&mut bytes, [&b"a"[..], b"b"].into_iter());
        let jobs = gather(&bytes, MAX, JOBS_MAX, |_| Ok(())).expect("they are requests");
        assert_eq!(jobs.len(), 1);
        let rest = &bytes[jobs[0].used..];
        let jobs = gather(rest, MAX, JOBS_MAX, |_| Ok(())).expect("it is a request");
        assert_eq!((jobs.len(), jobs[0].op()), (1, Op::MultiGet));
    }

    #[test]
    fn what_comes_before_bytes_that_are_no_request_is_executed() {
        let mut bytes = Vec::new();
        Request::Get { key: b"a" }.encode(&mut bytes);
        let good = bytes.len();
        bytes.extend([255; 16]);
        let jobs = gather(&bytes, MAX, JOBS_MAX, |_| Ok(())).expect("one is a request");
        assert_eq!(jobs.len(), 1);
        assert!(gather(&bytes[good..], MAX, JOBS_MAX, |_| Ok(())).is_err());
        let refused = |_: &Request<'_>| Err("no".to_owned());
        assert_eq!(gather(&bytes, MAX, JOBS_MAX, refused).err(), Some("no".to_owned()));
        // At most the share of the connection.
        let pings = [&bytes[..good], &bytes[..good]].concat();
        let jobs = gather(&pings, MAX, 1, |_| Ok(())).expect("they are requests");
        assert_eq!(jobs.len(), 1);
    }
}
