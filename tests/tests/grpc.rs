//! Calls of gRPC that are no single question and answer.

use tokengauge_core::anomaly::Anomaly;
use tokengauge_core::inference::Outcome;
use tokengauge_tests::flow::Flow;

/// A client of Triton may ask again and again on one stream. The answers cannot be told apart by the exchange: there is no record,
/// and that is counted. (Cut short before the second question it is a record; so this is no flow of `tests/fixtures`.)
#[test]
fn a_stream_with_several_requests_gives_no_record() {
    let text = r#"0  > POST /inference.GRPCInferenceService/ModelStreamInfer HTTP/1.1\r\nhost: triton\r\ncontent-type: application/grpc\r\ntransfer-encoding: chunked\r\n\r\n
1  > @grpc 1:"vllm_model" 3:"r-1" 5:{1:"text_input" 2:"BYTES" 3:[1]} 7:b"\x08\x00\x00\x00a prompt"
10 < @head 200 application/grpc
20 < @grpc 2:{1:"vllm_model" 3:"r-1" 5:{1:"text_output" 2:"BYTES" 3:[1]} 6:b"\x01\x00\x00\x00a" 4:{1:"triton_final_response" 2:{1:1}}}
30 > @grpc 1:"vllm_model" 3:"r-2" 5:{1:"text_input" 2:"BYTES" 3:[1]} 7:b"\x07\x00\x00\x00another"
40 < @grpc 2:{1:"vllm_model" 3:"r-2" 5:{1:"text_output" 2:"BYTES" 3:[1]} 6:b"\x01\x00\x00\x00b" 4:{1:"triton_final_response" 2:{1:1}}}
50 > 0\r\n\r\n
51 < @last
"#;
    let measured = Flow::parse("several", text).unwrap().measure();
    assert_eq!(measured.inferences, []);
    assert_eq!(measured.stats.anomalies.of(Anomaly::SeveralRequests), 1);
    // The second question is lost: that its answer comes behind the first one's end says enough.
    let lost: String = text.lines().map(|l| if l.starts_with("30 ") { "30 > @gap 81\n".into() } else { format!("{l}\n") }).collect();
    let measured = Flow::parse("lost", &lost).unwrap().measure();
    assert_eq!(measured.inferences, []);
    assert_eq!(measured.stats.anomalies.of(Anomaly::SeveralRequests), 1);
}

/// A hole costs the messages that it touches. What comes behind it is read, and its end is the stream's; what a hole may have hidden is
/// withheld.
#[test]
fn behind_a_hole_messages_are_read_again() {
    let chunk = |at: u32, ids: &str| format!("{at} < @grpc 1:{{1:[{ids}] 2:5 3:1 4:0}}\n");
    let begin = "0 > @call http://vllm/vllm.grpc.engine.VllmEngine/Generate 1:\"r-1\" 5:1\n10 < @head 200 application/grpc\n";
    let end = "60 < @grpc 2:{1:[1 2 3 4] 2:\"stop\" 3:5 4:4 5:0}\n61 < @last\n";
    let whole = format!("{begin}{}{}{}{}{end}", chunk(20, "1"), chunk(30, "2"), chunk(40, "3"), chunk(50, "4"));
    let clean = Flow::parse("whole", &whole).unwrap().measure();
    assert_eq!((clean.inferences[0].chunks.generated, clean.inferences[0].outcome), (4, Outcome::Completed));
    let lost = whole.replace(&chunk(30, "2"), "30 < @gap ?\n");
    let got = Flow::parse("lost", &lost).unwrap().measure();
    let i = &got.inferences[0];
    assert_eq!((i.chunks.generated, i.outcome, i.gaps), (3, Outcome::Completed, 1));
    assert_eq!(i.response.finish_reasons, clean.inferences[0].response.finish_reasons);
    assert!(i.timing.ttft == clean.inferences[0].timing.ttft && i.timing.max_stall.is_err() && i.usage.is_none());
}
