//! A server that only tells, for `tests/hook/run.py`: what a call costs, or whole lives. One line of JSON says what it did.
//!
//! ```text
//! server cost         ns of an empty call and of an event told; the best of some tries
//! server lives MODEL N PAUSE_US
//! ```
#![allow(clippy::disallowed_methods, reason = "a server has its own clock")]

use std::hint::black_box;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tokengauge_tap::{Event, Finish, Kind};

const CALLS: u32 = 200_000;

#[inline(never)]
fn empty(event: &Event) {
    black_box(event);
}

fn best(mut each: impl FnMut()) -> f64 {
    let tries = (0..5).map(|_| {
        let began = Instant::now();
        (0..CALLS).for_each(|_| each());
        began.elapsed().as_secs_f64() / f64::from(CALLS) * 1e9
    });
    tries.fold(f64::INFINITY, f64::min)
}

fn lives(model: &str, n: u32, pause: Duration) {
    let (mut queue, mut prefill, mut ttft, mut decode) = (0.0, 0.0, 0.0, 0.0);
    for i in 0..n {
        let mut request = Event::of(&format!("life-{}-{i}", std::process::id())).model(model);
        let received = Instant::now();
        request.tell(Kind::Received);
        sleep(pause);
        let scheduled = Instant::now();
        request.tell(Kind::Scheduled);
        sleep(2 * pause);
        let first = Instant::now();
        request.tell(Kind::FirstToken);
        let mut last = first;
        for _ in 0..3 {
            sleep(pause);
            last = Instant::now();
            request.tokens(2);
        }
        request.finished(Finish::Length, 7);
        queue += (scheduled - received).as_secs_f64();
        prefill += (first - scheduled).as_secs_f64();
        ttft += (first - received).as_secs_f64();
        decode += (last - first).as_secs_f64();
    }
    println!(
        "{{\"lives\": {n}, \"events\": {}, \"queue_s\": {queue:.9}, \"prefill_s\": {prefill:.9}, \"ttft_s\": {ttft:.9}, \
         \"decode_s\": {decode:.9}, \"steps_s\": {decode:.9}}}",
        7 * n
    );
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["cost"] => {
            let mut event = Event::of("chatcmpl-0123456789abcdef0123456789abcdef").model("cost");
            let nothing = best(|| empty(&event));
            let told = best(|| event.tokens(1));
            println!("{{\"empty_ns\": {nothing:.3}, \"told_ns\": {told:.3}}}");
        }
        ["lives", model, n, pause] => {
            let (Ok(n), Ok(pause)) = (n.parse(), pause.parse()) else { return ExitCode::from(2) };
            lives(model, n, Duration::from_micros(pause));
        }
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}
