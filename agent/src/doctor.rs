//! `tokengauge doctor`: what this machine allows, a try on itself, and whether everything that is configured can work. The trying is the TLS tap's
//! own ([`selftest`](crate::tap::tls::selftest)); here it is put into words.

use serde::Serialize;

use crate::cli::RunArgs;
use crate::tap::tls::selftest::{self, LibraryReport, SelfTest};

pub mod checks;
mod kubernetes;
mod receiver;

use checks::{Check, State};

/// What was found.
#[derive(Serialize, Debug)]
struct Findings {
    version: &'static str,
    kernel: String,
    architecture: &'static str,
    capabilities: Vec<Capability>,
    btf: bool,
    mechanisms: Vec<Mechanism>,
    /// Why addresses of connections cannot be learnt.
    addresses: Option<String>,
    libraries: Vec<Library>,
    /// Whether an event of this process was received: tapping works here.
    received: bool,
    /// What was checked besides, with what to do next.
    checks: Vec<Check>,
    /// Whether everything that is configured can work.
    good: bool,
}

#[derive(Serialize, Debug)]
struct Capability {
    name: &'static str,
    held: bool,
}

#[derive(Serialize, Debug)]
struct Mechanism {
    name: &'static str,
    received: bool,
    problem: Option<String>,
}

#[derive(Serialize, Debug)]
struct Library {
    kind: Option<&'static str>,
    file: String,
    processes: usize,
    probes: usize,
}

impl Findings {
    fn new(test: SelfTest, libraries: Vec<LibraryReport>, checks: Vec<Check>) -> Self {
        let library = |l: LibraryReport| Library { kind: l.library, file: l.file, processes: l.users, probes: l.places.len() };
        Self {
            good: checks.iter().all(|c| c.state != State::Fail),
            checks,
            version: env!("CARGO_PKG_VERSION"),
            received: test.mechanism().is_some(),
            kernel: test.kernel,
            architecture: std::env::consts::ARCH,
            capabilities: test.capabilities.into_iter().map(|(name, held)| Capability { name, held }).collect(),
            btf: test.btf,
            mechanisms: test
                .mechanisms
                .into_iter()
                .map(|(m, result)| Mechanism { name: m.as_str(), received: result.is_ok(), problem: result.err() })
                .collect(),
            addresses: test.sockets.err(),
            libraries: libraries.into_iter().map(library).collect(),
        }
    }

    fn text(&self) -> String {
        let mut out = format!("tokengauge    {}\nkernel        {} ({})\n", self.version, self.kernel, self.architecture);
        let names = |held: bool| self.capabilities.iter().filter(|c| c.held == held).map(|c| c.name).collect::<Vec<_>>().join(" ");
        out += &format!("capabilities  {}\n", if names(true).is_empty() { "none".to_owned() } else { names(true) });
        if !names(false).is_empty() {
            out += &format!("              without {}\n", names(false));
        }
        out += &format!("BTF           {}\n", if self.btf { "/sys/kernel/btf/vmlinux" } else { "none" });
        out += &format!("addresses     {}\n", self.addresses.as_deref().unwrap_or("of connections can be learnt"));
        if self.libraries.is_empty() {
            out += "libraries     none found\n";
        }
        for (i, library) in self.libraries.iter().enumerate() {
            let head = if i == 0 { "libraries" } else { "" };
            let kind = library.kind.unwrap_or("no known TLS functions");
            out += &format!("{head:<14}{} ({kind}; {} processes, {} probes)\n", library.file, library.processes, library.probes);
        }
        for (i, mechanism) in self.mechanisms.iter().enumerate() {
            let head = if i == 0 { "self-test" } else { "" };
            out += &format!("{head:<14}{}: {}\n", mechanism.name, mechanism.problem.as_deref().unwrap_or("an event was received"));
        }
        for (i, Check { name, state, found, next }) in self.checks.iter().enumerate() {
            let head = if i == 0 { "checks" } else { "" };
            let state = match state {
                State::Ok => "ok  ",
                State::Warn => "warn",
                State::Fail => "FAIL",
            };
            out += &format!("{head:<14}{state} {name}: {found}\n");
            if let Some(next) = next {
                out += &format!("{:<19}→ {next}\n", "");
            }
        }
        out += match (self.good, self.received) {
            (true, true) => "verdict       tapping TLS libraries works on this machine, and nothing that is configured fails\n",
            (true, false) => "verdict       nothing that is configured fails; tapping TLS libraries, which is off, would\n",
            (false, _) => "verdict       something does not work: each FAIL above says what to do\n",
        };
        out
    }
}

/// Prints what was found; the result is whether everything that is configured can work.
pub fn doctor(json: bool, args: &RunArgs) -> bool {
    let (test, libraries) = (selftest::self_test(), selftest::libraries());
    let (config, configured) = checks::configured(args);
    let mut all = checks::machine(&test, &libraries, config.is_none_or(|c| c.taps.tls.enabled));
    all.extend(configured);
    let findings = Findings::new(test, libraries, all);
    if json {
        println!("{}", serde_json::to_string_pretty(&findings).unwrap_or_default());
    } else {
        print!("{}", findings.text());
    }
    findings.good
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn it_says_what_is_missing() {
        let test = SelfTest {
            kernel: "5.15.0".into(),
            capabilities: vec![("CAP_BPF", false), ("CAP_SYS_PTRACE", true)],
            btf: true,
            mechanisms: Vec::new(),
            sockets: Err("no program could be loaded".into()),
        };
        let checks = vec![
            Check { name: "kernel", state: State::Ok, found: "5.15.0".into(), next: None },
            Check { name: "self-test", state: State::Fail, found: "no".into(), next: Some("run as root") },
        ];
        let text =
            Findings::new(test, Vec::new(), checks).text().replace(env!("CARGO_PKG_VERSION"), "X").replace(std::env::consts::ARCH, "arch");
        expect![[r#"
            tokengauge    X
            kernel        5.15.0 (arch)
            capabilities  CAP_SYS_PTRACE
                          without CAP_BPF
            BTF           /sys/kernel/btf/vmlinux
            addresses     no program could be loaded
            libraries     none found
            checks        ok   kernel: 5.15.0
                          FAIL self-test: no
                               → run as root
            verdict       something does not work: each FAIL above says what to do
        "#]]
        .assert_eq(&text);
    }
}
