//! Inference servers that run on this machine, found without configuration: by what their processes are called, and by the sockets that
//! those listen on.
//!
//! Only ports that are known to speak HTTP are ever asked: the one that the command line names, the kind's own, or the only one there is.
//! Whatever else a server listens on (its workers' rendezvous, ZeroMQ) is left alone. Nothing is entered: a server in another network
//! namespace (a pod) is reached at its pod's address, from where the agent is; one that listens on its own loopback only cannot be reached,
//! and is reported as such.

use std::fs::{self, File};
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use rustc_hash::{FxHashMap, FxHashSet};
use tokengauge_core::engine::Kind;
use tokengauge_core::engine::figures;

/// Bytes of a command line that are looked at.
const COMMAND_LINE: u64 = 64 * 1024;

/// Descriptors of one process that are looked at.
const DESCRIPTORS: usize = 65_536;

/// Scans for which a young process is looked at again: what starts servers becomes them by `exec`.
const YOUNG: u32 = 8;

/// A server that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it is.
    pub kind: Kind,
    /// Its process, and when that began, in clock ticks since boot.
    pub process: (u32, u64),
    /// Its network namespace, as the kernel calls it.
    pub netns: Option<String>,
    /// Where it can be asked; `None` when only its own loopback would do, in another namespace.
    pub ask: Option<SocketAddr>,
    /// Where it listens, for people.
    pub listens: SocketAddr,
    /// Every address under which its traffic may be seen.
    pub addresses: Vec<SocketAddr>,
    /// Whether its command line says that it speaks TLS.
    pub tls: bool,
}

/// What a command line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    kind: Kind,
    port: Option<u16>,
    tls: bool,
}

/// The processes as of the last scan.
#[derive(Debug)]
pub struct Processes {
    root: PathBuf,
    known: FxHashMap<u32, Known>,
}

#[derive(Debug)]
struct Known {
    started: u64,
    scans: u32,
    told: Option<Told>,
}

impl Processes {
    /// Looks at processes below `root`, which is `/proc`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), known: FxHashMap::default() }
    }

    /// Every server that runs now, each socket once.
    pub fn scan(&mut self) -> Vec<Found> {
        let entries = fs::read_dir(&self.root).ok().into_iter().flatten().filter_map(Result::ok);
        let pids: Vec<u32> = entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
        let present: FxHashSet<u32> = pids.iter().copied().collect();
        self.known.retain(|pid, _| present.contains(pid));
        let here = self.netns("self");
        let (mut found, mut seen) = (Vec::new(), FxHashSet::default());
        for pid in pids {
            let Some(started) = self.started(pid) else { continue };
            let Some(told) = self.told(pid, started) else { continue };
            let netns = self.netns(&pid.to_string());
            let foreign = netns != here;
            let Some((inode, listens)) = choose(&told, self.listening(pid)) else { continue };
            // Workers share their parent's socket.
            if !seen.insert(inode) {
                continue;
            }
            let own = self.addresses(pid);
            let (ask, addresses) = reach(listens, foreign, &own);
            found.push(Found { kind: told.kind, process: (pid, started), netns, ask, listens, addresses, tls: told.tls });
        }
        found.sort_by_key(|f| (f.process.1, f.process.0));
        found
    }

    fn told(&mut self, pid: u32, started: u64) -> Option<Told> {
        if let Some(known) = self.known.get_mut(&pid)
            && known.started == started
            && known.scans >= YOUNG
        {
            return known.told;
        }
        let told = identify(&self.command_line(pid));
        let known = self.known.entry(pid).or_insert(Known { started, scans: 0, told });
        let scans = if known.started == started { known.scans.saturating_add(1) } else { 0 };
        *known = Known { started, scans, told };
        told
    }

    fn path(&self, pid: impl std::fmt::Display, rest: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(rest)
    }

    /// Field 22 of `/proc/PID/stat` (proc(5)); the command name before it may hold anything.
    fn started(&self, pid: u32) -> Option<u64> {
        let stat = fs::read_to_string(self.path(pid, "stat")).ok()?;
        stat.get(stat.rfind(')')? + 2..)?.split(' ').nth(19)?.trim().parse().ok()
    }

    fn command_line(&self, pid: u32) -> Vec<String> {
        let mut bytes = Vec::new();
        let Ok(file) = File::open(self.path(pid, "cmdline")) else { return Vec::new() };
        if file.take(COMMAND_LINE).read_to_end(&mut bytes).is_err() {
            return Vec::new();
        }
        bytes.split(|b| *b == 0).map(|a| String::from_utf8_lossy(a).into_owned()).collect()
    }

    fn netns(&self, pid: &str) -> Option<String> {
        Some(fs::read_link(self.path(pid, "ns/net")).ok()?.to_string_lossy().into_owned())
    }

    /// The sockets that a process listens on: those of its namespace that are among its descriptors.
    fn listening(&self, pid: u32) -> Vec<(u64, SocketAddr)> {
        let tables = ["net/tcp", "net/tcp6"].map(|t| fs::read_to_string(self.path(pid, t)).unwrap_or_default());
        let all: FxHashMap<u64, SocketAddr> = tables.iter().flat_map(|t| listeners(t)).collect();
        let descriptors = fs::read_dir(self.path(pid, "fd")).ok().into_iter().flatten().filter_map(Result::ok);
        let mut found: Vec<_> = descriptors
            .take(DESCRIPTORS)
            .filter_map(|d| {
                let link = fs::read_link(d.path()).ok()?;
                let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
                Some((inode, *all.get(&inode)?))
            })
            .collect();
        found.sort();
        found.dedup();
        found
    }

    /// The addresses of a process's namespace, without loopback and link-local ones.
    fn addresses(&self, pid: u32) -> Vec<IpAddr> {
        let v4 = fs::read_to_string(self.path(pid, "net/fib_trie")).unwrap_or_default();
        let v6 = fs::read_to_string(self.path(pid, "net/if_inet6")).unwrap_or_default();
        let mut all: Vec<IpAddr> = local_v4(&v4).into_iter().map(IpAddr::V4).chain(global_v6(&v6).map(IpAddr::V6)).collect();
        all.sort();
        all.dedup();
        all
    }
}

/// The network namespace of a process of this machine; `None` when it is gone or hidden.
pub fn netns_of(pid: &str) -> Option<String> {
    Processes::new(Path::new("/proc")).netns(pid)
}

/// What a process is, by its command line.
fn identify(argv: &[String]) -> Option<Told> {
    let base = |arg: &str| arg.rsplit('/').next().unwrap_or_default().to_owned();
    let program = base(argv.first()?);
    let args = argv.get(1..).unwrap_or_default();
    // An interpreter's script or module is what runs. Of its own flags only -m has an argument that matters here.
    let (name, args) = if program.starts_with("python") {
        let at = args.iter().position(|a| a == "-m" || !a.starts_with('-'))?;
        let module = args.get(at)? == "-m";
        let name = args.get(at + usize::from(module))?;
        let rest = args.get(at + 1 + usize::from(module)..).unwrap_or_default();
        (if module { name.clone() } else { base(name) }, rest)
    } else {
        (program, args)
    };
    let command = args.first().map_or("", String::as_str);
    let kind = match name.as_str() {
        "vllm" if command == "serve" => Kind::Vllm,
        name if name.starts_with("vllm.entrypoints") => Kind::Vllm,
        "sglang" if command == "serve" => Kind::Sglang,
        "sglang.launch_server" => Kind::Sglang,
        "trtllm-serve" => Kind::TensorRtLlm,
        "text-generation-router" => Kind::Tgi,
        "llama-server" => Kind::LlamaCpp,
        "tritonserver" => Kind::Triton,
        _ => return None,
    };
    // Triton's metrics have a port of their own.
    let flags: &[&str] = match kind {
        Kind::Triton => &["--metrics-port"],
        Kind::Tgi => &["--port", "-p"],
        _ => &["--port"],
    };
    let port = flags.iter().find_map(|flag| value(args, flag)?.parse().ok());
    let tls = ["--ssl-certfile", "--ssl-cert-file"].iter().any(|flag| value(args, flag).is_some());
    Some(Told { kind, port, tls })
}

/// The value of a flag: `--flag value` or `--flag=value`.
fn value<'a>(args: &'a [String], flag: &str) -> Option<&'a str> {
    args.iter().enumerate().find_map(|(i, arg)| {
        let rest = arg.strip_prefix(flag)?;
        if rest.is_empty() { args.get(i + 1).map(String::as_str) } else { rest.strip_prefix('=') }
    })
}

/// Of the sockets that a server listens on, the one to ask: that of the port it was told, else of the kind's own, else the only one.
fn choose(told: &Told, sockets: Vec<(u64, SocketAddr)>) -> Option<(u64, SocketAddr)> {
    let port = told.port.or_else(|| figures::server(told.kind).map(|s| s.port));
    let named = sockets.iter().find(|(_, at)| Some(at.port()) == port);
    match (named, sockets.as_slice()) {
        (Some(named), _) => Some(*named),
        (None, [only]) if told.port.is_none() => Some(*only),
        _ => None,
    }
}

/// Where to ask a server, and where its traffic may be seen.
fn reach(listens: SocketAddr, foreign: bool, own: &[IpAddr]) -> (Option<SocketAddr>, Vec<SocketAddr>) {
    let (ip, port) = (listens.ip(), listens.port());
    let at = |ip: IpAddr| SocketAddr::new(ip, port);
    if !ip.is_unspecified() {
        let closed = foreign && ip.is_loopback();
        return ((!closed).then_some(listens), vec![listens]);
    }
    let loopback = if ip.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) };
    // What listens on :: is reached by IPv4 as well, on most systems; what listens on 0.0.0.0 by IPv4 only.
    let fits = |of: &&IpAddr| ip.is_ipv6() || of.is_ipv4();
    let mut addresses: Vec<_> = own.iter().filter(fits).map(|of| at(*of)).collect();
    let ask = if foreign {
        addresses.iter().find(|a| a.is_ipv6() == ip.is_ipv6()).or_else(|| addresses.first()).copied()
    } else {
        Some(at(loopback))
    };
    addresses.push(at(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    if ip.is_ipv6() {
        addresses.push(at(loopback));
    }
    (ask, addresses)
}

/// Inode and address of what listens, of a table as `/proc/net/tcp` and `tcp6` have it (proc_net_tcp in the kernel's documentation).
fn listeners(table: &str) -> impl Iterator<Item = (u64, SocketAddr)> {
    table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next()?;
        // 0A is TCP_LISTEN.
        if fields.nth(1)? != "0A" {
            return None;
        }
        let inode = fields.nth(5)?.parse().ok()?;
        let (address, port) = local.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        // Words of 32 bits as this machine has them in memory.
        let word = |i: usize| Some(u32::from_str_radix(address.get(i * 8..i * 8 + 8)?, 16).ok()?.to_ne_bytes());
        let ip = match address.len() {
            8 => IpAddr::from(word(0)?),
            32 => {
                let words = [word(0)?, word(1)?, word(2)?, word(3)?];
                let mut octets = [0; 16];
                octets.iter_mut().zip(words.as_flattened()).for_each(|(to, from)| *to = *from);
                Ipv6Addr::from(octets).to_canonical()
            }
            _ => return None,
        };
        // A mapped IPv4 address is one; the unspecified one stays what it is.
        Some((inode, SocketAddr::new(ip, port)))
    })
}

/// Local addresses of `/proc/net/fib_trie`: a leaf (`|-- 10.0.0.5`) with a line `/32 host LOCAL` below it.
fn local_v4(trie: &str) -> Vec<Ipv4Addr> {
    let (mut leaf, mut found) = (None, Vec::new());
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(leaf.filter(|a| !a.is_loopback() && !a.is_link_local()));
        }
    }
    found
}

/// Addresses of global scope (`00`) of `/proc/net/if_inet6`.
fn global_v6(table: &str) -> impl Iterator<Item = Ipv6Addr> {
    table.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let address = fields.next().filter(|a| a.len() == 32)?;
        (fields.nth(2)? == "00").then_some(())?;
        u128::from_str_radix(address, 16).ok().map(Ipv6Addr::from)
    })
}

/// Generations that are looked back.
const GENERATIONS: usize = 8;

/// A process and those that it descends from, itself first: an engine may be a child of the process that listens.
pub fn ancestry(pid: u32) -> Vec<u32> {
    let mut line = Vec::new();
    let mut next = Some(pid);
    while let Some(pid) = next.filter(|pid| *pid > 1 && line.len() < GENERATIONS) {
        line.push(pid);
        // Field 4 of `/proc/PID/stat`, behind the name in parentheses.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        next = stat.rfind(')').and_then(|end| stat.get(end + 2..)?.split(' ').nth(1)?.parse().ok());
    }
    line
}

#[cfg(test)]
#[path = "discover_tests.rs"]
mod tests;
