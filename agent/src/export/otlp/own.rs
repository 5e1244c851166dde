//! Spans of the agent itself, for `tracing-opentelemetry`: by the SDK and `opentelemetry-otlp`, as in any other program. They are no measurements:
//! they wait nowhere, and nobody counts them.

use std::collections::HashMap;

use opentelemetry_otlp::tonic_types::metadata::MetadataMap;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;

use super::carrier::Signal;
use super::client::tonic_tls;
use super::settings::Target;
use super::{Compression, Config, Env, Protocol};
use crate::chain::chain;
use crate::export::ExportError;

/// Makes and sends them to where the measured spans go. Must be called within a tokio runtime.
///
/// # Errors
/// When a setting is wrong.
pub fn provider(config: &Config, env: Env<'_>, resource: Resource) -> Result<SdkTracerProvider, ExportError> {
    let exporter = exporter(Target::new(config, Signal::Traces, env)?)?;
    Ok(SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build())
}

fn exporter(target: Target) -> Result<SpanExporter, ExportError> {
    let compression = match target.compression {
        Compression::None => None,
        Compression::Gzip => Some(opentelemetry_otlp::Compression::Gzip),
        Compression::Zstd => Some(opentelemetry_otlp::Compression::Zstd),
    };
    let built = match target.protocol {
        Protocol::Grpc => {
            let metadata = MetadataMap::from_headers(target.headers.clone());
            let mut builder =
                SpanExporter::builder().with_tonic().with_endpoint(&target.url).with_timeout(target.timeout).with_metadata(metadata);
            if target.url.starts_with("https://") {
                builder = builder.with_tls_config(tonic_tls(&target.pem));
            }
            if let Some(compression) = compression {
                builder = builder.with_compression(compression);
            }
            builder.build()
        }
        Protocol::HttpProtobuf | Protocol::HttpJson => {
            let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let headers: HashMap<_, _> = target.headers.iter().map(|(k, v)| (k.to_string(), text(v))).collect();
            let mut builder = SpanExporter::builder()
                .with_http()
                .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
                .with_endpoint(&target.url)
                .with_timeout(target.timeout)
                .with_http_client(client(&target)?)
                .with_headers(headers);
            if let Some(compression) = compression {
                builder = builder.with_compression(compression);
            }
            builder.build()
        }
    };
    built.map_err(|e| wrong(&target, &e))
}

fn wrong(target: &Target, error: &dyn std::error::Error) -> ExportError {
    ExportError::Config { what: format!("the agent's own spans to {}: {}", target.shown, chain(error)) }
}

fn client(target: &Target) -> Result<reqwest::blocking::Client, ExportError> {
    // The blocking client must be built outside of a runtime: it has one of its own.
    let (pem, timeout) = (target.pem.clone(), target.timeout);
    let build = move || {
        let mut client = reqwest::blocking::Client::builder().timeout(timeout).redirect(reqwest::redirect::Policy::none());
        if let Some(pem) = &pem.authority {
            client = client.tls_certs_merge(reqwest::Certificate::from_pem_bundle(pem)?);
        }
        if let Some((certificate, key)) = &pem.identity {
            client = client.identity(reqwest::Identity::from_pem(&[certificate, b"\n".as_slice(), key].concat())?);
        }
        client.build()
    };
    let no_thread = || ExportError::Config { what: "the HTTP client cannot be built".to_owned() };
    std::thread::spawn(build).join().map_err(|_| no_thread())?.map_err(|e| wrong(target, &e))
}
