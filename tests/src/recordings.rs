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
    let known = |e: &&Value| {
        let api = e["api"].as_str().unwrap_or_default();
        DIALECTS.iter().any(|d| d.about().api == api)
    };
    let found = index["fixtures"].as_array().unwrap().iter().filter(known).map(|e| Recording::read(&dir, e)).collect();
    Some(found)
}

impl Recording {
    fn read(dir: &Path, entry: &Value) -> Self {
        let file = entry["file"].as_str().unwrap().to_owned();
        let raw = std::fs::read(dir.join(&file)).unwrap();
        let request = entry["request_file"].as_str().map_or_else(
            || {
                serde_json::json!({"model": entry["request_model"], "stream": entry["streaming"], "messages": [], "prompt": "x"})
                    .to_string()
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

    /// The body cut into its events, each with its blank line.
    pub fn events(&self) -> Vec<&[u8]> {
        let (mut out, mut from, mut at) = (Vec::new(), 0, 0);
        while at < self.body.len() {
            let rest = &self.body[at..];
            let blank = [&b"\n\n"[..], b"\r\n\r\n"].into_iter().find(|b| rest.starts_with(b));
            at += blank.map_or(1, <[u8]>::len);
            if blank.is_some() {
                out.push(&self.body[from..at]);
                from = at;
            }
        }
        if from < self.body.len() {
            out.push(&self.body[from..]);
        }
        out
    }

    /// The recording as a flow: the request at 0, the head at 100 ms, event n at 200 + 10 n ms.
    pub fn flow(&self) -> Flow {
        let api = self.entry["api"].as_str().unwrap();
        let usual = DIALECTS.iter().find(|d| d.about().api == api).unwrap().about().paths[0];
        let target = self.entry["url"].as_str().and_then(|url| url.split_once("://")).map(|(_, target)| target);
        let (host, path) = target.and_then(|t| t.split_once('/')).unwrap_or(("unknown.test", usual.trim_start_matches('/')));
        let anthropic = if self.entry["api"] == "anthropic.messages" { "anthropic-version: 2023-06-01\r\n" } else { "" };
        let head = format!(
            "POST /{path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n{anthropic}content-length: {}\r\n\r\n",
            self.request.len()
        );
        let stream = self.entry["framing"] != "json";
        let media = if stream { "text/event-stream" } else { "application/json" };
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
