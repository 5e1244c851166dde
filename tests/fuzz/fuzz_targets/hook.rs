//! What servers tell: a stream of batches in pieces is the stream, a structure of the tap symbol breaks nothing, and whatever they say, the book
//! of requests stays within its bounds and its parts within their wholes.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::hook::batch::{self, Came, Clock, Frames, MAX_MESSAGE};
use tokengauge_core::hook::book::{Book, End, MAX_OPEN, Said};
use tokengauge_core::hook::event::{Event, Source, Via};
use tokengauge_core::hook::raw::{self, Bad};
use tokengauge_core::stream::Timestamp;

const SOURCE: Source = Source { via: Via::Socket, pid: 1, connection: 1 };

/// Everything that a stream of batches says.
fn stream(bytes: &[u8], piece: usize) -> (Vec<Result<Event, Bad>>, bool) {
    let (mut frames, mut clock, mut all, mut ended) = (Frames::default(), Clock::default(), Vec::new(), false);
    for part in bytes.chunks(piece) {
        let came = Came { now: 1_000_000, unix_offset: 1, source: SOURCE };
        let pushed = frames.push(part, &mut |message| {
            assert!(message.len() <= MAX_MESSAGE);
            if let Err(why) = batch::read(message, came, &mut clock, &mut |event| all.push(event)) {
                all.push(Err(why));
            }
        });
        if pushed.is_err() {
            ended = true;
            break;
        }
    }
    (all, ended)
}

fuzz_target!(|data: &[u8]| {
    let Some((piece, bytes)) = data.split_first() else { return };
    let (events, ended) = stream(bytes, bytes.len().max(1));
    assert_eq!(stream(bytes, usize::from(*piece % 64) + 1), (events.clone(), ended));

    let tap = raw::read(bytes, Timestamp::from_unix_nanos(7), Source { via: Via::Tap, ..SOURCE });
    let mut book = Book::default();
    let mut hear = |said: Said<'_>| {
        let (Said::Step(request, _) | Said::Ended(request, _)) = said;
        if let (Some(prefill), Some(decode), Some(inference)) = (request.prefill(), request.decode(), request.inference()) {
            assert_eq!(prefill + decode, inference);
        }
        if let Some(each) = request.time_per_output_token() {
            assert!(each <= request.decode().unwrap_or_default());
        }
        if let Said::Ended(_, End::Finished | End::Cancelled) = said {
            assert!(request.ended.is_some());
        }
    };
    for event in events.into_iter().chain([tap]).flatten() {
        assert!(!event.request.as_bytes().is_empty());
        assert_eq!(event.request.to_name().map(|n| n.as_str().to_owned()), Some(event.request.as_str().to_owned()));
        if piece % 5 == 0 {
            book.lost(event.source);
        }
        book.take(&event, &mut hear);
    }
    assert!(book.open() <= MAX_OPEN);
    book.gone(SOURCE, &mut hear);
    assert!(book.open() <= 1);
    book.tick(Timestamp::from_unix_nanos(u64::MAX), &mut hear);
    assert_eq!(book.open(), 0);
});
