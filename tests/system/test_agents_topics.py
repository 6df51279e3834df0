"""The metadata topic is deleted and created again: active agents and standbys end with the same error and stay down.

The tests in ``tests/faults`` delete the topic without creating it again, which takes longer.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.ending import taking_down
from tests.plain_stack import plain_stack

from ringlog import __version__
from ringlog.agents.exits import HALTED, STOPPED
from ringlog.agents.status import read_statuses, view
from ringlog.log.kafka.topics import METADATA, admin_client, create_topics, topic_name
from ringlog.protocol.roles import ROLES
from ringlog.stack import StackInfo

from .agents_world import DEADLINE_S, AgentsWorld, until

pytestmark = [pytest.mark.system, pytest.mark.slow]


class Supervised:
    """All agents under one supervisor, and their output."""

    def __init__(self, world: AgentsWorld, folder: Path) -> None:
        self._log = folder / "log"
        folder.mkdir(exist_ok=True)
        environment = world.environment | {"RINGLOG_DATA_DIR": str(folder)}
        with self._log.open("ab") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ringlog.cli", "agents"], env=environment, stdout=sink, stderr=subprocess.STDOUT
            )

    @property
    def text(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def all_say(self, event: str) -> bool:
        """Return True if each role has logged the text, possibly twice after a change of the active instance."""
        said = [line for line in self.text.splitlines() if event in line]
        return all(any(f"role={role}" in line for line in said) for role in ROLES)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE_S)


@pytest.fixture
def world(stack: StackInfo, cluster_name: str, tmp_path: Path) -> Iterator[AgentsWorld]:
    with closing(AgentsWorld(stack, cluster_name, tmp_path / "agents")) as own:
        yield own


@pytest.fixture
def supervise(world: AgentsWorld, tmp_path: Path) -> Iterator[Callable[[str], Supervised]]:
    with ExitStack() as opened:

        def start(name: str) -> Supervised:
            own = Supervised(world, tmp_path / name)
            opened.callback(own.close)
            return own

        yield start


@pytest.mark.soak("tests/log/test_identity.py, for the replica that all agents have")
def test_agents_halt_on_a_recreated_log(world: AgentsWorld, supervise: Callable[[str], Supervised]) -> None:
    acting = supervise("acting")
    for role in ROLES:
        world.await_term(role, 1)
    until(lambda: acting.all_say("] active "), "all roles to be active")
    standing_by = supervise("standing by")
    until(lambda: standing_by.all_say("] stands_by "), "all stand-bys")
    name = topic_name(world.cluster, METADATA.suffix)
    admin = admin_client(world.stack.bootstrap_servers)
    admin.delete_topics([name])[name].result(DEADLINE_S)
    until(lambda: create_topics(admin, world.cluster, specs=[METADATA]), "the topic to be created again")

    for supervisor in (acting, standing_by):
        assert supervisor.process.wait(DEADLINE_S) == HALTED, supervisor.text
        for role in ROLES:
            ends = [line for line in supervisor.text.splitlines() if "] halted " in line and f"role={role}" in line]
            assert len(ends) == 1, supervisor.text
            assert f"code={HALTED}" in ends[0]
            assert f"log_replaced: topic {name} was deleted and created again" in ends[0]
            assert f"agents: {role} halted and is not restarted" in supervisor.text
        assert "crashed; restart in" not in supervisor.text

    again = supervise("acting")
    assert again.process.wait(DEADLINE_S) == HALTED
    assert again.text.count("halted and is not restarted") == 2 * len(ROLES)
    said = read_statuses(world.stack.bootstrap_servers, world.cluster)
    seen = {(view(one, 0, one.at).shown_state, one.release) for one in said.values()}
    assert seen == {("halted: log_replaced", __version__)}


@pytest.mark.soak("the topic that was made again; tests/log/test_identity.py for every other kind of loss")
def test_a_name_on_another_or_wiped_kafka_is_another_cluster(world: AgentsWorld, tmp_path: Path) -> None:
    """One user with one data folder has three clusters of one name; the folder keeps them apart.

    Two roles represent all roles, because all use the same code.
    """

    def act(where: AgentsWorld, term: int) -> None:
        agents = where.start_all("validator", "publisher")
        assert where.term("validator") == where.term("publisher") == term
        for agent in agents:
            agent.ask_to_stop()
        assert [agent.exit_code() for agent in agents] == [STOPPED, STOPPED]

    with taking_down(plain_stack(tmp_path / "stack")) as own:
        act(world, 1)
        for _ in range(2):
            other = AgentsWorld(own.up("quick"), world.cluster, tmp_path / "agents")
            act(other, 1)
            other.close()
            own.reset()
        act(world, 2)
    assert len(list((tmp_path / "agents").glob(f"agents/{world.cluster}.*.validator.json"))) == 3
