"""Drawings as SVG text: the token ring, the stages of operations, and the heat map of tablets.

Invariants: all text and all attribute values are escaped. A drawing has no style attribute, because the content
security policy forbids it: classes and attributes of SVG give colours. Each mark has a title. The page has the same
facts as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup, escape

Json = Mapping[str, Any]
SIZE: Final = 320
CENTER: Final = SIZE / 2
OUTER, INNER = 150.0, 112.0
SEPARATE_MAX: Final = 96
"""Arcs that lines separate. The lines of more arcs would cover their colours."""
STAGE_WIDTH: Final = 640
BLOCK_ROWS, HEAT_WIDTH = 25, 1_200
"""Nodes in a column of the heat map, and the width in pixels after which columns become longer."""
SHARE_MIN: Final = 0.02


def tag(name: str, attributes: Mapping[str, object], *children: object) -> Markup:
    """Return an element with escaped attributes and children."""
    pairs = "".join([f' {key}="{_escaped(value)}"' for key, value in attributes.items()])
    return Markup(f"<{name}{pairs}>{''.join(map(_escaped, children))}</{name}>")


def _escaped(value: object) -> str:
    """Return text as markup. Numbers and markup, which are most values, need no escapes."""
    return str(value) if type(value) in (int, float, Markup) else escape(value)


def svg(title: str, width: float, height: float, children: Iterable[Markup], kind: str) -> Markup:
    """Return a drawing that scales with its place."""
    box = {
        "viewBox": f"0 0 {width:g} {height:g}",
        "width": f"{width:g}",
        "height": f"{height:g}",
        "role": "img",
        "aria-label": title,
        "class": f"drawing {kind}",
    }
    return tag("svg", box, *children)


def _at(share: float, radius: float) -> str:
    angle = 2 * math.pi * share - math.pi / 2
    return f"{CENTER + radius * math.cos(angle):.2f} {CENTER + radius * math.sin(angle):.2f}"


def ring(arcs: Sequence[Json], nodes: int) -> Markup:
    """Draw the token ring: an arc for each range, or for each sector with several nodes."""
    marks = []
    for arc in arcs:
        width = (arc["end"] - arc["start"]) % 1 or 1.0
        end = arc["start"] + min(width, 0.9999)
        large = int(width > 0.5)
        outline = (
            f"M{_at(arc['start'], OUTER)} A{OUTER:g} {OUTER:g} 0 {large} 1 {_at(end, OUTER)} "
            f"L{_at(end, INNER)} A{INNER:g} {INNER:g} 0 {large} 0 {_at(arc['start'], INNER)} Z"
        )
        names = ", ".join(arc["nodes"][:8]) + (f" and {len(arc['nodes']) - 8} more" if len(arc["nodes"]) > 8 else "")
        place = f" ({arc['rack']})" if arc["rack"] else ""
        label = tag("title", {}, f"{names}{place}: {arc['level']}, {width:.1%} of the ring")
        marks.append(tag("path", {"d": outline, "class": f"arc {arc['level']}"}, label))
    middle = {"x": f"{CENTER:g}", "text-anchor": "middle"}
    marks.append(tag("text", middle | {"y": f"{CENTER - 2:g}", "class": "big"}, nodes))
    marks.append(tag("text", middle | {"y": f"{CENTER + 18:g}"}, "node" if nodes == 1 else "nodes"))
    bad = sum(arc["level"] == "bad" for arc in arcs)
    title = f"Token ring of {nodes} nodes, {len(arcs)} arcs, {bad} of them with a node that is down or silent"
    return svg(title, SIZE, SIZE, marks, "ring dense" if len(arcs) > SEPARATE_MAX else "ring")


def stages(row: Json) -> Markup:
    """Draw the stages of an operation: the passed ones with their duration, the present one, and the next ones."""
    names = [mark["stage"] for mark in row["stages"]] + list(row["next_stages"])
    width = STAGE_WIDTH / max(len(names), 1)
    marks = []
    for place, name in enumerate(names):
        passed = place < len(row["stages"]) - 1 or row["ended"]
        kind = "passed" if passed else "present" if place == len(row["stages"]) - 1 else "next"
        if kind == "present":
            kind = f"present {row['level']}"
        mark = row["stages"][place] if place < len(row["stages"]) else None
        detail = f"epoch {mark['epoch']}" if mark is not None else "not reached yet"
        box = {"x": f"{place * width:.1f}", "y": 2, "width": f"{width - 2:.1f}", "height": 12, "class": f"stage {kind}"}
        marks.append(tag("rect", box, tag("title", {}, f"{name}: {detail}")))
        text = {"x": f"{place * width + width / 2 - 1:.1f}", "y": 26, "text-anchor": "middle"}
        marks.append(
            tag("text", text, name.replace("write_both_", "").replace("_cdc_generation", " CDC").replace("_", " "))
        )
    title = f"Stages of {row['id']}: {row['stages'][-1]['stage']}, {row['done']} of {row['stages_total']}"
    return svg(title, STAGE_WIDTH, 32, marks, "stages")


def heat(rows: Sequence[Json]) -> Markup:
    """Draw the replicas of each shard of each node in columns of nodes. A darker cell has more replicas."""
    most = max((max(row["shards"], default=0) for row in rows), default=0) or 1
    columns = max((len(row["shards"]) for row in rows), default=1)
    side = 16 if columns <= 32 else 6
    block = 130 + columns * (side + 2)
    lines = max(BLOCK_ROWS, -(-len(rows) // max(1, HEAT_WIDTH // block)))
    marks = []
    for place, row in enumerate(rows):
        x, y = place // lines * block, place % lines * (side + 2)
        marks.append(tag("text", {"x": x, "y": f"{y + side * 0.75:g}"}, row["node"][:16]))
        for shard, count in enumerate(row["shards"]):
            step = 0 if not count else 1 + min(4, 5 * count // (most + 1))
            box = {"x": x + 110 + shard * (side + 2), "y": y, "width": side, "height": side, "class": f"heat h{step}"}
            marks.append(tag("rect", box, tag("title", {}, f"{row['node']}/{shard}: {count} tablets")))
    title = f"Tablets of {len(rows)} nodes by shard, at most {most} on one shard"
    width, height = block * max(1, -(-len(rows) // lines)), min(lines, max(len(rows), 1)) * (side + 2)
    return svg(title, width, height, marks, "heatmap")


def share_bar(parts: Mapping[str, int]) -> Markup:
    """Draw parts of a whole, each with a class of its level. A small part is drawn larger, so that it is visible."""
    total, x, marks = sum(parts.values()) or 1, 0.0, []
    shares = {level: max(count / total, SHARE_MIN) if count else 0.0 for level, count in parts.items()}
    for level, count in parts.items():
        width = 200 * shares[level] / sum(shares.values())
        if count:
            marks.append(
                tag("rect", {"x": f"{x:.2f}", "y": 0, "width": f"{width:.2f}", "height": 10, "class": f"part {level}"})
            )
        x += width
    return svg(", ".join(f"{level}: {count}" for level, count in parts.items()), 200, 10, marks, "bar")
