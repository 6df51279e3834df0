"""A coordinator and a node with a memory error disagree with the others and are quarantined; the others continue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.system.agents_world import until
from tests.system.nodes_world import NodesWorld, opened

from ringlog.agents.exits import HALTED
from ringlog.agents.status import StatusReader
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.history import confirmed_snapshots
from ringlog.log.replicas.state_agreement import EVIDENCE
from ringlog.stack import StackInfo

pytestmark = [pytest.mark.system, pytest.mark.slow]

FAILS = """
import sys
from ringlog.kernel.values import replace
from ringlog.log.replicas.state_agreement import DigestComparison

real = DigestComparison.folded

def folded(self, before, after, *more):
    if str(after.epoch) in after.snapshots:
        after = replace(after, settings=after.settings.set("ranges_max", 7))
    real(self, before, after, *more)

DigestComparison.folded = folded
if sys.argv[1:2] == ["node"]:
    from ringlog.cli.main import main
    main()
else:
    from ringlog.agents.worker import run
    run(sys.argv[1])
"""
"""A process with one flipped bit in the state of its next snapshot."""


def test_a_disagreeing_process_halts_for_good(stack: StackInfo, cluster_name: str, tmp_path: Path) -> None:
    with opened(NodesWorld, stack, tmp_path, cluster_name) as world:
        agents = world.agents
        world.begin_all("n1", "n2")
        agents.start("keeper")
        agents.running("coordinator").kill()
        term = agents.term("coordinator")
        wrong = agents.spawn("coordinator", ("-c", FAILS))
        agents.await_term("coordinator", term + 1)
        world.nodes["n1"].terminate()
        world.nodes["n1"].restart(("-c", FAILS))
        until(lambda: world.status("n1"), "n1 to answer")
        until(lambda: world.shown("n1")[0]["ready"], "n1 to be ready")
        agents.await_active("coordinator", "publisher", "keeper")

        world.submit(TakeSnapshot())
        until(lambda: confirmed_snapshots(agents.state), "cache writer and change publisher to confirm the snapshot")
        assert wrong.exit_code() == HALTED
        until(world.nodes["n1"].is_dead, "n1 to end")
        with StatusReader(stack.bootstrap_servers, cluster_name) as status:
            (told,) = until(lambda: [one for one in status.read() if one.state == "halted"], "the halt to be reported")
        assert told.role == "coordinator"
        assert "state_disputed" in told.why
        assert "state_disputed" in world.nodes["n1"].log.read_text()
        kept = {path.name: json.loads(path.read_text()) for path in tmp_path.rglob(f"*{EVIDENCE}")}
        assert sorted(kept) == sorted([EVIDENCE, f"{cluster_name}.{agents.state.cluster_id}.coordinator.{EVIDENCE}"])
        (confirmed,) = confirmed_snapshots(agents.state)
        assert {one["confirmed"] for one in kept.values()} == {confirmed.digest}
        assert confirmed.digest not in {one["digest"] for one in kept.values()}

        # The others continue, and so does a restarted one.
        assert all(agents.alive(role) for role in ("validator", "publisher", "keeper"))
        agents.start("coordinator")
        world.nodes["n1"].restart()
        until(lambda: (world.status("n1") or {}).get("epoch") == agents.state.epoch, "n1 to serve again")
        world.submit(Noop())
        assert not world.nodes["n2"].is_dead()
