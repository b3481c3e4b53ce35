//! Common parts of daemons: logs, a port for metrics, and termination.
//!
//! A daemon prints one line with its address on standard output, logs to standard error (`RUST_LOG` sets the
//! level), and ends with status 0 when interrupted or terminated. A daemon started by `pando up` also stops
//! when that ends, which it detects by the end of its standard input.

use std::io::{Read, stdin};
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use clap::Args;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use pando::Secret;
use pando_server::{HttpPort, Metrics};

use crate::failure::Failure;
use crate::signals::Interrupt;

#[derive(Args, Debug)]
pub struct DaemonArgs {
    /// Serve metrics for Prometheus by HTTP here: HOST:PORT; port 0 is any that is free
    #[arg(long, value_name = "ADDR")]
    metrics: Option<String>,
    /// Connections of clients at the same time
    #[arg(long, value_name = "N", default_value = "4096")]
    pub clients_max: usize,
    /// Connections at the same time that have not said who they are; they are counted apart, and one more closes the oldest
    #[arg(long, value_name = "N", default_value = "256")]
    pub strangers_max: usize,
    /// Listen on a network without a secret, so that everybody who can connect is let in
    #[arg(long)]
    pub insecure: bool,
    /// Stop when standard input ends
    #[arg(long, hide = true)]
    with_parent: bool,
}

/// Checks whether a daemon may listen at `listen` for clients that know `secret`. Without a secret every
/// client could read and change everything. `option` is the option that names a secret.
pub fn check_listening(listen: &str, secret: &Secret, option: &str, insecure: bool) -> Result<(), Failure> {
    if insecure || !secret.is_empty() {
        return Ok(());
    }
    // Binding reports an invalid address.
    let addresses = listen.to_socket_addrs().map(Iterator::collect).unwrap_or_else(|_| Vec::new());
    match addresses.iter().find(|address| !address.ip().to_canonical().is_loopback()) {
        Some(address) => Err(Failure::bad_input(format_args!(
            "{address} can be reached over a network, and without {option} everybody who does is let in; \
             --insecure allows it"
        ))),
        None => Ok(()),
    }
}

/// Checks the secrets of memory servers and operation port of a compute server: a client of the operation
/// port must not be able to access the memory.
pub fn check_secrets(memory: &Secret, operations: &Secret, insecure: bool) -> Result<(), Failure> {
    if memory.is_shared_with(operations) {
        return Err(Failure::bad_input(
            "the secret of --operation-secret-file is that of --secret-file; clients of an operation port must not know what \
             opens the memory servers",
        ));
    }
    if !insecure && !memory.is_empty() && operations.is_empty() {
        return Err(Failure::bad_input(
            "the memory servers have a secret and the operation port has none; --operation-secret-file gives it one of its own, \
             and --insecure does without",
        ));
    }
    Ok(())
}

/// Which events are logged: as `RUST_LOG` says, or all but the details.
fn logged() -> Result<Targets, Failure> {
    match std::env::var("RUST_LOG") {
        Ok(targets) if !targets.is_empty() => {
            targets.parse().map_err(|error| Failure::bad_input(format!("RUST_LOG is {targets:?}: {error}")))
        }
        _ => Ok(Targets::new().with_default(LevelFilter::INFO)),
    }
}

/// State of a running daemon.
pub struct Daemon {
    interrupt: Interrupt,
    parent_is_gone: Arc<AtomicBool>,
}

impl DaemonArgs {
    /// Starts logging and signal handling.
    pub fn begin(&self) -> Result<Daemon, Failure> {
        let interrupt = Interrupt::listen()?;
        let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
        tracing_subscriber::registry().with(log).with(logged()?).init();
        let parent_is_gone = Arc::new(AtomicBool::new(false));
        if self.with_parent {
            let (interrupt, parent_is_gone) = (interrupt.clone(), Arc::clone(&parent_is_gone));
            std::thread::spawn(move || {
                // Any end of standard input means that the parent is gone.
                let _ = stdin().read_to_end(&mut Vec::new());
                parent_is_gone.store(true, Relaxed);
                interrupt.raise();
            });
        }
        Ok(Daemon { interrupt, parent_is_gone })
    }

    /// Starts the metrics port, if requested; also returns the text about it.
    pub fn serve(
        &self,
        page: impl Fn() -> Result<Metrics, String> + Send + Sync + 'static,
    ) -> Result<(Option<HttpPort>, String), Failure> {
        let Some(address) = &self.metrics else { return Ok((None, String::new())) };
        let port = HttpPort::start(address, page).map_err(Failure::bad_input)?;
        let said = format!(", metrics at http://{}/metrics", port.addr());
        Ok((Some(port), said))
    }
}

impl Daemon {
    pub fn is_to_stop(&self) -> bool {
        self.interrupt.wanted()
    }

    /// Waits for termination. Returns whether the parent is gone, which would have stopped the daemons in
    /// order.
    pub fn wait(&self) -> bool {
        self.interrupt.wait();
        self.parent_is_gone.load(Relaxed)
    }
}
