"""The check: do quorums of different views meet, for every pair of views and every choice of nodes?

Coordinators learn of a new view one after the other, so at any moment two of them may use different ones. For each
consistency level (QUORUM, and LOCAL_QUORUM in each datacenter), each view i of a reader and each view j of a writer:

- **neighbours** (i and j equal, or one apart): every read quorum meets every write quorum;
- **further apart**: they meet, or the request of the earlier view, read or write, meets the nodes that some gate in
  between is known to have reached (for every set that the gate accepts): such a node answers with its later epoch,
  and the coordinator plans again with a newer view. The request of the later view needs no such net: it carries its
  epoch, and who is behind catches up before it answers;
- **streamed**: a write that was done before, in view i, is in a later read of view j: somebody in the read quorum has
  it, or one who streamed from a node that has it. Gates do not help here, for the write is over;
- **kept**: whatever a write quorum of the first view has, a write quorum of the last view has in the end, by staying or
  by streaming. The others look at one operation and take for granted that a quorum has each earlier write; this one
  hands that on to the next operation. In a log, an acknowledgement covers all earlier writes, so the nodes that
  met a gate have them, too. Not for LOCAL_QUORUM under SimpleStrategy, which places replicas without regard
  to datacenters: how many of a range are in one is chance, and changes with every operation.

The second rule does not count on streaming to pick up late writes, nor the third on gates: two nets, each whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from operator import or_

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


@dataclass(frozen=True, slots=True)
class Conflict:
    """A read quorum and a write quorum that miss each other; for ``kept``, a write that no quorum has in the end.

    ``reader`` and ``writer`` number the views (of ``history``, after the rules that drop views). ``informed``: nodes
    known to have acknowledged the view that ``gate`` (its stage) guards, None where no gate stands between.
    ``streamed``: (target, source) bits of the streams that did not help. ``kept``: who has the write in the end, of
    those that count.
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


@dataclass(frozen=True, slots=True)
class QuorumVerdict:
    """What a history was found to be: ``pairs`` of quorums were compared; the first conflict of each kind and level."""

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
    """The history with all its views, or without those between the first and the last."""
    if rules.step == "on" or len(history.views) < 3:
        return history
    views = (history.views[0], history.views[-1])
    return replace(history, views=views, gates=tuple(gate for gate in history.gates if gate.view == 0))


def _pairs(count: int) -> Iterator[tuple[int, int]]:
    """(reader's view, writer's view), neighbours first, so that the simplest conflict is the first one found."""
    yield from sorted(
        ((one, other) for one in range(count) for other in range(count)),
        key=lambda pair: (abs(pair[0] - pair[1]), pair),
    )


def _conflicts(history: RangeHistory, rules: QuorumRules, found: Conflict) -> Iterator[Conflict]:
    """What is wrong about two quorums that do not meet each other themselves."""
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
    """For each gate between the views, informed nodes that the earlier request misses; None if some gate catches it."""
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
    """(target, source) of the readers that came with streamed rows, none of which has the write; None if one has."""
    before: RangeView = history.views[found.writer]
    unhelpful = []
    for stream in history.streams:
        # A write of a later view may come after the streaming; who was among its writers must have it from there.
        if not stream.target & found.read or (before.both and stream.target & before.write):
            continue
        source = _blind(stream, rules, found.write)
        if source is None:
            return None
        unhelpful.append((stream.target, source))
    return tuple(unhelpful)


def _blind(stream: RangeStream, rules: QuorumRules, has_it: Mask) -> Mask | None:
    """Sources that the stream may have had and none of which has the write; None if there are no such."""
    options = [stream.sources] if rules.stream == "on" else [1 << number for number in bits(stream.others)]
    return next((option for option in options if not option & has_it), None)


def _forgotten(history: RangeHistory, rules: QuorumRules, level: str, scope: Mask) -> Iterator[Conflict]:
    """Writes that were done before and that less than a quorum of those who write in the end has."""
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
