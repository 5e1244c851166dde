use super::super::event::Counts;
use super::*;
use proptest::prelude::*;

const SOURCE: Source = Source { via: Via::Tap, pid: 7, connection: 0 };

fn at(ms: u64) -> Timestamp {
    Timestamp::from_unix_nanos(1_000_000_000 + ms * 1_000_000)
}

fn event(ms: u64, id: &str, kind: Kind) -> Event {
    Event {
        at: at(ms),
        stamp: Stamp::Kernel,
        source: SOURCE,
        request: RequestId::new(id.as_bytes()).unwrap(),
        kind,
        model: None,
        trace: None,
        engine: None,
        finish: None,
        counts: Counts::default(),
    }
}

#[derive(Default)]
struct Heard {
    steps: Vec<u64>,
    ended: Vec<(Request, End)>,
}

impl Heard {
    fn take(&mut self, book: &mut Book, event: &Event) {
        book.take(event, &mut |said| self.hear(said));
    }

    fn hear(&mut self, said: Said<'_>) {
        match said {
            Said::Step(_, interval) => self.steps.push(interval.as_millis() as u64),
            Said::Ended(request, end) => self.ended.push((*request, end)),
        }
    }
}

fn heard(events: &[(u64, Kind)]) -> Heard {
    let (mut book, mut heard) = (Book::default(), Heard::default());
    for (ms, kind) in events {
        heard.take(&mut book, &event(*ms, "a", *kind));
    }
    heard
}

const fn ms(n: u64) -> Option<Duration> {
    Some(Duration::from_millis(n))
}

#[test]
fn a_whole_life() {
    let heard = heard(&[
        (0, Kind::Received),
        (2, Kind::Queued),
        (12, Kind::Scheduled),
        (42, Kind::FirstToken),
        (50, Kind::Tokens(2)),
        (55, Kind::Preempted),
        (70, Kind::Scheduled),
        (90, Kind::Tokens(1)),
        (91, Kind::Finished),
    ]);
    let (r, end) = heard.ended[0];
    assert_eq!((end, r.preemptions, r.output_tokens()), (End::Finished, 1, Some(4)));
    assert_eq!((r.queue(), r.prefill(), r.ttft()), (ms(10), ms(30), ms(42)));
    assert_eq!((r.decode(), r.inference(), r.end_to_end()), (ms(48), ms(78), ms(91)));
    assert_eq!((r.time_per_output_token(), heard.steps), (ms(16), vec![8, 40]));
}

#[test]
fn who_tells_tokens_only_has_told_the_first() {
    let heard = heard(&[(0, Kind::Received), (30, Kind::Tokens(1)), (40, Kind::Tokens(1)), (41, Kind::Finished)]);
    let (r, _) = heard.ended[0];
    assert_eq!((r.ttft(), r.decode(), r.queue(), r.prefill()), (ms(30), ms(10), None, None));
}

#[test]
fn what_was_joined_in_its_middle_has_no_beginning() {
    let heard = heard(&[(30, Kind::Tokens(1)), (40, Kind::Tokens(1)), (41, Kind::Finished)]);
    let (r, _) = heard.ended[0];
    assert_eq!((r.ttft(), r.decode(), r.output_tokens(), r.end_to_end()), (None, None, None, None));
    assert_eq!(heard.steps, [10]);
}

#[test]
fn one_token_has_no_time_per_token() {
    let heard = heard(&[(0, Kind::Received), (30, Kind::FirstToken), (31, Kind::Finished)]);
    let (r, _) = heard.ended[0];
    assert_eq!((r.ttft(), r.decode(), r.time_per_output_token(), r.output_tokens()), (ms(30), None, None, Some(1)));
}

#[test]
fn nothing_is_measured_across_a_loss() {
    let (mut book, mut heard) = (Book::default(), Heard::default());
    for (ms, kind) in [(0, Kind::Received), (5, Kind::Scheduled), (30, Kind::FirstToken), (40, Kind::Tokens(1))] {
        heard.take(&mut book, &event(ms, "a", kind));
    }
    book.lost(SOURCE);
    for (ms, kind) in [(80, Kind::Tokens(1)), (90, Kind::Tokens(1)), (91, Kind::Finished)] {
        heard.take(&mut book, &event(ms, "a", kind));
    }
    let (r, _) = heard.ended[0];
    assert!(r.holed);
    assert_eq!((r.ttft(), r.prefill(), r.end_to_end()), (ms(30), ms(25), ms(91)));
    assert_eq!((r.decode(), r.output_tokens(), r.inference()), (None, None, None));
    assert_eq!(heard.steps, [10, 10]);
    // A request that begins after the loss is whole.
    heard.take(&mut book, &event(100, "b", Kind::Received));
    heard.take(&mut book, &event(101, "b", Kind::Finished));
    assert!(!heard.ended[1].0.holed);
}

#[test]
fn sums_that_the_engine_tells_outlive_a_loss() {
    let (mut book, mut heard) = (Book::default(), Heard::default());
    heard.take(&mut book, &event(0, "a", Kind::Received));
    book.lost(SOURCE);
    let mut last = event(9, "a", Kind::Finished);
    last.counts = Counts { output: Some(77), prompt: Some(0), ..Counts::default() };
    last.finish = Some(Finish::Length);
    heard.take(&mut book, &last);
    let (r, _) = heard.ended[0];
    assert_eq!((r.output_tokens(), r.prompt_tokens, r.cached_tokens, r.finish), (Some(77), Some(0), None, Some(Finish::Length)));
}

#[test]
fn processes_do_not_share_ids_and_ways_do_not_count_twice() {
    let (mut book, mut heard) = (Book::default(), Heard::default());
    heard.take(&mut book, &event(0, "1", Kind::Received));
    let other = Event { source: Source { pid: 8, ..SOURCE }, ..event(1, "1", Kind::Received) };
    heard.take(&mut book, &other);
    assert_eq!(book.open(), 2);
    let again = Event { source: Source { via: Via::Socket, pid: 7, connection: 3 }, ..event(2, "1", Kind::Tokens(5)) };
    heard.take(&mut book, &again);
    heard.take(&mut book, &event(3, "1", Kind::Finished));
    assert_eq!((book.counted().twice, heard.ended[0].0.output_counted), (1, 0));
    // The same, of processes that cannot be named.
    let unknown = |connection| Event { source: Source { via: Via::Socket, pid: 0, connection }, ..event(4, "1", Kind::Received) };
    heard.take(&mut book, &unknown(1));
    heard.take(&mut book, &unknown(2));
    assert_eq!(book.open(), 3);
}

#[test]
fn requests_of_a_server_that_is_gone_end() {
    let (mut book, mut heard) = (Book::default(), Heard::default());
    for id in ["a", "b"] {
        heard.take(&mut book, &event(0, id, Kind::Received));
    }
    let other = Event { source: Source { pid: 8, ..SOURCE }, ..event(1, "c", Kind::Received) };
    heard.take(&mut book, &other);
    book.gone(SOURCE, &mut |said| heard.hear(said));
    assert_eq!((heard.ended.len(), book.open()), (2, 1));
    assert!(heard.ended.iter().all(|(r, end)| *end == End::Gone && r.ended.is_none()));
    // Their late events are no new requests.
    heard.take(&mut book, &event(2, "a", Kind::Finished));
    assert_eq!((book.open(), book.counted().late), (1, 1));
}

#[test]
fn bounded_in_number_and_in_time() {
    let (mut book, mut heard) = (Book::default(), Heard::default());
    for i in 0..MAX_OPEN + 10 {
        heard.take(&mut book, &event(i as u64, &format!("r{i}"), Kind::Received));
    }
    assert_eq!((book.open(), heard.ended.len()), (MAX_OPEN, 10));
    assert!(heard.ended.iter().enumerate().all(|(i, (r, end))| *end == End::Evicted && r.id.as_str() == format!("r{i}")));
    for i in 0..5 * MAX_OPEN {
        let id = format!("s{i}");
        heard.take(&mut book, &event(20_000, &id, Kind::Received));
        heard.take(&mut book, &event(20_001, &id, Kind::Finished));
    }
    assert!(book.order.len() <= 2 * MAX_OPEN);
    book.tick(at(20_000 + 900_000), &mut |said| heard.hear(said));
    assert_eq!(book.open(), 0);
}

proptest! {
    #[test]
    fn parts_never_sum_to_more_than_the_whole(events in proptest::collection::vec((0_u64..40, 0_u8..8, 0_u8..3), 0..120)) {
        let (mut book, mut heard, mut now) = (Book::default(), Heard::default(), 0);
        let kinds = [Kind::Received, Kind::Queued, Kind::Scheduled, Kind::FirstToken, Kind::Tokens(2), Kind::Finished, Kind::Preempted, Kind::Cancelled];
        for (later, kind, id) in events {
            now += later;
            heard.take(&mut book, &event(now, &format!("r{id}"), kinds[usize::from(kind)]));
            if later == 39 {
                book.lost(SOURCE);
            }
        }
        for (r, _) in heard.ended {
            if let (Some(queue), Some(prefill), Some(ttft)) = (r.queue(), r.prefill(), r.ttft()) {
                prop_assert!(r.received > r.queued || queue + prefill <= ttft);
            }
            if let (Some(prefill), Some(decode), Some(inference)) = (r.prefill(), r.decode(), r.inference()) {
                prop_assert_eq!(prefill + decode, inference);
            }
            if let (Some(ttft), Some(whole)) = (r.ttft(), r.end_to_end()) {
                prop_assert!(ttft <= whole);
            }
        }
    }
}
