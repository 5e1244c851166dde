//! The text of a `/proc/PID/cgroup`: whatever it says, ids have the form of ids, and more hierarchies never make it know less.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::workload::cgroup;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let found = cgroup::container(&text);
    let said = |c: &Option<tokengauge_core::workload::Container>| {
        c.as_ref().map_or(0, |c| usize::from(c.id.is_some()) + usize::from(c.pod_uid.is_some()))
    };
    if let Some(container) = &found {
        let id = container.id.as_ref().map_or("", |id| id.as_str());
        let uid = container.pod_uid.as_ref().map_or("", |uid| uid.as_str());
        assert!(matches!(id.len(), 0 | 39..=45 | 64) && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'), "{id}");
        assert!(matches!(uid.len(), 0 | 32 | 36) && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'), "{uid}");
        assert!(said(&found) > 0);
    }
    let more = format!("7:pids:/docker/{}\n{text}", "a".repeat(64));
    if more.len() <= cgroup::MAX_BYTES {
        assert!(said(&cgroup::container(&more)) >= said(&found).max(1));
    }
});
