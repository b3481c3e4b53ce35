//! Instructions per operation, counted by single-stepping; other load on the machine does not change them.
//!
//! A child process loads one map and raises a signal where an operation begins and where it has ended. In
//! between, the parent steps it through single instructions (`ptrace`) and counts them. Nothing is emulated,
//! so the child uses all features of the processor. Only the child's main thread is traced; it does all the
//! work.

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
use crate::maps::Entry;
use crate::measure::{Job, Phase};

/// Raised by the child at the start and at the end of the counted code.
const MARK: Signal = Signal::SIGUSR1;

/// Settings of a count.
#[derive(Clone, Debug)]
pub struct Count {
    pub map: Entry,
    pub keys: u64,
    pub space: KeySpace,
    pub distribution: Distribution,
    pub scan_len: usize,
    pub multi_get_len: usize,
    /// Number of counted operations of each kind; of scans, a sixteenth.
    pub operations: u64,
}

fn operations(of_points: u64, phase: Phase) -> u64 {
    if phase == Phase::Scan { of_points.div_ceil(16) } else { of_points }
}

impl Count {
    /// The child's part: two runs per phase between marks, the second with twice as many operations. Their
    /// difference contains no cost that occurs once per run.
    ///
    /// # Errors
    /// If the map cannot be loaded or gives a wrong answer.
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
            // A run without marks, so that one-time work is not counted.
            run(2 * operations)?;
            for limit in [operations, 2 * operations] {
                raise(MARK)?;
                run(limit)?;
                raise(MARK)?;
            }
        }
        Ok(())
    }

    /// Counts instructions per operation for each phase. Starts a child with `arguments`, which must make it
    /// call [`Count::child`].
    ///
    /// # Errors
    /// If the child cannot be started or traced, or fails.
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

/// Waits for the child's next mark and counts instructions up to the mark after it, at which the child stays.
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

/// Waits until the child stops. Returns `None` at a mark, and any other signal for delivery to the child.
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
