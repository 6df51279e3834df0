"""A consumer of the change topics alone, or of the cache alone, finds the same write groups as a coordinator."""

from __future__ import annotations

import json

from ringlog.cache import projection
from ringlog.client.data.plans import Access, ClientRequest, Level, RequestPlan, plan
from ringlog.kernel.changes import Change, PlacementChange, diff, project
from ringlog.kernel.model.state import EMPTY_STATE
from ringlog.kernel.operations.moving import RangeChange, write_groups
from ringlog.kernel.ownership.placements import placement_of_keyspace
from ringlog.kernel.sections import PLACEMENTS
from tests.kernel.movements.run import Run

RUNS = 40
Groups = set[tuple[str, ...]]


class Consumers(Run):
    """A random run, followed by a consumer of the topics and by one of the cache."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seen = EMPTY_STATE
        self.topics: dict[tuple[str, str], Change] = {}
        self.cached: dict[str, dict[str, str]] = {part: {} for part in projection.PARTS}

    def check(self) -> None:
        """Check that the state equals the published differences and is enough for a quorum."""
        if self.seen.epoch == self.state.epoch:
            return  # The run registers a node without an entry; the next publication contains it.
        for record in diff(self.seen, self.state):
            if record.value is None:
                del self.topics[record.topic, record.key]
            else:
                self.topics[record.topic, record.key] = record.value
        difference = projection.delta(self.seen, self.state)
        for part, field in difference.remove:
            del self.cached[part][field]
        for part, field, text in difference.put:
            self.cached[part][field] = text
        self.seen = self.state
        assert self.topics.keys() == project(self.state).keys()
        assert self.cached == projection.project(self.state)
        for keyspace in self.record.keyspaces:
            self.compare(keyspace)

    def compare(self, keyspace: str) -> None:
        """Compare the quorums of a write to each range."""
        placement = placement_of_keyspace(self.state, keyspace)
        assert placement is not None
        for end in placement.ends:
            made = plan(self.state, ClientRequest(keyspace, end, Access.WRITE, Level.QUORUM, ""))
            assert isinstance(made, RequestPlan)
            wanted = {need.members for need in made.needs}
            told = self.topics[PLACEMENTS, f"{placement.key}/{end}"]
            assert isinstance(told, PlacementChange)
            groups = write_groups([replica.node for replica in told.write], told.moving)
            assert {members for members in groups.values() if members} == wanted
            self.counted(len(groups))
            found = json.loads(self.cached["placements"][f"{placement.key}/{end}"])
            moving = [RangeChange(one["operation"], one["entering"], one["leaving"]) for one in found["moving"]]
            groups = write_groups([replica["node"] for replica in found["write"]], moving)
            assert {members for members in groups.values() if members} == wanted

    def counted(self, groups: int) -> None:
        self.counts[f"{groups} groups"] = self.counts.get(f"{groups} groups", 0) + 1


def test_topics_and_cache_are_enough_for_a_quorum() -> None:
    counts: dict[str, int] = {}
    for seed in range(RUNS):
        run = Consumers(seed)
        run.go(steps=12)
        for name, count in run.counts.items():
            counts[name] = counts.get(name, 0) + count
    assert counts["1 groups"] > 1_000
    assert counts["2 groups"] > 100
