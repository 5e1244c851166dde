//! What `doctor` asks: can this kernel do it, with these privileges? Answered by doing it: a probe is put on a function of our
//! own executable, the function is called, and the event is awaited. (Probes that attach and never fire have been seen.)

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustc_hash::FxHashSet;
use tokengauge_ebpf_common::{Config, Header, kind};

use super::attach::recognise;
use super::discover::{Candidate, Processes, Scan};
use super::kernel::{Kernel, LoadOptions, Mechanism, Programs, Role};
use super::plan::Place;
use super::{Functions, LIBRARIES, btf, sys};

/// What was found.
#[derive(Clone, Debug)]
pub struct SelfTest {
    /// The kernel's release.
    pub kernel: String,
    /// Capabilities that matter, and whether this process has them.
    pub capabilities: Vec<(&'static str, bool)>,
    /// Whether the kernel carries its BTF (socket fields need it).
    pub btf: bool,
    /// Each way to attach: whether an event was *received* through it, or what went wrong.
    pub mechanisms: Vec<(Mechanism, Result<(), String>)>,
    /// Whether addresses of connections can be learnt, or why not.
    pub sockets: Result<(), String>,
}

impl SelfTest {
    /// The mechanism that the tap would use, if any works.
    pub fn mechanism(&self) -> Option<Mechanism> {
        self.mechanisms.iter().find(|(_, result)| result.is_ok()).map(|(mechanism, _)| *mechanism)
    }
}

/// A TLS library that is in use, and where its probes would stand.
#[derive(Clone, Debug)]
pub struct LibraryReport {
    /// The library's kind, `None` when a file of such a name lacks the functions.
    pub library: Option<&'static str>,
    /// The file, as its users call it.
    pub file: String,
    /// A process that maps it; `None`: on the machine, not in use.
    pub pid: Option<u32>,
    /// How many processes map it.
    pub users: usize,
    /// The places.
    pub places: Vec<Place>,
    /// Where the plain functions are in the file.
    pub symbols: Vec<(&'static str, u64)>,
    /// How the file can be opened from here.
    pub open: PathBuf,
}

/// Tries everything that the tap needs. Takes some tens of milliseconds and leaves nothing behind.
pub fn self_test() -> SelfTest {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").map(|s| s.trim().to_owned()).unwrap_or_default();
    let mut sockets = Err("no program could be loaded".to_owned());
    let mechanisms = [Mechanism::UprobeMulti, Mechanism::PerfUprobe].map(|mechanism| (mechanism, receive(mechanism, &mut sockets)));
    SelfTest { kernel, capabilities: capabilities(), btf: Path::new(btf::VMLINUX).exists(), mechanisms: mechanisms.into(), sockets }
}

/// Every TLS library on the machine and in its processes, with its plan. Attaches nothing.
pub fn libraries() -> Vec<LibraryReport> {
    let mut processes = Processes::default();
    let mut scan = processes.scan(is_named, &FxHashSet::default());
    let machine = processes.system_libraries(is_named).into_iter().filter(|c| !scan.new.iter().any(|n| n.id == c.id)).collect::<Vec<_>>();
    scan.new.extend(machine);
    report(scan)
}

/// The TLS libraries of one process, with their plans. Attaches nothing.
pub fn libraries_of(pid: u32) -> Vec<LibraryReport> {
    report(Processes::default().scan(is_named, &FxHashSet::from_iter([pid])))
}

fn is_named(file: &str) -> bool {
    LIBRARIES.iter().any(|l| l.is_named(file))
}

fn report(scan: Scan) -> Vec<LibraryReport> {
    let one = |candidate: Candidate| {
        let found = recognise(&candidate, LIBRARIES).ok()?;
        let (library, places, symbols) = match &found {
            Some((library, image)) => (
                Some(library.name()),
                library.sites(image, Functions::Planned).into_iter().map(|site| site.place).collect(),
                library.interesting().iter().filter_map(|name| Some((*name, image.file_offset(image.function(name)?.0)?))).collect(),
            ),
            None if is_named(candidate.shown.rsplit('/').next().unwrap_or_default()) => (None, Vec::new(), Vec::new()),
            None => return None,
        };
        let users = scan.mapped.get(&candidate.id).copied().unwrap_or(0);
        Some(LibraryReport { library, file: candidate.shown, pid: candidate.pid, users, places, symbols, open: candidate.open })
    };
    scan.new.into_iter().filter_map(one).collect()
}

/// What the probe of the self-test stands on.
#[inline(never)]
extern "C" fn trigger(number: u64) -> u64 {
    std::hint::black_box(number.wrapping_mul(3))
}

/// Where an address of this process is in its file.
pub(crate) fn own_place(address: usize) -> Option<(PathBuf, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        let offset = usize::from_str_radix(fields.nth(1)?, 16).ok()?;
        (start..end).contains(&address).then(|| (PathBuf::from("/proc/self/exe"), (address - start + offset) as u64))
    })
}

fn receive(mechanism: Mechanism, sockets: &mut Result<(), String>) -> Result<(), String> {
    let options = LoadOptions { programs: Programs::Tls, ring_bytes: 64 << 10, mechanism: Some(mechanism), config: Config::default() };
    let (mut kernel, mut ring) = Kernel::load(&options).map_err(|e| e.to_string())?;
    *sockets = kernel.sockets().map_err(str::to_owned);
    let (path, offset) = own_place(trigger as *const () as usize).ok_or("own executable not found in /proc/self/maps")?;
    let cookie = 0x7e57_0000 | u64::from(std::process::id() & 0xffff);
    let _attachment = kernel.attach(Role::SelfTest, &path, &[(offset, cookie)]).map_err(|e| e.to_string())?;
    trigger(1);
    for _ in 0..20 {
        while let Some(record) = ring.next() {
            if let Some((header, _)) = Header::parse(&record)
                && header.kind == kind::SELF_TEST
                && header.ssl == cookie
            {
                return Ok(());
            }
        }
        sys::wait_readable(&ring, Duration::from_millis(5));
    }
    Err("attached, but no event was received".to_owned())
}

/// Capabilities as `/proc/self/status` shows them (capability(7) for the numbers).
fn capabilities() -> Vec<(&'static str, bool)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok()).unwrap_or(0);
    let wanted = [
        ("CAP_BPF", 39),
        ("CAP_PERFMON", 38),
        ("CAP_SYS_ADMIN", 21),
        ("CAP_SYS_PTRACE", 19),
        ("CAP_DAC_READ_SEARCH", 2),
        ("CAP_CHECKPOINT_RESTORE", 40),
        ("CAP_SYS_RESOURCE", 24),
    ];
    wanted.map(|(name, bit)| (name, effective >> bit & 1 == 1)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_received_or_the_reason_is_known() {
        let test = self_test();
        println!("{test:#?}");
        if test.mechanism().is_none() {
            assert!(std::env::var_os("TOKENGAUGE_REQUIRE_BPF").is_none(), "no mechanism works: {:?}", test.mechanisms);
            eprintln!("skipped: {:?}", test.mechanisms);
        }
    }
}
