//! Who an end of a connection is: plain data with bounded strings. Who finds it out is the agent's matter (`enrich`).
//!
//! An [`Inference`](crate::inference::Inference) carries two of them, `client_workload` and `server_workload`. That of the tapped process is found by its
//! cgroup, that of the far end by its address. Unknown is `None`: nothing is guessed from names.

use std::net::IpAddr;

use crate::name::Name;

pub mod cgroup;

/// Labels, or annotations, that are kept of one pod; more are left out.
pub const MAX_LABELS: usize = 16;

/// What a process's cgroup says of its container. Read once, when the process is first seen: it may be gone when its first record is finished.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Container {
    /// The container's id, as the runtime writes it (64 hexadecimal digits, mostly).
    pub id: Option<Name>,
    /// The uid of its pod.
    pub pod_uid: Option<Name>,
}

/// What one end of a connection is in Kubernetes, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Workload {
    /// The namespace of the pod (or service).
    pub namespace: Option<Name>,
    /// What owns the pod in the end: a Deployment rather than its ReplicaSet. A pod without owner is its own: [`Kind::Pod`].
    pub owner: Option<Owner>,
    /// The pod's name.
    pub pod: Option<Name>,
    /// The pod's uid.
    pub pod_uid: Option<Name>,
    /// The pod's address.
    pub pod_ip: Option<IpAddr>,
    /// The name of the node that it runs on.
    pub node: Option<Name>,
    /// The container's name in the pod.
    pub container: Option<Name>,
    /// The container's id.
    pub container_id: Option<Name>,
    /// The service whose cluster address this is: an end that is known by nothing else.
    pub service: Option<Name>,
    /// The labels that the operator asked for, at most [`MAX_LABELS`].
    pub labels: Vec<(Name, Name)>,
    /// The annotations that the operator asked for, at most [`MAX_LABELS`].
    pub annotations: Vec<(Name, Name)>,
}

/// What owns a pod.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Owner {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
}

/// Kinds of workloads; the names are those of the Kubernetes API.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A Deployment.
    Deployment,
    /// A ReplicaSet without a Deployment.
    ReplicaSet,
    /// A StatefulSet.
    StatefulSet,
    /// A DaemonSet.
    DaemonSet,
    /// A Job without a CronJob.
    Job,
    /// A CronJob.
    CronJob,
    /// A pod that nothing owns.
    Pod,
    /// What others define: `LeaderWorkerSet`, `Rollout`, `RayCluster`, …
    Other(Name),
}

impl Kind {
    /// The kind of that name.
    pub fn new(name: &str) -> Option<Self> {
        Some(match name {
            "Deployment" => Self::Deployment,
            "ReplicaSet" => Self::ReplicaSet,
            "StatefulSet" => Self::StatefulSet,
            "DaemonSet" => Self::DaemonSet,
            "Job" => Self::Job,
            "CronJob" => Self::CronJob,
            "Pod" => Self::Pod,
            other => Self::Other(Name::new(other)?),
        })
    }

    /// Its name in the Kubernetes API.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Deployment => "Deployment",
            Self::ReplicaSet => "ReplicaSet",
            Self::StatefulSet => "StatefulSet",
            Self::DaemonSet => "DaemonSet",
            Self::Job => "Job",
            Self::CronJob => "CronJob",
            Self::Pod => "Pod",
            Self::Other(name) => name.as_str(),
        }
    }
}

impl Workload {
    /// The name by which people know it: its owner's, else its service's; `None` where only ids or a node are known.
    pub fn name(&self) -> Option<&Name> {
        self.owner.as_ref().map(|o| &o.name).or(self.service.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_the_api() {
        for name in ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod", "LeaderWorkerSet"] {
            assert_eq!(Kind::new(name).unwrap().as_str(), name);
        }
        assert_eq!(Kind::new(" "), None);
    }

    #[test]
    fn a_workload_is_called_by_its_owner_then_by_its_service() {
        let owner = Owner { kind: Kind::Deployment, name: Name::new("chat").unwrap() };
        let service = Name::new("chat-svc");
        assert_eq!(Workload::default().name(), None);
        assert_eq!(Workload { service: service.clone(), ..Workload::default() }.name(), service.as_ref());
        assert_eq!(Workload { owner: Some(owner), service, ..Workload::default() }.name().unwrap().as_str(), "chat");
    }
}
