//! Connections and requests: HTTP/1.1 and HTTP/2 on one place, everything bounded.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::grpc::{self, Bad, MAX_BODY, status};
use super::{Answer, Counters, Place, Taking};
use crate::export::otlp::carrier::Signal;

/// Connections at once: an exporter has one, and a node has so many servers.
const MAX_CONNECTIONS: usize = 64;

/// Requests whose bodies are held at once.
const AT_ONCE: usize = 8;

/// For one request's body, and for a place among those at once.
const BODY: Duration = Duration::from_secs(10);

/// Between requests of HTTP/1.1, and between answers to pings of HTTP/2.
const IDLE: Duration = Duration::from_secs(60);

/// A place that was bound.
pub enum Bound {
    /// A port.
    Port(std::net::TcpListener),
    /// A Unix socket, which goes when the listener does.
    Socket(std::os::unix::net::UnixListener, PathBuf),
}

impl Bound {
    /// Its address, where it is a port.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Port(socket) => socket.local_addr().ok(),
            Self::Socket(..) => None,
        }
    }
}

/// Binds a place. A socket that an earlier process left behind is removed.
///
/// # Errors
/// When it cannot be had.
pub fn bind(place: &Place) -> std::io::Result<Bound> {
    match place {
        Place::Port(address) => {
            let socket = std::net::TcpListener::bind(address)?;
            socket.set_nonblocking(true)?;
            Ok(Bound::Port(socket))
        }
        Place::Socket(path) => {
            let stale = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
            if stale && std::os::unix::net::UnixStream::connect(path).is_err() {
                std::fs::remove_file(path)?;
            }
            let socket = std::os::unix::net::UnixListener::bind(path)?;
            socket.set_nonblocking(true)?;
            Ok(Bound::Socket(socket, path.clone()))
        }
    }
}

struct Desk {
    taking: Taking,
    counters: Arc<Counters>,
    places: Semaphore,
}

/// Starts the thread that answers.
///
/// # Errors
/// When the system gives no thread or no runtime.
pub fn spawn(bound: Bound, taking: Taking, stopped: watch::Receiver<bool>) -> std::io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let desk = Arc::new(Desk { counters: taking.counters(), taking, places: Semaphore::new(AT_ONCE) });
    thread::Builder::new().name("otlp-in".into()).spawn(move || {
        runtime.block_on(async {
            match bound {
                Bound::Port(socket) => match tokio::net::TcpListener::from_std(socket) {
                    Ok(socket) => serve(&desk, stopped, async || socket.accept().await.map(|(stream, _)| stream)).await,
                    Err(error) => tracing::error!("otlp_in: {error}: nothing is received"),
                },
                Bound::Socket(socket, path) => {
                    match tokio::net::UnixListener::from_std(socket) {
                        Ok(socket) => serve(&desk, stopped, async || socket.accept().await.map(|(stream, _)| stream)).await,
                        Err(error) => tracing::error!("otlp_in: {error}: nothing is received"),
                    }
                    let _ = std::fs::remove_file(path);
                }
            }
        });
        runtime.shutdown_background();
    })
}

async fn serve<S>(desk: &Arc<Desk>, mut stopped: watch::Receiver<bool>, accept: impl AsyncFn() -> std::io::Result<S>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            accepted = accept() => accepted,
            _ = stopped.changed() => return,
        };
        let Ok(stream) = accepted else {
            // No descriptors left, most likely: others may give some back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            desk.counters.refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            continue;
        };
        let desk = Arc::clone(desk);
        tokio::spawn(async move {
            let _place = place;
            let answer = |request| {
                let desk = Arc::clone(&desk);
                async move { Ok::<_, Infallible>(desk.answer(request).await) }
            };
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(64 << 10).max_headers(64);
            builder.http2().timer(TokioTimer::new()).max_concurrent_streams(16).max_header_list_size(16 << 10);
            builder.http2().keep_alive_interval(IDLE).keep_alive_timeout(IDLE);
            // Who goes between two requests is no trouble.
            let _ = builder.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn body(bytes: &'static [u8]) -> Body {
    Full::new(Bytes::from_static(bytes)).boxed_unsync()
}

fn response(code: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// How a request came.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Grpc,
    Protobuf,
    Json,
}

impl Way {
    fn of(request: &Request<Incoming>) -> Option<Self> {
        let media = text(request.headers(), CONTENT_TYPE.as_str())?.split(';').next()?.trim();
        match (media, request.uri().path()) {
            ("application/grpc" | "application/grpc+proto", grpc::EXPORT) => Some(Self::Grpc),
            ("application/x-protobuf", path) if path == Signal::Traces.path() => Some(Self::Protobuf),
            ("application/json", path) if path == Signal::Traces.path() => Some(Self::Json),
            _ => None,
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

impl Desk {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let grpc = text(request.headers(), CONTENT_TYPE.as_str()).is_some_and(|m| m.starts_with("application/grpc"));
        let way = Way::of(&request).filter(|_| request.method() == Method::POST);
        let answer = match way {
            Some(way) => self.take(way, request).await,
            None => Answer::Unknown,
        };
        self.counters.answered(answer);
        if grpc {
            return called(answer);
        }
        let code = match answer {
            Answer::Taken if way == Some(Way::Json) => return response(StatusCode::OK, "application/json", body(b"{}")),
            Answer::Taken => return response(StatusCode::OK, "application/x-protobuf", body(b"")),
            Answer::Bad => StatusCode::BAD_REQUEST,
            Answer::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Answer::Unknown => StatusCode::NOT_FOUND,
            Answer::Busy => StatusCode::SERVICE_UNAVAILABLE,
        };
        response(code, "text/plain", body(answer.as_str().as_bytes()))
    }

    async fn take(&self, way: Way, request: Request<Incoming>) -> Answer {
        let Ok(Ok(_place)) = timeout(BODY, self.places.acquire()).await else { return Answer::Busy };
        let (head, incoming) = request.into_parts();
        let collected = match timeout(BODY, Limited::new(incoming, MAX_BODY).collect()).await {
            Ok(Ok(collected)) => collected.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => return Answer::TooLarge,
            _ => return Answer::Bad,
        };
        let bytes = match (way, text(&head.headers, CONTENT_ENCODING.as_str())) {
            (Way::Grpc, _) => grpc::message(&collected, text(&head.headers, "grpc-encoding")),
            (_, None | Some("identity")) => Ok(collected.to_vec()),
            (_, Some("gzip")) => grpc::inflate(&collected),
            _ => Err(Bad::Frame),
        };
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(Bad::TooLarge) => return Answer::TooLarge,
            Err(Bad::Frame) => return Answer::Bad,
        };
        let request = match way {
            Way::Json => serde_json::from_slice(&bytes).ok(),
            _ => ExportTraceServiceRequest::decode(bytes.as_slice()).ok(),
        };
        let Some(request) = request else { return Answer::Bad };
        // What goes on is Protobuf, in whichever form it came.
        let bytes = if way == Way::Json { request.encode_to_vec() } else { bytes };
        self.taking.take(&request, bytes);
        Answer::Taken
    }
}

/// An answer in gRPC: an empty message and a status behind it, or the status alone.
fn called(answer: Answer) -> Response<Body> {
    let status = match answer {
        Answer::Taken => status::OK,
        Answer::Bad => status::INVALID_ARGUMENT,
        Answer::TooLarge => status::RESOURCE_EXHAUSTED,
        Answer::Unknown => status::UNIMPLEMENTED,
        Answer::Busy => status::UNAVAILABLE,
    };
    let value = HeaderValue::from_static(status);
    if answer != Answer::Taken {
        let mut response = response(StatusCode::OK, "application/grpc", body(b""));
        response.headers_mut().insert("grpc-status", value);
        return response;
    }
    let trailers = async move {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", value);
        Some(Ok(trailers))
    };
    let body = Full::new(Bytes::from_static(&[0; 5])).with_trailers(trailers).boxed_unsync();
    response(StatusCode::OK, "application/grpc", body)
}
