//! `/proc/PID/cgroup` read as a container's and a pod's identity (cgroups(7): one line a hierarchy, `ID:CONTROLLERS:PATH`).
//!
//! The path's form is the choice of whoever made the group: the kubelet with one of two drivers, under it one of three runtimes.
//!
//! | who | a path |
//! |---|---|
//! | kubelet, cgroupfs driver | `/kubepods/burstable/pod<uid>/<id>`, with CRI-O `…/crio-<id>` |
//! | kubelet, systemd driver | `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid, - as _>.slice/cri-containerd-<id>.scope`, `crio-…`, `docker-…` |
//! | containerd given a systemd path without the driver | `/system.slice/containerd.service/kubepods-burstable-pod<uid>.slice:cri-containerd:<id>` |
//! | Docker, Podman without Kubernetes | `/docker/<id>`, `/system.slice/docker-<id>.scope`, `/machine.slice/libpod-<id>.scope` |
//!
//! In a cgroup namespace the path is relative (`/../../kubepods-…`) and may lack the pod. A static pod's uid is a hash without dashes. Groups
//! that a container makes for itself lie below and do not matter: the first container behind the pod counts; a pod inside a pod's container (a
//! cluster in a container) is the innermost.

use super::Container;
use crate::name::Name;

/// Most bytes of the file that are read: 16 hierarchies of paths that are longer than any of the forms above.
pub const MAX_BYTES: usize = 16 * 1024;

/// Before the id in a systemd scope or a CRI-O group.
const RUNTIMES: [&str; 6] = ["cri-containerd-", "crio-", "docker-", "libpod-", "containerd-", "nerdctl-"];

/// The container that the file's text tells of; `None` where there is none: a process of the host.
///
/// The hierarchies of version 1 mostly agree. Where one says more than another (some have only the pod), the one that says most counts.
pub fn container(text: &str) -> Option<Container> {
    let text = text.get(..MAX_BYTES).unwrap_or(text);
    let mut best: Option<Container> = None;
    for path in text.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
        let Some(found) = of_path(path) else { continue };
        let said = |c: &Container| usize::from(c.id.is_some()) + usize::from(c.pod_uid.is_some());
        if best.as_ref().is_none_or(|b| said(b) < said(&found)) {
            best = Some(found);
        }
    }
    best
}

/// The container that one path tells of.
fn of_path(path: &str) -> Option<Container> {
    let (mut uid, mut id) = (None, None);
    for segment in path.split('/') {
        // `kubepods-burstable-pod<uid>.slice:cri-containerd:<id>` is a pod and a container in one.
        let (pod, rest) = segment.split_once(".slice:").map_or((segment, None), |(pod, rest)| (pod, Some(rest)));
        if let Some(found) = pod_uid(pod) {
            (uid, id) = (Some(found), None);
        }
        if id.is_none() {
            id = container_id(rest.and_then(|r| r.rsplit_once(':')).map_or(segment, |(_, id)| id));
        }
    }
    (uid.is_some() || id.is_some()).then_some(Container { id, pod_uid: uid })
}

/// The uid in a pod's segment: `pod<uid>`, `kubepods-besteffort-pod<uid with _>.slice`.
fn pod_uid(segment: &str) -> Option<Name> {
    let segment = segment.strip_suffix(".slice").unwrap_or(segment);
    let uid = match segment.strip_prefix("pod") {
        Some(uid) => uid,
        None if segment.contains("kubepods") => segment.rsplit_once("-pod")?.1,
        None => return None,
    };
    let shape = |groups: &mut dyn Iterator<Item = &str>| groups.map(str::len).eq([8, 4, 4, 4, 12]);
    let hexadecimal = uid.bytes().all(|b| b.is_ascii_hexdigit() || matches!(b, b'-' | b'_'));
    let plain = uid.len() == 32 && !uid.contains(['-', '_']);
    if !hexadecimal || !(plain || shape(&mut uid.split('-')) || shape(&mut uid.split('_'))) {
        return None;
    }
    Name::new(&uid.replace('_', "-"))
}

/// The id in a container's segment: 64 hexadecimal digits, perhaps with the runtime before and `.scope` behind them. AWS Fargate's are 32 digits,
/// a dash and a number.
fn container_id(segment: &str) -> Option<Name> {
    let segment = segment.strip_suffix(".scope").unwrap_or(segment);
    let id = RUNTIMES.iter().find_map(|runtime| segment.strip_prefix(runtime)).unwrap_or(segment);
    let hexadecimal = |text: &str, len: usize| text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit());
    let fargate = || {
        id.split_once('-').is_some_and(|(task, number)| {
            hexadecimal(task, 32) && (6..=12).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit())
        })
    };
    if hexadecimal(id, 64) || fargate() { Name::new(id) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "2c48913c-b29f-11e7-9350-020968147796";

    fn check(text: &str, uid: Option<&str>, id: Option<&str>) {
        let got = container(text);
        let want = (uid.is_some() || id.is_some()).then(|| Container { id: id.and_then(Name::new), pod_uid: uid.and_then(Name::new) });
        assert_eq!(got, want, "{text}");
    }

    #[test]
    fn every_form_of_path() {
        let below = UID.replace('-', "_");
        let (uid, id) = (Some(UID), Some(ID));
        for (path, uid, id) in [
            // cgroupfs driver: containerd and Docker; CRI-O; a guaranteed pod; kind's prefix; a root of its own (--cgroup-root)
            (format!("/kubepods/burstable/pod{UID}/{ID}"), uid, id),
            (format!("/kubepods/besteffort/pod{UID}/crio-{ID}"), uid, id),
            (format!("/kubepods/pod{UID}/{ID}"), uid, id),
            (format!("/docker/{}/kubelet/kubepods/burstable/pod{UID}/{ID}", "f".repeat(64)), uid, id),
            (format!("/k8stest/kubepods/besteffort/pod{UID}/{ID}"), uid, id),
            // systemd driver
            (format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{below}.slice/cri-containerd-{ID}.scope"), uid, id),
            (format!("/kubepods.slice/kubepods-pod{below}.slice/crio-{ID}.scope"), uid, id),
            (format!("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{below}.slice/docker-{ID}.scope"), uid, id),
            (
                format!(
                    "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{below}.slice/cri-containerd-{ID}.scope"
                ),
                uid,
                id,
            ),
            // containerd without the systemd driver, given systemd's path
            (format!("/system.slice/containerd.service/kubepods-burstable-pod{below}.slice:cri-containerd:{ID}"), uid, id),
            (format!("/kubepods-burstable-pod{below}.slice:cri-containerd:{ID}"), uid, id),
            // seen from a cgroup namespace: of another pod, of another container of the agent's own pod
            (format!("/../../kubepods-besteffort-pod{below}.slice/cri-containerd-{ID}.scope"), uid, id),
            (format!("/../../../burstable/pod{UID}/{ID}"), uid, id),
            (format!("/../cri-containerd-{ID}.scope"), None, id),
            // groups of a container's own, and a container engine in a container
            (format!("/kubepods/burstable/pod{UID}/{ID}/init"), uid, id),
            (format!("/kubepods.slice/kubepods-pod{below}.slice/cri-containerd-{ID}.scope/system.slice/app.service"), uid, id),
            (format!("/kubepods/burstable/pod{UID}/{ID}/docker/{}", "e".repeat(64)), uid, id),
            // a static pod
            ("/kubepods/burstable/pod0123456789abcdef0123456789abcdef".into(), Some("0123456789abcdef0123456789abcdef"), None),
            // without Kubernetes
            (format!("/docker/{ID}"), None, id),
            (format!("/system.slice/docker-{ID}.scope"), None, id),
            (format!("/machine.slice/libpod-{ID}.scope/container"), None, id),
            (format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope"), None, id),
            (
                "/ecs/0123456789abcdef0123456789abcdef/0123456789abcdef0123456789abcdef-1234567890".into(),
                None,
                Some("0123456789abcdef0123456789abcdef-1234567890"),
            ),
            // no container: the monitor of CRI-O, services, sessions, what only looks like one
            (format!("/system.slice/crio-conmon-{ID}.scope"), None, None),
            ("/system.slice/kubelet.service".into(), None, None),
            ("/user.slice/user-0.slice/session-1.scope".into(), None, None),
            ("/".into(), None, None),
            ("/podium/pod".into(), None, None),
            ("/kubepods/burstable/podx48913c-b29f-11e7-9350-020968147796".into(), None, None),
            ("/kubepods-burstable.slice".into(), None, None),
            (format!("/docker/{}", &ID[1..]), None, None),
        ] {
            check(&format!("0::{path}\n"), uid, id);
            check(&format!("12:cpu,cpuacct:/\n1:name=systemd:{path}\n"), uid, id);
        }
    }

    #[test]
    fn the_hierarchy_that_says_most_counts() {
        let text = format!(
            "13:misc:/\n12:pids:/kubepods/burstable/pod{UID}\n4:memory:/kubepods/burstable/pod{UID}/{ID}\n0::/docker/{}\n",
            "f".repeat(64)
        );
        check(&text, Some(UID), Some(ID));
        for nothing in ["", "\n\n", "0::", "x", "0:/docker", "::", "1:a:b:c"] {
            check(nothing, None, None);
        }
    }

    #[test]
    fn a_file_that_is_too_long_is_cut() {
        let long = format!("0::/{}\n", "x/".repeat(MAX_BYTES));
        check(&format!("{long}1:a:/docker/{ID}"), None, None);
        check(&"ä".repeat(MAX_BYTES), None, None);
    }
}
