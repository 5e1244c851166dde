//! `tokengauge doctor`: what this machine allows, and a try on itself.

use std::path::Path;

use serde::Serialize;

/// What was found.
#[derive(Serialize, Debug)]
struct Findings {
    version: &'static str,
    kernel: String,
    architecture: &'static str,
    capabilities: Vec<&'static str>,
    missing_capabilities: Vec<&'static str>,
    btf: bool,
    self_test: SelfTest,
}

/// Whether the agent saw its own process's traffic.
#[derive(Serialize, Debug, Default)]
pub struct SelfTest {
    /// Whether an event was received.
    pub received: bool,
    /// TLS libraries that were found and attached to.
    pub libraries: Vec<String>,
    /// How it went, or why it did not.
    pub detail: String,
}

/// Prints what was found; the result is whether an event was received.
pub fn doctor(json: bool) -> bool {
    let held = capabilities(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
    let findings = Findings {
        version: env!("CARGO_PKG_VERSION"),
        kernel: read("/proc/sys/kernel/osrelease"),
        architecture: std::env::consts::ARCH,
        missing_capabilities: missing(&held),
        capabilities: held,
        btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
        self_test: self_test(),
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&findings).unwrap_or_default());
    } else {
        print!("{}", text(&findings));
    }
    findings.self_test.received
}

/// Attaches to this process and waits for an event.
fn self_test() -> SelfTest {
    SelfTest { detail: "this build has no TLS tap".into(), ..SelfTest::default() }
}

fn text(f: &Findings) -> String {
    let list = |names: &[&str]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let mut out = format!("tokengauge    {}\n", f.version);
    out += &format!("kernel        {} ({})\n", f.kernel, f.architecture);
    out += &format!(
        "capabilities  {}\n",
        if f.missing_capabilities.is_empty() { "all that are needed".into() } else { list(&f.capabilities) }
    );
    if !f.missing_capabilities.is_empty() {
        out += &format!(
            "  missing     {}: run it as root, or grant them by setcap or the container's security context\n",
            list(&f.missing_capabilities)
        );
    }
    out += &format!("BTF           {}\n", if f.btf { "/sys/kernel/btf/vmlinux" } else { "none: socket addresses cannot be told" });
    let libraries: Vec<&str> = f.self_test.libraries.iter().map(String::as_str).collect();
    out += &format!("libraries     {}\n", list(&libraries));
    out += &format!(
        "self-test     {}: {}\n",
        if f.self_test.received { "an event was received" } else { "no event was received" },
        f.self_test.detail
    );
    out
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).map_or_else(|_| "unknown".into(), |s| s.trim().to_owned())
}

/// Names by bit, from `linux/capability.h`.
const CAPABILITIES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// The effective capabilities in the text of `/proc/self/status`.
fn capabilities(status: &str) -> Vec<&'static str> {
    let mask = status.lines().find_map(|l| u64::from_str_radix(l.strip_prefix("CapEff:")?.trim(), 16).ok()).unwrap_or_default();
    CAPABILITIES.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1).map(|(_, name)| *name).collect()
}

/// What is missing: to load and attach programs, to read other processes' maps, to capture packets.
fn missing(held: &[&str]) -> Vec<&'static str> {
    let all = held.contains(&"CAP_SYS_ADMIN");
    let needed = [("CAP_BPF", all), ("CAP_PERFMON", all), ("CAP_SYS_PTRACE", false), ("CAP_NET_RAW", false)];
    needed.into_iter().filter(|(name, implied)| !implied && !held.contains(name)).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_have_names() {
        let held = capabilities("Name:\tx\nCapEff:\t000000c000080000\n");
        assert_eq!(held, ["CAP_SYS_PTRACE", "CAP_PERFMON", "CAP_BPF"]);
        assert_eq!(missing(&held), ["CAP_NET_RAW"]);
        assert_eq!(missing(&["CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_RAW"]), [""; 0]);
        assert!(capabilities("").is_empty());
    }
}
