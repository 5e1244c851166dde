//! The watch of pods: a list, then what changes, from where it broke off.

use rustc_hash::FxHashSet;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokengauge_core::name::Name;

use super::Shared;
use super::api::{Api, ApiError, Status, of_code};
use crate::enrich::config::Peers;
use crate::enrich::pod::{Object, Pod};

/// Pods of one page of a list.
const PAGE: usize = 250;

/// How long the server may let a watch last before it ends it; then it is resumed.
const TIMEOUT_S: u32 = 290;

/// Where a watch stands.
#[derive(Debug)]
pub struct Watch {
    /// Which pods, as the end of a query.
    which: String,
    /// Whether the list may be read from the server's cache, which ignores pages.
    cached: bool,
    /// Behind which change to go on; `None`: list first.
    version: Option<String>,
}

/// `v1.List` of pods or services, or of what else has metadata.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct List {
    metadata: ListMetadata,
    /// What is listed.
    pub items: Vec<Object>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    rest: String,
}

/// An event of a watch.
#[derive(Debug, PartialEq)]
enum Event {
    /// A pod as it is now, and the place behind it.
    Pod(Option<Box<Pod>>, String),
    /// A pod that is gone.
    Gone(Option<Name>, String),
    /// A place to go on from.
    Bookmark(String),
    /// The server's last word.
    Error(ApiError),
}

#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(rename = "object")]
    _object: IgnoredAny,
}

#[derive(Deserialize)]
struct Of<T> {
    object: T,
}

/// Reads an event; `None` for one that is none.
fn event(line: &[u8], shared: &Shared) -> Option<Event> {
    let kind = serde_json::from_slice::<Kind<'_>>(line).ok()?.kind;
    if kind == "ERROR" {
        let status = serde_json::from_slice::<Of<Status>>(line).ok()?.object;
        return Some(Event::Error(of_code(status.code, format!("{}: {}", status.code, status.message))));
    }
    let object = serde_json::from_slice::<Of<Object>>(line).ok()?.object;
    let version = object.metadata.resource_version.clone();
    match kind {
        "ADDED" | "MODIFIED" => Some(Event::Pod(Pod::new(&object, &shared.settings().keep).map(Box::new), version)),
        "DELETED" => Some(Event::Gone(Name::new(&object.metadata.uid), version)),
        "BOOKMARK" => Some(Event::Bookmark(version)),
        _ => None,
    }
}

impl Watch {
    /// Of the pods of a node, or with [`Peers::Watch`] of the cluster; `None` when neither is to be watched.
    pub fn new(node: Option<&str>, peers: Peers) -> Option<Self> {
        let (which, cached) = match (node, peers) {
            (_, Peers::Watch) => (String::new(), false),
            // The name of a node has no character that would have to be escaped (`is_node_name`).
            (Some(node), _) => (format!("&fieldSelector=spec.nodeName%3D{node}"), true),
            (None, _) => return None,
        };
        Some(Self { which, cached, version: None })
    }

    /// The paths of a short list and of a short watch of the same pods: whether they are allowed.
    pub fn trials(&self) -> [String; 2] {
        let which = &self.which;
        [format!("/api/v1/pods?limit=1{which}"), format!("/api/v1/pods?watch=true&timeoutSeconds=1&resourceVersion=0{which}")]
    }

    /// Forgets its place: lists next.
    pub fn restart(&mut self) {
        self.version = None;
    }

    /// Whether it has a place to go on from.
    pub const fn has_place(&self) -> bool {
        self.version.is_some()
    }

    /// Lists if it must, then follows what changes until the server ends it as agreed. `opened` is called once the server lets it.
    ///
    /// # Errors
    /// Why it broke. It can be called again, and goes on from its place.
    pub async fn follow(&mut self, api: &Api, shared: &Shared, mut opened: impl FnMut()) -> Result<(), ApiError> {
        let version = match &self.version {
            Some(version) => version.clone(),
            None => {
                let version = self.list(api, shared).await?;
                opened();
                version
            }
        };
        let path =
            format!("/api/v1/pods?watch=true&allowWatchBookmarks=true&timeoutSeconds={TIMEOUT_S}&resourceVersion={version}{}", self.which);
        self.version = Some(version);
        let mut watching = api.watch(&path).await?;
        shared.count(|c| &c.watches);
        opened();
        let mut said = None;
        loop {
            let more = watching.next(|line| {
                if let Err(error) = self.take(line, shared) {
                    said.get_or_insert(error);
                }
            });
            let more = more.await?;
            if let Some(error) = said {
                return Err(error);
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// One line of the watch.
    fn take(&mut self, line: Option<&[u8]>, shared: &Shared) -> Result<(), ApiError> {
        shared.count(|c| &c.events);
        let version = match line.and_then(|line| event(line, shared)) {
            Some(Event::Pod(pod, version)) => {
                if let Some(pod) = pod {
                    shared.write(|book, now| {
                        book.put(*pod, now);
                        book.expire(now);
                    });
                }
                version
            }
            Some(Event::Gone(uid, version)) => {
                if let Some(uid) = uid {
                    shared.write(|book, now| book.gone(&uid, now));
                }
                version
            }
            Some(Event::Bookmark(version)) => {
                shared.write(|book, now| book.expire(now));
                version
            }
            Some(Event::Error(error)) => return Err(error),
            None => {
                shared.count(|c| &c.odd_events);
                return Ok(());
            }
        };
        if !version.is_empty() {
            self.version = Some(version);
        }
        Ok(())
    }

    /// Reads all pods, page by page; what is not among them is gone. The place behind the list.
    async fn list(&mut self, api: &Api, shared: &Shared) -> Result<String, ApiError> {
        let (mut seen, mut rest) = (FxHashSet::default(), String::new());
        loop {
            let page = match (self.cached, rest.is_empty()) {
                (true, true) => "&resourceVersion=0".to_owned(),
                (_, true) => String::new(),
                (_, false) => format!("&continue={}", escaped(&rest)),
            };
            let list: List = api.get(&format!("/api/v1/pods?limit={PAGE}{}{page}", self.which)).await?;
            let pods: Vec<Pod> = list.items.iter().filter_map(|object| Pod::new(object, &shared.settings().keep)).collect();
            seen.extend(pods.iter().map(|p| p.uid.clone()));
            shared.write(|book, now| pods.into_iter().for_each(|pod| book.put(pod, now)));
            rest = list.metadata.rest;
            if rest.is_empty() {
                shared.write(|book, now| book.only(&seen, None, now));
                shared.count(|c| &c.lists);
                return Ok(list.metadata.resource_version);
            }
        }
    }
}

/// Reads the kubelet's list of its pods; what is not among them is gone.
///
/// # Errors
/// When the kubelet does not answer, or does not let us.
pub async fn of_kubelet(api: &Api, shared: &Shared) -> Result<(), ApiError> {
    let list: List = api.get("/pods").await?;
    let pods: Vec<Pod> = list.items.iter().filter_map(|object| Pod::new(object, &shared.settings().keep)).collect();
    let seen: FxHashSet<Name> = pods.iter().map(|p| p.uid.clone()).collect();
    shared.write(|book, now| {
        pods.into_iter().for_each(|pod| book.put(pod, now));
        // Pods of other nodes, known by a watch of the cluster, are not the kubelet's to tell.
        book.only(&seen, shared.node(), now);
        book.expire(now);
    });
    shared.count(|c| &c.kubelet_lists);
    Ok(())
}

/// Percent-encoded for a query: everything but what RFC 3986 calls unreserved.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(b));
        } else {
            out += &format!("%{b:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enrich::kubernetes::Settings;
    use crate::enrich::pod::tests::of_deployment;
    use serde_json::json;

    fn line(kind: &str, object: serde_json::Value) -> Vec<u8> {
        serde_json::to_vec(&json!({"type": kind, "object": object})).unwrap()
    }

    #[test]
    fn events_are_read() {
        let (shared, _asked) = Shared::new(Settings { max_pods: 10, ..Settings::default() });
        let mut watch = Watch::new(Some("n1"), Peers::OnDemand).unwrap();
        let pod = of_deployment("p", "u1", "10.0.0.1");
        watch.take(Some(&line("ADDED", pod.clone())), &shared).unwrap();
        assert_eq!((watch.version.as_deref(), shared.book().pods()), (Some("12"), 1));
        watch.take(Some(&line("BOOKMARK", json!({"kind": "Pod", "metadata": {"resourceVersion": "99"}}))), &shared).unwrap();
        assert_eq!(watch.version.as_deref(), Some("99"));
        watch.take(Some(&line("DELETED", pod)), &shared).unwrap();
        assert_eq!(shared.book().pods(), 0);
        let gone =
            json!({"kind": "Status", "status": "Failure", "message": "too old resource version: 1 (5)", "reason": "Expired", "code": 410});
        let error = watch.take(Some(&line("ERROR", gone)), &shared).unwrap_err();
        assert_eq!(error, ApiError::Gone("410: too old resource version: 1 (5)".into()));
    }

    #[test]
    fn what_is_no_event_is_counted() {
        let (shared, _asked) = Shared::new(Settings { max_pods: 10, ..Settings::default() });
        let mut watch = Watch::new(None, Peers::Watch).unwrap();
        let odd: [&[u8]; 6] = [
            b"",
            b"{}",
            b"[1]",
            br#"{"type":"X","object":{}}"#,
            br#"{"type":"ADDED","object":7}"#,
            br#"{"type":"ERROR","object":{"code":"x"}}"#,
        ];
        odd.iter().for_each(|line| watch.take(Some(line), &shared).unwrap());
        watch.take(None, &shared).unwrap();
        assert_eq!(shared.counts.odd_events.load(std::sync::atomic::Ordering::Relaxed), 7);
        // A pod without a name is no surprise that stops anything.
        watch.take(Some(&line("ADDED", json!({"metadata": {"resourceVersion": "7"}}))), &shared).unwrap();
        assert_eq!((watch.version.as_deref(), shared.book().pods()), (Some("7"), 0));
    }

    #[test]
    fn without_a_node_there_is_nothing_to_watch() {
        assert!(Watch::new(None, Peers::OnDemand).is_none());
        assert!(Watch::new(Some("n1"), Peers::Off).unwrap().which.contains("spec.nodeName%3Dn1"));
        assert_eq!(Watch::new(Some("n1"), Peers::Watch).unwrap().which, "");
        assert_eq!(escaped("eyJ2Ijoi/+=:a-b"), "eyJ2Ijoi%2F%2B%3D%3Aa-b");
    }
}
