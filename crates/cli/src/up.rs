//! `pando up`: starts a cluster of processes on this host with one command.
//!
//! Memory servers start first. Then the pool and its index are created if missing, then compute servers start
//! and share the partitions of the index. Standard output tells the addresses and the next commands. On an
//! interrupt, or when a process ends by itself, compute servers are stopped first, so that their caches are
//! written back, then memory servers. With `--standby`, a compute server that is killed has an heir, and a new standby
//! is started instead.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write, stderr, stdout};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::Args;
use pando::{
    Access, Backing, Cluster, Config, Create, Durability, IndexOptions, RegisterAddress, VerbsOptions,
};
use pando_lab::units::{self, parse_nanos, parse_size};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::args::{AccessArgs, parse_durability};
use crate::daemon::{check_listening, check_secrets};
use crate::failure::Failure;
use crate::pool;
use crate::signals::Interrupt;

/// Interval between checks of the processes.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Args, Debug)]
pub struct UpArgs {
    /// A TOML file with the same settings, their names with _ in place of -; what is said here as well counts
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// What a cluster is to be like.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Memory servers [default: 2, with --replicas 3, with --register as many as copies]
    #[arg(long, value_name = "N")]
    memory_servers: Option<usize>,
    /// Compute servers [default: 2, with --durability process 1]
    #[arg(long, value_name = "N")]
    compute_servers: Option<usize>,
    /// What survives the end of a compute server: off, or process (all that was answered) [default: off]
    #[arg(long, value_name = "WHAT")]
    durability: Option<String>,
    /// Start one more compute server, which takes over when the other one ends (with --durability process)
    #[arg(long)]
    #[serde(default)]
    standby: bool,
    /// Copies of all memory; with 2, a memory server may be lost, and is started again [default: 1]
    #[arg(long, value_name = "N")]
    replicas: Option<usize>,
    /// A register of the copies outside the memory servers: etcd://HOST:PORT[,HOST:PORT...]/PREFIX [default: they hold it together]
    #[arg(long, value_name = "URL")]
    register: Option<String>,
    /// Bytes of each memory server [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Where memory is: anon or hugetlb, which end with the processes, or a directory with a file for each [default: anon]
    #[arg(long, value_name = "anon|hugetlb|DIR")]
    backing: Option<PathBuf>,
    /// Threads of each memory server [default: 1]
    #[arg(long, value_name = "N")]
    memory_cores: Option<usize>,
    /// Threads of each compute server [default: 1]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Bytes of each compute server's cache [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    cache: Option<String>,
    /// The index, which is made if there is none [default: main]
    #[arg(long, value_name = "NAME")]
    index: Option<String>,
    /// All keys of a new index have this many bytes (with --value-size)
    #[arg(long, value_name = "B", requires = "value_size")]
    key_size: Option<usize>,
    /// All values of a new index have this many bytes (with --key-size)
    #[arg(long, value_name = "B", requires = "key_size")]
    value_size: Option<usize>,
    /// Where to listen [default: 127.0.0.1]
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Port of the first memory server, the others follow, then compute servers; 0 for any that are free [default: 7100]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Port for metrics of the first memory server, the others follow, then compute servers; 0 for any [default: none]
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<u16>,
    /// A file with what processes must know to take part [default: nothing]
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// A file with what clients of compute servers must know, if there is a secret for processes [default: nothing]
    #[arg(long, value_name = "FILE")]
    operation_secret_file: Option<PathBuf>,
    /// Listen on a network without a secret, so that everybody who can connect is let in
    #[arg(long)]
    #[serde(default)]
    insecure: bool,
    /// How long an operation of a compute server may take; a memory server has half of it to answer [default: 10s]
    #[arg(long, value_name = "TIME")]
    deadline: Option<String>,
}

impl Settings {
    /// What survives the end of a compute server, if that fits the other settings.
    fn durability(&self) -> Result<Durability, Failure> {
        let text = self.durability.as_deref().unwrap_or("off");
        let durability = parse_durability(text).map_err(Failure::bad_input)?;
        match durability {
            Durability::Off if self.standby => Err(Failure::bad_input(
                "a standby takes over only what is in a log; --durability process keeps one",
            )),
            _ => Ok(durability),
        }
    }

    /// The register outside the memory servers, if that fits the other settings.
    fn register(&self) -> Result<Option<RegisterAddress>, Failure> {
        let parsed = self.register.as_deref().map(str::parse).transpose().map_err(Failure::bad_input)?;
        match parsed {
            Some(_) if self.replicas.unwrap_or(1) < 2 => {
                Err(Failure::bad_input("a register is for copies of memory; --replicas 2 makes them"))
            }
            parsed => Ok(parsed),
        }
    }

    /// Merges two settings; these take precedence over `others`.
    fn or(self, others: Self) -> Self {
        Self {
            memory_servers: self.memory_servers.or(others.memory_servers),
            compute_servers: self.compute_servers.or(others.compute_servers),
            durability: self.durability.or(others.durability),
            standby: self.standby || others.standby,
            replicas: self.replicas.or(others.replicas),
            register: self.register.or(others.register),
            memory: self.memory.or(others.memory),
            backing: self.backing.or(others.backing),
            memory_cores: self.memory_cores.or(others.memory_cores),
            threads: self.threads.or(others.threads),
            cache: self.cache.or(others.cache),
            index: self.index.or(others.index),
            key_size: self.key_size.or(others.key_size),
            value_size: self.value_size.or(others.value_size),
            host: self.host.or(others.host),
            port: self.port.or(others.port),
            metrics_port: self.metrics_port.or(others.metrics_port),
            secret_file: self.secret_file.or(others.secret_file),
            operation_secret_file: self.operation_secret_file.or(others.operation_secret_file),
            insecure: self.insecure || others.insecure,
            deadline: self.deadline.or(others.deadline),
        }
    }
}

/// Settings with all defaults applied.
struct Plan {
    memory_servers: usize,
    compute_servers: usize,
    durability: Durability,
    standby: bool,
    replicas: usize,
    register: Option<RegisterAddress>,
    memory: u64,
    backing: Backing,
    memory_cores: usize,
    threads: usize,
    cache: u64,
    index: String,
    options: IndexOptions,
    host: String,
    port: u16,
    metrics_port: Option<u16>,
    insecure: bool,
    access: Access,
    /// The options as given, to be passed to the processes.
    said: AccessArgs,
}

impl Plan {
    fn new(settings: Settings) -> Result<Self, Failure> {
        let size = |text: Option<String>, otherwise: &str| {
            let text = text.unwrap_or_else(|| otherwise.to_owned());
            parse_size(&text).map_err(|error| Failure::bad_input(format_args!("`{text}`: {error}")))
        };
        let durability = settings.durability()?;
        let compute_servers = if durability == Durability::Off { 2 } else { 1 };
        let replicas = settings.replicas.unwrap_or(1);
        let register = settings.register()?;
        let memory_servers = memory_servers(settings.memory_servers, replicas, register.is_some())?;
        let options = match (settings.key_size, settings.value_size) {
            (Some(key_size), Some(value_size)) => IndexOptions::fixed(key_size, value_size),
            (None, None) => IndexOptions::bytes(),
            _ => {
                return Err(Failure::bad_input(
                    "the size of keys and that of values are given both, or neither",
                ));
            }
        };
        let deadline =
            settings.deadline.as_deref().map(parse_nanos).transpose().map_err(Failure::bad_input)?;
        let verbs = VerbsOptions::default();
        let Settings { secret_file, operation_secret_file, insecure, .. } = settings;
        let access = AccessArgs { secret_file, operation_secret_file, deadline, verbs };
        let host = settings.host.unwrap_or_else(|| "127.0.0.1".to_owned());
        check(&access, &host, insecure)?;
        Ok(Self {
            memory_servers,
            compute_servers: at_least_one(
                settings.compute_servers.unwrap_or(compute_servers),
                "compute server",
            )?,
            durability,
            standby: settings.standby,
            replicas,
            register,
            memory: size(settings.memory, "1GiB")?,
            backing: match settings.backing {
                None => Backing::Anonymous,
                Some(backing) if backing == Path::new("anon") => Backing::Anonymous,
                Some(backing) if backing == Path::new("hugetlb") => Backing::HugePages,
                Some(directory) => Backing::File(directory),
            },
            memory_cores: settings.memory_cores.unwrap_or(1),
            threads: settings.threads.unwrap_or(1),
            cache: size(settings.cache, "256MiB")?,
            index: settings.index.unwrap_or_else(|| "main".to_owned()),
            options,
            host,
            port: settings.port.unwrap_or(7100),
            metrics_port: settings.metrics_port,
            insecure,
            // Read the secrets before anything is started.
            access: pool::access(&access)?,
            said: access,
        })
    }

    fn address(&self, first: u16, number: usize) -> Result<String, Failure> {
        let host = &self.host;
        if first == 0 {
            return Ok(format!("{host}:0"));
        }
        let port = u16::try_from(usize::from(first) + number)
            .map_err(|_| Failure::bad_input(format_args!("there are not as many ports from {first} on")))?;
        Ok(format!("{host}:{port}"))
    }

    /// Command of a process of this program.
    fn command(&self, name: &str, metrics: usize) -> Result<Command, Failure> {
        let exe = std::env::current_exe()
            .map_err(|error| Failure::failed(format_args!("this program cannot be found: {error}")))?;
        let mut command = Command::new(exe);
        command.args([name, "--with-parent"]);
        if let Some(first) = self.metrics_port {
            command.args(["--metrics", &self.address(first, metrics)?]);
        }
        if let Some(file) = &self.said.secret_file {
            command.arg("--secret-file").arg(file);
        }
        if self.insecure {
            command.arg("--insecure");
        }
        Ok(command)
    }
}

fn at_least_one(number: usize, what: &str) -> Result<usize, Failure> {
    match number {
        0 => Err(Failure::bad_input(format_args!("a cluster needs one {what} at least"))),
        number => Ok(number),
    }
}

/// Number of memory servers: as many as were `asked` for, if copies are of use with them.
fn memory_servers(asked: Option<usize>, replicas: usize, has_register: bool) -> Result<usize, Failure> {
    let default = match replicas {
        _ if has_register => replicas,
        1 => 2,
        _ => 3,
    };
    match at_least_one(asked.unwrap_or(default), "memory server")? {
        few if few < 3 && replicas > 1 && !has_register => Err(Failure::bad_input(format_args!(
            "--memory-servers {few} with --replicas {replicas}: more than half of them must answer, so none may be lost; \
             name three at least, or a --register"
        ))),
        enough => Ok(enough),
    }
}

/// Checks secrets and addresses before anything is started.
fn check(access: &AccessArgs, host: &str, insecure: bool) -> Result<(), Failure> {
    let memory = pool::secret(access.secret_file.as_deref())?;
    let operations = pool::secret(access.operation_secret_file.as_deref())?;
    check_secrets(&memory, &operations, insecure)?;
    let listen = format!("{host}:0");
    check_listening(&listen, &memory, "--secret-file", insecure)?;
    check_listening(&listen, &operations, "--operation-secret-file", insecure)
}

/// A running process and the line that it printed, if that is known.
struct Process {
    name: String,
    child: Child,
    said: String,
    /// Threads that pass on its log, and what it prints later.
    log: Vec<JoinHandle<()>>,
}

impl Process {
    /// Starts the process and waits until it reports that it is ready.
    fn start(name: String, command: Command) -> Result<Self, Failure> {
        let mut process = Self::spawn(name, command)?;
        let stdout = process.child.stdout.take().expect("it is piped");
        match BufReader::new(stdout).lines().next() {
            Some(Ok(said)) => Ok(Self { said, ..process }),
            _ => {
                // The process has logged the reason.
                let _ = process.end();
                Err(Failure::failed(format_args!("{} did not start", process.name)))
            }
        }
    }

    /// Starts a process that is ready only once it has taken over, and tells that then.
    fn start_standby(name: String, command: Command) -> Result<Self, Failure> {
        let mut process = Self::spawn(name, command)?;
        let lines = process.child.stdout.take().expect("it is piped");
        process.log.push(thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                // The reader may be gone.
                let _ = writeln!(stdout(), "{line}");
            }
        }));
        Ok(process)
    }

    fn spawn(name: String, mut command: Command) -> Result<Self, Failure> {
        // Ctrl-C must reach only this process, which stops the others in order.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| Failure::failed(format_args!("{name} cannot be started: {error}")))?;
        let errors = child.stderr.take().expect("it is piped");
        let prefix = name.clone();
        let log = vec![thread::spawn(move || pass_on(&prefix, errors))];
        Ok(Self { name, child, said: String::new(), log })
    }

    /// Asks the process to stop.
    fn terminate(&self) {
        // It may have just ended.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    /// Waits until the process has ended and its log was passed on.
    fn end(&mut self) -> std::io::Result<ExitStatus> {
        // Keep standard input open: `wait` would close it, and the process would take its parent for gone.
        let _stdin = self.child.stdin.take();
        let ended = self.child.wait();
        for log in self.log.drain(..) {
            // The thread does not panic.
            let _ = log.join();
        }
        ended
    }

    /// Whether it was ended by a signal.
    fn was_killed(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_some_and(|status| status.code().is_none()))
    }

    fn has_ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(format!("{} has ended by itself ({status})", self.name)),
            Err(error) => Some(format!("{} cannot be watched: {error}", self.name)),
        }
    }
}

/// Writes the log lines of a process, each with the name of the process.
fn pass_on(name: &str, lines: impl Read) {
    for line in BufReader::new(lines).lines() {
        let Ok(line) = line else { return };
        // The reader may be gone.
        let _ = writeln!(stderr(), "[{name}] {line}");
    }
}

/// Processes in order of their start. Compute servers are stopped first, then memory servers.
#[derive(Default)]
struct Running {
    memory: Vec<Process>,
    compute: Vec<Process>,
}

impl Running {
    /// Stops all processes; returns the failures.
    fn stop(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        for kind in [&mut self.compute, &mut self.memory] {
            kind.iter().for_each(Process::terminate);
            for mut process in kind.drain(..) {
                match process.end() {
                    Ok(status) if status.success() => {}
                    Ok(status) => wrong.push(format!("{} ended with {status}", process.name)),
                    Err(error) => wrong.push(format!("{}: {error}", process.name)),
                }
            }
        }
        wrong
    }

    /// The first process that has ended and is not replaced.
    fn who_ended(&mut self, plan: &Plan) -> Option<String> {
        let compute = self.compute.iter_mut().map(|process| (process, plan.standby));
        let memory = self.memory.iter_mut().map(|process| (process, plan.replicas > 1));
        let mut all = compute.chain(memory);
        all.find_map(
            |(process, replaced)| if replaced && process.was_killed() { None } else { process.has_ended() },
        )
    }

    /// Starts each memory server again that was killed, at its address.
    fn replace_memory(&mut self, plan: &Plan, addresses: &[String]) -> Result<(), Failure> {
        for ((number, process), address) in self.memory.iter_mut().enumerate().zip(addresses) {
            if process.was_killed() {
                // The reader may be gone.
                let _ = writeln!(stderr(), "{} was killed; it is started again", process.name);
                // It has told what it had to.
                let _ = process.end();
                *process = start_memory_server(plan, number, address)?;
            }
        }
        Ok(())
    }

    /// Starts a new standby in place of each compute server that was killed.
    fn replace_compute(
        &mut self,
        plan: &Plan,
        addresses: &[String],
        partitions: usize,
    ) -> Result<(), Failure> {
        for (number, process) in self.compute.iter_mut().enumerate() {
            if !process.was_killed() {
                continue;
            }
            // The reader may be gone.
            let _ = writeln!(stderr(), "{} was killed; a new standby is started", process.name);
            // It has told what it had to.
            let _ = process.end();
            *process = start_standby(plan, addresses, partitions, number)?;
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

pub fn run(args: &UpArgs) -> Result<(), Failure> {
    let settings = match &args.config {
        Some(path) => args.settings.clone().or(read(path)?),
        None => args.settings.clone(),
    };
    let plan = Plan::new(settings)?;
    let interrupt = Interrupt::listen()?;
    let mut running = Running::default();
    let addresses = start_memory_servers(&plan, &mut running)?;
    let partitions = make_index(&plan, &addresses)?;
    start_compute_servers(&plan, &addresses, partitions, &mut running)?;
    for number in (plan.compute_servers..2 * plan.compute_servers).filter(|_| plan.standby) {
        running.compute.push(start_standby(&plan, &addresses, partitions, number)?);
    }
    // The reader may be gone.
    let _ = stdout().write_all(summary(&plan, &addresses, &running).as_bytes());
    let ended = loop {
        if interrupt.wanted() {
            break None;
        }
        if plan.standby {
            running.replace_compute(&plan, &addresses, partitions)?;
        }
        if plan.replicas > 1 {
            running.replace_memory(&plan, &addresses)?;
        }
        if let Some(who) = running.who_ended(&plan) {
            break Some(who);
        }
        thread::sleep(LOOK);
    };
    let wrong = running.stop();
    match ended.into_iter().chain(wrong).reduce(|all, one| format!("{all}; {one}")) {
        None => Ok(()),
        Some(wrong) => Err(Failure::failed(wrong)),
    }
}

fn read(path: &Path) -> Result<Settings, Failure> {
    let wrong =
        |error: &dyn std::fmt::Display| Failure::bad_input(format_args!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(&error))?;
    toml::from_str(&text).map_err(|error| wrong(&error))
}

/// Starts the memory servers; returns their addresses.
fn start_memory_servers(plan: &Plan, running: &mut Running) -> Result<Vec<String>, Failure> {
    if let Backing::File(directory) = &plan.backing {
        std::fs::create_dir_all(directory)
            .map_err(|error| Failure::bad_input(format_args!("{}: {error}", directory.display())))?;
    }
    let mut addresses = Vec::new();
    for number in 0..plan.memory_servers {
        let process = start_memory_server(plan, number, &plan.address(plan.port, number)?)?;
        let address = process.said.split(" at ").nth(1).and_then(|rest| rest.split(',').next());
        addresses.push(address.expect("a memory server says where it listens").to_owned());
        running.memory.push(process);
    }
    Ok(addresses)
}

fn start_memory_server(plan: &Plan, number: usize, listen: &str) -> Result<Process, Failure> {
    let mut command = plan.command("memory-server", number)?;
    command.args(["--listen", listen]);
    command.args(["--size", &plan.memory.to_string(), "--cores", &plan.memory_cores.to_string()]);
    if let Some(register) = &plan.register {
        command.args(["--register", &register.to_string()]);
    }
    match &plan.backing {
        Backing::Anonymous => {}
        Backing::HugePages => _ = command.args(["--backing", "hugetlb"]),
        Backing::File(directory) => {
            _ = command.arg("--backing").arg(directory.join(format!("memory-{number}.pando")));
        }
    }
    Process::start(format!("memory server {number}"), command)
}

/// Creates the pool and its index if missing; returns the number of partitions.
fn make_index(plan: &Plan, addresses: &[String]) -> Result<usize, Failure> {
    let config = Config::tcp(addresses)
        .access(plan.access.clone())
        .create(Create::IfMissing)
        .compute_servers(plan.compute_servers)
        .replicas(plan.replicas)
        .cache(1 << 20);
    pool::with_cluster(config, |cluster: &Cluster| {
        if !cluster.index_names()?.contains(&plan.index) {
            cluster.create_index(&plan.index, &plan.options)?;
        }
        let partitions = cluster.index_info(&plan.index)?.boundaries.len() + 1;
        match partitions < plan.compute_servers {
            true => Err(Failure::bad_input(format_args!(
                "index {} has {partitions} partitions, which are too few for {} compute servers",
                plan.index, plan.compute_servers
            ))),
            false => Ok(partitions),
        }
    })
}

fn start_compute_servers(
    plan: &Plan,
    addresses: &[String],
    partitions: usize,
    running: &mut Running,
) -> Result<(), Failure> {
    for number in 0..plan.compute_servers {
        let command = compute_server(plan, addresses, partitions, number)?;
        running.compute.push(Process::start(format!("compute server {number}"), command)?);
    }
    Ok(())
}

/// Starts a compute server that takes over when the owner of its keys ends.
fn start_standby(
    plan: &Plan,
    addresses: &[String],
    partitions: usize,
    number: usize,
) -> Result<Process, Failure> {
    let mut command = compute_server(plan, addresses, partitions, number)?;
    command.arg("--standby");
    Process::start_standby(format!("compute server {number}"), command)
}

/// Command of a compute server for its share of the partitions. Those beyond the first are standbys, in the same order.
fn compute_server(
    plan: &Plan,
    addresses: &[String],
    partitions: usize,
    number: usize,
) -> Result<Command, Failure> {
    let mut command = plan.command("compute-server", plan.memory_servers + number)?;
    command.args(["--listen", &plan.address(plan.port, plan.memory_servers + number)?]);
    command.args(["--memory", &addresses.join(","), "--index", &plan.index]);
    command.args(["--threads", &plan.threads.to_string(), "--cache", &plan.cache.to_string()]);
    command.args(["--durability", &plan.durability.to_string()]);
    if plan.compute_servers > 1 || plan.durability == Durability::Off {
        let own = share(partitions, plan.compute_servers, number % plan.compute_servers);
        let own: Vec<String> = own.map(|partition| partition.to_string()).collect();
        command.args(["--partition", &own.join(",")]);
    }
    if let Some(file) = &plan.said.operation_secret_file {
        command.arg("--operation-secret-file").arg(file);
    }
    if let Some(deadline) = plan.said.deadline {
        command.args(["--deadline", &format!("{deadline}ns")]);
    }
    Ok(command)
}

/// The range of `things` items that belongs to owner `number` of `owners`.
fn share(things: usize, owners: usize, number: usize) -> Range<usize> {
    things * number / owners..things * (number + 1) / owners
}

fn summary(plan: &Plan, addresses: &[String], running: &Running) -> String {
    let mut text = String::new();
    for process in running.memory.iter().chain(&running.compute) {
        writeln!(text, "{}", process.said).expect("writing to a string does not fail");
    }
    let pool = format!("tcp://{}", addresses.join(","));
    let AccessArgs { secret_file, operation_secret_file, .. } = &plan.said;
    let secret: String = [("--secret-file", secret_file), ("--operation-secret-file", operation_secret_file)]
        .into_iter()
        .filter_map(|(option, file)| Some(format!(" {option} {}", file.as_ref()?.display())))
        .collect();
    write!(
        text,
        "the pool is {pool} ({} in all{}); the index is {}\n\
         to look at it: pando status --pool {pool}{secret}\n\
         to use it: pando put --pool {pool}{secret} KEY VALUE, and load, get, scan, dump\n\
         Ctrl-C stops it\n",
        units::size(plan.memory * plan.memory_servers as u64 / plan.replicas as u64),
        if plan.replicas > 1 { format!(", and {} copies of it", plan.replicas) } else { String::new() },
        plan.index,
    )
    .expect("writing to a string does not fail");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_the_command_line_does_not() {
        let file: Settings =
            toml::from_str("memory_servers = 3\nmemory = \"64MiB\"\nindex = \"trees\"\n").expect("valid");
        let line = Settings { memory_servers: Some(1), ..Settings::default() };
        let Ok(plan) = Plan::new(line.or(file)) else { panic!("valid") };
        assert_eq!((plan.memory_servers, plan.compute_servers, plan.memory), (1, 2, 64 << 20));
        assert_eq!(plan.index, "trees");
        assert!(toml::from_str::<Settings>("memory_server = 3").is_err(), "no such setting");
    }

    #[test]
    fn partitions_are_shared_out_without_a_rest() {
        for (partitions, owners) in [(2, 2), (7, 3), (3, 3), (16, 5)] {
            let all: Vec<usize> = (0..owners).flat_map(|number| share(partitions, owners, number)).collect();
            assert_eq!(all, (0..partitions).collect::<Vec<_>>());
            assert!((0..owners).all(|number| !share(partitions, owners, number).is_empty()));
        }
    }
}
