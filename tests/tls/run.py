#!/usr/bin/env python3
"""`replay --keylog` against a real OpenSSL: exchanges travel over TLS to a relay and plain from there on, and tcpdump captures both.

Each decrypted record must be the record of its plain leg; the decrypted bytes must be those that tshark decrypts; a pcapng file with
the secrets inside (editcap) must give what the key log gives; a capture with holes must invent nothing.

    tests/tls/run.py [--keep DIR] [--fixture DIR]     # TOKENGAUGE=path of the agent; `make test-tls` builds what it needs

With --fixture it only writes a small capture, its key log and what it must measure to, for the tests of the agent.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import ssl
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

import clients  # noqa: E402
from rig import AGENT, ROOT, Children, Record, Score, first_json_line, make_certificate  # noqa: E402

DECRYPTED = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "examples" / "decrypted"
# Between the legs lies the relay: it may cost that much, on a machine that does other things.
RELAY_SECONDS = 0.05
TLS12 = ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"]
TLS12 += ["ECDHE-RSA-AES128-GCM-SHA256", "AES256-GCM-SHA384"]
TLS13 = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]


class Capture:
    """tcpdump on loopback while the `with` block runs."""

    def __init__(self, children: Children, ports: dict[str, int], path: Path) -> None:
        self.children, self.path = children, path
        self.filter = " or ".join(f"tcp port {port}" for port in ports.values())

    def __enter__(self) -> Capture:
        # immediate: else the last second stays in a buffer that nobody reads any more
        command = ["tcpdump", "-i", "lo", "-B", "32768", "-s", "262144", "--immediate-mode", "--time-stamp-precision=nano"]
        command += ["-w", self.path, self.filter]
        self.child = self.children.start(command, stderr=subprocess.PIPE)
        assert self.child.stderr is not None
        while b"listening" not in (line := self.child.stderr.readline()):
            if not line:
                raise SystemExit("tcpdump does not capture: is this root?")
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0.5)
        self.child.send_signal(signal.SIGINT)
        self.child.wait(10)


def start(children: Children, folder: Path, rsa: bool) -> dict[str, int]:
    """The server with its relays; their ports."""
    pairs = list(make_certificate(folder))
    if rsa:
        (folder / "rsa").mkdir()
        cert, key = folder / "rsa" / "cert.pem", folder / "rsa" / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        subprocess.run([*command, "-out", str(cert), "-keyout", str(key)], check=True, capture_output=True)
        pairs += [cert, key]
    server = children.start([sys.executable, HERE / "server.py", *pairs], stdout=subprocess.PIPE)
    ports = first_json_line(server)
    return {name: int(port) for name, port in ports.items()}


def exchanges(ports: dict[str, int], keylog: Path, score: Score) -> list[str]:
    """Everything that is captured; the names of the exchanges."""
    names: list[str] = []

    def name(what: str) -> str:
        names.append(what)
        return what

    for cipher in TLS12:
        clients.curl(ports["tls12"], keylog, "s12x15", name(f"curl-{cipher}"), "--tls-max", "1.2", "--ciphers", f"{cipher}@SECLEVEL=0")
    for cipher in TLS13:
        clients.curl(ports["tls13"], keylog, "s12x15", name(f"curl-{cipher}"), "--tlsv1.3", "--tls13-ciphers", cipher)
    clients.curl(ports["retry"], keylog, "s5x10", name("curl-retry"), "--tlsv1.3")
    prompt = "a long prompt " * 20_000
    for version, option in [("tls12", "--tls-max"), ("tls13", "--tlsv1.3")]:
        options = [option, "1.2"] if version == "tls12" else [option]
        clients.curl(ports[version], keylog, "big", name(f"curl-big-{version}"), *options, prompt=prompt)
    for cipher in TLS13:
        update = ["K", "k", "K", "K"]
        clients.s_client(ports["tls13"], keylog, "s40x20", name(f"updates-{cipher}"), update, "-ciphersuites", cipher)
    clients.s_client(ports["tls12"], keylog, "s5x20", name("s_client-tls12"), [], "-tls1_2")
    for version, port in [(ssl.TLSVersion.TLSv1_2, "tls12"), (ssl.TLSVersion.TLSv1_3, "tls13")]:
        models = [("s5x10", name(f"python-{port}-{n}")) for n in range(3)]
        resumed = clients.python(ports[port], keylog, models, version)
        score.check(resumed == 2, f"{port}: {resumed} of 2 sessions were resumed")
        clients.python(ports[port], keylog, [("s30x20", name(f"python-{port}-leaves"))], version, leave_after=5)
    return names


def replay(capture: Path, *options: str | Path) -> tuple[int, list[Record], Record, str]:
    """Exit code, records, statistics, and all that was said on standard error."""
    command = [AGENT, "replay", capture, "--format", "jsonl", *options]
    done = subprocess.run([str(word) for word in command], capture_output=True, timeout=120)
    error = done.stderr.decode(errors="replace")
    stats = [line for line in error.splitlines() if line.startswith("{")]
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], json.loads(stats[-1]) if stats else {}, error


def legs(records: list[Record], ports: dict[str, int]) -> tuple[dict[str, Record], dict[str, Record]]:
    """The records of the encrypted and of the plain legs, by exchange."""
    encrypted: dict[str, Record] = {}
    plain: dict[str, Record] = {}
    for record in records:
        key = str(record["response"].get("id") or "").removeprefix("chatcmpl-")
        (plain if record["server"]["port"] == ports["plain"] else encrypted)[key] = record
    return encrypted, plain


def flat(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Leaves of a JSON value with their paths."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{path}.{key}".lstrip("."))
    else:
        yield path, value


# What differs between the legs by nature: addresses, ids, the instant of the beginning. Rates follow from times.
APART = ("client.", "server.", "trace.", "start_unix_nano", "rates.")

PASSED_TOGETHER = (ARRIVALS, COALESCED) = ("chunks.arrivals", "chunks.coalesced")


def same(encrypted: Record, plain: Record) -> list[str]:
    """In what two records differ that should not; times may differ by what the relay costs."""
    mine, theirs = dict(flat(encrypted)), dict(flat(plain))
    bad = [f"{path}: only on one side" for path in mine.keys() ^ theirs.keys()]
    for path in mine.keys() & theirs.keys():
        a, b = mine[path], theirs[path]
        if a == b or path.startswith(APART) and (a is None) == (b is None):
            continue
        # A relay that was kept waiting passes on two chunks at once: fewer arrivals, as many more that came together.
        if path in PASSED_TOGETHER and mine[ARRIVALS] <= theirs[ARRIVALS] and mine[ARRIVALS] + mine[COALESCED] == theirs[ARRIVALS] + theirs[COALESCED]:
            continue
        if path.startswith("timing_s.") and isinstance(a, float) and isinstance(b, float) and abs(a - b) <= RELAY_SECONDS:
            continue
        bad.append(f"{path}: {a} and {b}")
    return bad


def tshark_streams(capture: Path, keylog: Path) -> dict[tuple[int, int], bytes]:
    """What tshark decrypts: bytes by (port of the sender, port of the receiver)."""

    def tshark(*options: str) -> str:
        command = ["tshark", "-r", str(capture), "-o", f"tls.keylog_file:{keylog}", *options]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    streams = sorted({int(n) for n in tshark("-Y", "tls", "-T", "fields", "-e", "tcp.stream").split()})
    out: dict[tuple[int, int], bytes] = {}
    for number in streams:
        text = tshark("-q", "-z", f"follow,tls,raw,{number}")
        # tshark 4.0 does not name the other end
        ends = tshark("-Y", f"tcp.stream eq {number}", "-T", "fields", "-e", "tcp.srcport", "-e", "tcp.dstport").split()[:2]
        first = re.search(r"^Node 0: .*:(\d+)$", text, re.MULTILINE)
        said = [b"", b""]
        for line in text.splitlines():
            if re.fullmatch(r"\t?[0-9a-f]+", line):
                said[line.startswith("\t")] += bytes.fromhex(line.strip())
        one, other = map(int, ends if first and ends[0] == first[1] else reversed(ends))
        out[one, other], out[other, one] = said
    return out


def our_streams(capture: Path, *keylog: Path) -> dict[tuple[int, int], bytes]:
    """What we decrypt, the same way."""
    text = subprocess.run([DECRYPTED, capture, *keylog], check=True, capture_output=True, text=True).stdout
    words = [line.split(" ") for line in text.splitlines()]
    port = lambda address: int(address.rpartition(":")[2])  # noqa: E731
    return {(port(a), port(b)): bytes.fromhex(data) for a, b, data in words}


def without(capture: Path, out: Path, step: int) -> None:
    """Copies a capture without every `step`th packet that carries something."""
    data = capture.read_bytes()
    out_bytes, at, number = data[:24], 24, 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at + 8)
        packet = data[at + 16 : at + 16 + length]
        ip = packet[14:]
        header = (ip[0] & 15) * 4
        carried = struct.unpack_from(">H", ip, 2)[0] - header - (ip[header + 12] >> 4) * 4
        number += carried > 0
        if carried <= 0 or number % step:
            out_bytes += data[at : at + 16 + length]
        at += 16 + length
    out.write_bytes(out_bytes)


def check(folder: Path, ports: dict[str, int], names: list[str], keylog: Path, score: Score) -> None:
    """All checks on one capture."""
    capture = folder / "capture.pcap"
    code, records, stats, said = replay(capture, "--keylog", keylog)
    encrypted, plain = legs(records, ports)
    score.check(code == 0, f"replay --keylog: exit code {code}")
    for name in names:
        if not score.check(name in encrypted and name in plain, f"{name}: measured on both legs"):
            continue
        bad = same(encrypted[name], plain[name])
        if name.endswith("leaves"):
            # the relay had taken one more chunk when it learnt that the client was gone
            bad = [what for what in bad if not re.match(r"chunks|response.bytes|timing_s.inter_chunk.count", what)]
        score.check(not bad, f"{name}: decrypted = plain {'; '.join(bad)}")
    odd = {name: n for name, n in stats.get("anomalies", {}).items() if name.startswith("tls")}
    score.check(not odd and not any(stats["gaps"].values()), f"nothing odd: {odd} {stats['gaps']}")
    score.check(stats["capture"]["decrypted_connections"] == len(names), f"{stats['capture']['decrypted_connections']} connections decrypted")
    secrets = {word for line in keylog.read_text().splitlines() for word in line.split()[1:]}
    score.check(not any(word in json.dumps(records) + said for word in secrets), "no secret in any output")

    theirs, ours = tshark_streams(capture, keylog), our_streams(capture, keylog)
    score.check(len(theirs) == 2 * len(names), f"tshark decrypts {len(theirs) // 2} connections")
    differ = [ends for ends, data in theirs.items() if ours.get(ends) != data]
    total = sum(map(len, theirs.values()))
    score.check(not differ and total > 0, f"the {total} bytes are those that tshark decrypts {differ}")

    inside = folder / "inside.pcapng"
    subprocess.run(["editcap", "--inject-secrets", f"tls,{keylog}", str(capture), str(inside)], check=True, capture_output=True)
    code, again, _, _ = replay(inside)
    score.check(code == 0 and again == records, f"secrets inside a pcapng file: {len(again)} records of {len(records)}, the same")

    code, alone, stats, _ = replay(capture)
    score.check(code == 0 and len(alone) == len(names), f"without secrets: {len(alone)} records, those of the plain legs")
    other = folder / "other.keylog"
    other.write_text(f"CLIENT_RANDOM {'00' * 32} {'11' * 48}\n")
    code, alone, stats, _ = replay(capture, "--keylog", other)
    counted = stats["anomalies"].get("tls_no_key")
    score.check(code == 0 and len(alone) == len(names) and counted == len(names), f"with others' secrets: tls_no_key {counted}")
    code, _, _, said = replay(capture, "--keylog", capture)
    score.check(code == 1 and "capture.pcap: line " in said, "a file that is no key log is refused by line")

    holes = folder / "holes.pcap"
    for step in (7, 23, 61):
        without(capture, holes, step)
        code, damaged, stats, said = replay(holes, "--keylog", keylog)
        score.check(code == 0 and "panicked" not in said, f"every {step}th packet lost: exit code {code}")
        invented = []
        for record in damaged:
            key = str(record["response"].get("id") or "").removeprefix("chatcmpl-")
            clean = (plain if record["server"]["port"] == ports["plain"] else encrypted).get(key)
            for figure in ("ttft", "tpot", "duration", "max_stall"):
                value = record["timing_s"][figure]
                if clean and value is not None and value != clean["timing_s"][figure]:
                    invented.append(f"{key} {figure} {value}")
        gaps = sum(stats["gaps"].values())
        score.check(not invented and gaps > 0, f"every {step}th packet lost: {len(damaged)} records, {gaps} gaps, nothing invented {invented}")


def main() -> None:
    """Everything."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--keep", type=Path, help="leave capture and key log here")
    options.add_argument("--fixture", type=Path, help="write the fixture of the agent's tests here, and nothing else")
    chosen = options.parse_args()
    score = Score()
    with Children() as children, tempfile.TemporaryDirectory() as scratch:
        folder = chosen.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        keylog = folder / "keys.log"
        keylog.unlink(missing_ok=True)
        ports = start(children, Path(scratch), rsa=not chosen.fixture)
        if chosen.fixture:
            fixture(children, ports, chosen.fixture)
            return
        with Capture(children, ports, folder / "capture.pcap"):
            names = exchanges(ports, keylog, score)
        check(folder, ports, names, keylog, score)
    score.finish()


def fixture(children: Children, ports: dict[str, int], folder: Path) -> None:
    """Two exchanges: TLS 1.2, and TLS 1.3 with key updates. Their plain legs are in the capture as well."""
    folder.mkdir(parents=True, exist_ok=True)
    keylog = folder / "tls.keylog"
    keylog.unlink(missing_ok=True)
    with Capture(children, ports, folder / "tls.pcap"):
        clients.curl(ports["tls12"], keylog, "s4x40", "one", "--tls-max", "1.2", "--ciphers", TLS12[0])
        clients.s_client(ports["tls13"], keylog, "s6x80", "two", ["K", "k"], "-ciphersuites", TLS13[2])
    used = [line for line in keylog.read_text().splitlines() if not line.startswith(("#", "EXPORTER"))]
    keylog.write_text("\n".join(used) + "\n")


main()
