"""``ringlog log`` reads logs of years: what it keeps does not grow with what it reads."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringlog.log.folding import FoldedRecord, follow
from ringlog.log.port import LogRecord
from ringlog.operator.log_lines import chosen, read_dump, write_dump
from ringlog.private import FileUnusable
from tests.agents.world import World


def records(count: int) -> list[LogRecord]:
    world = World()
    return [LogRecord(offset, world.direct().data) for offset in range(1, count + 1)]


def alive() -> int:
    gc.collect()
    return sum(type(one) is FoldedRecord for one in gc.get_objects())


def test_of_all_that_is_folded_only_the_last_lines_are_kept() -> None:
    most = 0

    def watched() -> Iterator[LogRecord]:
        nonlocal most
        for record in records(60):
            yield record
            most = max(most, alive())

    shown = list(chosen(follow(watched()), 0, 3, all_records=True))
    assert [line.offset for line in shown] == [58, 59, 60]
    assert 3 <= most <= 5


def test_a_dump_is_read_back_and_takes_the_place_of_the_one_before_only_when_it_is_whole(tmp_path: Path) -> None:
    kept, path = records(5), tmp_path / "shop.log"
    assert write_dump(path, iter(kept)) == 5
    assert list(read_dump(path)) == kept

    def broken() -> Iterator[LogRecord]:
        yield kept[0]
        raise ConnectionError

    with pytest.raises(ConnectionError):
        write_dump(path, broken())
    assert list(read_dump(path)) == kept


@pytest.mark.parametrize("place", ["no-folder/x", "folder", "a-file/x"])
def test_a_dump_that_cannot_be_written_says_where(place: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a-file").touch()
    with pytest.raises(FileUnusable, match=str(tmp_path / place)):
        write_dump(tmp_path / place, records(1))
