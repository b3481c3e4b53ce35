//! An object store in this process that speaks the part of the protocol of S3 that backups need, over HTTP.
//!
//! It checks no signatures. A test can have requests refused, and look at the objects and change them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

type Objects = BTreeMap<String, Vec<u8>>;

/// A bucket named `bucket`.
pub struct FakeS3 {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    objects: Mutex<Objects>,
    /// Parts of uploads that have not ended, by upload and number.
    parts: Mutex<BTreeMap<String, BTreeMap<u32, Vec<u8>>>>,
    requests: AtomicU64,
    /// Number of the request from which on all are refused.
    refused_from: AtomicU64,
    /// Every so many requests one fails for a moment; 0 for none.
    fails_every: AtomicU64,
    /// Uploads that were begun.
    uploads: AtomicU64,
}

struct Asked {
    method: String,
    key: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
}

impl FakeS3 {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State { refused_from: AtomicU64::new(u64::MAX), ..State::default() });
        let serving = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&serving);
                thread::spawn(move || while state.serve(&stream).is_some() {});
            }
        });
        Self { port, state }
    }

    /// What a client must be told, by names of variables.
    pub fn options(&self) -> [(&'static str, String); 5] {
        [
            ("aws_endpoint_url", format!("http://127.0.0.1:{}", self.port)),
            ("aws_allow_http", "true".to_owned()),
            ("aws_region", "here".to_owned()),
            ("aws_access_key_id", "user".to_owned()),
            ("aws_secret_access_key", "secret".to_owned()),
        ]
    }

    /// Refuses all requests from number `request` on, from now; all are served again with `u64::MAX`.
    pub fn refuse_from(&self, request: u64) {
        self.state.requests.store(0, Relaxed);
        self.state.refused_from.store(request, Relaxed);
    }

    /// Every so many requests one fails for a moment.
    pub fn fail_every(&self, requests: u64) {
        self.state.fails_every.store(requests, Relaxed);
    }

    /// Calls `change` with all objects.
    pub fn with_objects<T>(&self, change: impl FnOnce(&mut Objects) -> T) -> T {
        change(&mut self.state.objects.lock().expect("nobody panics"))
    }

    /// Uploads in parts that were begun, and those of them that were neither ended nor aborted.
    pub fn uploads(&self) -> [u64; 2] {
        let open = self.state.parts.lock().expect("nobody panics").len();
        [self.state.uploads.load(Relaxed), open as u64]
    }
}

fn decoded(text: &str) -> String {
    text.replace("%2F", "/").replace("%3D", "=")
}

fn asked(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|&len| len > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let len = headers.get("content-length").map_or(0, |len| len.parse().expect("a length"));
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let key = decoded(path.trim_start_matches("/bucket").trim_start_matches('/'));
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = pairs.map(|(name, value)| (name.to_owned(), decoded(value))).collect();
    Some(Asked { method, key, query, headers, body })
}

fn answer(status: u16, body: impl Into<Vec<u8>>) -> Answer {
    Answer { status, headers: "ETag: \"e\"\r\n".to_owned(), body: body.into() }
}

impl State {
    /// Serves one request; `None` at the end of the connection.
    fn serve(&self, mut stream: &TcpStream) -> Option<()> {
        let asked = asked(stream)?;
        let number = self.requests.fetch_add(1, Relaxed);
        let every = self.fails_every.load(Relaxed);
        let Answer { status, headers, body } = match () {
            () if number >= self.refused_from.load(Relaxed) => {
                answer(403, "<Error><Code>AccessDenied</Code></Error>")
            }
            () if every > 0 && number % every == every - 1 => {
                answer(503, "<Error><Code>SlowDown</Code></Error>")
            }
            () if asked.method == "GET" && asked.query.contains_key("list-type") => self.listed(&asked),
            () if asked.method == "GET" || asked.method == "HEAD" => self.read(&asked),
            () => self.change(&asked),
        };
        let len = if asked.method == "HEAD" {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        write!(stream, "HTTP/1.1 {status} x\r\n{headers}{len}\r\n").ok()?;
        if asked.method != "HEAD" {
            stream.write_all(&body).ok()?;
        }
        Some(())
    }

    fn listed(&self, asked: &Asked) -> Answer {
        let prefix = asked.query.get("prefix").map_or("", String::as_str);
        let objects = self.objects.lock().expect("nobody panics");
        let mut body = "<ListBucketResult>".to_owned();
        let mut last = None;
        for (key, bytes) in objects.iter().filter(|(key, _)| key.starts_with(prefix)) {
            match key[prefix.len()..].split_once('/') {
                None => {
                    body += &format!(
                        "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                         <Size>{}</Size><ETag>e</ETag></Contents>",
                        bytes.len()
                    );
                }
                Some((below, _)) if last != Some(below) => {
                    body += &format!("<CommonPrefixes><Prefix>{prefix}{below}/</Prefix></CommonPrefixes>");
                    last = Some(below);
                }
                Some(_) => {}
            }
        }
        answer(200, body + "</ListBucketResult>")
    }

    fn read(&self, asked: &Asked) -> Answer {
        let objects = self.objects.lock().expect("nobody panics");
        let Some(bytes) = objects.get(&asked.key) else {
            return answer(404, "<Error><Code>NoSuchKey</Code></Error>");
        };
        let times = "ETag: \"e\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
        if asked.method == "HEAD" {
            let headers = format!("{times}Content-Length: {}\r\n", bytes.len());
            return Answer { status: 200, headers, body: Vec::new() };
        }
        let range =
            asked.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let Some((from, to)) = range else {
            return Answer { status: 200, headers: times.to_owned(), body: bytes.clone() };
        };
        let (from, to): (usize, usize) = (from.parse().expect("a number"), to.parse().expect("a number"));
        let to = to.min(bytes.len() - 1);
        let headers = format!("{times}Content-Range: bytes {from}-{to}/{}\r\n", bytes.len());
        Answer { status: 206, headers, body: bytes[from..=to].to_vec() }
    }

    fn change(&self, asked: &Asked) -> Answer {
        let (method, upload) = (asked.method.as_str(), asked.query.get("uploadId"));
        let mut objects = self.objects.lock().expect("nobody panics");
        let mut parts = self.parts.lock().expect("nobody panics");
        match (method, upload) {
            ("POST", None) if asked.query.contains_key("delete") => {
                let body = String::from_utf8_lossy(&asked.body);
                let keys = body.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
                let gone = keys.map(|(key, _)| {
                    objects.remove(key);
                    format!("<Deleted><Key>{key}</Key></Deleted>")
                });
                return answer(200, format!("<DeleteResult>{}</DeleteResult>", gone.collect::<String>()));
            }
            ("POST", None) => {
                let id = self.uploads.fetch_add(1, Relaxed).to_string();
                parts.insert(id.clone(), BTreeMap::new());
                let tag = "InitiateMultipartUploadResult";
                return answer(200, format!("<{tag}><UploadId>{id}</UploadId></{tag}>"));
            }
            ("POST", Some(upload)) => {
                let parts = parts.remove(upload).expect("it was begun");
                let named = String::from_utf8_lossy(&asked.body).matches("<PartNumber>").count();
                assert_eq!(named, parts.len(), "all parts that were sent, and no others");
                objects.insert(asked.key.clone(), parts.into_values().flatten().collect());
                let tag = "CompleteMultipartUploadResult";
                return answer(200, format!("<{tag}><ETag>e</ETag></{tag}>"));
            }
            ("PUT", Some(upload)) => {
                let number = asked.query["partNumber"].parse().expect("a number");
                parts.get_mut(upload).expect("it was begun").insert(number, asked.body.clone());
            }
            ("PUT", None) => {
                let body = match asked.headers.get("x-amz-copy-source") {
                    Some(source) => {
                        objects[decoded(source).trim_start_matches('/').trim_start_matches("bucket/")].clone()
                    }
                    None => asked.body.clone(),
                };
                objects.insert(asked.key.clone(), body);
                return answer(200, "<CopyObjectResult><ETag>e</ETag></CopyObjectResult>");
            }
            ("DELETE", Some(upload)) => drop(parts.remove(upload)),
            (other, _) => unreachable!("backups send no {other}"),
        }
        answer(if method == "DELETE" { 204 } else { 200 }, "")
    }
}
