"""A chart of the balance over time, as SVG. Equal histories give equal bytes.

All panels share the time axis. From top to bottom: tablets of each node divided by its shards; the same for bytes, if
any are known; a strip for each shard, darker for more tablets; migrating tablets. A value holds until the next
moment. With more than ``STRIPS_MAX`` shards, each node has one strip, shaded by its fullest shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from colorsys import hls_to_rgb
from itertools import groupby
from typing import Final
from xml.sax.saxutils import escape

from ringlog.kernel.values import Value
from ringlog.operator.rehearsal.balance_history import BalanceHistory, BalanceMoment

EPOCHS: Final = "epoch"
SECONDS: Final = "s"
"""The unit of the axis: epochs, or seconds since the first moment (times are microseconds then)."""

LEFT: Final = 90
WIDE: Final = 760
HIGH: Final = 140
GAP: Final = 48
LEGEND: Final = 150
NAMED_MAX: Final = 24
"""The most nodes in the legend. Every line and strip also has its name as a tooltip."""
STRIPS_MAX: Final = 256
STRIP: Final = 10
"""The height of a strip that has room for its name, in pixels."""
SHADES: Final = 12
TICKS: Final = 5

_STYLE: Final = (
    "text{font:11px sans-serif;fill:#333}.title{font-weight:bold}.node{fill:none;stroke-width:1.5}"
    ".axis{stroke:#999}.moving{fill:#d95f02;fill-opacity:.4}"
)

Steps = list[tuple[int, float | None]]
"""(time, value from that time on) pairs. None draws a gap."""


class _Axis(Value):
    """Horizontal positions of times."""

    begin: int
    end: int
    unit: str

    def x(self, at: int) -> float:
        """Return the horizontal position of a time, in pixels."""
        return round(LEFT + WIDE * (at - self.begin) / max(1, self.end - self.begin), 1)

    def label(self, at: int) -> str:
        """Return a time in the unit of the axis."""
        return f"{EPOCHS} {at}" if self.unit == EPOCHS else f"{(at - self.begin) / 1e6:.3g} s"


class _Panel(Value):
    title: str
    high: int
    drawn: Sequence[str]
    most: str = ""


def draw_chart(history: BalanceHistory, unit: str = SECONDS) -> str:
    """Return a history as an SVG document. It must have a moment. ``unit``: the unit of its times."""
    moments = history.moments
    assert moments, "the chart has at least one moment"
    axis = _Axis(moments[0].at, history.end, unit)
    panels = [_lines(history, axis, "tablets")]
    if any(moment.sizes.any() for moment in moments):
        panels.append(_lines(history, axis, "bytes"))
    panels += [_strips(history, axis), _moving(moments, axis)]
    body, top = list(_legend(history)), GAP
    for panel in panels:
        body += [f'<g transform="translate(0,{top})">', *_frame(panel, axis), *panel.drawn, "</g>"]
        top += panel.high + GAP
    wide = LEFT + WIDE + LEGEND
    size = f'viewBox="0 0 {wide} {top}" width="{wide}" height="{top}"'
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{_STYLE}</style>"]
    return "\n".join([*head, f'<rect width="{wide}" height="{top}" fill="#fff"/>', *body, "</svg>"]) + "\n"


# -------------------------------------------------------------------------------------------------------- panels


def _lines(history: BalanceHistory, axis: _Axis, series: str) -> _Panel:
    every = [(number, _per_shard(history, number, series)) for number in _by_name(history)]
    most = max((value for _, steps in every for _, value in steps if value is not None), default=0) or 1
    drawn = [
        f'<path class="node" stroke="{_colour(number)}" d="{_path(steps, axis, most)}">{_named(history, number)}</path>'
        for number, steps in every
        if any(value is not None for _, value in steps)
    ]
    shown = _amount(most) if series == "bytes" else f"{most:.3g}"
    return _Panel(f"{series} of each node, divided by its shards", HIGH, drawn, shown)


def _strips(history: BalanceHistory, axis: _Axis) -> _Panel:
    each = sum(node.shards for node in history.nodes) <= STRIPS_MAX
    rows = [
        (number, shard)
        for number in _by_name(history)
        for shard in (range(history.nodes[number].shards) if each else (-1,))
    ]
    most = max((int(moment.tablets.max()) for moment in history.moments), default=0) or 1
    high = max(1, min(STRIP, 240 // max(1, len(rows))))
    drawn: list[str] = []
    for place, (number, shard) in enumerate(rows):
        where = history.nodes[number].name + (f"/{shard}" if each else "")
        if high == STRIP:
            drawn.append(_text(LEFT - 6, (place + 1) * high - 1, where, 'text-anchor="end"'))
        steps = [(one.at, _shade(one, number, shard, most)) for one in history.moments]
        drawn += [
            f'<rect x="{axis.x(at)}" y="{place * high}" width="{round(axis.x(until) - axis.x(at), 1)}" '
            f'height="{high}" fill="{_grey(shade)}"><title>{escape(where)}</title></rect>'
            for at, until, shade in _runs(steps, axis.end)
            if shade is not None
        ]
    title = "tablets of each shard" if each else "tablets of the fullest shard of each node"
    return _Panel(f"{title}; the darkest has {most}", max(high * len(rows), 10), drawn)


def _moving(moments: Sequence[BalanceMoment], axis: _Axis) -> _Panel:
    high = HIGH // 2
    most = max(moment.moving for moment in moments)
    drawn = []
    for at, until, count in _runs([(one.at, one.moving) for one in moments], axis.end):
        tall = round(high * (count or 0) / max(1, most), 1)
        place = f'x="{axis.x(at)}" y="{high - tall}" width="{round(axis.x(until) - axis.x(at), 1)}" height="{tall}"'
        drawn += [f'<rect class="moving" {place}><title>{count}</title></rect>'] if count else []
    return _Panel("migrating tablets", high, drawn, str(most))


def _frame(panel: _Panel, axis: _Axis) -> Iterator[str]:
    """Yield title, axes and time labels of a panel."""
    yield _text(LEFT, -8, panel.title, 'class="title"')
    yield f'<path class="axis" fill="none" d="M{LEFT} 0V{panel.high}H{LEFT + WIDE}"/>'
    if panel.most:
        yield _text(LEFT - 6, 8, panel.most, 'text-anchor="end"')
        yield _text(LEFT - 6, panel.high, "0", 'text-anchor="end"')
    for tick in range(TICKS + 1):
        at = axis.begin + (axis.end - axis.begin) * tick // TICKS
        yield _text(axis.x(at), panel.high + 14, axis.label(at), 'text-anchor="middle"')


def _legend(history: BalanceHistory) -> Iterator[str]:
    numbers = _by_name(history)
    for place, number in enumerate(numbers[:NAMED_MAX]):
        here, top = LEFT + WIDE + 16, GAP + 16 * place
        yield f'<rect x="{here}" y="{top}" width="10" height="10" fill="{_colour(number)}"/>'
        yield _text(here + 16, top + 9, history.nodes[number].name)
    if len(numbers) > NAMED_MAX:
        yield _text(LEFT + WIDE + 16, GAP + 16 * NAMED_MAX + 9, f"and {len(numbers) - NAMED_MAX} more")


# -------------------------------------------------------------------------------------------------------- values


def _by_name(history: BalanceHistory) -> list[int]:
    return sorted(range(len(history.nodes)), key=lambda number: (history.nodes[number].name, number))


def _per_shard(history: BalanceHistory, number: int, series: str) -> Steps:
    """Return a node's tablets or bytes divided by its shards; None while the node is not in the cluster."""
    found: Steps = []
    for moment in history.moments:
        column = moment.sizes if series == "bytes" else moment.tablets
        is_there = number in moment.there
        found.append((moment.at, int(column[number].sum()) / history.nodes[number].shards if is_there else None))
    return found


def _shade(moment: BalanceMoment, number: int, shard: int, most: int) -> int | None:
    if number not in moment.there:
        return None
    row = moment.tablets[number]
    return -(-SHADES * int(row.max() if shard < 0 else row[shard]) // most)


def _runs(steps: Sequence[tuple[int, int | None]], end: int) -> Iterator[tuple[int, int, int | None]]:
    """Yield (begin, end, value) of adjacent equal values."""
    begins = [(next(run)[0], value) for value, run in groupby(steps, key=lambda step: step[1])]
    for (at, value), until in zip(begins, [*(at for at, _ in begins[1:]), end], strict=True):
        yield at, until, value


def _path(steps: Steps, axis: _Axis, most: float) -> str:
    parts: list[str] = []
    before: float | None = None
    for at, value in [*steps, (axis.end, steps[-1][1])]:
        if value == before and at != axis.end:
            continue
        if before is not None:
            parts.append(f"H{axis.x(at)}")
        if value is not None:
            y = round(HIGH * (1 - value / most), 1)
            parts.append(f"M{axis.x(at)} {y}" if before is None else f"V{y}")
        before = value
    return "".join(parts)


# --------------------------------------------------------------------------------------------------------- marks


def _text(x: float, y: float, text: str, how: str = "") -> str:
    return f'<text x="{x}" y="{y}" {how}>{escape(text)}</text>'


def _named(history: BalanceHistory, number: int) -> str:
    return f"<title>{escape(history.nodes[number].name)}</title>"


def _colour(number: int) -> str:
    """Return a node's color. Consecutive numbers differ by the golden angle, so neighbors are easy to distinguish."""
    red, green, blue = hls_to_rgb(number * 0.381966 % 1, 0.42, 0.65)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _grey(shade: int) -> str:
    light = 245 - 195 * shade // SHADES
    return f"#{light:02x}{light:02x}{min(255, light + 30):02x}"


def _amount(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
