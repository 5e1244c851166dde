"""The dashboards' queries against a Prometheus that holds data of the agent: variables filled in as Grafana would, each query executed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rig import ROOT, Record, Score
from stack import Prometheus

FOLDER = ROOT / "helm" / "tokengauge" / "dashboards"
# Queries that find nothing here, and why that is right. `dashboard: panel: letter`.
EMPTY: dict[str, str] = {}


@dataclass(frozen=True)
class Query:
    """One query of a panel, variables filled in."""

    dashboard: str
    panel: str
    ref: str
    legend: str
    expr: str
    instant: bool

    @property
    def name(self) -> str:
        """How it is called in reports."""
        return f"{self.dashboard}: {self.panel}: {self.ref}"


def load() -> dict[str, Record]:
    """Every dashboard by the name of its file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def values(prometheus: Prometheus, dashboard: Record, chosen: dict[str, str]) -> dict[str, str]:
    """What each variable has when the dashboard is opened: all, or the first value; or what was chosen. ValueError when a variable has none."""
    out: dict[str, str] = {}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        name, query = variable["name"], fill(variable["query"]["query"], out)
        found = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        if not found:
            raise ValueError(f"{name}: {query}")
        labels = sorted({r["metric"].get(found[2], "") for r in prometheus.query(f"group by ({found[2]}) ({found[1]})")} - {""})
        if name in chosen and not variable["multi"]:
            labels = [label for label in labels if label == chosen[name]]
        # Grafana's `All` is all values; ours is `.*`, so that it also takes what has no such label.
        if variable["multi"]:
            out[name] = variable["allValue"]
        elif labels:
            out[name] = labels[0]
        else:
            raise ValueError(f"variable {name} has no value: {query}")
    return out


def fill(expr: str, variables: dict[str, str], rate: str = "20s", whole: str = "10m") -> str:
    """The query as Grafana sends it."""
    for name, value in variables.items():
        expr = re.sub(rf"\$(?:{name}\b|{{{name}(?::\w+)?}})", lambda _, value=value: value, expr)
    return expr.replace("$__rate_interval", rate).replace("$__range", whole)


def queries(name: str, dashboard: Record, variables: dict[str, str], rate: str = "20s", whole: str = "10m") -> Iterator[Query]:
    """All queries of a dashboard."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expr = fill(target["expr"], variables, rate, whole)
            yield Query(name, panel["title"], target["refId"], target["legendFormat"], expr, target["instant"])


def run(prometheus: Prometheus, query: Query, start: float, end: float) -> bool:
    """Whether it finds a number. ValueError when Prometheus refuses it."""
    found = prometheus.query(query.expr, end) if query.instant else prometheus.range(query.expr, start, end, 2)
    numbers = [v for r in found for v in ([r["value"]] if "value" in r else r.get("values", []))]
    return any(v[1] != "NaN" for v in numbers)


def check(score: Score, prometheus: Prometheus, start: float, end: float, choices: list[dict[str, str]]) -> None:
    """Each query gives something, over the time that the traffic took, with one of the choices at least; those that do not are listed."""
    whole = f"{int(end - start)}s"
    there = load()
    known = {d["uid"] for d in there.values()}
    for name, dashboard in there.items():
        found: dict[str, bool] = {}
        wrong = []
        for chosen in choices:
            try:
                asked = list(queries(name, dashboard, values(prometheus, dashboard, chosen), whole=whole))
            except ValueError as problem:
                wrong.append(str(problem))
                continue
            for query in asked:
                if left := re.findall(r"\$\w+|\$\{", query.expr):
                    wrong.append(f"{query.name}: {left} is no variable")
                try:
                    found[query.name] = run(prometheus, query, start, end) or found.get(query.name, False)
                except ValueError as problem:
                    wrong.append(f"{query.name}: {str(problem)[-300:]}")
        empty = {query for query, full in found.items() if not full}
        score.check(bool(found) and not wrong, f"{name}: {len(found)} queries are right {wrong[:3] or ''}")
        score.check(empty == {e for e in EMPTY if e.startswith(f"{name}:")}, f"{name}: {len(found) - len(empty)} of {len(found)} queries find data; empty: {sorted(empty)}")
        fields = [o for panel in dashboard["panels"] for o in panel.get("fieldConfig", {}).get("overrides", [])]
        links = [link["url"] for o in fields for p in o["properties"] if p["id"] == "links" for link in p["value"]]
        broken = [url for url in links if url.split("?")[0].removeprefix("/d/") not in known]
        score.check(not broken, f"{name}: {len(links)} links lead to dashboards that exist {broken or ''}")
