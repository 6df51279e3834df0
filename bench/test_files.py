"""The cost of test files, each in its own run: wall time, and processor seconds including child processes.

    python bench/test_files.py [FILE...]    (default: those of tests/system)

Prints a line per file, most expensive first: processor seconds, wall time, wall time in fixtures, number of tests.
Processor seconds are comparable between machines under load. Daemons of a test count too, because this process adopts
orphans (Linux).
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from ringlog.kernel.values import Value

ROOT = Path(__file__).resolve().parents[1]
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
DURATION = re.compile(r"^([\d.]+)s (setup|call|teardown) ", re.MULTILINE)


class Cost(Value):
    """Of one file; times in seconds."""

    name: str
    cpu: float
    wall: float
    fixtures: float
    tests: int
    status: int

    def line(self) -> str:
        """As a row of the table."""
        failed = "" if self.status == 0 else f"  status {self.status}"
        return f"{self.cpu:8.1f} {self.wall:8.1f} {self.fixtures:9.1f} {self.tests:6d}  {self.name}{failed}"


def cpu_of_children() -> float:
    """Processors' seconds of all children that were waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def reap(seconds: float = 20.0) -> None:
    """Wait for orphans, so that their processor time is counted."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.05)


def cost_of(name: str) -> Cost:
    """Run the tests of one file. The last output of a failed run goes to standard error."""
    before, began = cpu_of_children(), time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=0", "-vv", name]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    wall = time.monotonic() - began
    reap()
    phases = [(float(seconds), phase) for seconds, phase in DURATION.findall(done.stdout)]
    if done.returncode:
        print(done.stdout[-4000:], file=sys.stderr)
    return Cost(
        name,
        cpu_of_children() - before,
        wall,
        sum(seconds for seconds, phase in phases if phase != "call"),
        sum(phase == "call" for _, phase in phases),
        done.returncode,
    )


def main(names: list[str]) -> int:
    """Prints the table; returns the worst exit status."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    costs = []
    for name in names or sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/system").glob("test_*.py")):
        costs.append(cost_of(name))
        print(costs[-1].line(), file=sys.stderr, flush=True)
    print("     cpu     wall  fixtures  tests  file")
    for cost in sorted(costs, key=lambda each: -each.cpu):
        print(cost.line())
    return max((cost.status for cost in costs), default=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
