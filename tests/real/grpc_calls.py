#!/usr/bin/env python3
"""Real gRPC: a server and clients of grpcio (the C core), in plaintext on the loopback, captured by tcpdump and replayed.

The server speaks the four interfaces of models that the agent knows, from hand-written Protobuf, on a schedule; each record is
compared with what the client saw: instants, tokens, outcome. Needs root or CAP_NET_RAW for the capture.

    tests/real/setup.sh && tests/real/grpc_calls.py      # TOKENGAUGE=path of the agent
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "lib")]

from rig import AGENT, CACHE, Score, free_port  # noqa: E402 (the path above comes first)

TICK = 0.02
# The client's own stamps come late on a busy machine, never early.
EARLY, LATE = 0.002, 0.08


# Protobuf, as far as it is needed ---------------------------------------------------------------------------------------


def varint(n: int) -> bytes:
    out = b""
    while n > 0x7F:
        out, n = out + bytes([n & 0x7F | 0x80]), n >> 7
    return out + bytes([n])


def message(*fields: tuple[int, Any]) -> bytes:
    """A message: integers, texts, bytes (messages), lists of integers (packed), floats."""
    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            if isinstance(value, list):
                value = b"".join(varint(v) for v in value)
            elif isinstance(value, str):
                value = value.encode()
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


# The server -------------------------------------------------------------------------------------------------------------


def engine(reason_in: int) -> Callable[[bytes, Any], Iterator[bytes]]:
    """SGLang's scheduler (the last tokens come with the reason) or vLLM's engine (they are repeated)."""

    def generate(request: bytes, context: Any) -> Iterator[bytes]:
        total = 0
        for n in (1, 2, 3, 1):
            time.sleep(TICK)
            total += n
            counts = (3, total if reason_in == 0 else n)
            yield message((1, "r-1"), (2, message((1, [7] * n), (2, 11), counts)))
        if reason_in == 0:
            time.sleep(TICK)
        last = 2 if reason_in == 0 else 1
        done = total + last if reason_in == 0 else 1
        yield message((1, "r-1"), (3, message((1, [7] * last), (2, "stop"), (3, 11), (4, done))))

    return generate


def tgis_stream(request: bytes, context: Any) -> Iterator[bytes]:
    import grpc

    if b"refuse" in request:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many, said at length")
    if b"zip" in request:
        context.set_compression(grpc.Compression.Gzip)
    yield message((6, 11))
    for n in range(1, 200 if b"endless" in request else 8):
        time.sleep(TICK)
        if b"fail" in request and n == 4:
            context.abort(grpc.StatusCode.UNAVAILABLE, "gone, said at length")
        yield message((2, n), (4, "some text " * 8))
    yield message((2, 8), (4, "end"), (7, 2))


def tgis_whole(request: bytes, context: Any) -> bytes:
    time.sleep(3 * TICK)
    return message((1, message((6, 4), (2, 20), (4, "text"), (7, 1))), (1, message((6, 3), (2, 7), (4, "more"), (7, 2))))


def kserve_stream(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
    def tensor(name: str, kind: str) -> tuple[int, bytes]:
        return 5, message((1, name), (2, kind), (3, [1]))

    for _ in requests:
        for n in (1, 2, 1):
            time.sleep(TICK)
            text = b"x" * n
            outputs = (tensor("text_output", "BYTES"), tensor("num_output_tokens", "UINT32"))
            raw = ((6, struct.pack("<I", n) + text), (6, struct.pack("<I", n)))
            yield message((2, message((1, "m-triton"), (3, "r-1"), *outputs, *raw)))
        final = message((1, "triton_final_response"), (2, message((1, 1))))
        yield message((2, message((1, "m-triton"), (3, "r-1"), (4, final))))


def serve(port: int) -> None:
    """The server's process; prints a line when it is ready."""
    import grpc

    def service(name: str, **methods: Any) -> Any:
        return grpc.method_handlers_generic_handler(name, methods)

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
    server.add_generic_rpc_handlers(
        (
            service("sglang.grpc.scheduler.SglangScheduler", Generate=grpc.unary_stream_rpc_method_handler(engine(0))),
            service("vllm.grpc.engine.VllmEngine", Generate=grpc.unary_stream_rpc_method_handler(engine(1))),
            service(
                "fmaas.GenerationService",
                Generate=grpc.unary_unary_rpc_method_handler(tgis_whole),
                GenerateStream=grpc.unary_stream_rpc_method_handler(tgis_stream),
            ),
            service("inference.GRPCInferenceService", ModelStreamInfer=grpc.stream_stream_rpc_method_handler(kserve_stream)),
        )
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


# The clients ------------------------------------------------------------------------------------------------------------

PROMPT = message((1, "planted-prompt-phrase"), (2, [1, 2, 3]))
ENGINE = message((1, "r-1"), (2, PROMPT), (4, message((1, 0.7), (8, 64))), (17, 1), (5, 1))


def tgis(word: str = "") -> bytes:
    return message((1, "m-tgis"), (3, message((2, "planted-prompt-phrase " + word))), (10, message((3, message((1, 64))))))


TRITON = message(
    (1, "m-triton"), (3, "r-1"), (5, message((1, "text_input"), (2, "BYTES"), (3, [1]))), (7, struct.pack("<I", 21) + b"planted-prompt-phrase")
)

# Name, method, request; what the record must say; which messages of the answer are output.
CASES: list[dict[str, Any]] = [
    {"name": "sglang", "method": "/sglang.grpc.scheduler.SglangScheduler/Generate", "request": ENGINE, "api": "sglang.scheduler",
     "outcome": "completed", "tokens": (11, 9), "finish": ["stop"], "output": lambda n, m: True},
    {"name": "vllm", "method": "/vllm.grpc.engine.VllmEngine/Generate", "request": ENGINE, "api": "vllm.engine",
     "outcome": "completed", "tokens": (11, 7), "finish": ["stop"], "output": lambda n, m: n < 4},
    {"name": "tgis", "method": "/fmaas.GenerationService/GenerateStream", "request": tgis(), "api": "tgis.generate",
     "outcome": "completed", "tokens": (11, 8), "finish": ["EOS_TOKEN"], "output": lambda n, m: n > 0},
    {"name": "tgis, gzip", "method": "/fmaas.GenerationService/GenerateStream", "request": tgis("zip " * 9), "api": "tgis.generate",
     "outcome": "completed", "tokens": (11, 8), "finish": ["EOS_TOKEN"], "output": lambda n, m: n > 0, "gzip": True},
    {"name": "tgis, whole", "method": "/fmaas.GenerationService/Generate", "request": tgis(), "api": "tgis.generate", "unary": True,
     "outcome": "completed", "tokens": (7, 27), "finish": ["MAX_TOKENS", "EOS_TOKEN"]},
    {"name": "tgis, fails", "method": "/fmaas.GenerationService/GenerateStream", "request": tgis("fail"), "api": "tgis.generate",
     "outcome": "failed", "error": "UNAVAILABLE", "tokens": (11, 3), "finish": [], "output": lambda n, m: n > 0},
    {"name": "tgis, refused", "method": "/fmaas.GenerationService/GenerateStream", "request": tgis("refuse"), "api": "tgis.generate",
     "outcome": "failed", "error": "RESOURCE_EXHAUSTED", "tokens": (None, None), "finish": [], "output": lambda n, m: True},
    {"name": "tgis, cancelled", "method": "/fmaas.GenerationService/GenerateStream", "request": tgis("endless"), "api": "tgis.generate",
     "outcome": "cancelled", "finish": [], "output": lambda n, m: n > 0, "cancel": 5},
    {"name": "triton", "method": "/inference.GRPCInferenceService/ModelStreamInfer", "request": TRITON, "api": "kserve.model_infer",
     "outcome": "completed", "tokens": (None, 4), "finish": [], "output": lambda n, m: n < 3, "both": True},
]  # fmt: skip


def call(channel: Any, case: dict[str, Any]) -> dict[str, Any]:
    """One call; what the client saw."""
    import grpc

    seen: dict[str, Any] = {"name": case["name"], "outputs": []}
    options = {"metadata": (("x-request-id", case["id"]),)}
    seen["start"] = time.time_ns()
    try:
        if case.get("unary"):
            channel.unary_unary(case["method"])(case["request"], **options)
            return seen
        if case.get("both"):
            # A client of Triton keeps its side open until it has its answer.
            done = threading.Event()

            def requests() -> Iterator[bytes]:
                yield case["request"]
                done.wait(5)

            answers = channel.stream_stream(case["method"])(requests(), **options)
        else:
            done = None
            answers = channel.unary_stream(case["method"])(case["request"], **options)
        for n, answer in enumerate(answers):
            if case["output"](n, answer):
                seen["outputs"].append(time.time_ns())
            if done and b"triton_final_response" in answer:
                done.set()
            if n == case.get("cancel"):
                answers.cancel()
    except grpc.RpcError as why:
        seen["code"] = why.code().name
    finally:
        seen["end"] = time.time_ns()
    return seen


def run(port: int) -> list[dict[str, Any]]:
    """Every case alone, then all at once on one connection."""
    import grpc

    seen = []
    for alone in (True, False):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=10)
            cases = [case | {"id": f"{case['name']} {'alone' if alone else 'together'}".replace(",", "")} for case in CASES]
            zipped = [case for case in cases if case.get("gzip")]
            cases = [case for case in cases if not case.get("gzip")]
            if alone:
                seen += [call(channel, case) | {"case": case} for case in cases]
            else:
                with futures.ThreadPoolExecutor(len(cases)) as pool:
                    seen += [s | {"case": c} for s, c in zip(pool.map(lambda c: call(channel, c), cases), cases)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", compression=grpc.Compression.Gzip) as channel:
            seen += [call(channel, case) | {"case": case} for case in zipped]
    return seen


# The comparison ---------------------------------------------------------------------------------------------------------


def compare(seen: dict[str, Any], record: dict[str, Any] | None, score: Score) -> None:
    """One call and its record."""
    case = seen["case"]
    what = case["id"]
    if not score.check(record is not None, f"{what}: there is a record"):
        return
    assert record is not None
    said = {
        "api": record["api"], "outcome": record["outcome"], "protocol": record["protocol"], "stream": record["stream"],
        "finish": record["response"]["finish_reasons"], "error": (record["error"] or {}).get("type"),
    }  # fmt: skip
    want = {
        "api": case["api"], "outcome": case["outcome"], "protocol": "http/2", "stream": not case.get("unary"),
        "finish": case["finish"], "error": case.get("error"),
    }  # fmt: skip
    score.check(said == want, f"{what}: {said}" + ("" if said == want else f" instead of {want}"))
    if "tokens" in case:
        usage = record["usage"]
        tokens = (usage["input_tokens"], usage["output_tokens"])
        score.check(tokens == case["tokens"], f"{what}: tokens {tokens}")
    outputs = seen["outputs"]
    if case.get("unary"):
        return
    generated = record["chunks"]["generated"]
    enough = generated == len(outputs) if not case.get("cancel") else generated >= len(outputs)
    score.check(enough, f"{what}: {generated} pieces of output of {len(outputs)}")
    ttft = record["timing_s"]["ttft"]
    if outputs:
        late = (outputs[0] - seen["start"]) / 1e9 - ttft if ttft is not None else None
        score.check(late is not None and -EARLY < late < LATE, f"{what}: first output {ttft} s, the client {late} s later")
    else:
        score.check(ttft is None, f"{what}: no first output")


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]))
        return
    score = Score()
    port = free_port()
    server = subprocess.Popen([sys.executable, __file__, "--serve", str(port)], stdout=subprocess.PIPE)
    folder = Path(tempfile.mkdtemp())
    try:
        assert server.stdout and server.stdout.readline() == b"ready\n"
        capture = folder / "calls.pcap"
        dump = subprocess.Popen(
            ["tcpdump", "-i", "lo", "-U", "-s", "0", "-B", "8192", "-w", str(capture), f"tcp port {port}"], stderr=subprocess.PIPE
        )
        assert dump.stderr and any(b"listening" in line for line in iter(dump.stderr.readline, b"")), "tcpdump does not listen"
        try:
            seen = run(port)
            time.sleep(1)
        finally:
            dump.terminate()
            dump.wait(10)
        replay = subprocess.run([AGENT, "replay", capture, "--format", "jsonl"], capture_output=True, text=True, timeout=120)
        score.check(replay.returncode == 0, "the capture can be replayed")
        records = [json.loads(line) for line in replay.stdout.splitlines()]
        by_id = {r["request"]["id"]: r for r in records}
        score.check(len(records) == len(seen), f"{len(records)} records of {len(seen)} calls")
        for one in seen:
            compare(one, by_id.get(one["case"]["id"]), score)
        leaks = [word for word in ("planted-prompt-phrase", "said at length", "some text") if word in replay.stdout]
        score.check(not leaks, "no text of a prompt, an answer or an error is in a record")
        stats = json.loads(replay.stderr.strip().splitlines()[-1])
        score.check(not stats["anomalies"], f"anomalies {stats['anomalies']}")
    finally:
        server.terminate()
        server.wait(10)
        shutil.rmtree(folder, ignore_errors=True)
    score.finish()


if __name__ == "__main__":
    if sys.argv[1:2] != ["--serve"]:
        try:
            import grpc  # noqa: F401 (only whether it is there)
        except ImportError:
            python = CACHE / "venv" / "bin" / "python"
            if Path(sys.executable) == python or not python.exists():
                raise SystemExit("no grpcio: run tests/real/setup.sh first") from None
            raise SystemExit(subprocess.run([python, __file__, *sys.argv[1:]]).returncode) from None
    main()
