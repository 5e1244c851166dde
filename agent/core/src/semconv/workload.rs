//! Names of what is known of the two ends in Kubernetes. The observed end (`tokengauge.vantage` says which it is) has the names that the conventions give to
//! resources (docs/resource/k8s.md, container.md); the conventions have none for the other end, so it has the same names behind `tokengauge.peer.`.

/// Namespace of the observed pod.
pub const NAMESPACE: &str = "k8s.namespace.name";
/// Name of the observed pod.
pub const POD: &str = "k8s.pod.name";
/// Its uid: what the Collector's `k8s_attributes` associates by.
pub const POD_UID: &str = "k8s.pod.uid";
/// Its address: the same.
pub const POD_IP: &str = "k8s.pod.ip";
/// The node that it runs on.
pub const NODE: &str = "k8s.node.name";
/// Name of the observed container in its pod.
pub const CONTAINER: &str = "k8s.container.name";
/// Its id.
pub const CONTAINER_ID: &str = "container.id";
/// The service whose cluster address was asked, where no pod is known.
pub const SERVICE: &str = "k8s.service.name";
/// The Deployment that owns the observed pod; the next five likewise.
pub const DEPLOYMENT: &str = "k8s.deployment.name";
/// The ReplicaSet.
pub const REPLICASET: &str = "k8s.replicaset.name";
/// The StatefulSet.
pub const STATEFULSET: &str = "k8s.statefulset.name";
/// The DaemonSet.
pub const DAEMONSET: &str = "k8s.daemonset.name";
/// The Job.
pub const JOB: &str = "k8s.job.name";
/// The CronJob.
pub const CRONJOB: &str = "k8s.cronjob.name";
/// Before the key of a label of the observed pod.
pub const LABEL_PREFIX: &str = "k8s.pod.label.";
/// Before the key of an annotation of the observed pod.
pub const ANNOTATION_PREFIX: &str = "k8s.pod.annotation.";
/// The kind of what owns the observed pod, as the Kubernetes API has it: `Deployment`, `LeaderWorkerSet`, …
pub const KIND: &str = "tokengauge.workload.kind";
/// Its name, whatever its kind: one name to group by.
pub const NAME: &str = "tokengauge.workload.name";
/// Namespace of the other end.
pub const PEER_NAMESPACE: &str = "tokengauge.peer.k8s.namespace.name";
/// Pod at the other end.
pub const PEER_POD: &str = "tokengauge.peer.k8s.pod.name";
/// Its uid.
pub const PEER_POD_UID: &str = "tokengauge.peer.k8s.pod.uid";
/// The node that it runs on.
pub const PEER_NODE: &str = "tokengauge.peer.k8s.node.name";
/// The service at the other end, where no pod is known.
pub const PEER_SERVICE: &str = "tokengauge.peer.k8s.service.name";
/// The kind of what owns the pod at the other end.
pub const PEER_KIND: &str = "tokengauge.peer.workload.kind";
/// Its name; the service's where no pod is known.
pub const PEER_NAME: &str = "tokengauge.peer.workload.name";
