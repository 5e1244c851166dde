//! What this process takes from its machine, from `/proc/self` (proc(5)): processor time, memory, descriptors, threads.

use std::path::Path;

/// What the process has taken so far and holds now. A figure that the system does not tell is `None`, never 0.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Process {
    /// Seconds of processor time in user mode.
    pub cpu_user_s: Option<f64>,
    /// Seconds of processor time in the kernel.
    pub cpu_system_s: Option<f64>,
    /// Bytes of memory that are resident.
    pub resident_bytes: Option<u64>,
    /// The most that were, bytes.
    pub peak_resident_bytes: Option<u64>,
    /// Bytes of address space.
    pub virtual_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_fds: Option<u64>,
    /// How many may be open.
    pub max_fds: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// Page faults that were served from memory.
    pub minor_faults: Option<u64>,
    /// Page faults that had to wait for a disk.
    pub major_faults: Option<u64>,
}

/// One thread of the process.
#[derive(Clone, PartialEq, Debug)]
pub struct Thread {
    /// Its name, such as `tap-0` or `export`.
    pub name: String,
    /// Seconds of processor time, user and system.
    pub cpu_s: f64,
}

/// USER_HZ: 100 on every architecture that Linux exports it on.
const HZ: f64 = 100.0;

/// Most threads that are looked at.
const MAX_THREADS: usize = 256;

impl Process {
    /// Reads what there is now. Some thirty microseconds: not on a hot path.
    pub fn now() -> Self {
        Self::read(Path::new("/proc/self"))
    }

    fn read(proc: &Path) -> Self {
        let text = |name: &str| std::fs::read_to_string(proc.join(name)).unwrap_or_default();
        let mut process = Self::parse(&text("stat"), &text("status"), &text("limits"));
        process.open_fds = std::fs::read_dir(proc.join("fd")).ok().map(|d| d.count() as u64);
        process
    }

    fn parse(stat: &str, status: &str, limits: &str) -> Self {
        let stat = fields(stat);
        let number = |n: usize| stat.get(n).and_then(|f| f.parse::<u64>().ok());
        let line = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok());
        let kib = |name: &str| line(name).map(|n| n * 1024);
        let max = limits.lines().find_map(|l| l.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok());
        Self {
            cpu_user_s: number(UTIME).map(|t| t as f64 / HZ),
            cpu_system_s: number(STIME).map(|t| t as f64 / HZ),
            resident_bytes: kib("VmRSS:"),
            peak_resident_bytes: kib("VmHWM:"),
            virtual_bytes: number(VSIZE),
            open_fds: None,
            max_fds: max,
            threads: number(THREADS),
            minor_faults: number(MINFLT),
            major_faults: number(MAJFLT),
        }
    }

    /// Seconds of processor time, user and system; 0 where the system tells none.
    pub fn cpu_s(&self) -> f64 {
        self.cpu_user_s.unwrap_or_default() + self.cpu_system_s.unwrap_or_default()
    }
}

/// What each name of a thread has cost. Threads of one name are added up, and a number at the end of a name that a runtime gave is no name of its own.
pub fn threads() -> Vec<Thread> {
    let mut all: Vec<Thread> = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten().take(MAX_THREADS) {
        let Ok(text) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let name = text.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')).map_or("", |(name, _)| name).to_owned();
        let stat = fields(&text);
        let ticks: u64 = [UTIME, STIME].iter().filter_map(|n| stat.get(*n)?.parse::<u64>().ok()).sum();
        let cpu_s = ticks as f64 / HZ;
        match all.iter_mut().find(|t| t.name == name) {
            Some(same) => same.cpu_s += cpu_s,
            None => all.push(Thread { name, cpu_s }),
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

// Fields of stat behind the command's name, from 0 (proc(5) counts from 1 and has two before).
const MINFLT: usize = 7;
const MAJFLT: usize = 9;
const UTIME: usize = 11;
const STIME: usize = 12;
const THREADS: usize = 17;
const VSIZE: usize = 20;

/// The command's name may hold anything, so fields count from its closing bracket.
fn fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_read() {
        let stat = "42 (a) b) c) S 1 42 42 0 -1 4194304 1234 0 5 0 250 75 0 0 20 0 9 0 100 104857600 2560 18446744073709551615";
        let status = "Name:\ta\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\n";
        let limits = "Limit   Soft Limit  Hard Limit Units\nMax open files            1024                 524288               files\n";
        let want = Process {
            cpu_user_s: Some(2.5),
            cpu_system_s: Some(0.75),
            resident_bytes: Some(10 << 20),
            peak_resident_bytes: Some(20 << 20),
            virtual_bytes: Some(100 << 20),
            open_fds: None,
            max_fds: Some(1024),
            threads: Some(9),
            minor_faults: Some(1234),
            major_faults: Some(5),
        };
        assert_eq!(Process::parse(stat, status, limits), want);
        assert_eq!(Process::parse("", "", ""), Process::default(), "what is not told is not 0");
    }

    #[test]
    fn this_process_holds_something() {
        let before = Process::now();
        assert!(before.resident_bytes > Some(1 << 20) && before.open_fds >= Some(3) && before.threads >= Some(1), "{before:?}");
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        assert!(Process::now().open_fds >= Some(4));
        drop(file);
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("a-thread".into()).spawn(move || stopped.recv()).unwrap();
        // A thread has its name a moment after it begins.
        let found = (0..1000).any(|_| {
            std::thread::yield_now();
            threads().iter().any(|t| t.name == "a-thread")
        });
        assert!(found);
        drop(stop);
        let _ = thread.join();
    }
}
