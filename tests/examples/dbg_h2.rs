use tokengauge_tests::carry::carry;
use tokengauge_tests::flow::*;
use tokengauge_tests::h2::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    if a[1] == "together" {
        let flows: Vec<_> =
            fixtures().into_iter().map(|(_, f)| f).zip(0..).map(|(f, n)| (f, std::time::Duration::from_micros(3137 * n))).collect();
        let (taken, flow) = together(&flows, Style::ODD);
        for (s, t) in taken.iter().enumerate() {
            println!("stream {} {}", 2 * s + 1, flows[*t].0.name);
        }
        let flow = Flow { seat: Seat::Middle, ..flow };
        let c = carry(&flow, a[3].parse().unwrap(), &[]);
        let lose: usize = a[4].parse().unwrap();
        for (n, (at, p)) in c.packets.iter().enumerate().take(lose + 12) {
            println!("{n} {:?} {} flags {:x} {} bytes", at, p.source, p.flags, p.payload.len());
            let mut b = &p.payload[..];
            if n == 3 {
                b = &b[24..]
            }
            while b.len() >= 9 {
                let l = (b[0] as usize) << 16 | (b[1] as usize) << 8 | b[2] as usize;
                println!("   len {l} type {} flags {:x} stream {}", b[3], b[4], u32::from_be_bytes([b[5], b[6], b[7], b[8]]));
                b = &b[(9 + l).min(b.len())..];
            }
        }
        let mut asm = tokengauge_core::tcp::Assembler::new(Default::default());
        let mut ses = tokengauge_core::http::h2::session::Session::new(tokengauge_core::stream::Direction::Forward);
        let watch: u64 = a[5].parse().unwrap();
        for (at, p) in &c.without(lose).packets {
            asm.push(*at, &p.segment(), &mut |e: tokengauge_core::stream::StreamEvent<'_>| {
                use tokengauge_core::http::event::HttpEvent as H;
                use tokengauge_core::stream::StreamEvent as S;
                let mut out = |h: H<'_>| {
                    let id = match &h {
                        H::Request { id, .. }
                        | H::RequestBody { id, .. }
                        | H::RequestEnd { id }
                        | H::Response { id, .. }
                        | H::ResponseBody { id, .. }
                        | H::Gap { id, .. }
                        | H::Over { id, .. } => *id,
                        _ => 0,
                    };
                    if id == watch || id == 0 {
                        println!("{at:?} {h:?}")
                    }
                };
                match e {
                    S::Data { dir, at, bytes, .. } => {
                        let f = ses.has_footing();
                        ses.data(dir, at, bytes, &mut out);
                        if watch == 0 {
                            println!("{at:?} {dir:?} {f} {}", ses.has_footing())
                        }
                    }
                    S::Gap { dir, len, .. } => {
                        println!("gap {dir:?} {len:?}");
                        ses.gap(dir, len, &mut out)
                    }
                    S::Close { end, .. } => ses.close(end, &mut out),
                    _ => {}
                }
                tokengauge_core::stream::Verdict::Watch
            });
        }
        println!("{}", c.without(lose).measure().0.show());
        return;
    }
    let flow = fixtures().into_iter().map(|(_, f)| f).find(|f| f.name == a[1]).unwrap();
    let flow = if a[2] == "h1" { flow } else { over_h2(&flow, if a[2] == "odd" { Style::ODD } else { Style::USUAL }).unwrap() };
    let flow = Flow { seat: Seat::Middle, ..flow };
    let c = carry(&flow, a[3].parse().unwrap(), &[]);
    for (n, (at, p)) in c.packets.iter().enumerate() {
        println!("{n} {:?} {} flags {:x} {}", at, p.source, p.flags, p.payload.escape_ascii());
    }
    let lose: usize = a[4].parse().unwrap();
    let c = if lose < 1000 { c.without(lose) } else { c };
    println!("{}", c.measure().0.show());
}
