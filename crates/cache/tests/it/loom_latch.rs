//! The latch word under every interleaving and reordering that loom explores.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p pando-cache`; `ci/loom.sh` does.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use pando_cache::sync::{AtomicU64, Ordering::Relaxed};
use pando_cache::{FrameState, HybridLatch};

/// A latch and two words that must be consistent.
#[derive(Default)]
struct Page {
    latch: AtomicU64,
    words: [AtomicU64; 2],
}

impl Page {
    fn latch(&self) -> HybridLatch<'_> {
        HybridLatch::new(&self.latch)
    }

    fn load(&self) -> [u64; 2] {
        [self.words[0].load(Relaxed), self.words[1].load(Relaxed)]
    }

    fn store(&self, value: u64) {
        self.words.iter().for_each(|word| word.store(value, Relaxed));
    }
}

#[test]
fn an_optimistic_reader_never_accepts_a_torn_pair() {
    loom::model(|| {
        let page = Arc::new(Page::default());
        let writer = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                for value in 1..=2 {
                    if let Ok(_guard) = page.latch().exclusive() {
                        page.store(value);
                    }
                }
            })
        };
        if let Ok(version) = page.latch().optimistic() {
            let [one, two] = page.load();
            if page.latch().validate(version).is_ok() {
                assert_eq!(one, two);
            }
        }
        writer.join().unwrap();
    });
}

#[test]
fn no_update_of_an_upgraded_reader_is_lost() {
    loom::model(|| {
        let page = Arc::new(Page::default());
        let add_one = |page: &Page| -> u64 {
            let Ok(version) = page.latch().optimistic() else { return 0 };
            let [one, two] = page.load();
            let Ok(_guard) = page.latch().upgrade(version) else { return 0 };
            assert_eq!(one, two, "the upgrade stands for a validation");
            page.store(one + 1);
            1
        };
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || add_one(&page) + add_one(&page))
        };
        let mine = add_one(&page);
        let sum = mine + other.join().unwrap();
        assert_eq!(page.load(), [sum; 2]);
    });
}

/// A latch and a plain word; loom reports any two accesses that the latch does not separate.
#[derive(Default)]
struct Guarded {
    latch: AtomicU64,
    word: UnsafeCell<u64>,
}

// SAFETY: the word is reached only under the latch; loom checks that this is enough.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn latch(&self) -> HybridLatch<'_> {
        HybridLatch::new(&self.latch)
    }
}

#[test]
fn shared_readers_and_a_writer_exclude_each_other() {
    loom::model(|| {
        let page = Arc::new(Guarded::default());
        let reader = |page: &Guarded| {
            if let Ok(guard) = page.latch().shared() {
                // SAFETY: the shared mode excludes writers.
                assert!(page.word.with(|word| unsafe { *word }) <= 1);
                drop(guard);
            }
        };
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || reader(&page))
        };
        let writer = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                if let Ok(_guard) = page.latch().exclusive() {
                    // SAFETY: the exclusive mode excludes all other holders.
                    page.word.with_mut(|word| unsafe { *word += 1 });
                }
            })
        };
        reader(&page);
        other.join().unwrap();
        writer.join().unwrap();
        assert!(page.latch().exclusive().is_ok(), "nothing is left of the shared mode");
    });
}

#[test]
fn a_change_that_means_the_same_does_not_disturb_readers_but_a_later_one_does() {
    loom::model(|| {
        let page = Arc::new(Page::default());
        let version = page.latch().optimistic().unwrap();
        let writer = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                let guard = page.latch().exclusive().unwrap();
                page.words[0].store(1, Relaxed);
                guard.release_unchanged();
                let guard = page.latch().exclusive().unwrap();
                page.words[1].store(1, Relaxed);
                drop(guard);
            })
        };
        let second = page.words[1].load(Relaxed);
        if page.latch().validate(version).is_ok() {
            assert_eq!(second, 0, "the second change was seen and not noticed");
        }
        writer.join().unwrap();
        assert!(page.latch().validate(version).is_err());
    });
}

/// One frame loses its node and gets another, which is then swizzled in a parent whose version stays the
/// same. A reader that follows the swizzled word must not reach the former node.
///
/// The word is loaded with `Relaxed`, so the reader may then load an old latch word; the fence of the
/// parent's validation ensures that the child's validation fails in that case.
#[test]
fn following_a_swizzled_word_does_not_lead_to_the_former_node() {
    loom::model(|| {
        let (parent, child) = (Arc::new(Page::default()), Arc::new(Page::default()));
        let writer = {
            let (parent, child) = (Arc::clone(&parent), Arc::clone(&child));
            thread::spawn(move || {
                let Ok(mut child_guard) = child.latch().exclusive() else { return };
                child.store(7);
                child_guard.set_state(FrameState::Hot);
                let parent_guard = parent.latch().exclusive().unwrap();
                parent.words[0].store(1, Relaxed);
                parent_guard.release_unchanged();
                drop(child_guard);
            })
        };
        let follow = || {
            let version = parent.latch().optimistic().ok()?;
            let swizzled = parent.words[0].load(Relaxed);
            let child_version = child.latch().optimistic().ok()?;
            parent.latch().validate(version).ok()?;
            let seen = child.load();
            child.latch().validate(child_version).ok()?;
            (swizzled == 1).then_some(seen)
        };
        if let Some(seen) = follow() {
            assert_eq!(seen, [7, 7]);
        }
        writer.join().unwrap();
    });
}
