"""The time from a commit to its event in a browser of the console.

    python bench/console_events.py [COMMITS]       300 commits, one after the other

Starts a broker, a validator and a console, follows ``/v1/events`` and submits entries. An event that arrives before the
answer to its submission counts as 0 ms. The status is 1 if p99 misses its goal.

Run it from a checkout: it builds its cluster as the system tests do.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.ending import taking_down
from tests.plain_stack import plain_stack
from tests.system.test_console import Served, validator
from tests.system.user import User
from tests.waiting import until

from ringlog.kernel.commands.cluster.cluster import Noop

P99_MS = 500.0
CLUSTER = "bench"


def main(arguments: list[str]) -> int:
    """Measure, print, and return the exit status."""
    commits = int(arguments[0]) if arguments else 300
    with tempfile.TemporaryDirectory(prefix="ringlog-bench-") as place:
        folder = Path(place)
        with taking_down(plain_stack(folder / "stack")) as stack:
            info, user = stack.up(), User(folder)
            user.run("cluster", "create", CLUSTER, "--bootstrap", info.bootstrap_servers)
            try:
                with validator(info, CLUSTER) as client:
                    served, arrived = Served(user, folder), dict[int, float]()
                    first = client.read_barrier().epoch

                    def follow() -> None:
                        with served.http.stream("GET", "/v1/events", params={"since": first}) as stream:
                            for line in stream.iter_lines():
                                if line.startswith("id: "):
                                    arrived[int(line.removeprefix("id: "))] = time.perf_counter()
                                    if len(arrived) == commits:
                                        return

                    reader = threading.Thread(target=follow)
                    reader.start()
                    answered = {}
                    for _ in range(commits):
                        epoch = client.submit(Noop()).epoch
                        answered[epoch] = time.perf_counter()
                    until(lambda: len(arrived) == commits, "the last event")
                    reader.join()
            finally:
                user.end()
    delays = sorted(max(0.0, arrived[epoch] - at) * 1_000 for epoch, at in answered.items())
    p99 = delays[int(0.99 * len(delays))]
    print(f"{commits} commits: p50 {statistics.median(delays):.1f} ms, p99 {p99:.1f} ms, longest {delays[-1]:.1f} ms")
    return int(p99 > P99_MS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
