//! Instructions per operation, counted one by one: figures that no other work on the machine disturbs.
//!
//! A child process loads one map and says by a signal when an operation begins and when it has ended; in between,
//! its parent lets it go one instruction at a time (`ptrace`) and counts. Nothing is emulated, so the processor's
//! own features count as they are. Only the child's main thread is watched, which does all the work.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use pando_workload::{Distribution, KeySpace};

use crate::BATCH;
use crate::data::DataSet;
use crate::driver::Phase;
use crate::maps::Entry;
use crate::measure::Job;

/// Raised by the child where counting begins and where it ends.
const MARK: Signal = Signal::SIGUSR1;

/// What to count.
#[derive(Clone, Debug)]
pub struct Count {
    pub map: Entry,
    pub keys: u64,
    pub space: KeySpace,
    pub distribution: Distribution,
    pub scan_len: usize,
    pub multi_get_len: usize,
    /// Operations of each kind that are counted; of scans, a sixteenth.
    pub operations: u64,
}

fn operations(of_points: u64, phase: Phase) -> u64 {
    if phase == Phase::Scan { of_points.div_ceil(16) } else { of_points }
}

impl Count {
    /// What the child does: two runs per phase between marks, the second of twice as many operations.
    ///
    /// # Errors
    /// When the map cannot be loaded or gives a wrong answer.
    pub fn child(&self) -> anyhow::Result<()> {
        ptrace::traceme().context("cannot be watched (ptrace)")?;
        let data = DataSet::new(self.space, self.keys);
        let map = (self.map.load)(&data.pairs, true)?;
        let count = usize::try_from(2 * self.operations)?.next_multiple_of(BATCH);
        let draws = data.draws(self.distribution, count, 0, 1)?;
        let scans = data.draws(self.distribution, count, self.scan_len, 1)?;
        for phase in Phase::ALL {
            let operations = operations(self.operations, phase);
            let draws = if phase == Phase::Scan { &scans } else { &draws };
            let run = |limit| {
                map.run(&Job {
                    phase,
                    data: &data,
                    draws,
                    first: 0,
                    scan_len: self.scan_len,
                    multi_get_len: self.multi_get_len,
                    sequence: 1,
                    threads: 1,
                    time: Duration::MAX,
                    limit,
                })
            };
            // Once without being watched, so that nothing happens for the first time.
            run(2 * operations)?;
            for limit in [operations, 2 * operations] {
                raise(MARK)?;
                run(limit)?;
                raise(MARK)?;
            }
        }
        Ok(())
    }

    /// Instructions per operation of each phase, by a child that is started with `arguments` and calls
    /// [`Count::child`].
    ///
    /// # Errors
    /// When the child cannot be started or watched, or fails.
    pub fn run(&self, arguments: &[String]) -> anyhow::Result<[f64; Phase::ALL.len()]> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a process to count in")?;
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        let mut counts = [0.0; Phase::ALL.len()];
        for (count, phase) in counts.iter_mut().zip(Phase::ALL) {
            let [once, twice] = [between_marks(pid)?, {
                ptrace::cont(pid, None)?;
                between_marks(pid)?
            }];
            ptrace::cont(pid, None)?;
            *count = twice.saturating_sub(once) as f64 / operations(self.operations, phase) as f64;
        }
        ensure!(child.wait()?.success(), "the process to count in failed");
        Ok(counts)
    }
}

/// Waits for the child's next mark and counts its instructions from there to the one after, where it stays.
fn between_marks(pid: Pid) -> anyhow::Result<u64> {
    while let Some(other) = next_stop(pid)? {
        ptrace::cont(pid, other)?;
    }
    let mut count = 0;
    ptrace::step(pid, None)?;
    while next_stop(pid)?.is_some() {
        count += 1;
        ptrace::step(pid, None)?;
    }
    Ok(count)
}

/// Waits until the child stops; for anything but a mark it is the signal that it stopped for.
fn next_stop(pid: Pid) -> anyhow::Result<Option<Signal>> {
    match waitpid(pid, None)? {
        WaitStatus::Stopped(_, MARK) => Ok(None),
        WaitStatus::Stopped(_, signal) => Ok(Some(signal)),
        _ => bail!("the process to count in has ended"),
    }
}

/// Markdown for the counts of several maps.
pub fn markdown(counts: &[(&'static str, [f64; Phase::ALL.len()])], first: &Count) -> String {
    let mut out = format!(
        "### Instructions per operation: {} {} keys, {}, 1 thread\n\n\
         | map | lookup | multi-get of {}, per key | update | scan of {} |\n|---|---|---|---|---|\n",
        first.keys, first.space, first.distribution, first.multi_get_len, first.scan_len
    );
    for (name, phases) in counts {
        let cells: Vec<String> = phases.iter().map(|count| format!("{count:.0}")).collect();
        out += &format!("| {name} | {} |\n", cells.join(" | "));
    }
    out
}
