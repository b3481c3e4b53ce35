//! What a report says about this process: its memory, its program.
//!
//! The peak of resident memory is the kernel's own figure and can be set back between phases where the system
//! allows it; where it says nothing the report says nothing. The commit comes from the build.

use std::fs;

/// The commit this program was built from, or `unknown`.
pub const COMMIT: &str = env!("PANDO_COMMIT");

/// The most memory that was resident at once, in bytes. `None` where the system does not say.
pub fn peak_rss_bytes() -> Option<u64> {
    status_kib(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:").map(|kib| kib * 1024)
}

/// Lets [`peak_rss_bytes`] start anew, where the system can do that.
pub fn reset_peak_rss() {
    // Best effort: without it the peak is that of the whole process.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Memory that could be used without pushing anything else out, in bytes. `None` where the system does not say.
pub fn available_memory_bytes() -> Option<u64> {
    status_kib(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:").map(|kib| kib * 1024)
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
