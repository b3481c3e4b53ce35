//! One operation at a time, for blocking interfaces.
//!
//! The future is polled on the calling thread until it is ready, with the endpoint polled in between. On the local
//! fabrics operations are seldom pending, so the whole of one compiles into a single call.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use pando_fabric::Endpoint;

use crate::idle::{Courtesy, Idle};

/// A future that was pending this often in a row waits for somebody else rather than for its turn.
const PATIENCE: u32 = 64;

/// Runs `future` to its end on this thread, polling `endpoint` while it waits.
///
/// A future that is ready at once costs its poll and nothing else. One that waits is polled over and over, so that
/// it may also wait for something that only wakes wakers.
///
/// Must not be called from within a slot of the same endpoint.
#[inline]
pub fn block_on<E: Endpoint, F: Future>(endpoint: &E, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    let (mut idle, mut courtesy) = (Idle::default(), Courtesy::every(PATIENCE));
    // One call of `poll` only, so that the whole operation is compiled into this loop.
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        if endpoint.poll_ready() == 0 {
            idle.wait(endpoint);
        } else {
            idle.reset();
            courtesy.count(1);
        }
    }
}
