"""Routing speed on one core: hash a partition key, find its stream; vectorised against the scalar definition.

Prints rows per second of both and their ratio, measured in the same run on the same keys (best of five rounds for the
vectorised one). Usage: ``python bench/routing.py [ROWS]``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from ringlog.kernel.generations.acceptance import stream_of
from ringlog.kernel.generations.describe import generate
from ringlog.kernel.generations.vectors import StreamTable
from ringlog.kernel.model.state import Generation, Node
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.ring.vectors import tokens_of

ROUNDS = 5
SCALAR_ROWS_MAX = 20_000


def cluster(nodes: int, tokens: int, shards: int) -> Generation:
    """A generation of ``nodes`` nodes with ``tokens`` random tokens and ``shards`` shards each."""
    rng = np.random.default_rng(20240229)
    names = [f"node-{number}" for number in range(nodes)]
    directory = {
        name: Node(name, name, "localhost:1", "dc1", "r1", shards, 12, "0", (), 1, "normal", (), 1) for name in names
    }
    drawn = rng.integers(-(2**63) + 1, 2**63 - 1, size=nodes * tokens, dtype=np.int64).tolist()
    owners = {token: names[place % nodes] for place, token in enumerate(drawn)}
    return Generation("bench", 0, generate(owners, directory, b"seed" * 4), "committed", 1, None, None, ())


def seconds(work: Callable[[], object]) -> float:
    """The least time of several rounds."""
    taken = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def measure(name: str, generation: Generation, rows: int) -> None:
    """Print one line for keys of 6 characters, tail numbers of aircraft for example."""
    rng = np.random.default_rng(7)
    text = rng.integers(ord("0"), ord("Z") + 1, size=rows * 6, dtype=np.uint8)
    offsets = np.arange(rows + 1, dtype=np.int32) * 6
    keys = [text[at : at + 6].tobytes() for at in range(0, min(rows, SCALAR_ROWS_MAX) * 6, 6)]
    table = StreamTable([generation.ranges])
    fast = rows / seconds(lambda: table.route(tokens_of(text, offsets), 0))
    begin = time.perf_counter()
    expected = [stream_of(generation, token_of(key)) for key in keys]
    slow = len(keys) / (time.perf_counter() - begin)
    found = table.route(tokens_of(text, offsets), 0)[: len(keys)]
    assert [row.tobytes() for row in found] == expected, "both ways must agree"
    print(
        f"{name}: {len(table.streams)} streams, {fast / 1e6:.1f} million rows/s vectorised, "
        f"{slow / 1e6:.3f} scalar, ratio {fast / slow:.0f}"
    )


def main() -> None:
    """Measure a small, a usual and a large cluster."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    measure("4 nodes x 8 tokens x 2 shards", cluster(4, 8, 2), rows)
    measure("10 nodes x 16 tokens x 8 shards", cluster(10, 16, 8), rows)
    measure("25 nodes x 256 tokens x 16 shards", cluster(25, 256, 16), rows)


if __name__ == "__main__":
    main()
