//! What is asked of the API one by one: whose an address is, and what owns an owner. One question at a time, fifty a second at most.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashSet;
use tokengauge_core::name::Name;
use tokengauge_core::workload::{Kind, Owner, Workload};
use tokio::sync::mpsc::Receiver;

use super::Shared;
use super::api::{Api, ApiError};
use super::watch::{List, escaped};
use crate::enrich::book::{Answer, Question};
use crate::enrich::pod::{Above, Object, Pod, controller};

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(20);

/// Answers what is asked, until nobody asks any more.
pub async fn answer(api: Api, shared: Arc<Shared>, mut asked: Receiver<Question>) {
    let mut asker = Asker { api, shared, said: FxHashSet::default() };
    while let Some(question) = asked.recv().await {
        match question {
            Question::Address(ip) => {
                let answer = asker.whose(ip).await;
                asker.shared.write(|book, now| book.answer(ip, answer, now));
            }
            Question::Owner(above) => {
                let top = asker.owner(&above).await;
                asker.shared.write(|book, now| book.answer_owner(&above, top, now));
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

struct Asker {
    api: Api,
    shared: Arc<Shared>,
    /// Of which kinds it was said that they are denied.
    said: FxHashSet<&'static str>,
}

impl Asker {
    /// Whose an address is: a pod's, else a service's. The server looks for it in its own memory (`resourceVersion=0`).
    async fn whose(&mut self, ip: IpAddr) -> Answer {
        let query = |resource, field| {
            format!("/api/v1/{resource}?fieldSelector={field}%3D{}&resourceVersion=0&limit=100", escaped(&ip.to_string()))
        };
        let pods: List = match self.api.get(&query("pods", "status.podIP")).await {
            Ok(list) => list,
            Err(error) => {
                self.failed("pods", &error);
                return Answer::Failed;
            }
        };
        let pods: Vec<Pod> = pods.items.iter().filter_map(|object| Pod::new(object, &self.shared.settings().keep)).collect();
        if let Some(pod) = pods.iter().find(|p| p.ips.contains(&ip)) {
            let top = match &pod.above {
                Some(above) => self.owner(above).await,
                None => None,
            };
            return Answer::Is(pod.owned_by(top.flatten().as_ref()).workload);
        }
        if let Some(host) = pods.iter().find(|p| p.host_network) {
            // The address of a node, which all of these share: which of them it was is not known.
            return Answer::Is(Arc::new(Workload { node: host.workload.node.clone(), ..Workload::default() }));
        }
        match self.api.get::<List>(&query("services", "spec.clusterIP")).await {
            Ok(list) => list.items.first().and_then(service).map_or(Answer::Nobody, |w| Answer::Is(Arc::new(w))),
            Err(error) => {
                self.failed("services", &error);
                // A right that is not given is not waited for.
                if matches!(error, ApiError::Denied(_)) { Answer::Nobody } else { Answer::Failed }
            }
        }
    }

    /// What owns that owner: `Some(None)` is "nothing", `None` no answer.
    async fn owner(&mut self, above: &Above) -> Option<Option<Owner>> {
        let (group, resource) = match above.kind {
            Kind::ReplicaSet => ("apps", "replicasets"),
            Kind::Job => ("batch", "jobs"),
            _ => return Some(None),
        };
        let path = format!("/apis/{group}/v1/namespaces/{}/{resource}/{}", escaped(above.namespace.as_str()), escaped(above.name.as_str()));
        match self.api.get::<Object>(&path).await {
            Ok(object) if object.metadata.uid == above.uid.as_str() => Some(controller(&object.metadata)),
            // Another one of the same name, or none any more: nobody will ever know.
            Ok(_) | Err(ApiError::NotFound(_)) => Some(None),
            Err(error) => {
                self.failed(resource, &error);
                None
            }
        }
    }

    fn failed(&mut self, resource: &'static str, error: &ApiError) {
        if let ApiError::Denied(what) = error {
            self.shared.count(|c| &c.denied);
            if self.said.insert(resource) {
                tracing::warn!("kubernetes: {resource} are denied, so that some names will be missing: {what}");
            }
        } else {
            self.shared.count(|c| &c.failures);
            tracing::debug!("kubernetes: no answer about {resource}: {error}");
        }
    }
}

/// What is told of a service.
fn service(object: &Object) -> Option<Workload> {
    let service = Name::new(&object.metadata.name)?;
    Some(Workload { namespace: Name::new(&object.metadata.namespace), service: Some(service), ..Workload::default() })
}
