//! The HTTP port of a daemon: `GET /metrics` for Prometheus, `GET /health` for whoever asks whether it runs.
//!
//! One thread serves it, apart from all threads that serve verbs or operations, and sleeps while nobody asks. A page is made
//! on a thread of its own, since it may wait for memory servers; one at a time, so that nobody can make the daemon work by
//! asking often. A connection that sends no request in time is closed, and there are not many of them.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, oneshot};

use crate::metrics::Metrics;

/// Connections at the same time.
const CONNECTIONS_MAX: usize = 64;
/// A client may take so long to ask.
const PATIENCE: Duration = Duration::from_secs(5);
/// A connection is closed after so long, whatever it does.
const LIFE_MAX: Duration = Duration::from_secs(60);
/// A listener that cannot accept is left alone for so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The text format that Prometheus asks for.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// A port that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the metrics port {address} cannot be opened: {source}")]
pub struct HttpError {
    address: String,
    source: io::Error,
}

/// Makes the page of metrics; the error is a sentence.
type Page = dyn Fn() -> Result<Metrics, String> + Send + Sync;

/// Serves metrics until it is dropped.
#[derive(Debug)]
pub struct HttpPort {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpPort {
    /// Listens at `address`, `host:port`, and answers with what `page` makes at that moment.
    ///
    /// # Errors
    /// An address that cannot be listened at, and those of the system when the thread is made.
    pub fn start(
        address: &str,
        page: impl Fn() -> Result<Metrics, String> + Send + Sync + 'static,
    ) -> Result<Self, HttpError> {
        let failed = |source| HttpError { address: address.to_owned(), source };
        let listener = StdListener::bind(address).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let serving = move || {
            runtime.spawn(serve(listener, Arc::new(page)));
            // An error says that the sender is gone, which is what is waited for.
            let _ = runtime.block_on(stopped);
            // A page that is being made is not waited for.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("pando-http".to_owned()).spawn(serving).map_err(failed)?;
        Ok(Self { addr, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for HttpPort {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // One that panicked said so already.
            let _ = thread.join();
        }
    }
}

async fn serve(listener: StdListener, page: Arc<Page>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!("metrics cannot be served: {error}"),
    };
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Who makes a page keeps others from it meanwhile.
    let turn = Arc::new(Mutex::new(()));
    loop {
        let permit = Arc::clone(&room).acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (page, turn) = (Arc::clone(&page), Arc::clone(&turn));
                tokio::spawn(async move {
                    let _permit = permit;
                    if tokio::time::timeout(LIFE_MAX, converse(stream, page, turn)).await.is_err() {
                        tracing::debug!(%peer, "connection to the metrics port closed: it was open for too long");
                    }
                });
            }
            Err(error) => {
                tracing::debug!("a connection to the metrics port cannot be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Answers the requests of one connection.
async fn converse(stream: TcpStream, page: Arc<Page>, turn: Arc<Mutex<()>>) {
    let service = service_fn(|request: Request<Incoming>| {
        let (page, turn) = (Arc::clone(&page), Arc::clone(&turn));
        async move { Ok::<_, Infallible>(answer(&request, page, turn).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    // Whoever breaks off gets no answer; nobody else needs to know.
    let _ = serving.await;
}

async fn answer(request: &Request<Incoming>, page: Arc<Page>, turn: Arc<Mutex<()>>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET {
        let mut refused =
            plain(StatusCode::METHOD_NOT_ALLOWED, "there is nothing here but to GET\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return refused;
    }
    match request.uri().path() {
        "/health" => plain(StatusCode::OK, "well\n".to_owned()),
        "/metrics" => {
            let _turn = turn.lock().await;
            match tokio::task::spawn_blocking(move || page().map(|metrics| metrics.text())).await {
                Ok(Ok(text)) => respond(StatusCode::OK, OPEN_METRICS, text),
                Ok(Err(sentence)) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{sentence}\n")),
                Err(_) => {
                    plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be made\n".to_owned())
                }
            }
        }
        path => plain(StatusCode::NOT_FOUND, format!("there is no {path}; there are /metrics and /health\n")),
    }
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    respond(status, PLAIN, text)
}

fn respond(status: StatusCode, content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
