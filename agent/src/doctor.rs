//! `tokengauge doctor`: what this machine allows, and a try on itself. The trying is the TLS tap's own
//! ([`selftest`](crate::tap::tls::selftest)); here it is put into words.

use serde::Serialize;

use crate::tap::tls::selftest::{self, LibraryReport, SelfTest};

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
    fn new(test: SelfTest, libraries: Vec<LibraryReport>) -> Self {
        let library = |l: LibraryReport| Library { kind: l.library, file: l.file, processes: l.users, probes: l.places.len() };
        Self {
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
        out += match self.received {
            true => "verdict       tapping TLS libraries works on this machine\n",
            false => {
                "verdict       tapping does not work here: run it as root, or with CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 6.6)\n"
            }
        };
        out
    }
}

/// Prints what was found; the result is whether an event was received.
pub fn doctor(json: bool) -> bool {
    let findings = Findings::new(selftest::self_test(), selftest::libraries());
    if json {
        println!("{}", serde_json::to_string_pretty(&findings).unwrap_or_default());
    } else {
        print!("{}", findings.text());
    }
    findings.received
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
        let text = Findings::new(test, Vec::new()).text().replace(env!("CARGO_PKG_VERSION"), "X").replace(std::env::consts::ARCH, "arch");
        expect![[r#"
            tokengauge    X
            kernel        5.15.0 (arch)
            capabilities  CAP_SYS_PTRACE
                          without CAP_BPF
            BTF           /sys/kernel/btf/vmlinux
            addresses     no program could be loaded
            libraries     none found
            verdict       tapping does not work here: run it as root, or with CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 6.6)
        "#]]
        .assert_eq(&text);
    }
}
