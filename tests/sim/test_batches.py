"""Commands about tables come in batches now and then, which apply, and which the check of tablets follows."""

from __future__ import annotations

from collections import Counter

from ringlog.kernel.commands.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema import DropTable
from ringlog.kernel.commands.schema_batch import SchemaBatch
from ringlog.kernel.fold import fold
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.values import Command, Replication
from ringlog.sim.chance import Chance
from ringlog.sim.families.schema import batched
from tests.kernel.entries import TABLE, applied, entry, founded, with_normal_nodes


def test_batches_are_drawn_and_mostly_apply() -> None:
    empty = applied(with_normal_nodes(founded(), 2), CreateKeyspace("ks", Replication("tablets", 1)))
    outcomes = Counter[str]()
    for seed in range(60):
        state = empty
        commands: tuple[Command, ...] = (TABLE, DropTable("ks", "t"))
        for number, command in enumerate(commands):
            drawn = batched(command, Chance(seed, f"batch/{number}"))
            folded = fold(state, entry(state, drawn))
            assert violations(folded.state, state) == ()
            if isinstance(drawn, SchemaBatch):
                outcomes[folded.outcome.kind.value] += 1
            state = folded.state
    assert outcomes["applied"] > outcomes["refused"] > 0, outcomes
