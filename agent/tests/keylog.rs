//! `replay --keylog` on a small capture of real OpenSSL traffic (`tests/tls/run.py --fixture` makes it anew): two exchanges over TLS, 1.2
//! with AES-GCM, and 1.3 with ChaCha20 and key updates of both sides, and what became of each behind a relay that took the TLS off.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states its expectations so")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use tokengauge::driver::{Driver, Progress};
use tokengauge::tap::pcap::FileTap;
use tokengauge::tap::{StopFlag, Tap as _};
use tokengauge_core::inference::{Inference, Outcome};
use tokengauge_core::pipeline::{Options, PipelineStats};
use tokengauge_core::tcp::Limits;
use tokengauge_core::tls::KeyLog;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tls").join(name)
}

fn capture() -> Vec<u8> {
    std::fs::read(fixture("tls.pcap")).unwrap()
}

fn keys() -> Arc<KeyLog> {
    let mut keys = KeyLog::new();
    keys.read(&std::fs::read(fixture("tls.keylog")).unwrap()).unwrap();
    Arc::new(keys)
}

#[derive(Default)]
struct Got(Vec<Inference>);

impl Progress for Got {
    fn inference(&mut self, inference: Inference) {
        self.0.push(inference);
    }

    fn tick(&mut self, _: &dyn Fn() -> PipelineStats) {}
}

fn measure(capture: Vec<u8>, keys: Option<Arc<KeyLog>>) -> (Vec<Inference>, PipelineStats) {
    let tap = FileTap::from_reader("capture", Box::new(std::io::Cursor::new(capture)), Limits::default());
    let mut driver = Driver::new(Options::default(), Got::default()).decrypting(keys);
    Box::new(tap).run(&mut driver, &StopFlag::default()).unwrap();
    let (stats, got) = driver.finish();
    (got.0, stats)
}

/// The records of a pcap file: header and frame.
fn records(capture: &[u8]) -> Vec<&[u8]> {
    let (mut rest, mut out) = (&capture[24..], Vec::new());
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let (record, next) = rest.split_at(16 + length);
        out.push(record);
        rest = next;
    }
    out
}

/// The same packets as pcapng, with a key log inside.
fn pcapng(capture: &[u8], key_log: &[u8]) -> Vec<u8> {
    let word = |n: usize| (n as u32).to_le_bytes();
    let block = |kind: u32, body: &[u8]| {
        let length = 12 + body.len().next_multiple_of(4);
        let mut out = [kind.to_le_bytes(), word(length)].concat();
        out.extend(body);
        out.resize(length - 4, 0);
        out.extend(word(length));
        out
    };
    let mut out = block(0x0a0d_0d0a, &[&word(0x1a2b_3c4d)[..], &[1, 0, 0, 0], &[0xff; 8]].concat());
    // Ethernet, nanoseconds
    out.extend(block(1, &[&[1, 0, 0, 0], &word(262_144)[..], &[9, 0, 1, 0, 9, 0, 0, 0]].concat()));
    out.extend(block(10, &[&word(0x5353_484b)[..], &word(4), b"SSH "].concat()));
    out.extend(block(10, &[&word(0x544c_534b)[..], &word(key_log.len()), key_log].concat()));
    for record in records(capture) {
        let number = |at: usize| u64::from(u32::from_le_bytes(record[at..at + 4].try_into().unwrap()));
        let nanos = number(0) * 1_000_000_000 + number(4);
        let stamp = [word((nanos >> 32) as usize), word(nanos as u32 as usize)].concat();
        out.extend(block(6, &[&word(0)[..], &stamp, &record[8..12], &record[12..16], &record[16..]].concat()));
    }
    out
}

fn replay(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokengauge"));
    command.arg("replay").args(args).args(["--format", "jsonl"]).output().unwrap()
}

#[test]
fn what_is_decrypted_is_what_was_said_in_the_clear() {
    let (found, stats) = measure(capture(), Some(keys()));
    let mut by_id: BTreeMap<String, Vec<&Inference>> = BTreeMap::new();
    for i in &found {
        by_id.entry(i.response.id.as_ref().unwrap().as_str().to_owned()).or_default().push(i);
    }
    assert_eq!(by_id.keys().collect::<Vec<_>>(), ["chatcmpl-one", "chatcmpl-two"]);
    for (legs, chunks) in by_id.values().zip([4, 6]) {
        let [a, b] = legs[..] else { panic!("{} legs", legs.len()) };
        assert_ne!(a.server, b.server);
        for i in [a, b] {
            assert_eq!((i.outcome, i.chunks.generated, i.gaps), (Outcome::Completed, chunks, 0));
        }
        assert_eq!((&a.request, &a.response, a.chunks, &a.usage), (&b.request, &b.response, b.chunks, &b.usage));
        // the relay lies between them
        let apart = a.timing.ttft.unwrap().abs_diff(b.timing.ttft.unwrap());
        assert!(apart.as_millis() < 50, "{apart:?}");
    }
    assert_eq!((stats.connections, stats.anomalies.iter().next(), stats.gaps.iter().sum::<u64>()), (4, None, 0));
}

#[test]
fn secrets_inside_the_file_are_as_good() {
    let (want, _) = measure(capture(), Some(keys()));
    let log = std::fs::read(fixture("tls.keylog")).unwrap();
    let (got, stats) = measure(pcapng(&capture(), &log), None);
    assert_eq!(format!("{got:?}"), format!("{want:?}"));
    assert_eq!(stats.anomalies.iter().next(), None);
    let (got, stats) = measure(pcapng(&capture(), b"no key log\n"), None);
    assert_eq!(got.len(), 2);
    let anomalies: Vec<_> = stats.anomalies.iter().map(|(a, n)| (a.as_str(), n)).collect();
    assert_eq!(anomalies, [("tls_no_key", 2), ("tls_bad_key_log", 1)]);
}

/// Any one packet may be missing: no figure is there that the whole capture does not give.
#[test]
fn a_lost_packet_invents_nothing() {
    let whole = capture();
    let of = |i: &Inference| (i.client, i.server);
    let (clean, _) = measure(whole.clone(), Some(keys()));
    let packets = records(&whole);
    for lost in 0..packets.len() {
        let kept = packets.iter().enumerate().filter(|(n, _)| *n != lost).flat_map(|(_, p)| p.iter().copied());
        let (found, _) = measure(whole[..24].iter().copied().chain(kept).collect(), Some(keys()));
        for i in found {
            let Some(want) = clean.iter().find(|c| of(c) == of(&i)) else { continue };
            for (figure, a, b) in [
                ("ttft", i.timing.ttft, want.timing.ttft),
                ("duration", i.timing.duration, want.timing.duration),
                ("stall", i.timing.max_stall, want.timing.max_stall),
            ] {
                assert!(a.is_err() || a == b, "packet {lost} lost: {figure} {a:?}, not {b:?}");
            }
            assert!(i.outcome != Outcome::Completed || i.usage == want.usage || i.usage.is_none(), "packet {lost} lost");
        }
    }
}

#[test]
fn the_program_says_what_it_could_not_use() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (pcap, log) = (fixture("tls.pcap").display().to_string(), fixture("tls.keylog"));
    let text = std::fs::read_to_string(&log).unwrap();
    let log = log.display().to_string();
    let lines = |output: &Output| output.stdout.iter().filter(|b| **b == b'\n').count();
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();

    let good = replay(&[&pcap, "--keylog", &log]);
    assert_eq!((good.status.code(), lines(&good)), (Some(0), 4), "{}", said(&good));
    assert!(said(&good).contains("\"decrypted_connections\":2"), "{}", said(&good));
    let everything = String::from_utf8_lossy(&good.stdout).into_owned() + &said(&good);
    for secret in text.split_whitespace().filter(|w| w.len() >= 64) {
        assert!(!everything.contains(secret), "a secret is shown");
    }

    // half the secrets in each of two files, one of them with a line that is none
    let (first, rest) = text.split_once('\n').unwrap();
    let (one, two) = (file("one", first), file("two", &format!("{rest}CLIENT_RANDOM nonsense 00\n")));
    let split = replay(&[&pcap, "--keylog", &one, "--keylog", &two]);
    assert_eq!((split.status.code(), lines(&split)), (Some(1), 4));
    let number = rest.lines().count() + 1;
    assert!(said(&split).contains(&format!("two: line {number}: the client random is not 64 hexadecimal digits")), "{}", said(&split));

    let none = replay(&[&pcap]);
    assert_eq!((none.status.code(), lines(&none)), (Some(0), 2));
    assert!(said(&none).contains("\"not_http\":2"), "{}", said(&none));
    let other = replay(&[&pcap, "--keylog", &file("other", &text.replace('3', "4"))]);
    assert_eq!((other.status.code(), lines(&other)), (Some(0), 2));
    assert!(said(&other).contains("\"tls_no_key\":2"), "{}", said(&other));
    let missing = replay(&[&pcap, "--keylog", "/nonexistent/log"]);
    assert_eq!((missing.status.code(), lines(&missing)), (Some(1), 2));
    assert!(said(&missing).contains("/nonexistent/log: No such file"), "{}", said(&missing));
}
