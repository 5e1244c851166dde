"""The table of a chart's values for its README, from values.yaml alone: path, default, and the comment above the key.

Not a YAML reader: it reads what values.yaml is by its own rules (two spaces of indentation, a comment directly above what it
describes, a value on one line or a block of maps and of lists of flat maps).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

KEY = re.compile(r"^( *)(- )?([A-Za-z0-9_./]+):(?: (.*))?$")


@dataclass
class Value:
    """One key with what is below it."""

    name: str
    inline: str = ""
    comment: str = ""
    item: bool = False  # the first key of a list's element
    children: list[Value] = field(default_factory=list)

    def described_below(self) -> bool:
        """Whether anything below it has a description of its own."""
        return any(child.comment or child.described_below() for child in self.children)

    def flow(self) -> str:
        """The value in YAML's flow style."""
        if not self.children:
            return self.inline
        inside = ", ".join(f"{child.name}: {child.flow()}" for child in self.children)
        return f"[{{{inside}}}]" if self.children[0].item else f"{{{inside}}}"


def read(path: Path) -> Value:
    """All keys, as a tree."""
    root = Value("")
    stack: list[tuple[int, Value]] = [(-1, root)]
    comment: list[str] = []
    for line in path.read_text().splitlines():
        stripped = line.strip()
        if not stripped:
            comment = []
        elif stripped.startswith("#"):
            comment.append(stripped.removeprefix("#").strip())
        else:
            found = KEY.match(line)
            if not found:
                raise SystemExit(f"{path.name}: not understood: {line}")
            indent = len(found.group(1)) + len(found.group(2) or "")
            while stack[-1][0] >= indent:
                stack.pop()
            value = Value(found.group(3), found.group(4) or "", " ".join(comment), found.group(2) is not None)
            stack[-1][1].children.append(value)
            stack.append((indent, value))
            comment = []
    return root


def rows(value: Value, path: str, above: str) -> list[tuple[str, str, str]]:
    """Path, default and meaning of each value; what is said of a group stands at its first one."""
    said = " ".join(filter(None, (above, value.comment)))
    if path and not value.described_below():
        return [(path, value.flow(), said)]
    out = []
    for i, child in enumerate(value.children):
        out += rows(child, f"{path}.{child.name}".lstrip("."), said if i == 0 else "")
    return out


def table(path: Path) -> str:
    """The Markdown."""
    lines = ["| Value | Default | Meaning |", "|---|---|---|"]
    for name, default, meaning in rows(read(path), "", ""):
        lines.append(f"| `{name}` | `{default}` | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def undescribed(path: Path) -> list[str]:
    """Paths of values that nothing is said about."""
    return [name for name, _, meaning in rows(read(path), "", "") if not meaning]
