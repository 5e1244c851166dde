use tokengauge_tests::carry::carry;
use tokengauge_tests::flow::*;
use tokengauge_tests::h2::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
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
