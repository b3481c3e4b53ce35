//! Several futures of one operation side by side.
//!
//! A READ is posted when its future is polled first, so futures that are joined have their verbs in flight at
//! the same time. The futures run on the slot of the caller; each is polled again whenever that slot is ready.

use std::future::{Future, poll_fn};
use std::task::Poll;

/// Runs futures concurrently to completion; returns their outputs in the same order.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|future| (Some(Box::pin(future)), None)).collect();
    poll_fn(|cx| {
        let mut is_pending = false;
        for (slot, output) in &mut running {
            let Some(future) = slot else { continue };
            match future.as_mut().poll(cx) {
                Poll::Ready(done) => (*slot, *output) = (None, Some(done)),
                Poll::Pending => is_pending = true,
            }
        }
        if is_pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    running.into_iter().map(|(_, output)| output.expect("every future ran to its end")).collect()
}
