//! Seeded defects of protocols, to show that the tests find them.
//!
//! Without the feature `defects`, which only tests enable, [`defect`] is the constant `false` and its
//! branches are compiled away. With it, one defect at a time may be active on a thread. A simulation runs on
//! one thread, so concurrent tests do not disturb each other. Each index, and each part of one, has its own
//! list.

use std::fmt::Debug;

/// A protocol step that is omitted or done wrongly: one entry of a list.
pub trait Defect: Copy + Debug + 'static {
    /// Number of the defect in its list.
    fn number(self) -> u8;
}

/// Whether `defect` is active.
#[cfg(not(feature = "defects"))]
#[inline(always)]
pub const fn defect<D: Defect>(_: D) -> bool {
    false
}

#[cfg(feature = "defects")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<(std::any::TypeId, u8)>> = const { std::cell::Cell::new(None) };
}

/// Whether `defect` is active.
#[cfg(feature = "defects")]
pub fn defect<D: Defect>(defect: D) -> bool {
    ACTIVE.get() == Some((std::any::TypeId::of::<D>(), defect.number()))
}

/// Runs `work` with the given defect active on this thread, or none.
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
