//! Connections: accepted up to a bound, each with a time by which it must have shaken hands, sent a head, and ended.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::Counters;
use super::pages::{MAX_PROFILE, Pages};
use super::tls::Acceptor;

/// Connections at once. A kubelet, a Prometheus or two, a person: what is beyond is no friend.
const MAX_CONNECTIONS: usize = 64;

/// For a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// For a head, from the first byte or the last answer on.
const HEAD: Duration = Duration::from_secs(10);

/// For a connection as a whole: then it is asked to end, and ended a while later.
const LIFE: Duration = Duration::from_secs(60);

/// For the last answer of a connection whose time is over; a profile may take as long as it may.
const GRACE: Duration = Duration::from_secs(10 + MAX_PROFILE);

/// Largest head.
const MAX_HEAD: usize = 16 << 10;

/// Most headers.
const MAX_HEADERS: usize = 64;

/// Starts the thread that answers.
pub fn spawn(socket: TcpListener, tls: Option<Acceptor>, pages: Pages, stopped: watch::Receiver<bool>) -> std::io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().thread_name("http-page").max_blocking_threads(2).build()?;
    thread::Builder::new().name("http".into()).spawn(move || {
        runtime.block_on(serve(socket, tls.map(Arc::new), Arc::new(pages), stopped));
        // A page that is being made is not waited for.
        runtime.shutdown_background();
    })
}

async fn serve(socket: TcpListener, tls: Option<Arc<Acceptor>>, pages: Arc<Pages>, mut stopped: watch::Receiver<bool>) {
    let socket = match tokio::net::TcpListener::from_std(socket) {
        Ok(socket) => socket,
        Err(error) => return tracing::error!("http: {error}: nothing is served"),
    };
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            _ = stopped.changed() => return,
        };
        let Ok((stream, _)) = accepted else {
            // No descriptors left, most likely: others may give some back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            Counters::count(&pages.counters.refused);
            continue;
        };
        let (tls, pages) = (tls.clone(), Arc::clone(&pages));
        tokio::spawn(async move {
            let _place = place;
            let _ = stream.set_nodelay(true);
            match tls {
                None => connection(stream, &pages).await,
                Some(tls) => match timeout(HANDSHAKE, tls.get().accept(stream)).await {
                    Ok(Ok(stream)) => connection(stream, &pages).await,
                    _ => Counters::count(&pages.counters.broken),
                },
            }
        });
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, pages: &Arc<Pages>) {
    let answer = |request| {
        let pages = Arc::clone(pages);
        async move { Ok::<_, Infallible>(pages.answer(request).await) }
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    tokio::pin!(connection);
    let ended = match timeout(LIFE, connection.as_mut()).await {
        Ok(ended) => ended,
        Err(_) => {
            connection.as_mut().graceful_shutdown();
            timeout(GRACE, connection).await.unwrap_or(Ok(()))
        }
    };
    // Clients that simply go between two requests are no trouble.
    if ended.is_err_and(|e| e.is_parse() || e.is_timeout()) {
        Counters::count(&pages.counters.broken);
    }
}
