//! The program as a stranger meets it: help, messages, exit codes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test states its expectations so")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tokengauge_core::stream::Timestamp;
use tokengauge_core::tcp::build::{Conversation, PcapWriter, Who};

fn tokengauge(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokengauge"));
    // What the developer has set must not decide.
    for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("OTEL_") || n.starts_with("TOKENGAUGE_")) {
        command.env_remove(name);
    }
    command.args(args).envs(environment.iter().copied()).output().unwrap()
}

fn check(args: &[&str], code: i32, out: &str, err: &str) {
    let output = tokengauge(args, &[]);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert!(stdout.contains(out), "{args:?}: {stdout}");
    assert!(stderr.contains(err), "{args:?}: {stderr}");
}

/// A pcap file without packets: its 24-byte header.
fn empty_pcap(path: &Path) {
    let header = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 262_144, 1];
    std::fs::write(path, header.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>()).unwrap();
}

#[test]
fn exit_codes_and_messages() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (empty, bad, garbage) = (path("empty.pcap"), path("bad.yaml"), path("garbage.pcap"));
    empty_pcap(empty.as_ref());
    std::fs::write(&bad, "otlp:\n  endpiont: http://x\n").unwrap();
    std::fs::write(&garbage, "this is no capture file at all, whatever one may think of it").unwrap();

    check(&["--help"], 0, "Exit codes:", "");
    check(&["run", "--help"], 0, "OTEL_EXPORTER_OTLP_ENDPOINT", "");
    check(&["frobnicate"], 2, "", "unrecognized subcommand");
    check(&["replay"], 2, "", "<FILE>");
    check(&["replay", &empty], 0, "no inferences", "0 inferences");
    check(&["replay", &empty, "--format", "jsonl"], 0, "", "\"inferences\":0");
    check(&["replay", &path("missing.pcap")], 1, "", "missing.pcap: No such file");
    check(&["replay", &garbage], 1, "", "garbage.pcap: ");
    // What can be read is read, whatever else is given.
    check(&["replay", &garbage, &empty, "--format", "jsonl"], 1, "", "\"inputs\":2,\"failed_inputs\":1");
    check(&["replay", &empty, "--stats", "/nonexistent/stats"], 1, "", "/nonexistent/stats: ");
    let (short, keyed) = (path("short.key"), path("keyed.yaml"));
    std::fs::write(&short, "fifteen bytes..\n").unwrap();
    std::fs::write(
        &keyed,
        format!("taps: {{tls: {{enabled: false}}, pcap: [{{interface: lo}}]}}\ntenant: {{headers: [x-t], key_file: {short}}}\n"),
    )
    .unwrap();
    check(&["replay", &empty, "--tenant-header", "x-t"], 2, "", "--tenant-key <FILE>");
    check(
        &["replay", &empty, "--tenant-header", "x-t", "--tenant-key", &short],
        2,
        "",
        "short.key: holds 15 bytes, a key needs at least 16\n",
    );
    check(&["run", "--config", &keyed], 2, "", "tenants: ");
    check(&["run", "--config", &keyed, "--check"], 0, "names tenants by hashes of x-t", "");
    check(&["run", "--config", &bad], 2, "", "bad.yaml:2:3: otlp: unknown field `endpiont`");
    check(&["run", "--config", &bad], 2, "", "did you mean `endpoint`?");
    check(&["run", "--config", &path("missing.yaml")], 2, "", "missing.yaml: No such file");
    check(&["run", "--check"], 0, "watches TLS libraries by eBPF", "");
    check(&["run", "--no-tls"], 2, "", "nothing to watch");
    check(&["run", "--no-tls", "-i", "no-such-interface"], 1, "", "no-such-interface");
    check(&["run", "--log", "=x=", "--no-tls", "-i", "lo"], 2, "", "log filter");
    check(&["run", "--jsonl", "/nonexistent/x", "--no-tls", "-i", "lo", "--check"], 0, "/nonexistent/x", "");
    check(&["run", "--check", "--http-listen", "nowhere"], 2, "", "http: listen: `nowhere` is no address and port");
    check(&["run", "--check", "--http-listen", "9464"], 0, "serves health, metrics at http://127.0.0.1:9464", "");
    check(&["config", "check", &bad], 2, "", "did you mean `endpoint`?");
    check(&["config", "schema"], 0, "\"additionalProperties\": false", "");
    check(&["config", "reference"], 0, "| `http.listen` |", "");
    check(&["man"], 0, ".TH tokengauge 1", "");
    check(&["man", "--out", "/proc/nowhere"], 1, "", "/proc/nowhere");
    check(&["doctor", "--config", &bad], 1, "FAIL configuration: ", "");
    check(&["dialects", "--format", "markdown"], 0, "| `anthropic.messages` |", "");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        check(&["completions", shell], 0, "tokengauge", "");
    }
}

#[test]
fn the_environment_stands_between_file_and_flags() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.yaml").display().to_string();
    std::fs::write(&file, "jsonl: {path: from-file}\notlp: {endpoint: 'http://file:4317'}\n").unwrap();
    let said = |args: &[&str], environment: &[(&str, &str)]| {
        let output = tokengauge(&[&["run", "--check"], args].concat(), environment);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let text = said(&["--config", &file], &[]);
    assert!(text.contains("from-file") && text.contains("http://file:4317 (grpc)"), "{text}");
    let text = said(&[], &[("TOKENGAUGE_CONFIG", &file), ("TOKENGAUGE_JSONL", "from-env"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://env")]);
    assert!(text.contains("from-env") && text.contains("http://env (http/protobuf)"), "{text}");
    let flags = ["--config", &file, "--jsonl", "from-flag", "--otlp-endpoint", "http://flag:1"];
    let text = said(&flags, &[("TOKENGAUGE_JSONL", "from-env"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://env")]);
    assert!(text.contains("from-flag") && text.contains("http://flag:1"), "{text}");
    let text = said(&["--config", &file], &[("TOKENGAUGE_JSONL", ""), ("OTEL_SDK_DISABLED", "true")]);
    assert!(text.contains("from-file") && text.contains("no OTLP export"), "{text}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.pcap");
    empty_pcap(&empty);
    let mut child = Command::new(env!("CARGO_BIN_EXE_tokengauge"))
        .arg("replay")
        .arg(&empty)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Streams that begin, stall, lose packets, end and are left open at different times, packet by packet in order of time.
fn busy_pcap(path: &Path) {
    let start = Timestamp::from_unix_nanos(1_700_000_000_000_000_000);
    let mut all = Vec::new();
    for n in 0..60u64 {
        let ms = |ms: u64| Duration::from_millis(n * 37 % 900 + ms);
        let body = format!(r#"{{"model":"m{n}","stream":true,"messages":[]}}"#);
        let request = format!("POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        let client = format!("10.0.{}.2:{}", n % 7, 40_000 + n).parse().unwrap();
        let mut talk = Conversation::new(client, "10.0.0.1:80".parse().unwrap(), start).say(ms(1), Who::Client, request).say(
            ms(90),
            Who::Server,
            head,
        );
        for chunk in 0..20 + n % 5 {
            let data = format!(r#"data: {{"id":"c{n}","choices":[{{"index":0,"delta":{{"content":"t{chunk}"}}}}]}}"#);
            talk = talk.say(ms(100 + chunk * (20 + n)), Who::Server, format!("{:x}\r\n{data}\n\n\r\n", data.len() + 2));
        }
        if n % 3 > 0 {
            talk = talk.say(ms(9000), Who::Server, "e\r\ndata: [DONE]\n\n\r\n");
        }
        if n % 4 == 0 {
            talk = talk.unfinished();
        }
        let packets = talk.packets();
        // of every fifth one packet is missing
        let lost = if n % 5 == 0 { 12 + n as usize % 6 } else { usize::MAX };
        all.extend(packets.into_iter().enumerate().filter(|(i, _)| *i != lost).map(|(_, packet)| packet));
    }
    all.sort_by_key(|(at, _)| *at);
    // long after the rest: time-outs
    all.extend(
        Conversation::new("10.9.0.2:4".parse().unwrap(), "10.9.0.1:80".parse().unwrap(), start.plus(Duration::from_secs(700))).packets(),
    );
    let mut writer = PcapWriter::new(1);
    writer.packets(&all);
    std::fs::write(path, writer.finish()).unwrap();
}

#[test]
fn any_number_of_threads_says_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("busy.pcap");
    busy_pcap(&file);
    let file = file.display().to_string();
    let said = |threads: &str, format: &str| {
        let output = tokengauge(&["replay", &file, "--format", format, "--threads", threads], &[]);
        assert!(output.status.success());
        let stats = String::from_utf8_lossy(&output.stderr).into_owned();
        // what the threads cost is their own
        let counts = stats.split("\"wall_s\"").next().unwrap_or_default().to_owned();
        (String::from_utf8_lossy(&output.stdout).into_owned(), if format == "jsonl" { counts } else { String::new() })
    };
    for format in ["jsonl", "table"] {
        let one = said("1", format);
        assert!(one.0.lines().count() > 10, "{}", one.0);
        for threads in ["2", "3", "8", "0"] {
            let many = said(threads, format);
            let differ = many.0.lines().zip(one.0.lines()).enumerate().find(|(_, (a, b))| a != b);
            assert!(differ.is_none(), "{threads} threads, {format}: {differ:?}");
            assert_eq!(many.1, one.1, "{threads} threads, {format}");
            assert_eq!(many.0.len(), one.0.len(), "{threads} threads, {format}");
        }
    }
}
