use super::*;
use crate::enrich::book::{Answer, Question};
use crate::enrich::kubernetes::{Mode, Settings};
use crate::enrich::pod::tests::of_deployment;
use crate::enrich::pod::{Keep, Object};
use crate::testing;
use serde_json::{Value, json};
use tokengauge_core::semconv::workload as names;
use tokengauge_core::stream::Process;
use tokengauge_core::workload::attributes::{self, Dimension};
use tokio::sync::mpsc::Receiver;

#[expect(clippy::disallowed_methods, reason = "tests need some instant to count from")]
fn start() -> Instant {
    Instant::now()
}

/// The inference's start, and so the wall clock at `start()`.
fn wall() -> Timestamp {
    Timestamp::from_unix_nanos(testing::START)
}

struct Rig {
    enricher: Enricher,
    shared: Arc<Shared>,
    asked: Receiver<Question>,
    now: Instant,
}

fn rig(config: config::Config) -> Rig {
    let keep = Keep { labels: vec!["app".into()], node: Some("n1".into()), ..Keep::default() };
    let (shared, asked) = Shared::new(Settings { keep, max_pods: 10_000, ..Settings::default() });
    shared.set_mode(Mode::Api);
    Rig { enricher: Enricher::new(&config, Some(Arc::clone(&shared))), shared, asked, now: start() }
}

impl Rig {
    fn pod(&self, value: &Value) {
        let object: Object = serde_json::from_value(value.clone()).unwrap();
        let pod = Pod::new(&object, &self.shared.settings().keep).unwrap();
        self.shared.write(|book, _| book.put(pod, self.now));
    }

    fn push(&mut self, i: Inference) -> Option<Inference> {
        self.enricher.push(Box::new(i), self.now, wall()).map(|i| *i)
    }

    #[expect(clippy::vec_box, reason = "as the enricher gives them")]
    fn due(&mut self, after: Duration) -> Vec<Box<Inference>> {
        let mut out = Vec::new();
        self.enricher.due(self.now + after, wall(), &mut out);
        out
    }

    fn count(&self, name: &str) -> u64 {
        self.shared.counts.all().find(|(n, _)| *n == name).unwrap().1
    }
}

/// Seen at a client in that container, which asked that server.
fn seen(uid: Option<&str>, id: Option<&str>, server: &str) -> Inference {
    let container =
        (uid.is_some() || id.is_some()).then(|| Arc::new(Container { id: id.and_then(Name::new), pod_uid: uid.and_then(Name::new) }));
    let process = Some(Process { pid: 7, command: "python3".into(), container });
    Inference { process, client: "10.0.0.1:4000".parse().ok(), server: server.parse().ok(), ..testing::inference() }
}

fn of(w: &Option<Arc<Workload>>) -> String {
    let Some(w) = w else { return "-".into() };
    let text = |n: &Option<Name>| n.as_ref().map_or("-".to_owned(), |n| n.as_str().to_owned());
    format!("{}/{} {} {}", text(&w.namespace), w.name().map_or("-", |n| n.as_str()), text(&w.pod), text(&w.container))
}

#[test]
fn both_ends_are_named() {
    let mut rig = rig(config::Config::default());
    rig.pod(&of_deployment("chat-1", "u1", "10.0.0.1"));
    rig.pod(&of_deployment("vllm-1", "u2", "10.0.0.2"));
    let i = rig.push(seen(Some("u1"), Some("u1-c1"), "10.0.0.2:8000")).unwrap();
    assert_eq!((of(&i.client_workload), of(&i.server_workload)), ("models/chat chat-1 vllm".into(), "models/chat vllm-1 -".into()));
    // From the server's side the tapped process is the server, and the far end is the client.
    let mut server = seen(Some("u2"), None, "10.0.0.2:8000");
    server.vantage = Vantage::Server;
    let i = rig.push(server).unwrap();
    assert_eq!((of(&i.client_workload), of(&i.server_workload)), ("models/chat chat-1 -".into(), "models/chat vllm-1 -".into()));
    // Packets have no process: both ends by their addresses.
    let i = rig.push(Inference { process: None, vantage: Vantage::Unknown, ..seen(None, None, "10.0.0.2:8000") }).unwrap();
    assert_eq!((of(&i.client_workload), of(&i.server_workload)), ("models/chat chat-1 -".into(), "models/chat vllm-1 -".into()));
    assert_eq!((rig.count("named"), rig.count("waited")), (3, 0));
}

#[test]
fn a_pod_that_comes_late_names_the_record_that_waits() {
    let mut rig = rig(config::Config::default());
    assert!(rig.push(seen(Some("u1"), Some("u1-c1"), "1.1.1.1:443")).is_none());
    assert!(rig.due(Duration::from_millis(30)).is_empty());
    rig.pod(&of_deployment("chat-1", "u1", "10.0.0.1"));
    let ready = rig.due(Duration::from_millis(60));
    assert_eq!(of(&ready[0].client_workload), "models/chat chat-1 vllm");
    assert_eq!((rig.count("waited"), rig.count("waited_in_vain")), (1, 0));
}

#[test]
fn a_pod_that_does_not_come_costs_the_bounded_time_once() {
    let mut rig = rig(config::Config::default());
    assert!(rig.push(seen(Some("u1"), Some("c1"), "1.1.1.1:443")).is_none());
    assert!(rig.due(Duration::from_millis(1_990)).is_empty());
    let ready = rig.due(Duration::from_millis(2_010));
    let w = ready[0].client_workload.clone().unwrap();
    let texts = [&w.pod_uid, &w.container_id, &w.node, &w.pod].map(|n| n.as_ref().map(|n| n.as_str().to_owned()));
    assert_eq!(texts, [Some("u1".into()), Some("c1".into()), Some("n1".into()), None]);
    rig.now += Duration::from_secs(3);
    assert!(rig.push(seen(Some("u1"), Some("c1"), "1.1.1.1:443")).is_some(), "who waited in vain does not wait again");
    rig.now += Duration::from_secs(61);
    assert!(rig.push(seen(Some("u1"), Some("c1"), "1.1.1.1:443")).is_none(), "until a minute later");
    assert_eq!(rig.count("waited_in_vain"), 1);
}

#[test]
fn nobody_waits_where_no_name_can_come() {
    let mut rig = rig(config::Config::default());
    assert!(rig.push(seen(Some("u1"), None, "1.1.1.1:443")).is_none());
    rig.shared.set_mode(Mode::Cgroup);
    assert_eq!(rig.due(Duration::from_millis(50)).len(), 1, "who waits goes on");
    assert!(rig.push(seen(Some("u2"), None, "1.1.1.1:443")).is_some());
    let mut off = Enricher::new(&config::Config::default(), None);
    let i = off.push(Box::new(seen(Some("u1"), Some("c1"), "10.0.0.2:80")), rig.now, wall()).unwrap();
    assert_eq!(i.client_workload.clone().unwrap().container_id, Name::new("c1"));
    let mut patient = self::rig(config::Config { wait_ms: 0, ..config::Config::default() });
    assert!(patient.push(seen(Some("u1"), None, "1.1.1.1:443")).is_some());
}

#[test]
fn far_ends_are_asked_for_where_they_may_be_pods() {
    let mut rig = rig(config::Config { networks: vec!["203.0.113.0/24".into()], ..config::Config::default() });
    rig.pod(&of_deployment("chat-1", "u1", "10.0.0.1"));
    // A public address is nobody's.
    assert!(rig.push(seen(Some("u1"), None, "1.1.1.1:443")).is_some());
    assert!(rig.asked.try_recv().is_err());
    for server in ["10.9.0.1:80", "203.0.113.7:80", "[fd00::9]:80", "[::ffff:10.9.0.2]:80"] {
        assert!(rig.push(seen(Some("u1"), None, server)).is_none(), "{server}");
    }
    let far: Vec<Question> = std::iter::from_fn(|| rig.asked.try_recv().ok()).collect();
    let ips = ["10.9.0.1", "203.0.113.7", "fd00::9", "10.9.0.2"].map(|ip| Question::Address(ip.parse().unwrap()));
    assert_eq!(far, ips);
    let service = Arc::new(Workload { namespace: Name::new("models"), service: Name::new("vllm"), ..Workload::default() });
    rig.shared.write(|book, _| book.answer("10.9.0.1".parse().unwrap(), Answer::Is(service), rig.now));
    let ready = rig.due(Duration::from_millis(50));
    assert_eq!((ready.len(), of(&ready[0].server_workload)), (1, "models/vllm - -".into()));
    let off = config::Config { peers: config::Peers::Off, ..config::Config::default() };
    let mut rig = self::rig(off);
    rig.pod(&of_deployment("chat-1", "u1", "10.0.0.1"));
    assert!(rig.push(seen(Some("u1"), None, "10.9.0.1:80")).is_some());
}

#[test]
fn the_loopback_of_a_pod_is_the_pod_itself() {
    let mut rig = rig(config::Config::default());
    rig.pod(&of_deployment("chat-1", "u1", "10.0.0.1"));
    let i = rig.push(seen(Some("u1"), None, "127.0.0.1:11434")).unwrap();
    assert_eq!(of(&i.server_workload), "models/chat chat-1 -");
    let mut host = of_deployment("agent-1", "u2", "10.0.0.9");
    host["spec"]["hostNetwork"] = json!(true);
    rig.pod(&host);
    let i = rig.push(seen(Some("u2"), None, "127.0.0.1:11434")).unwrap();
    assert_eq!(of(&i.server_workload), "-", "on the host's network, loopback may be anyone");
}

#[test]
fn a_process_of_the_host_is_no_pod() {
    let mut rig = rig(config::Config::default());
    let i = rig.push(seen(None, None, "1.1.1.1:443")).unwrap();
    assert_eq!((of(&i.client_workload), rig.count("unnamed")), ("-".into(), 1));
}

#[test]
fn an_owner_above_is_waited_for() {
    let mut rig = rig(config::Config::default());
    let mut value = of_deployment("r-1", "u1", "10.0.0.1");
    value["metadata"]["labels"] = json!({});
    rig.pod(&value);
    assert!(rig.push(seen(Some("u1"), None, "1.1.1.1:443")).is_none());
    let Ok(Question::Owner(above)) = rig.asked.try_recv() else { panic!("nobody asked") };
    let top = tokengauge_core::workload::Owner {
        kind: tokengauge_core::workload::Kind::new("Rollout").unwrap(),
        name: Name::new("chat").unwrap(),
    };
    rig.shared.write(|book, _| book.answer_owner(&above, Some(Some(top)), rig.now));
    let ready = rig.due(Duration::from_millis(50));
    assert_eq!(of(&ready[0].client_workload), "models/chat r-1 -");
}

#[test]
fn those_that_wait_are_bounded_and_none_is_lost() {
    let mut rig = rig(config::Config::default());
    let out = (0..MAX_WAITING + 5).filter_map(|n| rig.push(seen(Some(&format!("u{n}")), None, "1.1.1.1:443"))).count();
    assert_eq!(out, 5);
    let rest = rig.enricher.rest(rig.now, wall());
    assert_eq!(rest.len(), MAX_WAITING);
    assert!(rest.iter().all(|i| i.client_workload.as_ref().unwrap().pod_uid.is_some()));
}

#[test]
fn everything_known_stands_on_a_span_and_what_is_chosen_on_a_point() {
    let mut rig = rig(config::Config::default());
    rig.pod(&of_deployment("chat-1", "u1", "10.0.0.1"));
    rig.pod(&of_deployment("vllm-1", "u2", "10.0.0.2"));
    let i = rig.push(seen(Some("u1"), Some("u1-c1"), "10.0.0.2:8000")).unwrap();
    let mut span = Vec::new();
    attributes::of_span(&i, |name, value| span.push(format!("{name}={value}")));
    span.sort();
    expect_test::expect![[r#"
        container.id=u1-c1
        k8s.container.name=vllm
        k8s.deployment.name=chat
        k8s.namespace.name=models
        k8s.node.name=n1
        k8s.pod.ip=10.0.0.1
        k8s.pod.label.app=chat
        k8s.pod.name=chat-1
        k8s.pod.uid=u1
        tokengauge.peer.k8s.namespace.name=models
        tokengauge.peer.k8s.node.name=n1
        tokengauge.peer.k8s.pod.name=vllm-1
        tokengauge.peer.k8s.pod.uid=u2
        tokengauge.peer.workload.kind=Deployment
        tokengauge.peer.workload.name=chat
        tokengauge.workload.kind=Deployment
        tokengauge.workload.name=chat"#]]
    .assert_eq(&span.join("\n"));
    let point = |chosen: &[Dimension]| {
        let mut all = Vec::new();
        attributes::of_point(&i, chosen, |name, value| all.push((name, value.as_str().to_owned())));
        all.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(point(&Dimension::USUAL), [names::NAMESPACE, names::DEPLOYMENT, names::NAME, names::PEER_NAMESPACE, names::PEER_NAME]);
    assert_eq!(
        point(&[Dimension::Pod, Dimension::Container, Dimension::Node, Dimension::PeerPod, Dimension::PeerNode]),
        [names::POD, names::CONTAINER, names::NODE, names::PEER_POD, names::PEER_NODE]
    );
    assert_eq!(point(&[]), Vec::<&str>::new());
}
