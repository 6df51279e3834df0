"""The check of quorum intersection for every pair of views and every choice of nodes.

Coordinators learn a new view one after the other, so two of them may use different views at any moment. The check
compares each view i of a reader with each view j of a writer, for each consistency level (QUORUM, and LOCAL_QUORUM in
each datacenter):

- **neighbours** (i and j equal, or one apart): every read quorum intersects every write quorum.
- **further apart**: the quorums intersect, or the request of the earlier view intersects the nodes known to have
  acknowledged some gate in between (for every set that the gate accepts). These nodes answer with their later epoch,
  and the coordinator plans again with a newer view. The request of the later view needs no gate. It carries its epoch,
  and a node that is behind catches up before it answers.
- **streamed**: a later read in view j sees a completed write of view i. A node of the read quorum has the write or
  streamed from a node that has it. Gates do not help, because the write has ended.
- **kept**: a write quorum of the last view has each write of a write quorum of the first view, by staying or by
  streaming. The other rules check one operation and assume that a quorum has each earlier write. This rule establishes
  the assumption for the next operation. In a log, an acknowledgement covers all earlier writes, so nodes that met a
  gate also have them. The rule does not apply to LOCAL_QUORUM under SimpleStrategy, which ignores datacenters. There,
  the number of replicas in a datacenter is random and changes with every operation.

The second rule does not rely on streaming for late writes, and the third rule does not rely on gates. Each is
sufficient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import product
from operator import or_

from ringlog.kernel.values import Value, replace
from ringlog_testing.quorums.model import (
    EVERYWHERE,
    Mask,
    Passage,
    QuorumRules,
    RangeHistory,
    RangeStream,
    RangeView,
    bits,
    gate_in_force,
    majority,
    read_quorums,
    scopes,
    write_quorums,
)

NEIGHBOURS, APART, STREAMED, KEPT = "neighbours", "apart", "streamed", "kept"


class Conflict(Value):
    """A read quorum and a write quorum that do not intersect. For ``kept``: a write without a quorum at the end.

    ``reader`` and ``writer`` number the views (of ``history``, after the rules that drop views). ``informed``: nodes
    known to have acknowledged the view that ``gate`` (its stage) guards, None without a gate in between. ``streamed``:
    (target, source) bits of the streams that did not help. ``kept``: those of the counted nodes that have the write at
    the end.
    """

    kind: str
    level: str
    reader: int
    writer: int
    read: Mask
    write: Mask
    informed: Mask | None = None
    gate: str = ""
    streamed: tuple[tuple[Mask, Mask], ...] = ()
    kept: Mask | None = None


class QuorumVerdict(Value):
    """The result for a history: the number of compared ``pairs`` of quorums, and the first conflict of each kind and
    level.
    """

    history: RangeHistory
    pairs: int
    conflicts: tuple[Conflict, ...]


def check(history: RangeHistory, rules: QuorumRules) -> QuorumVerdict:
    """Compare every read quorum with every write quorum of every pair of views."""
    history = _stepped(history, rules)
    pairs = 0
    conflicts: dict[tuple[str, str], Conflict] = {}
    for level, scope in scopes(history):
        reads = [read_quorums(view, scope) for view in history.views]
        writes = [write_quorums(history, view, scope, rules) for view in history.views]
        for reader, writer in _pairs(len(history.views)):
            for read in reads[reader]:
                for write in writes[writer]:
                    pairs += 1
                    if read & write:
                        continue
                    blank = Conflict(NEIGHBOURS, level, reader, writer, read, write)
                    for found in _conflicts(history, rules, blank):
                        conflicts.setdefault((found.kind, level), found)
        if history.local or level == EVERYWHERE:
            for found in _forgotten(history, rules, level, scope):
                conflicts.setdefault((found.kind, level), found)
    return QuorumVerdict(history, pairs, tuple(conflicts.values()))


def _stepped(history: RangeHistory, rules: QuorumRules) -> RangeHistory:
    """Return the history with all its views, or without those between the first and the last."""
    if rules.step == "on" or len(history.views) < 3:
        return history
    views = (history.views[0], history.views[-1])
    return replace(history, views=views, gates=tuple(gate for gate in history.gates if gate.view == 0))


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    """Yield (reader's view, writer's view), neighbours first, so that the simplest conflict is found first."""
    yield from sorted(
        ((one, other) for one in range(count) for other in range(count)),
        key=lambda pair: (abs(pair[0] - pair[1]), pair),
    )


def _conflicts(history: RangeHistory, rules: QuorumRules, found: Conflict) -> Iterator[Conflict]:
    """Yield the conflicts of two quorums that do not intersect."""
    if abs(found.reader - found.writer) <= 1:
        yield found
        return
    missed = _missed_gates(history, rules, found)
    if missed is not None:
        informed, gate = next(iter(missed.items()), (None, None))
        yield replace(found, kind=APART, informed=informed, gate=gate.stage if gate else "")
    if found.writer < found.reader:
        streams = _unhelpful_streams(history, rules, found)
        if streams is not None:
            yield replace(found, kind=STREAMED, streamed=streams)


def _missed_gates(history: RangeHistory, rules: QuorumRules, found: Conflict) -> Mapping[Mask, Passage] | None:
    """Return, for each gate between the views, informed nodes that the earlier request misses.

    Return None if some gate catches the request.
    """
    if rules.recheck == "off":
        return {}
    earlier, later = sorted((found.reader, found.writer))
    request = found.read if found.reader == earlier else found.write
    missed: dict[Mask, Passage] = {}
    for passage in history.gates:
        if not earlier < passage.view < later:
            continue
        informed = next(
            (acknowledged for acknowledged in gate_in_force(history, passage, rules) if not acknowledged & request),
            None,
        )
        if informed is None:
            return None
        missed.setdefault(informed, passage)
    return missed


def _unhelpful_streams(
    history: RangeHistory, rules: QuorumRules, found: Conflict
) -> tuple[tuple[Mask, Mask], ...] | None:
    """Return (target, source) of streams into the read quorum, if none of the targets has the write, and else None."""
    before: RangeView = history.views[found.writer]
    unhelpful = []
    for stream in history.streams:
        # A write of a later view may follow the streaming. A target that was among its writers must have it from there.
        if not stream.target & found.read or (before.both and stream.target & before.write):
            continue
        source = _blind(stream, rules, found.write)
        if source is None:
            return None
        unhelpful.append((stream.target, source))
    return tuple(unhelpful)


def _blind(stream: RangeStream, rules: QuorumRules, has_it: Mask) -> Mask | None:
    """Return possible sources of the stream that do not have the write, or None if there are none."""
    options = [stream.sources] if rules.stream == "on" else [1 << number for number in bits(stream.others)]
    return next((option for option in options if not option & has_it), None)


def _forgotten(history: RangeHistory, rules: QuorumRules, level: str, scope: Mask) -> Iterator[Conflict]:
    """Yield a completed early write that less than a quorum of the final writers has."""
    end = history.views[-1].write & scope
    first = write_quorums(history, history.views[0], scope, rules) if end else ()
    for has_it, (acked, gate) in product(first, _gate_acks(history, rules)):
        kept, unhelpful = (has_it | (acked or 0)) & end, []
        for stream in history.streams:
            source = _blind(stream, rules, has_it)
            if source is None:
                kept |= stream.target & end
            else:
                unhelpful.append((stream.target, source))
                kept &= ~stream.target if stream.afresh else ~0
        if kept.bit_count() < majority(end):
            last = len(history.views) - 1
            yield Conflict(KEPT, level, last, 0, 0, has_it, acked, gate, tuple(unhelpful), kept)
            return


def _gate_acks(history: RangeHistory, rules: QuorumRules) -> Iterator[tuple[Mask | None, str]]:
    """Return (nodes that acknowledged, last stage) for every choice of sets that meet the gates of a log."""
    if not history.cumulative_acks or not history.gates:
        yield None, ""
        return
    for chosen in product(*(gate_in_force(history, passage, rules) for passage in history.gates)):
        yield reduce(or_, chosen), history.gates[-1].stage
