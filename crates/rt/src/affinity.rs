//! Pinning threads to cores.
//!
//! A core is asked for by its place among those that the process may use, so that a run in a container or under
//! `taskset` needs no other numbers. Best effort: a thread that cannot be pinned runs all the same.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread to the core that comes at `index` among those the process was given: those that the
/// first caller was allowed to run on. Best effort; returns whether it worked.
pub fn pin_to_core(index: usize) -> bool {
    static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
    let Some(&core) = ALLOWED.get_or_init(allowed_cores).get(index) else { return false };
    let mut only = CpuSet::new();
    only.set(core);
    sched_setaffinity(None, &only).is_ok()
}

fn allowed_cores() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_pinned_to_the_core_it_asked_for_and_stays_there_if_there_is_none() {
        // On a thread of its own, which takes its pinning with it.
        let cores = std::thread::spawn(|| {
            let before = allowed_cores();
            for (index, &core) in before.iter().enumerate() {
                assert!(pin_to_core(index));
                assert_eq!(allowed_cores(), [core]);
            }
            assert!(!pin_to_core(before.len()));
            assert!(!pin_to_core(usize::MAX));
            before
        })
        .join()
        .expect("the thread did not panic");
        assert!(!cores.is_empty());
    }

    /// The cores of a list like `0-2,5`.
    fn cores_of(list: &str) -> Vec<usize> {
        let number = |text: &str| text.trim().parse::<usize>().expect("a number");
        let ends = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            (number(first), number(last))
        };
        list.split(',').map(ends).flat_map(|(first, last)| first..=last).collect()
    }

    #[test]
    fn the_cores_are_those_that_the_kernel_lists() {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("it is there on Linux");
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        assert_eq!(allowed_cores(), cores_of(list.expect("every kernel lists them")));
    }
}
