"""``ScriptedReplicas``: the real coordinator on scripted answers, with epochs that change within a request."""

from __future__ import annotations

import time
from functools import cache

import pytest

from ringlog import commands
from ringlog.client.data import plans
from ringlog.client.data.plans import Access, ClientRequest, Level, RequestPlan
from ringlog.client.errors import RequestImpossible, RequestTimedOut
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.operations.stages import WRITE_BOTH_READ_NEW, WRITE_BOTH_READ_OLD, in_flight
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.testing import FakeCluster, ScriptedReplicas, ScriptedReply
from ringlog.wire.data import BEHIND, NOT_READY
from ringlog.wire.records import INSERT, Cell, Mutation
from ringlog_testing.requests import UnscriptedRequest
from tests.client.test_build_pages import samples
from tests.tidy.files import ROOT

FOUR = ("n1", "n2", "n3", "n4")
OLD, NEW = ScriptedReply(b"old", 1), ScriptedReply(b"new", 2)


@cache
def states() -> tuple[ClusterState, ...]:
    """Return every state of a cluster of three nodes that a fourth node joins."""
    cluster, found = FakeCluster(), list[ClusterState]()
    cluster.add_nodes(3)
    with cluster.client("me") as client:
        client.submit(commands.create_keyspace("ks", 3))
        client.submit(commands.create_table("ks", "cars", {"id": "text", "v": "bigint"}, partition_key=["id"]))
        found.append(client.read_barrier())
        client.replica.subscribe(lambda _, after, *__: found.append(after))
        cluster.add_nodes(1)
        client.read_barrier()
    return tuple(found)


def planned(state: ClusterState, key: bytes, access: Access = Access.READ) -> RequestPlan:
    found = plans.plan(state, ClientRequest("ks", token_of(key), access, Level.QUORUM, "dc1"))
    assert isinstance(found, RequestPlan)
    return found


def at_stage(stage: str) -> ClusterState:
    return next(state for state in states() if in_flight(state) and in_flight(state)[0].stage == stage)


def moving_key() -> bytes:
    """Return a key whose readers change with the join."""
    keys = (b"k%d" % number for number in range(100))
    first, last = states()[0], states()[-1]
    return next(key for key in keys if set(planned(first, key).asked) != set(planned(last, key).asked))


def test_the_sample_of_the_page_passes() -> None:
    names: dict[str, object] = {}
    (sample,) = samples(ROOT / "docs/build/script-answers.md")
    exec(sample, names)
    test = names["test_a_read_asks_again_when_its_range_moves"]
    assert callable(test)
    test()


def test_the_newest_value_of_a_quorum_is_returned_and_written_back() -> None:
    script = ScriptedReplicas(states()[0], {"n1": [OLD], "n2": [NEW], "n3": [None]})
    found = script.read("ks", b"k")
    assert found.cell is not None
    assert found.cell.value == b"new"
    assert {one.node for one in script.asked if one.method == "Repair"} >= {"n1"}


def answers_before_reads_move() -> tuple[int, int, ScriptedReplicas]:
    """Read a moving key: all answers are from before reads move, and the coordinator learns of it with them.

    Returns the number of plans, the lowest epoch of the counted answers minus that of the change, and the script.
    """
    before, after = at_stage(WRITE_BOTH_READ_OLD), at_stage(WRITE_BOTH_READ_NEW)
    late = ScriptedReply(b"old", 1, state=before, learns=after)
    script = ScriptedReplicas(before, {name: [late, NEW] for name in FOUR[:3]} | {"n4": [NEW]})
    found = script.read("ks", moving_key())
    return found.attempts, min(answer.epoch for answer in found.answers) - after.epoch, script


def test_answers_from_before_the_range_moved_do_not_count() -> None:
    attempts, above, script = answers_before_reads_move()
    assert attempts == 2
    assert above >= 0
    assert "n4" in [request.node for request in script.asked]


def test_a_coordinator_without_the_re_check_fails_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    real = plans.counts
    monkeypatch.setattr(plans, "counts", lambda now, answer: bool(real(now, answer)) or not answer.refused)
    attempts, above, _ = answers_before_reads_move()
    assert attempts == 1
    assert above < 0


def test_a_write_needs_the_new_replica_once_its_coordinator_knows_it() -> None:
    before, both = states()[0], at_stage(WRITE_BOTH_READ_OLD)
    first = ScriptedReply(learns=both)
    acks = {"n1": [first, ScriptedReply()], "n2": [ScriptedReply(after=5_000)], "n3": [None], "n4": [ScriptedReply()]}
    key = moving_key()
    script = ScriptedReplicas(before, acks)
    done = script.write("ks", key, b"v", timestamp=1)
    assert done.epoch == both.epoch
    needs = planned(both, key, Access.WRITE).needs
    counted = {answer.node for answer in done.answers}
    assert all(len(counted & set(need.members)) >= need.count for need in needs)
    assert len(needs) == 2


def test_a_state_that_arrives_between_answers_changes_the_plan() -> None:
    before, both = states()[0], at_stage(WRITE_BOTH_READ_OLD)
    slow = ScriptedReply(after=9_000)
    replies = {name: [slow] for name in ("n1", "n2", "n3")} | {"n4": [ScriptedReply()]}
    script = ScriptedReplicas(before, replies, learns=[(2_000, both)])
    done = script.write("ks", moving_key(), b"v", timestamp=1)
    assert done.epoch == both.epoch
    assert script.now >= 9_000


def test_a_replica_that_is_behind_is_asked_again() -> None:
    behind = ScriptedReply(refused=BEHIND, after=200_000)
    script = ScriptedReplicas(states()[0], {"n1": [behind, NEW], "n2": [NEW], "n3": [None]})
    found = script.read("ks", b"k")
    assert found.cell is not None
    assert [one.node for one in script.asked].count("n1") >= 2
    assert script.now >= 200_000


def test_lost_answers_end_in_a_virtual_timeout() -> None:
    script = ScriptedReplicas(states()[0], {name: [None] for name in FOUR})
    began = time.monotonic()
    with pytest.raises(RequestTimedOut):
        script.write("ks", b"k", b"v", timestamp=1, timeout_s=3_600)
    assert time.monotonic() - began < 60
    assert script.now >= 3_600_000_000


def test_refusals_are_named_in_the_error() -> None:
    script = ScriptedReplicas(states()[0], {name: [ScriptedReply(refused=NOT_READY)] for name in FOUR})
    with pytest.raises(RequestTimedOut, match=NOT_READY):
        script.read("ks", b"k", timeout_s=1)


def test_an_unknown_keyspace_needs_a_read_barrier() -> None:
    with pytest.raises(RequestImpossible):
        ScriptedReplicas(states()[0], {}).read("nowhere", b"k")
    with pytest.raises(RequestTimedOut):
        ScriptedReplicas(states()[0], {}, has_log=False).read("nowhere", b"k", timeout_s=1)


def test_a_request_without_a_script_is_an_error() -> None:
    with pytest.raises(UnscriptedRequest, match="n2"):
        ScriptedReplicas(states()[0], {"n1": [NEW], "n3": [NEW]}).read("ks", b"k")


def row(value: int) -> Mutation:
    cells = (Cell("v", value.to_bytes(8, "big")),)
    return Mutation(
        f"00000000-0000-4000-8000-00000000000{value}",
        None,
        "ks",
        "cars",
        1_000 + value,
        None,
        INSERT,
        (b"a",),
        (),
        cells,
    )


def test_a_replica_that_lost_rows_is_named() -> None:
    both, one = (row(1), row(2)), (row(1),)
    full, lossy = ScriptedReply(rows=both, positions=((0, 2),)), ScriptedReply(rows=one, positions=((0, 2),))
    slow = ScriptedReply(rows=both, positions=((0, 2),), after=50_000)
    script = ScriptedReplicas(states()[0], {"n1": [full], "n2": [lossy], "n3": [slow]}, ends={0: 2})
    found = script.read_rows("ks.cars", b"a")
    assert [states()[0].nodes[node].name for node in found.lacking] == ["n2"]
    assert len(found.writes) == 2
