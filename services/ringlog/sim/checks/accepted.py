"""Which writes count, retold: the rule of acceptance in a few lines, applied to every record of the mutations topic.

A node judges a record after it has folded everything that the log held when it read the record; another one, or
itself after a restart, may judge it later. So a record that is acceptable under every state since it could first be
read *must* be kept by all, one that is acceptable under none *must not*, and in between both are right. One write may
be in the topic several times: it must be kept if one of its records must, and may be kept if one may.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.ring.partition_key import compose
from ringlog.kernel.state import ClusterState
from ringlog.sim.actors.producer import KEYSPACE, TABLE
from ringlog.sim.broker import MUTATIONS
from ringlog.sim.checks.judge import Reaches, window_of
from ringlog.sim.memo import cached_mutation
from ringlog.wire.errors import WireError
from ringlog.wire.records import Mutation

if TYPE_CHECKING:
    from ringlog.sim.simulation import Simulation

NAME = f"{KEYSPACE}.{TABLE}"
Window = tuple[tuple[int, ...], tuple[int, ...], int]
"""(starts of generations, window behind each, window ahead of now)."""
Verdicts = tuple[Window, frozenset[str]]
"""Beside it the columns of the table."""


@dataclass(slots=True)
class Written:
    """One record of the topic. ``always``, ``ever``: acceptable under all, under any of the states since then."""

    partition: int
    offset: int
    value: bytes
    appended: int
    write: Mutation
    key: bytes
    token: int
    always: bool = True
    ever: bool = False

    def judge(self, rules: Verdicts | None) -> None:
        """One more state under which it may be judged."""
        good = (
            rules is not None
            and _acceptable(self.write.timestamp, self.appended, *rules[0])
            and all(cell.column in rules[1] for cell in self.write.cells)
        )
        self.always, self.ever = self.always and good, self.ever or good


class AcceptedWrites:
    """All records so far; ``look`` takes in what is new. Writes are told apart by their bytes."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._read: dict[int, int] = {}
        self._rules: Verdicts | None = None
        self._reaches = Reaches()
        self.records: list[Written] = []

    def look(self) -> None:
        """Take in the records that can be read by now; the log has not grown since ``changed``."""
        for partition in self._sim.broker.topics[MUTATIONS]:
            first = self._read.get(partition.number, 0)
            if first == partition.visible:
                continue
            self._read[partition.number] = partition.visible
            for record in partition.records[first : partition.visible]:
                try:
                    write = cached_mutation(record.value)
                except WireError:
                    continue
                if f"{write.keyspace}.{write.table}" != NAME:
                    continue
                key = compose([part for part in write.partition_key if part is not None])
                appended = record.time // 1000 * 1000
                written = Written(partition.number, record.offset, record.value, appended, write, key, token_of(key))
                written.judge(self._rules)
                self.records.append(written)

    def changed(self, state: ClusterState) -> None:
        """The log has a new state: what was there before may be judged under it, too."""
        self.look()
        self._reaches.look(state)
        rules = None
        if NAME in state.tables:
            starts = tuple(made.timestamp for made in state.generations)
            columns = frozenset(column.name for column in state.tables[NAME].columns)
            rules = ((starts, tuple(map(self._reaches.at, starts)), window_of(state)), columns)
        if rules != self._rules:
            self._rules = rules
            for written in self.records:
                written.judge(rules)

    def must(self) -> set[bytes]:
        """The writes that everybody who was shown them has to keep."""
        return {written.value for written in self.records if written.always}

    def may(self) -> set[bytes]:
        """The writes that somebody may have kept."""
        return {written.value for written in self.records if written.ever}


def _acceptable(timestamp: int, now: int, starts: tuple[int, ...], reaches: tuple[int, ...], leeway: int) -> bool:
    """ScyllaDB's rule: not from the future, in a generation, and of one that has ended only within its window."""
    if timestamp > now + leeway or not any(start <= timestamp for start in starts):
        return False
    followers = [(start, reach) for start, reach in zip(starts, reaches, strict=True) if timestamp < start <= now]
    return not followers or timestamp > now - min(followers)[1]
