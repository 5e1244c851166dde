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
        provider: "openai",
        operation: Operation::Chat,
        stream: true,
        protocol: "http/1.1",
        client: "10.0.1.7:40007".parse().ok(),
        server: "10.0.0.1:8000".parse().ok(),
        host: Name::new("api.openai.com"),
        process: None,
        request: Request { model: Name::new("gpt-4o-mini"), bytes: 512, max_tokens: Some(100), temperature: Some(0.5), ..Request::default() },
        response: Response {
            model: Name::new("gpt-4o-mini-2024-07-18"),
            id: Name::new("chatcmpl-1"),
            status: Some(200),
            finish_reasons: Name::new("stop").into_iter().collect(),
            bytes: 1452,
            content_encoding: None,
        },
        outcome: Outcome::Completed,
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
            tpot_without_reasoning: false,
            max_stall: Ok(ms(30)),
            gaps: vec![20_000_000, 0, 30_000_000],
            gaps_complete: true,
        },
        gaps: 0,
        server_timing: None,
        trace: Trace { trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, span_id: 0x00f0_67aa_0ba9_02b7, parent: None },
    }
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
            gaps: Vec::new(),
            ..base.timing
        },
        trace: Trace { trace_id: 2, span_id: 3, parent: None },
        ..base
    }
}
