//! Recordings of real services against the index that says what is in them; skipped where there are none.

use std::time::Duration;

use serde_json::Value;
use tokengauge_core::dialect::{DIALECTS, LlmEvent};
use tokengauge_core::framing::Frame;
use tokengauge_core::framing::{Unit, eventstream, sse::Framer};
use tokengauge_core::inference::Inference;
use tokengauge_tests::figures::invented;
use tokengauge_tests::flow::{Step, Who, fixtures};
use tokengauge_tests::recordings::{Recording, all};

/// What does not fit the index, by field.
fn compare(r: &Recording, i: &Inference) -> Vec<String> {
    let mut bad = Vec::new();
    let mut check = |what: &str, got: Value, want: &Value| {
        // Counts may stand as floats.
        let same = got == *want || got.as_f64().is_some() && got.as_f64() == want.as_f64();
        if !same {
            bad.push(format!("{}: {what} {got}, index {want}", r.file));
        }
    };
    check("api", i.api.into(), &r.api().into());
    check("stream", i.stream.into(), &r.entry["streaming"]);
    check("status", i.response.status.into(), &r.status().into());
    if !r.entry["request_model"].is_null() {
        check("request model", i.request.model.as_ref().map(|m| m.as_str()).into(), &r.entry["request_model"]);
    }
    if r.status() >= 400 {
        check("outcome", i.outcome.as_str().into(), &"failed".into());
        let kind = i.error.as_ref().map(|e| e.kind.as_str().to_owned());
        let kinds = [r.expected("error_type"), r.expected("error_code"), r.expected("http_status")];
        let fits = kinds.iter().any(|k| k.as_str() == kind.as_deref() || Some(k.to_string()) == kind);
        check("error", fits.into(), &true.into());
        return bad;
    }
    let indexed = ["openai.chat_completions", "openai.completions", "openai.embeddings", "anthropic.messages"];
    if !indexed.contains(&i.api) {
        // The index counts some of the others in ways of its own; the acceptance tools know how (`tests/acceptance.sh`).
        check("ended", (i.outcome.as_str() == "completed" || i.error.is_some()).into(), &true.into());
        return bad;
    }
    check("outcome", i.outcome.as_str().into(), &"completed".into());
    check("model", i.response.model.as_ref().map(|m| m.as_str()).into(), r.expected("model"));
    check("id", i.response.id.as_ref().map(|m| m.as_str()).into(), r.expected("response_id"));
    let finish: Vec<&str> = i.response.finish_reasons.iter().map(|n| n.as_str()).collect();
    check("finish", finish.into(), r.expected("finish_reasons"));
    let u = i.usage.unwrap_or_default();
    check("input", u.input.into(), r.expected("input_tokens"));
    check("output", u.output.into(), r.expected("output_tokens"));
    check("cache read", u.cache_read.into(), r.expected("cache_read_input_tokens"));
    check("cache write", u.cache_write.into(), r.expected("cache_write_input_tokens"));
    check("reasoning tokens", u.reasoning.into(), r.expected("reasoning_output_tokens"));
    let body = String::from_utf8_lossy(&r.body);
    // Field notes: pings are counted there and not here; a tool's start is output here and, for Anthropic, not there.
    let pings = body.matches("event: ping").count() as u64;
    check("events", (u64::from(i.chunks.events) + pings).into(), r.expected("events"));
    let starts = if i.api == "anthropic.messages" { u64::from(i.chunks.tool_starts) } else { 0 };
    check("generated", (u64::from(i.chunks.generated) - starts).into(), r.expected("output_events"));
    check("reasoning", i.chunks.reasoning.into(), r.expected("reasoning_events"));
    let arrivals = i.chunks.arrivals == i.chunks.generated;
    check("arrivals", arrivals.into(), &true.into());
    if let Some(first) = r.expected("first_output_event_index").as_u64().filter(|_| starts == 0) {
        // Which piece holds the event of that index: keep-alives are pieces, too.
        let is_event = |e: &&[u8]| !e.starts_with(b":") && !e.windows(6).any(|w| w == b"[DONE]");
        let nth = r.events().iter().enumerate().filter(|(_, e)| is_event(e)).nth(first as usize).map(|(n, _)| n as u64);
        check("ttft", i.timing.ttft.map(|t| t.as_millis() as u64).ok().into(), &nth.map(|n| 200 + 10 * n).into());
    } else if starts == 0 {
        check("ttft", i.timing.ttft.err().map(|r| r.as_str()).into(), &"no_output".into());
    }
    bad
}

#[test]
fn recordings_measure_to_their_index() {
    let Some(recordings) = all() else { return };
    let mut bad = Vec::new();
    for r in &recordings {
        let measured = r.flow().measure();
        match measured.inferences.as_slice() {
            [one] => bad.extend(compare(r, one)),
            other => bad.push(format!("{}: {} records", r.file, other.len())),
        }
        if let Some((what, n)) = measured.stats.anomalies.iter().next() {
            bad.push(format!("{}: {} {n}", r.file, what.as_str()));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    eprintln!("{} recordings", recordings.len());
}

#[test]
fn recordings_in_pieces_measure_the_same() {
    for r in all().unwrap_or_default() {
        let (flow, whole) = (r.flow(), r.flow().measure());
        for size in 1..=64 {
            assert_eq!(flow.cut(size).measure(), whole, "{} in pieces of {size}", r.file);
        }
    }
}

#[test]
fn recordings_with_one_event_lost_invent_nothing() {
    let mut wrong = Vec::new();
    for r in all().unwrap_or_default() {
        let flow = r.flow();
        let clean = flow.measure();
        // A long recording is sampled: every event of the first and last forty, every eleventh in between.
        let last = flow.steps.len();
        for n in (0..last).filter(|n| *n < 40 || *n + 40 > last || n % 11 == 0) {
            let Step::Data(at, who, bytes) = &flow.steps[n] else { continue };
            let half = bytes.len() / 2;
            for (from, to) in [(0, bytes.len()), (half, bytes.len()), (0, half), (half / 2, half)] {
                if from == to {
                    continue;
                }
                let mut steps = flow.steps.clone();
                let mut new = vec![
                    Step::Data(*at, *who, bytes[..from].to_vec()),
                    Step::Gap(*at, *who, Some((to - from) as u64)),
                    Step::Data(*at, *who, bytes[to..].to_vec()),
                ];
                new.retain(|s| !matches!(s, Step::Data(_, _, b) if b.is_empty()));
                steps.splice(n..=n, new);
                let got = flow.with(steps).measure();
                let bad = invented(&clean.inferences, &got.inferences, Duration::ZERO);
                wrong.extend(bad.into_iter().map(|b| format!("{} step {n} bytes {from}..{to}: {b}", r.file)));
            }
        }
    }
    let shown: Vec<&str> = wrong.iter().take(40).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), shown.join("\n"));
}

/// Everything of an event but what depends on the events before it: ids and models are told once, Anthropic's usage adds up.
fn lasting(events: &[LlmEvent]) -> Vec<LlmEvent> {
    let stays = |e: &&LlmEvent| !matches!(e, LlmEvent::Started { .. } | LlmEvent::Usage(_));
    events.iter().filter(stays).cloned().collect()
}

/// Reads frames with one reader of each dialect, which takes its shortcut where it can, and each frame with a fresh one, which
/// cannot; both must say the same. Not of those that compare an event with the ones before it: they take no shortcut.
fn check_shortcut(what: &str, frames: &[(Vec<u8>, Vec<u8>)]) {
    const COMPARING: [&str; 5] = ["sglang.generate", "triton.generate", "llama_cpp.completion", "cohere.chat_v1", "unknown"];
    for dialect in DIALECTS.iter().filter(|d| !COMPARING.contains(&d.about().api)) {
        let mut one = dialect.reader();
        for (name, data) in frames {
            let frame = Frame { name, data, error: false };
            let (mut with, mut without) = (Vec::new(), Vec::new());
            let kinds = (one.frame(frame, &mut with), dialect.reader().frame(frame, &mut without));
            let text = String::from_utf8_lossy(data);
            assert_eq!(kinds.0, kinds.1, "{what} {} {text}", dialect.about().api);
            assert_eq!(lasting(&with), lasting(&without), "{what} {} {text}", dialect.about().api);
        }
    }
}

fn frames(body: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut framer, mut out) = (Framer::default(), Vec::new());
    let mut take = |unit: Unit<'_>| {
        if let Unit::Event(f) = unit {
            out.push((f.name.to_vec(), f.data.to_vec()));
        }
    };
    framer.push(body, &mut take);
    framer.finish(&mut take);
    out
}

/// The events of an AWS event-stream.
fn messages(body: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut framer, mut out) = (eventstream::Framer::default(), Vec::new());
    framer.push(body, &mut |unit| {
        if let Unit::Event(f) = unit
            && !f.error
        {
            out.push((f.name.to_vec(), f.data.to_vec()));
        }
    });
    out
}

#[test]
fn the_shortcut_never_changes_a_result_of_event_streams() {
    let recorded = all().unwrap_or_default().into_iter().filter(|r| r.entry["framing"] == "aws-eventstream");
    let mut streams: Vec<_> = recorded.map(|r| (r.file.clone(), messages(&r.body))).collect();
    for (_, flow) in fixtures() {
        let body = flow.steps.iter().filter_map(|step| match step {
            // The message within its chunk.
            Step::Data(_, Who::Server, bytes) if bytes.windows(13).any(|w| w == b":message-type") => {
                let from = bytes.windows(2).position(|w| w == b"\r\n").unwrap_or_default() + 2;
                Some(bytes.get(from..bytes.len().saturating_sub(2)).unwrap_or_default())
            }
            _ => None,
        });
        streams.push((flow.name.clone(), messages(&body.collect::<Vec<_>>().concat())));
    }
    streams.retain(|(_, messages)| !messages.is_empty());
    assert!(streams.len() > 30);
    for (name, messages) in &streams {
        check_shortcut(name, messages);
        // Each of them again and again, with what must not be taken for the same.
        let mut odd = Vec::new();
        for (event, data) in messages {
            let text = String::from_utf8_lossy(data).into_owned();
            for (from, to) in [
                ("\"text\":\"", "\"text\":\"more "),
                ("\"text\":\"", "\"text\":\"\",\"x\":\""),
                ("\"input\":\"", "\"input\":\"1"),
                ("\"p\":\"", "\"p\":\"more"),
                ("\"p\":\"", "\"stopReason\":\"x\",\"p\":\""),
                ("\"delta\":{", "\"delta\":{\"toolUse\":{\"input\":\"x\"},"),
            ] {
                odd.push((event.clone(), data.clone()));
                odd.push((event.clone(), text.replace(from, to).into_bytes()));
            }
            odd.push((b"contentBlockStop".to_vec(), data.clone()));
        }
        check_shortcut(name, &odd);
    }
}

#[test]
fn the_shortcut_never_changes_a_result() {
    for r in all().unwrap_or_default() {
        check_shortcut(&r.file, &frames(&r.body));
    }
    // The events of our own flows: whatever stands in a write and looks like one.
    let mut ours = Vec::new();
    for (_, flow) in fixtures() {
        for step in &flow.steps {
            if let Step::Data(_, _, bytes) = step
                && let Some(at) = bytes.windows(5).position(|w| w == b"data:" || w == b"event")
            {
                ours.extend(frames(&bytes[at..]));
            }
        }
    }
    assert!(ours.len() > 300);
    check_shortcut("flows", &ours);
    // Twice in a row each, and each with what changes a shape: another name, other strings, escapes, broken text.
    let mut odd = Vec::new();
    for (name, data) in &ours {
        let text = String::from_utf8_lossy(data).into_owned();
        odd.push((name.clone(), data.clone()));
        for (from, to) in [
            ("\"content\":\"", "\"content\":\"more "),
            ("\"content\":\"", "\"content\":\"\\\""),
            ("\"content\":\"", "\"content\":\"\\u00e4\\\\"),
            ("\"content\":\"", "\"content\":\"x\",\"refusal\":\""),
            ("\"content\":\"", "\"content\":\"x\",\"reasoning\":\""),
            ("\"content\":\"", "\"content\":\"\u{7f}\u{e9}\u{1f600}"),
            ("\"content\":\"", "\"content\":\"a\n"),
            ("\"text\":\"", "\"text\":\"y"),
            ("\"text\":\"", "\"text\":\"y\",\"thinking\":\""),
            ("\"text\":\"", "\"thinking\":\"t\",\"text\":\""),
            ("\"partial_json\":\"", "\"partial_json\":\"{\\\"a\\\":1"),
            ("\"arguments\":\"", "\"arguments\":\"1"),
            ("\"finish_reason\":null", "\"finish_reason\":\"stop\""),
            ("\"delta\":\"", "\"delta\":\"more"),
            ("\"delta\":\"", "\"delta\":\"\",\"x\":\""),
            ("\"sequence_number\":", "\"sequence_number\":1"),
            ("\"sequence_number\":", "\"sequence_number\":0"),
            ("\"obfuscation\":\"", "\"obfuscation\":\"\\u00e4"),
            (".delta\"", ".done\""),
            ("\"type\":\"text\"", "\"type\":\"thought_summary\""),
        ] {
            if text.contains(from) {
                odd.push((name.clone(), text.replace(from, to).into_bytes()));
                odd.push((name.clone(), data.clone()));
            }
        }
        odd.push((b"error".to_vec(), data.clone()));
        odd.push((Vec::new(), data.clone()));
        let mut broken = data.clone();
        if let Some(b) = broken.get_mut(data.len() / 2) {
            *b = 0xff;
        }
        odd.push((name.clone(), broken));
    }
    check_shortcut("mutated", &odd);
}
