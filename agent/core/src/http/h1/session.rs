//! One HTTP/1.1 connection: requests paired with their responses, in order (RFC 9112 §9.3), whatever direction they come from.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::anomaly::Anomaly;
use crate::http::event::{EndedBy, ExchangeId, HttpEvent, Over, Side};
use crate::http::h1::{Hole, Parser, Part, Role};
use crate::http::head::{Method, ResponseHead, Upgrade};
use crate::stream::{Direction, End, Timestamp};
use crate::tenant::Tenants;

/// Requests that may wait for their responses on one connection.
pub const MAX_PENDING: usize = 256;

#[derive(Debug)]
struct Pending {
    id: ExchangeId,
    method: Method,
    begun: Timestamp,
}

/// The pairing of one connection.
#[derive(Debug)]
#[repr(C)]
pub struct Session {
    // what `before_chunk` looks at stands first
    /// While `answering`: the front's id.
    answered: ExchangeId,
    down: Parser,
    requests: Direction,
    /// Whether the front's response head was seen.
    answering: bool,
    upgraded: bool,
    client_finished: bool,
    /// A hole hid where the front's response begins or ends.
    adrift: bool,
    up: Parser,
    pending: VecDeque<Pending>,
    next: ExchangeId,
    /// The request whose body is being read.
    sending: Option<ExchangeId>,
    request_begun: Timestamp,
    response_begun: Timestamp,
    /// The exchange whose response comes in HTTP/2.
    in_h2: Option<ExchangeId>,
}

impl Session {
    /// A session whose requests travel in direction `requests`. `at_start` says of requests and responses whether what comes next
    /// is the beginning of a message.
    pub fn new(requests: Direction, at_start: [bool; 2]) -> Self {
        Self {
            requests,
            up: Parser::new(Role::Requests, at_start[0]),
            down: Parser::new(Role::Responses, at_start[1]),
            // Nearly always there is one: what a deque takes by itself is four.
            pending: VecDeque::with_capacity(1),
            next: 0,
            sending: None,
            answering: false,
            answered: 0,
            request_begun: Timestamp::default(),
            response_begun: Timestamp::default(),
            client_finished: false,
            upgraded: false,
            in_h2: None,
            adrift: false,
        }
    }

    /// Says of requests whose they are.
    pub fn naming(&mut self, tenants: Option<Arc<Tenants>>) {
        self.up.naming(tenants);
    }

    /// Who says so.
    pub fn tenants(&self) -> Option<&Arc<Tenants>> {
        self.up.tenants()
    }

    /// In which direction requests travel.
    pub fn requests(&self) -> Direction {
        self.requests
    }

    /// The exchange whose response comes in HTTP/2 as stream 1, after the server has changed to that protocol.
    pub fn became_h2(&self) -> Option<ExchangeId> {
        self.in_h2
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> usize {
        self.up.buffered() + self.down.buffered()
    }

    /// Bytes skipped in both directions since a message was found.
    pub fn skipped(&self) -> u64 {
        self.up.skipped() + self.down.skipped()
    }

    /// The exchange whose response's next chunk is due, if one is.
    #[inline]
    pub fn before_chunk(&self) -> Option<ExchangeId> {
        (self.answering && !self.upgraded && self.down.is_before_chunk()).then_some(self.answered)
    }

    /// Asks for the memory that [`Session::before_chunk`] will need. The result says nothing.
    pub fn touch(&self) -> u64 {
        self.answered ^ u64::from(self.answering)
    }

    /// Takes the next bytes of one direction.
    ///
    /// Returns what is HTTP no more: after [`HttpEvent::Upgraded`] all bytes belong to the new protocol.
    pub fn data<'a>(&mut self, dir: Direction, at: Timestamp, mut bytes: &'a [u8], out: &mut dyn FnMut(HttpEvent<'_>)) -> &'a [u8] {
        if dir == self.requests {
            while !self.upgraded
                && let Some(part) = self.up.next(&mut bytes)
            {
                self.request_part(part, at, out);
            }
        } else {
            while !self.upgraded
                && let Some(part) = self.down.next(&mut bytes)
            {
                self.response_part(part, at, out);
            }
        }
        if self.upgraded { bytes } else { &[] }
    }

    fn request_part(&mut self, part: Part<'_>, at: Timestamp, out: &mut dyn FnMut(HttpEvent<'_>)) {
        match part {
            Part::Begin => self.request_begun = at,
            Part::Request(head) => {
                if std::mem::take(&mut self.adrift) {
                    // Who asks again has got the answer: where a hole hid its end, the new request proves it.
                    self.answering = false;
                    for lost in self.pending.drain(..) {
                        out(HttpEvent::Over { id: lost.id, how: Over::Lost, by: EndedBy::Lost, at: None });
                    }
                    self.down = Parser::new(Role::Responses, false);
                }
                if self.pending.len() >= MAX_PENDING {
                    out(HttpEvent::Odd(Anomaly::PipelineTooDeep));
                    self.up.deafen();
                    return;
                }
                let id = self.next;
                self.next += 1;
                self.pending.push_back(Pending { id, method: head.method, begun: self.request_begun });
                self.sending = Some(id);
                out(HttpEvent::Request { id, begun: self.request_begun, head });
            }
            Part::Body(bytes) => {
                if let Some(id) = self.sending {
                    out(HttpEvent::RequestBody { id, bytes });
                }
            }
            Part::End => {
                if let Some(id) = self.sending.take() {
                    out(HttpEvent::RequestEnd { id });
                }
            }
            Part::Lost => self.sending = None,
            Part::Odd(what) => out(HttpEvent::Odd(what)),
            Part::Response(_) => {}
        }
    }

    fn response_part(&mut self, part: Part<'_>, at: Timestamp, out: &mut dyn FnMut(HttpEvent<'_>)) {
        match part {
            Part::Begin => self.response_begun = at,
            Part::Response(head) => self.response_head(head, out),
            Part::Body(bytes) => {
                if let Some(front) = self.pending.front().filter(|_| self.answering) {
                    out(HttpEvent::ResponseBody { id: front.id, bytes });
                }
            }
            Part::End => self.response_over(Over::Complete, EndedBy::Message, out),
            Part::Lost => self.response_over(Over::Lost, EndedBy::Lost, out),
            Part::Odd(what) => out(HttpEvent::Odd(what)),
            Part::Request(_) => {}
        }
    }

    fn response_head(&mut self, head: ResponseHead, out: &mut dyn FnMut(HttpEvent<'_>)) {
        let asked_before = |p: &Pending| p.begun <= self.response_begun;
        if self.adrift && self.pending.len() > 1 && self.pending.get(1).is_some_and(asked_before) {
            // A hole hid a response or a part of it, and several are due: whose this is cannot be told.
            self.adrift = false;
            for lost in self.pending.drain(..) {
                out(HttpEvent::Over { id: lost.id, how: Over::Lost, by: EndedBy::Lost, at: None });
            }
        }
        let Some(front) = self.pending.front() else {
            if head.status >= 200 {
                out(HttpEvent::Odd(Anomaly::OrphanResponse));
            }
            return;
        };
        if head.status == 101 || front.method == Method::Connect && (200..300).contains(&head.status) {
            self.up.deafen();
            self.down.deafen();
            self.upgraded = true;
            let id = front.id;
            self.pending.pop_front();
            if head.upgrade == Some(Upgrade::H2c) {
                self.in_h2 = Some(id);
                // What was asked behind it is answered by nobody.
                self.all_over(Over::Lost, EndedBy::Lost, out);
            } else {
                out(HttpEvent::Upgraded { id, head });
            }
            return;
        }
        if head.status < 200 {
            return;
        }
        if front.method == Method::Head {
            self.down.no_body();
        }
        (self.answering, self.answered) = (true, front.id);
        self.adrift = false;
        out(HttpEvent::Response { id: front.id, begun: self.response_begun, head });
    }

    fn response_over(&mut self, how: Over, by: EndedBy, out: &mut dyn FnMut(HttpEvent<'_>)) {
        self.adrift = false;
        // The end of a 1xx, or of a response without a request, ends nothing.
        if std::mem::take(&mut self.answering)
            && let Some(front) = self.pending.pop_front()
        {
            out(HttpEvent::Over { id: front.id, how, by, at: None });
        }
    }

    /// Bytes of one direction are missing.
    pub fn gap(&mut self, dir: Direction, len: Option<u64>, out: &mut dyn FnMut(HttpEvent<'_>)) {
        if dir == self.requests {
            let hole = self.up.hole(len);
            if let Some(id) = self.sending {
                out(HttpEvent::Gap {
                    id,
                    of: Side::Request,
                    body_goes_on: hole == Hole::InBody,
                    missing: len.filter(|_| hole == Hole::InBody),
                });
            }
            if hole != Hole::InBody {
                self.sending = None;
            }
            return;
        }
        let hole = self.down.hole(len);
        // Between two responses a hole swallowed (the beginning of) the next one; if none is due, the request is lost as well.
        if let Some(front) = self.pending.front() {
            self.adrift |= hole != Hole::InBody;
            out(HttpEvent::Gap {
                id: front.id,
                of: Side::Response,
                body_goes_on: hole == Hole::InBody,
                missing: len.filter(|_| hole == Hole::InBody),
            });
        }
    }

    /// The connection or one half of it ended.
    pub fn close(&mut self, end: End, out: &mut dyn FnMut(HttpEvent<'_>)) {
        if self.upgraded {
            return;
        }
        let by = EndedBy::from(end);
        match end {
            End::Finished(dir) if dir == self.requests => self.client_finished = true,
            End::Finished(_) => {
                if self.down.close() {
                    self.response_over(Over::Complete, by, out);
                }
                self.all_over(if self.client_finished { Over::ClientClosed } else { Over::ServerClosed }, by, out);
            }
            End::Reset(dir) => {
                let by_client = dir == self.requests || self.client_finished;
                self.all_over(if by_client { Over::ClientClosed } else { Over::ServerReset }, by, out);
            }
            End::Released => {
                // The process at `local` let go: the client when requests go forward, else the server.
                let by_client = self.requests == Direction::Forward || self.client_finished;
                if !by_client && self.down.close() {
                    self.response_over(Over::Complete, by, out);
                }
                self.all_over(if by_client { Over::ClientClosed } else { Over::ServerClosed }, by, out);
            }
            // A server that lets go without a goodbye has lost its client; a client that does so aborts.
            End::Abandoned => self.all_over(Over::ClientClosed, by, out),
            End::Idle => self.all_over(Over::Timeout, by, out),
            End::Evicted => self.all_over(Over::Evicted, by, out),
            End::InputEnded => self.all_over(if self.client_finished { Over::ClientClosed } else { Over::InputEnded }, by, out),
        }
    }

    /// An exchange's response has reached its API's end, though not its transport's: it is over, if its turn has come.
    pub fn give_up(&mut self, id: ExchangeId, out: &mut dyn FnMut(HttpEvent<'_>)) {
        if let Some(front) = self.pending.pop_front_if(|front| front.id == id) {
            // Whatever else its response holds is nobody's.
            self.answering = false;
            out(HttpEvent::Over { id: front.id, how: Over::Complete, by: EndedBy::Terminator, at: None });
        }
    }

    fn all_over(&mut self, how: Over, by: EndedBy, out: &mut dyn FnMut(HttpEvent<'_>)) {
        self.up.deafen();
        self.down.deafen();
        self.answering = false;
        self.sending = None;
        for pending in self.pending.drain(..) {
            out(HttpEvent::Over { id: pending.id, how, by, at: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    /// `>` a request's bytes, `<` a response's, `!` an end, `?` a gap of N bytes in the responses.
    fn check(script: &[(&str, &str)], want: Expect) {
        let mut session = Session::new(Direction::Forward, [true; 2]);
        let mut log = String::new();
        for (i, (what, arg)) in script.iter().enumerate() {
            let at = Timestamp::from_unix_nanos(i as u64);
            let mut out = |e: HttpEvent<'_>| {
                log.push_str(&match e {
                    HttpEvent::Request { id, begun, head } => format!("{id}: {} at {}\n", head.path, begun.unix_nanos()),
                    HttpEvent::RequestBody { id, bytes } => format!("{id}: > {}\n", String::from_utf8_lossy(bytes)),
                    HttpEvent::RequestEnd { id } => format!("{id}: asked\n"),
                    HttpEvent::Response { id, begun, head } => format!("{id}: {} at {}\n", head.status, begun.unix_nanos()),
                    HttpEvent::ResponseBody { id, bytes } => format!("{id}: < {}\n", String::from_utf8_lossy(bytes)),
                    HttpEvent::Gap { id, of, body_goes_on, .. } => format!("{id}: gap in {of:?}, goes on: {body_goes_on}\n"),
                    HttpEvent::Trailers { id, grpc_status, .. } => format!("{id}: trailers {grpc_status:?}\n"),
                    HttpEvent::Over { id, how, by, .. } => format!("{id}: {how:?} by {}\n", by.as_str()),
                    HttpEvent::Odd(a) => format!("odd {}\n", a.as_str()),
                    HttpEvent::Upgraded { id, .. } => format!("{id}: upgraded\n"),
                });
            };
            match *what {
                ">" => drop(session.data(Direction::Forward, at, arg.as_bytes(), &mut out)),
                "<" => drop(session.data(Direction::Reverse, at, arg.as_bytes(), &mut out)),
                "?" => session.gap(Direction::Reverse, arg.parse().ok(), &mut out),
                _ => {
                    let end = match *arg {
                        "client fin" => End::Finished(Direction::Forward),
                        "server fin" => End::Finished(Direction::Reverse),
                        "client rst" => End::Reset(Direction::Forward),
                        "server rst" => End::Reset(Direction::Reverse),
                        "released" => End::Released,
                        _ => End::Idle,
                    };
                    session.close(end, &mut out);
                }
            }
        }
        want.assert_eq(&log);
    }

    const ASK: (&str, &str) = (">", "POST /a HTTP/1.1\r\nContent-Length: 1\r\n\r\nx");
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

    #[test]
    fn pipelining_continue_and_head() {
        check(
            &[
                ASK,
                (">", "HEAD /b HTTP/1.1\r\n\r\nPOST /c HTTP/1.1\r\n\r\n"),
                ("<", "HTTP/1.1 100 Continue\r\n\r\n"),
                ("<", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nHTTP/1.1 304 x\r\n\r\n"),
                ("<", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            ],
            expect![[r#"
                0: /a at 0
                0: > x
                0: asked
                1: /b at 1
                1: asked
                2: /c at 1
                2: asked
                0: 200 at 3
                0: < ok
                0: Complete by message
                1: 200 at 3
                1: Complete by message
                2: 304 at 3
                2: Complete by message
                odd orphan_response
            "#]],
        );
    }

    #[test]
    fn who_went_first() {
        for (script, want) in [
            (vec![("!", "client fin"), ("!", "server fin")], Over::ClientClosed),
            (vec![("!", "client rst")], Over::ClientClosed),
            (vec![("!", "server fin")], Over::ServerClosed),
            (vec![("!", "server rst")], Over::ServerReset),
            (vec![("!", "released")], Over::ClientClosed),
            (vec![("!", "abandoned")], Over::ClientClosed),
            (vec![("!", "idle")], Over::Timeout),
            (vec![("!", "client fin"), ("<", "0\r\n\r\n"), ("!", "server fin")], Over::Complete),
        ] {
            let mut session = Session::new(Direction::Forward, [true; 2]);
            let mut overs = Vec::new();
            let mut out = |e: HttpEvent<'_>| {
                if let HttpEvent::Over { how, .. } = e {
                    overs.push(how);
                }
            };
            session.data(Direction::Forward, Timestamp::default(), ASK.1.as_bytes(), &mut out);
            session.data(Direction::Reverse, Timestamp::default(), CHUNKED.as_bytes(), &mut out);
            for (what, arg) in script {
                match (what, arg) {
                    ("<", bytes) => drop(session.data(Direction::Reverse, Timestamp::default(), bytes.as_bytes(), &mut out)),
                    (_, "client fin") => session.close(End::Finished(Direction::Forward), &mut out),
                    (_, "server fin") => session.close(End::Finished(Direction::Reverse), &mut out),
                    (_, "client rst") => session.close(End::Reset(Direction::Forward), &mut out),
                    (_, "server rst") => session.close(End::Reset(Direction::Reverse), &mut out),
                    (_, "abandoned") => session.close(End::Abandoned, &mut out),
                    (_, "released") => session.close(End::Released, &mut out),
                    _ => session.close(End::Idle, &mut out),
                }
            }
            assert_eq!(overs, [want]);
        }
    }

    #[test]
    fn gaps_and_what_follows_them() {
        check(
            &[
                ASK,
                ("<", CHUNKED),
                ("<", "2\r\nab\r\n"),
                ("?", "20"),
                ("<", "2\r\ncd\r\n0\r\n\r\n"),
                ASK,
                ("?", "500"),
                ("<", "xyz"),
                ASK,
                ("!", "server fin"),
            ],
            expect![[r#"
                0: /a at 0
                0: > x
                0: asked
                0: 200 at 1
                0: < ab
                0: gap in Response, goes on: false
                0: < cd
                0: Complete by message
                1: /a at 5
                1: > x
                1: asked
                1: gap in Response, goes on: false
                1: Lost by capture_gap
                2: /a at 8
                2: > x
                2: asked
                2: ServerClosed by fin
            "#]],
        );
    }

    #[test]
    fn other_protocols() {
        check(
            &[
                (">", "GET /ws HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"),
                ("<", "HTTP/1.1 101 Switching\r\n\r\n\x01\x02"),
                (">", "\x03"),
                ("!", "server fin"),
            ],
            expect![[r#"
                0: /ws at 0
                0: asked
                0: upgraded
            "#]],
        );
    }
}
