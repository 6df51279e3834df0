"""Three brokers on separate machines: one is killed, one is cut off, two are down; no acknowledged entry is lost.

Validator and publisher are with the first broker, a coordinator and a standby validator with the second one, and the
test's client is on a fourth machine. Each topic has three copies; two of them acknowledge a record. After each loss of
the log's leader another broker is elected and commits continue. Without two brokers they stop, and they continue with
the second one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.system.agents_world import AgentsWorld, until
from tests.system.machines import Machines, why_none
from tests.system.three_brokers import NUMBERS, Copies, ThreeBrokers

from ringlog.client.client import Client
from ringlog.client.errors import SubmissionTimedOut
from ringlog.kernel.commands.cluster.cluster import Noop
from ringlog.protocol.submission.results import AppliedResult

pytestmark = [pytest.mark.system, pytest.mark.slow]

CLIENT = 4
MORE = 5


class Commits:
    """Requests one epoch after the other, each with one id until its answer; keeps the answers."""

    def __init__(self, client: Client) -> None:
        self.told: list[AppliedResult] = []
        self._client = client
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commits", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asked: dict[str, object] = {}
        while not self._ending.is_set():
            try:
                answer = self._client.submit(Noop(), timeout_s=2, **asked)
            except SubmissionTimedOut as open_:
                asked = {"request_id": open_.request_id, "since_epoch": open_.since_epoch}
                continue
            assert isinstance(answer, AppliedResult)
            asked = {}
            self.told.append(answer)

    def go_on(self, what: str) -> None:
        """Wait for further commits."""
        least = len(self.told) + MORE
        until(lambda: len(self.told) >= least, f"commits to continue {what}")

    def end(self) -> list[AppliedResult]:
        self._ending.set()
        self._thread.join()
        return self.told


class World:
    """The machines, brokers, agents and the client."""

    def __init__(self, cluster: str, folder: Path, machines: Machines, open_: ExitStack) -> None:
        self.machines, self.cluster = machines, cluster
        self.brokers = ThreeBrokers(machines, folder / "brokers")
        open_.callback(self.brokers.close)
        until(self.brokers.are_up, "three brokers")
        place = dict[str, int]()
        self.agents = AgentsWorld(self.brokers.info, cluster, folder, network=lambda who: machines.network(place[who]))
        open_.callback(self.agents.close)
        place |= {"validator": 1, "publisher": 1, "coordinator": 2}
        self.agents.start_all(*place)
        place["validator"] = 2
        self.agents.spawn("validator")  # the standby
        self.commits = Commits(self.agents.client)

    def await_copies(self, *in_sync: int) -> Copies:
        def found() -> Copies | None:
            copies = self.brokers.copies(self.cluster)
            return copies if copies is not None and copies.in_sync == in_sync and copies.leader in in_sync else None

        return until(found, f"{in_sync} to be in sync")

    def check_answers(self, least: int) -> None:
        """End the commits. The log has each answered request at the epoch of its answer."""
        told = self.commits.end()
        assert len(told) >= least
        made = {entry.request_id: epoch for epoch, entry in enumerate(self.agents.applied(), start=1)}
        assert [made.get(answer.request_id) for answer in told] == [answer.epoch for answer in told]


@pytest.fixture
def world(cluster_name: str, tmp_path: Path) -> Iterator[World]:
    if why := why_none():
        pytest.skip(why)
    with ExitStack() as open_:
        machines = Machines(4)
        open_.callback(machines.close)
        open_.enter_context(machines.inside(CLIENT))
        yield World(cluster_name, tmp_path, machines, open_)


@pytest.mark.soak("tests/system/test_several_machines.py and tests/faults, with one broker; a release runs this")
def test_one_is_killed_one_is_cut_off_two_are_down(world: World) -> None:
    world.commits.go_on("at first")
    killed = world.await_copies(*NUMBERS).leader
    world.brokers.kill(killed)
    world.commits.go_on("without the broker that led")
    assert world.await_copies(*(number for number in NUMBERS if number != killed)).leader != killed
    world.brokers.start(killed)

    cut = world.await_copies(*NUMBERS).leader
    world.machines.cable(cut, plugged=False)
    world.commits.go_on("without the machine of the broker that leads")
    others = [number for number in NUMBERS if number != cut]
    assert world.await_copies(*others).leader != cut
    world.machines.cable(cut, plugged=True)
    world.await_copies(*NUMBERS)

    world.brokers.kill(*others)
    with pytest.raises(SubmissionTimedOut):  # one of three does not acknowledge
        world.agents.client.submit(Noop(), timeout_s=5)
    world.brokers.start(others[0])
    world.commits.go_on("with two of three")
    world.check_answers(4 * MORE)


@pytest.mark.soak("tests/system/test_several_machines.py and tests/faults, with one broker; a release runs this")
def test_two_brokers_that_are_lost_with_their_disks_are_replaced_by_empty_ones(world: World) -> None:
    """docs/deploy/brokers.md: the survivor leads, because no empty controller can win its vote."""
    world.commits.go_on("at first")
    led = world.await_copies(*NUMBERS).leader
    survivor, *lost = (number % 3 + 1 for number in range(led, led + 3))
    world.brokers.lose(*lost)
    with pytest.raises(SubmissionTimedOut):
        world.agents.client.submit(Noop(), timeout_s=5)
    for number in lost:
        world.brokers.start(number)
        world.commits.go_on(f"with {survivor} and the empty disk of {number}")
    world.await_copies(*NUMBERS)
    world.brokers.kill(survivor)
    world.commits.go_on("without the survivor, whose records the others have now")
    world.check_answers(4 * MORE)
