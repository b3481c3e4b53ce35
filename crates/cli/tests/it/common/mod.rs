//! Runs the built program in a temporary directory.

pub mod hosts;
pub mod running;
pub mod up;

use std::ffi::OsStr;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use running::Running;
use serde_json::Value;
use tempfile::TempDir;

/// Result of a run of the program.
#[derive(Debug)]
pub struct Ran {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

/// A temporary directory to run the program in, and a loopback address for its daemons.
pub struct Place {
    directory: TempDir,
    /// So that no daemon of another place gets the port of one that was killed.
    pub address: Ipv4Addr,
}

impl Place {
    pub fn new() -> Place {
        static PLACES: AtomicU16 = AtomicU16::new(1);
        let [high, low] = PLACES.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let address = match cfg!(target_os = "linux") {
            true => Ipv4Addr::new(127, 1 + (std::process::id() % 250) as u8, high, low),
            false => Ipv4Addr::LOCALHOST,
        };
        Place { directory: tempfile::tempdir().expect("a temporary directory"), address }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).expect("the file can be written");
    }

    /// Writes a file accessible only to its owner.
    pub fn write_secret(&self, name: &str, content: impl AsRef<[u8]>) {
        self.write(name, content);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(self.path(name), mode).expect("it is ours");
    }

    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let program = env!("CARGO_BIN_EXE_pando");
        let mut command = match ignores_hangup() {
            false => Command::new(program),
            true => {
                let mut command = Command::new("env");
                command.args(["--default-signal=HUP", program]);
                command
            }
        };
        command.args(arguments).current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }

    /// Starts the program without waiting for it.
    pub fn start(&self, arguments: &str) -> Running {
        let mut command = self.command(words(arguments));
        Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Runs the program. Blanks separate arguments; `·` stands for a blank within one.
    pub fn run(&self, arguments: &str) -> Ran {
        ran(self.command(words(arguments)).output().expect("the program runs"))
    }

    /// [`Place::run`] with standard input.
    pub fn feed(&self, arguments: &str, input: &str) -> Ran {
        let mut child = self
            .command(words(arguments))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let mut stdin = child.stdin.take().expect("it is piped");
        let input = input.to_owned();
        let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output().expect("the program ends");
        writer.join().expect("no panic").expect("the program reads its input");
        ran(output)
    }

    /// Standard output of a run that must succeed.
    pub fn ok(&self, arguments: &str) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.status, 0, "pando {arguments}: {ran:?}");
        ran.stdout
    }

    /// Standard error of a run that must fail with this status and one sentence.
    pub fn refused(&self, arguments: &str, status: i32) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.status, status, "pando {arguments}: {ran:?}");
        assert_eq!(ran.stdout, "", "pando {arguments}");
        let lines: Vec<&str> = ran.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "pando {arguments}: one line, not {lines:?}");
        assert!(lines[0].starts_with("pando: "), "pando {arguments}: {lines:?}");
        ran.stderr
    }

    /// Checks that an unclean pool is refused as such.
    pub fn check_unclean(&self, arguments: &str) {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            let ran = self.run(&format!("check {arguments}"));
            // Over a network the process counts as attached until it has been silent for 10 s.
            if ran.status == 1 && ran.stderr.contains("not closed cleanly") {
                assert_eq!((ran.stderr.lines().count(), &*ran.stdout), (1, ""), "{ran:?}");
                return;
            }
            assert!(ran.stdout.contains("not checked:") && Instant::now() < until, "{ran:?}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// The only index of the pool, from the output of `stats`.
    pub fn index_stats(&self, pool: &str) -> Value {
        self.stats(pool)["indexes"][0].clone()
    }

    pub fn stats(&self, pool: &str) -> Value {
        serde_json::from_str(&self.ok(&format!("stats --pool {pool} --json"))).expect("valid JSON")
    }

    /// Bytes allocated on all memory servers of a pool.
    pub fn allocated(&self, pool: &str) -> u64 {
        let stats = self.stats(pool);
        let servers = stats["servers"].as_array().expect("a list");
        servers.iter().map(|server| server["bytes_allocated"].as_u64().expect("a number")).sum()
    }

    /// Bytes of all chunks in use on all memory servers of a pool.
    pub fn in_chunks(&self, pool: &str) -> u64 {
        let stats = self.stats(pool);
        let servers = stats["servers"].as_array().expect("a list");
        servers.iter().map(|server| server["bytes_in_chunks"].as_u64().expect("a number")).sum()
    }

    /// The distinct lines of a file, sorted as bytes by the system's `sort`.
    pub fn sorted(&self, name: &str) -> String {
        let output = Command::new("sort")
            .arg("-u")
            .arg(self.path(name))
            .env("LC_ALL", "C")
            .output()
            .expect("there is a sort");
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("the tests' files are UTF-8")
    }
}

/// Whether these tests run under `nohup`, so that child processes ignore SIGHUP too.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("it is always there");
    u64::from_str_radix(mask.trim(), 16).expect("a mask") & 1 == 1
}

pub fn words(arguments: &str) -> impl Iterator<Item = String> {
    arguments.split_whitespace().map(|word| word.replace('·', " "))
}

pub fn ran(output: std::process::Output) -> Ran {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    Ran {
        status: output.status.code().unwrap_or(-1),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Unordered words, some of them prefixes of others, not all ASCII.
pub fn word_list(count: usize) -> String {
    let syllables = ["a", "an", "do", "pan", "as", "pen", "ü", "trem", "ul", "oi", "des", "b", "ee", "ch"];
    let mut text = String::new();
    for i in 0..count {
        let mut rest = i.wrapping_mul(2_654_435_761) % 7_529_536;
        let start = text.len();
        while rest > 0 || text.len() == start {
            text.push_str(syllables[rest % syllables.len()]);
            rest /= syllables.len();
        }
        text.push('\n');
    }
    text
}
