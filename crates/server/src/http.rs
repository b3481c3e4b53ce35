//! The HTTP port of a daemon: `GET /metrics` for Prometheus, `GET /health` for whoever asks whether it runs.
//!
//! One thread serves it, apart from all threads that serve verbs or operations, and sleeps while nobody asks. A page is made
//! on a thread of its own, since it may wait for memory servers; one at a time, and kept for a second, so that nobody can make the
//! daemon work by asking often. A connection has one request. There are not many of them, and one more closes the oldest: who
//! holds connections and says nothing keeps nobody out.

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

/// Connections at the same time.
const CONNECTIONS_MAX: usize = 64;
/// A client may take so long to ask.
const PATIENCE: Duration = Duration::from_secs(5);
/// A connection is closed after so long, whatever it does.
const LIFE_MAX: Duration = Duration::from_secs(60);
/// A listener that cannot accept is left alone for so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a page is good.
const KEPT: Duration = Duration::from_secs(1);
/// The text format of Prometheus, for whoever does not ask for the other one.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
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
    let pages = Arc::new(Pages { page, kept: Mutex::new(None) });
    // The oldest first.
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

/// A page in both formats, or why there is none.
#[derive(Clone)]
struct Texts {
    plain: Bytes,
    open_metrics: Bytes,
}

/// Makes pages, and keeps the last one for a moment.
struct Pages {
    page: Arc<Page>,
    /// Who makes a page keeps others from it meanwhile.
    kept: Mutex<Option<(Instant, Result<Texts, String>)>>,
}

impl Pages {
    /// The page of this moment, or of one shortly before; the error is a sentence, and outside of it that it panicked.
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

/// Answers the request of one connection.
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
    // Whoever breaks off gets no answer; nobody else needs to know.
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

/// Whether it says that it can read OpenMetrics, as a Prometheus that prefers it does.
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
