"""The server time of each page of the console in a large cluster.

    python bench/console.py [NODES] [TABLETS]      1,000 nodes of 8 tokens, 10,000 tablets in ten tables

*epoch* is the median of first pages of new epochs, which compute derived values. Each changes a setting, so that the
next plan is computed again. *again* is the median of second
pages, with new reports. *HTML* and *JSON* are sizes in bytes. Times are processor time with the garbage collector off.
One node is silent, an operation has begun, and the next plan has 1,000 migrations. The status is 1 if a page misses its
goal.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.console.console_world import large_state, page_of, reports, view_input
from tests.kernel import entries

from ringlog.console.pages import environment
from ringlog.console.table import VIEWS
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.topology.movements import Leave
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import replace

PAGE_MS = 150.0
ROUNDS = 5
TABLES = 10


def busy(nodes: int, tablets: int) -> ClusterState:
    """Return the cluster with an operation that has just begun."""
    state = large_state(nodes, tablets // TABLES, TABLES)
    return entries.applied(state, Leave(state.node_names["n3"]))


def main(arguments: list[str]) -> int:
    """Measure, print, and return the exit status."""
    nodes, tablets = (int(arguments[0]), int(arguments[1])) if len(arguments) == 2 else (1_000, 10_000)
    state = busy(nodes, tablets)
    live = reports(state, silent="n2")
    environment()  # as at the start of the console
    gc.collect()
    gc.disable()
    missed = 0
    print(f"{nodes} nodes, {tablets} tablets: milliseconds, bytes")
    print(f"{'view':<14}{'epoch':>8}{'again':>8}{'HTML':>10}{'JSON':>10}")
    states = [state]
    for _ in range(ROUNDS):
        states.append(entries.applied(states[-1], ChangeSettings((("history_entries", 10_000 + len(states)),))))
    for name, view in VIEWS.items():
        query = {"node": "n2", "operation": "leave-" + str(state.epoch)}
        chosen = {key: value for key, value in query.items() if key in view.parameters}
        took: tuple[list[float], list[float]] = ([], [])
        for round_ in range(2 * len(states)):
            at = view_input(states[round_ // 2], replace(live, version=round_), **chosen)
            start = time.process_time()
            page = page_of(view, at)
            took[round_ % 2].append((time.process_time() - start) * 1_000)
        epoch, again = map(statistics.median, took)
        missed += max(epoch, again) > PAGE_MS
        size = len(json.dumps(view.read(at)))
        print(f"{name:<14}{epoch:>8.1f}{again:>8.1f}{len(page.encode()):>10,}{size:>10,}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
