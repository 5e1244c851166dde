"""values.schema.json of the chart: what it says of `config` is what the agent says (`tokengauge config schema`), in the draft that helm reads.

Everything else in the file is written by hand, `definitions.configLimits` too: what the agent refuses when it starts, and helm should refuse before.
"""

from __future__ import annotations

import json
import re
from typing import Any


def embed(chart: dict[str, Any], agent: dict[str, Any]) -> dict[str, Any]:
    """The chart's schema with the agent's in it."""
    own = {name: part for name, part in chart["definitions"].items() if not name.startswith("config.")}
    parts = {f"config.{name}": convert(part) for name, part in agent.get("$defs", {}).items()}
    root = {key: part for key, part in agent.items() if key not in ("$schema", "$defs", "title", "description")}
    parts["config.file"] = convert(root)
    own["config"] = {"allOf": [{"$ref": "#/definitions/config.file"}, {"$ref": "#/definitions/configLimits"}]}
    return chart | {"definitions": own | dict(sorted(parts.items()))}


def convert(part: Any) -> Any:
    """Draft 2020-12 as draft 7, as far as the agent's schema uses it; numbers' widths are said by minimum and maximum."""
    if isinstance(part, list):
        return [convert(item) for item in part]
    if not isinstance(part, dict):
        return part
    out = {key: convert(value) for key, value in part.items() if key not in ("format", "default")}
    if "$ref" in out:
        # Beside a reference nothing else counts in draft 7.
        return {"$ref": out["$ref"].replace("#/$defs/", "#/definitions/config.")}
    return out


def dump(value: Any, indent: int = 0) -> str:
    """JSON with what fits into a line on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(flat) + indent <= 118:
        return re.sub(r"^\{(.*)\}$", r"{ \1 }", flat) if isinstance(value, dict) and value else flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        lines = [f"{pad}{json.dumps(key)}: {dump(item, indent + 2)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + dump(item, indent + 2) for item in value) + "\n" + " " * indent + "]"
