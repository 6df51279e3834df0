"""Two checkers of histories, Ringlog's and porcupine, on the same files in one run; both must agree.

Prints operations per second without the time to read the file, one line for each kind of history: registers with
distinct values, registers with few values and swaps, logs.

Usage: ``python bench/linearizability.py [OPERATIONS]``. Needs Go for porcupine.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from ringlog.stack.artifacts import cache_root
from ringlog_testing.histories import porcupine
from ringlog_testing.histories.check import check
from ringlog_testing.histories.events import Op
from ringlog_testing.histories.operations import read
from ringlog_testing.histories.recorder import FileSink, Recorder

KEYS = 10
PROCESSES = 8
UNKNOWN = 0.002
ROUNDS = 3


def different(rng: Random, number: int) -> tuple[Op, Any]:
    """Reads, and writes of different values."""
    return (Op.READ, None) if rng.random() < 0.5 else (Op.WRITE, number)


def few(rng: Random, _number: int) -> tuple[Op, Any]:
    """Reads, writes and swaps of five values."""
    kind = rng.random()
    if kind < 0.5:
        return Op.READ, None
    return (Op.WRITE, rng.randrange(5)) if kind < 0.8 else (Op.CAS, (rng.randrange(5), rng.randrange(5)))


def commits(rng: Random, number: int) -> tuple[Op, Any]:
    """Commits and barriers."""
    return (Op.BARRIER, None) if rng.random() < 0.5 else (Op.COMMIT, f"r{number}")


def record(path: Path, operations: int, ask: Callable[[Random, int], tuple[Op, Any]]) -> None:
    """Processes that overlap at random use right objects; each operation takes effect somewhere in its span."""
    rng, state = Random(20240229), dict.fromkeys((f"k{key}" for key in range(KEYS)), None if ask is not commits else 0)
    open_: dict[int, list[Any]] = {}
    begun = 0
    with FileSink(path) as sink:
        recorder = Recorder(sink)
        while begun < operations or open_:
            process = rng.randrange(PROCESSES)
            if process not in open_:
                if begun < operations:
                    op, value = ask(rng, begun)
                    open_[process] = [op, f"k{rng.randrange(KEYS)}", value, None, False]
                    recorder.invoke(process, op, open_[process][1], value)
                    begun += 1
                continue
            call = open_[process]
            if not call[4]:
                state[call[1]], call[3] = effect(state[call[1]], call[0], call[2])
                call[4] = True
            elif rng.random() < UNKNOWN:
                recorder.info(process, call[0], call[1])
                del open_[process]
            else:
                recorder.ok(process, call[0], call[1], call[3])
                del open_[process]


def effect(state: Any, op: Op, value: Any) -> tuple[Any, Any]:
    """Next state and answer of a correct object."""
    if op is Op.WRITE:
        return value, None
    if op is Op.CAS:
        return (value[1], True) if state == value[0] else (state, False)
    return (state + 1, state + 1) if op is Op.COMMIT else (state, state)


def measure(name: str, operations: int, ask: Callable[[Random, int], tuple[Op, Any]], program: Path) -> None:
    """Print one line: both speeds (best of some rounds) and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.jsonl"
        record(path, operations, ask)
        history = read(path)
        ours, theirs = [], []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            report = check(history)
            ours.append(time.perf_counter() - begin)
            opinion = porcupine.ask(program, path)
            theirs.append(opinion.seconds)
            assert report.verdict == opinion.verdict, "both must agree"
    fast, other = operations / min(ours), operations / min(theirs)
    methods = "/".join(sorted({one.method for one in report.keys}))
    print(
        f"{name}: {operations} operations, {report.verdict} by both; ours ({methods}) {fast:,.0f} operations/s, "
        f"porcupine {other:,.0f}, ratio {fast / other:.2f}"
    )


def main() -> None:
    """Measure registers of different values, registers of few values, logs."""
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    program = porcupine.build(cache_root())
    measure("registers, different values", operations, different, program)
    measure("registers, few values, swaps", operations, few, program)
    measure("logs", operations, commits, program)


if __name__ == "__main__":
    main()
