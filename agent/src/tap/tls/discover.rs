//! Which files with TLS functions the processes of this machine have mapped.
//!
//! Probes belong to files (inodes), not to processes: one attachment serves every process that maps the file, now and later, so
//! only the *first* process with a new file matters. Processes are young then (a container has just started), which is why young
//! processes are looked at every time and old ones rarely. The libraries of the machine itself are attached before anyone maps
//! them. Containers' copies are reached through `/proc/PID/map_files`, or `/proc/PID/root`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustc_hash::{FxHashMap, FxHashSet};

/// A file, whatever its names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Device, as `stat` gives it.
    pub device: u64,
    /// Inode.
    pub inode: u64,
}

impl FileId {
    /// The file at a path.
    pub fn of(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|m| Self { device: m.dev(), inode: m.ino() })
    }
}

/// A file worth looking into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub id: FileId,
    /// How to open it from here.
    pub open: PathBuf,
    /// Its name where it is mapped, for people.
    pub shown: String,
    /// A process that maps it; `None` for the machine's own libraries.
    pub pid: Option<u32>,
}

/// A line of `/proc/PID/maps` that has code of a file.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    range: &'a str,
    device: &'a str,
    inode: u64,
    path: &'a str,
}

fn mappings(maps: &str) -> impl Iterator<Item = Mapping<'_>> {
    maps.lines().filter_map(|line| {
        // 7f…-7f… r-xp 00001000 fe:00 1234   /usr/lib/x (deleted)
        let mut fields = line.splitn(6, ' ');
        let range = fields.next()?;
        if fields.next()?.as_bytes().get(2) != Some(&b'x') {
            return None;
        }
        let device = fields.nth(1)?;
        let inode = fields.next()?.parse().ok().filter(|inode| *inode != 0)?;
        let path = fields.next()?.trim_start();
        path.starts_with('/').then_some(Mapping { range, device, inode, path })
    })
}

#[derive(Debug, Default)]
struct Seen {
    /// From `/proc/PID/stat`: tells a reused pid.
    started: u64,
    /// Scans since it was first seen.
    age: u32,
    /// Files of interest that it maps.
    files: BTreeSet<FileId>,
}

/// The processes as of the last scan.
#[derive(Debug, Default)]
pub struct Processes {
    seen: FxHashMap<u32, Seen>,
    /// What `maps` calls a file, to what it is: saves a `stat` for each line.
    known: FxHashMap<(String, u64), FileId>,
    scans: u32,
}

/// What a scan found.
#[derive(Debug, Default)]
pub struct Scan {
    /// Files that were not seen before.
    pub new: Vec<Candidate>,
    /// Processes that are gone, or whose pid is another's now.
    pub gone: Vec<u32>,
    /// Files of interest, and how many processes map each.
    pub mapped: BTreeMap<FileId, usize>,
}

/// Directories where a machine keeps its libraries.
const LIBRARIES: &[&str] =
    &["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64", "/lib", "/usr/local/lib"];

/// A process younger than this many scans is looked at in every scan.
const YOUNG: u32 = 10;

/// Older ones in one scan of this many.
const OLD_EVERY: u32 = 10;

impl Processes {
    /// The machine's own libraries with such names.
    pub fn system_libraries(&self, is_named: impl Fn(&str) -> bool) -> Vec<Candidate> {
        let mut found: BTreeMap<FileId, Candidate> = BTreeMap::new();
        for entry in LIBRARIES.iter().filter_map(|d| fs::read_dir(d).ok()).flatten().filter_map(Result::ok) {
            if entry.file_name().to_str().is_some_and(&is_named)
                && let Ok(open) = entry.path().canonicalize()
                && let Some(id) = FileId::of(&open)
            {
                let shown = open.display().to_string();
                found.entry(id).or_insert(Candidate { id, open, shown, pid: None });
            }
        }
        found.into_values().collect()
    }

    /// Looks at the processes. `is_named` knows libraries by file name; the main executable is a candidate under any name.
    /// `only` restricts the scan.
    pub fn scan(&mut self, is_named: impl Fn(&str) -> bool, only: &FxHashSet<u32>) -> Scan {
        self.scans = self.scans.wrapping_add(1);
        let mut scan = Scan::default();
        let mut present = FxHashSet::default();
        for pid in pids().filter(|pid| only.is_empty() || only.contains(pid)) {
            let Some(started) = start_time(pid) else { continue };
            present.insert(pid);
            let seen = self.seen.entry(pid).or_default();
            if seen.started != started {
                if seen.started != 0 {
                    scan.gone.push(pid);
                }
                *seen = Seen { started, ..Seen::default() };
            }
            seen.age = seen.age.saturating_add(1);
            if seen.age <= YOUNG || (self.scans.wrapping_add(pid)).is_multiple_of(OLD_EVERY) {
                seen.files = files(pid, &is_named, &mut self.known, &mut scan.new);
            }
            for file in &seen.files {
                *scan.mapped.entry(*file).or_default() += 1;
            }
        }
        self.seen.retain(|pid, _| {
            let stays = present.contains(pid);
            if !stays {
                scan.gone.push(*pid);
            }
            stays
        });
        if self.known.len() > 65_536 {
            self.known.clear(); // a bound, not a policy: it fills again from what is mapped
        }
        scan
    }

    /// Forgets what was said about a file, so that it is found anew when it is mapped again.
    pub fn forget(&mut self, id: FileId) {
        self.known.retain(|_, known| *known != id);
    }
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").ok().into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// When a process started, in clock ticks since boot: field 22 of `/proc/PID/stat`, behind the name in parentheses.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.get(stat.rfind(')')? + 2..)?.split(' ').nth(19)?.parse().ok()
}

/// A process's name as the kernel keeps it.
pub(crate) fn command(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end_matches('\n').to_owned())
}

/// The files of interest that a process maps; those never seen before go to `new`.
fn files(
    pid: u32,
    is_named: &impl Fn(&str) -> bool,
    known: &mut FxHashMap<(String, u64), FileId>,
    new: &mut Vec<Candidate>,
) -> BTreeSet<FileId> {
    let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) else { return BTreeSet::new() };
    let executable = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let mut files = BTreeSet::new();
    for mapping in mappings(&maps) {
        let clean = mapping.path.trim_end_matches(" (deleted)");
        let name = clean.rsplit('/').next().unwrap_or_default();
        if !is_named(name) && Path::new(mapping.path) != executable {
            continue;
        }
        // Inode numbers repeat between devices, and the device of an overlay is that of its mount.
        let key = (format!("{}{}", mapping.device, clean), mapping.inode);
        let id = match known.get(&key) {
            Some(known) => *known,
            None => {
                // Not known when the process is gone by now: the next one that maps the file is asked again.
                let Some(candidate) = candidate(pid, &mapping, clean) else { continue };
                let id = candidate.id;
                known.insert(key, id);
                if !new.iter().any(|n| n.id == id) {
                    new.push(candidate);
                }
                id
            }
        };
        files.insert(id);
    }
    files
}

/// How to open a mapped file: exactly the mapped inode if the kernel lets us, else by its path in the process's root.
fn candidate(pid: u32, mapping: &Mapping<'_>, clean: &str) -> Option<Candidate> {
    let exact = PathBuf::from(format!("/proc/{pid}/map_files/{}", mapping.range));
    let by_path = PathBuf::from(format!("/proc/{pid}/root{clean}"));
    let (open, id) = match FileId::of(&exact) {
        Some(id) => (exact, id),
        None => {
            let id = FileId::of(&by_path).filter(|id| id.inode == mapping.inode)?;
            (by_path, id)
        }
    };
    Some(Candidate { id, open, shown: clean.to_owned(), pid: Some(pid) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_lines_with_code_are_read() {
        let maps = "55d0-55d1 r--p 00000000 fe:00 77 /usr/bin/x\n\
                    7f00-7f10 r-xp 00001000 fe:00 1234                       /usr/lib/a b/libssl.so.3 (deleted)\n\
                    7f20-7f30 r-xp 00000000 00:00 0                          [vdso]\n\
                    7f40-7f50 r-xp 00000000 00:00 0 \n\
                    broken";
        let found: Vec<_> = mappings(maps).collect();
        assert_eq!(found, [Mapping { range: "7f00-7f10", device: "fe:00", inode: 1234, path: "/usr/lib/a b/libssl.so.3 (deleted)" }]);
    }

    #[test]
    fn this_process_is_found_by_its_executable() {
        let mut processes = Processes::default();
        let own = std::process::id();
        let only = FxHashSet::from_iter([own]);
        let scan = processes.scan(|_| false, &only);
        let exe = FileId::of(Path::new("/proc/self/exe")).expect("own executable");
        assert_eq!(scan.new.iter().map(|c| c.id).collect::<Vec<_>>(), [exe]);
        assert_eq!(scan.mapped.get(&exe), Some(&1));
        assert!(processes.scan(|_| false, &only).new.is_empty(), "found twice");
        processes.forget(exe);
        assert_eq!(processes.scan(|_| false, &only).new.len(), 1);
    }
}
