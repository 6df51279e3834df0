"""An own record of the ring: who owns which token, which movements are on their way, what that means for groups.

It is built from the applied entries alone and shares nothing with the kernel but their fields. A layout is worked out
the naive way: sort the tokens, walk clockwise, take distinct owners. A movement is a change of the token map (``MAPS``:
one line for each kind) and two moments (``READS_AT``, ``WRITES_AT``): when readers, and when writers, go by the changed
map. Everything else (groups at each stage, who gains, what a gate must ask, which ranges are locked) follows.

``Span`` remembers for each member of a range since when it has been one: copied when a range is split, begun anew when
somebody enters, taken back by a cancel from the copy that was made when the movement was admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringlog.kernel.commands.model import (
    AdvanceOperation,
    CancelOperation,
    CreateKeyspace,
    DropKeyspace,
    Join,
    RegisterNode,
)
from ringlog.kernel.outcome import Entry

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

Owners = Mapping[int, str]
"""Token to node id."""

ORDER: Mapping[str, tuple[str, ...]] = {
    "join": (
        "requested",
        "prepared",
        "commit_cdc_generation",
        "publish_cdc_generation",
        "write_both_read_old",
        "write_both_read_new",
        "finished",
    ),
}
SPLIT_AT, WRITES_AT, READS_AT = "prepared", "write_both_read_old", "write_both_read_new"


def _joined(owners: Owners, move: Move) -> Owners:
    return {**owners, **dict.fromkeys(move.tokens, move.node)}


MAPS: Mapping[str, Callable[[Owners, Move], Owners]] = {"join": _joined}
"""Kind of movement to what it makes of the token map."""


def walk(owners: Owners, end: int, count: int) -> tuple[str, ...]:
    """The first ``count`` distinct owners clockwise from the first token at or after ``end``."""
    tokens = sorted(owners)
    found: list[str] = []
    for token in [t for t in tokens if t >= end] + [t for t in tokens if t < end]:
        if owners[token] not in found and len(found) < count:
            found.append(owners[token])
    return tuple(found)


def holds(start: int, end: int, token: int) -> bool:
    """True if ``(start, end]`` of the ring has the token; ``(t, t]`` has them all."""
    return start < token <= end if start < end else token > start or token <= end


def covering(ends: Iterable[int], token: int) -> int:
    """The end of the range that has the token, of ranges with these ends (at least one)."""
    ordered = sorted(ends)
    return next((end for end in ordered if end >= token), ordered[0])


@dataclass(frozen=True, slots=True)
class Span:
    """One range: members of its read and its write group, each with the epoch since which it is one."""

    read: Mapping[str, int]
    write: Mapping[str, int]
    changed: int

    def next(self, read: tuple[str, ...], write: tuple[str, ...], epoch: int) -> Span:
        """With these groups from ``epoch`` on, if they are not the groups it has."""
        if (read, write) == (tuple(self.read), tuple(self.write)):
            return self
        same = set(read) == set(self.read) and set(write) == set(self.write)
        return Span(
            {node: self.read.get(node, epoch) for node in read},
            {node: self.write.get(node, epoch) for node in write},
            self.changed if same else epoch,
        )


NOBODY = Span({}, {}, 0)


@dataclass(frozen=True, slots=True)
class Exchange:
    """In a range of replication ``key`` that ends at ``end`` a movement leads from group ``old`` to ``new``."""

    key: str
    start: int
    end: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(slots=True)
class Move:
    """A movement. ``marks``: (stage, epoch) entered so far; ``locked``: (key, start, end, changed) when admitted."""

    id: str
    kind: str
    node: str
    tokens: tuple[int, ...]
    marks: list[tuple[str, int]]
    exchanges: tuple[Exchange, ...] = ()
    locked: tuple[tuple[str, int, int, int], ...] = ()
    saved: dict[str, dict[int, Span]] = field(default_factory=dict)

    @property
    def stage(self) -> str:
        """The present one."""
        return self.marks[-1][0]

    def reached(self, stage: str) -> bool:
        """True from ``stage`` on."""
        return any(entered == stage for entered, _ in self.marks)


class Movements:
    """The record; ``upto`` brings it to an epoch of the true log. ``flying``: movements that have not ended, by id."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.epoch = 0
        self.owners: Owners = {}
        self.keyspaces: dict[str, tuple[str, int]] = {}
        self.datacenters: dict[str, str] = {}
        self.standing: dict[str, str] = {}
        self.flying: dict[str, Move] = {}
        self.ended: dict[str, Move] = {}
        self.layouts: dict[str, dict[int, Span]] = {}
        self.refreshed = 0

    def upto(self, epoch: int) -> Movements:
        """Take in the applied entries up to ``epoch``."""
        while self.epoch < epoch:
            self.epoch += 1
            entry = self._sim.log.entries[self.epoch]
            if entry is not None:
                self._take(entry)
        return self

    def _take(self, entry: Entry) -> None:
        match entry.command:
            case RegisterNode(id=node, datacenter=datacenter):
                self.datacenters[node], self.standing[node] = datacenter, "none"
            case CreateKeyspace(name, replication):
                self.keyspaces[name] = (f"{replication.strategy}:{replication.factor}", replication.factor)
                self._refresh()
            case DropKeyspace(name):
                self.keyspaces.pop(name, None)
                self._refresh()
            case Join(node, tokens):
                self._admit(Move(f"join-{self.epoch}", "join", node, tokens, [("requested", self.epoch)]))
                self.standing[node] = "joining"
            case AdvanceOperation(name, to) if name in self.flying:
                self._advance(self.flying[name], to)
            case CancelOperation(name) if name in self.flying:
                self._cancel(self.flying[name])

    def _admit(self, move: Move) -> None:
        move.saved = {key: dict(layout) for key, layout in self.layouts.items()}
        after = MAPS[move.kind](self.owners, move)
        exchanges, locked = [], []
        for key, factor in self.settings():
            ends = sorted({*self.owners, *after})
            touched = {covering(self.layouts[key], token) for token in move.tokens if self.layouts[key]}
            for start, end in zip([*ends[-1:], *ends[:-1]], ends, strict=True):
                old, new = walk(self.owners, end, factor), walk(after, end, factor)
                if old != new:
                    exchanges.append(Exchange(key, start, end, old, new))
                    touched.update({covering(self.layouts[key], end)} if self.layouts[key] else ())
            order = sorted(self.layouts[key])
            for index, end in enumerate(order):
                if end in touched:
                    locked.append((key, order[index - 1], end, self.layouts[key][end].changed))
        move.exchanges, move.locked = tuple(exchanges), tuple(locked)
        self.flying[move.id] = move

    def _advance(self, move: Move, to: str) -> None:
        move.marks.append((to, self.epoch))
        if to == "finished":
            self.owners = MAPS[move.kind](self.owners, move)
            self.standing[move.node] = "normal"
            self._end(move)
        self._refresh()

    def _cancel(self, move: Move) -> None:
        move.marks.append(("cancelled", self.epoch))
        self.standing[move.node] = "none"
        self._end(move)
        self._refresh()
        for key, _, end, _ in move.locked:
            if key in self.layouts and end in self.layouts[key]:
                self.layouts[key][end] = move.saved[key][end]

    def _end(self, move: Move) -> None:
        del self.flying[move.id]
        self.ended[move.id] = move

    # --------------------------------------------------------------------------------------------- groups

    def settings(self) -> list[tuple[str, int]]:
        """(key, factor) of every replication setting in use."""
        return sorted(set(self.keyspaces.values()))

    def after(self, stage: str) -> Owners:
        """The token map with all movements that have reached ``stage``."""
        owners = self.owners
        for move in self.flying.values():
            if move.reached(stage):
                owners = MAPS[move.kind](owners, move)
        return owners

    def _refresh(self) -> None:
        """Work out all groups, and who has been in them since when."""
        self.refreshed = self.epoch
        read_by, write_by = self.after(READS_AT), self.after(WRITES_AT)
        cut, everybody = {*self.owners, *self.after(SPLIT_AT)}, self.after("requested")
        layouts: dict[str, dict[int, Span]] = {}
        for key, factor in self.settings():
            known = self.layouts.get(key)
            layout = layouts[key] = {}
            for end in sorted(cut):
                read = walk(read_by, end, factor)
                writers = {*walk(self.owners, end, factor), *walk(write_by, end, factor)}
                order = walk(everybody, end, len(everybody))
                write = tuple(node for node in order if node in writers)
                read = tuple(node for node in order if node in read)
                if known is None:
                    layout[end] = Span(dict.fromkeys(read, self.epoch), dict.fromkeys(write, self.epoch), self.epoch)
                else:
                    layout[end] = (known[covering(known, end)] if known else NOBODY).next(read, write, self.epoch)
        self.layouts = layouts


def movements(sim: Simulation) -> Movements:
    """The record that the checks of one run share."""
    found = sim.shared.get("movements")
    if not isinstance(found, Movements):
        found = sim.shared["movements"] = Movements(sim)
    return found
