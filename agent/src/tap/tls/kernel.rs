//! The loaded kernel side: programs, tables, and the two ways to attach.
//!
//! `uprobe_multi` (Linux 6.6) is preferred: it needs only CAP_BPF and CAP_PERFMON and attaches many places in one call. aya 0.14
//! cannot load programs for it, so the object is relocated with aya-obj against the tables that aya created, and loaded by
//! `sys.rs`. Elsewhere aya's perf-PMU uprobe is used, one place at a time.
#![allow(unsafe_code)] // `aya::Pod` for the ABI's structures: plain integers, `repr(C)`, no padding

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::uprobe::{UProbe, UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope};
use aya::programs::{BtfTracePoint, Program};
use aya::{Btf, Ebpf, EbpfLoader};
use tokengauge_ebpf_common::{Config, Conn, ConnKey, Counters, flag};

use super::{btf, sys};
use crate::chain::chain;
use crate::tap::TapError;

/// The compiled programs (`ebpf/build.sh`), which read this architecture's registers. aya wants them aligned.
#[cfg(target_arch = "x86_64")]
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/../ebpf/tokengauge.bpf.o"));
#[cfg(target_arch = "aarch64")]
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/../ebpf/tokengauge.bpf.aarch64.o"));

#[repr(transparent)]
#[derive(Clone, Copy)]
struct Abi<T>(T);
// SAFETY: `repr(C)` integers only, without padding (`_pad` fields are explicit); any bit pattern is valid.
unsafe impl aya::Pod for Abi<ConnKey> {}
// SAFETY: as above.
unsafe impl aya::Pod for Abi<Conn> {}
// SAFETY: as above.
unsafe impl aya::Pod for Abi<Config> {}

/// The uprobe programs of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A read or write function begins.
    Enter,
    /// A read or write function returns.
    Leave,
    /// `SSL_new` returns.
    New,
    /// `SSL_free` begins.
    Free,
    /// `SSL_shutdown` begins.
    Shutdown,
    /// `SSL_set_quiet_shutdown` begins.
    Quiet,
    /// The hook's tap symbol is called.
    HookTap,
    /// Reports that it was hit.
    SelfTest,
    /// Does nothing: the yardstick of the benchmark.
    EmptyEnter,
    /// The same at a return.
    EmptyLeave,
}

impl Role {
    const TLS: &[Self] =
        &[Self::Enter, Self::Leave, Self::New, Self::Free, Self::Shutdown, Self::Quiet, Self::SelfTest, Self::EmptyEnter, Self::EmptyLeave];
    const HOOK: &[Self] = &[Self::HookTap, Self::SelfTest];

    const fn program(self) -> &'static str {
        match self {
            Self::Enter => "ssl_enter",
            Self::Leave => "ssl_leave",
            Self::New => "ssl_new",
            Self::Free => "ssl_free",
            Self::Shutdown => "ssl_shutdown",
            Self::Quiet => "ssl_quiet",
            Self::HookTap => "hook_tap",
            Self::SelfTest => "self_test",
            Self::EmptyEnter => "empty_enter",
            Self::EmptyLeave => "empty_leave",
        }
    }

    const fn at_return(self) -> bool {
        matches!(self, Self::Leave | Self::New | Self::EmptyLeave)
    }
}

/// What the object is loaded for. Each tap has its own tables and ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// TLS libraries, and the socket calls inside their calls.
    Tls,
    /// The hook's tap symbol: no table of connections, no socket calls.
    Hook,
}

impl Programs {
    const fn roles(self) -> &'static [Role] {
        match self {
            Self::Tls => Role::TLS,
            Self::Hook => Role::HOOK,
        }
    }
}

/// How programs get to their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// One link for many places, Linux 6.6 and later.
    UprobeMulti,
    /// One perf event for each place; needs CAP_SYS_ADMIN on current kernels.
    PerfUprobe,
}

impl Mechanism {
    /// Its name in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UprobeMulti => "uprobe_multi",
            Self::PerfUprobe => "perf uprobe",
        }
    }
}

/// Attached places. Dropping it detaches them.
pub enum Attachment {
    /// Held by a descriptor.
    Multi(#[allow(dead_code)] OwnedFd), // kept for its drop
    /// Held by aya.
    Perf(#[allow(dead_code)] Vec<UProbeLink>), // kept for their drop
}

/// The loaded object.
pub struct Kernel {
    ebpf: Ebpf,
    multi: Vec<(Role, OwnedFd)>,
    mechanism: Mechanism,
    conns: HashMap<MapData, Abi<ConnKey>, Abi<Conn>>,
    processes: HashMap<MapData, u32, u8>,
    counters: PerCpuArray<MapData, [u64; Counters::FIELDS]>,
    senseless: Array<MapData, u64>,
    /// Why endpoints stay unknown, where they do.
    sockets: Result<(), String>,
}

fn refused(what: &str) -> impl Fn(&dyn std::fmt::Display) -> TapError + '_ {
    move |error| TapError::Bpf { what: format!("{what}: {error}") }
}

/// What a kernel is loaded with.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// What for.
    pub programs: Programs,
    /// Size of the ring, a power of two and at least a page.
    pub ring_bytes: u32,
    /// `None`: the best that the kernel has.
    pub mechanism: Option<Mechanism>,
    /// Settings; socket offsets are filled in here.
    pub config: Config,
}

impl Kernel {
    /// Creates the tables and loads the programs; nothing is attached yet but the socket tracepoints.
    ///
    /// # Errors
    /// When the kernel refuses: no capability, no BPF, a program it cannot verify.
    pub fn load(options: &LoadOptions) -> Result<(Self, RingBuf<MapData>), TapError> {
        let mut loader = EbpfLoader::new();
        loader.map_max_entries("RECORDS", options.ring_bytes);
        if options.programs == Programs::Hook {
            // Its programs look at no structure of the kernel's: reading what all of them look like would cost 40 MB.
            loader.btf(None);
            for unused in ["CONNS", "CALLS", "OUTER", "SENSELESS"] {
                loader.map_max_entries(unused, 64);
            }
        }
        let mut ebpf = loader.load(OBJECT).map_err(|e| refused("loading the tables")(&chain(&e)))?;
        let roles = options.programs.roles();
        let (multi, mechanism) = match options.mechanism {
            Some(Mechanism::PerfUprobe) => (Vec::new(), Mechanism::PerfUprobe),
            wanted => match load_multi(&ebpf, roles) {
                Ok(programs) => (programs, Mechanism::UprobeMulti),
                Err(error) if wanted.is_some() => return Err(error),
                Err(_) => (Vec::new(), Mechanism::PerfUprobe),
            },
        };
        if mechanism == Mechanism::PerfUprobe {
            for role in roles.iter().copied() {
                uprobe(&mut ebpf, role)?.load().map_err(|e| refused(role.program())(&chain(&e)))?;
            }
        }
        let mut take = |name: &str| ebpf.take_map(name).ok_or_else(|| refused("the object lacks a table")(&name));
        let table = |error: MapError| refused("opening a table")(&chain(&error));
        let ring = RingBuf::try_from(take("RECORDS")?).map_err(table)?;
        let conns = HashMap::try_from(take("CONNS")?).map_err(table)?;
        let processes = HashMap::try_from(take("PROCESSES")?).map_err(table)?;
        let counters = PerCpuArray::try_from(take("COUNTERS")?).map_err(table)?;
        let senseless = Array::try_from(take("SENSELESS")?).map_err(table)?;
        let mut settings: Array<MapData, Abi<Config>> = Array::try_from(take("CONFIG")?).map_err(table)?;

        let mut config = options.config;
        let sockets = match options.programs {
            Programs::Hook => Err("not asked for".to_owned()),
            Programs::Tls => std::fs::read(btf::VMLINUX)
                .map_err(|e| format!("{}: {e}", btf::VMLINUX))
                .and_then(|data| btf::sock_offsets(&data).ok_or_else(|| "struct sock is not as expected".to_owned()))
                .map(|offsets| config.sock = offsets),
        };
        settings.set(0, Abi(config), 0).map_err(table)?;
        let sockets = sockets.and_then(|()| attach_sockets(&mut ebpf));
        Ok((Self { ebpf, multi, mechanism, conns, processes, counters, senseless, sockets }, ring))
    }

    /// How places are attached.
    pub const fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Whether endpoints can be learnt, or why not.
    pub fn sockets(&self) -> Result<(), &str> {
        self.sockets.as_ref().copied().map_err(String::as_str)
    }

    /// Attaches `role` at file offsets of `path`, each with its cookie, for all processes that map the file now or later.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn attach(&mut self, role: Role, path: &Path, places: &[(u64, u64)]) -> Result<Attachment, TapError> {
        let what = format!("{} at {}", role.program(), path.display());
        if let Some((_, program)) = self.multi.iter().find(|(r, _)| *r == role) {
            let link = sys::attach_uprobe_multi(program.as_fd(), path, role.at_return(), places);
            return link.map(Attachment::Multi).map_err(|e| refused(&what)(&e));
        }
        let program = uprobe(&mut self.ebpf, role)?;
        let mut links = Vec::new();
        for (offset, cookie) in places {
            let point = UProbeAttachPoint { location: UProbeAttachLocation::AbsoluteOffset(*offset), cookie: Some(*cookie) };
            let link = program.attach(point, path, UProbeScope::AllProcesses).and_then(|id| program.take_link(id));
            links.push(link.map_err(|e| refused(&what)(&chain(&e)))?);
        }
        Ok(Attachment::Perf(links))
    }

    /// Tells the kernel to copy no more of a connection. Nothing happens when it is gone or is another one by now. (Between the
    /// look and the write a successor at the same address could be muted: two system calls, against a free and a new.)
    pub fn mute(&mut self, key: ConnKey, generation: u64) {
        const BPF_EXIST: u64 = 2;
        if let Ok(Abi(mut conn)) = self.conns.get(&Abi(key), 0)
            && conn.generation == generation
        {
            conn.flags |= flag::MUTED;
            let _ = self.conns.insert(Abi(key), Abi(conn), BPF_EXIST);
        }
    }

    /// What the kernel knows of a connection.
    pub fn conn(&self, key: ConnKey) -> Option<Conn> {
        self.conns.get(&Abi(key), 0).ok().map(|Abi(conn)| conn)
    }

    /// Every connection in the kernel's table.
    pub fn conn_keys(&self) -> Vec<ConnKey> {
        self.conns.keys().filter_map(Result::ok).map(|Abi(key)| key).collect()
    }

    /// Forgets a connection (of a process that is gone).
    pub fn forget(&mut self, key: ConnKey) {
        let _ = self.conns.remove(&Abi(key));
    }

    /// Lists a process, see `Config::filter`.
    pub fn list(&mut self, tgid: u32) {
        let _ = self.processes.insert(tgid, 1, 0);
    }

    /// Takes a process off the list.
    pub fn unlist(&mut self, tgid: u32) {
        let _ = self.processes.remove(&tgid);
    }

    /// The kernel's counters, all CPUs together.
    pub fn counters(&self) -> Counters {
        let mut sum = [0u64; Counters::FIELDS];
        if let Ok(per_cpu) = self.counters.get(&0, 0) {
            for cpu in per_cpu.iter() {
                for (total, one) in sum.iter_mut().zip(cpu) {
                    *total += one;
                }
            }
        }
        Counters::from_fields(sum)
    }

    /// How many results of one place made no sense.
    pub fn senseless(&self, site: u32) -> u64 {
        self.senseless.get(&site, 0).unwrap_or(0)
    }
}

fn uprobe(ebpf: &mut Ebpf, role: Role) -> Result<&mut UProbe, TapError> {
    match ebpf.program_mut(role.program()) {
        Some(Program::UProbe(program)) => Ok(program),
        _ => Err(refused("the object lacks a program")(&role.program())),
    }
}

/// The tracepoints inside socket calls (Linux 6.3 and later).
fn attach_sockets(ebpf: &mut Ebpf) -> Result<(), String> {
    let btf = Btf::from_sys_fs().map_err(|e| chain(&e))?;
    for name in ["sock_send_length", "sock_recv_length"] {
        let Some(Program::BtfTracePoint(program)) = ebpf.program_mut(name) else { return Err(format!("the object lacks {name}")) };
        let attached = |program: &mut BtfTracePoint| {
            program.load(name, &btf)?;
            program.attach()
        };
        attached(program).map_err(|e| format!("tracepoint {name}: {}", chain(&e)))?;
    }
    Ok(())
}

/// Loads the uprobe programs with the attach type that `uprobe_multi` wants.
fn load_multi(ebpf: &Ebpf, roles: &[Role]) -> Result<Vec<(Role, OwnedFd)>, TapError> {
    let mut object = aya_obj::Object::parse(OBJECT).map_err(|e| refused("reading the object")(&chain(&e)))?;
    let descriptors: Vec<(String, i32)> = ebpf
        .maps()
        .filter_map(|(name, map)| {
            let data = match map {
                aya::maps::Map::Array(d)
                | aya::maps::Map::HashMap(d)
                | aya::maps::Map::LruHashMap(d)
                | aya::maps::Map::PerCpuArray(d)
                | aya::maps::Map::RingBuf(d) => d,
                _ => return None,
            };
            Some((name.to_owned(), data.fd().as_fd().as_raw_fd()))
        })
        .collect();
    let text = object.functions.keys().map(|(section, _)| *section).collect();
    let maps = object.maps.clone();
    let by_name = descriptors.iter().filter_map(|(name, fd)| Some((name.as_str(), *fd, maps.get(name)?)));
    object.relocate_maps(by_name, &text).map_err(|e| refused("relocating tables")(&chain(&e)))?;
    object.relocate_calls(&text).map_err(|e| refused("relocating calls")(&chain(&e)))?;
    roles
        .iter()
        .copied()
        .map(|role| {
            let name = role.program();
            let function = object.programs.get(name).and_then(|p| object.functions.get(&p.function_key()));
            let function = function.ok_or_else(|| refused("the object lacks a program")(&name))?;
            let program = sys::load_uprobe_multi(name, &function.instructions).map_err(|e| refused(name)(&e))?;
            Ok((role, program))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_object_comes_from_these_sources() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../ebpf");
        let output = std::process::Command::new("sh").arg(format!("{root}/build.sh")).arg("--hash").output().expect("sh");
        let built_from = std::fs::read_to_string(format!("{root}/tokengauge.bpf.o.sources")).expect("hash file");
        assert_eq!(String::from_utf8_lossy(&output.stdout), built_from, "ebpf/tokengauge.bpf.o is stale: run `make ebpf`");
    }

    /// The objects of all architectures.
    const OBJECTS: [(&str, &[u8]); 2] = [
        ("x86_64", include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../ebpf/tokengauge.bpf.o"))),
        ("aarch64", include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../ebpf/tokengauge.bpf.aarch64.o"))),
    ];

    #[test]
    fn tables_of_each_object_hold_our_structures() {
        use tokengauge_ebpf_common::{Call, OuterKey};
        let want = [
            ("CONNS", size_of::<ConnKey>(), size_of::<Conn>()),
            ("CALLS", 8, size_of::<Call>()),
            ("OUTER", size_of::<OuterKey>(), size_of::<Call>()),
            ("PROCESSES", 4, 1),
            ("CONFIG", 4, size_of::<Config>()),
            ("COUNTERS", 4, size_of::<Counters>()),
            ("SENSELESS", 4, 8),
        ];
        for (arch, bytes) in OBJECTS {
            let object = aya_obj::Object::parse(bytes).expect("object");
            for (name, key, value) in want {
                let map = object.maps.get(name).expect(name);
                assert_eq!((map.key_size() as usize, map.value_size() as usize), (key, value), "{arch}: {name}");
            }
            for role in Role::TLS.iter().chain(Role::HOOK) {
                assert!(object.programs.contains_key(role.program()), "{arch}: {role:?}");
            }
        }
    }

    #[test]
    fn each_object_reads_the_registers_of_its_architecture() {
        // Where the stack pointer stands in what the kernel saves: `struct pt_regs` of x86-64, `struct user_pt_regs` of arm64. It is
        // read by a 64-bit load, opcode 0x79, with that offset.
        let offset = |arch: &str| if arch == "x86_64" { 152 } else { 248 };
        for (arch, bytes) in OBJECTS {
            let object = aya_obj::Object::parse(bytes).expect("object");
            let function = object.functions.get(&object.programs["ssl_enter"].function_key()).expect("ssl_enter");
            let loads: Vec<i16> = function.instructions.iter().filter(|i| i.code == 0x79).map(|i| i.off).collect();
            for (other, _) in OBJECTS {
                assert_eq!(loads.contains(&offset(other)), arch == other, "{arch}: {loads:?}");
            }
        }
    }

    #[test]
    fn the_object_has_every_program_and_no_data_section() {
        let object = aya_obj::Object::parse(OBJECT).expect("object");
        for role in Role::TLS.iter().chain(Role::HOOK) {
            assert!(object.programs.contains_key(role.program()), "{role:?}");
        }
        // Data sections would become tables that `load_multi` does not know.
        assert!(object.maps.keys().all(|name| !name.starts_with('.')), "{:?}", object.maps.keys());
    }
}
