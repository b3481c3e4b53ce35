//! Processes started by a test: each ends with its guard, also if the test fails.
//!
//! A daemon's log goes to a file, since a pipe would fill up unread. A process starts in the network
//! namespace of the calling thread.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::{Deref, DerefMut};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::{Place, Ran, ran, words};

/// A process. Dropping it kills it, even if it is stopped, and waits for its end.
pub struct Running(Option<Child>);

impl Running {
    pub fn start(command: &mut Command) -> Running {
        Running(Some(command.spawn().expect("the program runs")))
    }

    pub fn signal(&self, signal: &str) {
        send(signal, self.id());
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ran {
        let child = self.0.take().expect("it is taken here only");
        ran(child.wait_with_output().expect("it ends"))
    }

    /// Waits for its end, which must come within `time`.
    pub fn end_within(mut self, time: Duration) -> Ran {
        let child = self.0.take().expect("it is taken here only");
        let process = child.id();
        let (sender, ended) = mpsc::channel();
        // Its output is read meanwhile.
        thread::spawn(move || sender.send(child.wait_with_output().expect("it ends")));
        match ended.recv_timeout(time) {
            Ok(output) => ran(output),
            Err(_) => {
                send("-KILL", process);
                panic!("it hangs for {time:?}: {:?}", ended.recv().map(ran));
            }
        }
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().expect("only its end takes it")
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().expect("only its end takes it")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A running memory server or compute server.
pub struct Daemon {
    pub process: Running,
    /// The address it listens at.
    pub address: String,
    _stdout: BufReader<ChildStdout>,
}

impl Daemon {
    /// Starts one; `--listen HERE` stands for a free port of the place.
    pub fn start(place: &Place, arguments: &str) -> Daemon {
        let arguments = &arguments.replace("--listen HERE", &format!("--listen {}:0", place.address));
        let name = arguments.split(' ').next().expect("the command");
        let log = File::options().create(true).append(true).open(place.path(&format!("{name}.log")));
        let mut command = place.command(words(arguments));
        command.stdout(Stdio::piped()).stderr(log.expect("the file can be written"));
        let mut process = Running::start(&mut command);
        let mut stdout = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut said = String::new();
        stdout.read_line(&mut said).expect("text");
        let address = said.split(" at ").nth(1).and_then(|rest| rest.split([',', '\n']).next());
        let address =
            address.unwrap_or_else(|| panic!("{arguments} is not ready: {}", Self::log_of(place, name)));
        Daemon { process, address: address.to_owned(), _stdout: stdout }
    }

    pub fn memory_server(place: &Place, arguments: &str) -> Daemon {
        Daemon::start(place, &format!("memory-server --listen HERE --size 128MiB {arguments}"))
    }

    /// Log of all daemons with this name.
    pub fn log_of(place: &Place, name: &str) -> String {
        std::fs::read_to_string(place.path(&format!("{name}.log"))).unwrap_or_default()
    }

    /// The pool of this memory server.
    pub fn pool(&self) -> String {
        format!("tcp://{}", self.address)
    }
}

pub fn send(signal: &str, process: u32) {
    let status = Command::new("kill").args([signal, &process.to_string()]).status().expect("there is kill");
    assert!(status.success());
}
