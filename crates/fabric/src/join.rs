//! Several futures of one operation side by side.
//!
//! A READ is posted when its future is polled first, so futures that are joined have their verbs in flight at
//! the same time. The futures run on the slot of the caller; each is polled again whenever that slot is ready.

use std::future::{Future, poll_fn};
use std::task::Poll;

/// Runs futures concurrently to completion; returns their outputs in the same order.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    join_at_most(usize::MAX, futures).await
}

/// Does what [`join_all`] does with at most `most` futures at a time, of which there is at least one: another one
/// begins when one ends. A slot that is ready polls all that run, so that thousands at once would take long.
pub async fn join_at_most<F: Future>(most: usize, futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut waiting = futures.into_iter().fuse();
    let (mut running, mut outputs) = (Vec::new(), Vec::new());
    poll_fn(|cx| {
        let mut at = 0;
        loop {
            if at == running.len() {
                let Some(next) = (at < most.max(1)).then(|| waiting.next()).flatten() else { break };
                running.push((outputs.len(), Box::pin(next)));
                outputs.push(None);
            }
            let (place, future) = &mut running[at];
            match future.as_mut().poll(cx) {
                Poll::Ready(output) => {
                    outputs[*place] = Some(output);
                    running.remove(at);
                }
                Poll::Pending => at += 1,
            }
        }
        if running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().map(|output| output.expect("every future ran to its end")).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn no_more_than_the_limit_run_at_once() {
        let (running, largest) = (Cell::new(0), Cell::new(0));
        let futures = (0..20).map(|i: usize| {
            let (running, largest, mut left) = (&running, &largest, i % 4 + 1);
            poll_fn(move |_| {
                if left == i % 4 + 1 {
                    running.set(running.get() + 1);
                    largest.set(largest.get().max(running.get()));
                }
                left -= 1;
                if left > 0 {
                    return Poll::Pending;
                }
                running.set(running.get() - 1);
                Poll::Ready(i)
            })
        });
        let mut joined = pin!(join_at_most(3, futures));
        let mut context = Context::from_waker(Waker::noop());
        let outputs = loop {
            if let Poll::Ready(outputs) = joined.as_mut().poll(&mut context) {
                break outputs;
            }
        };
        assert_eq!(outputs, (0..20).collect::<Vec<_>>());
        assert_eq!(largest.get(), 3);
    }
}
