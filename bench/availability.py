"""The number of failed node sets that still admit a QUORUM write during a movement: Ringlog and Cassandra.

    python bench/availability.py

Prints the table of ``docs/concepts/consistency.md``. The real rules rehearse each movement up to the stage that writes
to old and new owners. ``ringlog.client.data.plans`` plans the write. Cassandra's coordinator waits for a quorum of the
replication factor plus every pending replica (``blockFor``; CASSANDRA-21200 proposes a better rule).
"""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

from ringlog.client.data.plans import Access, ClientRequest, Level, RequestPlan, meets_needs, plan
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_OLD, in_flight
from ringlog.operator.rehearsal.rehearsal import Rehearsal

STEPS_MAX = 20
FACTORS = (3, 4, 5)
TOKEN = 100
STEP = 1_000


def said(rehearsal: Rehearsal, **line: Any) -> dict[str, Any]:
    """The answer to a line, which must be taken."""
    answer = rehearsal.line(json.dumps(line), 1)
    assert answer.get("outcome", "applied") == "applied", answer
    return answer


def ring(nodes: int, factor: int) -> Rehearsal:
    """Nodes n1, n2, … with one token each; ``TOKEN`` belongs to n1 and those after it."""
    rehearsal = Rehearsal()
    for number in range(1, nodes + 1):
        said(rehearsal, command="RegisterNode", name=f"n{number}")
        said(rehearsal, command="Join", node=f"n{number}", tokens=[STEP * number])
        said(rehearsal, do="finish")
    said(rehearsal, command="CreateKeyspace", name="ks", replication={"strategy": "simple", "factor": factor})
    return rehearsal


def join(factor: int) -> ClusterState:
    """A node takes over the range of ``TOKEN`` from one of its replicas."""
    rehearsal = ring(factor + 1, factor)
    said(rehearsal, command="RegisterNode", name="new")
    said(rehearsal, command="Join", node="new", tokens=[TOKEN])
    return moving(rehearsal)


def replace(factor: int) -> ClusterState:
    """A node takes over from one that is dead."""
    rehearsal = ring(factor + 1, factor)
    said(rehearsal, command="DeclareDown", node="n1", reason="its disk is gone")
    said(rehearsal, command="RegisterNode", name="new")
    said(rehearsal, command="Replace", node="new", replaced="n1")
    return moving(rehearsal)


def moving(rehearsal: Rehearsal) -> ClusterState:
    """On to where old and new owners are written."""
    for _ in range(STEPS_MAX):
        if all(operation.stage == WRITE_BOTH_READ_OLD for operation in in_flight(rehearsal.state)):
            return rehearsal.state
        said(rehearsal, do="step")
    raise AssertionError("the operation stands still")


MOVEMENTS = {"join": join, "replace a dead node": replace}


def rows() -> list[str]:
    """The table's rows."""
    made = []
    for movement, begin in MOVEMENTS.items():
        for factor in FACTORS:
            state = begin(factor)
            write = plan(state, ClientRequest("ks", TOKEN, Access.WRITE, Level.QUORUM, "dc1"))
            assert isinstance(write, RequestPlan), write
            dead = {node for node in write.asked if state.nodes[node].down}
            nodes = set(write.asked)
            pending = len(nodes) - factor
            for down in range(max(1, len(dead)), factor // 2 + 2):
                choices = [dead.union(some) for some in combinations(sorted(nodes - dead), down - len(dead))]
                ours = sum(meets_needs(write.needs, nodes - gone) for gone in choices)
                theirs = sum(len(nodes - gone) >= factor // 2 + 1 + pending for gone in choices)
                made.append(
                    f"| {movement} | {factor} | {down} | {ours} of {len(choices)} | {theirs} of {len(choices)} |"
                )
    return made


def main() -> None:
    """Print the table."""
    print("| movement | factor | nodes down | Ringlog | Cassandra |")
    print("|---|---|---|---|---|")
    print("\n".join(rows()))


if __name__ == "__main__":
    main()
