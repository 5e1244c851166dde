#!/usr/bin/env python3
"""The generated rules in a real Prometheus' own test runner: the scenarios of the burn-rate table and of low traffic, minute by minute.

    tests/real/setup-go.sh prometheus && tests/slo/promtool.py [--quick]       # TOKENGAUGE=path of the agent

Each objective is a file of its own, because promtool evaluates all rules of a file for each test. `--quick` leaves out all but one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from rig import AGENT, CACHE, Score  # noqa: E402 (the path above comes first)

OBJECTIVES = {
    "three nines": "[availability >= 99.9%]",
    "p95, whose quick page is adapted or slow": "[ttft p95 <= 800ms]",
    "Pyrra's table with its waits": "[{name: pyrra, goal: availability >= 99%, alerting: {table: pyrra}}]",
}


def main() -> None:
    """Every objective."""
    score = Score()
    chosen = dict(list(OBJECTIVES.items())[: 1 if "--quick" in sys.argv else None])
    with tempfile.TemporaryDirectory(prefix="tokengauge-promtool-") as name, ThreadPoolExecutor(2) as pool:
        folders = {}
        for n, (what, objectives) in enumerate(chosen.items()):
            folder = Path(name) / str(n)
            folder.mkdir()
            (folder / "slo.yaml").write_text(f"slos: {{service: chat, window: 30d, objectives: {objectives}}}\n")
            command = [AGENT, "slo", "rules", "slo.yaml", "-o", "rules.yaml", "--tests", "tests.yaml"]
            made = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            score.check(made.returncode == 0, f"{what}: rules and tests are written {made.stderr.strip()[:300]}")
            folders[what] = folder

        def promtool(what: str, *command: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([CACHE / "bin" / "promtool", *command], cwd=folders[what], capture_output=True, text=True)

        for what in chosen:
            checked = promtool(what, "check", "rules", "rules.yaml")
            score.check(checked.returncode == 0, f"{what}: promtool check rules: {checked.stdout.split(': ')[-1].strip()} {checked.stderr[:300]}")
        runs = pool.map(lambda what: promtool(what, "test", "rules", "tests.yaml"), chosen)
        for what, ran in zip(chosen, runs, strict=True):
            text = (folders[what] / "tests.yaml").read_text()
            cases = re.findall(r"^- name: (.*)$", text, re.M)
            minutes = len(re.findall("eval_time", text))
            said = ran.stdout + ran.stderr
            failed = {case for case in cases if case.strip("'\"") in said}
            for case in cases:
                score.check(case not in failed, f"{what}: {case}")
            score.check(ran.returncode == 0 and minutes > 10, f"{what}: {minutes} asserted minutes in {len(cases)} scenarios")
            if ran.returncode:
                print(said[:3000])
    score.finish()


if __name__ == "__main__":
    main()
