//! What may keep the agent from doing what it is configured to do, each with what was found and what to do next. The README's table of
//! troubleshooting is made from the same list ([`ALL`]).

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::cli::RunArgs;
use crate::config::Config;
use crate::export::otlp::environment;
use crate::slo::files::Input;
use crate::tap::tls::selftest::{LibraryReport, SelfTest};
use crate::tenant;

/// How a check went.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// The agent works, with less than there could be.
    Warn,
    /// What is configured cannot work.
    Fail,
}

/// One check and what came of it.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// Its name, one of [`ALL`].
    pub name: &'static str,
    /// How it went.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do next; nothing when all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<&'static str>,
}

/// A check's name, what is wrong when it does not pass, and what to do then.
pub struct Advice {
    /// The name.
    pub name: &'static str,
    /// What is seen.
    pub symptom: &'static str,
    /// What to do.
    pub next: &'static str,
}

/// Every check.
pub const ALL: [Advice; 16] = [
    Advice {
        name: "kernel",
        symptom: "No tap of TLS libraries: the kernel is older than 5.8",
        next: "use Linux 5.8 or later (6.6 for least privileges), or capture packets: taps.tls.enabled: false and taps.pcap",
    },
    Advice {
        name: "lockdown",
        symptom: "Programs load and read nothing: kernel lockdown is at `confidentiality`",
        next: "boot with lockdown=integrity; at confidentiality no eBPF program may read memory",
    },
    Advice {
        name: "capabilities",
        symptom: "Files or processes of other users are not tapped",
        next: "run as root or grant the missing ones (helm: securityContext.capabilities); the Privileges section says what each is for",
    },
    Advice {
        name: "processes",
        symptom: "In a container, only its own processes are tapped",
        next: "share the host's process namespace: hostPID: true (helm sets it), docker run --pid=host",
    },
    Advice {
        name: "BTF",
        symptom: "Addresses of connections are null",
        next: "use a kernel with CONFIG_DEBUG_INFO_BTF (6.3 or later for addresses), and mount /sys into the container",
    },
    Advice {
        name: "self-test",
        symptom: "Probes attach and nothing is received, or they do not attach at all",
        next: "run as root, or with CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 6.6); seccomp must allow bpf(2)",
    },
    Advice {
        name: "libraries",
        symptom: "No traffic although there is some: its TLS library is none that can be tapped",
        next: "see What is tapped; where TLS ends at a proxy or traffic is plain HTTP, capture packets there: --interface",
    },
    Advice {
        name: "interfaces",
        symptom: "`cannot capture on …`",
        next: "name an interface of `ip link`, or `any`; capturing needs CAP_NET_RAW, and hostNetwork in Kubernetes",
    },
    Advice {
        name: "hook",
        symptom: "Servers tell of their requests, and `tokengauge_hook_events_total` stays 0",
        next: "without eBPF use the socket: hook.socket in a folder that exists and can be written, hook.uids with the servers' users",
    },
    Advice {
        name: "configuration",
        symptom: "The agent ends with exit code 2",
        next: "correct what the message names; `tokengauge config reference` lists every key, `config schema` is for editors",
    },
    Advice {
        name: "objectives",
        symptom: "`slo status` says broken, or no `tokengauge_slo_…` series",
        next: "tokengauge slo validate FILE says line, column and the nearest right key; until then the last good files stay in force",
    },
    Advice {
        name: "journal",
        symptom: "Budgets start anew after a restart",
        next: "make the folder of slo.journal writable and lasting (helm: a hostPath), with some MiB free",
    },
    Advice {
        name: "records",
        symptom: "No file of JSON lines, or records are given up",
        next: "make the folder of jsonl.path writable and free some space; jsonl.rotate with keep_mib bounds what it takes",
    },
    Advice {
        name: "OTLP",
        symptom: "Nothing arrives at the Collector or the backend",
        next: "check address, port (4317 is gRPC, 4318 HTTP), NetworkPolicy and credentials; tokengauge_export_drops_total counts what is lost",
    },
    Advice {
        name: "pages",
        symptom: "`http.listen: … in use`, probes fail, or Prometheus scrapes nothing",
        next: "choose another http.listen; for scrapes from elsewhere it must not be a loopback address",
    },
    Advice {
        name: "Kubernetes",
        symptom: "Pods and workloads are missing on metrics and spans",
        next: "the ServiceAccount must be mounted and may get, list and watch pods (helm: rbac.create); a NetworkPolicy must allow the API server",
    },
];

pub(super) fn check(name: &'static str, state: State, found: impl Into<String>) -> Check {
    let next = ALL.iter().find(|a| a.name == name).map(|a| a.next).filter(|_| state != State::Ok);
    Check { name, state, found: found.into(), next }
}

/// Those of the machine: can it be tapped at all? `wanted`: whether the configuration asks for that.
pub fn machine(test: &SelfTest, libraries: &[LibraryReport], wanted: bool) -> Vec<Check> {
    let fail = if wanted { State::Fail } else { State::Warn };
    let mut all = Vec::new();
    let version = version(&test.kernel);
    all.push(match version {
        Some(v) if v < (5, 8) => check("kernel", fail, format!("{}: no BPF ring buffer", test.kernel)),
        Some(v) if v < (6, 6) => check("kernel", State::Ok, format!("{}: probes need CAP_SYS_ADMIN before 6.6", test.kernel)),
        _ => check("kernel", State::Ok, test.kernel.clone()),
    });
    let lockdown = std::fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    if lockdown.contains("[confidentiality]") {
        all.push(check("lockdown", fail, lockdown.trim()));
    }
    let missing: Vec<&str> = test.capabilities.iter().filter(|(name, held)| !held && needed(name, version)).map(|(n, _)| *n).collect();
    all.push(match missing.as_slice() {
        [] => check("capabilities", State::Ok, "all that are needed are held"),
        some => check("capabilities", State::Warn, format!("without {}", some.join(", "))),
    });
    all.push(match own_namespace(Path::new("/proc/self/ns/pid")) {
        Some(false) => check("processes", State::Warn, "those of this container only"),
        _ => check("processes", State::Ok, "those of the whole machine"),
    });
    all.push(match (&test.sockets, test.btf) {
        (_, false) => check("BTF", State::Warn, "there is no /sys/kernel/btf/vmlinux"),
        (Err(why), true) => check("BTF", State::Warn, format!("addresses of connections cannot be learnt: {why}")),
        (Ok(()), true) => check("BTF", State::Ok, "addresses of connections can be learnt"),
    });
    all.push(match test.mechanism() {
        Some(mechanism) => check("self-test", State::Ok, format!("{}: an event was received", mechanism.as_str())),
        None => {
            let why: Vec<String> =
                test.mechanisms.iter().filter_map(|(m, r)| Some(format!("{}: {}", m.as_str(), r.as_ref().err()?))).collect();
            check("self-test", fail, why.join("; "))
        }
    });
    let known: Vec<&LibraryReport> = libraries.iter().filter(|l| l.library.is_some() && !l.places.is_empty()).collect();
    let processes: usize = known.iter().map(|l| l.users).sum();
    all.push(match known.len() {
        0 => check("libraries", State::Warn, "none that can be tapped was found; one that starts later is"),
        n => check("libraries", State::Ok, format!("{n} can be tapped, in use {processes} times")),
    });
    all
}

/// Whether a capability is needed on a kernel of this version.
fn needed(name: &str, version: Option<(u32, u32)>) -> bool {
    match name {
        "CAP_SYS_ADMIN" => version.is_some_and(|v| v < (6, 6)),
        "CAP_SYS_RESOURCE" => version.is_some_and(|v| v < (5, 11)),
        _ => true,
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Whether a process namespace is the machine's own, which has a fixed number (`PROC_PID_INIT_INO`); `None` where the system does not tell.
fn own_namespace(link: &Path) -> Option<bool> {
    let target = std::fs::read_link(link).ok()?;
    Some(target.to_string_lossy() == "pid:[4026531836]")
}

/// Those of what is configured.
pub fn configured(args: &RunArgs) -> (Option<Config>, Vec<Check>) {
    let name = args.config.as_ref().map_or_else(|| "no file".to_owned(), |p| p.display().to_string());
    let config = match Config::load(args) {
        Ok(config) => config,
        Err(error) => return (None, vec![check("configuration", State::Fail, error.to_string())]),
    };
    let mut all = vec![check("configuration", State::Ok, format!("{name}: {}", crate::run::describe(&config)))];
    if let Some(Err(error)) = config.tenant.as_ref().map(|t| tenant::open(&t.headers, &t.key_file)) {
        all.push(check("configuration", State::Fail, format!("tenant.key_file: {error}")));
    }
    for pcap in config.taps.pcap.iter().filter(|p| p.interface != "any") {
        let there = Path::new("/sys/class/net").join(&pcap.interface).exists();
        all.push(if there {
            check("interfaces", State::Ok, pcap.interface.clone())
        } else {
            check("interfaces", State::Fail, format!("there is no {}", pcap.interface))
        });
    }
    if config.hook.tap.unwrap_or(config.taps.tls.enabled) {
        all.push(match crate::hook::tap::self_test() {
            Ok(()) => check("hook", State::Ok, "an event of the tap symbol was received"),
            Err(why) if config.hook.tap.is_some() => check("hook", State::Fail, why),
            Err(why) => check("hook", State::Warn, why),
        });
    }
    if let Some(path) = &config.hook.socket {
        all.push(folder("hook", path, State::Fail));
    }
    if let Some(slo) = &config.slo {
        all.push(objectives(&slo.files));
        all.push(folder("journal", &slo.journal, State::Warn));
    }
    if let Some(jsonl) = config.jsonl.as_ref().filter(|j| j.path != Path::new("-")) {
        all.push(folder("records", &jsonl.path, State::Fail));
    }
    all.extend(super::receiver::checks(&config.otlp, &environment));
    all.extend(config.http.as_ref().map(pages));
    all.extend(super::kubernetes::names(&config.kubernetes, &environment));
    (Some(config), all)
}

fn objectives(files: &[PathBuf]) -> Check {
    let input = match Input::read(files) {
        Ok(input) => input,
        Err(error) => return check("objectives", State::Warn, error.to_string()),
    };
    let loaded = input.load(false);
    let errors: Vec<String> =
        loaded.problems.iter().filter(|p| p.level == tokengauge_slo::spec::Level::Error).map(ToString::to_string).collect();
    match errors.first() {
        Some(first) => check("objectives", State::Warn, format!("{first} ({} in all)", errors.len())),
        None => check("objectives", State::Ok, format!("{} SLOs in {} files", loaded.slos.len(), input.files.len())),
    }
}

/// Least space that makes sense for something that grows.
const SPACE: u64 = 16 << 20;

/// Whether a file can be written where it is to be.
fn folder(name: &'static str, file: &Path, bad: State) -> Check {
    let folder = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let trial = folder.join(format!(".tokengauge-doctor-{}", std::process::id()));
    let written = std::fs::write(&trial, b"x");
    let _ = std::fs::remove_file(&trial);
    match (written, free(folder)) {
        (Err(error), _) => check(name, bad, format!("{}: {error}", folder.display())),
        (Ok(()), Some(bytes)) if bytes < SPACE => check(name, bad, format!("{}: {} KiB are free", folder.display(), bytes >> 10)),
        (Ok(()), Some(bytes)) => check(name, State::Ok, format!("{} can be written, {} MiB are free", folder.display(), bytes >> 20)),
        (Ok(()), None) => check(name, State::Ok, format!("{} can be written", folder.display())),
    }
}

/// Bytes that are free for whoever is not root.
#[expect(unsafe_code, reason = "statvfs(3) has no safe form in the standard library")]
fn free(folder: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the path ends with a zero, and the structure is large enough and lives during the call; all zeros are valid for it.
    let stat = unsafe {
        if libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) != 0 {
            return None;
        }
        stat.assume_init()
    };
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// How long a receiver may take to answer a doctor.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// Whether the listener's address is free, or what the agent that has it says of itself.
fn pages(config: &crate::serve::Config) -> Check {
    let address = match config.address() {
        Ok(address) => address,
        Err(what) => return check("pages", State::Fail, what),
    };
    match std::net::TcpListener::bind(address) {
        Ok(_) => check("pages", State::Ok, format!("{address} is free: no agent serves there now")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && config.tls.is_none() => match ready(address) {
            Some((true, _)) => check("pages", State::Ok, format!("an agent at {address} says that it is ready")),
            Some((false, why)) => check("pages", State::Warn, format!("an agent at {address} says that it is not ready: {why}")),
            None => check("pages", State::Fail, format!("{address} is in use, and not by an agent")),
        },
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => check("pages", State::Ok, format!("{address} is in use")),
        Err(error) => check("pages", State::Fail, format!("{address}: {error}")),
    }
}

/// What `/readyz` says there: whether it is ready, and the lines that say why not.
fn ready(address: SocketAddr) -> Option<(bool, String)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.take(64 << 10).read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let lines: Vec<&str> = body.lines().filter(|l| l.starts_with("[-] ")).map(|l| l.trim_start_matches("[-] ")).collect();
    match head.split_whitespace().nth(1)? {
        "200" if body.ends_with("ready\n") => Some((true, String::new())),
        "503" if body.ends_with("not ready\n") => Some((false, lines.join("; "))),
        _ => None,
    }
}

/// The README's table.
pub fn markdown() -> String {
    let mut out = String::from("| What is seen | `doctor` checks | What to do |\n|---|---|---|\n");
    for advice in &ALL {
        out += &format!("| {} | {} | {} |\n", advice.symptom, advice.name, advice.next);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_its_advice() {
        for name in ["kernel", "lockdown", "capabilities", "processes", "BTF", "self-test", "libraries", "objectives", "journal", "OTLP"] {
            assert!(check(name, State::Fail, "x").next.is_some(), "{name}");
            assert!(check(name, State::Ok, "x").next.is_none());
        }
        assert_eq!((version("6.18.5-fc"), version("5.10"), version("x")), (Some((6, 18)), Some((5, 10)), None));
        assert!(needed("CAP_SYS_ADMIN", Some((6, 1))) && !needed("CAP_SYS_ADMIN", Some((6, 6))) && needed("CAP_BPF", None));
    }

    #[test]
    fn old_kernels_and_missing_libraries_are_told() {
        let test = SelfTest {
            kernel: "5.4.0-99".into(),
            capabilities: vec![("CAP_BPF", false), ("CAP_SYS_RESOURCE", false)],
            btf: false,
            mechanisms: Vec::new(),
            sockets: Ok(()),
        };
        let states = |wanted| -> Vec<_> {
            machine(&test, &[], wanted).into_iter().filter(|c| c.state != State::Ok).map(|c| (c.name, c.state)).collect()
        };
        let found = states(true);
        for want in [("kernel", State::Fail), ("capabilities", State::Warn), ("BTF", State::Warn), ("self-test", State::Fail)] {
            assert!(found.contains(&want), "{want:?} of {found:?}");
        }
        assert!(states(false).iter().all(|(_, state)| *state == State::Warn));
    }

    #[test]
    fn places_and_pages() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(folder("journal", &dir.path().join("slo.journal"), State::Warn).state, State::Ok);
        let gone = folder("records", Path::new("/nonexistent/x"), State::Fail);
        assert!(gone.state == State::Fail && gone.found.contains("/nonexistent: "), "{gone:?}");
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "nothing is left behind");
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut config = crate::serve::Config { listen: address.to_string(), ..Default::default() };
        assert!(pages(&config).found.contains("is free"));
        let health = std::sync::Arc::new(crate::health::Health::default());
        let tap = health.part("packets on lo", vec![]);
        config.listen = "127.0.0.1:0".into();
        let shown = crate::serve::Shown { health, metrics: None };
        let server = crate::serve::Server::start(&config, shown).unwrap();
        config.listen = server.address().to_string();
        let not_yet = pages(&config);
        assert!(not_yet.state == State::Warn && not_yet.found.contains("packets on lo: starting"), "{not_yet:?}");
        tap.beat();
        assert!(pages(&config).found.contains("ready"));
    }

    #[test]
    fn a_broken_configuration_is_one_check() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.yaml");
        std::fs::write(&file, "otlp: {endpiont: x}\n").unwrap();
        let (config, all) = configured(&RunArgs { config: Some(file), ..RunArgs::default() });
        assert!(config.is_none() && all.len() == 1 && all[0].found.contains("did you mean `endpoint`?"), "{all:?}");
    }
}
