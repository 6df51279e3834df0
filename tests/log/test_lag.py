"""The watch of a lag: an unknown lag is never an old value, and no failure ends the thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ringlog.log.errors import LogUnavailable
from ringlog.log.kafka.lag import Lag, LagView, LagWatch
from tests.waiting import until


class ScriptedReader:
    """A reader with scripted results: a number of records, or an error."""

    def __init__(self, script: Iterator[int | Exception]) -> None:
        self._script = script

    def measure(self, _positions: Mapping[int, int], *, is_whole: bool) -> Lag:
        assert is_whole
        found = next(self._script)
        if isinstance(found, Exception):
            raise found
        return Lag(found, 0.0, 100 + found)

    def close(self) -> None: ...


def test_a_watch_reports_each_measurement_and_survives_failures() -> None:
    away = LogUnavailable("no answer")
    script: list[int | Exception] = [3, away, away, 5, ValueError("a defect"), 7]
    views: list[LagView] = []

    def observe(view: LagView) -> None:
        views.append(view)
        raise BrokenPipeError("nobody reads the report")

    reader: Any = ScriptedReader(iter(script))
    watch = LagWatch(lambda: reader, dict, observe, look_s=3600)
    watch.start()
    found = [watch.measured(60) for _ in script]
    until(lambda: len(views) == len(script), "the last report")
    watch.stop()
    assert views == found
    assert [view.known.records if view.known else None for view in found] == [3, None, None, 5, None, 7]
    assert [view.away_since for view in found] == [None, 103, 103, None, 105, None]
    assert found[1].why == "no answer"


def test_a_slow_measurement_is_unknown() -> None:
    started: Any = ScriptedReader(iter([3]))
    watch = LagWatch(lambda: started, dict, lambda _: None, look_s=3600)
    watch.start()
    assert watch.measured(60).known == Lag(3, 0.0, 103)
    assert watch.measured(0).known is None, "the old value is not repeated"
    watch.stop()
