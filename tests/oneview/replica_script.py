"""A scripted log around one production replica. The script appends records and delays their delivery to the replica."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.encoding.encoder import command_digest, digest
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import Entry, Outcome, OutcomeKind, UnknownCommand, UnreadableEntry
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.log.author import Author
from ringlog.log.delays.control import MemoryDelays
from ringlog.log.delays.delayable import DelayableLog
from ringlog.log.delays.rules import DELAY, HOLD, Match, Rule
from ringlog.log.errors import WaitTimedOut
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog.runtime.clock import ManualClock
from ringlog.runtime.draw import SeededDraw
from ringlog.wire.entries import decode_entry, encode_entry
from tests.oneview.script import Actor, line

SHORT_S = 0.1
LONG_S = 60.0
ME = "node-n1"
APPLIED = OutcomeKind.APPLIED


class Reader(Actor):
    """A replica under test. ``log`` contains all records and ``head`` is its final state. ``me`` is the replica, which
    reads through a delayable log.
    """

    def __init__(self, folder: Path) -> None:
        self.log = MemoryLog()
        self.delays = MemoryDelays()
        self.clock = ManualClock()
        self.author = Author("others", self.clock, SeededDraw(b"others"))
        self.record = folder / "metadata.json"
        self.head = EMPTY_STATE
        self.entries: list[bytes] = []
        self.followed: list[tuple[int, OutcomeKind]] = []
        self._append(self.author.entry(EMPTY_STATE, InitializeCluster("tests")).data)
        self.me = self._begin()

    def _begin(self) -> LogReplica:
        log = DelayableLog(self.log, self.delays, ME, clock=self.clock)
        me = LogReplica(log, record=self.record, watch_s=SHORT_S)
        me.subscribe(self._follow, me.halt_on_defect)
        return me.start()

    def _follow(
        self, _b: ClusterState, _a: ClusterState, _i: Entry | UnreadableEntry, what: Outcome, offset: int
    ) -> None:
        self.followed.append((offset, what.kind))

    def end(self) -> None:
        """Stop the replica."""
        self.me.stop()
        self.me.log.close()

    # Appends of other processes

    def _append(self, data: bytes) -> None:
        self.log.append([data])
        self.entries.append(data)
        self.head = fold(self.head, decode_entry(data)).state

    @line(r"others append (\d+) entr(?:y|ies)")
    def _entries(self, count: str) -> None:
        for _ in range(int(count)):
            self._append(self.author.entry(self.head, Noop()).data)

    @line("the last entry is repeated")
    def _again(self) -> None:
        self._append(self.entries[-1])

    @line("two entries race for the next epoch")
    def _race(self) -> None:
        rivals = [self.author.entry(self.head, Noop()).data for _ in range(2)]
        for data in rivals:
            self._append(data)

    @line("an entry of another cluster arrives")
    def _foreign(self) -> None:
        other = fold(EMPTY_STATE, self.author.entry(EMPTY_STATE, InitializeCluster("other")).entry).state
        self._append(self.author.entry(other, Noop()).data)

    @line("an unreadable record arrives")
    def _unreadable(self) -> None:
        self._append(b"no entry")

    @line("an entry of a later release arrives")
    def _later(self) -> None:
        known, payload = self.author.entry(self.head, Noop()).entry, b"\x02"
        later = Entry(
            known.cluster_id,
            known.state_id,
            known.prev_state_id,
            known.request_id,
            known.since_epoch,
            known.submitter,
            known.at,
            "MoveMoon",
            3,
            command_digest("MoveMoon", 3, payload),
            UnknownCommand("MoveMoon", 3),
        )
        self._append(encode_entry(later, payload))

    @line("another topic replaces the log")
    def _replaced(self) -> None:
        self.log.replace()

    @line(r"the log is truncated after (\d+) records")
    def _truncated(self, end: str) -> None:
        self.log.truncate(int(end))

    # Delays for this replica

    @line(r"the entry of epoch (\d+) is held")
    def _hold(self, epoch: str) -> None:
        self.delays.put(Rule(f"epoch-{epoch}", HOLD, participants=("node-*",), match=Match(epoch=int(epoch))))

    @line(r"the entry of epoch (\d+) is delayed by (\d+) s")
    def _delay(self, epoch: str, seconds: str) -> None:
        self.delays.put(Rule(f"epoch-{epoch}", DELAY, match=Match(epoch=int(epoch)), seconds=int(seconds)))

    @line(r"epoch (\d+) is released")
    def _release(self, epoch: str) -> None:
        self.delays.release(f"epoch-{epoch}")

    @line(r"(\d+) s pass")
    def _pass(self, seconds: str) -> None:
        self.clock.advance(int(seconds))

    # Actions of this replica

    @line(r"I wait before epoch (\d+)")
    def _wait_before(self, epoch: str) -> None:
        """Wait until all earlier entries are applied and the entry of this epoch is held."""
        held = self.delays.await_held(f"epoch-{epoch}", ME, LONG_S)
        self.me.wait_for(lambda _: self.me.position == held.offset, LONG_S, f"offset {held.offset}")
        assert self.me.state.epoch == int(epoch) - 1

    @line("my barrier waits")
    def _barrier_waits(self) -> None:
        with pytest.raises(WaitTimedOut, match=f"offset {self.log.end_offset()}"):
            self.me.read_barrier(SHORT_S)

    @line("my barrier shows the end of the log")
    def _barrier(self) -> None:
        assert digest(self.me.read_barrier(LONG_S)) == digest(self.head)
        assert self.me.position == self.log.end_offset()

    @line("I restart")
    def _restart(self) -> None:
        self.end()
        self.followed.clear()
        self.me = self._begin()

    @line(r"my recorded position is offset (\d+)")
    def _remember(self, offset: str) -> None:
        assert re.search(rf'"position": {offset}\b', self.record.read_text()), self.record.read_text()

    @line(r"I halt: (\w+)")
    def _halt(self, code: str) -> None:
        me = self.me
        with me._changed:
            assert me._changed.wait_for(lambda: me.halted is not None, LONG_S)
        assert me.halted is not None
        assert me.halted.code == code

    @line("I am not halted")
    def _no_halt(self) -> None:
        assert self.me.halted is None

    @line(r"I am at epoch (\d+)")
    def _epoch(self, epoch: str) -> None:
        assert self.me.state.epoch == int(epoch)

    @line(r"I have counted (\d+) as (\w+)")
    def _counted(self, count: str, kind: str) -> None:
        assert self.me.counts[OutcomeKind(kind)] == int(count)

    @line("my followers got each record once, in order")
    def _followed_all(self) -> None:
        assert [offset for offset, _ in self.followed] == list(range(self.log.end_offset()))
