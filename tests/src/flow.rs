//! The `.flow` format: one connection as text, readable and diffable, and the driver that measures it.
//!
//! ```text
//! # comment
//! @tap server                       where the tap sits: client (default), server, middle
//! @midstream                        the connection was not seen from its first byte
//! 0.0   > POST /v1/messages …\r\n   bytes of the client; escapes \r \n \t \\ \xNN
//! 230   < data: {"a":1}\n\n         bytes of the server
//! 231   < @gap 120                  bytes of the server are missing; `@gap ?` when their number is not known
//! 300   > @fin                      the client has no more to send; also @rst, and @released for a process that lets go
//! 400   @tick                       time passes
//! 400   @idle                       the tap's idle limit was reached; also @evicted
//! 500   @end                        the input ends (implied at the last instant)
//! ```
//!
//! Times are milliseconds. Helpers that expand to bytes, so that no one counts lengths by hand; their JSON is taken as it stands:
//!
//! ```text
//! 0 > @post URL [name:value …] {json}         a whole POST request
//! 9 < @head STATUS TYPE [name:value …]        the head of a chunked response; with content-encoding:gzip, deflate, br or zstd all that
//!                                             follows is compressed, each piece flushed
//! 9 < @data {json}                            one HTTP chunk with one event
//! 9 < @event NAME {json}                      one HTTP chunk with one named event
//! 9 < @chunk BYTES                            one HTTP chunk
//! 9 < @message NAME {json}                    one HTTP chunk with one message of an AWS event-stream
//! 9 < @exception CLASS {json}                 the same, as an exception
//! 9 < @wrapped {json}                         the same, as Bedrock wraps what a model says: base64 in an event `chunk`
//! 9 < @last                                   the last chunk
//! 0 > @call URL FIELDS                        a whole gRPC request with one message, as [`crate::protobuf`] writes it
//! 9 < @grpc FIELDS                            one HTTP chunk with one gRPC message
//! 9 < @json STATUS [name:value …] {json}      a whole JSON response
//! 9 < @ws …                                   frames of a WebSocket: [`crate::wire_ws`]
//! ```

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::protobuf;
use base64::Engine as _;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use tokengauge_core::inference::{Inference, Reason};
use tokengauge_core::pipeline::{Options, Pipeline, PipelineStats};
use tokengauge_core::stream::{ConnId, ConnInfo, Direction, End, Endpoints, GapReason, Side, StreamEvent, TapKind, Timestamp};
use tokengauge_core::tenant::Tenants;
use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, InBuffer, OutBuffer};

use crate::wire_ws::Ws;

/// The instant 0 of every flow.
pub const BASE: Timestamp = Timestamp::from_unix_nanos(1_700_000_000_000_000_000);

/// An end of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Who {
    /// Who asks.
    Client,
    /// Who answers.
    Server,
}

/// How a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// FIN.
    Fin(Who),
    /// RST.
    Rst(Who),
    /// The tapped process let go.
    Released,
    /// The idle limit.
    Idle,
    /// A bound of the tap.
    Evicted,
    /// The input's end.
    Input,
}

/// One line of a flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// One write.
    Data(Duration, Who, Vec<u8>),
    /// Bytes that are missing.
    Gap(Duration, Who, Option<u64>),
    /// An end.
    End(Duration, Ended),
    /// Time passes.
    Tick(Duration),
}

impl Step {
    /// When.
    pub fn at(&self) -> Duration {
        match self {
            Self::Data(at, ..) | Self::Gap(at, ..) | Self::End(at, _) | Self::Tick(at) => *at,
        }
    }
}

/// Where the tap sits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seat {
    /// In the client's process.
    Client,
    /// In the server's process.
    Server,
    /// In between.
    Middle,
}

/// A flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Folder and name.
    pub name: String,
    /// Where the tap sits.
    pub seat: Seat,
    /// Whether the first byte was seen.
    pub from_start: bool,
    /// What happens.
    pub steps: Vec<Step>,
}

/// What a flow measures to.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// The records, in order of completion.
    pub inferences: Vec<Inference>,
    /// What the pipeline counted.
    pub stats: PipelineStats,
}

/// Compresses what the server sends.
#[derive(Default)]
enum Coder {
    #[default]
    Plain,
    Gzip(GzEncoder<Vec<u8>>),
    Deflate(ZlibEncoder<Vec<u8>>),
    Brotli(Box<brotli_encoder::CompressorWriter<Vec<u8>>>),
    Zstd(CCtx<'static>),
}

/// Compresses one piece.
fn zstd(context: &mut CCtx<'_>, bytes: &[u8], how: ZSTD_EndDirective) -> Vec<u8> {
    let (mut from, mut all) = (InBuffer::around(bytes), Vec::new());
    loop {
        let mut room = vec![0; 4096];
        let mut to = OutBuffer::around(room.as_mut_slice());
        let left = context.compress_stream2(&mut to, &mut from, how).unwrap();
        all.extend_from_slice(to.as_slice());
        if left == 0 && from.pos() == bytes.len() {
            return all;
        }
    }
}

impl Coder {
    fn code(&mut self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Plain => bytes.to_vec(),
            Self::Gzip(z) => {
                z.write_all(bytes).unwrap();
                z.flush().unwrap();
                std::mem::take(z.get_mut())
            }
            Self::Deflate(z) => {
                z.write_all(bytes).unwrap();
                z.flush().unwrap();
                std::mem::take(z.get_mut())
            }
            Self::Brotli(z) => {
                z.write_all(bytes).unwrap();
                z.flush().unwrap();
                std::mem::take(z.get_mut())
            }
            Self::Zstd(context) => zstd(context, bytes, ZSTD_EndDirective::ZSTD_e_flush),
        }
    }

    fn end(&mut self) -> Vec<u8> {
        match std::mem::take(self) {
            Self::Plain => Vec::new(),
            Self::Gzip(z) => z.finish().unwrap(),
            Self::Deflate(z) => z.finish().unwrap(),
            Self::Brotli(z) => z.into_inner(),
            Self::Zstd(mut context) => zstd(&mut context, b"", ZSTD_EndDirective::ZSTD_e_end),
        }
    }
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() {
        return Vec::new();
    }
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// A message of gRPC: not compressed, its length, its bytes.
fn prefixed(message: &[u8]) -> Vec<u8> {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

/// Bytes with the escapes of the format undone.
pub(crate) fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b != b'\\' {
            out.push(b);
            continue;
        }
        out.push(match bytes.next() {
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'\\') => b'\\',
            Some(b'x') => {
                let digits: Vec<u8> = bytes.by_ref().take(2).collect();
                let digits = std::str::from_utf8(&digits).map_err(|e| e.to_string())?;
                u8::from_str_radix(digits, 16).map_err(|e| e.to_string())?
            }
            other => return Err(format!("unknown escape {:?}", other.map(char::from))),
        });
    }
    Ok(out)
}

/// Header lines from `name:value` words.
fn fields(words: &str) -> String {
    words.split_whitespace().map(|w| format!("{}\r\n", w.replacen(':', ": ", 1))).collect()
}

fn whole(first: &str, words: &str, body: &str) -> Vec<u8> {
    format!("{first}\r\ncontent-type: application/json\r\n{}content-length: {}\r\n\r\n{body}", fields(words), body.len()).into_bytes()
}

/// A message of an AWS event-stream.
fn message(name: &str, exception: bool, payload: &[u8]) -> Vec<u8> {
    let crc = |bytes: &[u8]| {
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        crc.sum().to_be_bytes()
    };
    let (kind, named) = if exception { ("exception", ":exception-type") } else { ("event", ":event-type") };
    let mut heads = Vec::new();
    for (key, value) in [(named, name), (":content-type", "application/json"), (":message-type", kind)] {
        heads.push(key.len() as u8);
        heads.extend(key.as_bytes());
        heads.push(7);
        heads.extend((value.len() as u16).to_be_bytes());
        heads.extend(value.as_bytes());
    }
    let mut out = ((16 + heads.len() + payload.len()) as u32).to_be_bytes().to_vec();
    out.extend((heads.len() as u32).to_be_bytes());
    out.extend(crc(&out));
    out.extend(heads);
    out.extend(payload);
    out.extend(crc(&out));
    out
}

/// The words before the JSON, and the JSON.
fn before_json(text: &str) -> (&str, &str) {
    let at = text.find(['{', '[']);
    at.map_or((text, ""), |i| text.split_at(i))
}

/// The bytes of a helper.
fn helper(word: &str, rest: &str, coder: &mut Coder) -> Result<Vec<u8>, String> {
    let first_word = |text: &'_ str| -> (String, String) {
        let (a, b) = text.split_once(' ').unwrap_or((text, ""));
        (a.to_owned(), b.trim().to_owned())
    };
    Ok(match word {
        "@post" => {
            let (url, rest) = first_word(rest);
            let (words, body) = before_json(&rest);
            let (_, target) = url.split_once("://").ok_or("a URL begins with its scheme")?;
            let (host, path) = target.split_once('/').ok_or("a URL has a path")?;
            whole(&format!("POST /{path} HTTP/1.1\r\nhost: {host}"), words, body)
        }
        "@call" => {
            let (url, fields) = first_word(rest);
            let (_, target) = url.split_once("://").ok_or("a URL begins with its scheme")?;
            let (host, path) = target.split_once('/').ok_or("a URL has a path")?;
            let body = prefixed(&protobuf::message(&fields)?);
            let length = body.len();
            let head =
                format!("POST /{path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/grpc\r\ncontent-length: {length}\r\n\r\n");
            [head.into_bytes(), body].concat()
        }
        "@grpc" => chunk(&coder.code(&prefixed(&protobuf::message(rest)?))),
        "@json" => {
            let (status, rest) = first_word(rest);
            let (words, body) = before_json(&rest);
            whole(&format!("HTTP/1.1 {status} -"), words, body)
        }
        "@head" => {
            let (status, rest) = first_word(rest);
            let (kind, words) = first_word(&rest);
            *coder = match () {
                () if words.contains("content-encoding:gzip") => Coder::Gzip(GzEncoder::new(Vec::new(), Compression::default())),
                () if words.contains("content-encoding:deflate") => Coder::Deflate(ZlibEncoder::new(Vec::new(), Compression::default())),
                () if words.contains("content-encoding:br") => {
                    Coder::Brotli(Box::new(brotli_encoder::CompressorWriter::new(Vec::new(), 4096, 5, 22)))
                }
                () if words.contains("content-encoding:zstd") => Coder::Zstd(CCtx::create()),
                () => Coder::Plain,
            };
            let fields = fields(&words);
            format!("HTTP/1.1 {status} -\r\ncontent-type: {kind}\r\n{fields}transfer-encoding: chunked\r\n\r\n").into_bytes()
        }
        "@data" => chunk(&coder.code(format!("data: {rest}\n\n").as_bytes())),
        "@event" => {
            let (event, data) = first_word(rest);
            chunk(&coder.code(format!("event: {event}\ndata: {data}\n\n").as_bytes()))
        }
        "@chunk" => chunk(&coder.code(&unescape(rest)?)),
        "@message" | "@exception" => {
            let (name, payload) = first_word(rest);
            chunk(&coder.code(&message(&name, word == "@exception", payload.as_bytes())))
        }
        "@wrapped" => {
            let bytes = base64::engine::general_purpose::STANDARD.encode(rest);
            let payload = format!(r#"{{"bytes":"{bytes}","p":"{}"}}"#, &"abcdefghijklm"[..rest.len() % 13]);
            chunk(&coder.code(&message("chunk", false, payload.as_bytes())))
        }
        "@last" => [chunk(&coder.end()), b"0\r\n\r\n".to_vec()].concat(),
        other => return Err(format!("unknown helper {other}")),
    })
}

impl Flow {
    /// Reads a flow.
    ///
    /// # Errors
    /// The line that cannot be read, and why.
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut flow = Self { name: name.to_owned(), seat: Seat::Client, from_start: true, steps: Vec::new() };
        let (mut coder, mut ws) = (Coder::default(), Ws::default());
        for (n, line) in text.lines().enumerate() {
            flow.line(line.trim(), &mut coder, &mut ws).map_err(|why| format!("{name}:{}: {why}", n + 1))?;
        }
        let last = flow.steps.last().map_or(Duration::ZERO, Step::at);
        if !matches!(flow.steps.last(), Some(Step::End(_, Ended::Input))) {
            flow.steps.push(Step::End(last, Ended::Input));
        }
        Ok(flow)
    }

    fn line(&mut self, line: &str, coder: &mut Coder, ws: &mut Ws) -> Result<(), String> {
        match line {
            "" => return Ok(()),
            "@midstream" => self.from_start = false,
            "@tap client" => self.seat = Seat::Client,
            "@tap server" => self.seat = Seat::Server,
            "@tap middle" => self.seat = Seat::Middle,
            _ if line.starts_with('#') => {}
            _ => {
                let (ms, rest) = line.split_once(' ').ok_or("a line begins with its instant")?;
                let ms: f64 = ms.parse().map_err(|_| format!("{ms} is no instant"))?;
                let at = Duration::from_nanos((ms * 1e6).round() as u64);
                if self.steps.last().is_some_and(|s| s.at() > at) {
                    return Err("time runs backwards".into());
                }
                self.steps.push(Self::step(at, rest.trim_start(), coder, ws)?);
            }
        }
        Ok(())
    }

    fn step(at: Duration, rest: &str, coder: &mut Coder, ws: &mut Ws) -> Result<Step, String> {
        let (who, what) = match rest.split_once(' ') {
            Some((">", what)) => (Who::Client, what),
            Some(("<", what)) => (Who::Server, what),
            _ => {
                return Ok(match rest {
                    "@tick" => Step::Tick(at),
                    "@idle" => Step::End(at, Ended::Idle),
                    "@evicted" => Step::End(at, Ended::Evicted),
                    "@end" => Step::End(at, Ended::Input),
                    other => return Err(format!("cannot read {other:?}")),
                });
            }
        };
        let (word, arg) = what.split_once(' ').unwrap_or((what, ""));
        Ok(match word {
            "@gap" if arg == "?" => Step::Gap(at, who, None),
            "@gap" => Step::Gap(at, who, Some(arg.parse().map_err(|_| format!("{arg} is no length"))?)),
            "@fin" => Step::End(at, Ended::Fin(who)),
            "@rst" => Step::End(at, Ended::Rst(who)),
            "@released" => Step::End(at, Ended::Released),
            _ if word.starts_with("@ws") => {
                Step::Data(at, who, ws.helper(word, arg, who).unwrap_or_else(|| Err(format!("unknown helper {word}")))?)
            }
            _ if word.starts_with('@') => Step::Data(at, who, helper(word, arg, coder)?),
            _ => Step::Data(at, who, unescape(what)?),
        })
    }

    /// The same flow with other steps.
    pub fn with(&self, steps: Vec<Step>) -> Self {
        Self { steps, ..self.clone() }
    }

    /// The same flow seen from the other side.
    pub fn flipped(&self) -> Self {
        let seat = match self.seat {
            Seat::Client => Seat::Server,
            Seat::Server => Seat::Client,
            Seat::Middle => Seat::Middle,
        };
        Self { seat, ..self.clone() }
    }

    /// The same flow, each write cut into pieces of `size` bytes at the same instant.
    pub fn cut(&self, size: usize) -> Self {
        let cut = |step: &Step| match step {
            Step::Data(at, who, bytes) => bytes.chunks(size).map(|p| Step::Data(*at, *who, p.to_vec())).collect(),
            other => vec![other.clone()],
        };
        self.with(self.steps.iter().flat_map(cut).collect())
    }

    /// The endpoints, as the tap names them.
    fn info(&self) -> ConnInfo {
        let client = "10.0.0.9:40000".parse().unwrap();
        let server = "10.0.0.1:443".parse().unwrap();
        let (local, remote) = if self.seat == Seat::Server { (server, client) } else { (client, server) };
        let (tap, side) = if self.seat == Seat::Middle { (TapKind::Pcap, Side::Middle) } else { (TapKind::Tls, Side::Local) };
        ConnInfo { tap, side, endpoints: Some(Endpoints { local, remote }), process: None, from_start: self.from_start }
    }

    /// Measures the flow.
    pub fn measure(&self) -> Measured {
        self.measure_by(Meter::default())
    }

    /// The same, with another meter.
    pub fn measure_by(&self, mut meter: Meter) -> Measured {
        let conn = ConnId(1);
        meter.event(StreamEvent::Open { conn, at: BASE, info: self.info() });
        let dir = |who: Who| if (who == Who::Client) == (self.seat != Seat::Server) { Direction::Forward } else { Direction::Reverse };
        for step in &self.steps {
            let at = BASE.plus(step.at());
            match step {
                Step::Data(_, who, bytes) => meter.event(StreamEvent::Data { conn, dir: dir(*who), at, bytes }),
                Step::Gap(_, who, len) => {
                    meter.event(StreamEvent::Gap { conn, dir: dir(*who), at, len: *len, reason: GapReason::PacketLost });
                }
                Step::End(_, end) => {
                    let end = match end {
                        Ended::Fin(who) => End::Finished(dir(*who)),
                        Ended::Rst(who) => End::Reset(dir(*who)),
                        Ended::Released => End::Released,
                        Ended::Idle => End::Idle,
                        Ended::Evicted => End::Evicted,
                        Ended::Input => End::InputEnded,
                    };
                    meter.event(StreamEvent::Close { conn, at, end });
                }
                Step::Tick(_) => meter.tick(at),
            }
        }
        meter.finish()
    }
}

/// A pipeline that is driven as the agent's driver does.
#[derive(Default)]
pub struct Meter {
    pipeline: Pipeline,
    out: Vec<Inference>,
    ticked: Option<Timestamp>,
}

impl Meter {
    /// A meter with options.
    pub fn new(options: Options) -> Self {
        Self { pipeline: Pipeline::new(options), ..Self::default() }
    }

    /// Says whose requests are.
    pub fn naming(self, tenants: Arc<Tenants>) -> Self {
        Self { pipeline: self.pipeline.naming(Some(tenants)), ..self }
    }

    /// Takes an event.
    pub fn event(&mut self, event: StreamEvent<'_>) {
        let _ = self.verdict(event);
    }

    /// Takes an event and says what the pipeline answered.
    pub fn verdict(&mut self, event: StreamEvent<'_>) -> tokengauge_core::stream::Verdict {
        let at = match &event {
            StreamEvent::Open { at, .. } | StreamEvent::Data { at, .. } | StreamEvent::Gap { at, .. } | StreamEvent::Close { at, .. } => {
                *at
            }
            StreamEvent::Identified { .. } => BASE,
        };
        let verdict = self.pipeline.push(event, &mut self.out);
        if self.ticked.is_none_or(|t| at.since(t) >= Duration::from_millis(100)) {
            self.tick(at);
        }
        verdict
    }

    /// Time passes.
    pub fn tick(&mut self, at: Timestamp) {
        self.ticked = Some(at);
        self.pipeline.tick(at, &mut self.out);
    }

    /// What was measured.
    pub fn finish(self) -> Measured {
        Measured { stats: self.pipeline.stats(), inferences: self.out }
    }
}

/// Flows of which a later or shorter sight honestly says something else.
pub const OPEN: [(&str, &str); 5] = [
    ("http/upgrade.flow", "where the upgrade is lost, what follows may be a request"),
    ("http/chunk-extensions-and-trailers.flow", "behind a hole a trailer may look like a chunk: a few bytes too many"),
    ("http/answer-before-the-request-ended.flow", "the rest of the request belongs to nobody once its answer is over"),
    ("openai.completions/echo.flow", "where the request's `echo` is lost, the echo looks like an answer"),
    ("openai.chat_completions/half-closed-client-still-served.flow", "a client that half-closed is taken to have gone when the input ends"),
];

/// Every flow below `tests/fixtures`; with `TOKENGAUGE_FLOWS`, those with that text in their path, to look at some while working on them.
pub fn fixtures() -> Vec<(std::path::PathBuf, Flow)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let read = |path: std::path::PathBuf| {
        let name = path.strip_prefix(&dir).unwrap().to_string_lossy().into_owned();
        let flow = Flow::parse(&name, &std::fs::read_to_string(&path).unwrap()).unwrap();
        (path, flow)
    };
    let some = std::env::var("TOKENGAUGE_FLOWS").unwrap_or_default();
    crate::files(&dir, ".flow").into_iter().filter(|path| path.to_string_lossy().contains(&some)).map(read).collect()
}

fn ms(t: Duration) -> String {
    let text = format!("{:.3}", t.as_secs_f64() * 1e3);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| v.to_string())
}

fn defined(value: Result<Duration, Reason>) -> String {
    value.map_or_else(|why| why.as_str().to_owned(), ms)
}

impl Measured {
    /// All figures as text, for people and for `.expect` files. Times are milliseconds.
    pub fn show(&self) -> String {
        let mut out = String::new();
        for i in &self.inferences {
            one(i, &mut out).unwrap();
        }
        let s = &self.stats;
        write!(out, "exchanges {} non_llm {} inferences {} in_flight {}", s.exchanges, s.non_llm, s.inferences, s.in_flight).unwrap();
        write!(out, " events {} gaps {}", s.events, s.gaps.iter().sum::<u64>()).unwrap();
        for (what, n) in s.anomalies.iter() {
            write!(out, " {} {n}", what.as_str()).unwrap();
        }
        out.push('\n');
        out
    }
}

fn one(i: &Inference, out: &mut String) -> std::fmt::Result {
    let name = |n: &Option<tokengauge_core::name::Name>| or_dash(n.as_ref().map(|n| n.as_str()));
    let (q, a, t) = (&i.request, &i.response, &i.timing);
    let kind = i.stream.map_or("-", |is| if is { "stream" } else { "whole" });
    writeln!(
        out,
        "{} {} {} {kind} {} {} {}",
        i.api,
        or_dash(i.provider),
        i.operation.as_str(),
        i.vantage.as_str(),
        i.tap.as_str(),
        i.protocol
    )?;
    write!(out, "  request   host {} model {} bytes {} id {}", name(&i.host), name(&q.model), q.bytes, name(&q.id))?;
    for (what, value) in [
        ("max_tokens", q.max_tokens.map(|n| n.to_string())),
        ("temperature", q.temperature.map(|n| n.to_string())),
        ("top_p", q.top_p.map(|n| n.to_string())),
        ("choices", q.choices.map(|n| n.to_string())),
        ("parent", q.traceparent.map(|p| format!("{:032x}-{:016x}", p.trace_id, p.span_id))),
    ] {
        if let Some(value) = value {
            write!(out, " {what} {value}")?;
        }
    }
    let finish: Vec<&str> = a.finish_reasons.iter().map(|n| n.as_str()).collect();
    write!(out, "\n  response  status {} model {} id {} finish {finish:?}", or_dash(a.status), name(&a.model), name(&a.id))?;
    writeln!(out, " coding {}", or_dash(a.content_encoding))?;
    let error = i.error.as_ref().map(|e| format!("{} at {}", e.kind.as_str(), e.stage.as_str()));
    writeln!(out, "  outcome   {} error {} gaps {}", i.outcome.as_str(), or_dash(error), i.gaps)?;
    let usage = i.usage.map(|u| {
        let (read, write, reasoning) = (or_dash(u.cache_read), or_dash(u.cache_write), or_dash(u.reasoning));
        format!("input {} output {} cache_read {read} cache_write {write} reasoning {reasoning}", or_dash(u.input), or_dash(u.output))
    });
    writeln!(out, "  usage     {}", or_dash(usage))?;
    let c = &i.chunks;
    write!(out, "  chunks    events {} generated {} reasoning {}", c.events, c.generated, c.reasoning)?;
    writeln!(out, " tool_starts {} arrivals {}", c.tool_starts, c.arrivals)?;
    let mark = |t: Option<Duration>| or_dash(t.map(ms));
    write!(out, "  marks     start {} sent {} head {}", ms(t.start.since(BASE)), mark(t.request_sent), mark(t.response_head))?;
    write!(out, " body {} event {} reasoning {}", mark(t.first_body_byte), mark(t.first_event), mark(t.first_reasoning))?;
    writeln!(out, " output {} last {} end {}", mark(t.first_output), mark(t.last_generated), ms(t.end.since(BASE)))?;
    write!(out, "  measures  ttft {} ttfa {} duration {}", defined(t.ttft), defined(t.ttfa), defined(t.duration))?;
    let tpot = t.tpot.map_or_else(|why| why.as_str().to_owned(), |s| ms(Duration::from_secs_f64(s)));
    let hidden = if t.tpot_without_reasoning { " (without reasoning)" } else { "" };
    let behind = t.tpot_after_first_chunk.map_or_else(String::new, |s| format!(" after_first {}", ms(Duration::from_secs_f64(s))));
    writeln!(out, " tpot {tpot}{hidden}{behind} stall {}", defined(t.max_stall))?;
    let gaps: Vec<String> = t.gaps.iter().map(|g| ms(Duration::from_nanos(g))).collect();
    writeln!(out, "  gaps      [{}]{}", gaps.join(" "), if t.gaps.complete() { "" } else { " and more" })?;
    if let Some(s) = i.server_timing {
        write!(out, "  server   ")?;
        for (what, seconds) in [
            ("queue", s.queue),
            ("prefill", s.prefill),
            ("ttft", s.ttft),
            ("tpot", s.tpot),
            ("decode", s.decode),
            ("total", s.total),
            ("load", s.load),
        ] {
            if let Some(seconds) = seconds {
                write!(out, " {what} {}", ms(Duration::from_secs_f64(seconds)))?;
            }
        }
        out.push('\n');
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_helpers_and_escapes() {
        let flow = Flow::parse("x", "# c\n@tap server\n0.5 > a\\r\\n\\x00\\\\\n1 < @chunk hi\n2 < @gap 7\n2 < @gap ?\n3 > @fin\n4 @idle\n")
            .unwrap();
        let at = Duration::from_millis;
        assert_eq!(
            flow.steps,
            [
                Step::Data(Duration::from_micros(500), Who::Client, b"a\r\n\0\\".to_vec()),
                Step::Data(at(1), Who::Server, b"2\r\nhi\r\n".to_vec()),
                Step::Gap(at(2), Who::Server, Some(7)),
                Step::Gap(at(2), Who::Server, None),
                Step::End(at(3), Ended::Fin(Who::Client)),
                Step::End(at(4), Ended::Idle),
                Step::End(at(4), Ended::Input),
            ]
        );
        let post = Flow::parse("x", "0 > @post http://h.test:8/v1/x x-a:b {\"m\":1}").unwrap();
        let want =
            "POST /v1/x HTTP/1.1\r\nhost: h.test:8\r\ncontent-type: application/json\r\nx-a: b\r\ncontent-length: 7\r\n\r\n{\"m\":1}";
        assert_eq!(post.steps[0], Step::Data(Duration::ZERO, Who::Client, want.as_bytes().to_vec()));
        for bad in ["x > a", "1 a", "0 > \\q", "0 > @nothing", "5 > a\n4 > b", "0 > @post nowhere {}", "@tap moon"] {
            assert!(Flow::parse("x", bad).is_err(), "{bad}");
        }
    }
}
