"""Run the store of ``docs/build/own-node.md`` as two nodes: both join, one streams, one leaves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.client.test_build_pages import samples
from tests.tidy.files import ROOT

from ringlog.client.node_reports import AcksReader
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.topology.movements import Leave
from ringlog.kernel.values import Replication
from ringlog.protocol.submission.results import AppliedResult
from ringlog.stack import StackInfo

from .agents_world import AgentsWorld, until

pytestmark = pytest.mark.system


@contextmanager
def store(world: AgentsWorld, bootstrap: str, name: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the sample until the test ends."""
    program = folder / "store.py"
    program.write_text(samples(ROOT / "docs" / "build" / "own-node.md")[0], encoding="utf-8")
    command = [sys.executable, str(program), bootstrap, world.cluster, name, str(folder / name)]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


def test_two_stores_join_and_one_leaves(world: AgentsWorld, stack: StackInfo, tmp_path: Path) -> None:
    world.start_all("validator", "coordinator", "publisher")

    def state_of(name: str) -> str:
        """Return the state of a node, empty before it is registered."""
        found = world.state.node_names.get(name)
        return "" if found is None else world.state.nodes[found].state

    with store(world, stack.bootstrap_servers, "s1", tmp_path) as first:
        until(lambda: state_of("s1") == "normal", "s1 to join")
        answer = world.client.submit(CreateKeyspace("ks", Replication("simple", 1)))
        assert isinstance(answer, AppliedResult), answer
        with store(world, stack.bootstrap_servers, "s2", tmp_path) as second:
            until(lambda: state_of("s2") == "normal", "s2 to join")
            with closing(AcksReader(stack.bootstrap_servers, world.cluster)) as acks:
                assert acks.refresh()[world.state.node_names["s2"]].rows > 0, "it has streamed"
            answer = world.client.submit(Leave(world.state.node_names["s1"]))
            assert isinstance(answer, AppliedResult), answer
            assert first.wait(60) == 0
            assert state_of("s1") == "left"
            assert second.poll() is None
