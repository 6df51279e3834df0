"""The Grafana dashboard of all metrics, made from their table: ``make docs`` writes it.

It has a row for each kind of process and a panel for each metric. ``compose/watch/dashboard.json`` is the short one for
operators, written by hand.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ringlog.runtime.monitoring.metrics import ALL_METRICS, Metric

TARGET: Final = Path(__file__).parents[2] / "compose" / "watch" / "metrics.json"
COLUMNS, WIDTH, HEIGHT = 3, 8, 7
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_TIMES: Final = ("since 1970", "own clock", "log's time")
"""Words in the meaning of a metric that is a point in time, shown as its distance from now."""


def query(metric: Metric) -> tuple[str, str]:
    """Return the expression and the unit of a metric."""
    by = ", ".join(("role", "node", *metric.labels))
    if metric.kind == "histogram":
        return f"histogram_quantile(0.99, sum by (le) (rate({metric.served[0]}[5m])))", "s"
    if metric.kind == "counter":
        return f"sum by ({by}) (rate({metric.served[0]}[5m]))", "s" if "_seconds" in metric.name else "ops"
    if any(words in metric.meaning for words in _TIMES):
        return f"{metric.name} - time()", "s"
    units = {"seconds": "s", "bytes": "bytes"}
    return metric.name, units.get(metric.name.rpartition("_")[2], "short")


def panel(metric: Metric) -> dict[str, Any]:
    expression, unit = query(metric)
    labels = () if metric.kind == "histogram" else ("role", "node", *metric.labels)
    legend = " ".join(f"{{{{{label}}}}}" for label in labels) or "0.99 quantile"
    return {
        "type": "timeseries",
        "title": metric.name.removeprefix("ringlog_"),
        "description": metric.meaning,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [{"refId": "A", "expr": expression, "legendFormat": legend, "datasource": SOURCE}],
    }


def panels() -> Iterator[dict[str, Any]]:
    y = 0
    for by, metrics in itertools.groupby(sorted(ALL_METRICS.values(), key=lambda one: one.by), lambda one: one.by):
        place = {"x": 0, "y": y, "w": COLUMNS * WIDTH, "h": 1}
        title = f"{by[0].upper()}{by[1:]}".replace("`", "")
        yield {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": place}
        y += 1
        while line := tuple(itertools.islice(metrics, COLUMNS)):
            for column, metric in enumerate(line):
                yield panel(metric) | {"gridPos": {"x": column * WIDTH, "y": y, "w": WIDTH, "h": HEIGHT}}
            y += HEIGHT


def dashboard() -> str:
    """Return the JSON of the dashboard."""
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}}
    found = {
        "title": "Ringlog: all metrics",
        "uid": "ringlog-metrics",
        "schemaVersion": 39,
        "version": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["ringlog"],
        "templating": {"list": [source | {"hide": 0}]},
        "annotations": {"list": []},
        "panels": [one | {"id": number} for number, one in enumerate(panels(), start=1)],
    }
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(dashboard(), encoding="utf-8")
