//! Facts about this process for reports: its memory, its program.
//!
//! The peak of resident memory is the kernel's figure; it is reset between phases if the system allows it,
//! and missing if the system does not report it. The program tells its commit, so that only the program is
//! compiled again after each commit.

use std::fs;
use std::sync::OnceLock;

static COMMIT: OnceLock<&str> = OnceLock::new();

/// Sets the commit that the program was built from. The first call counts.
pub fn set_commit(commit: &'static str) {
    COMMIT.get_or_init(|| commit);
}

/// Commit that the program was built from, or `unknown`.
pub(crate) fn commit() -> &'static str {
    COMMIT.get().copied().unwrap_or("unknown")
}

/// The first digits of a commit, for readers.
pub(crate) fn short_commit(commit: &str) -> &str {
    commit.get(..12).unwrap_or(commit)
}

/// Greatest amount of resident memory so far, in bytes. `None` if the system does not report it.
pub fn peak_rss_bytes() -> Option<u64> {
    status_kib(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:").map(|kib| kib * 1024)
}

/// Restarts the measurement of [`peak_rss_bytes`], if the system allows it.
pub fn reset_peak_rss() {
    // Best effort: otherwise the peak is that of the process so far.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Memory that is available without swapping, in bytes. `None` if the system does not report it.
pub fn available_memory_bytes() -> Option<u64> {
    status_kib(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:").map(|kib| kib * 1024)
}

/// Time for which the calling thread has run on a processor: other programs on the machine add nothing to it, except
/// for what they take of its caches.
pub(crate) fn thread_time() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn status_kib(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_from_the_status_file() {
        let status = "Name:\tpando\nVmPeak:\t  900 kB\nVmHWM:\t  123 kB\nVmRSS:\t 5 kB\n";
        assert_eq!(status_kib(status, "VmHWM:"), Some(123));
        assert_eq!(status_kib(status, "VmSwap:"), None);
    }
}
