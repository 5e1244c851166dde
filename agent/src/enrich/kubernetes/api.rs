//! Requests to an API server or a kubelet: bounded answers, one small error. Tokens and authorities are kube's matter.

use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokengauge_core::framing::Unit;
use tokengauge_core::framing::ndjson::Framer;

use crate::chain::chain;
use crate::enrich::config::Kubelet;

/// Longest answer to a request that is no watch. A page of pods is 250 of them, mostly 10 KB each; the kubelet gives all of a node's at once.
const MAX_ANSWER: usize = 64 << 20;

/// Longest that such an answer may take.
const WITHIN: Duration = Duration::from_secs(30);

/// Longest silence of a watch: a bookmark comes about every minute.
const SILENCE: Duration = Duration::from_secs(180);

/// Longest text of an error that is read, and told.
const MAX_ERROR: usize = 4_096;

/// Why there is no answer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApiError {
    /// The server does not know us, or does not let us: 401, 403.
    #[error("{0}")]
    Denied(String),
    /// The place in a watch, or the rest of a list, is forgotten: 410.
    #[error("the server has forgotten the place: {0}")]
    Gone(String),
    /// There is no such thing: 404.
    #[error("{0}")]
    NotFound(String),
    /// No answer, or one that says that there is none now.
    #[error("{0}")]
    Unreachable(String),
    /// An answer that is none.
    #[error("an answer that cannot be read: {0}")]
    Odd(String),
}

/// A server.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
}

/// `v1.Status`, as far as it is read.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Status {
    /// Why, for people.
    pub message: String,
    /// The HTTP status that it stands for.
    pub code: u16,
}

/// A client by the pod's service account, or by KUBECONFIG, and its configuration: a kubelet takes the same token. Call it within a runtime.
///
/// # Errors
/// When there is neither, or what there is is of no use.
pub async fn connect() -> Result<(Api, kube::Config), String> {
    // Two crypto providers are in the tree (ring, aws-lc-rs), so that rustls wants to be told; whoever was first is right.
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let config = match kube::Config::incluster() {
        Ok(config) => config,
        Err(inside) => kube::Config::infer().await.map_err(|outside| format!("{inside}; {outside}"))?,
    };
    let api = Api::new(config.clone()).map_err(|error| error.to_string())?;
    Ok((api, config))
}

impl Api {
    /// Of a kubelet, with the token of that configuration, which is shown to nobody whose certificate is not the cluster's, unless that is asked for.
    ///
    /// # Errors
    /// When its address is not known, or the configuration is of no use.
    pub fn of_kubelet(mut config: kube::Config, settings: &Kubelet) -> Result<Self, String> {
        let endpoint = settings.endpoint.as_deref().ok_or("its address is not known: set HOST_IP or kubernetes.kubelet.endpoint")?;
        let uri = endpoint.parse::<http::Uri>().map_err(|error| format!("{endpoint}: {error}"))?;
        (config.cluster_url, config.tls_server_name) = (uri, None);
        config.accept_invalid_certs = settings.insecure_skip_verify;
        if let Some(ca) = &settings.ca_file {
            config.root_cert_file = Some(ca.clone());
        }
        Self::new(config).map_err(|error| error.to_string())
    }

    /// Of that configuration. Call it within a runtime.
    ///
    /// # Errors
    /// When the configuration is of no use (a certificate that is none).
    pub fn new(mut config: kube::Config) -> Result<Self, ApiError> {
        // How long to wait, and how often to ask again, is decided by who asks.
        config.default_retry = false;
        config.connect_timeout = Some(Duration::from_secs(10));
        let client = kube::Client::try_from(config).map_err(|error| ApiError::Unreachable(chain(&error)))?;
        Ok(Self { client })
    }

    /// The object at a path.
    ///
    /// # Errors
    /// When there is no answer, or none that can be read, within 30 s.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let bytes = tokio::time::timeout(WITHIN, async {
            let body = self.send(path).await?;
            read(body, MAX_ANSWER).await
        });
        let bytes = bytes.await.map_err(|_| ApiError::Unreachable(format!("no answer within {} s", WITHIN.as_secs())))??;
        serde_json::from_slice(&bytes).map_err(|error| ApiError::Odd(error.to_string()))
    }

    /// Begins a watch at a path.
    ///
    /// # Errors
    /// When the server does not let it begin.
    pub async fn watch(&self, path: &str) -> Result<Watching, ApiError> {
        let sent = tokio::time::timeout(WITHIN, self.send(path)).await;
        let body = sent.map_err(|_| ApiError::Unreachable(format!("no answer within {} s", WITHIN.as_secs())))??;
        Ok(Watching { body, framer: Framer::default() })
    }

    async fn send(&self, path: &str) -> Result<Body, ApiError> {
        let request = Request::get(path).header(http::header::ACCEPT, "application/json").body(Body::empty());
        let request = request.map_err(|error| ApiError::Odd(error.to_string()))?;
        let response = self.client.send(request).await.map_err(|error| match error {
            kube::Error::Auth(_) => ApiError::Denied(chain(&error)),
            _ => ApiError::Unreachable(chain(&error)),
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response.into_body());
        }
        let body = read(response.into_body(), MAX_ERROR).await.unwrap_or_default();
        Err(refusal(status, &body))
    }
}

/// What a server says instead of an answer.
fn refusal(status: StatusCode, body: &[u8]) -> ApiError {
    let told = serde_json::from_slice::<Status>(body).map(|s| s.message).unwrap_or_default();
    let what = if told.is_empty() { status.to_string() } else { format!("{}: {told}", status.as_u16()) };
    of_code(status.as_u16(), what)
}

/// The error that a status stands for.
pub fn of_code(code: u16, what: String) -> ApiError {
    match code {
        401 | 403 => ApiError::Denied(what),
        404 => ApiError::NotFound(what),
        410 => ApiError::Gone(what),
        _ => ApiError::Unreachable(what),
    }
}

async fn read(mut body: Body, most: usize) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::Unreachable(chain(&error)))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > most {
            return Err(ApiError::Odd(format!("more than {most} bytes")));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// A watch that was begun.
pub struct Watching {
    body: Body,
    framer: Framer,
}

impl Watching {
    /// Waits for what comes next: its lines, each an event; `None` for one that is too long to be read. The result is whether more may come.
    ///
    /// # Errors
    /// When the connection broke, or nothing came for three minutes.
    pub async fn next(&mut self, mut line: impl FnMut(Option<&[u8]>)) -> Result<bool, ApiError> {
        let frame = tokio::time::timeout(SILENCE, self.body.frame()).await;
        let frame = frame.map_err(|_| ApiError::Unreachable(format!("nothing came for {} s", SILENCE.as_secs())))?;
        let Some(frame) = frame else { return Ok(false) };
        let frame = frame.map_err(|error| ApiError::Unreachable(chain(&error)))?;
        if let Ok(data) = frame.into_data() {
            self.framer.push(&data, &mut |unit| match unit {
                Unit::Event(frame) => line(Some(frame.data)),
                Unit::Odd(_) => line(None),
                _ => {}
            });
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_why() {
        let forbidden = br#"{"kind":"Status","status":"Failure","message":"pods is forbidden: User \"x\" cannot list","reason":"Forbidden","code":403}"#;
        assert_eq!(refusal(StatusCode::FORBIDDEN, forbidden), ApiError::Denied("403: pods is forbidden: User \"x\" cannot list".into()));
        assert_eq!(refusal(StatusCode::UNAUTHORIZED, b"<html>"), ApiError::Denied("401 Unauthorized".into()));
        assert_eq!(refusal(StatusCode::GONE, b""), ApiError::Gone("410 Gone".into()));
        assert_eq!(refusal(StatusCode::NOT_FOUND, b""), ApiError::NotFound("404 Not Found".into()));
        for code in [429, 500, 503, 504] {
            assert!(matches!(refusal(StatusCode::from_u16(code).unwrap(), b"{}"), ApiError::Unreachable(_)), "{code}");
        }
    }
}
