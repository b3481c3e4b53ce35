//! The gate under loom: a change of the view waits for all operations that entered by the old one.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;
use pando_cache::Gate;

/// Enters as worker `number` while the view is 0, and changes the counter that the mover checks after
/// draining the gate.
fn work(gate: &Gate<u32>, number: usize, inside: &AtomicU32) {
    if let Some(entered) = gate.enter(number, |&view| view == 0) {
        // A lost update would show, and so would one after the gate was drained.
        inside.store(inside.load(Relaxed) + 1, Relaxed);
        inside.store(inside.load(Relaxed) - 1, Relaxed);
        drop(entered);
    }
}

fn drain(gate: &Gate<u32>) {
    while !gate.is_drained() {
        thread::yield_now();
    }
}

/// Two workers, on separate stripes, against one change.
#[test]
fn a_drained_gate_has_no_operation_of_the_old_view_inside() {
    loom::model(|| {
        let gate = Arc::new(Gate::new(0));
        let counts: Vec<_> = (0..2).map(|_| Arc::new(AtomicU32::new(0))).collect();
        let workers: Vec<_> = counts
            .iter()
            .enumerate()
            .map(|(number, count)| {
                let (gate, count) = (Arc::clone(&gate), Arc::clone(count));
                thread::spawn(move || work(&gate, number, &count))
            })
            .collect();
        assert!(gate.turn_over(|view| view + 1));
        drain(&gate);
        for count in &counts {
            assert_eq!(count.load(Relaxed), 0, "an operation is inside");
            // This thread is alone from now on: a late worker would be seen.
            count.store(7, Relaxed);
        }
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert!(counts.iter().all(|count| count.load(Relaxed) == 7));
    });
}

/// Once any thread has seen the new view, a view read without entering is the new one too.
#[test]
fn the_view_changes_for_all_at_one_moment() {
    loom::model(|| {
        let gate = Arc::new(Gate::new(0));
        let seen = Arc::new(AtomicU32::new(0));
        let other = {
            let (gate, seen) = (Arc::clone(&gate), Arc::clone(&seen));
            thread::spawn(move || seen.store(*gate.view(0), loom::sync::atomic::Ordering::Release))
        };
        let mover = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || assert!(gate.turn_over(|view| view + 1)))
        };
        if seen.load(loom::sync::atomic::Ordering::Acquire) == 1 {
            assert_eq!(*gate.view(1), 1, "another stripe is behind");
        }
        other.join().unwrap();
        mover.join().unwrap();
    });
}
