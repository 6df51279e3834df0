"""The answers to who looks at a process: ``/metrics`` in the text format of Prometheus, and ``/health``.

``prometheus_client`` writes the format. It is loaded with the first scrape: a process that nobody scrapes does without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringlog.runtime.figures import FIGURES, Durations, Sample
from ringlog.runtime.health import WatchedProcess, as_json, in_a_word
from ringlog.runtime.tokens import NO_TOKEN

if TYPE_CHECKING:
    from prometheus_client import Metric

METRICS, HEALTH = "/metrics", "/health"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What HTTP gives back."""

    status: int
    media_type: str
    body: bytes


def answer(path: str, watched: WatchedProcess, *, is_admitted: bool = True) -> HttpAnswer:
    """The answer to a GET: 503 where the process is not ready, 404 for another path. Who is not admitted learns whether
    the process is ready, nothing else.
    """
    if path == HEALTH:
        health, since = watched.health()
        body = as_json(health, since) if is_admitted else in_a_word(health)
        return HttpAnswer(200 if health.is_ready else 503, JSON, body)
    if not is_admitted:
        return HttpAnswer(401, JSON, NO_TOKEN)
    if path == METRICS:
        return HttpAnswer(200, TEXT, exposition(watched.samples(), watched.labels))
    return HttpAnswer(404, JSON, b'{"detail": "there are /metrics and /health"}\n')


def exposition(samples: Iterable[Sample], labels: Mapping[str, str]) -> bytes:
    """Samples as Prometheus reads them; ``labels`` are those of all. KeyError: a figure that the table lacks."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Collector:
        def collect(self) -> Iterator[Metric]:
            return _families(samples, labels)

    registry = CollectorRegistry()
    registry.register(Collector())
    return generate_latest(registry)


def _families(samples: Iterable[Sample], labels: Mapping[str, str]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    names, values = tuple(labels), tuple(labels.values())
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)
    for name, all_of_it in found.items():
        figure = FIGURES[name]
        declared = (*names, *figure.labels)
        if figure.kind == "histogram":
            histogram = HistogramMetricFamily(name, figure.meaning, labels=declared)
            for one in all_of_it:
                assert isinstance(one.value, Durations), "the value of a histogram"
                histogram.add_metric((*values, *one.labels), one.value.buckets(), one.value.total_s)
            yield histogram
            continue
        family = (CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily)(
            name, figure.meaning, labels=declared
        )
        for one in all_of_it:
            assert not isinstance(one.value, Durations), "a number"
            family.add_metric((*values, *one.labels), one.value)
        yield family
