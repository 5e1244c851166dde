#!/usr/bin/env python3
"""`slo backtest` against a straight reading of its definition: random histories, counted here the slow way.

    tests/slo/backtest.py [--histories 6]        # TOKENGAUGE=path of the agent
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from rig import AGENT, Score  # noqa: E402 (the path above comes first)

WINDOWS = {"5m": 300, "30m": 1800, "1h": 3600, "2h": 7200, "6h": 21600, "1d": 86400, "3d": 259200}
LIMIT_S = 0.8
NS = 10**9


def record(rng: random.Random, begin: int, seconds: float) -> tuple[dict[str, Any], str]:
    """A record as people write them by hand, and what it is to the objective."""
    undefined, ttft, status, outcome, verdict = {}, round(rng.expovariate(2), 4), 200, "completed", ""
    kind = rng.random()
    if kind < 0.03:
        status = rng.choice([500, 429, 400])
        ttft, outcome, undefined["ttft"], verdict = None, "failed", "http_error", "none" if status == 400 else "bad"
    elif kind < 0.05:
        ttft, undefined["ttft"], verdict = None, "capture_gap", "excluded"
    elif kind < 0.08:
        ttft, undefined["ttft"], verdict = None, "not_streaming", "none"
    elif kind < 0.1:
        ttft, outcome, undefined["ttft"], verdict = None, "cancelled", "client_cancelled", "none"
    else:
        verdict = "good" if ttft <= LIMIT_S else "bad"
    duration = None if rng.random() < 0.1 else round(rng.random() * 30, 3)
    start = int((begin + rng.random() * seconds) * 1000) * 1_000_000
    error = {"type": str(status), "stage": "http"} if status != 200 else None
    timing = {"ttft": ttft, "duration": duration}
    made = {"start_unix_nano": str(start), "outcome": outcome, "error": error, "response": {"status": status}, "timing_s": timing, "undefined": undefined}
    return made | {"extra": "ignored"}, verdict


def check(seed: int, folder: Path, score: Score) -> None:
    """One history under one objective."""
    rng = random.Random(seed)
    days, target, step = rng.choice([1, 7, 28]), rng.choice([0.9, 0.95, 0.99]), rng.choice([60, 600, 3600])
    seconds = {60: 6 * 3600, 600: 3 * 86400, 3600: 40 * 86400}[step]
    history = [record(rng, 1_700_000_000 + rng.randrange(10_000), seconds) for _ in range(3000)]
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line, _ in history))
    slo = {
        "apiVersion": "openslo/v1", "kind": "SLO", "metadata": {"name": "first-token"},
        "spec": {
            "service": "rig", "budgetingMethod": "Occurrences", "timeWindow": [{"duration": f"{days}d", "isRolling": True}],
            "objectives": [{"displayName": "one", "target": target}],
            "indicator": {"metadata": {"name": "sli"}, "spec": {"ratioMetric": {
                "counter": True,
                "good": {"metricSource": {"type": "tokengauge", "spec": {"sli": "ttft", "max": "800ms"}}},
                "total": {"metricSource": {"type": "tokengauge", "spec": {"sli": "ttft"}}},
            }}},
        },
    }  # fmt: skip
    (folder / "slo.yaml").write_text(json.dumps(slo))
    command = [AGENT, "slo", "backtest", "--slo", "slo.yaml", "records.jsonl", "--step", f"{step}s", "--format", "jsonl"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    what = f"history {seed} ({days} d, {target}, every {step} s)"
    ends = sorted(
        (int(line["start_unix_nano"]) + round((line["timing_s"]["duration"] or 0) * NS), verdict) for line, verdict in history
    )
    first, last = -(-ends[0][0] // (step * NS)) * step, -(-ends[-1][0] // (step * NS)) * step
    instants = [line["t_unix"] for line in lines]
    score.check(done.returncode == 0 and instants == list(range(first, last + 1, step)), f"{what}: {len(lines)} whole steps")

    def close(told: float | None, really: float | None) -> bool:
        return told == really if really is None or told is None else abs(told - really) <= 1e-9 * max(1, abs(really))

    wrong = []
    for line in lines if len(lines) < 400 else rng.sample(lines, 400):
        now = line["t_unix"] * NS

        def burn(seconds: int, now: int = now) -> tuple[Counter[str], float | None]:
            counts = Counter(verdict for end, verdict in ends if now - seconds * NS < end <= now)
            valid = counts["good"] + counts["bad"]
            return counts, counts["bad"] / valid / (1 - target) if valid else None

        counts, spent = burn(days * 86400)
        valid = counts["good"] + counts["bad"]
        right = (line["valid"], line["good"], line["excluded"]) == (valid, counts["good"], counts["excluded"])
        right &= close(line["sli"], counts["good"] / valid if valid else None)
        right &= close(line["error_budget_remaining"], None if spent is None else 1 - spent)
        right &= all(close(line["burn_rate"][name], burn(length)[1]) for name, length in WINDOWS.items())
        if not right:
            wrong.append(line)
    score.check(not wrong and bool(lines), f"{what}: counts, level, budget, burn rates{f' wrong at {json.dumps(wrong[0])[:400]}' if wrong else ''}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=6)
    args = parser.parse_args()
    score = Score()
    with tempfile.TemporaryDirectory(prefix="tokengauge-backtest-") as name:
        for seed in range(args.histories):
            check(seed, Path(name), score)
    score.finish()


if __name__ == "__main__":
    main()
