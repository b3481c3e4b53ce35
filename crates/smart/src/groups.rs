//! Read delegation and write combining, in two phases (SMART §4.3).
//!
//! Operations of one compute server on one key form *groups*. One member of a group executes for all; the
//! groups of a key execute one after the other. A group is *open* until its executor closes it, right before
//! the first verb by which its operation takes effect: for a lookup, before its first READ; for a change,
//! before it samples the value that it writes. Later operations form the next group. So every member began
//! before the operation took effect, and ends after it, and sharing its result is linearizable. (In the
//! published scheme, operations that arrive while the executor is at work share its result too.)
//!
//! Members count as operations in order of arrival: the last one's value is written, and only the first may
//! find the key absent, whichever of them executes. An executor that failed, and knows that nothing was done,
//! is no longer a member.
//!
//! The groups of a key are also its local lock: a compute server has at most one change of a key in progress,
//! and waiters are served in order of arrival.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use xxhash_rust::xxh3::xxh3_64;

const SHARDS: usize = 64;

/// The groups of all keys, for operations with payloads `P` that share results `R`.
pub(crate) struct Groups<P, R> {
    shards: Box<[Mutex<Shard<P, R>>]>,
    repeats: Repeats,
}

/// Whether a member may execute after another one has tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeats {
    Always,
    /// Only while the group is open: after that its operation may have taken effect, and must not do so
    /// twice.
    UntilClosed,
}

type Shard<P, R> = BTreeMap<Box<[u8]>, Line<P, R>>;

/// The groups of one key.
struct Line<P, R> {
    running: Arc<Group<P, R>>,
    waiting: VecDeque<Arc<Group<P, R>>>,
}

struct Group<P, R>(Mutex<State<P, R>>);

struct State<P, R> {
    /// Payloads of the members that did not fail, by place, in order: the last one counts. Most groups have
    /// one member.
    first: Option<(u32, P)>,
    more: Vec<(u32, P)>,
    is_open: bool,
    phase: Phase<R>,
    /// Waiting members by place, in order.
    members: Vec<u32>,
    /// Number of members so far.
    came: u32,
    wakers: Vec<Waker>,
}

#[derive(PartialEq)]
enum Phase<R> {
    /// Other groups come first.
    Waits,
    /// The group may run; the first member that sees this executes.
    Ready,
    Runs,
    /// The result, and the place of the first member.
    Done(R, u32),
    /// The outcome is not known.
    Failed,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P, R> Group<P, R> {
    fn new(phase: Phase<R>) -> Arc<Self> {
        let (more, members, wakers) = (Vec::new(), Vec::new(), Vec::new());
        Arc::new(Self(Mutex::new(State {
            first: None,
            more,
            is_open: true,
            phase,
            members,
            came: 0,
            wakers,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State<P, R>> {
        lock(&self.0)
    }
}

impl<P, R> State<P, R> {
    /// Adds a member; returns its place.
    fn come(&mut self, payload: P) -> u32 {
        let place = self.came;
        self.came += 1;
        match place {
            0 => self.first = Some((place, payload)),
            _ => self.more.push((place, payload)),
        }
        place
    }

    /// The payload that counts, unless all members failed.
    fn payload(&self) -> Option<&P> {
        self.more.last().or(self.first.as_ref()).map(|(_, payload)| payload)
    }

    /// Removes the payload of the member at `place`.
    fn take_back(&mut self, place: u32) {
        self.first.take_if(|first| first.0 == place);
        self.more.retain(|more| more.0 != place);
    }

    fn wait(&mut self, payload: P) -> u32 {
        let place = self.come(payload);
        self.members.push(place);
        place
    }

    fn leave(&mut self, place: u32) {
        self.members.retain(|&member| member != place);
    }

    fn enter_phase(&mut self, phase: Phase<R>) -> Vec<Waker> {
        self.phase = phase;
        std::mem::take(&mut self.wakers)
    }
}

impl<P, R> Groups<P, R> {
    pub fn new(repeats: Repeats) -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), repeats }
    }
}

/// Role of an operation in its group.
pub(crate) enum Entered<'g, P: Clone, R: Clone> {
    /// It executes for its group.
    Executes(Turn<'g, P, R>),
    /// Another member executed; `true` if this one came before all others.
    Shares(R, bool),
    /// Another member executed, with an unknown outcome.
    Fails,
}

/// Hash of a key, for uses that tolerate collisions.
pub(crate) fn hash_of(key: &[u8]) -> u64 {
    xxh3_64(key)
}

impl<P: Clone, R: Clone> Groups<P, R> {
    fn shard(&self, key: &[u8]) -> &Mutex<Shard<P, R>> {
        &self.shards[hash_of(key) as usize % SHARDS]
    }

    /// Enters the groups of `key`. `joins` tells whether an operation with the second payload can join an
    /// open group with the first. With `late`, operations that arrive while a group executes share its
    /// result, which is unsound.
    pub async fn enter(
        &self,
        key: &[u8],
        payload: P,
        joins: impl Fn(&P, &P) -> bool,
        late: bool,
        before_wait: impl FnOnce(),
    ) -> Entered<'_, P, R> {
        let (group, place) = {
            let mut shard = lock(self.shard(key));
            let Some(line) = shard.get_mut(key) else {
                let running = Group::new(Phase::Runs);
                let place = running.state().come(payload);
                shard.insert(key.into(), Line { running: Arc::clone(&running), waiting: VecDeque::new() });
                return Entered::Executes(Turn {
                    groups: self,
                    key: key.into(),
                    group: running,
                    place,
                    is_done: false,
                });
            };
            let last = line.waiting.back().unwrap_or(&line.running);
            let mut state = last.state();
            let fits = state.payload().is_some_and(|last| joins(last, &payload));
            if (state.is_open || late) && fits {
                let place = state.wait(payload);
                drop(state);
                (Arc::clone(last), place)
            } else {
                drop(state);
                let group = Group::new(Phase::Waits);
                let place = group.state().wait(payload);
                line.waiting.push_back(Arc::clone(&group));
                (group, place)
            }
        };
        before_wait();
        Member { groups: self, key, group, place, is_over: false }.await
    }

    /// Ends the running group of `key` and starts the next one. Groups whose members have all left are
    /// skipped.
    fn pass_on(&self, key: &[u8]) -> Vec<Waker> {
        let mut shard = lock(self.shard(key));
        let Some(line) = shard.get_mut(key) else { return Vec::new() };
        while let Some(next) = line.waiting.pop_front() {
            let mut state = next.state();
            if !state.members.is_empty() {
                let wakers = state.enter_phase(Phase::Ready);
                drop(state);
                line.running = next;
                return wakers;
            }
        }
        shard.remove(key);
        Vec::new()
    }
}

fn wake(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

/// A waiting member.
struct Member<'g, 'k, P: Clone, R: Clone> {
    groups: &'g Groups<P, R>,
    key: &'k [u8],
    group: Arc<Group<P, R>>,
    place: u32,
    is_over: bool,
}

impl<'g, P: Clone, R: Clone> Future for Member<'g, '_, P, R> {
    type Output = Entered<'g, P, R>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut state = this.group.state();
        match &state.phase {
            Phase::Done(result, first) => {
                let shares = Entered::Shares(result.clone(), *first == this.place);
                state.leave(this.place);
                this.is_over = true;
                Poll::Ready(shares)
            }
            Phase::Failed => {
                state.leave(this.place);
                this.is_over = true;
                Poll::Ready(Entered::Fails)
            }
            Phase::Ready => {
                state.phase = Phase::Runs;
                state.leave(this.place);
                this.is_over = true;
                let group = Arc::clone(&this.group);
                Poll::Ready(Entered::Executes(Turn {
                    groups: this.groups,
                    key: this.key.into(),
                    group,
                    place: this.place,
                    is_done: false,
                }))
            }
            Phase::Waits | Phase::Runs => {
                if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                    state.wakers.push(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

impl<P: Clone, R: Clone> Drop for Member<'_, '_, P, R> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.group.state();
        state.leave(self.place);
        let is_unclaimed = state.members.is_empty() && matches!(state.phase, Phase::Ready);
        drop(state);
        if is_unclaimed {
            wake(self.groups.pass_on(self.key));
        }
    }
}

/// The right to execute for a group. If dropped without a result, another member takes over where that is
/// allowed.
pub(crate) struct Turn<'g, P: Clone, R: Clone> {
    groups: &'g Groups<P, R>,
    key: Box<[u8]>,
    group: Arc<Group<P, R>>,
    place: u32,
    is_done: bool,
}

impl<P: Clone, R: Clone> Turn<'_, P, R> {
    /// Closes the group, if it is still open; returns its payload.
    pub fn close(&self) -> P {
        let mut state = self.group.state();
        state.is_open = false;
        state.payload().expect("the one that executes is a member").clone()
    }

    /// Gives up after a failure without effect: another member tries, without this one's payload.
    pub fn give_up(self) {
        let mut state = self.group.state();
        state.is_open = true;
        state.take_back(self.place);
    }

    /// Gives this result to all members; returns whether the executor came before all others.
    pub fn finish(mut self, result: R) -> bool {
        self.is_done = true;
        // No operation may join before the result is known.
        let wakers = self.groups.pass_on(&self.key);
        let mut state = self.group.state();
        state.is_open = false;
        let first = state.members.first().map_or(self.place, |&place| place.min(self.place));
        let members = state.enter_phase(Phase::Done(result, first));
        drop(state);
        wake(members);
        wake(wakers);
        first == self.place
    }
}

impl<P: Clone, R: Clone> Drop for Turn<'_, P, R> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut state = self.group.state();
        let may_repeat = state.is_open || self.groups.repeats == Repeats::Always;
        if may_repeat && !state.members.is_empty() {
            let members = state.enter_phase(Phase::Ready);
            drop(state);
            return wake(members);
        }
        state.is_open = false;
        let members = state.enter_phase(Phase::Failed);
        drop(state);
        wake(members);
        wake(self.groups.pass_on(&self.key));
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    type Changes = Groups<char, &'static str>;

    fn enter(groups: &Changes, payload: char) -> impl Future<Output = Entered<'_, char, &'static str>> {
        groups.enter(b"key", payload, |_, _| true, false, || ())
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    fn executes<'g>(
        entered: Option<Entered<'g, char, &'static str>>,
    ) -> Option<Turn<'g, char, &'static str>> {
        match entered {
            Some(Entered::Executes(turn)) => Some(turn),
            _ => None,
        }
    }

    #[test]
    fn the_payload_of_a_failed_member_is_dropped() {
        let groups = Changes::new(Repeats::UntilClosed);
        let first = executes(poll(pin!(enter(&groups, 'a')))).expect("there is no other");
        assert_eq!(first.close(), 'a');
        let (mut early, mut late) = (pin!(enter(&groups, 'b')), pin!(enter(&groups, 'c')));
        assert!(poll(early.as_mut()).is_none() && poll(late.as_mut()).is_none(), "their group waits");
        assert!(first.finish("done"), "it is alone");
        let turn = executes(poll(late)).expect("their turn");
        assert_eq!(turn.close(), 'c', "the last one's counts");
        turn.give_up();
        let turn = executes(poll(early)).expect("it tries instead");
        assert_eq!(turn.close(), 'b');
        assert!(turn.finish("done"), "it comes before all others that did not fail");
    }

    #[test]
    fn a_group_whose_only_member_failed_cannot_be_joined() {
        let groups = Changes::new(Repeats::UntilClosed);
        let alone = executes(poll(pin!(enter(&groups, 'a')))).expect("there is no other");
        alone.close();
        alone.give_up();
        let next = executes(poll(pin!(enter(&groups, 'b')))).expect("there is no other any more");
        assert_eq!(next.close(), 'b');
        assert!(next.finish("done"));
    }
}
