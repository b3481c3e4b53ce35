//! Identity of a process and whether it still runs, for records that a process leaves in a shared pool.
//!
//! A process is identified by its number and its start time, so that a reused number is detected. Identities
//! are valid only within one PID namespace.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// Number of this process and its start time in clock ticks since boot (0 if `/proc` does not tell).
pub fn this_process() -> (u32, u64) {
    let pid = std::process::id();
    let start_time = stat_of(pid).map_or(0, |stat| stat.start_time);
    (pid, start_time)
}

/// Whether process `pid` with start time `start_time` still runs. In doubt it does.
pub fn process_alive(pid: u32, start_time: u64) -> bool {
    match stat_of(pid) {
        Some(stat) => stat.start_time == start_time && !stat.ended,
        // `/proc` may be hidden or absent although the process exists.
        None => signal_finds(pid),
    }
}

fn signal_finds(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    !matches!(test_kill_process(pid), Err(Errno::SRCH))
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    start_time: u64,
    /// The process has ended, but its parent has not waited for it.
    ended: bool,
}

fn stat_of(pid: u32) -> Option<Stat> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses `pid (name) state ...`. The name may hold spaces and parentheses, so fields count from the last
/// `)`.
fn parse(stat: &[u8]) -> Option<Stat> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    // The state is field 3, the start time field 22.
    let start_time = fields.nth(18)?.parse().ok()?;
    Some(Stat { start_time, ended: matches!(state, "Z" | "X" | "x") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs_and_its_number_at_another_time_does_not() {
        let (pid, start_time) = this_process();
        assert!(process_alive(pid, start_time));
        assert!(!process_alive(pid, start_time + 1));
        assert!(!process_alive(u32::MAX, start_time));
        assert!(!process_alive(0, 0));
    }

    #[test]
    fn a_name_may_look_like_fields() {
        let rest = (4..=21).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let line = format!("7 (a) S 1 (b)) Z {rest} 4711 23 24\n");
        assert_eq!(parse(line.as_bytes()), Some(Stat { start_time: 4711, ended: true }));
        assert_eq!(parse(b"7 (cut"), None);
        assert_eq!(parse(b"7 (cut) S 1 2"), None);
    }
}
