//! Recordings of real services, where they are at hand: bodies with an index that says what is in them. They are not part of the
//! repository.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokengauge_core::dialect::DIALECTS;

use crate::flow::{Ended, Flow, Seat, Step, Who};

/// One recording.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Its file, relative to the index.
    pub file: String,
    /// The index's entry.
    pub entry: Value,
    /// What the client sent.
    pub request: Vec<u8>,
    /// The answer's body.
    pub body: Vec<u8>,
}

/// Where recordings are: `TOKENGAUGE_FIXTURES`, else `../shared/fixtures/wire` beside the repository.
pub fn dir() -> PathBuf {
    std::env::var_os("TOKENGAUGE_FIXTURES").map_or_else(|| crate::root().join("../shared/fixtures/wire"), PathBuf::from)
}

/// The recordings of the APIs that are understood; `None`, with a line that says so, when there are none.
pub fn all() -> Option<Vec<Recording>> {
    let dir = dir();
    let Ok(index) = std::fs::read(dir.join("index.json")) else {
        eprintln!("skipped: no recordings at {}", dir.display());
        return None;
    };
    let index: Value = serde_json::from_slice(&index).unwrap();
    // Conversations on WebSockets are recorded by message, not as a body.
    let known = |e: &&Value| DIALECTS.iter().any(|d| d.about().api == api_of(e)) && e["framing"] != "websocket-json-frames";
    let found = index["fixtures"].as_array().unwrap().iter().filter(known).map(|e| Recording::read(&dir, e)).collect();
    Some(found)
}

/// The record's name of an entry's API: the index tells streaming operations apart, and errors by no API at all.
fn api_of(entry: &Value) -> &str {
    match entry["api"].as_str().unwrap_or_default() {
        "gemini.stream_generate_content" => "gemini.generate_content",
        "bedrock.converse_stream" => "bedrock.converse",
        "bedrock.invoke_stream" => "bedrock.invoke",
        "tgi.generate_stream" => "tgi.generate",
        "http" => match entry["url"].as_str().unwrap_or_default() {
            url if url.contains("/converse") => "bedrock.converse",
            url if url.contains(":generateContent") => "gemini.generate_content",
            url if url.contains("/api/chat") => "ollama.chat",
            _ => "http",
        },
        api => api,
    }
}

impl Recording {
    /// The record's `api`.
    pub fn api(&self) -> &str {
        api_of(&self.entry)
    }

    /// How the body is cut into events, by the index.
    fn framing(&self) -> &str {
        self.entry["framing"].as_str().unwrap_or_default()
    }

    fn read(dir: &Path, entry: &Value) -> Self {
        let file = entry["file"].as_str().unwrap().to_owned();
        let raw = std::fs::read(dir.join(&file)).unwrap();
        let request = entry["request_file"].as_str().map_or_else(
            || {
                let model = entry["request_model"].as_str().unwrap_or("a-model");
                serde_json::json!({"model": model, "stream": entry["streaming"], "messages": [], "prompt": "x", "contents": []}).to_string()
            },
            |f| std::fs::read_to_string(dir.join(f)).unwrap(),
        );
        let body = if entry["framing"] == "jsonl-of-sse-data" {
            let lines = raw.split(|b| *b == b'\n').filter(|l| !l.trim_ascii().is_empty());
            lines.flat_map(|l| [b"data: ", l, b"\n\n"].concat()).collect()
        } else {
            raw
        };
        Self { file, entry: entry.clone(), request: request.into_bytes(), body }
    }

    /// What the index expects under `key`.
    pub fn expected(&self, key: &str) -> &Value {
        &self.entry["expected"][key]
    }

    /// The status, 200 where the index names none.
    pub fn status(&self) -> u64 {
        self.entry["http_status"].as_u64().unwrap_or(200)
    }

    /// The body cut into its events, each with what delimits it.
    pub fn events(&self) -> Vec<&[u8]> {
        let body = self.body.as_slice();
        let ends: Vec<usize> = match self.framing() {
            "ndjson" => (0..body.len()).filter(|i| body[*i] == b'\n').map(|i| i + 1).collect(),
            "json-array" => Self::elements(body),
            "aws-eventstream" => {
                let length = |at: usize| body.get(at..at + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize);
                std::iter::successors(length(0), |at| length(*at).map(|n| at + n)).collect()
            }
            _ => {
                let blank = |i: &usize| body[..*i].ends_with(b"\n\n") || body[..*i].ends_with(b"\r\n\r\n");
                (1..=body.len()).filter(blank).collect()
            }
        };
        let mut out = Vec::new();
        let mut from = 0;
        for end in ends.into_iter().chain([body.len()]) {
            if end > from {
                out.push(&body[from..end]);
                from = end;
            }
        }
        out
    }

    /// Where the elements of an array end.
    fn elements(body: &[u8]) -> Vec<usize> {
        let (mut ends, mut depth, mut string, mut escaped) = (Vec::new(), 0, false, false);
        for (i, byte) in body.iter().enumerate() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = string,
                b'"' => string = !string,
                b'{' if !string => depth += 1,
                b'}' if !string => {
                    depth -= 1;
                    if depth == 0 {
                        ends.push(i + 1);
                    }
                }
                _ => {}
            }
        }
        ends
    }

    /// The recording as a flow: the request at 0, the head at 100 ms, event n at 200 + 10 n ms.
    pub fn flow(&self) -> Flow {
        let usual = DIALECTS.iter().find(|d| d.about().api == self.api()).unwrap().about().paths[0].replace(['{', '}'], "");
        let target = self.entry["url"].as_str().and_then(|url| url.split_once("://")).map(|(_, target)| target);
        let (host, path) = target.and_then(|t| t.split_once('/')).unwrap_or(("unknown.test", usual.trim_start_matches('/')));
        let anthropic = if self.entry["api"] == "anthropic.messages" { "anthropic-version: 2023-06-01\r\n" } else { "" };
        let head = format!(
            "POST /{path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n{anthropic}content-length: {}\r\n\r\n",
            self.request.len()
        );
        let media = match self.framing() {
            "json" | "json-array" => "application/json",
            "ndjson" => "application/x-ndjson",
            "aws-eventstream" => "application/vnd.amazon.eventstream",
            _ => "text/event-stream",
        };
        let answer = format!("HTTP/1.1 {} -\r\ncontent-type: {media}\r\ntransfer-encoding: chunked\r\n\r\n", self.status());
        let ms = Duration::from_millis;
        let mut steps = vec![
            Step::Data(ms(0), Who::Client, [head.as_bytes(), &self.request].concat()),
            Step::Data(ms(100), Who::Server, answer.into_bytes()),
        ];
        let mut at = ms(200);
        for event in self.events() {
            let chunk = [format!("{:x}\r\n", event.len()).as_bytes(), event, b"\r\n"].concat();
            steps.push(Step::Data(at, Who::Server, chunk));
            at += ms(10);
        }
        steps.push(Step::Data(at, Who::Server, b"0\r\n\r\n".to_vec()));
        steps.push(Step::End(at, Ended::Input));
        Flow { name: self.file.clone(), seat: Seat::Client, from_start: true, steps }
    }
}
