//! HTTP/2, written: flows of HTTP/1.1 carried over it, each message at the same instants.
//!
//! Nothing here reads HTTP/2; the pipeline does.

use std::collections::VecDeque;
use std::time::Duration;

use tokengauge_core::http::h1::{Parser, Part, Role};
use tokengauge_core::http::h2::hpack::STATIC;
use tokengauge_core::http::h2::huffman;
use tokengauge_core::http::h2::wire::PREFACE;

use crate::flow::{Ended, Flow, Step, Who};

mod ws;

pub use ws::websocket_over_h2;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// How a peer writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Style {
    /// Strings in Huffman code.
    pub huffman: bool,
    /// Fields go to the dynamic table and are referred to there.
    pub table: bool,
    /// Bodies are cut into frames anywhere, some of them empty.
    pub split: bool,
    /// Frames have padding, HEADERS a priority.
    pub padding: bool,
    /// Header blocks go on in CONTINUATION frames.
    pub continuation: bool,
    /// Other frames stand in between.
    pub chatter: bool,
}

impl Style {
    /// As most peers write.
    pub const USUAL: Self = Self { huffman: true, table: true, split: false, padding: false, continuation: false, chatter: false };
    /// Everything that the protocol allows.
    pub const ODD: Self = Self { huffman: true, table: true, split: true, padding: true, continuation: true, chatter: true };
    /// Nothing but what is needed.
    pub const PLAIN: Self = Self { huffman: false, table: false, split: false, padding: false, continuation: false, chatter: false };
}

/// A frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A generator of the same numbers in every run.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// One direction's header compression (RFC 7541).
#[derive(Debug, Default)]
struct Encoder {
    /// Newest first.
    table: VecDeque<(String, String)>,
}

impl Encoder {
    fn encode(&mut self, fields: &[(String, String)], style: Style) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, value) in fields {
            let same = |(n, v): (&str, &str)| n == name && v == value;
            let fixed = STATIC.iter().map(|(n, v)| (*n, *v));
            let own = self.table.iter().filter(|_| style.table).map(|(n, v)| (n.as_str(), v.as_str()));
            let all: Vec<(&str, &str)> = fixed.chain(own).collect();
            if let Some(at) = all.iter().position(|f| same(*f)) {
                integer(0x80, 7, at + 1, &mut out);
                continue;
            }
            let named = all.iter().position(|(n, _)| n == name).map_or(0, |at| at + 1);
            // A secret is never to be held (RFC 7541 §7.1.3).
            let insert = style.table && name != "authorization";
            integer(if insert { 0x40 } else { 0x10 }, if insert { 6 } else { 4 }, named, &mut out);
            if named == 0 {
                text(name, style, &mut out);
            }
            text(value, style, &mut out);
            if insert {
                self.table.push_front((name.clone(), value.clone()));
                while self.table.iter().map(|(n, v)| n.len() + v.len() + 32).sum::<usize>() > 4096 {
                    self.table.pop_back();
                }
            }
        }
        out
    }
}

fn integer(first: u8, prefix: u32, value: usize, out: &mut Vec<u8>) {
    let most = (1usize << prefix) - 1;
    if value < most {
        out.push(first | value as u8);
        return;
    }
    out.push(first | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(0x80 | (rest & 0x7f) as u8);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn text(text: &str, style: Style, out: &mut Vec<u8>) {
    let code = huffman::encode(text.as_bytes());
    if style.huffman && code.len() < text.len() {
        integer(0x80, 7, code.len(), out);
        out.extend(code);
    } else {
        integer(0, 7, text.len(), out);
        out.extend(text.as_bytes());
    }
}

/// A message of HTTP/1.1 with the instants of its parts.
#[derive(Clone, Debug)]
struct Message {
    who: Who,
    /// Which exchange of its flow.
    exchange: usize,
    begun: Duration,
    read: Duration,
    fields: Vec<(String, String)>,
    interim: bool,
    body: Vec<(Duration, Vec<u8>)>,
    end: Option<Duration>,
}

/// The messages of a flow, as an HTTP/1.1 parser reads them; `None` when it holds anything else.
fn messages(flow: &Flow) -> Option<Vec<Message>> {
    // A change of protocol is no matter of HTTP/2.
    let upgrades = |s: &Step| matches!(s, Step::Data(_, Who::Client, b) if b.windows(8).any(|w| w.eq_ignore_ascii_case(b"upgrade:")));
    if flow.steps.iter().any(upgrades) {
        return None;
    }
    let mut parsers = [Parser::new(Role::Requests, true), Parser::new(Role::Responses, true)];
    let (mut raw, mut in_head, mut begun) = ([Vec::new(), Vec::new()], [false; 2], [Duration::ZERO; 2]);
    let (mut out, mut open, mut heads): (Vec<Message>, [Option<usize>; 2], Vec<bool>) = (Vec::new(), [None; 2], Vec::new());
    let mut answered = 0;
    for step in &flow.steps {
        let (at, who, bytes) = match step {
            Step::Data(at, who, bytes) => (*at, *who, bytes),
            Step::Gap(..) => return None,
            Step::End(at, Ended::Fin(Who::Server)) => {
                if parsers[1].close() {
                    out[open[1]?].end = Some(*at);
                }
                continue;
            }
            Step::End(..) | Step::Tick(_) => continue,
        };
        let side = who as usize;
        let mut input = bytes.as_slice();
        loop {
            let before = input;
            let part = parsers[side].next(&mut input);
            if in_head[side] {
                raw[side].extend_from_slice(&before[..before.len() - input.len()]);
            }
            match part {
                None => break,
                Some(Part::Begin) => {
                    (in_head[side], begun[side]) = (true, at);
                    raw[side].clear();
                }
                Some(Part::Request(head)) => {
                    in_head[side] = false;
                    if head.upgrade.is_some() {
                        return None;
                    }
                    heads.push(head.method == tokengauge_core::http::head::Method::Head);
                    out.push(Message::read(who, heads.len() - 1, begun[side], at, &raw[side])?);
                    open[side] = Some(out.len() - 1);
                }
                Some(Part::Response(head)) => {
                    in_head[side] = false;
                    if head.status == 101 {
                        return None;
                    }
                    let mut message = Message::read(who, answered, begun[side], at, &raw[side])?;
                    message.interim = head.status < 200;
                    if !message.interim {
                        if *heads.get(answered)? {
                            parsers[side].no_body();
                        }
                        answered += 1;
                    }
                    out.push(message);
                    open[side] = Some(out.len() - 1);
                }
                Some(Part::Body(bytes)) => out[open[side]?].body.push((at, bytes.to_vec())),
                Some(Part::End) => out[open[side]?].end = Some(at),
                Some(Part::Lost | Part::Odd(_)) => return None,
            }
        }
    }
    (!out.is_empty() && !in_head[0] && !in_head[1]).then_some(out)
}

impl Message {
    fn read(who: Who, exchange: usize, begun: Duration, read: Duration, raw: &[u8]) -> Option<Self> {
        let text = String::from_utf8(raw.to_vec()).ok()?;
        let mut lines = text.lines();
        let first: Vec<&str> = lines.next()?.split(' ').collect();
        let mut fields = Vec::new();
        match who {
            Who::Client => {
                let own = |n: &str, v: &str| (n.to_owned(), v.to_owned());
                fields.extend([own(":method", first[0]), own(":scheme", "https"), own(":path", first[1])]);
            }
            Who::Server => fields.push((":status".to_owned(), first[1].to_owned())),
        }
        for line in lines.filter(|l| !l.is_empty()) {
            let (name, value) = line.split_once(':')?;
            let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
            match &*name {
                "host" => fields.insert(1, (":authority".to_owned(), value)),
                "connection" | "transfer-encoding" | "keep-alive" | "upgrade" => {}
                _ => fields.push((name, value)),
            }
        }
        Some(Self { who, exchange, begun, read, fields, interim: false, body: Vec::new(), end: None })
    }
}

/// What a connection carries.
#[derive(Clone, Debug)]
enum Op {
    /// A header block, and whether it ends the stream; the rest of it when not all comes at once.
    Head(Vec<(String, String)>, bool, Option<Duration>),
    /// Bytes of a body, and whether they end the stream.
    Body(Vec<u8>, bool),
    Reset,
}

/// An operation: when, by whom, on which exchange of which flow.
type Timed = (Duration, Who, (usize, usize), Op);

fn operations(flow: usize, messages: &[Message], shift: Duration) -> Vec<Timed> {
    let mut out = Vec::new();
    for m in messages {
        let key = (flow, m.exchange);
        let mut mine = vec![(m.begun + shift, m.who, key, Op::Head(m.fields.clone(), false, (m.read > m.begun).then_some(m.read + shift)))];
        mine.extend(m.body.iter().map(|(at, bytes)| (*at + shift, m.who, key, Op::Body(bytes.clone(), false))));
        if let Some(end) = m.end.filter(|_| !m.interim) {
            match mine.last_mut() {
                Some((at, _, _, Op::Body(_, ends))) if *at == end + shift => *ends = true,
                Some((at, _, _, Op::Head(_, ends, rest))) if rest.unwrap_or(*at) == end + shift => *ends = true,
                _ => mine.push((end + shift, m.who, key, Op::Body(Vec::new(), true))),
            }
        }
        out.extend(mine);
    }
    out
}

/// A connection being written.
struct Connection {
    style: Style,
    dice: Dice,
    encoders: [Encoder; 2],
    streams: Vec<(usize, usize)>,
    steps: Vec<Step>,
}

impl Connection {
    /// `steps` went before.
    fn new(style: Style, at: Duration, steps: Vec<Step>) -> Self {
        let server_done = steps.iter().any(|s| matches!(s, Step::End(_, Ended::Fin(Who::Server))));
        let mut new = Self { style, dice: Dice(0x2545_f491_4f6c_dd1d), encoders: Default::default(), streams: Vec::new(), steps };
        let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 16, 0, 0, 0, 1, 0, 0, 16, 0]);
        new.write(at, Who::Client, [PREFACE.to_vec(), settings.clone()].concat());
        if !server_done {
            new.write(at, Who::Server, [settings, frame(SETTINGS, 1, 0, &[])].concat());
        }
        new
    }

    /// Adds to the last write, if it is of the same instant.
    fn write(&mut self, at: Duration, who: Who, bytes: Vec<u8>) {
        match self.steps.last_mut() {
            Some(Step::Data(last, same, before)) if *last == at && *same == who => before.extend(bytes),
            _ => self.steps.push(Step::Data(at, who, bytes)),
        }
    }

    fn stream(&mut self, key: (usize, usize)) -> u32 {
        let n = self.streams.iter().position(|k| *k == key).unwrap_or_else(|| {
            self.streams.push(key);
            self.streams.len() - 1
        });
        2 * n as u32 + 1
    }

    fn padded(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        if !self.style.padding || self.dice.below(3) == 0 {
            return frame(kind, flags, stream, payload);
        }
        let pad = self.dice.below(40);
        frame(kind, flags | PADDED, stream, &[&[pad as u8], payload, &vec![0; pad]].concat())
    }

    fn operate(&mut self, (at, who, key, op): Timed) {
        let stream = self.stream(key);
        if self.style.chatter && self.dice.below(3) == 0 {
            self.write(
                at,
                who,
                [frame(PING, 0, 0, &[7; 8]), frame(WINDOW_UPDATE, 0, stream, &[0, 0, 9, 9]), frame(0x10, 0, 0, b"u=1")].concat(),
            );
        }
        match op {
            Op::Head(fields, end, rest) => {
                let mut block = self.encoders[who as usize].encode(&fields, self.style);
                let end = if end { END_STREAM } else { 0 };
                let mut more = Vec::new();
                if self.style.continuation && block.len() > 3 {
                    let tail = block.split_off(block.len() / 3);
                    let (a, b) = tail.split_at(tail.len() / 2);
                    more = [frame(CONTINUATION, 0, stream, a), frame(CONTINUATION, END_HEADERS, stream, b)].concat();
                }
                let flags = end | if more.is_empty() { END_HEADERS } else { 0 };
                let first = if self.style.padding {
                    let payload = [&[4u8, 0x80, 0, 0, 0, 200], &block[..], &[0; 4]].concat();
                    frame(HEADERS, flags | PADDED | PRIORITY, stream, &payload)
                } else {
                    frame(HEADERS, flags, stream, &block)
                };
                let bytes = [first, more].concat();
                match rest {
                    Some(later) => {
                        self.write(at, who, bytes[..1].to_vec());
                        self.write(later, who, bytes[1..].to_vec());
                    }
                    None => self.write(at, who, bytes),
                }
            }
            Op::Body(bytes, end) => {
                let mut left = bytes.as_slice();
                loop {
                    let most = if self.style.split { self.dice.below(200) } else { 16384 };
                    let (part, rest) = left.split_at(most.min(left.len()));
                    left = rest;
                    // Some end with a frame of their own.
                    let last = left.is_empty() && !(self.style.split && end && !part.is_empty() && self.dice.below(2) == 0);
                    let flags = if last && end { END_STREAM } else { 0 };
                    let data = self.padded(DATA, flags, stream, part);
                    self.write(at, who, data);
                    if last {
                        break;
                    }
                }
            }
            Op::Reset => self.write(at, who, frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])),
        }
    }
}

/// A flow of HTTP/1.1 as one of HTTP/2; `None` when it holds what HTTP/2 does not have.
pub fn over_h2(flow: &Flow, style: Style) -> Option<Flow> {
    if !flow.from_start {
        return None;
    }
    let messages = messages(flow)?;
    let mut ops = operations(0, &messages, Duration::ZERO).into_iter().enumerate().collect::<Vec<_>>();
    ops.sort_by_key(|(n, (at, ..))| (*at, *n));
    let first = ops.first()?.1.0;
    let mut ends = flow.steps.iter().filter(|s| matches!(s, Step::End(..) | Step::Tick(_))).cloned().peekable();
    let before = std::iter::from_fn(|| ends.next_if(|e| e.at() < first)).collect();
    let mut conn = Connection::new(style, first, before);
    for (_, op) in ops {
        while let Some(end) = ends.next_if(|e| e.at() < op.0) {
            conn.steps.push(end);
        }
        conn.operate(op);
    }
    conn.steps.extend(ends);
    Some(Flow { steps: conn.steps, ..flow.clone() })
}

/// Flows of HTTP/1.1 as concurrent streams of one connection of HTTP/2, each so much later: which of them, and the connection; `None` when
/// none can be. What
/// ends a connection of HTTP/1.1 within an answer resets the stream here; flows where that is not the same are left out.
pub fn together(flows: &[(Flow, Duration)], style: Style) -> Option<(Vec<usize>, Flow)> {
    let (mut ops, mut taken) = (Vec::new(), Vec::new());
    for (n, (flow, shift)) in flows.iter().enumerate() {
        let Some(messages) = messages(flow).filter(|_| flow.from_start) else { continue };
        let asked = messages.iter().filter(|m| m.who == Who::Client);
        let is_answered = |key: usize| messages.iter().any(|m| m.who == Who::Server && m.exchange == key && !m.interim && m.end.is_some());
        let open: Vec<usize> = asked.map(|m| m.exchange).filter(|key| !is_answered(*key)).collect();
        let mut mine = operations(n, &messages, *shift);
        if mine.iter().any(|(_, _, _, op)| matches!(op, Op::Head(_, _, Some(_)))) {
            continue;
        }
        if !open.is_empty() {
            let ends: Vec<(Duration, Ended)> =
                flow.steps.iter().filter_map(|s| if let Step::End(at, e) = s { Some((*at, *e)) } else { None }).collect();
            let last = flow.steps.iter().rev().find(|s| matches!(s, Step::Data(..))).map_or(Duration::ZERO, Step::at);
            let who = match ends.first() {
                Some((at, Ended::Fin(Who::Client) | Ended::Rst(Who::Client))) if *at >= last => Who::Client,
                Some((_, Ended::Rst(Who::Server))) => Who::Server,
                _ => continue,
            };
            let at = ends[0].0;
            mine.extend(open.into_iter().map(|key| (at + *shift, who, (n, key), Op::Reset)));
        }
        ops.extend(mine);
        taken.push(n);
    }
    let mut ops: Vec<(usize, Timed)> = ops.into_iter().enumerate().collect();
    ops.sort_by_key(|(n, (at, ..))| (*at, *n));
    let mut conn = Connection::new(style, ops.first()?.1.0, Vec::new());
    let end = ops.last().map_or(Duration::ZERO, |(_, op)| op.0);
    ops.into_iter().for_each(|(_, op)| conn.operate(op));
    conn.steps.push(Step::End(end, Ended::Input));
    Some((taken, Flow { name: "together".into(), steps: conn.steps, ..flows[0].0.clone() }))
}
