//! `kubernetes` in the configuration: where names come from, what is kept of a pod, what stands on data points.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tokengauge_core::workload::MAX_LABELS;
use tokengauge_core::workload::attributes::Dimension;

/// `kubernetes`.
#[derive(Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `auto`: where the agent runs in a pod (`KUBERNETES_SERVICE_HOST` is set); `true`: always, by `KUBECONFIG` outside of one; `false`: never.
    pub enabled: Enabled,
    /// The node whose pods are watched; else the environment's `NODE_NAME` or `K8S_NODE_NAME`.
    pub node_name: Option<String>,
    /// How the far end of a connection is found.
    pub peers: Peers,
    /// Address ranges of pods and services beside the private ones, e.g. `203.0.113.0/24`: only addresses in them are asked for.
    pub networks: Vec<String>,
    /// Labels of the observed pod to keep, by key; on spans and in records.
    pub labels: Vec<String>,
    /// Annotations of the observed pod to keep, by key.
    pub annotations: Vec<String>,
    /// What of both ends stands on data points: `namespace`, `workload`, `pod`, `container`, `node`, `peer_namespace`, `peer_workload`, `peer_pod`,
    /// `peer_node`. Each multiplies the number of series.
    pub metric_attributes: Vec<String>,
    /// Most pods that are kept in memory.
    pub max_pods: usize,
    /// Longest that a finished record waits for a name, in milliseconds; 0: not at all.
    pub wait_ms: u64,
    /// The kubelet, asked where the API does not answer or does not allow.
    pub kubelet: Kubelet,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: Enabled::Auto,
            node_name: None,
            peers: Peers::OnDemand,
            networks: Vec::new(),
            labels: Vec::new(),
            annotations: Vec::new(),
            metric_attributes: Dimension::USUAL.iter().map(|d| d.as_str().to_owned()).collect(),
            max_pods: 10_000,
            wait_ms: 2_000,
            kubelet: Kubelet::default(),
        }
    }
}

/// `kubernetes.enabled`.
#[derive(Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(try_from = "Switch")]
pub enum Enabled {
    /// In a pod.
    #[default]
    Auto,
    /// Always.
    Yes,
    /// Never.
    No,
}

/// How YAML may write it: as a boolean or as a word.
#[derive(Deserialize)]
#[serde(untagged)]
enum Switch {
    Bool(bool),
    Word(String),
}

impl TryFrom<Switch> for Enabled {
    type Error = String;

    fn try_from(switch: Switch) -> Result<Self, String> {
        match switch {
            Switch::Bool(true) => Ok(Self::Yes),
            Switch::Bool(false) => Ok(Self::No),
            Switch::Word(word) if word == "auto" => Ok(Self::Auto),
            Switch::Word(word) => Err(format!("`{word}` is none of `auto`, `true`, `false`")),
        }
    }
}

/// `kubernetes.peers`.
#[derive(Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
pub enum Peers {
    /// The API is asked for an address when a record has it, and the answer kept for a minute.
    #[default]
    OnDemand,
    /// All pods of the cluster are watched: no question, at the price of memory (`max_pods`) and of the API server's work for each node.
    Watch,
    /// Only pods of this node are known.
    Off,
}

/// `kubernetes.kubelet`.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Kubelet {
    /// Its address; else `https://HOST:10250`, with `HOST_IP` of the environment, or the node's name.
    pub endpoint: Option<String>,
    /// The authority of its certificate, a PEM file; else that of the cluster.
    pub ca_file: Option<PathBuf>,
    /// Whether any certificate is good. Whoever answers at that address is given the pod's token then.
    pub insecure_skip_verify: bool,
}

impl Config {
    /// What is wrong with a value, by key.
    ///
    /// # Errors
    /// The key below `kubernetes`, and what is wrong there.
    pub fn check(&self) -> Result<(), (String, String)> {
        let wrong = |key: String, what: String| Err((key, what));
        for (list, keys) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            if keys.len() > MAX_LABELS {
                return wrong(list.into(), format!("{} keys, at most {MAX_LABELS}", keys.len()));
            }
            if let Some(i) = keys.iter().position(|key| !is_label_key(key)) {
                return wrong(format!("{list}[{i}]"), format!("`{}` is no key of a label (name, or prefix/name)", keys[i]));
            }
        }
        if let Some(i) = self.metric_attributes.iter().position(|name| dimension(name).is_none()) {
            let all: Vec<_> = Dimension::ALL.iter().map(|d| d.as_str()).collect();
            return wrong(format!("metric_attributes[{i}]"), format!("`{}` is none of `{}`", self.metric_attributes[i], all.join("`, `")));
        }
        if let Some(i) = self.networks.iter().position(|text| network(text).is_none()) {
            return wrong(format!("networks[{i}]"), format!("`{}` is no range of addresses, e.g. 10.0.0.0/8", self.networks[i]));
        }
        if !(1..=1_000_000).contains(&self.max_pods) {
            return wrong("max_pods".into(), format!("{} is not between 1 and 1000000", self.max_pods));
        }
        if self.wait_ms > 30_000 {
            return wrong("wait_ms".into(), format!("{} is more than 30000", self.wait_ms));
        }
        if self.node_name.as_ref().is_some_and(|name| !is_node_name(name)) {
            return wrong("node_name".into(), "is no name of a node".into());
        }
        if let Some(endpoint) = &self.kubelet.endpoint
            && !(endpoint.starts_with("https://") && endpoint.parse::<http::Uri>().is_ok())
        {
            return wrong("kubelet.endpoint".into(), format!("`{endpoint}` is no https:// address"));
        }
        Ok(())
    }

    /// What stands on data points.
    pub fn dimensions(&self) -> Vec<Dimension> {
        self.metric_attributes.iter().filter_map(|name| dimension(name)).collect()
    }

    /// Longest that a record waits for a name.
    pub const fn wait(&self) -> Duration {
        Duration::from_millis(self.wait_ms)
    }
}

fn dimension(name: &str) -> Option<Dimension> {
    Dimension::ALL.into_iter().find(|d| d.as_str() == name)
}

/// A qualified name: `name` or `prefix/name` (Kubernetes' rule for keys of labels and annotations).
fn is_label_key(key: &str) -> bool {
    let part = |text: &str, most: usize, inner: &str| {
        (1..=most).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || inner.as_bytes().contains(&b))
            && [text.bytes().next(), text.bytes().last()].iter().flatten().all(u8::is_ascii_alphanumeric)
    };
    match key.split_once('/') {
        Some((prefix, name)) => part(prefix, 253, "-.") && part(name, 63, "-_."),
        None => part(key, 63, "-_."),
    }
}

/// A DNS subdomain.
pub fn is_node_name(name: &str) -> bool {
    (1..=253).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'))
}

/// A range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    base: IpAddr,
    bits: u32,
}

impl Network {
    /// Whether the address is in it.
    pub fn holds(&self, ip: IpAddr) -> bool {
        let same = |a: u128, b: u128, width: u32| self.bits == 0 || (a ^ b) >> (width - self.bits.min(width)) == 0;
        match (self.base, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
            _ => false,
        }
    }
}

/// `10.0.0.0/8`.
pub fn network(text: &str) -> Option<Network> {
    let (base, bits) = text.split_once('/')?;
    let (base, bits): (IpAddr, u32) = (base.parse().ok()?, bits.parse().ok()?);
    (bits <= if base.is_ipv4() { 32 } else { 128 }).then_some(Network { base, bits })
}

/// Ranges that are never public: RFC 1918, 6598 (of providers, used for pods by clouds) and 4193.
pub fn private_networks() -> Vec<Network> {
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"].iter().filter_map(|text| network(text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Config, String> {
        let config: Config = serde_norway::from_str(text).map_err(|e| e.to_string())?;
        config.check().map_err(|(key, what)| format!("{key}: {what}"))?;
        Ok(config)
    }

    #[test]
    fn a_full_section() {
        let text = "
enabled: true
node_name: n1.example
peers: watch
networks: [203.0.113.0/24]
labels: [app.kubernetes.io/name, team]
annotations: [example.com/owner]
metric_attributes: [namespace, peer_pod]
max_pods: 5000
wait_ms: 0
kubelet: {endpoint: 'https://127.0.0.1:10250', ca_file: /ca.pem, insecure_skip_verify: true}
";
        let config = check(text).unwrap();
        assert_eq!((config.enabled, config.peers), (Enabled::Yes, Peers::Watch));
        assert_eq!(config.dimensions(), [Dimension::Namespace, Dimension::PeerPod]);
        let of = |text: &str| check(text).unwrap().enabled;
        assert_eq!([of("enabled: auto"), of("enabled: false"), of("max_pods: 1")], [Enabled::Auto, Enabled::No, Enabled::Auto]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, want) in [
            ("enabled: maybe", "enabled: `maybe` is none of `auto`, `true`, `false`"),
            ("labels: [a b]", "labels[0]: `a b` is no key of a label"),
            ("annotations: [ok, /x]", "annotations[1]: `/x` is no key"),
            ("metric_attributes: [pods]", "metric_attributes[0]: `pods` is none of `namespace`, `workload`"),
            ("networks: [10.0.0.0]", "networks[0]: `10.0.0.0` is no range"),
            ("networks: [10.0.0.0/33]", "networks[0]"),
            ("max_pods: 0", "max_pods: 0 is not between"),
            ("wait_ms: 60000", "wait_ms: 60000 is more than"),
            ("node_name: 'a b'", "node_name: is no name"),
            ("kubelet: {endpoint: 'http://x'}", "kubelet.endpoint: `http://x` is no https://"),
            ("nodename: x", "unknown field `nodename`"),
        ] {
            let got = check(text).unwrap_err();
            assert!(got.contains(want), "{text}: {got}");
        }
        let many = format!("labels: [{}]", (0..17).map(|n| format!("l{n}")).collect::<Vec<_>>().join(", "));
        assert!(check(&many).unwrap_err().contains("17 keys"));
    }

    #[test]
    fn ranges_hold_addresses() {
        let holds = |range: &str, ip: &str| network(range).unwrap().holds(ip.parse().unwrap());
        assert!(holds("10.0.0.0/8", "10.255.0.1") && !holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("0.0.0.0/0", "1.2.3.4") && !holds("0.0.0.0/0", "::1"));
        assert!(holds("fc00::/7", "fd12::1") && !holds("fc00::/7", "2001:db8::1"));
        assert!(holds("192.0.2.7/32", "192.0.2.7") && !holds("192.0.2.7/32", "192.0.2.6"));
        assert_eq!(private_networks().len(), 5);
    }
}
