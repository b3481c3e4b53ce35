//! The register against a server that does with each request what a script says.
//!
//! The server has one key and its revision, and keeps all values that it ever had. It may execute a request long after its
//! client has given up.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pando_fabric::Random;
use pando_member::View;
use serde_json::{Value, json};

use super::super::{Etcd, RegisterAddress, base64, messages::TXN};
use super::{Proposed, first};
use crate::group::error::RegisterError;

/// Time that a client waits for an answer.
const ANSWER: Duration = Duration::from_millis(80);

/// What the server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Answer,
    /// Nothing is executed, the connection ends.
    LoseRequest,
    /// It is executed, the connection ends.
    LoseAnswer,
    /// It is executed, and nothing is sent until the client has given up.
    Stall,
    /// It is executed once the client has given up.
    ExecuteLate,
    /// It is executed, and the answer is cut in the middle.
    Cut,
    /// It is executed, and the answer is an error.
    Fail,
    /// The answer is an error, and nothing is executed.
    Refuse,
}

const ALL: [Act; 8] = [
    Act::Answer,
    Act::LoseRequest,
    Act::LoseAnswer,
    Act::Stall,
    Act::ExecuteLate,
    Act::Cut,
    Act::Fail,
    Act::Refuse,
];

type Script = Box<dyn FnMut(&str) -> Act + Send>;

struct Scripted {
    address: RegisterAddress,
    history: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Scripted {
    /// A server that asks `script` about each request, by its path.
    fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = listener.local_addr().expect("it is bound");
        let (history, script) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(script)));
        let values = Arc::clone(&history);
        // It ends with the process.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (values, script) = (Arc::clone(&values), Arc::clone(&script));
                thread::spawn(move || serve(stream, &values, &script));
            }
        });
        let address = format!("etcd://{endpoint}/trees").parse().expect("an address");
        Self { address, history }
    }

    fn etcd(&self) -> Etcd {
        Etcd { answer: ANSWER, ..Etcd::new(&self.address) }
    }

    fn history(&self) -> Vec<Vec<u8>> {
        self.history.lock().expect("no panic").clone()
    }
}

/// Reads a request: its path and its body.
fn read(stream: &mut TcpStream) -> Option<(String, Value)> {
    let (mut request, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.split("Content-Length: ").nth(1)?.lines().next()?.parse().ok()?;
            if body.len() >= length {
                return Some((head.split(' ').nth(1)?.to_owned(), serde_json::from_str(body).ok()?));
            }
        }
        match stream.read(&mut part) {
            Ok(count @ 1..) => request.extend_from_slice(&part[..count]),
            _ => return None,
        }
    }
}

/// Executes a request of the gateway.
fn execute(path: &str, body: &Value, values: &Mutex<Vec<Vec<u8>>>) -> String {
    let mut values = values.lock().expect("no panic");
    let revision = values.len();
    if path != TXN {
        let kvs = values
            .last()
            .map(|value| json!([{ "mod_revision": revision.to_string(), "value": base64::encode(value) }]));
        return json!({ "header": {}, "kvs": kvs }).to_string();
    }
    let compare = &body["compare"][0];
    let wanted = compare["mod_revision"].as_str().or(compare["version"].as_str()).expect("a number");
    if wanted != revision.to_string() {
        return json!({ "header": {} }).to_string();
    }
    let value = body["success"][0]["request_put"]["value"].as_str().and_then(base64::decode);
    values.push(value.expect("Base64"));
    json!({ "header": {}, "succeeded": true }).to_string()
}

fn serve(mut stream: TcpStream, values: &Mutex<Vec<Vec<u8>>>, script: &Mutex<Script>) {
    let Some((path, body)) = read(&mut stream) else { return };
    let act = (script.lock().expect("no panic"))(&path);
    if act == Act::ExecuteLate {
        thread::sleep(2 * ANSWER);
    }
    let body = match act {
        Act::LoseRequest => return,
        Act::Refuse => String::new(),
        _ => execute(&path, &body, values),
    };
    let (status, body) = match act {
        Act::Fail | Act::Refuse => {
            ("503 Service Unavailable", r#"{"error":"etcdserver: no leader","code":14}"#)
        }
        _ => ("200 OK", &*body),
    };
    let mut answer = format!("HTTP/1.0 {status}\r\nContent-Type: application/json\r\n\r\n{body}");
    match act {
        Act::LoseAnswer => return,
        Act::Stall => thread::sleep(2 * ANSWER),
        Act::Cut => answer.truncate(answer.len() - 2),
        _ => {}
    }
    // The client may have gone.
    let _ = stream.write_all(answer.as_bytes());
    let _ = stream.shutdown(Shutdown::Both);
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// A script that spoils the first change and lets all else pass.
fn spoil_first_change(act: Act) -> Script {
    let mut spoiled = false;
    Box::new(move |path| {
        let is_first = path == TXN && !spoiled;
        spoiled |= is_first;
        if is_first { act } else { Act::Answer }
    })
}

#[test]
fn a_change_is_made_once_whatever_happens_to_the_answer() {
    for act in ALL {
        let server = Scripted::start(spoil_first_change(act));
        let made = first(&server.address);
        let changed = server.etcd().change(soon(), |old| Ok(old.is_none().then(|| made.clone())));
        assert_eq!(changed.expect("it answers"), Some(made.clone()), "{act:?}");
        assert_eq!(server.history(), [made.encode()], "{act:?}");
        // Late requests have no effect any more.
        thread::sleep(3 * ANSWER);
        let proposed = Proposed::default();
        let next = server.etcd().change(soon(), |old| Ok(old.map(|old| proposed.advance(&old))));
        assert_eq!(next.expect("it answers").map(|view| view.epoch()), Some(2), "{act:?}");
        assert_eq!(server.history().len(), 2, "{act:?}");
        assert_eq!(server.etcd().view(soon()).expect("it answers").map(|view| view.epoch()), Some(2));
    }
}

#[test]
fn views_derive_from_one_another_while_answers_are_lost() {
    let random = Random::new(5);
    let server = Scripted::start(Box::new(move |_| match random.next() % 3 {
        0 => ALL[random.next() as usize % ALL.len()],
        _ => Act::Answer,
    }));
    let made = first(&server.address);
    server.etcd().change(soon(), |old| Ok(old.is_none().then(|| made.clone()))).expect("in the end");
    let proposed = Proposed::default();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (mut etcd, mut newest) = (server.etcd(), 1);
                for _ in 0..12 {
                    let view = etcd.change(soon(), |old| Ok(old.map(|old| proposed.advance(&old))));
                    let view = view.expect("in the end").expect("it is there");
                    assert!(view.epoch() > newest, "{} after {newest}", view.epoch());
                    newest = view.epoch();
                }
            });
        }
    });
    thread::sleep(3 * ANSWER);
    let history = server.history();
    assert!(history.len() > 4 * 12, "{}", history.len());
    proposed.check(&history);
}

#[test]
fn a_register_that_does_not_answer_is_an_error_that_says_what_is_known() {
    let address = Scripted::start(Box::new(|_| Act::Stall)).address;
    let mut etcd = Etcd { answer: ANSWER, ..Etcd::new(&address) };
    let error = etcd.view(Instant::now() + ANSWER).expect_err("it does not answer");
    assert!(matches!(error, RegisterError::Silent { .. }), "{error}");
    let error = etcd.change(Instant::now(), |_| Ok(None)).expect_err("it does not answer").to_string();
    assert!(error.starts_with(&format!("the register {address} does not answer: 127.0.0.1:")), "{error}");
    // What becomes of a change that has no answer is unknown.
    let server = Scripted::start(Box::new(|path| if path == TXN { Act::LoseRequest } else { Act::Answer }));
    let made = first(&server.address);
    let error = server.etcd().change(Instant::now(), |_| Ok(Some(made.clone()))).expect_err("no answer");
    assert!(matches!(error, RegisterError::Unknown { .. }), "{error}");
    assert!(error.to_string().contains("may have changed the view nevertheless"), "{error}");
    let error = server.etcd().change(soon(), |_| Err("it must not be".to_owned())).expect_err("refused");
    assert_eq!(error.to_string(), "it must not be");
}

#[test]
fn what_is_no_view_of_this_register_is_told() {
    let server = Scripted::start(Box::new(|_| Act::Answer));
    server.history.lock().expect("no panic").push(b"something else".to_vec());
    let told = server.etcd().view(soon()).expect_err("no view").to_string();
    assert!(told.contains("at key trees/view is no view of memory servers in this register"), "{told}");
    let elsewhere = "etcd://host:1/trees".parse().expect("an address");
    server.history.lock().expect("no panic").push(first(&elsewhere).encode());
    let told = server.etcd().change(soon(), |_| Ok(None)).expect_err("another register").to_string();
    assert!(told.ends_with("it names etcd://host:1/trees"), "{told}");
    // An etcd that goes back to an older view, or to none, decides nothing.
    server.history.lock().expect("no panic").push(first(&server.address).encode());
    let told = server.etcd().not_before(4).change(soon(), |_| Ok(None)).expect_err("it is older").to_string();
    assert!(told.contains("has view 1, although view 4 was decided"), "{told}");
    server.history.lock().expect("no panic").clear();
    let told = server.etcd().not_before(4).change(soon(), |_| Ok(None)).expect_err("it is gone").to_string();
    assert!(told.contains("has no view, although view 4 was decided"), "{told}");
}

#[test]
fn members_of_etcd_are_asked_in_turn() {
    let server = Scripted::start(Box::new(|_| Act::Answer));
    let hole = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let gone =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let endpoints = [hole.local_addr().expect("bound"), gone].map(|address| address.to_string()).join(",");
    let address: RegisterAddress =
        format!("etcd://{endpoints},{}/trees", server.address.endpoints()[0]).parse().expect("an address");
    let mut etcd = Etcd { answer: 6 * ANSWER, ..Etcd::new(&address) };
    let made = first(&address);
    let changed = etcd.change(soon(), |old| Ok(old.is_none().then(|| made.clone())));
    assert_eq!(changed.expect("one of them answers").map(|view| view.epoch()), Some(1));
    // From then on the one that answers is asked first.
    let began = Instant::now();
    assert_eq!(etcd.view(began + ANSWER / 2).expect("it answers"), View::decode(&made.encode()).ok());
    assert_eq!(etcd.address.endpoints()[etcd.first], server.address.endpoints()[0]);
}
