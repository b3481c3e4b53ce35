//! Defects put into the protocols on purpose, so that a test can show that they would be found.
//!
//! Without the feature `defects`, which only tests turn on, [`defect`] is the constant `false` and its branches are
//! compiled away. With it, one defect at a time may be active on a thread: simulations run on one, so that tests side by
//! side do not disturb each other.

/// A step of a protocol that is left out or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// What a stale copy of a shared node leads to is taken for the right node.
    SkipFenceCheck,
    /// A dirty node that cools is called clean without a WRITE.
    LostWriteBack,
    /// A miss does not keep others from reading and admitting the same node.
    NoIoMark,
    /// A shared node is unlocked before it is written.
    EarlyUnlock,
    /// A compute server executes operations on keys of others.
    StaleRoute,
    /// A parent that was read optimistically is not looked at again after its child was found.
    SkipVersionCheck,
    /// A scan steps to a sibling without looking whether the node above is the same.
    SkipStepCheck,
}

impl Defect {
    pub const ALL: [Self; 7] = [
        Self::SkipFenceCheck,
        Self::LostWriteBack,
        Self::NoIoMark,
        Self::EarlyUnlock,
        Self::StaleRoute,
        Self::SkipVersionCheck,
        Self::SkipStepCheck,
    ];
}

/// Whether this defect is active.
#[cfg(not(feature = "defects"))]
#[inline(always)]
pub const fn defect(_: Defect) -> bool {
    false
}

#[cfg(feature = "defects")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Defect>> = const { std::cell::Cell::new(None) };
}

/// Whether this defect is active.
#[cfg(feature = "defects")]
pub fn defect(defect: Defect) -> bool {
    ACTIVE.get() == Some(defect)
}

/// Runs `work` with a defect on this thread, or with none.
#[cfg(feature = "defects")]
pub fn with_defect<T>(defect: Option<Defect>, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Defect>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ACTIVE.set(self.0);
        }
    }
    let _restore = Restore(ACTIVE.replace(defect));
    work()
}
