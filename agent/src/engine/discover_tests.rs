//! Command lines as people write them, tables as the kernel writes them, and a whole `/proc` made of files.
use super::*;
use std::os::unix::fs::symlink;

fn told(line: &str) -> Option<(Kind, Option<u16>, bool)> {
    let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
    identify(&argv).map(|t| (t.kind, t.port, t.tls))
}

#[test]
fn servers_are_known_by_their_command_lines() {
    for (line, want) in [
        ("/usr/bin/python3 /usr/local/bin/vllm serve Qwen/Qwen3-8B --port 8001", Some((Kind::Vllm, Some(8001), false))),
        ("vllm serve m --port=8001 --ssl-certfile c.pem --ssl-keyfile k.pem", Some((Kind::Vllm, Some(8001), true))),
        ("python -u -m vllm.entrypoints.openai.api_server --model m", Some((Kind::Vllm, None, false))),
        ("python3 -m sglang.launch_server --model-path m --port 30001 --enable-metrics", Some((Kind::Sglang, Some(30001), false))),
        ("python3 /opt/venv/bin/sglang serve --model-path m", Some((Kind::Sglang, None, false))),
        ("/usr/bin/python3.12 /usr/local/bin/trtllm-serve serve m --host 0.0.0.0", Some((Kind::TensorRtLlm, None, false))),
        ("text-generation-router --port 80 --hostname h", Some((Kind::Tgi, Some(80), false))),
        ("/app/llama-server -m m.gguf --metrics", Some((Kind::LlamaCpp, None, false))),
        ("tritonserver --model-repository=/m --http-port=8000 --metrics-port=9002", Some((Kind::Triton, Some(9002), false))),
        ("tritonserver --http-port 8000", Some((Kind::Triton, None, false))),
        // Not servers.
        ("vllm bench serve --port 8000", None),
        ("python3 -c import vllm", None),
        ("python3", None),
        ("vim /etc/llama-server", None),
        ("grep vllm serve", None),
        ("ollama serve", None),
        ("llama-server --port many", Some((Kind::LlamaCpp, None, false))),
    ] {
        assert_eq!(told(line), want, "{line}");
    }
    assert_eq!(identify(&[]), None);
}

#[test]
fn only_known_ports_are_asked() {
    let sockets = |ports: &[u16]| ports.iter().map(|p| (u64::from(*p), SocketAddr::from(([0, 0, 0, 0], *p)))).collect::<Vec<_>>();
    let chosen = |port, ports: &[u16]| choose(&Told { kind: Kind::Vllm, port, tls: false }, sockets(ports)).map(|(_, at)| at.port());
    assert_eq!(chosen(None, &[29500, 8000]), Some(8000));
    assert_eq!(chosen(Some(9000), &[29500, 8000, 9000]), Some(9000));
    assert_eq!(chosen(None, &[18000]), Some(18000));
    assert_eq!(chosen(None, &[18000, 29500]), None);
    assert_eq!(chosen(Some(9000), &[29500]), None);
    assert_eq!(chosen(None, &[]), None);
}

/// Words as a little-endian machine has them; the tests run on such.
const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0000 100 0 0 10 0
   1: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4243 1 0000 100 0 0 10 0
   2: 0500F40A:1F40 0600F40A:A000 01 00000000:00000000 00:00000000 00000000     0        0 4244 1 0000 20 4 30 10 -1
   3: broken
";
const TCP6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:7530 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 5001 1 0000 100 0 0 10 0
   1: 0000000000000000FFFF00000100007F:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 5002 1 0000 100 0 0 10 0
";

#[test]
fn listeners_are_read() {
    let found: Vec<_> = listeners(TCP).map(|(inode, at)| format!("{inode} {at}")).collect();
    assert_eq!(found, ["4242 127.0.0.1:8080", "4243 0.0.0.0:8000"]);
    let found: Vec<_> = listeners(TCP6).map(|(inode, at)| format!("{inode} {at}")).collect();
    assert_eq!(found, ["5001 [::]:30000", "5002 127.0.0.1:80"]);
}

const TRIE: &str = "Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 10.244.0.0
        /24 link UNICAST
Local:
  +-- 0.0.0.0/0 2 0 2
     |-- 10.244.0.5
        /32 host LOCAL
     |-- 127.0.0.1
        /32 host LOCAL
     |-- 10.244.0.255
        /32 link BROADCAST
";
const INET6: &str = "fd000000000000000000000000000005 02 40 00 80     eth0
fe80000000000000000000000000abcd 02 40 20 80     eth0
00000000000000000000000000000001 01 80 10 80       lo
";

#[test]
fn addresses_are_read() {
    assert_eq!(local_v4(TRIE), ["10.244.0.5".parse::<Ipv4Addr>().unwrap()]);
    assert_eq!(global_v6(INET6).collect::<Vec<_>>(), ["fd00::5".parse::<Ipv6Addr>().unwrap()]);
}

#[test]
fn where_a_server_is_reached() {
    let own: [IpAddr; 2] = ["10.244.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
    for (listens, foreign, ask, seen) in [
        ("0.0.0.0:8000", false, "127.0.0.1:8000", "10.244.0.5:8000 127.0.0.1:8000"),
        ("0.0.0.0:8000", true, "10.244.0.5:8000", "10.244.0.5:8000 127.0.0.1:8000"),
        ("[::]:8000", false, "[::1]:8000", "10.244.0.5:8000 [fd00::5]:8000 127.0.0.1:8000 [::1]:8000"),
        ("[::]:8000", true, "[fd00::5]:8000", "10.244.0.5:8000 [fd00::5]:8000 127.0.0.1:8000 [::1]:8000"),
        ("127.0.0.1:8000", false, "127.0.0.1:8000", "127.0.0.1:8000"),
        ("127.0.0.1:8000", true, "-", "127.0.0.1:8000"),
        ("10.244.0.5:8000", true, "10.244.0.5:8000", "10.244.0.5:8000"),
    ] {
        let (got, addresses) = reach(listens.parse().unwrap(), foreign, &own);
        assert_eq!(got.map_or("-".to_owned(), |a| a.to_string()), ask, "{listens} {foreign}");
        assert_eq!(addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "), seen, "{listens} {foreign}");
    }
}

/// A process of files.
fn process(root: &Path, pid: &str, argv: &[&str], netns: &str, sockets: &[u64]) {
    let dir = root.join(pid);
    for sub in ["fd", "net", "ns"] {
        fs::create_dir_all(dir.join(sub)).unwrap();
    }
    fs::write(dir.join("stat"), format!("{pid} (a ) b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 77{pid} 0 0\n")).unwrap();
    fs::write(dir.join("cmdline"), argv.join("\0") + "\0").unwrap();
    fs::write(dir.join("net/tcp"), TCP).unwrap();
    fs::write(dir.join("net/tcp6"), TCP6).unwrap();
    fs::write(dir.join("net/fib_trie"), TRIE).unwrap();
    symlink(netns, dir.join("ns/net")).unwrap();
    for (n, inode) in sockets.iter().enumerate() {
        symlink(format!("socket:[{inode}]"), dir.join("fd").join(n.to_string())).unwrap();
    }
    symlink("/dev/null", dir.join("fd/99")).unwrap();
}

#[test]
fn a_machine_is_scanned() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    process(root, "self", &["tokengauge"], "net:[1]", &[]);
    process(root, "10", &["/sbin/init"], "net:[1]", &[4242]);
    process(root, "20", &["llama-server", "-m", "x"], "net:[1]", &[4242]);
    process(root, "30", &["python3", "/bin/vllm", "serve", "m"], "net:[2]", &[4243, 4242]);
    // Its worker has the same socket, and another server has none yet.
    process(root, "31", &["python3", "/bin/vllm", "serve", "m"], "net:[2]", &[4243]);
    process(root, "40", &["python3", "-m", "sglang.launch_server"], "net:[1]", &[]);
    // On the loopback of a namespace of its own.
    process(root, "50", &["text-generation-router", "-p", "80"], "net:[3]", &[5002]);
    fs::write(root.join("uptime"), "1 1").unwrap();
    let mut processes = Processes::new(root);
    let shown = |found: &[Found]| {
        let one = |f: &Found| format!("{} {} at {} by {:?}", f.process.0, f.kind.as_str(), f.listens, f.ask);
        found.iter().map(one).collect::<Vec<_>>()
    };
    let found = processes.scan();
    let want = [
        "20 llama.cpp at 127.0.0.1:8080 by Some(127.0.0.1:8080)",
        "30 vllm at 0.0.0.0:8000 by Some(10.244.0.5:8000)",
        "50 tgi at 127.0.0.1:80 by None",
    ];
    // Which of parent and worker comes first is the directory's matter.
    let got: Vec<_> = shown(&found).iter().map(|l| l.replace("31 vllm", "30 vllm")).collect();
    assert_eq!(got, want);
    // A process that becomes a server, and one that goes.
    fs::write(root.join("10/cmdline"), "llama-server\0--port\08080\0").unwrap();
    fs::remove_dir_all(root.join("20")).unwrap();
    let found = processes.scan();
    assert_eq!((found[0].process, found[0].kind), ((10, 7710), Kind::LlamaCpp));
}

#[test]
fn a_process_descends_from_its_parent() {
    let own = std::process::id();
    let line = ancestry(own);
    assert_eq!((line[0], line.get(1).copied()), (own, Some(std::os::unix::process::parent_id()).filter(|p| *p > 1)));
    assert!(ancestry(u32::MAX).len() <= 1 && ancestry(0).is_empty());
}
