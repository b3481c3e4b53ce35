//! Futures that are compiled once.
//!
//! The state machine of an async function is compiled into every crate that awaits it, with all that it calls.
//! An optimised build shares a generic function among crates only if it is never inlined. So a future that is
//! polled through such a function is compiled in the first crate that uses it with the same types, and later
//! crates call it. This is for what is rare, or takes long anyway.

use std::future::Future;
use std::ops::DerefMut;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Awaits a pinned future out of line: `outlined(Box::pin(f)).await` also keeps the awaiting future small, and
/// `outlined(pin!(f)).await` costs no allocation.
pub fn outlined<P>(future: Pin<P>) -> Outlined<P>
where
    P: DerefMut<Target: Future> + Unpin,
{
    Outlined(future)
}

/// A future of [`outlined`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Outlined<P>(Pin<P>);

impl<P> Future for Outlined<P>
where
    P: DerefMut<Target: Future> + Unpin,
{
    type Output = <P::Target as Future>::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        poll_outlined(self.0.as_mut(), cx)
    }
}

#[inline(never)]
fn poll_outlined<F: Future + ?Sized>(future: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<F::Output> {
    future.poll(cx)
}
