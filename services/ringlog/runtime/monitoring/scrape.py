"""HTTP responses to monitoring, and the checks of such requests: ``Host`` header and access token.

``/metrics`` has the text format of Prometheus. ``prometheus_client`` writes it and is imported at the first scrape, so
a process without scrapes does not load it.

The ``Host`` check prevents DNS rebinding. A web page may point its own name at 127.0.0.1 after it is loaded, and the
browser then lets it read local servers. The ``Host`` header still has the page's name. So a request under another name
than this machine's or the server's address is rejected. A server that listens on every address was opened by its
operator, and accepts any name.

A server with tokens answers only requests with ``Authorization: Bearer`` and one of its tokens (RFC 6750). Without a
token only ``/health`` answers, and only with the readiness: supervisors need no secret.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ringlog.kernel.values import Value
from ringlog.runtime.monitoring.health import WatchedProcess, as_json, short_body
from ringlog.runtime.monitoring.metrics import ALL_METRICS, Durations, Sample

if TYPE_CHECKING:
    from prometheus_client import Metric


LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
ANYWHERE: Final = frozenset({"0.0.0.0", "::", "[::]"})
REFUSAL: Final = json.dumps({"detail": "this server has another name: use the address of the node"}).encode()


def is_own(hosts: Sequence[str], *own: str) -> bool:
    """Return True if a request with these ``Host`` headers is for a server with the names ``own``."""
    if ANYWHERE.intersection(own):
        return True
    return len(hosts) == 1 and name_of(hosts[0]) in LOOPBACK.union(map(name_of, own))


def with_port(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def name_of(host: str) -> str:
    """Return a ``Host`` header without its port."""
    name, colon, port = host.strip().lower().rpartition(":")
    found = name if colon and port.isdecimal() and (name.endswith("]") or ":" not in name) else host.strip().lower()
    return found.removesuffix(".")


CHALLENGE: Final = "Bearer"
NO_TOKEN: Final = json.dumps({"detail": "send a token of this server: Authorization: Bearer …"}).encode()


def is_admitted(authorizations: Sequence[str], tokens: Sequence[str]) -> bool:
    """Return True if a request with these ``Authorization`` headers has one of ``tokens``. Always True without tokens.

    The time of the comparison reveals only the length of a token.
    """
    if not tokens:
        return True
    scheme, _, shown_token = (authorizations[0] if len(authorizations) == 1 else "").partition(" ")
    shown = shown_token.strip().encode("utf-8", "surrogateescape")
    equal = [hmac.compare_digest(shown, token.encode()) for token in tokens]
    return scheme.lower() == "bearer" and any(equal)


METRICS, HEALTH = "/metrics", "/health"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"


class HttpAnswer(Value):
    """An HTTP response."""

    status: int
    media_type: str
    body: bytes


def answer(path: str, watched: WatchedProcess, *, is_admitted: bool = True) -> HttpAnswer:
    """Return the response to a GET: 503 if the process is not ready, 404 for an unknown path.

    A client without a token receives only the readiness.
    """
    if path == HEALTH:
        health, since = watched.health()
        body = as_json(health, since) if is_admitted else short_body(health)
        return HttpAnswer(200 if health.is_ready else 503, JSON, body)
    if not is_admitted:
        return HttpAnswer(401, JSON, NO_TOKEN)
    if path == METRICS:
        return HttpAnswer(200, TEXT, exposition(watched.samples(), watched.labels))
    return HttpAnswer(404, JSON, b'{"detail": "there are /metrics and /health"}\n')


def exposition(samples: Iterable[Sample], labels: Mapping[str, str]) -> bytes:
    """Return samples in the text format of Prometheus. ``labels`` are added to each sample.

    Raises KeyError for a metric that is not in the table.
    """
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
        figure = ALL_METRICS[name]
        label_names = (*names, *figure.labels)
        if figure.kind == "histogram":
            histogram = HistogramMetricFamily(name, figure.meaning, labels=label_names)
            for one in all_of_it:
                assert isinstance(one.value, Durations), "a histogram has durations"
                histogram.add_metric((*values, *one.labels), one.value.buckets(), one.value.total_s)
            yield histogram
            continue
        family = (CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily)(
            name, figure.meaning, labels=label_names
        )
        for one in all_of_it:
            assert not isinstance(one.value, Durations), "the value is a number"
            family.add_metric((*values, *one.labels), one.value)
        yield family
