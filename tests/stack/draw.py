"""Pictures of the dashboards, from what a real Prometheus answers to their queries.

Not Grafana's own drawing: its server could not be had where these were made. Each panel stands where the dashboard puts it, with the queries, units and
colours of its JSON; drawn by matplotlib. `tests/stack/run.py --seconds 240 --pictures DIR` makes them.
"""

from __future__ import annotations

import datetime
import math
import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import dates, pyplot  # noqa: E402 (the backend comes first)
from matplotlib.axes import Axes  # noqa: E402

import dashboards  # noqa: E402
from rig import Record  # noqa: E402
from stack import Prometheus  # noqa: E402

# One unit of Grafana's grid, in inches; panels' gap.
COLUMN, LINE, GAP = 0.62, 0.30, 0.10
PAPER, INK, FAINT, PANEL = "#111217", "#d8d9da", "#8e9297", "#181b1f"
# For open sets of series: Okabe and Ito's, and the same once more dashed.
PALETTE = ["#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999"]
SCALES = {"s": [(1, "s", 1.0), (1e-3, "ms", 1e-3), (1e-6, "µs", 1e-6)], "Bps": [(1e6, "MB/s", 1e6), (1e3, "kB/s", 1e3), (0, "B/s", 1.0)]}


def human(value: float, unit: str) -> str:
    """A number in its unit."""
    if math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    if unit == "percentunit":
        return f"{value:.1%}".replace(".0%", "%")
    if unit == "s" and value >= 120:
        return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
    for least, word, scale in SCALES.get(unit, []):
        if abs(value) >= least or least == SCALES[unit][-1][0]:
            return f"{value / scale:.3g} {word}"
    suffix = {"reqps": " req/s"}.get(unit, unit.removeprefix("suffix:") if unit.startswith("suffix:") else "")
    return f"{value:,.0f}{suffix}" if abs(value) >= 1000 else f"{value:.3g}{suffix}"


def named(query: dashboards.Query, labels: dict[str, str]) -> str:
    """The legend of a series."""
    if query.legend == "__auto":
        return ", ".join(v for v in labels.values()) or query.panel
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], "") or "–", query.legend)


def styles(panel: Record) -> dict[tuple[str, str], Record]:
    """Colours and dashes by target and by name."""
    out: dict[tuple[str, str], Record] = {}
    for override in panel["fieldConfig"]["overrides"]:
        matcher, style = override["matcher"], {}
        for part in override["properties"]:
            if part["id"] == "color":
                style["color"] = part["value"]["fixedColor"]
            elif part["id"] == "custom.lineStyle":
                style["dashes"] = tuple(n / 2.5 for n in part["value"]["dash"])
        out[matcher["id"], matcher["options"]] = style
    return out


class Drawing:
    """One dashboard on one figure."""

    def __init__(self, prometheus: Prometheus, name: str, dashboard: Record, start: float, end: float, chosen: dict[str, str]) -> None:
        self.prometheus, self.start, self.end = prometheus, start, end
        variables = dashboards.values(prometheus, dashboard, chosen)
        self.queries: dict[str, list[dashboards.Query]] = {}
        for query in dashboards.queries(name, dashboard, variables, rate="30s", whole=f"{int(end - start)}s"):
            self.queries.setdefault(query.panel, []).append(query)
        self.height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in dashboard["panels"]) + 2
        self.figure = pyplot.figure(figsize=(24 * COLUMN, self.height * LINE), facecolor=PAPER)
        told = "   ".join(f"{k}: {v if v != '.*' else 'All'}" for k, v in variables.items())
        self.figure.text(0.008, 1 - 0.9 / self.height, dashboard["title"], color=INK, size=13, weight="bold", va="center")
        self.figure.text(0.992, 1 - 0.9 / self.height, told, color=FAINT, size=9, va="center", ha="right")
        for panel in dashboard["panels"]:
            self.panel(panel)

    def box(self, panel: Record) -> tuple[float, float, float, float]:
        """Left, bottom, width and height in the figure's share."""
        at = panel["gridPos"]
        gap_x, gap_y = GAP / (24 * COLUMN), GAP / (self.height * LINE)
        return at["x"] / 24 + gap_x / 2, 1 - (at["y"] + at["h"] + 2) / self.height + gap_y / 2, at["w"] / 24 - gap_x, at["h"] / self.height - gap_y

    def panel(self, panel: Record) -> None:
        """Its frame, title and content."""
        left, bottom, width, height = self.box(panel)
        if panel["type"] == "row":
            self.figure.text(left, bottom + height / 2, "▾ " + panel["title"], color=INK, size=10, va="center")
            return
        frame = self.figure.add_axes((left, bottom, width, height), facecolor=PANEL)
        frame.set_xticks([]), frame.set_yticks([])
        for spine in frame.spines.values():
            spine.set_color("#2c3235")
        size = (24 * COLUMN * width, self.height * LINE * height)
        frame.text(0.1 / size[0], 1 - 0.16 / size[1], panel["title"], color=INK, size=8.5, weight="bold", va="center", transform=frame.transAxes, clip_on=True)
        draw = {"timeseries": self.series, "stat": self.stat, "table": self.table, "bargauge": self.bars, "text": self.text}[panel["type"]]
        draw(panel, frame, size)

    def inner(self, frame: Axes, size: tuple[float, float], left: float, bottom: float, right: float = 0.12, top: float = 0.34) -> Axes:
        """Axes inside a panel; margins in inches."""
        axes = frame.inset_axes((left / size[0], bottom / size[1], 1 - (left + right) / size[0], 1 - (bottom + top) / size[1]), facecolor=PANEL)
        axes.tick_params(colors=FAINT, labelsize=6.5, length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        return axes

    def series(self, panel: Record, frame: Axes, size: tuple[float, float]) -> None:
        """Lines over time."""
        unit, style = panel["fieldConfig"]["defaults"]["unit"], styles(panel)
        stacked = panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
        found = []
        for query in self.queries[panel["title"]]:
            for result in self.prometheus.range(query.expr, self.start, self.end, 2):
                points = [(datetime.datetime.fromtimestamp(t), float(v)) for t, v in result.get("values", [])]
                name = named(query, {k: v for k, v in result["metric"].items() if k != "__name__"})
                look = style.get(("byFrameRefID", query.ref)) or style.get(("byName", name)) or {}
                if points:
                    found.append((name, points, look))
        found.sort(key=lambda one: (not one[2], one[0]))
        shown = found[:12]
        axes = self.inner(frame, size, 0.55, 0.42 + 0.15 * ((min(len(shown), 8) + 1) // 2))
        axes.grid(color="#2c3235", linewidth=0.5)
        below: dict[Any, float] = {}
        for n, (name, points, look) in enumerate(shown):
            color = look.get("color") or PALETTE[n % len(PALETTE)]
            times, numbers = [t for t, _ in points], [v for _, v in points]
            if stacked:
                base = [below.get(t, 0.0) for t in times]
                tops = [a + b for a, b in zip(base, numbers, strict=True)]
                axes.fill_between(times, base, tops, color=color, alpha=0.6, linewidth=0.8, label=name)
                below |= dict(zip(times, tops, strict=True))
            else:
                (line,) = axes.plot(times, numbers, color=color, linewidth=1.4, label=name)
                line.set_dashes(look.get("dashes") or ((3, 2) if n >= len(PALETTE) else ()))
        axes.set_xlim(datetime.datetime.fromtimestamp(self.start), datetime.datetime.fromtimestamp(self.end))
        top = panel["fieldConfig"]["defaults"].get("max")
        low, high = axes.get_ylim()
        axes.set_ylim(min(0.0, low), top * 1.02 if top is not None else max(high, 1e-9))
        axes.xaxis.set_major_locator(dates.AutoDateLocator(maxticks=5))
        axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S"))
        mapped = next((m["options"] for m in panel["fieldConfig"]["defaults"].get("mappings", [])), {})
        axes.yaxis.set_major_locator(pyplot.MaxNLocator(4, integer=bool(mapped)))
        axes.yaxis.set_major_formatter(lambda value, _: mapped.get(f"{value:g}", {}).get("text") or human(value, unit))
        for n, (name, points, look) in enumerate(shown[:8]):
            x, y = (0.12 + (n % 2) * (size[0] - 0.2) / 2) / size[0], (0.06 + 0.15 * ((min(len(shown), 8) - 1) // 2 - n // 2) + 0.06) / size[1]
            last = next((v for _, v in reversed(points) if not math.isnan(v)), math.nan)
            frame.plot([x, x + 0.16 / size[0]], [y, y], color=look.get("color") or PALETTE[n % len(PALETTE)], linewidth=2, transform=frame.transAxes, dashes=look.get("dashes") or (1, 0))
            room = int((size[0] - 0.6) / 2 / 0.062)
            frame.text(x + 0.22 / size[0], y, f"{name[: room - 10]}  {human(last, unit)}", color=INK, size=6.5, va="center", transform=frame.transAxes)

    def now(self, query: dashboards.Query) -> list[tuple[dict[str, str], float]]:
        """An instant query at the end."""
        return [(r["metric"], float(r["value"][1])) for r in self.prometheus.query(query.expr, self.end) if "value" in r]

    def stat(self, panel: Record, frame: Axes, size: tuple[float, float]) -> None:
        """One number."""
        del size
        found = self.now(self.queries[panel["title"]][0])
        value = found[0][1] if found else math.nan
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        color = [s["color"] for s in steps if s["value"] is None or value >= s["value"]][-1]
        frame.text(0.5, 0.42, human(value, panel["fieldConfig"]["defaults"]["unit"]), color=color, size=17, ha="center", va="center", transform=frame.transAxes)

    def bars(self, panel: Record, frame: Axes, size: tuple[float, float]) -> None:
        """Horizontal bars."""
        rows = sorted(((named(q, m), v) for q in self.queries[panel["title"]] for m, v in self.now(q)), key=lambda r: r[1])[-10:]
        axes = self.inner(frame, size, size[0] * 0.45, 0.2, right=0.5)
        axes.barh(range(len(rows)), [v for _, v in rows], color="#56B4E9", height=0.6)
        axes.set_yticks(range(len(rows)), [name[-38:] for name, _ in rows])
        axes.set_xticks([])
        axes.set_ylim(min(-0.6, len(rows) - 5.4), len(rows) - 0.4)
        for n, (_, value) in enumerate(rows):
            axes.text(value, n, " " + human(value, "none"), color=INK, size=7, va="center")

    def table(self, panel: Record, frame: Axes, size: tuple[float, float]) -> None:
        """Rows of several queries, joined by their labels."""
        renamed = panel["transformations"][1]["options"]["renameByName"]
        labels = {k: v for k, v in renamed.items() if not k.startswith("Value #")}
        units = {o["matcher"]["options"]: p["value"] for o in panel["fieldConfig"]["overrides"] for p in o["properties"] if p["id"] == "unit"}
        cells: dict[tuple[str, ...], dict[str, float]] = {}
        columns = []
        for query in self.queries[panel["title"]]:
            column = renamed[f"Value #{query.ref}"]
            columns.append(column)
            for metric, value in self.now(query):
                cells.setdefault(tuple(metric.get(label, "–") for label in labels), {})[column] = value
        rows = sorted(cells.items(), key=lambda row: -row[1].get(columns[0], 0))[: int((size[1] - 0.6) / 0.19)]
        head = [*labels.values(), *columns]
        for n, title in enumerate(head):
            x = (n + 0.15) / len(head)
            frame.text(x, 1 - 0.42 / size[1], title, color="#6e9fff", size=7.5, transform=frame.transAxes, va="center")
            for line, (key, row) in enumerate(rows):
                told = key[n] if n < len(key) else human(row.get(title, math.nan), units.get(title, "none"))
                frame.text(x, 1 - (0.63 + 0.19 * line) / size[1], told, color=INK, size=7.5, transform=frame.transAxes, va="center")

    def text(self, panel: Record, frame: Axes, size: tuple[float, float]) -> None:
        """Plain words."""
        words = re.sub(r"`", "", panel["options"]["content"])
        width = int(size[0] / 0.066)
        lines = [words[i : i + width] for i in range(0, len(words), width)]
        frame.text(0.1 / size[0], 0.4, "\n".join(lines), color=FAINT, size=7.5, transform=frame.transAxes, va="center")


def all_dashboards(folder: Path, prometheus: Prometheus, start: float, end: float, chosen: dict[str, str]) -> None:
    """A picture of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, dashboard in dashboards.load().items():
        drawing = Drawing(prometheus, name, dashboard, start, end, chosen)
        drawing.figure.savefig(folder / f"{name}.png", dpi=80, facecolor=PAPER, pil_kwargs={"optimize": True})
        pyplot.close(drawing.figure)
        print(f"drew {folder / name}.png")
