"""One role stores the state behind a ``TakeSnapshot``, others say what they have; then readers begin with it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ringlog.agents.maintenance.snapshots import AwaitHead, AwaitSnapshotWork, SnapshotSteps, SnapshotThread
from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.log.errors import LogUnavailable
from ringlog.log.folding import Start
from ringlog.log.memory import MemoryKeyed
from ringlog.log.replicas.recent import LAST_ALONE, RecentEntries
from ringlog.log.replicas.replay import catch_up
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder
from ringlog.protocol.effects import Steps
from ringlog.runtime.clock import ManualClock
from ringlog.wire.records import SnapshotConfirmation, StoredSnapshot, decode_snapshot_record
from tests.log.test_snapshots import Cluster


def held(address: int, epoch: int) -> bool:
    """True if the process holds the state of that epoch which was there; other tests may have others of that epoch."""
    gc.collect()
    return any(id(one) == address and isinstance(one, ClusterState) and one.epoch == epoch for one in gc.get_objects())


class Agents:
    """A cluster, and threads of roles that fold it."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.cluster.apply(InitializeCluster("c"), Noop())
        self.replicas: list[LogReplica] = []
        self.threads: list[SnapshotThread] = []

    def act(self, role: str, topic: MemoryKeyed | None = None, *, looks_back: bool = True) -> SnapshotThread:
        replica = LogReplica(self.cluster.log)
        replica.recent = RecentEntries(LAST_ALONE, keeps_mark=True)
        catch_up(replica.start())
        records = topic or self.cluster.records
        clock = ManualClock()
        steps = SnapshotSteps(
            role, lambda: SnapshotTopic(records), lambda: replica.identity, clock.now_us, lambda: role
        )
        thread = SnapshotThread(role, steps, lambda: replica.state, lambda _: None)
        replica.subscribe(
            lambda before, after, _item, _outcome, offset: thread.folded(before, after, offset), replica.halt_on_defect
        )
        thread.resume(replica.state, replica.recent.take_mark() if looks_back else None)
        self.replicas.append(replica)
        self.threads.append(thread)
        return thread

    def left_to(self, role: str, mark: Start) -> int:
        """How many records a role writes that takes over behind a mark and then has nothing more to do."""
        begin = self.cluster.records.end_offset()
        self.done(role, mark).close()
        return self.cluster.records.end_offset() - begin

    def done(self, role: str, mark: Start) -> Steps[None]:
        """The same role, with nothing more to do."""
        log, records = self.cluster.log, self.cluster.records
        steps = SnapshotSteps(role, lambda: SnapshotTopic(records), log.identity, ManualClock().now_us, lambda: role)
        doing = steps.run()
        if steps.resume(self.cluster.state, mark):
            outcome: object = None
            while not isinstance(effect := doing.send(outcome), AwaitSnapshotWork) or steps.is_due:
                outcome = effect.topic.listed()[0].head if isinstance(effect, AwaitHead) else self.cluster.state
        return doing

    def heard(self, count: int) -> list[object]:
        """The first records of the topic, when there are so many."""
        tail, found = self.cluster.records.tail(0), list[object]()
        while len(found) < count:
            records = tail.poll(60)
            assert records, f"{len(found)} of {count} records came"
            found += [decode_snapshot_record(record.data) for record in records]
        return found

    def begin(self) -> ClusterState:
        log = self.cluster.log
        return (
            StartPointFinder(lambda: SnapshotTopic(self.cluster.records)).start(log, log.identity(), lambda _: ()).state
        )

    def close(self) -> None:
        for thread in self.threads:
            thread.stop()
        for replica in self.replicas:
            replica.stop()


@pytest.fixture
def agents() -> Iterator[Agents]:
    made = Agents()
    yield made
    made.close()


def test_who_stores_and_who_confirms(agents: Agents) -> None:
    for role in ("validator", "coordinator", "publisher", "keeper", "balancer"):
        agents.act(role)
    agents.cluster.apply(TakeSnapshot())
    *_, first, second = agents.heard(4)
    assert isinstance(first, SnapshotConfirmation)
    assert isinstance(second, SnapshotConfirmation)
    assert {first.by, second.by} == {"coordinator", "publisher"}
    assert digest(agents.begin()) == digest(agents.cluster.state)
    agents.close()
    assert len(agents.heard(4)) == 4, "validator and balancer wrote nothing"


def test_without_a_second_reader_nobody_begins_with_it(agents: Agents) -> None:
    agents.act("keeper")
    agents.cluster.apply(TakeSnapshot())
    agents.heard(2)
    assert agents.begin() == EMPTY_STATE


def test_a_reader_with_another_state_disputes_it(agents: Agents) -> None:
    agents.act("keeper")
    before = agents.cluster.state
    agents.cluster.apply(TakeSnapshot())
    agents.heard(2)
    wrong = replace(agents.cluster.state, name="another")
    agents.act("coordinator", looks_back=False).folded(before, wrong, agents.cluster.log.end_offset() - 1)
    said = agents.heard(3)[2]
    assert isinstance(said, SnapshotConfirmation)
    assert said.digest == digest(wrong) != digest(agents.cluster.state)
    assert agents.begin() == EMPTY_STATE


def test_a_broker_that_is_away_costs_that_snapshot_only(agents: Agents) -> None:
    class Away(MemoryKeyed):
        refused = threading.Event()

        def put(self, key: str, data: bytes | None) -> int:
            if not self.refused.is_set():
                self.refused.set()
                raise LogUnavailable("away")
            return agents.cluster.records.put(key, data)

    away = Away()
    agents.act("keeper", away)
    agents.cluster.apply(TakeSnapshot())
    assert away.refused.wait(60)
    agents.cluster.apply(Noop(), TakeSnapshot())
    chunk, head = agents.heard(2)
    assert (getattr(chunk, "number", None), getattr(head, "epoch", None)) == (0, agents.cluster.state.epoch)


def test_a_mark_of_before_the_take_over_is_stored_and_confirmed(agents: Agents) -> None:
    agents.cluster.apply(TakeSnapshot())
    marked = agents.cluster.state
    agents.cluster.apply(Noop())
    for role in ("keeper", "coordinator"):
        agents.act(role)
    _, head, said = agents.heard(3)
    assert isinstance(head, StoredSnapshot)
    assert isinstance(said, SnapshotConfirmation)
    assert (head.epoch, head.digest, said.digest) == (marked.epoch, digest(marked), digest(marked))
    assert agents.begin() == marked


def test_what_is_stored_is_not_stored_again_and_what_is_confirmed_is_nobodys_to_do(agents: Agents) -> None:
    agents.cluster.apply(TakeSnapshot())
    mark = agents.cluster.taken[-1]
    assert [agents.left_to("keeper", mark), agents.left_to("keeper", mark)] == [2, 0], "a chunk and a head; nothing"
    assert [agents.left_to("publisher", mark), agents.left_to("validator", mark)] == [1, 0]
    mine = (mark.position, digest(mark.state), ("keeper", "publisher"))
    agents.cluster.apply(ConfirmSnapshot(mark.state.epoch, mark.state.state_id, *mine))
    assert [agents.left_to(role, mark) for role in ("keeper", "coordinator")] == [0, 0]


def test_a_state_that_was_stored_and_confirmed_is_let_go(agents: Agents) -> None:
    """Between two snapshots a role waits for days; a state is as large as its cluster."""
    agents.cluster.apply(TakeSnapshot())
    taken = id(agents.cluster.state), agents.cluster.state.epoch
    agents.cluster.apply(Noop())
    waiting = [agents.done(role, agents.cluster.taken[-1]) for role in ("keeper", "publisher")]
    assert held(*taken), "the test holds it"
    agents.cluster.taken.clear()
    assert not held(*taken)
    for one in waiting:
        one.close()


def test_what_was_stored_with_another_digest_is_stored_again(agents: Agents) -> None:
    agents.cluster.apply(TakeSnapshot())
    mark = agents.cluster.taken[-1]
    agents.left_to("keeper", replace(mark, state=replace(mark.state, name="another")))
    assert agents.begin() == EMPTY_STATE
    agents.left_to("keeper", mark)
    agents.left_to("coordinator", mark)
    assert agents.begin() == mark.state
