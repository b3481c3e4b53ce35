//! Hosts connected by cables: network namespaces and veth pairs.
//!
//! One host has the clients; each other host has a cable to it. The addresses are private and exist only
//! inside the namespaces. Dropping the guard removes everything, also if the test fails. This needs root and
//! `ip` of iproute2.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Ways to cut a link.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// The server's interface is switched off, which its client may notice.
    Down,
    /// The cable is removed with both interfaces, and replaced on healing.
    CableGone,
    /// Packets are lost silently in both directions.
    Silent,
    /// Packets to the server are lost: data from the server arrives, its acknowledgements do not.
    ToServer,
    /// Packets from the server are lost: requests are executed, but no answer arrives.
    FromServer,
}

/// An unused link-layer address: packets to it are lost.
const NOWHERE: &str = "02:00:00:00:00:01";

static COUNT: AtomicUsize = AtomicUsize::new(0);

pub struct Hosts {
    client: String,
    servers: Vec<String>,
}

impl Hosts {
    /// `None` if this machine does not permit it, which is a failure in CI.
    pub fn new(servers: usize) -> Option<Hosts> {
        // Several tests may run in one process.
        let number = COUNT.fetch_add(1, Relaxed);
        let name = |what: &str| format!("pando-{}-{number}-{what}", std::process::id());
        let mut hosts = Hosts { client: name("client"), servers: Vec::new() };
        if let Err(reason) = try_ip(&["netns", "add", &hosts.client]) {
            assert!(
                std::env::var("CI").as_deref() != Ok("true"),
                "there are no network namespaces: {reason}"
            );
            eprintln!("skipped: there are no network namespaces, which take root and iproute2: {reason}");
            return None;
        }
        ip(&["-n", &hosts.client, "link", "set", "lo", "up"]);
        for server in 0..servers {
            hosts.servers.push(name(&server.to_string()));
            ip(&["netns", "add", &hosts.servers[server]]);
            hosts.lay_cable(server);
        }
        Some(hosts)
    }

    /// Address of a server.
    pub fn address(&self, server: usize) -> String {
        format!("10.213.{server}.1")
    }

    fn client_address(&self, server: usize) -> String {
        format!("10.213.{server}.2")
    }

    fn lay_cable(&self, server: usize) {
        let (client, host, name) = (&self.client, &self.servers[server], format!("pando{server}"));
        ip(&["link", "add", "pando", "netns", host, "type", "veth", "peer", "name", &name, "netns", client]);
        ip(&["-n", host, "addr", "add", &format!("{}/24", self.address(server)), "dev", "pando"]);
        ip(&["-n", client, "addr", "add", &format!("{}/24", self.client_address(server)), "dev", &name]);
        ip(&["-n", host, "link", "set", "pando", "up"]);
        ip(&["-n", client, "link", "set", &name, "up"]);
    }

    /// Runs `work` on the clients' host; its sockets, processes and threads are in that namespace.
    pub fn on_client<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on(&self.client, work)
    }

    /// Runs `work` on a server's host.
    pub fn on_server<T: Send>(&self, server: usize, work: impl FnOnce() -> T + Send) -> T {
        on(&self.servers[server], work)
    }

    /// The direction from the client to a server: namespace, interface, and the address at the other end.
    fn way_there(&self, server: usize) -> (&str, String, String) {
        (&self.client, format!("pando{server}"), self.address(server))
    }

    /// The direction from a server to the client.
    fn way_back(&self, server: usize) -> (&str, String, String) {
        (&self.servers[server], "pando".to_owned(), self.client_address(server))
    }

    pub fn cut(&self, server: usize, how: Cut) {
        let lose = |(host, interface, address): (&str, String, String)| {
            let wrong = ["lladdr", NOWHERE, "nud", "permanent", "dev"];
            ip(&[&["-n", host, "neigh", "replace", &address][..], &wrong, &[&interface]].concat());
        };
        match how {
            Cut::Down => ip(&["-n", &self.servers[server], "link", "set", "pando", "down"]),
            Cut::CableGone => ip(&["-n", &self.servers[server], "link", "del", "pando"]),
            Cut::Silent => {
                lose(self.way_there(server));
                lose(self.way_back(server));
            }
            Cut::ToServer => lose(self.way_there(server)),
            Cut::FromServer => lose(self.way_back(server)),
        }
    }

    /// Undoes such a cut.
    pub fn heal(&self, server: usize, how: Cut) {
        let find = |(host, interface, address): (&str, String, String)| {
            ip(&["-n", host, "neigh", "del", &address, "dev", &interface]);
        };
        match how {
            Cut::Down => ip(&["-n", &self.servers[server], "link", "set", "pando", "up"]),
            Cut::CableGone => self.lay_cable(server),
            Cut::Silent => {
                find(self.way_there(server));
                find(self.way_back(server));
            }
            Cut::ToServer => find(self.way_there(server)),
            Cut::FromServer => find(self.way_back(server)),
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.servers.iter().chain([&self.client]) {
            // Interfaces are removed with the namespace. Processes keep it alive until they end; do not wait
            // for that.
            let _ = try_ip(&["netns", "del", name]);
        }
    }
}

/// Runs `work` on its own thread, since a thread belongs to one namespace.
fn on<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> T {
    let moved = move || {
        let namespace = File::open(format!("/run/netns/{namespace}")).expect("it was made");
        let network = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), network).expect("it is a network namespace");
        work()
    };
    thread::scope(|scope| scope.spawn(moved).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn ip(arguments: &[&str]) {
    if let Err(reason) = try_ip(arguments) {
        panic!("ip {arguments:?}: {reason}");
    }
}

fn try_ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output().map_err(|error| format!("ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
