#!/usr/bin/env python3
"""The alert rules that the chart ships: promtool's check and unit tests, a runbook for each alert, and metrics that exist.

    tests/real/setup-go.sh prometheus && tests/stack/alerts.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

from rig import CACHE, ROOT, Score  # noqa: E402 (the path above comes first)

RULES, TESTS, RUNBOOKS = ROOT / "helm/tokengauge/alerts", HERE / "alerts.test.yaml", ROOT / "helm/tokengauge/runbooks"
PROMTOOL = CACHE / "bin" / "promtool"
# Of others: kube-state-metrics, and what OTLP's translation adds.
FOREIGN = {"kube_daemonset_status_desired_number_scheduled", "target_info"}
PARTS = ("**What it means.** ", "**First three commands.**\n\n1. ", "\n2. ", "\n3. ", "**How to silence.** ")


def known_metrics() -> set[str]:
    """Prometheus' names of all that is exported, from the table that the README's test makes of semconv.rs; a histogram's three as well."""
    names = set(re.findall(r"^\| `[a-z_.]+` \| \w+ \| `[^`]*` \| `(\w+)` \|", (ROOT / "README.md").read_text(), re.M))
    return names | {f"{name}_{part}" for name in names for part in ("bucket", "sum", "count")}


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs it."""
    return subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=300)


def main() -> None:
    """All of it."""
    score = Score()
    files = sorted(RULES.glob("*.yaml"))
    text = "".join(path.read_text() for path in files)
    done = promtool("check", "rules", "--lint=all", *files)
    score.check(done.returncode == 0, f"promtool check rules: {(done.stdout + done.stderr).split()[-3:] if done.returncode == 0 else done.stdout + done.stderr}")
    done = promtool("test", "rules", TESTS)
    score.check(done.returncode == 0, f"promtool test rules{'' if done.returncode == 0 else ': ' + (done.stdout + done.stderr)[:3000]}")
    alerts = re.findall(r"- alert: (\w+)", text)
    score.check(len(alerts) == len(set(alerts)) >= 10, f"{len(alerts)} alerts")
    tests = TESTS.read_text()
    for alert in alerts:
        rule = text.partition(f"- alert: {alert}\n")[2].partition("- alert: ")[0]
        runbook = RUNBOOKS / f"{alert}.md"
        page = runbook.read_text() if runbook.exists() else ""
        score.check(rule.rstrip().split("runbook_url: ")[-1].split("\n")[0].endswith(f"/helm/tokengauge/runbooks/{alert}.md"), f"{alert} links its runbook")
        score.check(page.startswith(f"# {alert}\n") and all(part in page for part in PARTS), f"{alert}'s runbook says what it means, three commands, how to silence")
        fired = alert in tests or any(re.fullmatch(p, alert) for p in re.findall(r'alertname=~"([^"]+)"', tests))
        score.check(fired, f"{alert} has a unit test")
    # The generated rules of objectives have the other four.
    extra = {p.stem for p in RUNBOOKS.glob("*.md")} - set(alerts)
    generated = (ROOT / "agent/slo/src/rules.rs").read_text() + "".join(p.read_text() for p in (ROOT / "agent/slo/src/rules").glob("*.rs"))
    score.check(all(name in generated for name in extra), f"{len(extra)} further runbooks are those of `slo rules`: {sorted(extra)}")
    names = set(re.findall(r"\b((?:tokengauge|gen_ai|kube|target)_[a-z_]+)[\[{]", text)) | set(re.findall(r"\((tokengauge_[a-z_]+)\) [=<>]", text))
    unknown = names - known_metrics() - FOREIGN
    score.check(not unknown, f"{len(names)} metrics, all of them exist {sorted(unknown) or ''}")
    score.finish()


if __name__ == "__main__":
    main()
