#!/usr/bin/env python3
"""Real input: a llama.cpp server behind nginx and behind HAProxy with TLS, HTTP/1.1 and HTTP/2, real clients, and tokengauge
tapping from outside.

Each request is looked for at both ends, in the client's process and in the front, and its record is compared with what the
client itself stamped and with llama.cpp's own timings. Requests are found by their model name, which is unique.

    tests/real/setup.sh && tests/real/run.py             # TOKENGAUGE=path of the agent, TOKENGAUGE_CACHE=folder of setup
    tests/real/run.py --chain haproxy.h2                 # one of nginx.h1, nginx.h2, haproxy.h1, haproxy.h2
    tests/real/run.py --without-agent                    # only the chain and the clients' own truth
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "lib"), str(HERE / "clients"), str(HERE)]

import common  # noqa: E402 (the path above comes first)
from front import start_front  # noqa: E402
from rig import CACHE, Agent, Children, Record, Score, first_json_line, free_port, make_certificate  # noqa: E402
from rig import quantile, read_jsonl, skip_without_bpf, wait_for_port  # noqa: E402

# Bounds for a machine that is busy with other things: on two cores it is the clients' own stamps that come late, so
# medians and p90 are held, not each value. tests/live measures accuracy; this shows that all of it works.
BOUNDS = {"ttft_s": (0.005, 0.025), "tpot_own": (0.02, 0.15), "tpot_llama": (0.02, 0.15)}
SECRETS = (common.API_KEY, common.PROMPT, "planted-prompt-phrase")
MEMORY_BIO = ("asyncio", "node")
CHAINS = ("nginx.h1", "nginx.h2", "haproxy.h1", "haproxy.h2")


def clients(base: str, out: Path, cert: Path, version: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Every client: name to command and environment."""
    python = str(CACHE / "venv" / "bin" / "python")
    shared = ["--base", base, "--out", str(out), *(["--http2"] if version == "h2" else [])]
    environment = os.environ | {"SSL_CERT_FILE": str(cert), "NODE_EXTRA_CA_CERTS": str(cert), "CACHE": str(CACHE)}
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        environment.pop(name, None)
    told = json.dumps(
        {
            "apiKey": common.API_KEY, "prompt": common.PROMPT, "tokens": common.TOKENS, "streams": common.STREAMS,
            "cancelAfter": common.CANCEL_AFTER, "cancelTokens": common.CANCEL_TOKENS,
            "plainTokens": common.PLAIN_TOKENS, "llama": common.LLAMA,
        }
    )  # fmt: skip
    scripts = HERE / "clients"
    return {
        "openai-sync": ([python, str(scripts / "openai_sdk.py"), *shared], environment),
        "openai-asyncio": ([python, str(scripts / "openai_sdk.py"), *shared, "--asyncio"], environment),
        "anthropic-sync": ([python, str(scripts / "anthropic_sdk.py"), *shared], environment),
        "anthropic-asyncio": ([python, str(scripts / "anthropic_sdk.py"), *shared, "--asyncio"], environment),
        "curl": ([python, str(scripts / "curl.py"), *shared], environment),
        "node": (["node", str(scripts / "node_sdk.mjs"), *shared, "--common", told], environment),
    }


def start_chain(children: Children, folder: Path, front: str) -> tuple[int, Path]:
    """llama.cpp and what stands before it; returns the front's port and the certificate."""
    model = CACHE / "model.gguf"
    if not model.exists():
        raise SystemExit(f"no {model}: run tests/real/setup.sh first")
    with (folder / "llama.log").open("wb") as log:
        llama = children.start(
            [CACHE / "venv" / "bin" / "python", HERE / "server.py", model], stdout=subprocess.PIPE, stderr=log
        )
    upstream = first_json_line(llama)["port"]
    wait_for_port(upstream, llama)
    cert, _ = make_certificate(folder)
    folder.chmod(0o755)  # nginx started by root works as nobody
    template = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg"}[front]
    port = start_front(children, folder, HERE / template, upstream)
    return port, cert


def run_clients(base: str, folder: Path, cert: Path, version: str, score: Score) -> list[Record]:
    """All clients, one after another; returns their truth."""
    out = folder / "truth.jsonl"
    for name, (command, environment) in clients(base, out, cert, version).items():
        start = time.monotonic()
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            score.check(False, f"client {name} ended within two minutes")
            continue
        score.check(done.returncode == 0, f"client {name} ran ({time.monotonic() - start:.1f} s)")
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-4000:], sep="\n")
    return read_jsonl(out)


def check_truth(truth: list[Record], score: Score) -> None:
    """The clients' own lines: what the rest is compared with must hold by itself."""
    wanted = 7 * (common.STREAMS + 3)
    score.check(len(truth) == wanted, f"clients wrote {len(truth)} of {wanted} lines of truth")
    for line in truth:
        outputs = line["outputs_ns"]
        what = f"truth of {line['model']}:"
        holds = line["status"] == (400 if line["case"] == "error" else 200)
        if line["case"] == "stream":
            holds &= line["output_tokens"] == common.TOKENS and len(outputs) > 1 and bool(line["id"])
        elif line["case"] == "cancel":
            holds &= len(outputs) >= common.CANCEL_AFTER and bool(line["id"]) and line["output_tokens"] in (None, 0, 1)
        elif line["case"] == "plain":
            holds &= line["output_tokens"] == common.PLAIN_TOKENS and not outputs
        if line["t_send_ns"] and outputs:
            holds &= line["t_send_ns"] < outputs[0] <= outputs[-1] <= line["end_ns"]
        holds &= line["t_send_ns"] is not None
        score.check(holds, f"{what} complete, in order" if holds else f"{what} {json.dumps(line)[:600]}")


def check_record(line: Record, vantage: str, port: int, record: Record, score: Score) -> dict[str, float]:
    """One record beside its truth; returns the absolute errors: of TTFT in seconds, of TPOT as a share of the
    client's and of llama.cpp's own."""
    what, case = f"{line['model']} at the {vantage}:", line["case"]
    score.check(record["outcome"] == line["outcome"], f"{what} outcome {record['outcome']}")
    score.check(record["tap"] == "tls", f"{what} tapped by {record['tap']}")
    status = record["response"]["status"]
    score.check(status == line["status"], f"{what} status {status}")
    if case != "error":
        score.check(record["response"]["id"] == line["id"], f"{what} response id {record['response']['id']}")
    if case in ("stream", "plain"):
        usage = record["usage"]
        seen = (usage["input_tokens"], usage["output_tokens"])
        told = (line["input_tokens"], line["output_tokens"])
        score.check(seen == told, f"{what} tokens {seen}, told {told}")
    check_endpoints(line, what, port, record, score)
    if case not in ("stream", "cancel"):
        return {}

    timing, outputs, errors = record["timing_s"], line["outputs_ns"], {}
    if not score.check(timing["ttft"] is not None, f"{what} has a TTFT (undefined: {record['undefined']})"):
        return {}
    errors["ttft_s"] = abs(timing["ttft"] - (outputs[0] - line["t_send_ns"]) / 1e9)
    if case == "cancel":
        return errors
    if line["server_prompt_ms"]:
        rest = timing["ttft"] - line["server_prompt_ms"] / 1e3
        score.check(rest > -0.001, f"{what} TTFT is {rest * 1e3:.2f} ms above llama.cpp's own prompt time")
    score.check(record["chunks"]["generated"] == len(outputs), f"{what} {record['chunks']['generated']} output events")
    if not score.check(timing["tpot"] is not None, f"{what} has a TPOT (undefined: {record['undefined']})"):
        return errors
    own = (outputs[-1] - outputs[0]) / 1e9 / (line["output_tokens"] - 1)
    errors["tpot_own"] = abs(timing["tpot"] / own - 1)
    if line["server_ms_per_token"]:
        errors["tpot_llama"] = abs(timing["tpot"] / line["server_ms_per_token"] * 1e3 - 1)
    return errors


def check_endpoints(line: Record, what: str, port: int, record: Record, score: Score) -> None:
    """Equal to the sockets' own where the library sees a socket; null or equal where it sees memory BIOs."""
    client, server = record["client"] or {}, record["server"] or {}
    seen = (client.get("port"), server.get("port"))
    own = line["local"][1] if line["local"] else None
    right = seen[0] in (own, None) or own is None
    right &= seen[1] in (port, None)
    memory_bio = any(word in line["client"] for word in MEMORY_BIO) and record["vantage"] == "client"
    if not memory_bio:
        right &= seen[1] == port and seen[0] is not None
    score.check(right, f"{what} ports {seen}, really {(own, port)}")


def compare(truth: list[Record], records: list[Record], port: int, score: Score) -> None:
    """Every request at both ends; then the summary by client."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if "-warm-" in (record["request"]["model"] or ""):
            continue
        found[record["request"]["model"], record["vantage"]].append(record)
    errors: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    known: dict[tuple[str, str], int] = defaultdict(int)
    for line in truth:
        for vantage in ("client", "server"):
            here = found.pop((line["model"], vantage), [])
            if score.check(len(here) == 1, f"{line['model']} at the {vantage}: {len(here)} record"):
                key = (line["client"], vantage)
                errors[key].append(check_record(line, vantage, port, here[0], score))
                known[key] += bool(here[0]["client"] and here[0]["client"].get("port"))
    score.check(not found, f"no record beyond those asked for {sorted(found)[:5]}")

    heads = ["client", "vantage", "records", "5-tuple", "TTFT ms", "TPOT/own", "TPOT/llama"]
    print("\nmedian error beside the client's own stamps and llama.cpp's timings")
    print("{:18} {:8} {:>8} {:>8} {:>9} {:>9} {:>10}".format(*heads))
    for (client, vantage), rows in sorted(errors.items()):
        ttft, own, llama = (quantile((row[name] for row in rows if name in row), 0.5) for name in BOUNDS)
        print(
            f"{client:18} {vantage:8} {len(rows):8} {known[client, vantage]:8} {ttft * 1e3:9.2f} {own:9.2%} {llama:10.2%}"
        )
    for name, (median, p90) in BOUNDS.items():
        for vantage in ("client", "server"):
            all_of = [row[name] for key, rows in errors.items() for row in rows if key[1] == vantage and name in row]
            seen = quantile(all_of, 0.5), quantile(all_of, 0.9)
            what = f"{name} at the {vantage}: median error {seen[0]:.4f} <= {median}, p90 {seen[1]:.4f} <= {p90}"
            score.check(seen[0] <= median and seen[1] <= p90, what)


def run_chain(chain: str, folder: Path, without_agent: bool, score: Score) -> None:
    """Everything behind one front, over one version of HTTP."""
    front, version = chain.split(".")
    print(f"\n== {chain}")
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("truth.jsonl", "records.jsonl"):
        (folder / file).unlink(missing_ok=True)
    with Children() as children:
        port, cert = start_chain(children, folder, front)
        agent = None if without_agent else Agent(children, folder)
        if agent is not None:
            # Node carries its OpenSSL inside: the executable is found, as any new file, within a second of its first start.
            subprocess.run(["node", "-e", "setTimeout(() => {}, 2500)"], check=False)
        truth = run_clients(f"https://localhost:{port}", folder, cert, version, score)
        check_truth(truth, score)
        if agent is None:
            return
        time.sleep(0.5)
        records = agent.stop()
        wanted = {"h1": "http/1.1", "h2": "http/2"}[version]
        spoken = {record["protocol"] for record in records}
        score.check(spoken == {wanted}, f"everything went over {wanted}: {spoken}")
        compare(truth, records, port, score)
        said = agent.records_path.read_text() + agent.log()
        for secret in SECRETS:
            score.check(secret not in said, f"{secret[:12]}… appears in no output")
        if score.failed:
            print(agent.log()[-3000:])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-agent", action="store_true")
    parser.add_argument("--chain", choices=CHAINS, action="append", help="only this; may be repeated")
    parser.add_argument("--keep", type=Path, help="write records, truth and logs into folders here and keep them")
    args = parser.parse_args()
    if not args.without_agent:
        skip_without_bpf()
    score = Score()
    with tempfile.TemporaryDirectory(prefix="tokengauge-real-") as name:
        for chain in args.chain or CHAINS:
            run_chain(chain, (args.keep or Path(name)) / chain, args.without_agent, score)
    score.finish()


if __name__ == "__main__":
    main()
