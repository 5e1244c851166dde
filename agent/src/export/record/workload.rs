//! Who the two ends are, as record v1 writes it: `client.workload` and `server.workload` where they are known, and `workload`, the end that was observed, with
//! its process. Without Kubernetes the process is all there is: then `kind` is `process` and `name` its command.

use std::borrow::Cow;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tokengauge_core::inference::Inference;
use tokengauge_core::name::Name;

/// The kind of an observed end that is known by its process only.
pub const PROCESS: &str = "process";

/// One end.
#[derive(Serialize)]
pub struct Workload<'a> {
    kind: Option<&'a str>,
    name: Option<&'a str>,
    namespace: Option<&'a str>,
    pod: Option<&'a str>,
    pod_uid: Option<&'a str>,
    pod_ip: Option<String>,
    node: Option<&'a str>,
    container: Option<&'a str>,
    container_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<&'a str>,
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    labels: Pairs<'a>,
    #[serde(skip_serializing_if = "Pairs::is_empty")]
    annotations: Pairs<'a>,
}

/// The observed end.
#[derive(Serialize)]
pub struct Observed<'a> {
    #[serde(flatten)]
    workload: Workload<'a>,
    process: Option<Process<'a>>,
}

#[derive(Serialize)]
struct Process<'a> {
    pid: u32,
    command: Cow<'a, str>,
}

/// Keys and values in their order.
#[derive(Default)]
struct Pairs<'a>(&'a [(Name, Name)]);

impl Pairs<'_> {
    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Pairs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.0 {
            map.serialize_entry(key.as_str(), value.as_str())?;
        }
        map.end()
    }
}

impl<'a> Workload<'a> {
    /// What is known of an end.
    pub fn new(w: &'a tokengauge_core::workload::Workload) -> Self {
        let text = |name: &'a Option<Name>| name.as_ref().map(Name::as_str);
        Self {
            kind: w.owner.as_ref().map(|o| o.kind.as_str()).or(w.service.as_ref().map(|_| "Service")),
            name: w.name().map(Name::as_str),
            namespace: text(&w.namespace),
            pod: text(&w.pod),
            pod_uid: text(&w.pod_uid),
            pod_ip: w.pod_ip.map(|ip| ip.to_string()),
            node: text(&w.node),
            container: text(&w.container),
            container_id: text(&w.container_id),
            service: text(&w.service),
            labels: Pairs(&w.labels),
            annotations: Pairs(&w.annotations),
        }
    }
}

impl<'a> Observed<'a> {
    /// The observed end; `None` where nothing is known of it.
    pub fn new(i: &'a Inference) -> Option<Self> {
        let process = i.process.as_ref();
        let mut workload = match i.observed() {
            Some(workload) => Workload::new(workload),
            None => Workload::new(process.map(|_| &NOBODY)?),
        };
        if let (None, Some(process)) = (workload.name, process) {
            (workload.kind, workload.name) = (Some(PROCESS), Some(&process.command));
        }
        let process = process.map(|p| Process { pid: p.pid, command: Cow::Borrowed(&*p.command) });
        Some(Self { workload, process })
    }
}

/// What is known of a process of the host.
static NOBODY: tokengauge_core::workload::Workload = tokengauge_core::workload::Workload {
    namespace: None,
    owner: None,
    pod: None,
    pod_uid: None,
    pod_ip: None,
    node: None,
    container: None,
    container_id: None,
    service: None,
    labels: Vec::new(),
    annotations: Vec::new(),
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use expect_test::expect;
    use std::sync::Arc;
    use tokengauge_core::inference::Vantage;
    use tokengauge_core::stream;
    use tokengauge_core::workload::{Kind, Owner};

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn show(i: &Inference) -> String {
        serde_json::to_string_pretty(&Observed::new(i)).unwrap()
    }

    #[test]
    fn the_observed_end() {
        let chat = tokengauge_core::workload::Workload {
            namespace: Some(name("models")),
            owner: Some(Owner { kind: Kind::Deployment, name: name("chat") }),
            pod: Some(name("chat-5d4f-x")),
            labels: vec![(name("team"), name("llm"))],
            ..tokengauge_core::workload::Workload::default()
        };
        let mut i = Inference { vantage: Vantage::Server, server_workload: Some(Arc::new(chat)), ..testing::inference() };
        i.process = Some(stream::Process { pid: 7, command: "python3".into(), container: None });
        expect![[r#"
            {
              "kind": "Deployment",
              "name": "chat",
              "namespace": "models",
              "pod": "chat-5d4f-x",
              "pod_uid": null,
              "pod_ip": null,
              "node": null,
              "container": null,
              "container_id": null,
              "labels": {
                "team": "llm"
              },
              "process": {
                "pid": 7,
                "command": "python3"
              }
            }"#]]
        .assert_eq(&show(&i));
        // Seen at the client, of which only the process is known.
        i.vantage = Vantage::Client;
        assert!(show(&i).contains("\"kind\": \"process\",\n  \"name\": \"python3\",\n  \"namespace\": null,"));
        i.process = None;
        assert_eq!(show(&i), "null");
    }
}
