//! WebSockets in flows: helpers that expand to frames.
//!
//! ```text
//! 0 > @ws-open URL [name:value …]     the request to change to WebSocket
//! 9 < @ws-accept [name:value …]       the 101; with sec-websocket-extensions:permessage-deflate[;…] messages are compressed from here on
//! 9 > @ws {json}                      a message in one text frame; masked, when the client sends it
//! 9 < @ws-binary {json}               the same in a binary frame
//! 9 < @ws-parts N {json}              the same in N fragments, with a ping between each two
//! 9 < @ws-plain {json}                a message that is not compressed, though it could be
//! 9 < @ws-ping                        a ping
//! 9 > @ws-close [CODE]                a close frame
//! ```

use tokengauge_core::ws::build::{Deflater, frame};

use crate::flow::Who;

/// What was agreed on a connection.
#[derive(Debug, Default)]
pub struct Ws {
    /// The client's and the server's compression.
    deflate: Option<[Deflater; 2]>,
    keys: u32,
}

impl Ws {
    /// The bytes of a helper; `None` when it is none of these.
    pub fn helper(&mut self, name: &str, rest: &str, who: Who) -> Option<Result<Vec<u8>, String>> {
        let json = |text: &str| text.as_bytes()[text.find('{').unwrap_or(0)..].to_vec();
        Some(match name {
            "@ws-open" => open(rest),
            "@ws-accept" => Ok(self.accept(rest)),
            "@ws" => Ok(self.message(0x81, &json(rest), 1, true, who)),
            "@ws-binary" => Ok(self.message(0x82, &json(rest), 1, true, who)),
            "@ws-plain" => Ok(self.message(0x81, &json(rest), 1, false, who)),
            "@ws-parts" => rest.split(' ').next().and_then(|n| n.parse().ok()).filter(|n| *n > 0).map_or_else(
                || Err(format!("{rest} begins with no number of parts")),
                |parts| Ok(self.message(0x81, &json(rest), parts, true, who)),
            ),
            "@ws-ping" => Ok(frame(0x89, b"ping", self.key(who))),
            "@ws-close" => match rest {
                "" => Ok(frame(0x88, b"", self.key(who))),
                code => code.parse::<u16>().map(|c| frame(0x88, &c.to_be_bytes(), self.key(who))).map_err(|e| format!("{code}: {e}")),
            },
            _ => return None,
        })
    }

    fn accept(&mut self, words: &str) -> Vec<u8> {
        if words.contains("permessage-deflate") {
            let takeover = |side: &str| !words.contains(&format!("{side}_no_context_takeover"));
            self.deflate = Some([Deflater::new(takeover("client")), Deflater::new(takeover("server"))]);
        }
        let accept = "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        format!("HTTP/1.1 101 -\r\nupgrade: websocket\r\nconnection: Upgrade\r\n{accept}\r\n{}\r\n", fields(words)).into_bytes()
    }

    fn key(&mut self, who: Who) -> Option<[u8; 4]> {
        self.keys = self.keys.wrapping_mul(0x9e37_79b1).wrapping_add(0x7f4a_7c15);
        (who == Who::Client).then(|| self.keys.to_be_bytes())
    }

    fn message(&mut self, first: u8, json: &[u8], parts: usize, compress: bool, who: Who) -> Vec<u8> {
        let coded = self.deflate.as_mut().filter(|_| compress).map(|d| d[who as usize].message(json));
        let rsv1 = if coded.is_some() { 0x40 } else { 0 };
        let payload = coded.unwrap_or_else(|| json.to_vec());
        let size = payload.len().div_ceil(parts).max(1);
        let pieces: Vec<&[u8]> = payload.chunks(size).collect();
        let mut out = Vec::new();
        for (n, piece) in pieces.iter().enumerate() {
            let last = n + 1 == pieces.len();
            let opcode = if n == 0 { first & 0x7f | rsv1 } else { 0 };
            out.extend(frame(opcode | if last { 0x80 } else { 0 }, piece, self.key(who)));
            if !last {
                out.extend(frame(0x89, b"between", self.key(who)));
            }
        }
        out
    }
}

fn fields(words: &str) -> String {
    words.split_whitespace().map(|w| format!("{}\r\n", w.replacen(':', ": ", 1))).collect()
}

fn open(rest: &str) -> Result<Vec<u8>, String> {
    let (url, words) = rest.split_once(' ').unwrap_or((rest, ""));
    let (host, path) =
        url.split_once("://").and_then(|(_, target)| target.split_once('/')).ok_or("a URL has a scheme, a host and a path")?;
    let key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13";
    let fields = fields(words);
    Ok(format!("GET /{path} HTTP/1.1\r\nhost: {host}\r\nupgrade: websocket\r\nconnection: Upgrade\r\n{key}\r\n{fields}\r\n").into_bytes())
}
