//! Both ends of an inference as attributes: everything on a span, what the operator chose on a data point. The names stand in `semconv::workload`.

use std::borrow::Cow;

use super::{Kind, Workload};
use crate::inference::Inference;
use crate::name::Name;
use crate::semconv::workload as names;

/// What of the two ends may stand on data points. Each multiplies the number of series by its number of values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Dimension {
    /// Namespace of the observed end.
    Namespace,
    /// What owns the observed pod, by the name of its kind (`k8s.deployment.name`) and by one for all kinds.
    Workload,
    /// The observed pod. As many series as pods ever were.
    Pod,
    /// The observed container.
    Container,
    /// The node of the observed pod.
    Node,
    /// Namespace of the other end.
    PeerNamespace,
    /// What owns the pod at the other end, or the service that it is.
    PeerWorkload,
    /// The pod at the other end.
    PeerPod,
    /// The node at the other end.
    PeerNode,
}

impl Dimension {
    /// Every dimension.
    pub const ALL: [Self; 9] = [
        Self::Namespace,
        Self::Workload,
        Self::Pod,
        Self::Container,
        Self::Node,
        Self::PeerNamespace,
        Self::PeerWorkload,
        Self::PeerPod,
        Self::PeerNode,
    ];

    /// What stands on data points unless something else is chosen: namespace and workload of both ends.
    pub const USUAL: [Self; 4] = [Self::Namespace, Self::Workload, Self::PeerNamespace, Self::PeerWorkload];

    /// Its name in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Workload => "workload",
            Self::Pod => "pod",
            Self::Container => "container",
            Self::Node => "node",
            Self::PeerNamespace => "peer_namespace",
            Self::PeerWorkload => "peer_workload",
            Self::PeerPod => "peer_pod",
            Self::PeerNode => "peer_node",
        }
    }
}

/// The attributes of a data point: those of `chosen` that are known. `put` gets them in the order of `chosen`.
pub fn of_point<'a>(i: &'a Inference, chosen: &[Dimension], mut put: impl FnMut(&'static str, &'a Name)) {
    let (own, peer) = (i.observed(), i.peer());
    if own.is_none() && peer.is_none() {
        return;
    }
    for dimension in chosen {
        let (name, value) = match dimension {
            Dimension::Namespace => (names::NAMESPACE, own.and_then(|w| w.namespace.as_ref())),
            Dimension::Workload => {
                if let Some((name, value)) = own.and_then(by_kind) {
                    put(name, value);
                }
                (names::NAME, own.and_then(Workload::name))
            }
            Dimension::Pod => (names::POD, own.and_then(|w| w.pod.as_ref())),
            Dimension::Container => (names::CONTAINER, own.and_then(|w| w.container.as_ref())),
            Dimension::Node => (names::NODE, own.and_then(|w| w.node.as_ref())),
            Dimension::PeerNamespace => (names::PEER_NAMESPACE, peer.and_then(|w| w.namespace.as_ref())),
            Dimension::PeerWorkload => (names::PEER_NAME, peer.and_then(Workload::name)),
            Dimension::PeerPod => (names::PEER_POD, peer.and_then(|w| w.pod.as_ref())),
            Dimension::PeerNode => (names::PEER_NODE, peer.and_then(|w| w.node.as_ref())),
        };
        if let Some(value) = value {
            put(name, value);
        }
    }
}

/// The attributes of a span: all that is known of both ends.
pub fn of_span<'a>(i: &'a Inference, mut put: impl FnMut(Cow<'static, str>, Cow<'a, str>)) {
    if let Some(own) = i.observed() {
        let kind = own.owner.as_ref().map(|o| o.kind.as_str());
        let known = [
            (names::NAMESPACE, own.namespace.as_ref()),
            (names::NAME, own.name()),
            (names::POD, own.pod.as_ref()),
            (names::POD_UID, own.pod_uid.as_ref()),
            (names::NODE, own.node.as_ref()),
            (names::CONTAINER, own.container.as_ref()),
            (names::CONTAINER_ID, own.container_id.as_ref()),
            (names::SERVICE, own.service.as_ref()),
        ];
        let texts = known.into_iter().filter_map(|(name, value)| Some((name, value?.as_str())));
        let texts = texts.chain(kind.map(|k| (names::KIND, k))).chain(by_kind(own).map(|(name, value)| (name, value.as_str())));
        texts.for_each(|(name, value)| put(name.into(), value.into()));
        if let Some(ip) = own.pod_ip {
            put(names::POD_IP.into(), ip.to_string().into());
        }
        for (prefix, of) in [(names::LABEL_PREFIX, &own.labels), (names::ANNOTATION_PREFIX, &own.annotations)] {
            of.iter().for_each(|(key, value)| put(format!("{prefix}{key}").into(), value.as_str().into()));
        }
    }
    if let Some(peer) = i.peer() {
        let known = [
            (names::PEER_NAMESPACE, peer.namespace.as_ref()),
            (names::PEER_NAME, peer.name()),
            (names::PEER_POD, peer.pod.as_ref()),
            (names::PEER_POD_UID, peer.pod_uid.as_ref()),
            (names::PEER_NODE, peer.node.as_ref()),
            (names::PEER_SERVICE, peer.service.as_ref()),
        ];
        let kind = peer.owner.as_ref().map(|o| (names::PEER_KIND, o.kind.as_str()));
        let texts = known.into_iter().filter_map(|(name, value)| Some((name, value?.as_str())));
        texts.chain(kind).for_each(|(name, value)| put(name.into(), value.into()));
    }
}

/// What owns the observed pod under the conventions' name for its kind; they have none for a pod without owner (its name says it) and for kinds of others.
fn by_kind(workload: &Workload) -> Option<(&'static str, &Name)> {
    let owner = workload.owner.as_ref()?;
    let name = match owner.kind {
        Kind::Deployment => names::DEPLOYMENT,
        Kind::ReplicaSet => names::REPLICASET,
        Kind::StatefulSet => names::STATEFULSET,
        Kind::DaemonSet => names::DAEMONSET,
        Kind::Job => names::JOB,
        Kind::CronJob => names::CRONJOB,
        Kind::Pod | Kind::Other(_) => return None,
    };
    Some((name, &owner.name))
}
