//! Hand-made inferences and taps for the tests of exporters, views and wiring. Not part of the agent's function.
#![doc(hidden)]

use std::time::Duration;

use tokengauge_core::inference::{
    Chunks, Failure, Inference, Operation, Outcome, Reason, Request, Response, Stage, Timing, Trace, Usage, Vantage,
};
use tokengauge_core::name::Name;
use tokengauge_core::stream::{TapKind, Timestamp};

/// 2023-11-14T22:13:20.501Z.
pub const START: u64 = 1_700_000_000_501_000_000;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A completed stream: TTFT 410 ms, four chunks at 410, 430, 430 and 460 ms, 6 output tokens, done at 480 ms.
pub fn inference() -> Inference {
    Inference {
        tap: TapKind::Pcap,
        vantage: Vantage::Client,
        api: "openai.chat_completions",
        provider: Some("openai"),
        operation: Operation::Chat,
        stream: Some(true),
        protocol: "http/1.1",
        exchange: 0,
        client: "10.0.1.7:40007".parse().ok(),
        server: "10.0.0.1:8000".parse().ok(),
        host: Name::new("api.openai.com"),
        process: None,
        client_workload: None,
        server_workload: None,
        request: Request {
            model: Name::new("gpt-4o-mini"),
            bytes: 512,
            max_tokens: Some(100),
            temperature: Some(0.5),
            ..Request::default()
        },
        response: Response {
            model: Name::new("gpt-4o-mini-2024-07-18"),
            id: Name::new("chatcmpl-1"),
            status: Some(200),
            finish_reasons: Name::new("stop").into_iter().collect(),
            bytes: 1452,
            content_encoding: None,
            request_id: None,
            limits: Default::default(),
        },
        outcome: Outcome::Completed,
        ended_by: tokengauge_core::http::event::EndedBy::Terminator,
        error: None,
        usage: Some(Usage { input: Some(9), output: Some(6), cache_read: Some(0), cache_write: None, reasoning: Some(0) }),
        chunks: Chunks { events: 6, generated: 4, reasoning: 0, tool_starts: 0, arrivals: 3 },
        timing: Timing {
            start: Timestamp::from_unix_nanos(START),
            end: Timestamp::from_unix_nanos(START).plus(ms(480)),
            request_sent: Some(ms(1)),
            response_head: Some(ms(310)),
            first_body_byte: Some(ms(320)),
            first_event: Some(ms(320)),
            first_reasoning: None,
            first_output: Some(ms(410)),
            ttft: Ok(ms(410)),
            ttfa: Ok(ms(410)),
            last_generated: Some(ms(460)),
            duration: Ok(ms(480)),
            tpot: Ok(0.01),
            tpot_after_first_chunk: None,
            tpot_without_reasoning: false,
            max_stall: Ok(ms(30)),
            gaps: [20_000_000, 0, 30_000_000].into_iter().collect(),
            holes: Vec::new(),
        },
        gaps: 0,
        server_timing: None,
        trace: Trace { trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, span_id: 0x00f0_67aa_0ba9_02b7, parent: None },
    }
}

/// Fails when one of the planted secrets stands in one of the outputs, as it is or in a form in which it might leak: base64,
/// hexadecimal, percent-encoded.
///
/// # Panics
/// With the output and the secret, when there is one.
#[expect(clippy::panic, reason = "it is an assertion of tests")]
pub fn assert_no_secrets(outputs: &[(&str, &[u8])], secrets: &[&str]) {
    for (name, output) in outputs {
        for secret in secrets {
            let hex: String = secret.bytes().map(|b| format!("{b:02x}")).collect();
            let percent: String =
                secret.bytes().map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") }).collect();
            // The middle of base64 does not depend on what stands before, if one looks from each of the three positions.
            let mut forms = vec![(*secret).to_owned(), hex, percent];
            forms.extend((0..3).map(|skip| base64(secret.as_bytes().get(skip..).unwrap_or_default())).filter(|f| f.len() >= 8));
            for form in forms.iter().filter(|f| !f.is_empty()) {
                if output.windows(form.len()).any(|w| w == form.as_bytes()) {
                    panic!("{name} shows the secret `{secret}` (as `{form}`)");
                }
            }
        }
    }
}

/// Base64 of the whole groups of three.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |g: &[u8]| {
        let n = g.iter().fold(0_usize, |n, b| n << 8 | usize::from(*b));
        [18, 12, 6, 0].map(|shift| char::from(ALPHABET[n >> shift & 63]))
    };
    bytes.chunks_exact(3).flat_map(group).collect()
}

/// A stream refused by 429, of unknown ends.
pub fn refused() -> Inference {
    let why = Reason::HttpError;
    let base = inference();
    Inference {
        client: None,
        server: None,
        response: Response { status: Some(429), bytes: 80, ..Response::default() },
        outcome: Outcome::Failed,
        error: Name::class("rate_limit_exceeded").map(|kind| Failure { kind, stage: Stage::Http }),
        usage: None,
        chunks: Chunks::default(),
        timing: Timing {
            first_event: None,
            first_output: None,
            ttft: Err(why),
            ttfa: Err(why),
            last_generated: None,
            duration: Ok(ms(330)),
            end: Timestamp::from_unix_nanos(START).plus(ms(330)),
            tpot: Err(why),
            max_stall: Err(why),
            gaps: tokengauge_core::gaps::Gaps::default(),
            ..base.timing
        },
        trace: Trace { trace_id: 2, span_id: 3, parent: None },
        ..base
    }
}

/// Answers each path with a status and a body, for as long as the process lives; where, as a URL.
///
/// # Panics
/// When the system gives no socket.
#[expect(clippy::expect_used, reason = "it is a part of tests")]
pub fn server(of: impl Fn(&str) -> (u16, String) + Send + 'static) -> String {
    use std::io::{BufRead as _, BufReader, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let Ok(copy) = stream.try_clone() else { continue };
            let mut lines = BufReader::new(copy).lines().map_while(Result::ok);
            let asked = lines.next().unwrap_or_default();
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let (status, body) = of(asked.split(' ').nth(1).unwrap_or_default());
            let _ = write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
        }
    });
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found_in_every_form() {
        let secret = "sk-planted-0123";
        for (output, found) in [
            ("nothing here", false),
            ("Bearer sk-planted-0123", true),
            ("736b2d706c616e7465642d30313233", true),
            ("sk%2Dplanted%2D0123", true),
            ("QmVhcmVyIHNrLXBsYW50ZWQtMDEyMw==", true), // base64 of `Bearer sk-planted-0123`
        ] {
            let outcome = std::panic::catch_unwind(|| assert_no_secrets(&[("x", output.as_bytes())], &[secret]));
            assert_eq!(outcome.is_err(), found, "{output}");
        }
    }
}
