//! Writes the seeds of the fuzz targets from our own flows: `cargo run -p tokengauge-tests --example seeds`.
#![allow(clippy::unwrap_used, reason = "a tool of the tests")]

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use tokengauge_core::framing::{Unit, eventstream};
use tokengauge_core::http::h1::{Parser, Part, Role};
use tokengauge_core::tcp::build::{Conversation, Fault, Who as Speaker};
use tokengauge_core::tcp::packet::LinkType;
use tokengauge_tests::flow::{BASE, Ended, Flow, Step, Who, fixtures};
use tokengauge_tests::h2::{Style, over_h2, together};

/// Seeds of one target; more would be near copies.
const MOST: usize = 24;

fn main() {
    let flows: Vec<Flow> = fixtures().into_iter().map(|(_, flow)| flow).collect();
    write("pipeline", flows.iter().map(script));
    write("session", flows.iter().filter(|f| f.name.starts_with("http/")).map(script));
    let h2 = |style| flows.iter().filter_map(move |f| over_h2(f, style)).map(|f| [b"\x02", script(&f).as_slice()].concat());
    // A script has no bytes 0xff, and Huffman code has many.
    write("h2", h2(Style::PLAIN).chain(h2(Style { huffman: false, ..Style::ODD })));
    write("hpack", [Style::PLAIN, Style::USUAL].into_iter().flat_map(|style| blocks(&flows, style)));
    let calls = || flows.iter().flat_map(|f| [Who::Client, Who::Server].map(|who| called(f, who)));
    write("grpc", calls().filter(|b| !b.is_empty()).map(|b| [b"\x1f", b.as_slice()].concat()));
    let down = |f: &Flow| bytes(f, Who::Server);
    write("h1", flows.iter().map(|f| [b"\x1f", down(f).as_slice()].concat()));
    write("h1", flows.iter().filter(|f| f.name.starts_with("http/")).map(|f| [b"\x9f", bytes(f, Who::Client).as_slice()].concat()));
    write("sse", flows.iter().filter_map(|f| body(f).map(|b| [b"\x0f", b.as_slice()].concat())));
    let json = |f: &Flow| down(f).windows(4).position(|w| w == b"\r\n\r\n").map(|at| down(f)[at + 4..].to_vec());
    write("skeleton", flows.iter().filter_map(json).filter(|b| b.starts_with(b"{")).map(|b| [b"\xef", b.as_slice()].concat()));
    write("coding", flows.iter().filter(|f| f.name.contains("gzip") || f.name.contains("deflate")).filter_map(coded));
    let readers = [
        ("openai", "openai.c"),
        ("anthropic", "anthropic."),
        ("responses", "openai.responses/"),
        ("gemini", "gemini.generate_content/"),
        ("interactions", "gemini.interactions/"),
        ("cohere", "cohere.chat_v2/"),
        ("tgi", "tgi."),
        ("sglang", "sglang."),
        ("llama_cpp", "llama_cpp."),
        ("triton", "triton."),
        ("unknown", "unknown/"),
    ];
    for (target, folder) in readers {
        let bodies = flows.iter().filter(|f| f.name.starts_with(folder)).filter_map(body);
        write(target, bodies.map(|b| events(&b)).filter(|b| !b.is_empty()));
    }
    let of = |folder: &'static str| flows.iter().filter(move |f| f.name.starts_with(folder));
    let lines = [("ollama", "ollama."), ("cohere_v1", "cohere.chat_v1/"), ("rerank", "cohere.rerank/"), ("rerank", "tei.rerank/")];
    for (target, folder) in lines {
        write(target, of(folder).map(|f| json_lines(&down(f))).filter(|b| !b.is_empty()));
    }
    write("bedrock", of("bedrock.converse/").map(messages).filter(|b| !b.is_empty()));
    write("bedrock_invoke", of("bedrock.invoke/").map(messages).filter(|b| !b.is_empty()).map(|b| unwrapped(&b)));
    let talk = Conversation::new("10.0.0.9:4000".parse().unwrap(), "[2001:db8::1]:80".parse().unwrap(), BASE)
        .say(Duration::ZERO, Speaker::Client, *b"POST / HTTP/1.1\r\n\r\n")
        .say(Duration::from_millis(9), Speaker::Server, *b"HTTP/1.1 200 OK\r\n\r\n")
        .fault(Fault::Retransmit(2));
    let links = [LinkType::Loopback, LinkType::Ethernet, LinkType::RawIp, LinkType::LinuxCooked, LinkType::LinuxCooked2];
    let packets: Vec<_> = talk.packets();
    let frames =
        packets.iter().take(6).flat_map(|(_, p)| links.iter().enumerate().map(|(n, l)| [&[n as u8, 0], p.frame(*l).as_slice()].concat()));
    write("packet", frames);
    // A handshake, data in order, data behind a hole, its filling, ends.
    let open = [[1, 0, 4, 0, 0, 2, 0, 0], [1, 1, 8, 0, 4, 18, 0, 0], [1, 0, 4, 0, 8, 16, 0, 0]];
    let end = [[9, 0, 6, 0, 8, 17, 0, 0], [9, 1, 8, 0, 6, 17, 0, 0], [9, 0, 6, 0, 8, 4, 0, 0]];
    let middles: [&[[u8; 8]]; 3] = [
        &[[1, 0, 4, 0, 8, 24, 16, 0], [1, 0, 5, 0, 8, 24, 16, 0]],
        &[[1, 0, 6, 0, 8, 24, 16, 0], [1, 0, 4, 0, 8, 24, 32, 0], [1, 1, 8, 1, 7, 16, 9, 0]],
        &[[1, 0, 4, 0, 8, 24, 16, 200], [200, 0, 9, 1, 8, 24, 16, 0], [200, 2, 9, 1, 8, 2, 0, 0]],
    ];
    write("assembler", middles.iter().map(|m| [&open[..], m, &end[..]].concat().concat()));
}

/// The header blocks of a client, some flows at a time.
fn blocks(flows: &[Flow], style: Style) -> Vec<Vec<u8>> {
    let frames = |f: &Flow| bytes(f, Who::Client).get(24..).map(<[u8]>::to_vec).unwrap_or_default();
    let of = |mut left: &[u8]| {
        let mut out = Vec::new();
        while let Some((&[_, a, b, kind, _, _, _, _, _], rest)) = left.split_first_chunk::<9>() {
            let (payload, rest) = rest.split_at((usize::from(a) << 8 | usize::from(b)).min(rest.len()));
            if kind == 1 {
                out.extend([b"\xfe-", payload].concat());
            }
            left = rest;
        }
        out
    };
    let shifted: Vec<(Flow, Duration)> = flows.iter().cloned().zip(0..).map(|(f, n)| (f, Duration::from_millis(n))).collect();
    shifted.chunks(12).filter_map(|some| together(some, style)).map(|(_, f)| of(&frames(&f))).collect()
}

fn write(target: &str, seeds: impl Iterator<Item = Vec<u8>>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    std::fs::create_dir_all(&dir).unwrap();
    let seeds: Vec<Vec<u8>> = seeds.filter(|s| s.len() < 6000).collect();
    let begin = std::fs::read_dir(&dir).unwrap().count();
    for (n, seed) in seeds.iter().step_by(seeds.len().div_ceil(MOST).max(1)).enumerate() {
        std::fs::write(dir.join(format!("{:02}", begin + n)), seed).unwrap();
    }
}

/// A flow in the language of `tokengauge_fuzz::script`.
fn script(flow: &Flow) -> Vec<u8> {
    let (mut out, mut side) = (Vec::new(), Who::Client);
    let mut turn = |who: Who, out: &mut Vec<u8>| {
        if who != side {
            side = who;
            out.extend(if who == Who::Client { b"\xff>" } else { b"\xff<" });
        }
    };
    for step in &flow.steps {
        match step {
            Step::Data(_, who, bytes) => {
                turn(*who, &mut out);
                out.extend(bytes.iter().filter(|b| **b != 0xff));
                out.extend(b"\xff ");
            }
            Step::Gap(_, who, len) => {
                turn(*who, &mut out);
                out.extend([0xff, b'g', len.map_or(0, |n| n as u8)]);
            }
            Step::End(_, Ended::Fin(who)) => {
                turn(*who, &mut out);
                out.extend(b"\xfff");
            }
            Step::End(_, Ended::Rst(who)) => {
                turn(*who, &mut out);
                out.extend(b"\xffr");
            }
            Step::End(_, Ended::Idle) => out.extend(b"\xffi"),
            _ => {}
        }
    }
    out
}

fn bytes(flow: &Flow, of: Who) -> Vec<u8> {
    flow.steps
        .iter()
        .filter_map(|s| if let Step::Data(_, who, b) = s { (*who == of).then_some(b.as_slice()) } else { None })
        .flatten()
        .copied()
        .collect()
}

/// The bodies of one side, where they are gRPC's.
fn called(flow: &Flow, of: Who) -> Vec<u8> {
    let (all, mut out) = (bytes(flow, of), Vec::new());
    if !all.windows(16).any(|w| w == b"application/grpc") {
        return out;
    }
    let mut parser = Parser::new(if of == Who::Client { Role::Requests } else { Role::Responses }, true);
    let mut input = all.as_slice();
    while let Some(part) = parser.next(&mut input) {
        if let Part::Body(bytes) = part {
            out.extend_from_slice(bytes);
        }
    }
    out
}

/// The events of a streamed answer, without their HTTP chunks.
fn body(flow: &Flow) -> Option<Vec<u8>> {
    let all = bytes(flow, Who::Server);
    let at = all.windows(5).position(|w| w == b"data:" || w == b"event" || w == b": OPE")?;
    let lines = all[at..].split_inclusive(|b| *b == b'\n');
    let is_chunk = |l: &[u8]| l.ends_with(b"\r\n") && !l.starts_with(b"data") && l.len() > 2;
    Some(lines.filter(|l| !is_chunk(l)).flatten().copied().collect())
}

/// The events as lines: name, data.
fn events(body: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(body).into_owned();
    let (mut out, mut name) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(n) = line.strip_prefix("event: ") {
            n.clone_into(&mut name);
        } else if let Some(data) = line.strip_prefix("data:") {
            out.push_str(&format!("{name} {}\n", data.trim_start()));
            name.clear();
        }
    }
    out.into_bytes()
}

/// The lines that are JSON.
fn json_lines(body: &[u8]) -> Vec<u8> {
    let json = |line: &&[u8]| matches!(line.first(), Some(b'{' | b'['));
    body.split(|b| *b == b'\n').filter(json).flat_map(|line| [line, b"\n"].concat()).collect()
}

/// The messages of an AWS event-stream as lines: name, payload.
fn messages(flow: &Flow) -> Vec<u8> {
    let (mut framer, mut out) = (eventstream::Framer::default(), Vec::new());
    // Behind the head and between the chunks nothing looks like a message.
    framer.hole();
    framer.push(&bytes(flow, Who::Server), &mut |unit| {
        if let Unit::Event(f) = unit {
            out.extend([if f.error { b"!" } else { &b""[..] }, f.name, b" ", f.data, b"\n"].concat());
        }
    });
    out
}

/// What Bedrock wrapped in such messages, as lines.
fn unwrapped(messages: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(messages).into_owned();
    let inner = text.lines().filter_map(|l| l.split(r#""bytes":""#).nth(1)?.split('"').next());
    let decoded = inner.filter_map(|b| base64::engine::general_purpose::STANDARD.decode(b).ok());
    decoded.map(|d| [d.as_slice(), b"\n"].concat()).collect::<Vec<_>>().concat()
}

/// The first bytes of a compressed answer: its chunks' contents.
fn coded(flow: &Flow) -> Option<Vec<u8>> {
    let first = if flow.name.contains("deflate") { 0x5f } else { 0x1f };
    let chunks = flow.steps.iter().filter_map(|s| match s {
        Step::Data(_, Who::Server, b) => {
            let at = b.windows(2).position(|w| w == b"\r\n")? + 2;
            (!b.starts_with(b"HTTP") && at < 6).then(|| b[at..b.len().saturating_sub(2)].to_vec())
        }
        _ => None,
    });
    let all: Vec<u8> = chunks.flatten().collect();
    (!all.is_empty()).then(|| [&[first], all.as_slice()].concat())
}
