//! The inference record, version 1: the public contract of `replay --format jsonl` and `run --jsonl`.
//!
//! Fields are added, never renamed or re-purposed within version 1. Unknown is `null`, never 0 or "". The structs borrow from
//! the [`Inference`]; nothing is copied but the gaps, which are sorted in a buffer that is used again.

use serde::Serialize;
use tokengauge_core::gaps::Gaps;
use tokengauge_core::inference::{Inference, Outcome, Reason, Stage, Usage};
use tokengauge_core::name::Name;
use tokengauge_core::tenant::Tenant;

use workload::{Observed, Workload};

mod workload;

/// Writes records, one JSON object per line, into a buffer that it keeps.
#[derive(Debug, Default)]
pub struct Writer {
    line: Vec<u8>,
    sorted: Vec<u64>,
}

impl Writer {
    /// The line of one inference, with its line end.
    pub fn line(&mut self, inference: &Inference) -> &[u8] {
        self.line.clear();
        let record = Record::new(inference, &mut self.sorted);
        if serde_json::to_writer(&mut self.line, &record).is_err() {
            // Writing plain structs to a Vec cannot fail; were it so, half a line must not leave.
            self.line.clear();
            return &self.line;
        }
        self.line.push(b'\n');
        &self.line
    }
}

#[derive(Serialize)]
struct Record<'a> {
    v: u8,
    start_unix_nano: String,
    tap: &'static str,
    vantage: &'static str,
    api: &'static str,
    provider: Option<&'static str>,
    operation: &'static str,
    stream: Option<bool>,
    protocol: &'static str,
    client: Client<'a>,
    server: Server<'a>,
    workload: Option<Observed<'a>>,
    request: Request<'a>,
    response: Response<'a>,
    outcome: &'static str,
    ended_by: &'static str,
    error: Option<Failure<'a>>,
    usage: UsageCounts,
    chunks: Chunks,
    timing_s: Timing,
    rates: Rates,
    batch_ratio: Option<f64>,
    gaps: u32,
    undefined: Undefined,
    server_timing_s: Option<ServerTiming>,
    trace: Trace,
}

#[derive(Serialize)]
struct Client<'a> {
    address: Option<String>,
    port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<Workload<'a>>,
}

#[derive(Serialize)]
struct Server<'a> {
    address: Option<String>,
    port: Option<u16>,
    host: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<Workload<'a>>,
}

#[derive(Serialize)]
struct Request<'a> {
    model: Option<&'a str>,
    bytes: u64,
    id: Option<&'a str>,
    traceparent: Option<String>,
    tenant: Option<&'a str>,
}

#[derive(Serialize)]
struct Response<'a> {
    model: Option<&'a str>,
    id: Option<&'a str>,
    status: Option<u16>,
    finish_reasons: Vec<&'a str>,
    bytes: u64,
    content_encoding: Option<&'static str>,
    request_id: Option<&'a str>,
    retry_after_s: Option<f64>,
    rate_limit: Option<RateLimit>,
}

#[derive(Serialize)]
struct RateLimit {
    remaining_requests: Option<u64>,
    remaining_tokens: Option<u64>,
}

#[derive(Serialize)]
struct Failure<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    stage: &'static str,
}

#[derive(Serialize)]
struct UsageCounts {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_write_input_tokens: Option<u64>,
    reasoning_output_tokens: Option<u64>,
    source: Option<&'static str>,
}

#[derive(Serialize)]
struct Chunks {
    events: u32,
    generated: u32,
    reasoning: u32,
    tool_starts: u32,
    arrivals: u32,
    coalesced: u32,
}

#[derive(Serialize)]
struct Timing {
    request_sent: Option<f64>,
    response_head: Option<f64>,
    first_body_byte: Option<f64>,
    first_event: Option<f64>,
    first_reasoning: Option<f64>,
    first_output: Option<f64>,
    ttft: Option<f64>,
    ttfa: Option<f64>,
    last_generated: Option<f64>,
    duration: Option<f64>,
    tpot: Option<f64>,
    tpot_after_first_chunk: Option<f64>,
    tpot_without_reasoning: bool,
    max_stall: Option<f64>,
    inter_chunk: Option<InterChunk>,
}

/// Of the gaps between generated events of one choice. Percentiles are `null` when there were more gaps than are kept: those of a
/// part would be no figures of the request.
#[derive(Serialize, Default)]
struct InterChunk {
    count: u64,
    mean: f64,
    min: Option<f64>,
    p50: Option<f64>,
    p90: Option<f64>,
    p95: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
}

#[derive(Serialize)]
struct Rates {
    output_tokens_per_s: Option<f64>,
    total_tokens_per_s: Option<f64>,
}

#[derive(Serialize)]
struct Undefined {
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttfa: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tpot: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_stall: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'static str>,
}

#[derive(Serialize)]
struct ServerTiming {
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tpot: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<f64>,
}

#[derive(Serialize)]
struct Trace {
    trace_id: String,
    span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<String>,
}

impl<'a> Record<'a> {
    fn new(i: &'a Inference, sorted: &mut Vec<u64>) -> Self {
        let t = &i.timing;
        let seconds = |d: Option<std::time::Duration>| d.map(|d| d.as_secs_f64());
        let usage = i.usage.unwrap_or_default();
        let limits = i.response.limits;
        let limited = limits.remaining_requests.is_some() || limits.remaining_tokens.is_some();
        Self {
            v: 1,
            start_unix_nano: t.start.unix_nanos().to_string(),
            tap: i.tap.as_str(),
            vantage: i.vantage.as_str(),
            api: i.api,
            provider: i.provider,
            operation: i.operation.as_str(),
            stream: i.stream,
            protocol: i.protocol,
            client: Client {
                address: i.client.map(|a| a.ip().to_string()),
                port: i.client.map(|a| a.port()),
                workload: i.client_workload.as_deref().map(Workload::new),
            },
            server: Server {
                address: i.server.map(|a| a.ip().to_string()),
                port: i.server.map(|a| a.port()),
                host: i.host.as_ref().map(Name::as_str),
                workload: i.server_workload.as_deref().map(Workload::new),
            },
            workload: Observed::new(i),
            request: Request {
                model: i.request.model.as_ref().map(Name::as_str),
                bytes: i.request.bytes,
                id: i.request.id.as_ref().map(Name::as_str),
                traceparent: i.request.traceparent.map(|p| format!("00-{:032x}-{:016x}-{:02x}", p.trace_id, p.span_id, p.flags)),
                tenant: i.request.tenant.as_ref().map(Tenant::as_str),
            },
            response: Response {
                model: i.response.model.as_ref().map(Name::as_str),
                id: i.response.id.as_ref().map(Name::as_str),
                status: i.response.status,
                finish_reasons: i.response.finish_reasons.iter().map(Name::as_str).collect(),
                bytes: i.response.bytes,
                content_encoding: i.response.content_encoding,
                request_id: i.response.request_id.as_ref().map(Name::as_str),
                retry_after_s: limits.retry_after,
                rate_limit: limited
                    .then_some(RateLimit { remaining_requests: limits.remaining_requests, remaining_tokens: limits.remaining_tokens }),
            },
            outcome: i.outcome.as_str(),
            ended_by: i.ended_by.as_str(),
            error: i.error.as_ref().map(|e| Failure { kind: e.kind.as_str(), stage: e.stage.as_str() }),
            usage: UsageCounts {
                input_tokens: usage.input,
                output_tokens: usage.output,
                cache_read_input_tokens: usage.cache_read,
                cache_write_input_tokens: usage.cache_write,
                reasoning_output_tokens: usage.reasoning,
                source: (usage != Usage::default()).then_some("provider"),
            },
            chunks: Chunks {
                events: i.chunks.events,
                generated: i.chunks.generated,
                reasoning: i.chunks.reasoning,
                tool_starts: i.chunks.tool_starts,
                arrivals: i.chunks.arrivals,
                coalesced: i.chunks.generated.saturating_sub(i.chunks.arrivals),
            },
            timing_s: Timing {
                request_sent: seconds(t.request_sent),
                response_head: seconds(t.response_head),
                first_body_byte: seconds(t.first_body_byte),
                first_event: seconds(t.first_event),
                first_reasoning: seconds(t.first_reasoning),
                first_output: seconds(t.first_output),
                ttft: seconds(t.ttft.ok()),
                ttfa: seconds(t.ttfa.ok()),
                last_generated: seconds(t.last_generated),
                duration: seconds(t.duration.ok()),
                tpot: t.tpot.ok(),
                tpot_after_first_chunk: t.tpot_after_first_chunk,
                tpot_without_reasoning: t.tpot_without_reasoning,
                max_stall: seconds(t.max_stall.ok()),
                inter_chunk: inter_chunk(&t.gaps, sorted),
            },
            rates: Rates { output_tokens_per_s: t.output_tokens_per_s(), total_tokens_per_s: t.total_tokens_per_s(i.usage.as_ref()) },
            batch_ratio: i.batch_ratio(),
            gaps: i.gaps,
            undefined: Undefined {
                ttft: t.ttft.err().map(Reason::as_str),
                ttfa: t.ttfa.err().map(Reason::as_str),
                tpot: t.tpot.err().map(Reason::as_str),
                max_stall: t.max_stall.err().map(Reason::as_str),
                duration: t.duration.err().map(Reason::as_str),
                usage: (usage.input.is_none() && usage.output.is_none()).then(|| why_no_usage(i).as_str()),
            },
            server_timing_s: i.server_timing.map(|s| ServerTiming {
                queue: s.queue,
                prefill: s.prefill,
                ttft: s.ttft,
                tpot: s.tpot,
                decode: s.decode,
                total: s.total,
                load: s.load,
            }),
            trace: Trace {
                trace_id: format!("{:032x}", i.trace.trace_id),
                span_id: format!("{:016x}", i.trace.span_id),
                parent_span_id: i.trace.parent.map(|p| format!("{p:016x}")),
            },
        }
    }
}

/// Why an inference did not end as it should, or ended without a first token although it streamed; `None` when all is well.
pub fn reason(i: &Inference) -> Option<Reason> {
    match i.outcome {
        Outcome::Completed => i.timing.ttft.err().filter(|_| i.is_stream()),
        Outcome::Cancelled => Some(Reason::ClientCancelled),
        Outcome::Truncated => Some(Reason::Truncated),
        Outcome::Lost => [i.timing.ttft.err(), i.timing.duration.err()]
            .into_iter()
            .flatten()
            .find(|r| matches!(r, Reason::CaptureGap | Reason::MissedStart | Reason::Unparsed | Reason::Evicted))
            .or(Some(Reason::CaptureGap)),
        Outcome::Failed => Some(match &i.error {
            Some(e) if e.kind.as_str() == "timeout" => Reason::Timeout,
            Some(e) if e.stage == Stage::Http => Reason::HttpError,
            Some(e) if e.stage == Stage::Stream => Reason::StreamError,
            _ => Reason::ServerClosed,
        }),
    }
}

/// Usage has no reason of its own: it is what kept the answer from its end, and `no_usage` only when it did end.
fn why_no_usage(i: &Inference) -> Reason {
    match reason(i) {
        Some(why) if i.outcome != Outcome::Completed => why,
        Some(why @ (Reason::CaptureGap | Reason::MissedStart | Reason::Unparsed | Reason::Evicted)) => why,
        _ if i.gaps > 0 => Reason::CaptureGap,
        _ => Reason::NoUsage,
    }
}

fn inter_chunk(gaps: &Gaps, sorted: &mut Vec<u64>) -> Option<InterChunk> {
    if gaps.is_empty() {
        return None;
    }
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let mut all = InterChunk {
        count: gaps.count(),
        mean: seconds(gaps.sum()) / gaps.count() as f64,
        min: gaps.min().map(seconds),
        max: gaps.max().map(seconds),
        ..InterChunk::default()
    };
    if gaps.complete() {
        sorted.clear();
        sorted.extend(gaps.iter());
        // The middle and the upper tenth are asked for; what lies below and between need not be in order.
        let (len, mut done) = (sorted.len(), 0);
        for rank in [rank(0.5, len), rank(0.5, len) + 1, rank(0.9, len)] {
            if (done..len).contains(&rank) {
                sorted[done..].select_nth_unstable(rank - done);
                done = rank + 1;
            }
        }
        sorted[done.min(len)..].sort_unstable();
        let at = |q: f64| Some(interpolate(sorted, q) / 1e9);
        (all.p50, all.p90, all.p95, all.p99) = (at(0.5), at(0.9), at(0.95), at(0.99));
    }
    Some(all)
}

/// The rank at or below a quantile of so many values.
fn rank(q: f64, len: usize) -> usize {
    (q * len.saturating_sub(1) as f64).floor() as usize
}

/// Linear interpolation between the two nearest ranks, as numpy's default. Only these two need be in their places.
fn interpolate(sorted: &[u64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let position = q * last as f64;
    let low = rank(q, sorted.len());
    let value = |i: usize| sorted.get(i.min(last)).map_or(0.0, |v| *v as f64);
    value(low) + (value(low + 1) - value(low)) * (position - low as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use expect_test::expect;

    #[test]
    fn the_record_of_a_completed_stream() {
        let line = String::from_utf8(Writer::default().line(&testing::inference()).to_vec()).unwrap();
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        expect![[r#"
            {
              "api": "openai.chat_completions",
              "batch_ratio": 0.6666666666666666,
              "chunks": {
                "arrivals": 3,
                "coalesced": 1,
                "events": 6,
                "generated": 4,
                "reasoning": 0,
                "tool_starts": 0
              },
              "client": {
                "address": "10.0.1.7",
                "port": 40007
              },
              "ended_by": "terminator",
              "error": null,
              "gaps": 0,
              "operation": "chat",
              "outcome": "completed",
              "protocol": "http/1.1",
              "provider": "openai",
              "rates": {
                "output_tokens_per_s": 100.0,
                "total_tokens_per_s": 12.5
              },
              "request": {
                "bytes": 512,
                "id": null,
                "model": "gpt-4o-mini",
                "tenant": null,
                "traceparent": null
              },
              "response": {
                "bytes": 1452,
                "content_encoding": null,
                "finish_reasons": [
                  "stop"
                ],
                "id": "chatcmpl-1",
                "model": "gpt-4o-mini-2024-07-18",
                "rate_limit": null,
                "request_id": null,
                "retry_after_s": null,
                "status": 200
              },
              "server": {
                "address": "10.0.0.1",
                "host": "api.openai.com",
                "port": 8000
              },
              "server_timing_s": null,
              "start_unix_nano": "1700000000501000000",
              "stream": true,
              "tap": "pcap",
              "timing_s": {
                "duration": 0.48,
                "first_body_byte": 0.32,
                "first_event": 0.32,
                "first_output": 0.41,
                "first_reasoning": null,
                "inter_chunk": {
                  "count": 3,
                  "max": 0.03,
                  "mean": 0.016666666666666666,
                  "min": 0.0,
                  "p50": 0.02,
                  "p90": 0.028,
                  "p95": 0.029,
                  "p99": 0.0298
                },
                "last_generated": 0.46,
                "max_stall": 0.03,
                "request_sent": 0.001,
                "response_head": 0.31,
                "tpot": 0.01,
                "tpot_after_first_chunk": null,
                "tpot_without_reasoning": false,
                "ttfa": 0.41,
                "ttft": 0.41
              },
              "trace": {
                "span_id": "00f067aa0ba902b7",
                "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"
              },
              "undefined": {},
              "usage": {
                "cache_read_input_tokens": 0,
                "cache_write_input_tokens": null,
                "input_tokens": 9,
                "output_tokens": 6,
                "reasoning_output_tokens": 0,
                "source": "provider"
              },
              "v": 1,
              "vantage": "client",
              "workload": null
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&value).unwrap());
    }

    #[test]
    fn what_is_unknown_is_null_with_its_reason() {
        let value: serde_json::Value = serde_json::from_slice(Writer::default().line(&testing::refused())).unwrap();
        for path in ["/timing_s/ttft", "/timing_s/inter_chunk", "/usage/output_tokens", "/usage/source", "/response/model", "/client/port"]
        {
            assert!(value.pointer(path).unwrap().is_null(), "{path}");
        }
        for measure in ["ttft", "ttfa", "tpot", "max_stall", "usage"] {
            assert_eq!(value["undefined"][measure], "http_error", "{measure}");
        }
        assert_eq!(value["error"], serde_json::json!({"type": "rate_limit_exceeded", "stage": "http"}));
        assert!(!value.to_string().contains("\"\""));
    }

    #[test]
    fn percentiles_interpolate_as_numpy_does() {
        // numpy.percentile([1, 2, 3, 10], [50, 90, 99]) = 2.5, 7.9, 9.79
        let mut scratch = Vec::new();
        let got = inter_chunk(&[300_000_000, 100_000_000, 1_000_000_000, 200_000_000].into_iter().collect(), &mut scratch).unwrap();
        for (got, want) in [(got.p50, 0.25), (got.p90, 0.79), (got.p99, 0.979), (Some(got.mean), 0.4), (got.min, 0.1), (got.max, 1.0)] {
            assert!((got.unwrap() - want).abs() < 1e-9);
        }
        assert!(inter_chunk(&Gaps::default(), &mut scratch).is_none());
        let mut forgotten: Gaps = [1, 3].into_iter().collect();
        forgotten.forget();
        let got = inter_chunk(&forgotten, &mut scratch).unwrap();
        assert_eq!((got.count, got.p50, got.max), (2, None, Some(3e-9)));
    }
}
