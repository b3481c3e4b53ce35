//! One request to a member of etcd over HTTP, by a thread that waits for the answer.
//!
//! Each request has a connection of its own and is of version 1.0, so the answer ends with the connection, and no answer
//! can be that of an earlier request. There are few requests: five in the time of a lease.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Maximum bytes of an answer: etcd refuses larger values.
const ANSWER_MAX: usize = 4 << 20;

/// Reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    /// The request has had no effect.
    #[error("cannot be reached: {0}")]
    NotSent(io::Error),
    #[error("does not answer: {0}")]
    NoAnswer(#[from] io::Error),
    #[error("answers with status {status}: {text}")]
    Status { status: u16, text: String },
    #[error("gives no answer of HTTP")]
    Malformed,
}

impl HttpError {
    /// Whether the request may have been executed.
    pub fn may_have_taken_effect(&self) -> bool {
        !matches!(self, Self::NotSent(_))
    }
}

/// Sends `body` to `path` at `endpoint`, `host:port`, and returns the body of the answer if it is there by `until`.
pub(super) fn post(endpoint: &str, path: &str, body: &str, until: Instant) -> Result<Vec<u8>, HttpError> {
    let mut stream = connect(endpoint, until).map_err(HttpError::NotSent)?;
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.0\r\nHost: {endpoint}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.set_write_timeout(Some(left(until)?))?;
    stream.write_all(request.as_bytes())?;
    let (mut answer, mut part) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut part) {
            Ok(0) => return of_answer(&answer),
            Ok(more) if answer.len() + more > ANSWER_MAX => return Err(HttpError::Malformed),
            Ok(more) => answer.extend_from_slice(&part[..more]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn connect(endpoint: &str, until: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in endpoint.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The body of a complete answer.
fn of_answer(answer: &[u8]) -> Result<Vec<u8>, HttpError> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or(HttpError::Malformed)?;
    let (head, body) =
        (std::str::from_utf8(&answer[..end]).map_err(|_| HttpError::Malformed)?, &answer[end + 4..]);
    let mut lines = head.split("\r\n");
    let mut first = lines.next().unwrap_or("").split(' ');
    let version = first.next().unwrap_or("");
    let status = first.next().and_then(|status| status.parse().ok());
    let Some(status) = status.filter(|_| version.starts_with("HTTP/1.")) else {
        return Err(HttpError::Malformed);
    };
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") && value.trim().parse() != Ok(body.len()) {
            let cut = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(cut.into());
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(HttpError::Malformed);
        }
    }
    if status != 200 {
        let text = String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned();
        return Err(HttpError::Status { status, text });
    }
    Ok(body.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_complete_or_an_error() {
        let body = |text: &str| of_answer(text.as_bytes()).map_err(|error| error.to_string());
        assert_eq!(body("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}"), Ok(b"{}".to_vec()));
        assert_eq!(body("HTTP/1.1 200\r\n\r\n{}"), Ok(b"{}".to_vec()));
        assert!(
            body("HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{}")
                .is_err_and(|error| error.contains("does not"))
        );
        assert!(
            body("HTTP/1.0 503 Gone\r\n\r\nno leader\n")
                .is_err_and(|error| error.ends_with("503: no leader"))
        );
        for wrong in ["", "HTTP/1.0 200 OK\r\n", "SSH-2.0-x\r\n\r\n", "HTTP/1.0 many\r\n\r\n"] {
            assert!(matches!(of_answer(wrong.as_bytes()), Err(HttpError::Malformed)), "{wrong}");
        }
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
        assert!(matches!(of_answer(chunked), Err(HttpError::Malformed)));
    }
}
