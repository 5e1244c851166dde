//! Which container a process runs in, by `/proc/PID/cgroup`. The forms of its paths are the core's matter ([`cgroup`]).

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;

use tokengauge_core::workload::{Container, cgroup};

/// The container of a process; `None` for a process of the host, for one that is gone, and where `/proc` does not say.
pub fn container(pid: u32) -> Option<Arc<Container>> {
    let mut text = String::new();
    let file = File::open(format!("/proc/{pid}/cgroup")).ok()?;
    file.take(cgroup::MAX_BYTES as u64).read_to_string(&mut text).ok()?;
    cgroup::container(&text).map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_gone_has_none() {
        assert_eq!(container(u32::MAX), None);
        // This one: whatever it runs in, what is said of it is its cgroup's text.
        let text = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        assert_eq!(container(std::process::id()).as_deref(), cgroup::container(&text).as_ref());
    }
}
