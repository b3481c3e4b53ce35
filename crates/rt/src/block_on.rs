//! One operation at a time, for blocking interfaces.
//!
//! The calling thread polls the future until it is ready, and the endpoint in between. On the local fabrics
//! operations are rarely pending, so a whole operation compiles into a single call.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use pando_fabric::Endpoint;

use crate::idle::{Courtesy, Idle};

/// Number of consecutive yields after which a future probably waits for another thread, not for its own turn.
const PATIENCE: u32 = 64;

/// Runs `future` to completion on this thread, and polls `endpoint` while it waits.
///
/// A future that is ready at once costs only its poll. A pending one is polled repeatedly, so it may also
/// wait for events that only wake wakers.
///
/// Must not be called from within a slot of the same endpoint.
#[inline]
pub fn block_on<E: Endpoint, F: Future>(endpoint: &E, future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    let (mut idle, mut courtesy) = (Idle::default(), Courtesy::every(PATIENCE));
    // Only one call of `poll`, so that the whole operation is compiled into this loop.
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
