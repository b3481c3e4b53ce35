//! Pinning threads to cores.
//!
//! Cores are numbered within the set that the process may use, so that a run in a container or under
//! `taskset` needs no other numbers. Best effort: a thread that cannot be pinned still runs.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread to core number `index` of the process's cores, which are determined by the first
/// call. Best effort; returns whether it worked.
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
    fn a_thread_is_pinned_to_an_existing_core_and_otherwise_stays() {
        // On a separate thread, which takes its pinning with it.
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

    /// Cores of a list such as `0-2,5`.
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
