"""A keyspace changes its replication: it gets its own ranges, others are unaffected, and no other operation runs."""

from __future__ import annotations

import pytest

from ringlog.kernel.commands.schema.keyspaces import AlterKeyspace, CreateKeyspace, DropKeyspace
from ringlog.kernel.commands.topology.movements import Join, Leave
from ringlog.kernel.commands.topology.operations import CancelOperation
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.ownership.placements import canonical, nodes_of, placement_of_keyspace
from ringlog.kernel.ownership.strategies import replication_key
from ringlog.kernel.values import DatacenterReplication, Replication
from tests.kernel.movements.clusters import ENTIRE, network, placed, simple
from tests.kernel.operations.driver import SEED, admitted, applied, at_every_stage, driven, refused, stepped

NODES = {f"{dc}{n}": (f"{dc}/r{n}", [100 * n + len(dc)]) for dc in ("a", "bb") for n in (1, 2, 3)}
SETTINGS = [simple(1), simple(3), network(a=2), network(bb=3), network(a=3, bb=1), network(a=("r1", "r3")), ENTIRE]
GROUPS = ("read", "write")


def groups(state: ClusterState, group: str, keyspace: str = "ks0") -> dict[int, set[str]]:
    """Return the members of a group by range end."""
    placement = placement_of_keyspace(state, keyspace)
    assert placement is not None
    return {found.end: set(nodes_of(getattr(found, group))) for found in placement.ranges}


@pytest.mark.parametrize("new", SETTINGS, ids=replication_key)
@pytest.mark.parametrize("old", SETTINGS, ids=replication_key)
def test_from_any_setting_to_any_other(old: Replication, new: Replication) -> None:
    state = placed(NODES, old, simple(2))
    if old == new:
        assert refused(state, AlterKeyspace("ks0", new)).code == "bad_field"
        return
    first, operation = admitted(state, AlterKeyspace("ks0", new))
    for stage, at in at_every_stage(first, operation).items():
        assert at.placements["simple:2"] is state.placements["simple:2"]
        if stage == "finished":
            layout = canonical(new, at.token_owners, at.nodes, 0)
            live = at.placements[replication_key(new)].ranges
            assert [(g.start, g.end, nodes_of(g.write)) for g in live] == [
                (g.start, g.end, nodes_of(g.write)) for g in layout
            ]
            assert set(at.placements) == {"simple:2", replication_key(new)}
            assert at.keyspaces["ks0"].replication == new
        else:
            assert replication_key(old) in at.placements
        if stage not in ("write_both_read_new", "finished"):
            back = applied(at, CancelOperation(operation, ""))
            assert back.placements == state.placements
            assert back.keyspaces == state.keyspaces


def test_readers_and_writers_at_each_stage() -> None:
    first, operation = admitted(
        placed({"A": ("d/r", [1]), "B": ("d/r", [2]), "C": ("d/r", [3])}, simple(1)), AlterKeyspace("ks0", simple(2))
    )
    old, new = {1: {"A"}, 2: {"B"}, 3: {"C"}}, {1: {"A", "B"}, 2: {"B", "C"}, 3: {"C", "A"}}
    seen = {
        stage: tuple(groups(at, group) for group in GROUPS) for stage, at in at_every_stage(first, operation).items()
    }
    assert seen == {
        "requested": (old, old),
        "prepared": (old, old),
        "write_both_read_old": (old, new),
        "write_both_read_new": (new, new),
        "finished": (new, new),
    }


def test_a_replica_of_a_shared_placement_has_the_later_epoch() -> None:
    """C is a replica in simple:3 but not of this keyspace, so its older answers must not count for it."""
    nodes = {"A": ("d/r", [1]), "B": ("d/r", [2]), "C": ("d/r", [3])}
    first, operation = admitted(placed(nodes, simple(2), simple(3)), AlterKeyspace("ks0", simple(3)))
    states = at_every_stage(first, operation)
    group = states["finished"].placements["simple:3"].ranges[0]
    since = {replica.node: replica.since for replica in group.write}
    assert since == {"A": 5, "B": 5, "C": states["write_both_read_old"].epoch}


def test_an_alteration_runs_alone() -> None:
    state = placed({**NODES, "x": ("a/r1", ())}, simple(2))
    altering, operation = admitted(state, AlterKeyspace("ks0", simple(3)))
    assert operation in refused(altering, Join("x", (7,), SEED)).detail
    assert refused(altering, DropKeyspace("ks0")).code == "operations_in_flight"
    assert refused(altering, CreateKeyspace("new", simple(1))).code == "operations_in_flight"
    applied(altering, CreateKeyspace("new", simple(2)))
    joining, other = admitted(state, Join("x", (7,), SEED))
    rejection = refused(joining, AlterKeyspace("ks0", simple(3)))
    assert rejection.code == "operations_in_flight"
    assert other in rejection.detail


def test_an_alteration_without_data_finishes_immediately() -> None:
    state = placed({"A": ("d/r", [1]), "B": ("d/r", [2])}, simple(2))
    after = applied(state, AlterKeyspace("ks0", network(d=2)))
    assert not after.operations
    assert set(after.placements) == {"network:d=2"}
    assert groups(after, "write") == groups(state, "write")


def test_a_keyspace_of_a_shared_setting_changes_alone() -> None:
    state = placed(NODES, simple(2), simple(2))
    first, operation = admitted(state, AlterKeyspace("ks0", simple(3)))
    after = driven(first, operation, "finished")
    assert set(after.placements) == {"simple:2", "simple:3"}
    assert groups(after, "write", "ks1") == groups(state, "write", "ks1")
    again, second = admitted(after, AlterKeyspace("ks0", simple(2)))
    last = driven(again, second, "finished")
    assert set(last.placements) == {"simple:2"}
    assert stepped(admitted(last, Leave("a1"))[0], f"leave-{last.epoch + 1}").placements


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        (Replication("simple", 7), "replication_impossible"),
        (network(a=4), "replication_impossible"),
        (network(nowhere=1), "replication_impossible"),
        (network(a=("r1", "r9")), "replication_impossible"),
        (Replication("network", 0), "bad_field"),
        (Replication("network", 3, (DatacenterReplication("a", 2),)), "bad_field"),
        (Replication("network", 0, (DatacenterReplication("a", 0),)), "bad_field"),
        (Replication("network", 1, (DatacenterReplication("a", 1, ("r1", "r2")),)), "bad_field"),
        (Replication("network", 2, (DatacenterReplication("a", 2, ("r2", "r1")),)), "bad_field"),
        (Replication("network", 2, (DatacenterReplication("b", 1), DatacenterReplication("a", 1))), "bad_field"),
        (Replication("network", 1, (DatacenterReplication("a b", 1),)), "bad_field"),
        (Replication("entire", 1), "bad_field"),
        (Replication("simple", 2, (DatacenterReplication("a", 2),)), "bad_field"),
        (Replication("orbital", 2), "unknown_strategy"),
    ],
)
def test_a_setting_that_is_refused(setting: Replication, code: str) -> None:
    state = placed(NODES, simple(2))
    assert refused(state, AlterKeyspace("ks0", setting)).code == code
    assert refused(state, CreateKeyspace("more", setting)).code == code
    assert refused(state, AlterKeyspace("none", simple(1))).code == "unknown_keyspace"
