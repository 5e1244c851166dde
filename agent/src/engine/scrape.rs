//! One scrape of one server: a bounded answer within a bounded time, read while it comes.

use std::error::Error as _;
use std::net::SocketAddr;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, Url};
use tokengauge_core::engine::gather::{Gather, Reading};
use tokengauge_core::engine::text::{Counts, Reader};

/// Most bytes of an answer. Busy servers write some hundred kilobytes.
const MAX_BODY: usize = if cfg!(test) { 1 << 20 } else { 16 << 20 };

/// What a scrape gave.
#[derive(Debug)]
pub struct Read {
    /// The figures.
    pub reading: Reading,
    /// What was read and what could not be.
    pub counts: Counts,
    /// The address that answered.
    pub remote: Option<SocketAddr>,
}

/// Why a scrape gave nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScrapeError {
    /// Nobody is there, or TLS failed.
    #[error("{what}")]
    Connect {
        /// What the system said.
        what: String,
    },
    /// The answer was not complete in time.
    #[error("no whole answer within {} s", .after.as_secs_f64())]
    Timeout {
        /// The time it had.
        after: Duration,
    },
    /// The answer is no 200; redirects are not followed.
    #[error("status {status}{}", hint(*.status))]
    Status {
        /// The status.
        status: u16,
    },
    /// The answer is larger than any.
    #[error("larger than {} MiB", MAX_BODY >> 20)]
    TooLarge,
    /// The answer broke off.
    #[error("the answer broke off: {what}")]
    CutShort {
        /// What was wrong.
        what: String,
    },
    /// The answer has no figure that is known of any server.
    #[error("{samples} samples, none of a known inference server")]
    NoFigures {
        /// How many there were of others.
        samples: u64,
    },
    /// It listens where it cannot be reached from here.
    #[error("listens on the loopback of another network namespace only")]
    Elsewhere,
    /// The file of the token cannot be read, or is none.
    #[error("bearer_token_file: {what}")]
    Token {
        /// What is wrong.
        what: String,
    },
}

fn hint(status: u16) -> &'static str {
    match status {
        401 | 403 => ": needs engines.endpoints[].bearer_token_file",
        404 => ": metrics are elsewhere, or off (SGLang: --enable-metrics)",
        501 => ": metrics are off (llama.cpp: --metrics)",
        _ => "",
    }
}

impl ScrapeError {
    /// The value of `tokengauge.result`.
    pub const fn result(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "connect",
            Self::Timeout { .. } => "timeout",
            Self::Status { .. } => "status",
            Self::TooLarge => "too_large",
            Self::CutShort { .. } => "cut_short",
            Self::NoFigures { .. } => "no_figures",
            Self::Elsewhere => "unreachable",
            Self::Token { .. } => "token",
        }
    }
}

/// The client of all scrapes: no redirects, no proxy, no compression.
///
/// # Errors
/// When the system's certificates cannot be read.
pub fn client(timeout: Duration) -> Result<Client, reqwest::Error> {
    Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .timeout(timeout)
        .pool_max_idle_per_host(1)
        .user_agent(concat!("tokengauge/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Asks once.
///
/// # Errors
/// When it gave nothing that can be used; a text with bad lines can.
pub async fn scrape(client: &Client, url: Url, token: Option<HeaderValue>, timeout: Duration) -> Result<Read, ScrapeError> {
    let mut request = client.get(url).header(ACCEPT, "text/plain;version=0.0.4,*/*;q=0.1");
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, token);
    }
    let failed = |error: reqwest::Error| {
        if error.is_timeout() {
            ScrapeError::Timeout { after: timeout }
        } else if error.is_connect() || error.is_request() {
            ScrapeError::Connect { what: innermost(&error) }
        } else {
            ScrapeError::CutShort { what: innermost(&error) }
        }
    };
    let mut response = request.send().await.map_err(failed)?;
    let status = response.status().as_u16();
    if status != 200 {
        return Err(ScrapeError::Status { status });
    }
    if response.content_length().is_some_and(|n| n > MAX_BODY as u64) {
        return Err(ScrapeError::TooLarge);
    }
    let remote = response.remote_addr();
    let kind = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let open_metrics = kind.starts_with("application/openmetrics-text");
    let (mut reader, mut gather, mut bytes) = (Reader::default(), Gather::default(), 0_usize);
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        bytes = bytes.saturating_add(chunk.len());
        if bytes > MAX_BODY {
            return Err(ScrapeError::TooLarge);
        }
        reader.push(&chunk, &mut |sample| gather.sample(sample));
    }
    let counts = reader.finish(&mut |sample| gather.sample(sample));
    if open_metrics && !counts.ended {
        return Err(ScrapeError::CutShort { what: "no # EOF".into() });
    }
    let reading = gather.finish();
    if reading.series.is_empty() {
        return Err(ScrapeError::NoFigures { samples: counts.samples });
    }
    Ok(Read { reading, counts, remote })
}

/// What lies at the bottom of an error: "Connection refused" rather than "error sending request for url".
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    if let Some(source) = error.source() {
        cause = source;
        while let Some(source) = cause.source() {
            cause = source;
        }
    }
    cause.to_string()
}

/// The credential that a file holds.
///
/// # Errors
/// When it cannot be read, or is no single line of printable characters.
pub fn token(path: &std::path::Path) -> Result<HeaderValue, ScrapeError> {
    let wrong = |what: String| ScrapeError::Token { what: format!("{}: {what}", path.display()) };
    let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    let mut value = HeaderValue::from_str(&format!("Bearer {}", text.trim())).map_err(|_| wrong("no token".into()))?;
    value.set_sensitive(true);
    Ok(value)
}
