"""How each replica of a zone's partition is: what ``ringlog zone show`` says on the way of a move."""

from __future__ import annotations

from ringlog.kernel.state import ClusterState
from ringlog.kernel.values import StreamReport
from ringlog.operator.zones import full_view
from ringlog.protocol.zone_groups import FAILED, Words, session
from tests.kernel.zones.placed import of_coordinator, of_rebalancer, said, with_data
from tests.kernel.zones.scenes import done, down, ids, moved, partition, tried


def replicas(state: ClusterState, words: Words) -> dict[str, str]:
    (row,) = full_view(state, state.zones["z"], words)["partitions"]
    found: dict[str, str] = row["replicas"]
    return found


def test_a_replica_that_comes_is_initializing_then_catching_up_then_healthy() -> None:
    state = with_data("AB", "C", partitions=1, replicas=2)
    state = moved(state, "AC")
    assert replicas(state, {}) == {"A": "healthy", "B": "healthy", "C": "initializing"}
    met = []
    for _ in range(40):
        found = replicas(state, said(state))
        if not met or met[-1] != found:
            met.append(found)
        for command in (*of_coordinator(state), *of_rebalancer(state)):
            after, code = tried(state, command)
            if not code:
                state = after
                break
        else:
            break
    assert met == [
        {"A": "healthy", "B": "healthy", "C": "catching_up"},
        {"A": "healthy", "B": "healthy", "C": "healthy"},
        {"A": "healthy", "C": "healthy"},
    ]


def test_a_replica_that_never_follows_is_broken_and_one_that_is_down_unavailable() -> None:
    state = moved(with_data("AB", "C", partitions=1, replicas=2), "AC")
    (node,) = ids("C")
    operation = session(partition(state), FAILED)
    words: Words = {operation: {node: StreamReport(node, operation, 0, "")}}
    assert replicas(state, words)["C"] == "broken"
    assert replicas(done(state, *down("C")), words)["C"] == "unavailable"
