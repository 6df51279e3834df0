"""State sections that only grow have a bound, for each command that extends them."""

from __future__ import annotations

import re

import pytest

from ringlog.kernel import cardinality_limits as counts
from ringlog.kernel.cardinality_limits import COUNTS_MAX
from ringlog.kernel.changes import CHANGE_TOPICS
from ringlog.kernel.commands.cdc.generations import RequestCdcGeneration
from ringlog.kernel.commands.cdc.writers import RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import Noop, TakeOver
from ringlog.kernel.commands.cluster.features import EnableFeature
from ringlog.kernel.commands.control.pauses import PauseChanges
from ringlog.kernel.commands.control.plans import StagePlan
from ringlog.kernel.commands.control.principals import CreatePrincipal, RevokePrincipal
from ringlog.kernel.commands.control.recovery import EnterRecovery, LeaveRecovery
from ringlog.kernel.commands.placement.zones import CreateZone
from ringlog.kernel.commands.schema.functions import CreateAggregate, CreateFunction
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, CreateTable, DropTable
from ringlog.kernel.commands.schema.user_types import CreateType
from ringlog.kernel.commands.schema.views import CreateIndex, CreateView
from ringlog.kernel.commands.topology.nodes import DeclareDown, UnregisterNode, UpdateNode
from ringlog.kernel.fold import fold
from ringlog.kernel.model.outcome import OutcomeKind
from ringlog.kernel.model.state import PARTS, ClusterState
from ringlog.kernel.plans import planned
from ringlog.kernel.values import CdcOptions, Command, Replication, TypeField, replace
from ringlog.log.kafka.topics import TOPICS
from ringlog.protocol.validator.values import ANSWERS_MAX
from tests.kernel.entries import NODES, TABLE, applied, entry, founded, node, uuid, with_normal_nodes
from tests.tidy.files import ROOT

MOST = 3
GUIDE = ROOT / "docs" / "internals" / "bounds.md"


def table(number: int) -> CreateTable:
    return replace(TABLE, name=f"t{number}", id=uuid(number, space=4))


def grown(part: str, number: int) -> list[Command]:
    """Return commands that add one entry to a section and remove the entries that can be removed."""
    made: dict[str, list[Command]] = {
        "features": [EnableFeature(f"f{number}")],
        "keyspaces": [CreateKeyspace(f"k{number}", Replication("simple", 1))],
        "pauses": [PauseChanges(("splits",), f"k{number}")],
        "recoveries": [EnterRecovery("lost", "ops"), LeaveRecovery("found", "ops")],
        "past_ttls": [AlterTable("ks", "t", cdc=CdcOptions(enabled=True, ttl=TABLE.cdc.ttl - number))],
        "principals": [
            CreatePrincipal(f"p{number}", "admin"),
            *([RevokePrincipal(f"p{number}")] if number > 1 else []),
        ],
        "plans": [StagePlan(f"p{number}", (planned(Noop()),))],
        "nodes": [node(number + 1), UnregisterNode(uuid(number + 1, space=2))],
        "requests": [RequestCdcGeneration(bytes(16), f"r{number}")],
        "terms": [TakeOver(f"role{number}", "x", 1)],
        "types": [CreateType("ks", f"u{number}", (TypeField("a", "int"),))],
        "views": [CreateView("ks", f"v{number}", "t0", (), ("v",), ("k", "c"))],
        "indexes": [CreateIndex("ks", f"i{number}", f"t{number}", "v")],
        "functions": [CreateFunction("ks", f"f{number}", ("int",), ("s",), "int", "lua", "return s")],
        "aggregates": [CreateAggregate("ks", f"a{number}", (), "f0", "int")],
        "writers": [RegisterCdcWriter(f"w{number}", uuid(number, space=5), f"topic-{number}")],
        "zones": [CreateZone(f"z{number}", NODES[:1], partitions=1)],
        "zone_partitions": [CreateZone(f"z{number}", NODES[:1], partitions=1)],
        "table_ids": [table(number), DropTable("ks", f"t{number}")],
    }
    return made[part]


def start(part: str) -> ClusterState:
    """Return a cluster with the prerequisites of the section. Existing entries count."""
    state = with_normal_nodes(founded(), 1)
    if part == "features":
        return applied(state, UpdateNode(NODES[0], features=tuple(f"f{number}" for number in range(1, MOST + 2))))
    if part == "pauses":
        keyspaces = (CreateKeyspace(f"k{number}", Replication("simple", 1)) for number in range(1, MOST + 2))
        return applied(state, *keyspaces)
    if part == "keyspaces":
        return state
    state = applied(state, CreateKeyspace("ks", Replication("simple", 1)))
    if part == "past_ttls":
        return applied(state, TABLE)
    if part in ("views", "indexes"):
        return applied(state, *(table(number) for number in range(MOST + 2)))
    function = CreateFunction("ks", "f0", ("int",), ("s",), "int", "lua", "return s")
    return applied(state, function) if part == "aggregates" else state


@pytest.mark.parametrize("part", sorted(COUNTS_MAX))
def test_an_entry_above_the_bound_is_rejected(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(counts.COUNTS_MAX, part, (MOST, COUNTS_MAX[part][1]))
    state = start(part)
    number = 1
    while len(getattr(state, part)) < MOST:
        state = applied(state, *grown(part, number))
        number += 1
    one_more, *_ = grown(part, number)
    folded = fold(state, entry(state, one_more))
    assert (folded.outcome.kind, folded.outcome.code) == (OutcomeKind.REFUSED, "too_many")
    assert folded.outcome.detail == f"{part}: the state has {MOST} {COUNTS_MAX[part][1]}, the limit is {MOST}"
    assert folded.state is state


def test_a_command_that_adds_nothing_is_not_refused_above_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    state = applied(start("nodes"), *(node(number) for number in range(2, 7)))
    monkeypatch.setitem(counts.COUNTS_MAX, "nodes", (MOST, "nodes"))
    applied(state, UnregisterNode(uuid(2, space=2)), DeclareDown(uuid(1, space=2), "dead"))


def test_each_bounded_section_is_in_the_state() -> None:
    assert set(COUNTS_MAX) <= set(PARTS)


def test_the_guide_contains_the_bounds() -> None:
    told = GUIDE.read_text(encoding="utf-8")
    for most, _ in COUNTS_MAX.values():
        assert re.search(rf"\b{most:,}\b", told), most
    assert f"{ANSWERS_MAX:,}" in told


def cells(section: str) -> list[list[str]]:
    """Return the rows of the table in a section of the guide."""
    lines = GUIDE.read_text(encoding="utf-8").split(f"## {section}\n")[1].split("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][1:]


def quoted(rows: list[list[str]], column: int) -> list[str]:
    return [name for row in rows for name in re.findall("`([^`]+)`", row[column])]


def test_the_guide_has_a_bound_for_every_part_of_the_state() -> None:
    """The state without the scalars that identify it."""
    one = {"cluster_id", "name", "epoch", "state_id", "time", "chain"}
    assert set(quoted(cells("The state"), 2)) == {*ClusterState.__struct_fields__} - one


def test_the_guide_has_a_bound_for_every_topic() -> None:
    told = quoted(cells("Topics"), 0)
    assert sorted([*told, *CHANGE_TOPICS]) == sorted(spec.suffix for spec in TOPICS)
    assert "change topics" in [row[0] for row in cells("Topics")]
