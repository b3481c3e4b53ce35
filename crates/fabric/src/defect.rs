//! Defects put into protocols on purpose, so that a test can show that they would be found.
//!
//! Without the feature `defects`, which only tests turn on, [`defect`] is the constant `false` and its branches are
//! compiled away. With it, one defect at a time may be active on a thread: simulations run on one, so that tests side by
//! side do not disturb each other. Each index, and each part of one, has a list of its own.

use std::fmt::Debug;

/// A step of a protocol that is left out or done wrongly: one of a list.
pub trait Defect: Copy + Debug + 'static {
    /// Its number in the list.
    fn number(self) -> u8;
}

/// Whether this defect is active.
#[cfg(not(feature = "defects"))]
#[inline(always)]
pub const fn defect<D: Defect>(_: D) -> bool {
    false
}

#[cfg(feature = "defects")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<(std::any::TypeId, u8)>> = const { std::cell::Cell::new(None) };
}

/// Whether this defect is active.
#[cfg(feature = "defects")]
pub fn defect<D: Defect>(defect: D) -> bool {
    ACTIVE.get() == Some((std::any::TypeId::of::<D>(), defect.number()))
}

/// Runs `work` with a defect on this thread, or with none.
#[cfg(feature = "defects")]
pub fn with_defect<D: Defect, T>(defect: Option<D>, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<(std::any::TypeId, u8)>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ACTIVE.set(self.0);
        }
    }
    let of_list = |defect: D| (std::any::TypeId::of::<D>(), defect.number());
    let _restore = Restore(ACTIVE.replace(defect.map(of_list)));
    work()
}
