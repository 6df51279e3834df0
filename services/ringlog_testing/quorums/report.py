"""The checked plans and the results, for people (tables and sentences) and for programs (JSON values).

A counterexample is a table of the nodes of one range, and a sentence. The table shows each node's role in every view
(``r`` reads, ``w`` writes, ``rw`` both), the read quorum, the write quorum, and the nodes that acknowledged in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ringlog.kernel.values import asdict
from ringlog_testing.quorums.check import APART, NEIGHBOURS, Conflict
from ringlog_testing.quorums.explore import Findings, QuorumConflict
from ringlog_testing.quorums.model import RULE_FIELDS, Mask, QuorumRules, RangeView, bits
from ringlog_testing.quorums.walk import WAITS

Json = dict[str, Any]
COUNTS = ("plans", "refused", "entries", "cancels", "ranges", "distinct", "views", "pairs")
BROKEN_SHOWN_MAX = 10


def has_no_conflict(found: Iterable[Findings]) -> bool:
    """Return True if the checks found neither counterexamples nor faults."""
    return not any(findings.counterexamples or findings.broken for findings in found)


# -------------------------------------------------------------------------------------------------- for people


def printed(found: Sequence[Findings], rules: QuorumRules, left_out: Sequence[str]) -> Iterator[RenderableType]:
    """Yield the parts of the report in order."""
    yield _summary(found)
    if weakened := _weakened(rules):
        yield Text(f"rules weakened: {', '.join(weakened)}")
    for findings in found:
        if findings.unpromised:
            yield Text(
                f"{findings.kind}: {findings.unpromised} of {findings.plans} plans admit loss; the check covers "
                "only their layouts and cancels, not their quorums"
            )
        for code, count in sorted(findings.waiting.items()):
            yield Text(f"{findings.kind}: {count} plans are not covered: {WAITS[code]}")
    if left_out:
        yield Text(f"not covered: {'; '.join(left_out)}")
    for findings in found:
        yield from _faults(findings)
        for example in findings.counterexamples.values():
            yield Text()
            yield Text(heading(example), style="bold")
            yield table_of(example)
            yield Text(sentence(example))
    if has_no_conflict(found):
        yield Text(
            "no counterexample: every read quorum overlaps every write quorum, in all pairs of views", style="green"
        )


def _weakened(rules: QuorumRules) -> list[str]:
    """Return the rules that differ from the protocol, in command-line syntax."""
    choices = [(name, getattr(rules, field)) for name, field in RULE_FIELDS.items()]
    gates = [f"gate:{stage}=off" for stage in rules.gates_off]
    return [*(f"{name}={choice}" for name, choice in choices if choice != "on"), *gates]


def _summary(found: Sequence[Findings]) -> Table:
    table = Table("operation", box=None, padding=(0, 2))
    for name in (*COUNTS, "counterexamples", "faults"):
        table.add_column(name, justify="right")
    for findings in found:
        numbers = (_count(findings, name) for name in COUNTS)
        times = sum(example.times for example in findings.counterexamples.values())
        table.add_row(findings.kind, *map(str, numbers), str(times), str(len(findings.broken)))
    return table


def _count(findings: Findings, name: str) -> int:
    value = getattr(findings, name)
    return value if isinstance(value, int) else len(value)


def _faults(findings: Findings) -> Iterator[RenderableType]:
    for one in findings.broken[:BROKEN_SHOWN_MAX]:
        yield Text(f"{one.title}: {one.fault.rule}, in {one.fault.stage}: {one.fault.detail}", style="red")
    if len(findings.broken) > BROKEN_SHOWN_MAX:
        yield Text(f"and {len(findings.broken) - BROKEN_SHOWN_MAX} more")


def heading(example: QuorumConflict) -> str:
    """Return the place of a counterexample and its number of occurrences."""
    placed, conflict = example.placed, example.conflict
    where = f", range ({placed.start}, {placed.end}]" if placed.start != placed.end else ""
    times = "once" if example.times == 1 else f"{example.times} times"
    return f"{conflict.level}, {conflict.kind}, {times}; first: {example.title}, {placed.replication}{where}"


def table_of(example: QuorumConflict) -> Table:
    """Return a table with a row per node: its role in each view, and its membership in the quorums."""
    placed, conflict = example.placed, example.conflict
    table = Table("node", "datacenter", box=None, padding=(0, 2))
    for number, view in enumerate(placed.history.views):
        marks = "".join(
            mark
            for mark, own in ((" ←read", conflict.reader), (" ←write", conflict.writer))
            if own == number and (conflict.kept is None or own == conflict.writer)
        )
        table.add_column(view.name + marks)
    columns = {"write quorum": conflict.write, "acked": conflict.informed, "has it": conflict.kept}
    if conflict.kept is None:
        columns = {"read quorum": conflict.read, "write quorum": conflict.write, "acked": conflict.informed}
    groups = {name: group for name, group in columns.items() if group is not None}
    for name in groups:
        table.add_column(name, justify="center")
    for number, node in enumerate(placed.names):
        roles = [_role(view, number) for view in placed.history.views]
        table.add_row(
            node,
            placed.history.datacenters[number],
            *roles,
            *("x" if group >> number & 1 else "" for group in groups.values()),
        )
    return table


def _role(view: RangeView, number: int) -> str:
    letters = (letter for letter, group in (("r", view.read), ("w", view.write)) if group >> number & 1)
    return "".join(letters) or "·"


def sentence(example: QuorumConflict) -> str:
    """Return a description of the failure in sentences."""
    conflict, views = example.conflict, example.placed.history.views
    reader, writer = views[conflict.reader].name, views[conflict.writer].name
    read, write = _names(example, conflict.read), _names(example, conflict.write)
    lost = "No node is in both: the read misses the write."
    if conflict.kind == NEIGHBOURS:
        return (
            f"A write in view {writer} is complete after the answers of {write}; a read in view {reader} "
            f"asks {read}. {lost}"
        )
    if conflict.kind == APART:
        return _apart(example, conflict, lost)
    streams = "; ".join(
        f"{_names(example, target)} copied its rows from {_names(example, source)}, which does not have the write"
        for target, source in conflict.streamed
    )
    story = f"{write} completed an earlier write in view {writer}"
    if conflict.kept is not None:
        kept = _names(example, conflict.kept)
        if conflict.informed is not None:
            acked = _names(example, conflict.informed)
            story = f"{story}. The acknowledgement of {acked} was enough to leave {conflict.gate}"
        end = "In the end only {} of {} have it, less than a quorum: this operation or the next one loses the write."
        return f"{story}. {streams + '. ' if streams else ''}{end.format(kept, _names(example, views[-1].write))}"
    return f"{story}. {streams + '. ' if streams else ''}A read in view {reader} asks {read}. {lost}"


def _apart(example: QuorumConflict, conflict: Conflict, lost: str) -> str:
    views = example.placed.history.views
    is_late_read = conflict.reader < conflict.writer
    late, group = ("read", conflict.read) if is_late_read else ("write", conflict.write)
    earlier, later = sorted((conflict.reader, conflict.writer))
    story = (
        f"A coordinator that knows only view {views[earlier].name} sends its {late} to "
        f"{_names(example, group)}, while another coordinator is already in view {views[later].name}, "
        f"with {_names(example, conflict.write if is_late_read else conflict.read)}. "
    )
    if conflict.informed is None:
        return f"{story}No barrier between these views informs the first coordinator. {lost}"
    informed = _names(example, conflict.informed)
    if not conflict.informed:
        return (
            f"{story}{conflict.gate} needs no acknowledgement, so the first coordinator may never learn of it. {lost}"
        )
    enough = f"The acknowledgement of {informed} was enough to leave {conflict.gate}"
    return f"{story}{enough}, and it asks none of them. {lost}"


def _names(example: QuorumConflict, group: Mask) -> str:
    return ", ".join(example.placed.names[number] for number in bits(group)) or "no node"


# ------------------------------------------------------------------------------------------------ for programs


def as_json(found: Sequence[Findings], rules: QuorumRules, left_out: Sequence[str]) -> Json:
    """Return the same content as one JSON value."""
    return {
        "sound": has_no_conflict(found),
        "rules_weakened": _weakened(rules),
        "not_covered": list(left_out),
        "operations": [
            {
                "operation": findings.kind,
                **{name: _count(findings, name) for name in COUNTS},
                "unpromised": findings.unpromised,
                "waiting": findings.waiting.total(),
                "faults": [{"plan": one.title, **asdict(one.fault)} for one in findings.broken],
                "counterexamples": [_example(example) for example in findings.counterexamples.values()],
            }
            for findings in found
        ],
    }


def _example(example: QuorumConflict) -> Json:
    placed, conflict = example.placed, example.conflict

    def names(group: Mask) -> list[str]:
        return [placed.names[number] for number in bits(group)]

    return {
        "kind": conflict.kind,
        "level": conflict.level,
        "times": example.times,
        "plan": example.title,
        "replication": placed.replication,
        "start": placed.start,
        "end": placed.end,
        "datacenters": dict(zip(placed.names, placed.history.datacenters, strict=True)),
        "views": [{"name": v.name, "read": names(v.read), "write": names(v.write)} for v in placed.history.views],
        "read": None
        if conflict.kept is not None
        else {"view": placed.history.views[conflict.reader].name, "quorum": names(conflict.read)},
        "write": {"view": placed.history.views[conflict.writer].name, "quorum": names(conflict.write)},
        "acknowledged": None if conflict.informed is None else names(conflict.informed),
        "gate": conflict.gate or None,
        "has_it": None if conflict.kept is None else names(conflict.kept),
        "streamed": [{"target": names(target), "source": names(source)} for target, source in conflict.streamed],
        "story": sentence(example),
    }
