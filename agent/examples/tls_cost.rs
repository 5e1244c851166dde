//! What the TLS tap costs a process: ns for an SSL_write + SSL_read of 250 bytes, without probes, with empty probes, with the tap.
//!
//! ```text
//! cargo run --release -p tokengauge --example tls_cost [bytes]
//! ```
//!
//! Needs root, `cc`, `openssl` and libssl's headers. All cases run alternately in one process of `tests/bench/tls_pair.c`, because
//! absolute figures differ between machines by a factor of ten: what counts are the ratios, and those are held against the targets.
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use tokengauge::tap::tls::kernel::{Attachment, Kernel, LoadOptions, Programs, Role};
use tokengauge::tap::tls::{TlsOptions, TlsTap, selftest};
use tokengauge::tap::{Sink, StopFlag, Tap as _};
use tokengauge_core::stream::{StreamEvent, Timestamp, Verdict};

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

struct Count(u64, bool);
impl Sink for Count {
    fn event(&mut self, event: StreamEvent<'_>) -> Verdict {
        if let StreamEvent::Data { bytes, .. } = event {
            self.0 += bytes.len() as u64;
            if self.1 {
                return Verdict::Mute;
            }
        }
        Verdict::Watch
    }
    fn tick(&mut self, _: Timestamp) {}
}

struct Pair(ChildStdin, BufReader<ChildStdout>);
impl Pair {
    fn measure(&mut self, pairs: u32) -> Fallible<f64> {
        writeln!(self.0, "pairs {pairs}")?;
        let mut line = String::new();
        self.1.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }
}

fn main() -> Fallible<()> {
    let bytes: usize = std::env::args().nth(1).map_or(Ok(250), |n| n.parse())?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/bench/tls_pair.c");
    let dir = std::env::temp_dir().join(format!("tokengauge-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let (program, pem) = (dir.join("tls_pair"), dir.join("both.pem"));
    let ok = Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(&source).args(["-lssl", "-lcrypto"]).status()?;
    assert!(ok.success(), "cc failed");
    let ok = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout"])
        .arg(&pem)
        .arg("-out")
        .arg(dir.join("cert.pem"))
        .stderr(Stdio::null())
        .status()?;
    assert!(ok.success(), "openssl failed");
    let both = [std::fs::read(&pem)?, std::fs::read(dir.join("cert.pem"))?].concat();
    std::fs::write(&pem, both)?;
    let mut child = Command::new(&program).arg(&pem).arg(bytes.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut pair = Pair(child.stdin.take().ok_or("stdin")?, BufReader::new(child.stdout.take().ok_or("stdout")?));
    pair.1.read_line(&mut String::new())?;

    // The library that the program has mapped, and its places.
    let report = selftest::libraries_of(child.id()).into_iter().find(|r| !r.places.is_empty()).ok_or("no TLS library found")?;
    println!("{}", report.file);
    for place in &report.places {
        println!("  {:28} +{:#x}  {:12} {}", place.functions.join(", "), place.into, place.instruction, place.cost.as_str());
    }
    let moving =
        |p: &&tokengauge::tap::tls::plan::Place| p.functions.iter().any(|f| f.starts_with("SSL_read") || f.starts_with("SSL_write"));
    let cheap: Vec<(u64, u64)> = report.places.iter().filter(moving).map(|p| (p.file_offset, 0)).collect();
    let symbol = |name: &str| report.symbols.iter().find(|(n, _)| *n == name).map(|(_, offset)| (*offset, 0)).ok_or("symbol");
    let (read, write) = (symbol("SSL_read")?, symbol("SSL_write")?);

    let options = LoadOptions { programs: Programs::Tls, ring_bytes: 64 << 10, mechanism: None, config: Default::default() };
    let (mut kernel, _ring) = Kernel::load(&options)?;
    println!("mechanism: {}", kernel.mechanism().as_str());
    let cases = ["no probe", "empty, cheap places", "empty, three symbols", "whole tap", "whole tap, muted"];
    let mut results = vec![Vec::new(); cases.len()];
    pair.measure(20_000)?;
    for _ in 0..7 {
        for (case, results) in cases.iter().zip(&mut results) {
            let mut attached: Vec<Attachment> = Vec::new();
            let mut tap = None;
            match *case {
                "empty, cheap places" => {
                    attached.push(kernel.attach(Role::EmptyLeave, &report.open, &cheap)?);
                    attached.push(kernel.attach(Role::EmptyEnter, &report.open, &cheap)?);
                }
                "empty, three symbols" => {
                    attached.push(kernel.attach(Role::EmptyLeave, &report.open, &[read])?);
                    attached.push(kernel.attach(Role::EmptyEnter, &report.open, &[read, write])?);
                }
                "no probe" => {}
                name => {
                    let stop = StopFlag::default();
                    let flag = stop.clone();
                    let mute = name.ends_with("muted");
                    let one = Box::new(TlsTap::new(TlsOptions { pids: vec![child.id()], ..TlsOptions::default() }));
                    let counters = one.counters().ok_or("counters")?;
                    let thread = std::thread::spawn(move || {
                        let mut sink = Count(0, mute);
                        one.run(&mut sink, &flag).map(|()| sink.0)
                    });
                    while counters.lock().map_err(|_| "tap")?.attach.is_empty() {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    tap = Some((thread, stop, counters));
                    pair.measure(100)?;
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
            let pairs = if case.contains("symbols") { 5_000 } else { 20_000 };
            results.push(pair.measure(pairs)?);
            if let Some((thread, stop, counters)) = tap {
                std::thread::sleep(Duration::from_millis(50));
                stop.stop();
                let seen = thread.join().map_err(|_| "the tap panicked")??;
                let sent = (u64::from(pairs) + 100) * 2 * bytes as u64;
                let lost: u64 = counters.lock().map_err(|_| "tap")?.dropped_bytes.iter().map(|(_, n)| n).sum();
                assert!(case.ends_with("muted") || seen + lost == sent, "sent {sent}, seen {seen}, lost {lost}");
            }
            drop(attached);
            std::thread::sleep(Duration::from_millis(30));
        }
    }
    let median = |v: &mut Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    let figures: Vec<f64> = results.iter_mut().map(median).collect();
    let base = figures[0];
    println!("\n{bytes} bytes, SSL_write + SSL_read, ns of CPU time, median of 7\n{:24}{:>10}{:>12}", "", "ns/pair", "added");
    for (case, figure) in cases.iter().zip(&figures) {
        println!("{case:24}{figure:>10.0}{:>12.0}", figure - base);
    }
    let (cheap, symbols, tap) = (figures[1] - base, figures[2] - base, figures[3] - base);
    println!("\ntap / three empty probes at the symbols: {:.3} (target <= 0.15)", tap / symbols);
    println!("tap / empty probes at its own places:    {:.2} (target <= 2)", tap / cheap);
    let _ = child.kill();
    let _ = child.wait();
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
