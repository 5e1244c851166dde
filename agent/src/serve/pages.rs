//! From request to answer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, ACCEPT_ENCODING, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};

use super::token::Tokens;
use super::{Counters, Metrics};
use crate::health::Health;

/// Longest profile, seconds.
pub const MAX_PROFILE: u64 = 60;

const TEXT: &str = "text/plain; charset=utf-8";

/// What is served, and to whom.
pub struct Pages {
    pub health: Arc<Health>,
    pub metrics: Option<Metrics>,
    pub profile: bool,
    /// One profile at a time.
    pub profiling: tokio::sync::Semaphore,
    pub tokens: Option<Tokens>,
    pub counters: Arc<Counters>,
}

type Answer = Response<Full<Bytes>>;

impl Pages {
    /// The answer to a request. Its body is not read.
    pub async fn answer(&self, request: Request<Incoming>) -> Answer {
        Counters::count(&self.counters.answered);
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD only\n");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        match request.uri().path() {
            "/healthz" | "/livez" => health(&self.health.alive(), "alive", "stuck"),
            "/readyz" => health(&self.health.ready(), "ready", "not ready"),
            "/metrics" if self.metrics.is_some() => match self.refuse(request.headers()) {
                Some(no) => no,
                None => self.metrics(request.headers()).await,
            },
            "/debug/pprof/profile" if self.profile => match self.refuse(request.headers()) {
                Some(no) => no,
                None => self.profile(request.uri().query()).await,
            },
            "/" => text(StatusCode::OK, self.list()),
            _ => text(StatusCode::NOT_FOUND, self.list()),
        }
    }

    fn list(&self) -> String {
        let mut list = "tokengauge\n/healthz\n/readyz\n".to_owned();
        if self.metrics.is_some() {
            list += "/metrics\n";
        }
        if self.profile {
            list += "/debug/pprof/profile?seconds=10\n";
        }
        list
    }

    /// The answer to whoever may not see a page.
    fn refuse(&self, headers: &HeaderMap) -> Option<Answer> {
        let tokens = self.tokens.as_ref()?;
        if tokens.allow(headers.get(AUTHORIZATION).map(HeaderValue::as_bytes)) {
            return None;
        }
        Counters::count(&self.counters.unauthorized);
        let mut answer = text(StatusCode::UNAUTHORIZED, "a bearer token is needed\n");
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tokengauge\""));
        Some(answer)
    }

    /// Where the agent spends its processor time in the next seconds.
    async fn profile(&self, query: Option<&str>) -> Answer {
        let asked = query.unwrap_or_default().split('&').find_map(|p| p.strip_prefix("seconds="));
        let seconds = match asked.map_or(Ok(10), str::parse::<u64>) {
            Ok(seconds @ 1..=MAX_PROFILE) => seconds,
            _ => return text(StatusCode::BAD_REQUEST, format!("seconds: expected 1 to {MAX_PROFILE}\n")),
        };
        let Ok(_only) = self.profiling.try_acquire() else {
            return text(StatusCode::CONFLICT, "a profile is being taken\n");
        };
        match crate::profile::take(Duration::from_secs(seconds)).await {
            Ok(packed) => {
                let mut answer = Response::new(Full::new(Bytes::from(packed)));
                answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
                answer
            }
            Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        }
    }

    /// Rendering thousands of series takes milliseconds: not on the thread that answers for the agent's health.
    async fn metrics(&self, headers: &HeaderMap) -> Answer {
        let Some(metrics) = self.metrics.clone() else { return text(StatusCode::NOT_FOUND, "") };
        let accept = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let gzip = takes_gzip(headers);
        let made = tokio::task::spawn_blocking(move || {
            let write = |to: &mut dyn io::Write| metrics(accept.as_deref(), to);
            if gzip { packed(write) } else { plain(write) }
        });
        let Ok(Ok((content_type, body))) = made.await else {
            return text(StatusCode::INTERNAL_SERVER_ERROR, "the page could not be made\n");
        };
        let mut answer = Response::new(Full::new(Bytes::from(body)));
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
        if gzip {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        answer
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

fn health(verdict: &crate::health::Verdict, yes: &str, no: &str) -> Answer {
    let status = if verdict.good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    text(status, verdict.text(yes, no))
}

/// Whether `Accept-Encoding` takes gzip (RFC 9110 §12.5.3): named, or by `*`, with a weight that is not 0.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let (mut named, mut any) = (None, None);
    for value in headers.get_all(ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok()) {
        for part in value.split(',') {
            let mut words = part.split(';').map(str::trim);
            let coding = words.next().unwrap_or_default();
            let weight = words.find_map(|w| w.strip_prefix("q=")).and_then(|q| q.parse::<f32>().ok()).unwrap_or(1.0);
            match coding {
                c if c.eq_ignore_ascii_case("gzip") || c.eq_ignore_ascii_case("x-gzip") => named = Some(weight > 0.0),
                "*" => any = Some(weight > 0.0),
                _ => {}
            }
        }
    }
    named.or(any).unwrap_or(false)
}

/// What is written, and what the writer says.
fn plain<T>(write: impl FnOnce(&mut dyn io::Write) -> io::Result<T>) -> io::Result<(T, Vec<u8>)> {
    let mut body = Vec::new();
    Ok((write(&mut body)?, body))
}

/// The same, compressed as it is written: a page of many series is never whole in memory.
fn packed<T>(write: impl FnOnce(&mut dyn io::Write) -> io::Result<T>) -> io::Result<(T, Vec<u8>)> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let said = write(&mut encoder)?;
    Ok((said, encoder.finish()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codings_are_negotiated() {
        for (value, want) in [
            ("gzip", true),
            ("br, gzip;q=0.5", true),
            ("*", true),
            ("gzip;q=0", false),
            ("gzip;q=0, *", false),
            ("*;q=0", false),
            ("identity", false),
            ("br", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]);
            assert_eq!(takes_gzip(&headers), want, "{value}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
