//! The HTTP port of a daemon: `GET /metrics` for Prometheus, `GET /health` as a check that the daemon runs.
//!
//! One thread serves the port, apart from all threads that serve verbs or operations, and sleeps while there
//! are no requests. A page is made on another thread, since it may wait for memory servers. Pages are made
//! one at a time and kept for a second, so that frequent requests cause no work. A connection has one
//! request. The number of connections is bounded, and one more closes the oldest: silent connections block no
//! client.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue, VARY};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, oneshot};
use tokio::task::AbortHandle;

use crate::metrics::Metrics;

/// Largest number of simultaneous connections.
const CONNECTIONS_MAX: usize = 64;
/// Time within which a client must send its request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time after which a connection is closed in any case.
const LIFE_MAX: Duration = Duration::from_secs(60);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for which a page is reused.
const KEPT: Duration = Duration::from_secs(1);
/// Text format of Prometheus, unless the client accepts OpenMetrics.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Failure to open the port.
#[derive(Debug, thiserror::Error)]
#[error("the metrics port {address} cannot be opened: {source}")]
pub struct HttpError {
    address: String,
    source: io::Error,
}

/// Makes the page of metrics; the error is a sentence.
type Page = dyn Fn() -> Result<Metrics, String> + Send + Sync;

/// An HTTP port, which serves metrics until it is dropped.
#[derive(Debug)]
pub struct HttpPort {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpPort {
    /// Listens at `address`, `host:port`, and serves pages made by `page`.
    ///
    /// # Errors
    /// An address that cannot be listened at; errors of the system when the thread is created.
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
            // An error means that the sender was dropped, which ends the server.
            let _ = runtime.block_on(stopped);
            // Does not wait for a page being made.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("pando-http".to_owned()).spawn(serving).map_err(failed)?;
        Ok(Self { addr, stop: Some(stop), thread: Some(thread) })
    }

    /// Address at which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for HttpPort {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

async fn serve(listener: StdListener, page: Arc<Page>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!("metrics cannot be served: {error}"),
    };
    let pages = Arc::new(Pages { page, kept: Mutex::new(None) });
    // Oldest first.
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() >= CONNECTIONS_MAX
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                let pages = Arc::clone(&pages);
                let conversing = tokio::spawn(async move {
                    if tokio::time::timeout(LIFE_MAX, converse(stream, pages)).await.is_err() {
                        tracing::debug!(%peer, "connection to the metrics port closed: it was open for too long");
                    }
                });
                open.push_back(conversing.abort_handle());
            }
            Err(error) => {
                tracing::debug!("a connection to the metrics port cannot be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A page in both formats.
#[derive(Clone)]
struct Texts {
    plain: Bytes,
    open_metrics: Bytes,
}

/// Makes pages, and keeps the last one for a second.
struct Pages {
    page: Arc<Page>,
    /// Locked while a page is made.
    kept: Mutex<Option<(Instant, Result<Texts, String>)>>,
}

impl Pages {
    /// The current page, or one made within the last second. The inner error is a sentence; the outer error
    /// is a panic of `page`.
    async fn now(&self) -> Result<Result<Texts, String>, tokio::task::JoinError> {
        let mut kept = self.kept.lock().await;
        if let Some((made, texts)) = &*kept
            && made.elapsed() < KEPT
        {
            return Ok(texts.clone());
        }
        let page = Arc::clone(&self.page);
        let made = tokio::task::spawn_blocking(move || {
            page().map(|metrics| Texts {
                plain: metrics.text().into(),
                open_metrics: metrics.open_metrics().into(),
            })
        });
        let texts = made.await?;
        *kept = Some((Instant::now(), texts.clone()));
        Ok(texts)
    }
}

/// Serves one connection, which has one request.
async fn converse(stream: TcpStream, pages: Arc<Pages>) {
    let service = service_fn(|request: Request<Incoming>| {
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(answer(&request, &pages).await) }
    });
    let serving = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    // If the client breaks the connection, no answer is needed.
    let _ = serving.await;
}

async fn answer(request: &Request<Incoming>, pages: &Pages) -> Response<Full<Bytes>> {
    if request.method() != Method::GET {
        let mut refused =
            plain(StatusCode::METHOD_NOT_ALLOWED, "there is nothing here but to GET\n".to_owned());
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return refused;
    }
    match request.uri().path() {
        "/health" => plain(StatusCode::OK, "well\n".to_owned()),
        "/metrics" => match pages.now().await {
            Ok(Ok(texts)) => {
                let (format, text) = match wants_open_metrics(request) {
                    true => (OPEN_METRICS, texts.open_metrics),
                    false => (TEXT, texts.plain),
                };
                let mut response = respond(StatusCode::OK, format, text);
                response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
                response
            }
            Ok(Err(sentence)) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{sentence}\n")),
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be made\n".to_owned()),
        },
        path => plain(StatusCode::NOT_FOUND, format!("there is no {path}; there are /metrics and /health\n")),
    }
}

/// Whether the request accepts OpenMetrics, as that of a Prometheus which prefers it.
fn wants_open_metrics(request: &Request<Incoming>) -> bool {
    let accepted = request.headers().get_all(ACCEPT).into_iter().filter_map(|accept| accept.to_str().ok());
    accepted.flat_map(|accept| accept.split(',')).any(|kind| {
        kind.split(';')
            .next()
            .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/openmetrics-text"))
    })
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    respond(status, PLAIN, text.into())
}

fn respond(status: StatusCode, content_type: &'static str, text: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
