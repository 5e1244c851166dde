#!/usr/bin/env python3
"""Real SDKs against a local provider that speaks each provider's own wire at a known schedule, tapped by tokengauge.

Python and Node SDKs and curl talk TLS, HTTP/1.1 and HTTP/2, to nginx, to HAProxy or to the provider itself; each call is
looked for at both ends and its record is compared with what the provider wrote down and what the SDK saw.

    tests/real/setup.sh && tests/real/run_sdks.py        # TOKENGAUGE=path of the agent, TOKENGAUGE_CACHE=folder of setup
    tests/real/run_sdks.py --without-agent               # only the provider and the SDKs' own views
    tests/real/run_sdks.py --doc tests/real/SDKS.md      # writes the table
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "lib"), str(HERE)]

import sdk_score  # noqa: E402 (the path above comes first)
from front import start_front  # noqa: E402
from rig import CACHE, Agent, Children, Score, first_json_line, free_port, make_certificate, read_jsonl  # noqa: E402
from rig import skip_without_bpf, wait_for_port  # noqa: E402

HOSTS = (*sdk_score.PROVIDERS, "ollama.rig.test", sdk_score.PROXY_HOST)
SECRETS = ("sk-planted-tokengauge-secret-5c1e", "planted-prompt-phrase", "harbour", "look_up_tide")
AT_ONCE = 3  # clients; they mostly wait
PYTHON_SDKS = ("openai", "anthropic", "google", "aws", "cohere", "mistral", "ollama")
NODE_SDKS = ("openai", "anthropic", "google", "ollama", "cohere", "mistral")
Job = tuple[str, str, list[str]]
MARKS = ("<!-- sdks -->", "<!-- /sdks -->")


def jobs() -> Iterator[Job]:
    """Every client: name, front, command without where to connect."""
    python, scripts = str(CACHE / "venv" / "bin" / "python"), HERE / "sdks"
    for sdk in PYTHON_SDKS:
        command = [python, str(scripts / "python_sdk.py"), sdk]
        yield f"{sdk} sync h1", "nginx", command
        if sdk == "aws":
            continue  # boto3 has neither asyncio nor HTTP/2
        yield f"{sdk} asyncio h1", "haproxy", [*command, "--asyncio"]
        yield f"{sdk} sync h2", "haproxy", [*command, "--h2"]
        yield f"{sdk} asyncio h2", "direct" if sdk in ("openai", "anthropic") else "nginx", [*command, "--h2", "--asyncio"]
    for number, sdk in enumerate(NODE_SDKS):
        front = ("nginx", "haproxy", "direct")[number % 3]
        yield f"{sdk} node", front, ["node", str(scripts / "node_sdk.mjs"), sdk]
    for flags in ([], ["--asyncio"]):
        command = [python, str(scripts / "python_sdk.py"), "litellm", *flags]
        yield f"litellm {'asyncio' if flags else 'sync'} h1", "litellm", command
    for front in ("nginx", "haproxy", "direct"):
        for flags in ([], ["--h2"]):
            yield f"curl {' '.join(flags)} {front}", front, [python, str(scripts / "curl_calls.py"), *flags]


def start_provider(children: Children, folder: Path) -> dict[str, int]:
    """The provider and its fronts; returns the port of each front."""
    cert, key = make_certificate(folder, HOSTS)
    folder.chmod(0o755)  # nginx started by root works as nobody
    command = [CACHE / "venv" / "bin" / "python", "-m", "provider", "--cert", cert, "--key", key]
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    with (folder / "provider.log").open("wb") as log:
        provider = children.start(
            [*command, "--truth", folder / "truth.jsonl"], stdout=subprocess.PIPE, stderr=log, env=environment
        )
    said = first_json_line(provider)
    ports = {"direct": said["tls"]}
    for file in ("nginx.conf", "haproxy.cfg"):
        ports[file.partition(".")[0]] = start_front(children, folder, HERE / "fronts" / file, said["plain"])
    return ports


def start_litellm(children: Children, folder: Path, upstream: int) -> tuple[int, subprocess.Popen[bytes]]:
    """A LiteLLM proxy that asks OpenAI and Anthropic behind nginx. It takes half a minute to listen."""
    models = {
        f"openai-litellm.{mode}.h1.litellm.{wire}-{case}": provider
        for mode in ("sync", "asyncio")
        for wire, provider in (("chat", "openai"), ("claude", "anthropic"))
        for case in ("warm", "stream", "plain", "tool", "error", "cancel")
    }
    (folder / "models.json").write_text(json.dumps(models))
    port = free_port()
    command = [CACHE / "venv-litellm" / "bin" / "python", HERE / "fronts" / "litellm.py", folder / "models.json"]
    command += ["--port", str(port), "--cert", folder / "cert.pem", "--key", folder / "key.pem", "--upstream", str(upstream)]
    with (folder / "litellm.log").open("wb") as log:
        child = children.start(command, stdout=log, stderr=log, env=client_environment(folder))
    return port, child


def client_environment(folder: Path) -> dict[str, str]:
    """What makes every SDK trust the certificate and use no proxy."""
    cert = str(folder / "cert.pem")
    environment = os.environ | {
        "SSL_CERT_FILE": cert, "REQUESTS_CA_BUNDLE": cert, "AWS_CA_BUNDLE": cert, "NODE_EXTRA_CA_CERTS": cert,
        "CACHE": str(CACHE), "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        environment.pop(name, None)
    return environment


def run_clients(ports: dict[str, int], folder: Path, chosen: list[Job], score: Score) -> None:
    """These clients, a few at a time."""
    environment = client_environment(folder)

    def run(job: Job) -> tuple[str, float, int | None, str]:
        name, front, command = job
        where = ["--port", str(ports[front]), "--front", front, "--out", str(folder / "views.jsonl")]
        start = time.monotonic()
        try:
            done = subprocess.run([*command, *where], env=environment, capture_output=True, text=True, timeout=150)
        except subprocess.TimeoutExpired:
            return name, time.monotonic() - start, None, "still running after 150 s"
        return name, time.monotonic() - start, done.returncode, done.stderr

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, seconds, code, said in pool.map(run, chosen):
            if not score.check(code == 0, f"client {name} ran ({seconds:.1f} s)"):
                print(said[-3000:])


def write_doc(path: Path, text: str) -> None:
    """Puts the table between its marks."""
    head, _, rest = path.read_text().partition(MARKS[0])
    path.write_text(f"{head}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


def report(rows: dict[tuple[str, ...], sdk_score.Row], score: Score) -> str:
    """Every failure, then the table; the score counts each figure of each record."""
    for key, row in sorted(rows.items()):
        right, of = sum(row.right.values()), sum(row.of.values())
        score.passed += right
        score.failed += of - right
        for failure in row.failures:
            print(f"FAIL  {' '.join(key)}: {failure}")
    text = sdk_score.table(rows)
    print(text)
    return text


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-agent", action="store_true")
    parser.add_argument("--clients", default="", help="regular expression: which clients (`openai sync h1`, `curl --h2 nginx`)")
    parser.add_argument("--keep", type=Path, help="write records, truth, views and logs into this folder and keep them")
    parser.add_argument("--doc", type=Path, help="write the table into this file, between its marks")
    args = parser.parse_args()
    if not args.without_agent:
        skip_without_bpf()
    score = Score()
    with tempfile.TemporaryDirectory(prefix="tokengauge-sdks-") as name, Children() as children:
        folder = (args.keep or Path(name)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("truth.jsonl", "views.jsonl", "records.jsonl"):
            (folder / file).unlink(missing_ok=True)
        ports = start_provider(children, folder)
        agent = None if args.without_agent else Agent(children, folder)
        if agent is not None:
            # Node carries its OpenSSL inside: the executable is found, as any new file, within a second of its first start.
            subprocess.run(["node", "-e", "setTimeout(() => {}, 2500)"], check=False)
        chosen = [job for job in jobs() if re.search(args.clients, job[0])]
        proxied = [job for job in chosen if job[1] == "litellm"]
        if proxied:
            ports["litellm"], proxy = start_litellm(children, folder, ports["nginx"])
        run_clients(ports, folder, [job for job in chosen if job not in proxied], score)
        if proxied:
            wait_for_port(ports["litellm"], proxy, 120)
            run_clients(ports, folder, proxied, score)
        time.sleep(0.5)
        records = None if agent is None else agent.stop()
        rows = sdk_score.compare(read_jsonl(folder / "views.jsonl"), read_jsonl(folder / "truth.jsonl"), records)
        text = report(rows, score)
        if agent is not None:
            said = agent.records_path.read_text() + agent.log()
            for secret in SECRETS:
                score.check(secret not in said, f"{secret[:12]}… appears in no output")
            if args.doc:
                write_doc(args.doc, text)
    score.finish()


if __name__ == "__main__":
    main()
