"""The clients of a load on a store in memory, which loses, invents and delays values as a test demands."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ringlog.client.errors import RequestTimedOut
from ringlog.log.errors import ReplicaHalted
from ringlog_testing.histories.events import Type
from ringlog_testing.histories.recorder import FileSink
from ringlog_testing.histories.verdict import Linearizability
from ringlog_testing.load.driver import CheckedLoad, LatencyCounts, LoadOptions
from ringlog_testing.load.judge import LoadVerdict, judge
from ringlog_testing.load.order import ViolationKind
from ringlog_testing.load.stores import Answered, WriteRejected

FAR_S = 60.0
OPERATIONS = 300


class Registers:
    """Registers in memory: the greatest timestamp wins. ``bug``: the defect, from the ``after``-th operation on."""

    kind, name = "registers", "registers ks"

    def __init__(self, bug: str = "", after: int = 100) -> None:
        self._bug, self._after = bug, after
        self._lock = threading.Lock()
        self._values: dict[str, tuple[int, int]] = {}
        self._first: dict[str, int] = {}
        self._operations = 0
        self.load: CheckedLoad | None = None

    def _has(self, bug: str) -> bool:
        return self._bug == bug and self._operations > self._after

    def _begin(self) -> None:
        self._operations += 1
        if self._operations == OPERATIONS:
            assert self.load is not None
            self.load.stop()
        if self._has("halted"):
            raise ReplicaHalted("log_replaced", "the log is another one", 7)
        if self._has("defect"):
            raise ZeroDivisionError

    def write(self, key: str, value: int, timestamp: int, timeout_s: float) -> Answered:
        with self._lock:
            self._begin()
            if self._has("rejected") or self._has("rejected but stored"):
                if self._bug == "rejected but stored":
                    self._values[key] = (timestamp, value)
                raise WriteRejected("unknown_column")
            if not self._has("lost"):
                self._values[key] = max(self._values.get(key, (0, 0)), (timestamp, value))
            self._first.setdefault(key, value)
            if self._has("unknown") and value % 3:
                raise RequestTimedOut("write", timeout_s, ("n2",), 7, ())
            return Answered(None, "epoch 7, n1 n2")

    def read(self, key: str, timeout_s: float) -> Answered:
        with self._lock:
            self._begin()
            if self._has("unknown") and self._operations % 3:
                raise RequestTimedOut("read", timeout_s, ("n2",), 7, ())
            value = self._values.get(key, (0, 0))[1]
            if self._has("invented"):
                value += 1_000_000
            if self._has("stale"):
                value = self._first.get(key, 0)
            return Answered(value or None, "epoch 7, n1 n2")


def ran(store: Registers, path: Path, *, clients: int = 4) -> tuple[CheckedLoad, LoadVerdict]:
    """Run a load until the store has had its operations."""
    file = path / "history.jsonl"
    with FileSink(file) as sink:
        load = CheckedLoad([[store]], sink, LoadOptions("r", clients, 3, seed=1))
        store.load = load
        load.run(FAR_S)
    return load, judge(file)


@pytest.mark.parametrize(
    ("bug", "kinds"),
    [
        ("lost", {ViolationKind.LOST}),
        ("stale", {ViolationKind.LOST, ViolationKind.STALE}),
        ("invented", {ViolationKind.INVENTED}),
        ("rejected but stored", {ViolationKind.INVENTED}),
    ],
)
def test_a_defect_of_the_store_is_found_and_ends_the_load(tmp_path: Path, bug: str, kinds: set[ViolationKind]) -> None:
    load, verdict = ran(Registers(bug), tmp_path)
    assert verdict.violations[0].kind in kinds
    assert verdict.linearizable is Linearizability.NOT_LINEARIZABLE
    assert load.figures.total(Type.OK) + load.figures.total(Type.FAIL) < OPERATIONS
    assert 2 <= len(verdict.witness) <= 4


def test_a_correct_store_passes_and_each_key_is_read_at_the_end(tmp_path: Path) -> None:
    load, verdict = ran(Registers(), tmp_path)
    assert (verdict.count, verdict.linearizable) == (0, Linearizability.LINEARIZABLE)
    assert OPERATIONS <= verdict.done <= OPERATIONS + 4 + 3
    assert verdict.keys == 3
    assert load.figures.unread == 0


def test_a_loss_after_the_last_operation_is_found(tmp_path: Path) -> None:
    _, verdict = ran(Registers("stale", OPERATIONS), tmp_path, clients=1)
    assert verdict.count
    assert verdict.witness[-1].process.startswith("final-")


def test_operations_without_an_answer_are_unknown(tmp_path: Path) -> None:
    load, verdict = ran(Registers("unknown", OPERATIONS - 20), tmp_path)
    assert (verdict.count, verdict.linearizable) == (0, Linearizability.LINEARIZABLE)
    assert load.figures.total(Type.INFO) == verdict.unknown > 0
    assert {code for _, _, code in load.figures.codes} == {"request_timed_out"}


def test_rejected_writes_have_no_effect(tmp_path: Path) -> None:
    load, verdict = ran(Registers("rejected"), tmp_path)
    assert verdict.count == 0
    assert load.figures.total(Type.FAIL) > 20


def test_an_error_after_which_nothing_can_succeed_ends_the_load(tmp_path: Path) -> None:
    load, verdict = ran(Registers("halted"), tmp_path)
    assert isinstance(load.failure, ReplicaHalted)
    assert verdict.done > 90


def test_a_defect_of_the_client_is_not_an_unknown_outcome(tmp_path: Path) -> None:
    load, _ = ran(Registers("defect"), tmp_path)
    assert isinstance(load.failure, ZeroDivisionError)


def test_a_rate_limits_the_operations(tmp_path: Path) -> None:
    with FileSink(tmp_path / "history.jsonl") as sink:
        load = CheckedLoad([[Registers()]], sink, LoadOptions("r", 4, 3, rate=50.0))
        began = time.monotonic()
        load.run(0.5)
        most = 50 * (time.monotonic() - began) + 4 + 3
    assert 0 < load.figures.total(Type.OK) <= most


def test_percentiles_are_at_most_a_few_percent_too_large() -> None:
    counts = LatencyCounts()
    for number in range(1, 1_001):
        counts.add(number / 1e3)
    found = [counts.percentile(percent) for percent in (50, 99, 100)]
    assert found == pytest.approx([0.5, 0.99, 1.0], rel=0.025)
    assert LatencyCounts().percentile(50) is None
