"""Start points, and the file that keeps a place."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ringlog.client.cdc.errors import BadStart, ProgressInUse
from ringlog.client.cdc.reader import start_of
from ringlog.client.cdc.stores import FileProgress

AT = 1_700_000_000_123_456


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("earliest", "earliest"),
        ("now", "now"),
        (str(AT), AT),
        (AT, AT),
        ("2023-11-14T22:13:20.123456Z", AT),
        ("2023-11-14T23:13:20.123456+01:00", AT),
        (datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC), AT),
    ],
)
def test_a_start_point(given: Any, wanted: object) -> None:
    assert start_of(given) == wanted


@pytest.mark.parametrize("given", ["yesterday", "", "-5", -5, True, "2023-11-14T22:13:20", datetime(2023, 11, 14)])  # noqa: DTZ001
def test_not_a_start_point(given: Any) -> None:
    with pytest.raises(BadStart):
        start_of(given)


def test_a_file_has_the_last_text_whole_and_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "place"
    first = FileProgress(path)
    assert first.load() is None
    first.save("one")
    first.save("two")
    with pytest.raises(ProgressInUse, match="place"):
        FileProgress(path)
    first.close()
    second = FileProgress(path)
    assert second.load() == "two"
    second.close()
    assert sorted(item.name for item in path.parent.iterdir()) == ["place", "place.lock"]
