//! The agent's own log on standard error, and its own spans by OTLP. Neither holds anything of the traffic.

use std::io::IsTerminal as _;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokengauge_core::semconv::AGENT_SCOPE;
use tracing::Level;
use tracing_subscriber::filter::{EnvFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, fmt};

/// The HTTP and gRPC machinery is silent unless something is wrong; what the SDK fails to deliver is said, and counted, by the
/// OTLP exporter itself.
const DEFAULT: &str =
    "info,h2=warn,hyper=warn,hyper_util=warn,reqwest=warn,tonic=warn,tower=warn,opentelemetry=off,rustls_platform_verifier=off";

/// Starts logging. The filter is, in this order, the one given, `RUST_LOG`, or the default.
///
/// # Errors
/// When the filter cannot be read.
pub fn start(filter: Option<&str>, own: Option<&SdkTracerProvider>) -> Result<(), String> {
    let said = filter.map(str::to_owned).or_else(|| crate::export::otlp::environment("RUST_LOG"));
    let said =
        said.map_or_else(|| DEFAULT.to_owned(), |f| if f.contains(',') || f.contains('=') { f } else { DEFAULT.replacen("info", &f, 1) });
    let filter = EnvFilter::try_new(&said).map_err(|e| format!("log filter `{said}`: {e}"))?;
    let spans = own.map(|provider| {
        let only_ours = Targets::new().with_target("tokengauge", Level::INFO);
        tracing_opentelemetry::layer().with_tracer(provider.tracer(AGENT_SCOPE)).with_filter(only_ours)
    });
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).with_target(false).with_filter(filter);
    // A test that has a subscriber of its own keeps it.
    let _ = tracing_subscriber::registry().with(lines).with(spans).try_init();
    Ok(())
}
