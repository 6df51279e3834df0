"""Served metrics and health; every metric is in the metrics table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from ringlog.runtime.monitoring.health import Health, StateSince
from ringlog.runtime.monitoring.metrics import ALL_METRICS, Durations, Kind, Metric, Sample
from ringlog.runtime.monitoring.scrape import answer, exposition


class Standing:
    """A process with a fixed health and fixed metrics."""

    labels: Mapping[str, str] = {"role": "validator"}

    def __init__(self, health: Health) -> None:
        self._health = health

    def health(self) -> tuple[Health, int]:
        return self._health, 1_700_000_000_123_456

    def samples(self) -> Iterator[Sample]:
        yield Sample("ringlog_epoch", 7)


def found(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    samples = [sample for family in parsed(text.decode()) for sample in family.samples]
    made = {(one.name, tuple(one.labels.items())): one.value for one in samples}
    assert len(made) == len(samples), "no sample is repeated"
    return made


def test_gauges_and_counters_have_their_labels_after_those_of_the_process() -> None:
    samples = [
        Sample("ringlog_epoch", 7),
        Sample("ringlog_log_records", 3, ("applied",)),
        Sample("ringlog_log_records", 1, ("stale",)),
    ]
    assert found(exposition(samples, {"node": "n1"})) == {
        ("ringlog_epoch", (("node", "n1"),)): 7,
        ("ringlog_log_records_total", (("node", "n1"), ("outcome", "applied"))): 3,
        ("ringlog_log_records_total", (("node", "n1"), ("outcome", "stale"))): 1,
    }


def test_node_names_with_special_characters_are_escaped() -> None:
    name = 'a"b\\c\nd'
    assert list(found(exposition([Sample("ringlog_epoch", 1)], {"node": name}))) == [
        ("ringlog_epoch", (("node", name),))
    ]


def test_a_metric_missing_in_the_table_is_not_served() -> None:
    with pytest.raises(KeyError):
        exposition([Sample("ringlog_made_up", 1)], {})


def test_the_table_has_each_name_once_and_by_the_conventions() -> None:
    served = [name for figure in ALL_METRICS.values() for name in figure.served]
    assert len(set(served)) == len(served)
    for figure in ALL_METRICS.values():
        assert isinstance(figure, Metric)
        assert figure.name.startswith("ringlog_")
        assert not figure.name.endswith(("_total", "_count", "_sum", "_bucket")), "the client adds these"
        assert figure.kind in get_args(Kind)
        assert figure.meaning.endswith(".")
        assert set(figure.labels).isdisjoint({"role"}), "the agent adds this label"


def test_histograms_are_cumulative() -> None:
    spread = Durations()
    for seconds in (0.0005, 0.001, 0.3, 1_000.0):
        spread.add(seconds)
    buckets = dict(spread.buckets())
    assert buckets["0.001"] == 2, "a bound is part of its bucket"
    assert (buckets["0.2"], buckets["0.5"], buckets["30.0"], buckets["+Inf"]) == (2, 3, 3, 4)
    assert [*buckets.values()] == sorted(buckets.values())
    assert spread.total_s == pytest.approx(1_000.3015)


@pytest.mark.parametrize(("is_ready", "status"), [(True, 200), (False, 503)])
def test_health_is_a_status_and_the_reason(is_ready: bool, status: int) -> None:
    given = answer("/health", Standing(Health("taking_over", is_ready, "reads the results", 12, 3)))
    assert (given.status, given.media_type) == (status, "application/json")
    assert json.loads(given.body) == {
        "state": "taking_over",
        "ready": is_ready,
        "since": "2023-11-14T22:13:20.123Z",
        "why": "reads the results",
        "epoch": 12,
        "behind_records": 3,
    }


def test_other_paths_return_not_found() -> None:
    assert answer("/", Standing(Health("ready", True))).status == 404
    assert answer("/metrics", Standing(Health("halted", False))).status == 200


def test_a_state_lasts_since_it_was_first_seen() -> None:
    now = [10]
    since = StateSince(lambda: now[0])
    now[0] = 20
    assert since.of("starting") == 10, "the value at the start"
    assert since.of("ready") == 20
    now[0] = 30
    assert (since.of("ready"), since.of("starting")) == (20, 30)
