use tokengauge_slo::spec;
fn main() {
    for name in std::env::args().skip(1) {
        let text = std::fs::read(&name).unwrap_or_default();
        let loaded = spec::load(&[(name.as_str(), text)]);
        println!("{} {}", !loaded.refused(), name);
        for p in &loaded.problems {
            println!("   {p}");
        }
        for s in &loaded.slos {
            println!("   slo {} {:?}", s.name, s.objectives.iter().map(|o| (&o.name, o.target)).collect::<Vec<_>>());
        }
        for o in &loaded.others {
            println!("   other {} {}", o.name, o.source);
        }
    }
}
