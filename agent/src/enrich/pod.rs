//! What is read of a pod's object, and what is kept of it. Everything else of the object is skipped while it is parsed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;
use tokengauge_core::name::Name;
use tokengauge_core::workload::{Kind, MAX_LABELS, Owner, Workload};

/// The part of `v1.Pod` (and of `v1.Service`) that is read. A bookmark has nothing but the version.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub struct Object {
    /// `metadata`.
    pub metadata: Metadata,
    /// `spec`.
    pub spec: Spec,
    /// `status`.
    pub status: Status,
}

/// `metadata`.
#[derive(Deserialize, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// The object's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its uid.
    pub uid: String,
    /// Where a watch goes on behind this object.
    pub resource_version: String,
    creation_timestamp: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    owner_references: Vec<OwnerReference>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct OwnerReference {
    kind: String,
    name: String,
    uid: String,
    controller: bool,
}

/// `spec`.
#[derive(Deserialize, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    /// The node that the pod was given.
    pub node_name: String,
    host_network: bool,
}

/// `status`.
#[derive(Deserialize, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    phase: String,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodIp>,
    init_container_statuses: Vec<ContainerStatus>,
    container_statuses: Vec<ContainerStatus>,
    ephemeral_container_statuses: Vec<ContainerStatus>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct PodIp {
    ip: String,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatus {
    name: String,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    last_state: LastState,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct LastState {
    terminated: Option<Terminated>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct Terminated {
    #[serde(rename = "containerID")]
    container_id: Option<String>,
}

/// What is kept of every pod.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Keep {
    /// Keys of the labels that are kept.
    pub labels: Vec<String>,
    /// Keys of the annotations that are kept.
    pub annotations: Vec<String>,
    /// The agent's own node: containers are kept of its pods only, since no others' processes are seen.
    pub node: Option<String>,
}

/// Annotation of the object that stands for a static pod: the uid that its cgroup has.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Label of a pod of a Deployment: what stands behind the Deployment's name in its ReplicaSet's.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// A pod, as it is kept.
#[derive(Clone, PartialEq, Debug)]
pub struct Pod {
    /// Its uid.
    pub uid: Name,
    /// The uid in its cgroup, where that is another: a static pod's.
    pub mirrors: Option<Name>,
    /// Its addresses; none on the host's network (they are the node's) and when it has ended (they may be another's by now).
    pub ips: Vec<IpAddr>,
    /// Whether it shares its node's network.
    pub host_network: bool,
    /// Who it is.
    pub workload: Arc<Workload>,
    /// The same for each of its containers, by id, the last run of a restarted one included.
    pub containers: Vec<(Name, Arc<Workload>)>,
    /// What owns its owner is known by nobody but the API.
    pub above: Option<Above>,
}

/// An owner that may have an owner itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Above {
    /// `ReplicaSet` or `Job`.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: Name,
    /// Its name.
    pub name: Name,
    /// Its uid.
    pub uid: Name,
}

impl Pod {
    /// What is kept of the object; `None` when it has no uid or no name.
    pub fn new(object: &Object, keep: &Keep) -> Option<Self> {
        let Object { metadata, spec, status } = object;
        let (uid, name) = (Name::new(&metadata.uid)?, Name::new(&metadata.name)?);
        let ended = matches!(status.phase.as_str(), "Succeeded" | "Failed");
        let mut ips: Vec<IpAddr> = status.pod_ips.iter().map(|p| &p.ip).chain(&status.pod_ip).filter_map(|ip| ip.parse().ok()).collect();
        ips.dedup();
        let pod_ip = ips.first().copied();
        if spec.host_network || ended {
            ips.clear();
        }
        let (owner, above) = owner(metadata, &name);
        let workload = Workload {
            namespace: Name::new(&metadata.namespace),
            owner: Some(owner),
            pod: Some(name),
            pod_uid: Some(uid.clone()),
            pod_ip,
            node: Name::new(&spec.node_name),
            labels: kept(&metadata.labels, &keep.labels),
            annotations: kept(&metadata.annotations, &keep.annotations),
            ..Workload::default()
        };
        let here = keep.node.as_ref().is_none_or(|node| *node == spec.node_name);
        let containers = if here { containers(status, &workload) } else { Vec::new() };
        Some(Self {
            mirrors: metadata.annotations.get(MIRROR).and_then(|hash| Name::new(hash)).filter(|hash| *hash != uid),
            uid,
            ips,
            host_network: spec.host_network,
            workload: Arc::new(workload),
            containers,
            above,
        })
    }

    /// The same pod with what the API says of its owner's owner; `None`: there is none, the owner is its own.
    pub fn owned_by(&self, top: Option<&Owner>) -> Self {
        let with = |w: &Arc<Workload>| match top {
            Some(top) => Arc::new(Workload { owner: Some(top.clone()), ..(**w).clone() }),
            None => Arc::clone(w),
        };
        Self {
            workload: with(&self.workload),
            containers: self.containers.iter().map(|(id, w)| (id.clone(), with(w))).collect(),
            above: None,
            ..self.clone()
        }
    }
}

/// The controller among the owners of an object: the one that made it.
pub fn controller(metadata: &Metadata) -> Option<Owner> {
    let owner = metadata.owner_references.iter().find(|o| o.controller)?;
    Some(Owner { kind: Kind::new(&owner.kind)?, name: Name::new(&owner.name)? })
}

/// What owns the pod in the end, as far as the pod itself says it, and whom to ask for the rest.
///
/// A Deployment's ReplicaSet is called as the Deployment, with the hash of the pod's template behind it, and the hash is a label of the pod. A CronJob's Job is
/// called as the CronJob, with the minute it was due behind it (since 1.21), and pods are made about then. Neither can be so by chance.
fn owner(metadata: &Metadata, pod: &Name) -> (Owner, Option<Above>) {
    let own = || Owner { kind: Kind::Pod, name: pod.clone() };
    let reference = metadata.owner_references.iter().find(|o| o.controller);
    // The node that "owns" the object of a static pod runs it, nothing more.
    let Some(reference) = reference.filter(|o| o.kind != "Node") else { return (own(), None) };
    let Some(owner) = controller(metadata) else { return (own(), None) };
    let by_rule = match owner.kind {
        Kind::ReplicaSet => metadata
            .labels
            .get(TEMPLATE_HASH)
            .and_then(|hash| owner.name.as_str().strip_suffix(hash.as_str())?.strip_suffix('-'))
            .and_then(|name| Some(Owner { kind: Kind::Deployment, name: Name::new(name)? })),
        Kind::Job => cron_job(owner.name.as_str(), metadata.creation_timestamp.as_deref()),
        _ => return (owner, None),
    };
    if let Some(top) = by_rule {
        return (top, None);
    }
    let above = Name::new(&metadata.namespace).zip(Name::new(&reference.uid));
    let above = above.map(|(namespace, uid)| Above { kind: owner.kind.clone(), namespace, name: owner.name.clone(), uid });
    (owner, above)
}

/// The CronJob of a Job called `name-MINUTE`, where that minute since 1970 is within a week of the pod's making.
fn cron_job(job: &str, created: Option<&str>) -> Option<Owner> {
    const WEEK: i64 = 7 * 24 * 60;
    let (name, minute) = job.rsplit_once('-')?;
    let minute: i64 = minute.parse().ok()?;
    let created = created?.parse::<jiff::Timestamp>().ok()?.as_second() / 60;
    ((minute - created).abs() <= WEEK).then_some(Owner { kind: Kind::CronJob, name: Name::new(name)? })
}

/// The values of the keys that are wanted, in their order.
fn kept(all: &BTreeMap<String, String>, wanted: &[String]) -> Vec<(Name, Name)> {
    let values = wanted.iter().filter_map(|key| Some((Name::new(key)?, Name::new(all.get(key)?)?)));
    values.take(MAX_LABELS).collect()
}

/// The containers that have an id: `containerd://…`, `cri-o://…`.
fn containers(status: &Status, pod: &Workload) -> Vec<(Name, Arc<Workload>)> {
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).chain(&status.ephemeral_container_statuses);
    let ids = all.flat_map(|c| {
        let before = c.last_state.terminated.as_ref().and_then(|t| t.container_id.as_deref());
        c.container_id.as_deref().into_iter().chain(before).map(move |id| (id, c.name.as_str()))
    });
    ids.filter_map(|(id, name)| {
        let id = Name::new(id.rsplit_once("://").map_or(id, |(_, id)| id))?;
        Some((id.clone(), Arc::new(Workload { container: Name::new(name), container_id: Some(id), ..pod.clone() })))
    })
    .collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A pod of a Deployment, as the API server gives it, with much that is not read.
    pub fn of_deployment(name: &str, uid: &str, ip: &str) -> Value {
        json!({
            "metadata": {
                "name": name, "namespace": "models", "uid": uid, "resourceVersion": "12", "creationTimestamp": "2026-11-22T05:00:00Z",
                "labels": {"app": "chat", "pod-template-hash": "5d4f8c7b9"}, "annotations": {"team": "llm"},
                "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
                "ownerReferences": [
                    {"apiVersion": "x/v1", "kind": "Other", "name": "o", "uid": "1"},
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "chat-5d4f8c7b9", "uid": "rs-1", "controller": true, "blockOwnerDeletion": true}
                ]
            },
            "spec": {"nodeName": "n1", "containers": [{"name": "vllm", "image": "x"}], "tolerations": []},
            "status": {
                "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}, {"ip": "fd00::7"}],
                "containerStatuses": [{"name": "vllm", "containerID": format!("containerd://{uid}-c1"), "lastState": {"terminated": {"containerID": format!("containerd://{uid}-c0"), "exitCode": 1}}}],
                "initContainerStatuses": [{"name": "load", "containerID": format!("containerd://{uid}-i"), "lastState": {}}]
            }
        })
    }

    fn pod(value: &Value) -> Pod {
        let keep = Keep { labels: vec!["app".into(), "none".into()], annotations: vec!["team".into()], node: Some("n1".into()) };
        Pod::new(&serde_json::from_value(value.clone()).unwrap(), &keep).unwrap()
    }

    fn top(value: &Value) -> (String, Option<String>) {
        let pod = pod(value);
        let owner = pod.workload.owner.clone().unwrap();
        (format!("{} {}", owner.kind.as_str(), owner.name), pod.above.map(|a| format!("{} {} {}", a.kind.as_str(), a.namespace, a.name)))
    }

    #[test]
    fn a_pod_is_read() {
        let pod = pod(&of_deployment("chat-5d4f8c7b9-x2x4z", "u1", "10.1.0.7"));
        let w = &pod.workload;
        let texts = [&w.namespace, &w.pod, &w.pod_uid, &w.node, &w.container].map(|n| n.as_ref().map(|n| n.as_str().to_owned()));
        assert_eq!(texts, [Some("models"), Some("chat-5d4f8c7b9-x2x4z"), Some("u1"), Some("n1"), None].map(|t| t.map(str::to_owned)));
        assert_eq!(w.owner.as_ref().unwrap().kind, Kind::Deployment);
        assert_eq!((w.name().unwrap().as_str(), w.pod_ip), ("chat", "10.1.0.7".parse().ok()));
        assert_eq!(pod.ips, ["10.1.0.7".parse::<IpAddr>().unwrap(), "fd00::7".parse().unwrap()]);
        let containers: Vec<_> = pod.containers.iter().map(|(id, w)| (id.as_str(), w.container.as_ref().unwrap().as_str())).collect();
        assert_eq!(containers, [("u1-c1", "vllm"), ("u1-c0", "vllm"), ("u1-i", "load")]);
        let pairs: Vec<_> = w.labels.iter().chain(&w.annotations).map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(pairs, [("app", "chat"), ("team", "llm")]);
    }

    #[test]
    fn what_owns_a_pod_in_the_end() {
        let owned = |kind: &str, name: &str, labels: Value| {
            let mut pod = of_deployment("p", "u1", "10.1.0.7");
            pod["metadata"]["labels"] = labels;
            pod["metadata"]["ownerReferences"] = json!([{"kind": kind, "name": name, "uid": "o1", "controller": true}]);
            top(&pod)
        };
        let is = |text: &str| (text.to_owned(), None);
        let asks = |text: &str, above: &str| (text.to_owned(), Some(above.to_owned()));
        assert_eq!(owned("ReplicaSet", "a-b-5d4f", json!({"pod-template-hash": "5d4f"})), is("Deployment a-b"));
        // A ReplicaSet that people made, one whose name says something else, and one of a Rollout.
        assert_eq!(owned("ReplicaSet", "mine", json!({})), asks("ReplicaSet mine", "ReplicaSet models mine"));
        assert_eq!(owned("ReplicaSet", "mine", json!({"pod-template-hash": "mine"})), asks("ReplicaSet mine", "ReplicaSet models mine"));
        assert_eq!(
            owned("ReplicaSet", "r-77", json!({"rollouts-pod-template-hash": "77"})),
            asks("ReplicaSet r-77", "ReplicaSet models r-77")
        );
        // 2026-11-22T05:00:00Z is minute 29922540.
        assert_eq!(owned("Job", "nightly-29922540", json!({})), is("CronJob nightly"));
        assert_eq!(owned("Job", "batch-7", json!({})), asks("Job batch-7", "Job models batch-7"));
        assert_eq!(owned("Job", "batch-19922540", json!({})), asks("Job batch-19922540", "Job models batch-19922540"));
        assert_eq!(owned("StatefulSet", "db", json!({})), is("StatefulSet db"));
        assert_eq!(owned("RayCluster", "ray", json!({})), is("RayCluster ray"));
        assert_eq!(owned("Node", "n1", json!({})), is("Pod p"));
        let mut alone = of_deployment("p", "u1", "10.1.0.7");
        alone["metadata"]["ownerReferences"] = json!([{"kind": "X", "name": "x", "uid": "x"}]);
        assert_eq!(top(&alone), is("Pod p"));
    }

    #[test]
    fn an_answer_of_the_api_replaces_the_owner() {
        let mut value = of_deployment("p", "u1", "10.1.0.7");
        value["metadata"]["labels"] = json!({});
        let asked = pod(&value);
        let rollout = Owner { kind: Kind::new("Rollout").unwrap(), name: Name::new("chat").unwrap() };
        let told = asked.owned_by(Some(&rollout));
        assert!(told.above.is_none() && told.containers.iter().all(|(_, w)| w.owner.as_ref() == Some(&rollout)));
        assert_eq!(asked.owned_by(None).workload.owner, asked.workload.owner);
    }

    #[test]
    fn addresses_of_hosts_and_of_ended_pods_are_not_theirs() {
        let mut host = of_deployment("p", "u1", "10.0.0.1");
        host["spec"]["hostNetwork"] = json!(true);
        let host = pod(&host);
        assert!(host.ips.is_empty() && host.host_network && host.workload.pod_ip.is_some());
        let mut ended = of_deployment("p", "u1", "10.1.0.7");
        ended["status"]["phase"] = json!("Succeeded");
        assert!(pod(&ended).ips.is_empty());
    }

    #[test]
    fn containers_of_other_nodes_are_not_kept() {
        let mut far = of_deployment("p", "u1", "10.1.0.7");
        far["spec"]["nodeName"] = json!("n2");
        assert!(pod(&far).containers.is_empty());
    }

    #[test]
    fn a_static_pod_has_two_uids() {
        let mut mirror = of_deployment("etcd-n1", "u1", "10.0.0.1");
        mirror["metadata"]["annotations"][MIRROR] = json!("0123456789abcdef0123456789abcdef");
        assert_eq!(pod(&mirror).mirrors.unwrap().as_str(), "0123456789abcdef0123456789abcdef");
    }

    #[test]
    fn what_is_no_pod_is_none() {
        for odd in [json!({}), json!({"metadata": {"name": "x"}}), json!({"metadata": {"uid": "x", "name": " "}})] {
            assert!(Pod::new(&serde_json::from_value(odd).unwrap(), &Keep::default()).is_none());
        }
    }
}
