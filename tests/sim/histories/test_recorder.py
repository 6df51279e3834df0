"""Recording: threads into one file, operations that end in exceptions, values that break the format."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from random import Random

import pytest

from ringlog.sim.histories.check import check
from ringlog.sim.histories.events import HistoryError, Op, Type
from ringlog.sim.histories.reader import read, read_bytes
from ringlog.sim.histories.recorder import FileSink, Recorder
from ringlog.sim.histories.verdict import Linearizability


def test_threads_and_recorders_that_share_a_file_record_a_history_that_is_linearizable(tmp_path: Path) -> None:
    path, store, lock = tmp_path / "h.jsonl", {"k": 0}, threading.Lock()
    ticks = itertools.count()

    def use(number: int) -> None:
        rng = Random(number)
        with FileSink(path) as sink:
            recorder = Recorder(sink, lambda: next(ticks))
            for count in range(60):
                if rng.random() < 0.5:
                    with recorder.operation(number, Op.READ, "k") as call, lock:
                        call.ok(store["k"] or None)
                else:
                    with recorder.operation(number, Op.WRITE, "k", number * 1000 + count) as call:
                        with lock:
                            store["k"] = number * 1000 + count
                        call.ok()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read(path)
    assert found.events == 4 * 60 * 2
    assert check(found).verdict is Linearizability.LINEARIZABLE


def test_an_operation_is_unknown_unless_it_says_otherwise() -> None:
    sink: list[str] = []
    recorder = Recorder(sink)
    with pytest.raises(TimeoutError), recorder.operation("a", Op.WRITE, "k", 1):
        raise TimeoutError
    with recorder.operation("b", Op.COMMIT, "log", "r1") as call:
        call.fail("node_exists")
    with recorder.operation("c", Op.READ, "k"):
        pass
    history = read_bytes("\n".join(sink).encode())
    fates = {one.process: (one.type, one.answer) for _, found in history.keys for one in found}
    assert fates == {"a": (Type.INFO, "TimeoutError"), "b": (Type.FAIL, "node_exists"), "c": (Type.INFO, None)}


def test_a_value_that_breaks_the_format_is_refused_before_it_is_written() -> None:
    sink: list[str] = []
    with pytest.raises(HistoryError):
        Recorder(sink).invoke("a", Op.COMMIT, "log", 5)
    assert sink == []
