//! What inference servers tell, by each way that there is: scraped, by the hook, by spans.

use super::*;

/// Reads what inference servers say of themselves, when there is someone to tell it to.
pub(super) fn engines(config: &Config, metrics: &Metrics, otlp: bool) -> Result<Option<Scraping>, RunError> {
    let told = otlp || config.http.as_ref().is_some_and(|http| http.metrics);
    if !told || !config.engines.any() {
        return Ok(None);
    }
    let models = Models::new(&config.metrics).map_err(|what| ExportError::Config { what: format!("metrics: {what}") })?;
    let scraping = Scraping::start(&config.engines, models)?;
    metrics.watch(scraping.engines());
    Ok(Some(scraping))
}

/// Listens to what servers tell of their requests.
pub(super) fn hook(
    config: &Config,
    metrics: &Metrics,
    scraping: Option<&Scraping>,
    joining: &Joining,
    stop: &StopFlag,
) -> Result<Hook, RunError> {
    let models = Models::new(&config.metrics).map_err(|what| ExportError::Config { what: format!("metrics: {what}") })?;
    let figures = Arc::new(Figures::new(models, scraping.map(Scraping::engines)).joined(joining.engines()));
    let sink: Arc<dyn HookSink> = Arc::new(hook::All(vec![Arc::clone(&figures) as _]));
    let mut hook = Hook::start(&config.hook, config.taps.tls.enabled, &config.taps.tls.pids, &sink, stop)?;
    metrics.watch(hook.counters());
    metrics.watch(figures);
    Ok(hook)
}

/// Receives the spans of inference servers.
pub(super) fn receiving(config: &Config, metrics: &Metrics, otlp: Option<&Otlp>, joining: &Joining) -> Result<Option<Receiving>, RunError> {
    let Some(of) = &config.otlp_in else { return Ok(None) };
    let forward = match (of.forward, otlp.filter(|_| config.otlp.wants(Signal::Traces, &environment))) {
        (false, _) => None,
        (true, Some(otlp)) => Some(Box::new(otlp.sender().clone()) as Box<dyn Carrier>),
        (true, None) => return Err(ReceiveError::Config("forward: nothing says where to: `otlp` exports no traces".into()).into()),
    };
    let receiving = Receiving::start(of, Taking::new(joining.engines(), forward))?;
    metrics.watch(receiving.counters());
    Ok(Some(receiving))
}
