//! The HTTP port as a browser or Prometheus uses it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pando::{MemoryServer, MemoryServerConfig};
use pando_server::{HttpPort, memory_server_metrics};

/// Sends `request` and reads until the port closes the connection.
fn ask(addr: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(addr).expect("it listens");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    answer
}

fn get(addr: SocketAddr, path: &str) -> String {
    ask(addr, &format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
}

#[test]
fn metrics_of_a_memory_server_are_read_over_http() {
    let server = MemoryServer::start(&MemoryServerConfig::new("127.0.0.1:0").size(1 << 20)).expect("starts");
    let (size, counts) = (server.size(), server.counts());
    let port =
        HttpPort::start("127.0.0.1:0", move || Ok(memory_server_metrics(size, &counts, None))).expect("free");
    let page = get(port.addr(), "/metrics");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    assert!(page.contains("content-type: text/plain; version=0.0.4"), "{page}");
    assert!(page.contains("\npando_memory_bytes 1048576\n") && !page.contains("# EOF"), "{page}");
    let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2\r\n";
    let page = ask(port.addr(), &format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{accept}\r\n"));
    assert!(page.contains("content-type: application/openmetrics-text"), "{page}");
    assert!(page.contains("\npando_memory_bytes 1048576.0\n") && page.ends_with("# EOF\n"), "{page}");
    assert!(get(port.addr(), "/health").ends_with("well\n"));
    assert!(get(port.addr(), "/else").starts_with("HTTP/1.1 404 "));
    let refused = ask(
        port.addr(),
        "POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
    );
    assert!(refused.starts_with("HTTP/1.1 405 ") && refused.contains("allow: GET"), "{refused}");
    assert!(ask(port.addr(), "no HTTP at all\r\n\r\n").starts_with("HTTP/1.1 400 "));
}

#[test]
fn what_cannot_be_told_is_said_and_nothing_breaks() {
    let told =
        HttpPort::start("127.0.0.1:0", || Err("memory server 1 does not answer".to_owned())).expect("free");
    let page = get(told.addr(), "/metrics");
    assert!(
        page.starts_with("HTTP/1.1 503 ") && page.ends_with("memory server 1 does not answer\n"),
        "{page}"
    );
    let broken = HttpPort::start("127.0.0.1:0", || panic!("on purpose")).expect("free");
    assert!(get(broken.addr(), "/metrics").starts_with("HTTP/1.1 500 "));
    assert!(get(broken.addr(), "/health").starts_with("HTTP/1.1 200 "));
    let taken = HttpPort::start(&broken.addr().to_string(), || Err(String::new())).expect_err("taken");
    assert!(taken.to_string().contains("cannot be opened"), "{taken}");
}

#[test]
fn who_holds_connections_and_says_nothing_keeps_nobody_out() {
    let port = HttpPort::start("127.0.0.1:0", || Ok(Default::default())).expect("free");
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(port.addr()).expect("it listens")).collect();
    let begun = Instant::now();
    for _ in 0..20 {
        assert!(get(port.addr(), "/health").starts_with("HTTP/1.1 200 "));
    }
    // The silent connections themselves would be closed only after 5 s.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    drop(silent);
}

#[test]
fn a_connection_has_one_request_and_a_page_is_made_once_a_second() {
    let made = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&made);
    let page = move || {
        count.fetch_add(1, Relaxed);
        Ok(Default::default())
    };
    let port = HttpPort::start("127.0.0.1:0", page).expect("free");
    let begun = Instant::now();
    // The port closes the connection, although HTTP/1.1 keeps it open by default.
    (0..100).for_each(|_| drop(ask(port.addr(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")));
    let most = 2 + begun.elapsed().as_secs();
    assert!((1..=most).contains(&made.load(Relaxed)), "{} of {most}", made.load(Relaxed));
}
