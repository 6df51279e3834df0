"""The cost of CDC generations for a growing cluster: fold and memory of a whole life, kept and expired.

    python bench/generations.py [SCALE]

Folds the same log twice: 1,000 nodes with 16 tokens each join one after the other (``SCALE`` multiplies the nodes).
Each join has its own generation, with one stream per token. In the first life every generation is kept, as with rows
without a time to live. In the second life each one is sealed, expired and removed when the next one is active, as
without a CDC log. Memory is the growth of the process; each life has its own process. The status is 1 if the second
life needs more than a quarter of the memory of the first.
"""

from __future__ import annotations

import gc
import resource
import subprocess
import sys

from placement import Author, join

from ringlog.kernel.commands.cdc.expiry import ExpireCdcGeneration, ForgetCdcGeneration
from ringlog.kernel.commands.cdc.generations import (
    CloseCdcGeneration,
    CommitCdcGeneration,
    PublishCdcGeneration,
    PutCdcGenerationData,
)
from ringlog.kernel.commands.cluster.cluster import InitializeCluster
from ringlog.kernel.commands.topology.nodes import RegisterNode
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.model.state import EMPTY_STATE

NODES, TOKENS = 1_000, 16
SHARE_MAX = 0.25
KINDS = (PutCdcGenerationData, CommitCdcGeneration, PublishCdcGeneration)
ENDS = (CloseCdcGeneration, ExpireCdcGeneration, ForgetCdcGeneration)


def life(nodes: int, expire: bool) -> None:
    """Fold one life and print: MB grown, seconds of the fold, those for generations, those for their ends, digest."""
    gc.disable()
    author = Author(EMPTY_STATE)
    begin = _resident_mb()
    author.append(InitializeCluster("bench", ()))
    for number in range(nodes):
        name = f"{number:08x}-0000-7000-8000-000000000002"
        author.append(RegisterNode(f"n{number}", name, f"n{number}:1", "dc", "r", 1, 12, "0", (), 1))
        join(author, name, TOKENS)
        if expire and number:
            last = author.state.generations[-2]
            author.append(CloseCdcGeneration(last.id))
            author.append(ExpireCdcGeneration(last.id, author.state.generations[-1].timestamp))
            author.append(ForgetCdcGeneration(last.id))
    streams = sum(len(found.ranges) for found in author.state.generations)
    grown = _resident_mb() - begin
    figures = grown, author.taken.total(), author.seconds(*KINDS), author.seconds(*ENDS), streams
    print(*figures, digest(author.state)[:8])


def _resident_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(nodes: int, expire: bool) -> tuple[float, ...]:
    """Figures of one life, folded in a separate process."""
    command = [sys.executable, __file__, "--life", str(nodes), str(int(expire))]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return tuple(float(figure) for figure in found[:-1])


def main(scale: float = 1.0) -> int:
    """Measure and print; the exit status."""
    nodes = max(round(NODES * scale), 2)
    print(f"{nodes:,} joins with {TOKENS} tokens each\n")
    print("generations     memory MB   fold s   of it generations s   their ends s   streams in the state")
    memory = {}
    for name, expire in (("kept", False), ("expired", True)):
        grown, whole, made, ended, streams = measured(nodes, expire)
        memory[name] = grown
        print(f"{name:12} {grown:12,.0f} {whole:8.1f} {made:21.1f} {ended:14.1f} {streams:22,.0f}")
    share = memory["expired"] / memory["kept"]
    print(f"\nWhere they expire the state takes {share:.2f} of the memory; at most {SHARE_MAX} is promised.")
    return 0 if share <= SHARE_MAX else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--life"]:
        life(int(sys.argv[2]), sys.argv[3] == "1")
    else:
        sys.exit(main(*map(float, sys.argv[1:2])))
