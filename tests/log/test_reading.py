"""Reading to the end: all that is there, past gaps; nobody waits for ever for a broker that is silent."""

from __future__ import annotations

import pytest

from ringlog.log.errors import LogUnavailable
from ringlog.log.memory import MemoryLog
from ringlog.log.port import LogRecord
from ringlog.log.reading import read_to_end


class Silent(MemoryLog):
    """Has an end, but gives no records after the first two."""

    def read(self, position: int, timeout_s: float, records_max: int) -> tuple[list[LogRecord], int]:
        return super().read(position, timeout_s, 2) if position == 0 else ([], position)


def filled(log: MemoryLog) -> MemoryLog:
    log.append([b"0", b"1", b"2"])
    log.gap()
    return log


def test_all_that_is_there() -> None:
    log = filled(MemoryLog())
    tail = log.tail(1)
    assert [record.data for record in read_to_end(log, tail)] == [b"1", b"2"]
    assert tail.position == 4
    assert list(read_to_end(log, tail)) == []


def test_silence_is_an_error() -> None:
    log = filled(Silent())
    found = read_to_end(log, log.tail(0), silence_s=0.05)
    assert [next(found).data, next(found).data] == [b"0", b"1"]
    with pytest.raises(LogUnavailable, match="at offset 2 of 4"):
        next(found)


def test_a_look_may_end_it() -> None:
    log = filled(Silent())
    looks: list[int] = []

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        list(read_to_end(log, log.tail(0), look=look))
