//! `pando up` for tests: it is ready once all its processes are, and prints their addresses.

use std::io::{BufRead, BufReader};
use std::process::ChildStdout;

use super::Place;
use super::running::Running;

/// A running `pando up` and the lines it printed.
pub struct Up {
    pub child: Running,
    pub said: Vec<String>,
    _stdout: BufReader<ChildStdout>,
}

impl Up {
    pub fn start(place: &Place, arguments: &str) -> Up {
        let mut child = place.start(&format!("up --port 0 {arguments}"));
        let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut said = Vec::new();
        while said.last().is_none_or(|line: &String| line != "Ctrl-C stops it") {
            let mut line = String::new();
            if stdout.read_line(&mut line).expect("text") == 0 {
                panic!("it ended: {:?}", child.end());
            }
            said.push(line.trim_end().to_owned());
        }
        Up { child, said, _stdout: stdout }
    }

    pub fn pool(&self) -> String {
        let line = self.said.iter().find_map(|line| line.strip_prefix("the pool is "));
        line.and_then(|line| line.split(' ').next()).expect("it says where the pool is").to_owned()
    }

    /// Addresses of the compute servers' operation ports.
    pub fn ports(&self) -> Vec<String> {
        let at = |line: &String| {
            let rest = line.strip_prefix("compute server: ")?.split(" at ").nth(1)?;
            Some(rest.split(',').next().unwrap_or(rest).to_owned())
        };
        self.said.iter().filter_map(at).collect()
    }

    /// Addresses of the metrics of all processes.
    pub fn metrics(&self) -> Vec<String> {
        let after =
            |line: &String| Some(line.split("http://").nth(1)?.trim_end_matches("/metrics").to_owned());
        self.said.iter().filter_map(after).collect()
    }

    pub fn signal(&self, signal: &str) {
        self.child.signal(signal);
    }

    /// Waits for its end; returns the status and standard error.
    pub fn end(self) -> (i32, String) {
        let ended = self.child.end();
        (ended.status, ended.stderr)
    }
}
