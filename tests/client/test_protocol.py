"""The steps of a read and a write on simulated replicas: digests, repairs, lagging replicas."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ringlog.client.data import registers as protocol
from ringlog.client.data.plans import Answer, Level
from ringlog.client.data.registers import AskReplica, AwaitReplies, FoundCell, ReadNewest, ReceivedReply, RegisterResult
from ringlog.client.errors import NotAuthorized, RequestImpossible, RequestTimedOut
from ringlog.kernel.values import Micros, replace
from ringlog.protocol.effects import Newest, Now, Steps, Until, run_steps
from ringlog.wire.data import BEHIND, NOT_AUTHORIZED, RegisterCell, digest_of, key_of
from tests.client.test_plans import ring
from tests.node.world import name_of

KEY, OLD, NEW = key_of("shop", b"k"), RegisterCell(1, b"old"), RegisterCell(2, b"new")
ONE, TWO, THREE = (name_of(number) for number in (1, 2, 3))
SECOND: Micros = 1_000_000


class Replicas:
    """Three replicas with one cell each. A replica in ``refuses`` gives its reason, one in ``silent`` gives no answer.
    Time passes only in waits: ``pace`` until replies arrive. Refusals are ``lag`` epochs older than the newest state.
    """

    def __init__(self, *cells: RegisterCell, pace: Micros = 1_000) -> None:
        self.state = ring(3, 3)
        self.cells = dict(zip((ONE, TWO, THREE), cells, strict=True))
        self.refuses: dict[str, str] = {}
        self.lag = 0
        self.silent: set[str] = set()
        self.has_log = True
        self.looks = 0
        self.asked: list[AskReplica] = []
        self._pace = pace
        self._now: Micros = 0
        self._open: list[AskReplica] = []

    def run_steps(self, steps: Steps[RegisterResult]) -> RegisterResult:
        return run_steps(steps, self._perform)

    def read(self, keyspace: str = "shop") -> RegisterResult:
        return self.run_steps(protocol.read(key_of(keyspace, b"k"), Level.QUORUM, "dc1", SECOND))

    def _perform(self, effect: Any) -> Any:
        match effect:
            case Newest():
                return self.state
            case Now():
                return self._now
            case AskReplica():
                self.asked.append(effect)
                self._open.append(effect)
            case AwaitReplies():
                taken, self._open = self._open, []
                self._now += self._pace if taken else effect.timeout
                return [self._reply(asked) for asked in taken]
            case ReadNewest():
                self.looks += 1
                return self.has_log
            case Until():
                self._now += effect.timeout

    def _reply(self, asked: AskReplica) -> ReceivedReply:
        node, cell = asked.node, asked.request.cell
        if node in self.silent:
            return asked, None
        answer = Answer(node, self.state.epoch, self.refuses.get(node, ""), self.state.state_id, "shop may not")
        if answer.refused:
            return asked, FoundCell(replace(answer, epoch=answer.epoch - self.lag))
        if cell is not None:
            self.cells[node] = cell
            return asked, FoundCell(answer)
        held = self.cells[node]
        return asked, FoundCell(answer, held, digest_of(held) if asked.is_digest else b"")


def test_equal_digests_are_enough() -> None:
    replicas = Replicas(NEW, NEW, NEW)
    told = replicas.read()
    assert (told.cell, told.attempts, told.repair) == (NEW, 1, None)
    assert [(asked.node, asked.is_digest) for asked in replicas.asked] == [(ONE, False), (TWO, True), (THREE, True)]


def test_different_digests_fetch_all_cells_and_repair_a_quorum() -> None:
    replicas = Replicas(OLD, OLD, NEW)
    told = replicas.read()
    assert (told.cell, told.attempts) == (NEW, 2)
    assert told.repair is not None
    asked = [(one.request.method, one.node, one.is_digest) for one in replicas.asked[3:]]
    assert asked == [
        *(("Read", node, False) for node in (ONE, TWO, THREE)),
        ("Repair", ONE, False),
        ("Repair", TWO, False),
    ]
    assert sum(cell == NEW for cell in replicas.cells.values()) == 3


def test_a_value_of_a_quorum_is_returned_without_a_repair() -> None:
    replicas = Replicas(OLD, NEW, NEW)
    told = replicas.read()
    assert (told.cell, told.repair) == (NEW, None)
    assert replicas.cells[ONE] == OLD


@pytest.mark.parametrize(("pace", "times"), [(protocol.HELD, 10), (protocol.HELD // 2, 4)])
def test_a_lagging_replica_is_retried_at_once_after_a_held_request(pace: Micros, times: int) -> None:
    replicas = Replicas(OLD, OLD, OLD, pace=pace)
    replicas.refuses = dict.fromkeys((TWO, THREE), BEHIND)
    with pytest.raises(RequestTimedOut, match="n2, n3"):
        replicas.read()
    assert Counter(asked.node for asked in replicas.asked) == {ONE: 1, TWO: times, THREE: times}


def test_a_silent_replica_is_asked_again_for_the_whole_cell() -> None:
    replicas = Replicas(OLD, OLD, OLD)
    replicas.silent = {TWO, THREE}
    with pytest.raises(RequestTimedOut, match=r"no answer from n2, n3"):
        replicas.read()
    again = [asked.is_digest for asked in replicas.asked if asked.node == TWO]
    assert again == [True, False, False, False]


def test_a_request_fails_only_after_a_check_of_the_newest_state() -> None:
    replicas = Replicas(OLD, OLD, OLD)
    with pytest.raises(RequestImpossible, match="unknown_keyspace"):
        replicas.read("none")
    assert (replicas.looks, replicas.asked) == (1, [])
    replicas.has_log = False
    with pytest.raises(RequestTimedOut, match="the metadata log"):
        replicas.read("none")


def test_a_missing_right_ends_a_request_after_a_check_of_the_newest_state() -> None:
    replicas = Replicas(OLD, OLD, OLD)
    replicas.refuses = dict.fromkeys((TWO, THREE), NOT_AUTHORIZED)
    with pytest.raises(NotAuthorized, match=r"read of shop .*: shop may not"):
        replicas.read()
    assert replicas.looks == 1


def test_a_refusal_of_an_older_state_is_asked_again() -> None:
    """The replica may not have read the grant."""
    replicas = Replicas(OLD, OLD, OLD)
    replicas.refuses, replicas.lag = dict.fromkeys((TWO, THREE), NOT_AUTHORIZED), 1
    with pytest.raises(RequestTimedOut, match="n2 not_authorized, n3 not_authorized"):
        replicas.read()


def test_one_refusal_does_not_end_a_request_that_a_quorum_answers() -> None:
    replicas = Replicas(OLD, OLD, OLD)
    replicas.refuses = {THREE: NOT_AUTHORIZED}
    assert (replicas.read().cell, replicas.looks) == (OLD, 0)
