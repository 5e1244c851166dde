use super::*;
use crate::enrich::pod::tests::of_deployment;
use crate::enrich::pod::{Keep, Object};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokengauge_core::workload::Kind;

#[expect(clippy::disallowed_methods, reason = "tests need some instant to count from")]
fn start() -> Instant {
    Instant::now()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn made(value: &Value) -> Pod {
    Pod::new(&serde_json::from_value::<Object>(value.clone()).unwrap(), &Keep::default()).unwrap()
}

fn pod(uid: &str, ip: &str) -> Pod {
    let mut value = of_deployment(uid, uid, ip);
    value["status"]["podIPs"] = json!([{"ip": ip}]);
    made(&value)
}

fn ended(uid: &str, ip: &str) -> Pod {
    let mut value = of_deployment(uid, uid, ip);
    value["status"]["phase"] = json!("Failed");
    made(&value)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(book: &Book, address: &str, began: Instant) -> Option<String> {
    book.pod_at(ip(address), began).map(|(p, _)| p.uid.as_str().to_owned())
}

#[test]
fn pods_are_found_by_uid_container_and_address() {
    let (mut book, now) = (Book::new(10), start());
    book.put(pod("u1", "10.0.0.1"), now);
    let by = |id: Option<&str>, uid: Option<&str>| Container { id: id.and_then(Name::new), pod_uid: uid.and_then(Name::new) };
    let found = |book: &Book, c: &Container| book.pod_of(c).map(|p| p.uid.as_str().to_owned());
    assert_eq!(found(&book, &by(Some("u1-c1"), None)).as_deref(), Some("u1"));
    assert_eq!(found(&book, &by(Some("new"), Some("u1"))).as_deref(), Some("u1"));
    assert_eq!(found(&book, &by(Some("new"), None)), None);
    assert_eq!(at(&book, "10.0.0.1", now).as_deref(), Some("u1"));
    // A container that was replaced leads nowhere by its id; its pod's uid still does.
    let mut value = of_deployment("u1", "u1", "10.0.0.1");
    value["status"]["containerStatuses"] = json!([{"name": "vllm", "containerID": "containerd://other"}]);
    book.put(made(&value), now);
    assert_eq!(found(&book, &by(Some("u1-c1"), None)), None);
    assert_eq!(found(&book, &by(Some("other"), None)).as_deref(), Some("u1"));
}

#[test]
fn a_pod_that_is_gone_is_kept_a_little_while() {
    let (mut book, now) = (Book::new(10), start());
    book.put(pod("u1", "10.0.0.1"), now);
    let later = now + Duration::from_secs(10);
    book.gone(&name("u1"), later);
    assert_eq!(book.pods(), 0);
    let container = Container { id: None, pod_uid: Some(name("u1")) };
    assert!(book.pod_of(&container).is_some());
    // What began while it lived is its; what began later is not.
    assert_eq!(at(&book, "10.0.0.1", now).as_deref(), Some("u1"));
    assert_eq!(book.pod_at(ip("10.0.0.1"), later).map(|(_, settled)| settled), Some(true));
    // By force, it runs on for a moment; unless the address is another's by then.
    let soon = later + Duration::from_secs(1);
    assert_eq!(book.pod_at(ip("10.0.0.1"), soon).map(|(p, settled)| (p.uid.as_str(), settled)), Some(("u1", false)));
    let mut other = Book::new(10);
    other.put(pod("u1", "10.0.0.1"), now);
    other.gone(&name("u1"), later);
    other.put(pod("u2", "10.0.0.1"), soon);
    assert_eq!(at(&other, "10.0.0.1", soon).as_deref(), Some("u2"));
    assert_eq!(at(&book, "10.0.0.1", later + LEAVING + Duration::from_secs(1)), None);
    book.expire(later + LINGER + Duration::from_secs(1));
    assert!(book.pod_of(&container).is_none());
    assert!(book.ips.is_empty() && book.containers.is_empty() && book.released.is_empty());
}

#[test]
fn an_address_belongs_to_the_last_pod_that_has_it() {
    let (mut book, now) = (Book::new(10), start());
    let later = now + Duration::from_secs(10);
    book.put(pod("u1", "10.0.0.1"), now);
    book.put(ended("u1", "10.0.0.1"), later);
    assert_eq!(at(&book, "10.0.0.1", now).as_deref(), Some("u1"));
    assert_eq!(book.pod_at(ip("10.0.0.1"), later).map(|(_, settled)| settled), Some(true));
    // By force, it runs on for a moment; unless the address is another's by then.
    let soon = later + Duration::from_secs(1);
    assert_eq!(book.pod_at(ip("10.0.0.1"), soon).map(|(p, settled)| (p.uid.as_str(), settled)), Some(("u1", false)));
    let mut other = Book::new(10);
    other.put(pod("u1", "10.0.0.1"), now);
    other.gone(&name("u1"), later);
    other.put(pod("u2", "10.0.0.1"), soon);
    assert_eq!(at(&other, "10.0.0.1", soon).as_deref(), Some("u2"));
    assert_eq!(at(&book, "10.0.0.1", later + LEAVING + Duration::from_secs(1)), None);
    book.put(pod("u2", "10.0.0.1"), later);
    // The first one is heard of again: it does not take the address back, nor away.
    book.put(ended("u1", "10.0.0.1"), later);
    book.gone(&name("u1"), later);
    book.expire(later + LINGER * 2);
    assert_eq!(at(&book, "10.0.0.1", later).as_deref(), Some("u2"));
}

#[test]
fn a_list_says_who_is_gone() {
    let (mut book, now) = (Book::new(10), start());
    ["u1", "u2", "u3"].iter().zip(1..).for_each(|(uid, n)| book.put(pod(uid, &format!("10.0.0.{n}")), now));
    // A list of another node's pods says nothing of these.
    book.only(&FxHashSet::default(), Some("n2"), now);
    assert_eq!(book.pods(), 3);
    book.only(&[name("u1"), name("u3")].into_iter().collect(), Some("n1"), now);
    assert_eq!(book.pods(), 2);
    book.put(pod("u2", "10.0.0.2"), now);
    assert_eq!(book.pods(), 3);
    book.expire(now + LINGER * 2);
    assert_eq!(book.pods(), 3, "one that came back is not forgotten for having been gone");
}

#[test]
fn too_many_pods_are_counted() {
    let (mut book, now) = (Book::new(2), start());
    ["u1", "u2", "u3"].iter().zip(1..).for_each(|(uid, n)| book.put(pod(uid, &format!("10.0.0.{n}")), now));
    assert_eq!((book.pods(), book.counts.over_bound), (2, 1));
    book.gone(&name("u1"), now);
    book.put(pod("u3", "10.0.0.3"), now);
    assert_eq!((book.pods(), book.counts.over_bound), (2, 1), "what is gone makes room");
}

#[test]
fn a_far_end_is_asked_for_and_remembered() {
    let (mut book, now) = (Book::new(2), start());
    let who = Arc::clone(&pod("u9", "10.0.0.9").workload);
    let far = ip("10.0.0.9");
    let secs = |n| now + Duration::from_secs(n);
    assert_eq!(book.peer(far, now), (Found::Asked, Some(Question::Address(far))));
    assert_eq!(book.peer(far, now), (Found::Asked, None));
    book.answer(far, Answer::Is(Arc::clone(&who)), secs(1));
    assert_eq!(book.peer(far, secs(2)), (Found::Is(Arc::clone(&who)), None));
    // Asked again behind the scenes, then not believed any more.
    assert_eq!(book.peer(far, secs(40)), (Found::Is(Arc::clone(&who)), Some(Question::Address(far))));
    assert_eq!(book.peer(far, secs(100)), (Found::Asked, Some(Question::Address(far))));
    // Without an API what was known goes on, for a while, and nobody waits.
    book.answer(far, Answer::Failed, secs(101));
    assert_eq!(book.peer(far, secs(102)), (Found::Is(who), None));
    assert_eq!(book.peer(far, secs(1_000)), (Found::Nobody, Some(Question::Address(far))));
    book.answer(far, Answer::Nobody, secs(1_001));
    assert_eq!(book.peer(far, secs(1_002)), (Found::Nobody, None));
    assert_eq!(book.counts.failed, 1);
}

#[test]
fn far_ends_are_bounded() {
    let (mut book, now) = (Book::new(2), start());
    for n in 0..MAX_PEERS as u32 + 10 {
        book.peer(IpAddr::from(n.to_be_bytes()), now);
    }
    assert_eq!((book.peers.len(), book.counts.not_asked), (MAX_PEERS, 10));
    book.peer(ip("10.0.0.1"), now + PEER_STALE * 2);
    assert_eq!(book.peers.len(), 1);
}

#[test]
fn an_owner_is_asked_for_once() {
    let (mut book, now) = (Book::new(10), start());
    let mut value = of_deployment("u1", "u1", "10.0.0.1");
    value["metadata"]["labels"] = json!({});
    let pod = made(&value);
    let above = pod.above.clone().unwrap();
    book.put(pod.clone(), now);
    assert_eq!(book.owner(&above, now), (true, Some(Question::Owner(above.clone()))));
    assert_eq!(book.owner(&above, now), (true, None));
    book.answer_owner(&above, None, now);
    assert_eq!(book.owner(&above, now + Duration::from_secs(30)), (false, None), "nobody waits for what is refused");
    let rollout = Owner { kind: Kind::new("Rollout").unwrap(), name: name("chat") };
    book.answer_owner(&above, Some(Some(rollout.clone())), now);
    let owner = |book: &Book| book.pods[&name("u1")].workload.owner.clone();
    assert_eq!(owner(&book), Some(rollout.clone()));
    // Its pods that come later have it from the start.
    book.put(pod, now);
    assert_eq!(owner(&book), Some(rollout));
}

proptest! {
    /// Whatever happens, the indices lead to pods that are there, and nothing is left of one that was forgotten.
    #[test]
    fn indices_and_pods_agree(steps in prop::collection::vec((0..4_u8, 0..6_u8, 0..4_u8), 1..80)) {
        let (mut book, mut now) = (Book::new(4), start());
        for (what, which, address) in steps {
            let (uid, address) = (format!("u{which}"), format!("10.0.0.{address}"));
            now += Duration::from_secs(40);
            match what {
                0 => book.put(pod(&uid, &address), now),
                1 => book.put(ended(&uid, &address), now),
                2 => book.gone(&name(&uid), now),
                _ => book.expire(now),
            }
            prop_assert!(book.pods.len() <= 4);
            for (id, pod) in &book.containers {
                prop_assert!(book.pods.get(&pod.uid).is_some_and(|p| p.containers.iter().any(|(other, _)| other == id)));
            }
            for (ip, pod) in &book.ips {
                prop_assert!(book.pods.get(&pod.uid).is_some_and(|p| p.ips.contains(ip)));
            }
            prop_assert!(book.gone.keys().chain(book.released.keys()).all(|uid| book.pods.contains_key(uid)));
        }
        book.only(&FxHashSet::default(), None, now);
        book.expire(now + LINGER * 2);
        prop_assert!(book.pods.is_empty() && book.ips.is_empty() && book.containers.is_empty() && book.gone_order.is_empty());
    }
}
