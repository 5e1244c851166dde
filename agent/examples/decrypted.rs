//! What `replay --keylog` decrypts, as hexadecimal text: for tests that hold it beside another decryption. It prints what the agent
//! never does, the bytes of conversations.
//!
//! `decrypted CAPTURE [KEYLOG]`: a line for each direction that carried bytes: sender, receiver, bytes.
#![allow(clippy::unwrap_used, reason = "a tool of the tests")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tokengauge::keylog;
use tokengauge::tap::pcap::FileTap;
use tokengauge::tap::{Sink, StopFlag, Tap as _};
use tokengauge_core::stream::{ConnId, Endpoints, StreamEvent, Timestamp, Verdict};
use tokengauge_core::tcp::Limits;
use tokengauge_core::tls::{Decrypt, KeyLog};

struct Print {
    stage: Decrypt,
    conns: BTreeMap<ConnId, (Option<Endpoints>, [Vec<u8>; 2])>,
}

impl Sink for Print {
    fn event(&mut self, event: StreamEvent<'_>) -> Verdict {
        let Self { stage, conns } = self;
        stage.push(event, &mut |event| {
            let (ends, said) = conns.entry(event.conn()).or_default();
            match event {
                StreamEvent::Open { info, .. } => *ends = info.endpoints,
                StreamEvent::Data { dir, bytes, .. } => said[dir.index()].extend_from_slice(bytes),
                _ => {}
            }
            Verdict::Watch
        })
    }

    fn secrets(&mut self, key_log: &[u8]) {
        self.stage.secrets(key_log);
    }

    fn tick(&mut self, _: Timestamp) {}
}

fn main() {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let capture = args.next().unwrap();
    let (keys, errors) = keylog::read(&args.collect::<Vec<_>>());
    assert!(errors.is_empty(), "{errors:?}");
    let stage = Decrypt::new(keys.unwrap_or_else(|| KeyLog::new().into()));
    let mut sink = Print { stage, conns: BTreeMap::new() };
    let tap = FileTap::open(Path::new(&capture), Limits::default()).unwrap();
    Box::new(tap).run(&mut sink, &StopFlag::default()).unwrap();
    for (ends, [forward, reverse]) in sink.conns.into_values() {
        let Some(Endpoints { local, remote }) = ends else { continue };
        for (from, to, bytes) in [(local, remote, forward), (remote, local, reverse)] {
            let hex = bytes.iter().fold(String::new(), |mut hex, b| {
                let _ = write!(hex, "{b:02x}");
                hex
            });
            println!("{from} {to} {hex}");
        }
    }
}
