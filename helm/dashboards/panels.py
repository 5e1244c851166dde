"""Grafana's JSON as far as our dashboards need it: panels, variables, a grid, and the PromQL that more than one of them asks.

Colours are those of Okabe and Ito, which stay apart with every common kind of colour blindness, and percentiles differ in their line style as well. Where the
series are an open set (models, nodes) the legend is a table with their values, sorted, so that nobody has to tell lines by colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

GREY, ORANGE, SKY, GREEN, VERMILION, PURPLE = "#999999", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
RATE = "$__rate_interval"
# The colour of each outcome, the same on every dashboard.
OUTCOMES = {"completed": SKY, "failed": VERMILION, "cancelled": ORANGE, "truncated": PURPLE, "lost": GREY}
DASHES = ([], [10, 4], [3, 4])


# PromQL ----------------------------------------------------------------------------------------------------------------


def by(*labels: str) -> str:
    """`by (…)`, or nothing."""
    return f" by ({', '.join(labels)})" if labels else ""


def quantile(q: float, metric: str, selector: str, *labels: str) -> str:
    """A quantile of a histogram, however it is stored: native (exponential in OTLP), else classic with explicit bounds."""
    native = f"histogram_quantile({q}, sum{by(*labels)} (rate({metric}{{{selector}}}[{RATE}])))"
    classic = f"histogram_quantile({q}, sum{by('le', *labels)} (rate({metric}_bucket{{{selector}}}[{RATE}])))"
    return f"{native}\nor\n{classic}"


def mean(metric: str, selector: str, *labels: str) -> str:
    """The mean of a histogram, however it is stored."""
    native = f"histogram_avg(sum{by(*labels)} (rate({metric}{{{selector}}}[{RATE}])))"
    part = lambda suffix: f"sum{by(*labels)} (rate({metric}_{suffix}{{{selector}}}[{RATE}]))"  # noqa: E731 (twice the same)
    return f"{native}\nor\n{part('sum')} / {part('count')}"


def total(metric: str, selector: str, *labels: str) -> str:
    """The sum of what a histogram saw, per second."""
    return f"histogram_sum(sum{by(*labels)} (rate({metric}{{{selector}}}[{RATE}]))) or sum{by(*labels)} (rate({metric}_sum{{{selector}}}[{RATE}]))"


def rate(metric: str, selector: str, *labels: str) -> str:
    """A counter per second."""
    return f"sum{by(*labels)} (rate({metric}{{{selector}}}[{RATE}]))"


def share(metric: str, selector: str, of: str, *labels: str) -> str:
    """The share of a counter's events that `of` selects as well."""
    return f"(sum{by(*labels)} (rate({metric}{{{selector}, {of}}}[{RATE}])) or 0 * sum{by(*labels)} (rate({metric}{{{selector}}}[{RATE}])))\n/ (sum{by(*labels)} (rate({metric}{{{selector}}}[{RATE}])) > 0)"


# Panels ----------------------------------------------------------------------------------------------------------------


@dataclass
class Target:
    """A query and how its series are called."""

    expr: str
    legend: str = ""
    exemplar: bool = False
    color: str | None = None
    dash: list[int] = field(default_factory=list)
    table: bool = False

    def json(self, ref: str, instant: bool) -> Json:
        """Grafana's form."""
        out: Json = {"datasource": DATASOURCE, "refId": ref, "expr": self.expr, "legendFormat": self.legend or "__auto", "editorMode": "code"}
        out |= {"instant": True, "range": False} if instant else {"instant": False, "range": True}
        return out | ({"exemplar": True} if self.exemplar else {}) | ({"format": "table"} if self.table else {})


@dataclass
class Panel:
    """A panel without its place."""

    kind: str
    title: str
    unit: str
    targets: list[Target]
    description: str
    width: int = 8
    height: int = 8
    options: Json = field(default_factory=dict)
    defaults: Json = field(default_factory=dict)
    overrides: list[Json] = field(default_factory=list)
    transformations: list[Json] = field(default_factory=list)

    def json(self, number: int, x: int, y: int) -> Json:
        """Grafana's form at a place."""
        instant = self.kind in ("stat", "table", "bargauge")
        targets = [t.json(chr(ord("A") + i), instant) for i, t in enumerate(self.targets)]
        colored = [color_of(t["refId"], target) for t, target in zip(targets, self.targets, strict=True) if target.color]
        out: Json = {
            "id": number, "type": self.kind, "title": self.title, "description": self.description, "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height}, "targets": targets,
            "fieldConfig": {"defaults": {"unit": self.unit} | self.defaults, "overrides": colored + self.overrides}, "options": self.options,
        }  # fmt: skip
        return out | ({"transformations": self.transformations} if self.transformations else {})


def color_of(ref: str, target: Target) -> Json:
    """One target's fixed colour and line style."""
    properties: list[Json] = [{"id": "color", "value": {"mode": "fixed", "fixedColor": target.color}}]
    if target.dash:
        properties.append({"id": "custom.lineStyle", "value": {"fill": "dash", "dash": target.dash}})
    return {"matcher": {"id": "byFrameRefID", "options": ref}, "properties": properties}


def named(name: str, **properties: Any) -> Json:
    """An override for the series, or column, of that name."""
    return {"matcher": {"id": "byName", "options": name}, "properties": [{"id": k.replace("__", "."), "value": v} for k, v in properties.items()]}


def fixed(color: str) -> Json:
    """A colour by itself."""
    return {"mode": "fixed", "fixedColor": color}


def series(title: str, unit: str, targets: list[Target], description: str, *, stacked: bool = False, table: bool = False, colors: dict[str, str] | None = None, **more: Any) -> Panel:
    """Lines over time. A `table` legend is for an open set of series."""
    custom: Json = {"drawStyle": "line", "lineWidth": 1 if stacked else 2, "fillOpacity": 60 if stacked else 0, "showPoints": "never", "spanNulls": False}
    custom |= {"stacking": {"mode": "normal" if stacked else "none", "group": "A"}}
    legend: Json = {"showLegend": True, "displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]}
    legend |= {"sortBy": "Last *", "sortDesc": True} if table else {"displayMode": "list", "calcs": []}
    defaults = {"custom": custom, "color": {"mode": "palette-classic-by-name"}} | more.pop("defaults", {})
    overrides = [named(name, color=fixed(color)) for name, color in (colors or {}).items()]
    options = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    return Panel("timeseries", title, unit, targets, description, options=options, defaults=defaults, overrides=overrides, **more)


def percentiles(title: str, unit: str, metric: str, selector: str, description: str, **more: Any) -> Panel:
    """p50, p95 and p99 of a histogram, with the spans of single requests as exemplars."""
    targets = [
        Target(quantile(q, metric, selector), f"p{round(q * 100)}", exemplar=q == 0.99, color=color, dash=dash)
        for q, color, dash in zip((0.5, 0.95, 0.99), (SKY, ORANGE, VERMILION), DASHES, strict=True)
    ]
    return series(title, unit, targets, description + " Points are single requests: click one for its trace.", **more)


def stat(title: str, unit: str, expr: str, description: str, *, steps: list[tuple[float | None, str]] | None = None, **more: Any) -> Panel:
    """One number. Thresholds change its colour from sky blue over orange to vermilion; the number stands there in any case."""
    steps = steps or [(None, SKY)]
    defaults = {"color": {"mode": "thresholds"}, "thresholds": {"mode": "absolute", "steps": [{"value": v, "color": c} for v, c in steps]}}
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value", "graphMode": "none", "textMode": "auto",
        "justifyMode": "auto", "orientation": "auto", "wideLayout": True, "showPercentChange": False, "percentChangeColorMode": "standard",
    }  # fmt: skip
    more = {"width": 4, "height": 4} | more
    return Panel("stat", title, unit, [Target(expr)], description, options=options, defaults=defaults | more.pop("defaults", {}), **more)


def bars(title: str, unit: str, targets: list[Target], description: str, **more: Any) -> Panel:
    """Horizontal bars of how things are now."""
    options = {
        "displayMode": "basic", "orientation": "horizontal", "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "valueMode": "text",
        "namePlacement": "left", "showUnfilled": True, "sizing": "auto", "minVizHeight": 16, "minVizWidth": 8, "maxVizHeight": 40,
        "legend": {"showLegend": False, "displayMode": "hidden", "placement": "bottom", "calcs": []},
    }  # fmt: skip
    defaults = {"color": fixed(SKY), "min": 0} | more.pop("defaults", {})
    return Panel("bargauge", title, unit, targets, description, options=options, defaults=defaults, **more)


def table(title: str, targets: list[tuple[str, str, str]], join: list[str], names: dict[str, str], description: str, links: list[Json] | None = None, **more: Any) -> Panel:
    """Rows of several queries joined by labels: (column, unit, expr)."""
    rename = {f"Value #{chr(ord('A') + i)}": column for i, (column, _, _) in enumerate(targets)} | names
    overrides = [named(column, unit=unit) for column, unit, _ in targets]
    if links:
        overrides.append(named(names[join[0]], links=links))
    organize = {"id": "organize", "options": {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": rename}}
    options = {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": targets[0][0], "desc": True}], "footer": {"show": False, "reducer": ["sum"], "countRows": False}}
    merged = [Target(expr, table=True) for _, _, expr in targets]
    defaults = {"custom": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}}
    return Panel("table", title, "none", merged, description, options=options, defaults=defaults, overrides=overrides, transformations=[{"id": "merge", "options": {}}, organize], **more)


def text(title: str, content: str, **more: Any) -> Panel:
    """Markdown."""
    return Panel("text", title, "none", [], "", options={"mode": "markdown", "content": content}, **more)


# Dashboards --------------------------------------------------------------------------------------------------------------


def variable(name: str, label: str, query: str, *, multi: bool = True, hide: int = 0) -> Json:
    """A variable whose values are asked for. A single one has no `All`: it takes the first."""
    out: Json = {
        "type": "query", "name": name, "label": label, "datasource": DATASOURCE, "query": {"query": query, "refId": name},
        "refresh": 2, "sort": 1, "hide": hide, "multi": multi, "includeAll": multi, "options": [], "regex": "", "skipUrlSync": False,
    }  # fmt: skip
    return out | ({"allValue": ".*", "current": {"selected": True, "text": "All", "value": "$__all"}} if multi else {})


def rows(*groups: tuple[str, list[Panel]]) -> list[Json]:
    """Rows with titles; panels from left to right, a new line when one is full."""
    out: list[Json] = []
    y = 0
    for title, panels in groups:
        if title:
            out.append({"id": len(out) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []})
            y += 1
        x = tallest = 0
        for panel in panels:
            if x + panel.width > 24:
                x, y, tallest = 0, y + tallest, 0
            out.append(panel.json(len(out) + 1, x, y))
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return out


def dashboard(uid: str, title: str, description: str, variables: list[Json], panels: list[Json]) -> Json:
    """A whole one, with links to the others of ours."""
    source = {
        "type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus", "hide": 0, "includeAll": False,
        "multi": False, "options": [], "refresh": 1, "regex": "", "skipUrlSync": False,
    }  # fmt: skip
    others = {
        "type": "dashboards", "title": "tokengauge", "tags": ["tokengauge"], "asDropdown": True, "includeVars": True, "keepTime": True, "targetBlank": False, "icon": "external link",
        "tooltip": "", "url": "",
    }  # fmt: skip
    return {
        "uid": uid, "title": title, "description": description, "tags": ["tokengauge"], "schemaVersion": 41, "version": 1, "editable": True, "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"}, "refresh": "30s", "timezone": "browser", "fiscalYearStartMonth": 0, "liveNow": False,
        "annotations": {"list": []}, "links": [others], "templating": {"list": [source, *variables]}, "panels": panels,
    }  # fmt: skip
