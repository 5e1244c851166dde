//! Record v1 read back: what `replay` and `run` wrote, or what people made by hand. Fields that are not needed are ignored, missing ones
//! are unknown; only the start is required.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use tokengauge_core::inference::{Outcome, Reason};
use tokengauge_slo::request::{Address, Request, is_refusal};

/// Why a line is no record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// No JSON object of the right shape.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// A value that cannot be.
    #[error("{field}: {what}")]
    Value {
        /// Path of the field.
        field: &'static str,
        /// What is wrong.
        what: String,
    },
}

/// One record.
#[derive(Deserialize, Debug)]
pub struct Record<'a> {
    v: Option<u64>,
    #[serde(borrow)]
    start_unix_nano: Number<'a>,
    #[serde(borrow)]
    vantage: Option<Cow<'a, str>>,
    #[serde(borrow)]
    provider: Option<Cow<'a, str>>,
    #[serde(borrow)]
    operation: Option<Cow<'a, str>>,
    stream: Option<bool>,
    #[serde(borrow, default)]
    client: Option<Client<'a>>,
    #[serde(borrow, default)]
    server: Option<Server<'a>>,
    /// The observed end, or, in what people make by hand, its name.
    #[serde(borrow, default)]
    workload: Option<Workload<'a>>,
    #[serde(borrow)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    request: Option<Asked<'a>>,
    #[serde(borrow, default)]
    response: Option<Answered<'a>>,
    #[serde(borrow)]
    outcome: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    error: Option<Failure<'a>>,
    usage: Option<Usage>,
    chunks: Option<Chunks>,
    timing_s: Option<Timing>,
    gaps: Option<u64>,
    #[serde(borrow, default)]
    undefined: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
}

/// OTLP JSON writes 64-bit numbers as strings; people write numbers.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum Number<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Number(u64),
}

#[derive(Deserialize, Debug, Default)]
struct Client<'a> {
    #[serde(borrow, default)]
    workload: Option<Workload<'a>>,
}

#[derive(Deserialize, Debug, Default)]
struct Server<'a> {
    #[serde(borrow, default)]
    workload: Option<Workload<'a>>,
    #[serde(borrow)]
    address: Option<Cow<'a, str>>,
    #[serde(borrow)]
    host: Option<Cow<'a, str>>,
}

#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum Workload<'a> {
    Name(#[serde(borrow)] Cow<'a, str>),
    Object {
        #[serde(borrow)]
        name: Option<Cow<'a, str>>,
        #[serde(borrow)]
        namespace: Option<Cow<'a, str>>,
    },
}

#[derive(Deserialize, Debug, Default)]
struct Asked<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    tenant: Option<Cow<'a, str>>,
}

#[derive(Deserialize, Debug, Default)]
struct Answered<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    status: Option<u16>,
    #[serde(borrow)]
    finish_reasons: Option<Vec<Cow<'a, str>>>,
}

#[derive(Deserialize, Debug, Default)]
struct Failure<'a> {
    #[serde(borrow)]
    stage: Option<Cow<'a, str>>,
}

#[derive(Deserialize, Debug, Default)]
struct Usage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
}

#[derive(Deserialize, Debug, Default)]
struct Chunks {
    generated: Option<u32>,
    arrivals: Option<u32>,
}

#[derive(Deserialize, Debug, Default)]
struct Timing {
    ttft: Option<f64>,
    ttfa: Option<f64>,
    duration: Option<f64>,
    tpot: Option<f64>,
    max_stall: Option<f64>,
    inter_chunk: Option<Gaps>,
}

#[derive(Deserialize, Debug, Default)]
struct Gaps {
    max: Option<f64>,
}

impl<'a> Record<'a> {
    /// Reads one line.
    ///
    /// # Errors
    /// When it is no record.
    pub fn parse(line: &'a str) -> Result<Self, RecordError> {
        let record: Self = serde_json::from_str(line)?;
        let bad = |field, what: String| Err(RecordError::Value { field, what });
        if let Some(v) = record.v.filter(|v| *v != 1) {
            return bad("v", format!("version {v}, expected 1"));
        }
        let t = record.timing_s.as_ref();
        for (field, value) in [
            ("timing_s.ttft", t.and_then(|t| t.ttft)),
            ("timing_s.ttfa", t.and_then(|t| t.ttfa)),
            ("timing_s.duration", t.and_then(|t| t.duration)),
            ("timing_s.tpot", t.and_then(|t| t.tpot)),
            ("timing_s.max_stall", t.and_then(|t| t.max_stall)),
        ] {
            if let Some(value) = value.filter(|v| !(0.0..1e9).contains(v)) {
                return bad(field, format!("{value} is no length of time"));
            }
        }
        record.start()?;
        record.outcome()?;
        Ok(record)
    }

    fn start(&self) -> Result<u64, RecordError> {
        match &self.start_unix_nano {
            Number::Number(nanos) => Ok(*nanos),
            Number::Text(text) => text
                .parse()
                .map_err(|_| RecordError::Value { field: "start_unix_nano", what: format!("`{text:.40}` is no number of nanoseconds") }),
        }
    }

    fn outcome(&self) -> Result<Outcome, RecordError> {
        let Some(name) = &self.outcome else {
            let failed = self.error.is_some() || self.response.as_ref().and_then(|r| r.status).is_some_and(|s| s >= 400);
            return Ok(if failed { Outcome::Failed } else { Outcome::Completed });
        };
        let known = Outcome::ALL.into_iter().find(|o| o.as_str() == *name);
        known.ok_or_else(|| RecordError::Value { field: "outcome", what: format!("`{name:.40}` is none") })
    }

    /// When it ended, nanoseconds since the Unix epoch: start + duration, the start where the duration is unknown.
    pub fn end(&self) -> u64 {
        let duration = self.timing_s.as_ref().and_then(|t| t.duration).unwrap_or(0.0);
        self.start().unwrap_or(0).saturating_add((duration * 1e9).round() as u64)
    }

    /// What an indicator sees; `None` for what is no inference.
    pub fn request(&self) -> Option<Request<'_>> {
        if self.operation.as_deref() == Some("fetch_response") {
            return None;
        }
        let outcome = self.outcome().ok()?;
        let text = |value: &'_ Option<Cow<'a, str>>| value.as_deref().map(str::len).is_some_and(|l| l > 0);
        let (asked, answered) = (self.request.as_ref(), self.response.as_ref());
        let (workload, namespace) = self.workload();
        let timing = self.timing_s.as_ref();
        let figure = |name, value: Option<f64>| value.ok_or_else(|| self.reason(name, outcome));
        let server = self.server.as_ref();
        Some(Request {
            provider: self.provider.as_deref(),
            model: answered.and_then(|r| r.model.as_deref()).or(asked.and_then(|r| r.model.as_deref())),
            operation: self.operation.as_deref(),
            namespace: namespace.or(self.namespace.as_deref()),
            workload,
            tenant: asked.and_then(|r| r.tenant.as_deref()),
            host: server.filter(|s| text(&s.host)).and_then(|s| s.host.as_deref()),
            address: server.and_then(|s| s.address.as_deref()).map(Address::Text),
            vantage: self.vantage.as_deref().unwrap_or("unknown"),
            stream: self.stream,
            outcome,
            status: answered.and_then(|r| r.status),
            refused: answered.and_then(|r| r.finish_reasons.as_ref()).is_some_and(|r| r.iter().any(|r| is_refusal(r))),
            generated: self.chunks.as_ref().and_then(|c| c.generated),
            input_tokens: self.usage.as_ref().and_then(|u| u.input_tokens),
            cached_tokens: self.usage.as_ref().and_then(|u| u.cache_read_input_tokens),
            output_tokens: self.usage.as_ref().and_then(|u| u.output_tokens),
            ttft: figure("ttft", timing.and_then(|t| t.ttft)),
            ttfa: figure("ttfa", timing.and_then(|t| t.ttfa)),
            tpot: figure("tpot", timing.and_then(|t| t.tpot)),
            inter_chunk_max: figure("inter_chunk", timing.and_then(|t| t.inter_chunk.as_ref()).and_then(|g| g.max)),
            max_stall: figure("max_stall", timing.and_then(|t| t.max_stall)),
            duration: figure("duration", timing.and_then(|t| t.duration)),
        })
    }

    /// Workload and namespace: of the observed end, of the other one where that has none (`Request::of`).
    fn workload(&self) -> (Option<&str>, Option<&str>) {
        let client = || self.client.as_ref().and_then(|c| c.workload.as_ref());
        let server = || self.server.as_ref().and_then(|s| s.workload.as_ref());
        let peer = || match self.vantage.as_deref() {
            Some("client") => server(),
            Some("server") => client(),
            _ => None,
        };
        let named = |w: &&Workload<'a>| !matches!(w, Workload::Object { name: None, .. });
        match self.workload.as_ref().filter(named).or_else(|| peer().filter(named)) {
            Some(Workload::Name(name)) => (Some(&**name), None),
            Some(Workload::Object { name, namespace }) => (name.as_deref(), namespace.as_deref()),
            None => (None, None),
        }
    }

    /// Why a figure is missing: what the record says, else what follows from the rest of it.
    fn reason(&self, figure: &'static str, outcome: Outcome) -> Reason {
        let said =
            self.undefined.as_ref().and_then(|u| u.get(figure).or_else(|| u.get(if figure == "inter_chunk" { "max_stall" } else { "" })));
        if let Some(reason) = said.and_then(|name| Reason::ALL.into_iter().find(|r| r.as_str() == *name)) {
            return reason;
        }
        let stage = self.error.as_ref().and_then(|e| e.stage.as_deref());
        let status = self.response.as_ref().and_then(|r| r.status);
        let streamed = figure != "duration";
        match outcome {
            Outcome::Lost => Reason::CaptureGap,
            Outcome::Truncated => Reason::Truncated,
            _ if self.gaps.is_some_and(|n| n > 0) => Reason::CaptureGap,
            _ if streamed && self.stream == Some(false) => Reason::NotStreaming,
            Outcome::Cancelled => Reason::ClientCancelled,
            Outcome::Failed => match (stage, status) {
                (Some("stream"), _) => Reason::StreamError,
                (Some("transport"), _) => Reason::ServerClosed,
                (Some("http"), _) | (None, Some(400..)) => Reason::HttpError,
                _ => Reason::ServerClosed,
            },
            Outcome::Completed => match figure {
                "ttft" | "ttfa" if self.chunks.as_ref().is_some_and(|c| c.generated == Some(0)) => Reason::NoOutput,
                // Whoever made the record says neither a time nor that there was a stream.
                "ttft" | "ttfa" if self.stream.is_none() => Reason::NotStreaming,
                "tpot" => match self.usage.as_ref().and_then(|u| u.output_tokens) {
                    None => Reason::NoUsage,
                    Some(0..=1) => Reason::OneToken,
                    Some(_) => Reason::OneArrival,
                },
                "max_stall" | "inter_chunk" if self.chunks.as_ref().is_none_or(|c| c.arrivals.is_none_or(|n| n < 2)) => Reason::OneArrival,
                _ => Reason::Unparsed,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::record::Writer;
    use crate::testing;
    use std::sync::Arc;
    use tokengauge_core::inference::{Inference, Vantage};
    use tokengauge_core::stream::Process;
    use tokengauge_core::workload::{Kind, Owner};

    fn parse(line: &str) -> Record<'_> {
        Record::parse(line).unwrap()
    }

    #[test]
    fn what_is_written_is_read_back_as_the_engine_sees_it() {
        let inference = testing::inference();
        let mut writer = Writer::default();
        let line = std::str::from_utf8(writer.line(&inference)).unwrap().to_owned();
        let record = parse(&line);
        let (read, mut direct) = (record.request().unwrap(), Request::of(&inference).unwrap());
        // The record has the address as text.
        direct.address = read.address;
        assert_eq!(read, direct);
        assert_eq!(record.end(), inference.timing.start.plus(inference.timing.duration.unwrap()).unix_nanos());
    }

    #[test]
    fn namespace_and_workload_are_those_of_the_observed_end_first() {
        let name = |text: &str| tokengauge_core::name::Name::new(text);
        let end = |namespace: &str, owner: &str| {
            let owner = Owner { kind: Kind::Deployment, name: name(owner).unwrap() };
            Some(Arc::new(tokengauge_core::workload::Workload { namespace: name(namespace), owner: Some(owner), ..Default::default() }))
        };
        let (ui, vllm) = (end("shop", "ui"), end("models", "vllm"));
        let python = || Some(Process { pid: 7, command: "python3".into(), container: None });
        let unnamed = Some(Arc::new(tokengauge_core::workload::Workload { pod_uid: name("u1"), ..Default::default() }));
        for (vantage, client, server, process, want) in [
            (Vantage::Client, &ui, &vllm, python(), (Some("shop"), Some("ui"))),
            (Vantage::Server, &ui, &vllm, python(), (Some("models"), Some("vllm"))),
            (Vantage::Unknown, &ui, &vllm, None, (Some("models"), Some("vllm"))),
            (Vantage::Unknown, &ui, &None, None, (Some("shop"), Some("ui"))),
            // Nothing but a process: its name, and no namespace, though the other end has one.
            (Vantage::Client, &None, &vllm, python(), (None, Some("python3"))),
            (Vantage::Client, &unnamed, &vllm, python(), (None, Some("python3"))),
            (Vantage::Client, &None, &vllm, None, (Some("models"), Some("vllm"))),
            (Vantage::Client, &unnamed, &vllm, None, (Some("models"), Some("vllm"))),
            (Vantage::Server, &ui, &None, None, (Some("shop"), Some("ui"))),
            (Vantage::Client, &None, &None, None, (None, None)),
        ] {
            let i =
                Inference { vantage, process, client_workload: client.clone(), server_workload: server.clone(), ..testing::inference() };
            let direct = Request::of(&i).unwrap();
            assert_eq!((direct.namespace, direct.workload), want, "{vantage:?} {client:?} {server:?}");
            let mut writer = Writer::default();
            let line = std::str::from_utf8(writer.line(&i)).unwrap().to_owned();
            let record = parse(&line);
            let read = record.request().unwrap();
            assert_eq!((read.namespace, read.workload), want, "{line}");
        }
        let by_hand = parse(r#"{"start_unix_nano":"5","workload":"chat","namespace":"models"}"#);
        assert_eq!((by_hand.request().unwrap().namespace, by_hand.request().unwrap().workload), (Some("models"), Some("chat")));
    }

    #[test]
    fn a_record_made_by_hand_needs_little() {
        let r = parse(r#"{"start_unix_nano":1700000000000000000,"timing_s":{"ttft":0.4,"duration":1.5},"x":[1]}"#);
        assert_eq!(r.end(), 1_700_000_001_500_000_000);
        let q = r.request().unwrap();
        assert_eq!((q.ttft, q.outcome, q.tpot), (Ok(0.4), Outcome::Completed, Err(Reason::NoUsage)));
        let failed = parse(r#"{"start_unix_nano":"5","response":{"status":503}}"#);
        assert_eq!(failed.request().unwrap().ttft, Err(Reason::HttpError));
        assert_eq!(failed.end(), 5);
        let left = parse(r#"{"start_unix_nano":"5","outcome":"cancelled"}"#);
        assert_eq!(left.request().unwrap().ttft, Err(Reason::ClientCancelled));
        assert!(parse(r#"{"start_unix_nano":"5","operation":"fetch_response"}"#).request().is_none());
    }

    #[test]
    fn what_is_no_record_says_why() {
        let wrong = |line: &str| Record::parse(line).unwrap_err().to_string();
        assert!(wrong("{").contains("EOF"));
        assert!(wrong("{}").contains("start_unix_nano"));
        assert_eq!(wrong(r#"{"start_unix_nano":"x"}"#), "start_unix_nano: `x` is no number of nanoseconds");
        assert_eq!(wrong(r#"{"start_unix_nano":"1","outcome":"fine"}"#), "outcome: `fine` is none");
        assert_eq!(wrong(r#"{"start_unix_nano":"1","timing_s":{"duration":-1}}"#), "timing_s.duration: -1 is no length of time");
        assert_eq!(wrong(r#"{"v":2,"start_unix_nano":"1"}"#), "v: version 2, expected 1");
    }
}
