use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use tokengauge_core::hook::batch::MAX_MESSAGE;
use tokengauge_core::hook::event::Kind;

use super::*;
use crate::tap::tls::sys;

/// Keeps what it is given.
#[derive(Default)]
struct Kept {
    events: Mutex<Vec<Event>>,
    lost: Mutex<Vec<Source>>,
    gone: Mutex<Vec<Source>>,
}

impl HookSink for Kept {
    fn take(&self, events: &[Event]) {
        self.events.lock().unwrap().extend(events);
    }

    fn lost(&self, source: Source) {
        self.lost.lock().unwrap().push(source);
    }

    fn gone(&self, source: Source) {
        self.gone.lock().unwrap().push(source);
    }
}

/// A batch of received requests, as a sender of ours writes it.
fn batch(version: u64, dropped: u64, requests: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    let integer = |number: u8, mut v: u64, out: &mut Vec<u8>| {
        out.push(number << 3);
        while v >= 0x80 {
            out.push(v as u8 | 0x80);
            v >>= 7;
        }
        out.push(v as u8);
    };
    integer(1, version, &mut out);
    integer(2, sys::monotonic(), &mut out);
    integer(3, dropped, &mut out);
    for id in requests {
        let mut event = Vec::new();
        integer(2, 1, &mut event);
        event.extend([3 << 3 | 2, id.len() as u8]);
        event.extend(id.bytes());
        out.extend([4 << 3 | 2, event.len() as u8]);
        out.extend(event);
    }
    [(out.len() as u32).to_le_bytes().to_vec(), out].concat()
}

struct Rig {
    hook: Hook,
    kept: Arc<Kept>,
    path: PathBuf,
    stop: StopFlag,
    _folder: tempfile::TempDir,
}

fn rig(uids: Vec<u32>) -> Rig {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hook.sock");
    let kept = Arc::<Kept>::default();
    let config = Config { tap: Some(false), socket: Some(path.clone()), uids, ..Config::default() };
    let sink: Arc<dyn HookSink> = Arc::clone(&kept) as _;
    let stop = StopFlag::default();
    let hook = Hook::start(&config, true, &[], &sink, &stop).unwrap();
    Rig { hook, kept, path, stop, _folder: folder }
}

impl Rig {
    fn told(&self) -> std::collections::BTreeMap<String, u64> {
        let mut all = std::collections::BTreeMap::new();
        self.hook.told.as_ref().unwrap().observe(&mut |metric, attributes, value| {
            let of: Vec<_> = attributes.iter().map(|(_, v)| *v).collect();
            let name = metric.name.splitn(3, '.').last().unwrap_or_default();
            assert!(all.insert(format!("{name} {}", of.join(" ")), value as u64).is_none());
        });
        all
    }

    fn until(&self, what: impl Fn() -> bool) {
        for _ in 0..1_000 {
            if what() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it did not come: {:?}", self.told());
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

#[test]
fn batches_arrive_and_what_is_none_is_counted() {
    let rig = rig(Vec::new());
    let mut server = UnixStream::connect(&rig.path).unwrap();
    let bytes = [batch(1, 0, &["a", "b"]), batch(9, 0, &["c"]), batch(1, 7, &["d", ""]), vec![3, 0, 0, 0, 0xff, 0xff, 0xff]].concat();
    // In two pieces, the cut within a message.
    server.write_all(&bytes[..40]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    server.write_all(&bytes[40..]).unwrap();
    rig.until(|| rig.told()["events socket bad_message"] == 1);
    let told = rig.told();
    for (key, want) in [
        ("events socket taken", 3),
        ("events socket unknown_version", 1),
        ("events socket bad_request_id", 1),
        ("events socket dropped_by_server", 7),
        ("connections accepted", 1),
        ("connections broken", 0),
        ("sources socket", 1),
    ] {
        assert_eq!(told[key], want, "{key}");
    }
    let events: Vec<_> = rig.kept.events.lock().unwrap().iter().map(|e| (e.request.as_str().to_owned(), e.kind, e.source)).collect();
    let source = Source { via: Via::Socket, pid: std::process::id(), connection: 1 };
    assert_eq!(events, ["a", "b", "d"].map(|id| (id.to_owned(), Kind::Received, source)));
    assert_eq!(*rig.kept.lost.lock().unwrap(), [source]);
    drop(server);
    rig.until(|| !rig.kept.gone.lock().unwrap().is_empty());
    assert_eq!(*rig.kept.gone.lock().unwrap(), [source]);
    rig.until(|| rig.told()["sources socket"] == 0);
}

#[test]
fn a_server_that_dies_within_a_batch_and_one_that_is_no_server() {
    let rig = rig(Vec::new());
    let whole = batch(1, 0, &["a"]);
    let mut dies = UnixStream::connect(&rig.path).unwrap();
    dies.write_all(&whole[..whole.len() - 1]).unwrap();
    drop(dies);
    let mut other = UnixStream::connect(&rig.path).unwrap();
    other.write_all(&(MAX_MESSAGE as u32 + 1).to_le_bytes()).unwrap();
    rig.until(|| rig.told()["connections broken"] == 2);
    assert_eq!((rig.told()["events socket taken"], rig.told()["events socket bad_message"]), (0, 1));
    // The agent closed the second one itself.
    use std::io::Read as _;
    assert_eq!(other.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn another_user_is_refused() {
    let rig = rig(vec![4_242]);
    let mut server = UnixStream::connect(&rig.path).unwrap();
    let _ = server.write_all(&batch(1, 0, &["a"]));
    rig.until(|| rig.told()["connections refused_user"] == 1);
    assert_eq!((rig.told()["connections accepted"], rig.told()["events socket taken"]), (0, 0));
}

#[test]
fn a_socket_that_was_left_is_replaced_and_one_in_use_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let first = socket::bind(&path).unwrap();
    assert_eq!(socket::bind(&path).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    drop(first);
    drop(socket::bind(&path).unwrap());
    let file = folder.path().join("f");
    std::fs::write(&file, "kept").unwrap();
    assert!(socket::bind(&file).is_err());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
}

#[test]
fn settings_are_checked() {
    let bad = |config: Config| config.check().unwrap_err();
    assert_eq!(bad(Config { ring_mib: 3, ..Config::default() }), "ring_mib: 3 is no power of two up to 1024");
    assert!(bad(Config { socket: Some("x".repeat(200).into()), ..Config::default() }).ends_with("is not between 1 and 107 bytes long"));
    assert!(Config::default().check().is_ok());
    assert!(Config::default().allowed().contains(&0));
    assert_eq!(Config { uids: vec![5], ..Config::default() }.allowed(), [5]);
}
