//! One direction of an HTTP/1 connection, cut into messages (RFC 9112).
//!
//! Pulled, not pushed: [`Parser::next`] takes bytes off the front of its input and returns one part at a time; body bytes are
//! slices of the input. Nothing but an unfinished head is buffered. After a hole the parser goes on where the length of the
//! hole allows it, else it looks for the next chunk or the next message; what it skips meanwhile is not body.

mod scan;
pub mod session;

pub use scan::first_chunk;
use scan::{chunk_size, head_end};

use crate::anomaly::Anomaly;
use crate::http::detect::{Speaks, speaks};
use crate::http::head::{self, BodyLength, RequestHead, ResponseHead};
use crate::tenant::Tenants;
use std::sync::Arc;

/// Longest head, in bytes.
pub const MAX_HEAD: usize = 64 << 10;
/// Largest chunk that is believed while looking for one after a hole.
const PLAUSIBLE_CHUNK: u64 = 4 << 20;

/// What a direction carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Requests.
    Requests,
    /// Responses.
    Responses,
}

/// A part of a message.
#[derive(PartialEq, Debug)]
pub enum Part<'a> {
    /// The first byte of a message.
    Begin,
    /// A request's head.
    Request(RequestHead),
    /// A response's head.
    Response(ResponseHead),
    /// Bytes of the body, without their transfer coding.
    Body(&'a [u8]),
    /// The end of the message.
    End,
    /// The rest of the message cannot be found; what follows belongs to another one.
    Lost,
    /// A surprise.
    Odd(Anomaly),
}

/// What a hole did to the framing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hole {
    /// Between messages: a whole message may be missing.
    Between,
    /// In a head: the message cannot be read.
    InHead,
    /// In a body; its framing goes on.
    InBody,
    /// In a body, and its framing must be found again.
    FramingLost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Between messages.
    Between,
    /// In a head.
    Head,
    /// A body of known length.
    Bytes(u64),
    /// A body that ends with the connection.
    UntilClose,
    /// A chunk's size; digits so far, value, whether an extension has begun.
    Size { digits: u8, size: u64, extension: bool },
    /// Chunk data.
    Chunk(u64),
    /// The line end behind chunk data.
    ChunkEnd,
    /// Trailers; whether the current line is empty so far.
    Trailer { empty: bool },
    /// The end of a message is to be reported.
    Ending,
    /// Looking for a chunk after a hole.
    FindChunk,
    /// Looking for the beginning of a message.
    FindMessage,
    /// Another protocol, or nothing that can be read.
    Deaf,
}

/// The parser of one direction.
#[derive(Debug)]
#[repr(C)]
pub struct Parser {
    state: State,
    role: Role,
    head: Vec<u8>,
    skipped: u64,
    tenants: Option<Arc<Tenants>>,
}

impl Parser {
    /// A parser at the beginning of a connection, or (`from_start` false) somewhere in it.
    pub fn new(role: Role, from_start: bool) -> Self {
        Self { role, state: if from_start { State::Between } else { State::FindMessage }, head: Vec::new(), skipped: 0, tenants: None }
    }

    /// Says of requests whose they are.
    pub fn naming(&mut self, tenants: Option<Arc<Tenants>>) {
        self.tenants = tenants;
    }

    /// Who says so.
    pub fn tenants(&self) -> Option<&Arc<Tenants>> {
        self.tenants.as_ref()
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.head.capacity()
    }

    /// Bytes skipped since a message was last found.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Whether a message is under way.
    pub fn in_message(&self) -> bool {
        !matches!(self.state, State::Between | State::FindMessage | State::Deaf)
    }

    /// After a response's head: it has no body, whatever its fields say (the request was HEAD).
    pub fn no_body(&mut self) {
        self.state = State::Ending;
    }

    /// What follows is another protocol.
    pub fn deafen(&mut self) {
        self.state = State::Deaf;
        self.head = Vec::new();
    }

    /// The sender closed. Whether this ends a message properly.
    pub fn close(&mut self) -> bool {
        let proper = self.state == State::UntilClose;
        self.state = State::Deaf;
        proper
    }

    /// Bytes are missing here: `len`, where that is known.
    pub fn hole(&mut self, len: Option<u64>) -> Hole {
        match (self.state, len) {
            (State::Between | State::FindMessage | State::Deaf | State::Ending, _) => {
                self.look_for_message();
                Hole::Between
            }
            (State::Head, _) => {
                self.look_for_message();
                Hole::InHead
            }
            (State::UntilClose, _) => Hole::InBody,
            (State::Bytes(left), Some(n)) if n <= left => {
                self.state = if n == left { State::Ending } else { State::Bytes(left - n) };
                Hole::InBody
            }
            (State::Bytes(_), _) => {
                self.look_for_message();
                Hole::FramingLost
            }
            (State::Chunk(left), Some(n)) if n <= left => {
                self.state = if n == left { State::ChunkEnd } else { State::Chunk(left - n) };
                Hole::InBody
            }
            (State::Chunk(_) | State::ChunkEnd | State::Size { .. } | State::Trailer { .. } | State::FindChunk, _) => {
                self.state = State::FindChunk;
                Hole::FramingLost
            }
        }
    }

    fn look_for_message(&mut self) {
        if self.state != State::Deaf {
            self.state = State::FindMessage;
            self.head = Vec::new();
        }
    }

    /// Whether a message begins at the front of `input`. Too few bytes to tell are held; any other are skipped.
    fn find_message(&mut self, input: &mut &[u8]) -> bool {
        let held = self.head.len();
        if held == 0 {
            let start = input.iter().position(|b| *b != b'\r' && *b != b'\n').unwrap_or(input.len());
            self.skipped += start as u64;
            *input = &input[start..];
            if self.starts_message(input) {
                return true;
            }
        }
        // As many bytes as decide: `OPTIONS ` is the longest beginning.
        self.head.extend_from_slice(&input[..input.len().min(8)]);
        if held > 0 && self.starts_message(&self.head) {
            self.head.truncate(held);
            return true;
        }
        if self.head.len() >= 8 || speaks(&self.head) != Speaks::NotYet {
            self.head.clear();
            self.skipped += (held + input.len()) as u64;
        }
        *input = &[];
        false
    }

    fn starts_message(&self, bytes: &[u8]) -> bool {
        matches!((self.role, speaks(bytes)), (Role::Requests, Speaks::Request) | (Role::Responses, Speaks::Response))
    }

    /// Whether a chunk is due: then [`Parser::next`] makes of one that is whole just its data, and is where it was.
    #[inline]
    pub fn is_before_chunk(&self) -> bool {
        self.state == (State::Size { digits: 0, size: 0, extension: false })
    }

    /// The next part, taken off the front of `input`; `None` when more bytes are needed.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Part<'a>> {
        loop {
            match self.state {
                State::Ending => {
                    self.state = State::Between;
                    return Some(Part::End);
                }
                _ if input.is_empty() => return None,
                State::Between => {
                    // Empty lines between messages are allowed (RFC 9112 §2.2).
                    let start = input.iter().position(|b| *b != b'\r' && *b != b'\n').unwrap_or(input.len());
                    *input = &input[start..];
                    if !input.is_empty() {
                        self.state = State::Head;
                        self.skipped = 0;
                        return Some(Part::Begin);
                    }
                }
                State::Head => return self.head(input),
                State::Bytes(left) => {
                    let body = take(input, left);
                    let left = left - body.len() as u64;
                    self.state = if left == 0 { State::Ending } else { State::Bytes(left) };
                    return Some(Part::Body(body));
                }
                State::UntilClose => return Some(Part::Body(take(input, u64::MAX))),
                State::Size { digits, size, extension } => {
                    if let Some(odd) = self.size(input, digits, size, extension) {
                        return Some(odd);
                    }
                }
                State::Chunk(left) => {
                    let body = take(input, left);
                    let left = left - body.len() as u64;
                    self.state = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
                    return Some(Part::Body(body));
                }
                State::ChunkEnd => match input[0] {
                    b'\r' => *input = &input[1..],
                    b'\n' => {
                        *input = &input[1..];
                        self.state = State::Size { digits: 0, size: 0, extension: false };
                    }
                    _ => {
                        self.state = State::FindChunk;
                        return Some(Part::Odd(Anomaly::BadChunk));
                    }
                },
                State::Trailer { empty } => {
                    let (byte, rest) = (input[0], &input[1..]);
                    *input = rest;
                    self.state = match byte {
                        b'\n' if empty => State::Ending,
                        b'\n' => State::Trailer { empty: true },
                        b'\r' => State::Trailer { empty },
                        _ => State::Trailer { empty: false },
                    };
                }
                State::FindChunk => {
                    if self.starts_message(input) {
                        self.state = State::Between;
                        return Some(Part::Lost);
                    }
                    self.find_chunk(input);
                }
                State::FindMessage => {
                    if self.find_message(input) {
                        self.state = State::Head;
                        self.skipped = 0;
                        return Some(Part::Begin);
                    }
                }
                State::Deaf => *input = &[],
            }
        }
    }

    fn head<'a>(&mut self, input: &mut &'a [u8]) -> Option<Part<'a>> {
        let parsed = if self.head.is_empty() {
            match head_end(input, 0) {
                Some((end, next)) => {
                    let part = self.read_head(&input[..end]);
                    *input = &input[next..];
                    part
                }
                None => return self.keep_head(input),
            }
        } else {
            let before = self.head.len();
            let room = (MAX_HEAD + 4).saturating_sub(before).min(input.len());
            self.head.extend_from_slice(&input[..room]);
            let Some((end, next)) = head_end(&self.head, before.saturating_sub(3)) else {
                self.head.truncate(before);
                return self.keep_head(input);
            };
            let head = std::mem::take(&mut self.head);
            *input = &input[next - before..];
            self.read_head(&head[..end])
        };
        Some(parsed)
    }

    fn keep_head<'a>(&mut self, input: &mut &'a [u8]) -> Option<Part<'a>> {
        if self.head.len() + input.len() > MAX_HEAD {
            self.deafen();
            *input = &[];
            return Some(Part::Odd(Anomaly::HeadTooLong));
        }
        self.head.extend_from_slice(input);
        *input = &[];
        None
    }

    fn read_head(&mut self, bytes: &[u8]) -> Part<'static> {
        let (part, body) = match self.role {
            Role::Requests => match head::request_of(bytes, self.tenants.as_deref()) {
                Some(head) => (Part::Request(head.clone()), head.body),
                None => return self.bad_head(),
            },
            Role::Responses => match head::response(bytes) {
                Some(head) => (Part::Response(head.clone()), head.body),
                None => return self.bad_head(),
            },
        };
        self.state = match body {
            BodyLength::Empty => State::Ending,
            BodyLength::Bytes(n) => State::Bytes(n),
            BodyLength::Chunked => State::Size { digits: 0, size: 0, extension: false },
            BodyLength::UntilClose => State::UntilClose,
        };
        part
    }

    fn bad_head(&mut self) -> Part<'static> {
        self.look_for_message();
        Part::Odd(Anomaly::BadHead)
    }

    fn size(&mut self, input: &mut &[u8], mut digits: u8, mut size: u64, mut extension: bool) -> Option<Part<'static>> {
        while let Some((&byte, rest)) = input.split_first() {
            *input = rest;
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                b'A'..=b'F' => byte - b'A' + 10,
                b'\n' if digits > 0 => {
                    self.state = if size == 0 { State::Trailer { empty: true } } else { State::Chunk(size) };
                    return None;
                }
                b'\r' | b';' | b' ' | b'\t' if digits > 0 => {
                    extension = true;
                    continue;
                }
                _ if extension => continue,
                _ => {
                    self.state = State::FindChunk;
                    return Some(Part::Odd(Anomaly::BadChunk));
                }
            };
            if extension {
                continue;
            }
            if digits >= 15 {
                self.state = State::FindChunk;
                return Some(Part::Odd(Anomaly::BadChunk));
            }
            size = size << 4 | u64::from(digit);
            digits += 1;
        }
        self.state = State::Size { digits, size, extension };
        None
    }

    /// Looks for a chunk's size at the front of `input` or behind any line end in it: senders write a chunk at a time, so what
    /// follows a hole mostly begins with one.
    fn find_chunk(&mut self, input: &mut &[u8]) {
        let bytes = *input;
        let mut at = 0;
        loop {
            if let Some((size, data)) = chunk_size(&bytes[at..]) {
                let data = at + data;
                let end = usize::try_from(size).ok().and_then(|n| data.checked_add(n));
                let closed = match end.and_then(|end| bytes.get(end..)) {
                    Some(tail) if !tail.is_empty() => b"\r\n".starts_with(&tail[..tail.len().min(2)]),
                    _ => size > 0 && size <= PLAUSIBLE_CHUNK,
                };
                if closed {
                    *input = &bytes[data..];
                    self.state = if size == 0 { State::Trailer { empty: true } } else { State::Chunk(size) };
                    return;
                }
            }
            match memchr::memchr(b'\n', &bytes[at..]) {
                Some(i) => at += i + 1,
                None => break,
            }
        }
        self.skipped += bytes.len() as u64;
        *input = &[];
    }
}

fn take<'a>(input: &mut &'a [u8], most: u64) -> &'a [u8] {
    let n = usize::try_from(most).unwrap_or(usize::MAX).min(input.len());
    let (front, rest) = input.split_at(n);
    *input = rest;
    front
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    /// Reads `input`, whole and in pieces of every size; `@N` in braces is a hole of N bytes: `{@5}`.
    fn check(role: Role, input: &str, want: Expect) {
        let whole = run(role, input, usize::MAX);
        want.assert_eq(&whole);
        for size in 1..=64.min(input.len()) {
            assert_eq!(run(role, input, size), whole, "in pieces of {size}");
        }
    }

    fn run(role: Role, input: &str, size: usize) -> String {
        let mut parser = Parser::new(role, true);
        let mut out = String::new();
        let mut body = Vec::new();
        let flush = |body: &mut Vec<u8>, out: &mut String| {
            if !body.is_empty() {
                out.push_str(&format!("body {:?}\n", String::from_utf8_lossy(body)));
                body.clear();
            }
        };
        for (i, piece) in input.split("{@").enumerate() {
            let piece = match piece.split_once('}').filter(|_| i > 0) {
                Some((len, rest)) => {
                    flush(&mut body, &mut out);
                    out.push_str(&format!("hole {:?}\n", parser.hole(len.parse().ok())));
                    rest
                }
                None => piece,
            };
            for mut bytes in piece.as_bytes().chunks(size) {
                while let Some(part) = parser.next(&mut bytes) {
                    if let Part::Body(b) = part {
                        body.extend_from_slice(b);
                        continue;
                    }
                    flush(&mut body, &mut out);
                    out.push_str(&match part {
                        Part::Begin => "begin\n".into(),
                        Part::Request(h) => format!("{:?} {} {:?}\n", h.method, h.path, h.body),
                        Part::Response(h) => format!("{} {:?}\n", h.status, h.body),
                        Part::End => "end\n".into(),
                        Part::Lost => "lost\n".into(),
                        Part::Odd(a) => format!("odd {}\n", a.as_str()),
                        Part::Body(_) => String::new(),
                    });
                }
            }
        }
        flush(&mut body, &mut out);
        if parser.close() {
            out.push_str("closed properly\n");
        }
        out
    }

    #[test]
    fn pipelined_requests() {
        check(
            Role::Requests,
            "POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc\r\nGET /b?k=v HTTP/1.1\r\n\r\nPOST /c HTTP/1.1\nTransfer-Encoding: chunked\n\n0\r\n\r\n",
            expect![[r#"
                begin
                Post /a Bytes(3)
                body "abc"
                end
                begin
                Other /b Empty
                end
                begin
                Post /c Chunked
                end
            "#]],
        );
    }

    #[test]
    fn chunks_with_extensions_and_trailers() {
        check(
            Role::Responses,
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;name=\"v\"\r\nhello\r\n00B \r\n, a chunk.\n\r\n0\r\nX-T: 1\r\nY: 2\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
            expect![[r#"
                begin
                100 Empty
                end
                begin
                200 Chunked
                body "hello, a chunk.\n"
                end
                begin
                204 Empty
                end
            "#]],
        );
    }

    #[test]
    fn until_close_and_length() {
        check(
            Role::Responses,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.0 200 OK\r\n\r\nrest",
            expect![[r#"
                begin
                200 Bytes(2)
                body "ok"
                end
                begin
                200 UntilClose
                body "rest"
                closed properly
            "#]],
        );
    }

    #[test]
    fn malformed_chunks_are_counted_and_the_next_message_is_found() {
        check(
            Role::Responses,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab!!",
            expect![[r#"
                begin
                200 Chunked
                body "ab"
                odd bad_chunk
            "#]],
        );
        check(
            Role::Responses,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
            expect![[r#"
                begin
                200 Chunked
                odd bad_chunk
            "#]],
        );
    }

    /// What is found behind a hole depends on where the pieces are cut, so these run whole.
    #[test]
    fn holes() {
        let check = |input: &str, want: Expect| want.assert_eq(&run(Role::Responses, input, usize::MAX));
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        check(
            &format!("{head}a\r\n012{{@4}}789\r\n0\r\n\r\n"),
            expect![[r#"
                begin
                200 Chunked
                body "012"
                hole InBody
                body "789"
                end
            "#]],
        );
        check(
            &format!("{head}a\r\n012{{@40}}2\r\nab\r\n0\r\n\r\n"),
            expect![[r#"
                begin
                200 Chunked
                body "012"
                hole FramingLost
                body "ab"
                end
            "#]],
        );
        check(
            &format!("{head}a\r\n012{{@400}}rest of a chunk\r\n3\r\nabc\r\n0\r\n\r\n{head}"),
            expect![[r#"
                begin
                200 Chunked
                body "012"
                hole FramingLost
                body "abc"
                end
                begin
                200 Chunked
            "#]],
        );
        check(
            &format!("{head}a\r\n012{{@}}HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"),
            expect![[r#"
                begin
                200 Chunked
                body "012"
                hole FramingLost
                lost
                begin
                200 Bytes(1)
                body "x"
                end
            "#]],
        );
        check(
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab{@3}fghiHTTP/1.1 2{@9}garbage{@1}HTTP/1.1 204 x\r\n\r\n",
            expect![[r#"
                begin
                200 Bytes(9)
                body "ab"
                hole InBody
                body "fghi"
                end
                begin
                hole InHead
                hole Between
                begin
                204 Empty
                end
            "#]],
        );
    }

    proptest::proptest! {
        /// Whatever is called one whole chunk is just that to the parser.
        #[test]
        fn a_whole_chunk_is_one_body_part(size in "[0-9a-fA-F]{0,9}", data in proptest::collection::vec(0u8..255, 0..40), right: bool, at in 0usize..60, byte: u8) {
            let line = if right { format!("{:x}", data.len()) } else { size };
            let mut bytes = [line.as_bytes(), b"\r\n", &data, b"\r\n"].concat();
            if !right && let Some(b) = bytes.get_mut(at) {
                *b = byte;
            }
            let mut parser = Parser::new(Role::Responses, true);
            let mut head: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            proptest::prop_assert!(!parser.is_before_chunk());
            while parser.next(&mut head).is_some() {}
            let due = parser.state;
            proptest::prop_assert!(parser.is_before_chunk());
            match first_chunk(&bytes) {
                Some((chunk, rest)) => {
                    let mut input = &bytes[..bytes.len() - rest.len()];
                    proptest::prop_assert_eq!(parser.next(&mut input), Some(Part::Body(chunk)));
                    proptest::prop_assert_eq!(parser.next(&mut input), None);
                    proptest::prop_assert!(input.is_empty() && parser.state == due);
                }
                None => proptest::prop_assert!(!right || data.is_empty()),
            }
        }
    }

    #[test]
    fn an_endless_head_is_bounded() {
        let mut parser = Parser::new(Role::Requests, true);
        let mut bytes: &[u8] = b"GET / HTTP/1.1\r\n";
        assert_eq!(parser.next(&mut bytes), Some(Part::Begin));
        assert_eq!(parser.next(&mut bytes), None);
        let line = vec![b'a'; 1 << 20];
        let mut bytes = &line[..];
        assert_eq!(parser.next(&mut bytes), Some(Part::Odd(Anomaly::HeadTooLong)));
        assert_eq!(parser.next(&mut &line[..]), None);
        assert!(parser.buffered() <= MAX_HEAD);
    }
}
