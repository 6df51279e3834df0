"""One role stores the state behind a ``TakeSnapshot``, others confirm it, and readers then start with it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from ringlog.agents.maintenance.snapshots import AwaitHead, AwaitSnapshotWork, SnapshotSteps, SnapshotThread
from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.commands.cluster.snapshots import TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.model.state import EMPTY_STATE, ClusterState
from ringlog.kernel.values import replace
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
    """Return whether the process still holds this state object of that epoch; other tests may hold equal states."""
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
        """Return the number of records that a role writes when it takes over behind a mark and then has no
        more work.
        """
        begin = self.cluster.records.end_offset()
        self.done(role, mark).close()
        return self.cluster.records.end_offset() - begin

    def done(self, role: str, mark: Start) -> Steps[None]:
        """Return the same role without further work."""
        log, records = self.cluster.log, self.cluster.records
        steps = SnapshotSteps(role, lambda: SnapshotTopic(records), log.identity, ManualClock().now_us, lambda: role)
        doing = steps.run()
        if steps.resume(self.cluster.state, mark):
            outcome: object = None
            while not isinstance(effect := doing.send(outcome), AwaitSnapshotWork) or steps.is_due:
                outcome = effect.topic.listed()[0].head if isinstance(effect, AwaitHead) else self.cluster.state
        return doing

    def first_records(self, count: int) -> list[object]:
        """Wait for that many records of the topic and return them."""
        tail, found = self.cluster.records.tail(0), list[object]()
        while len(found) < count:
            records = tail.poll(60)
            assert records, f"{len(found)} of {count} records arrived"
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


def test_one_role_stores_and_the_others_confirm(agents: Agents) -> None:
    for role in ("validator", "coordinator", "publisher", "keeper", "balancer"):
        agents.act(role)
    agents.cluster.apply(TakeSnapshot())
    *_, first, second = agents.first_records(4)
    assert isinstance(first, SnapshotConfirmation)
    assert isinstance(second, SnapshotConfirmation)
    assert {first.by, second.by} == {"coordinator", "publisher"}
    assert digest(agents.begin()) == digest(agents.cluster.state)
    agents.close()
    assert len(agents.first_records(4)) == 4, "validator and balancer wrote nothing"


def test_a_snapshot_of_one_reader_is_not_used(agents: Agents) -> None:
    agents.act("keeper")
    agents.cluster.apply(TakeSnapshot())
    agents.first_records(2)
    assert agents.begin() == EMPTY_STATE


def test_a_reader_with_another_state_disputes_it(agents: Agents) -> None:
    agents.act("keeper")
    before = agents.cluster.state
    agents.cluster.apply(TakeSnapshot())
    agents.first_records(2)
    wrong = replace(agents.cluster.state, name="another")
    agents.act("coordinator", looks_back=False).folded(before, wrong, agents.cluster.log.end_offset() - 1)
    said = agents.first_records(3)[2]
    assert isinstance(said, SnapshotConfirmation)
    assert said.digest == digest(wrong) != digest(agents.cluster.state)
    assert agents.begin() == EMPTY_STATE


def test_an_unavailable_broker_costs_only_one_snapshot(agents: Agents) -> None:
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
    chunk, head = agents.first_records(2)
    assert (getattr(chunk, "number", None), getattr(head, "epoch", None)) == (0, agents.cluster.state.epoch)


def test_a_mark_from_before_the_take_over_is_stored_and_confirmed(agents: Agents) -> None:
    agents.cluster.apply(TakeSnapshot())
    marked = agents.cluster.state
    agents.cluster.apply(Noop())
    for role in ("keeper", "coordinator"):
        agents.act(role)
    _, head, said = agents.first_records(3)
    assert isinstance(head, StoredSnapshot)
    assert isinstance(said, SnapshotConfirmation)
    assert (head.epoch, head.digest, said.digest) == (marked.epoch, digest(marked), digest(marked))
    assert agents.begin() == marked


def test_stored_and_confirmed_snapshots_cause_no_work(agents: Agents) -> None:
    agents.cluster.apply(TakeSnapshot())
    mark = agents.cluster.taken[-1]
    assert [agents.left_to("keeper", mark), agents.left_to("keeper", mark)] == [2, 0], (
        "a chunk and a head, then nothing"
    )
    assert [agents.left_to("publisher", mark), agents.left_to("validator", mark)] == [1, 0]
    mine = (mark.position, digest(mark.state), ("keeper", "publisher"))
    agents.cluster.apply(ConfirmSnapshot(mark.state.epoch, mark.state.state_id, *mine))
    assert [agents.left_to(role, mark) for role in ("keeper", "coordinator")] == [0, 0]


def test_a_stored_and_confirmed_state_is_released(agents: Agents) -> None:
    """A role waits for days between two snapshots, and a state is as large as its cluster."""
    agents.cluster.apply(TakeSnapshot())
    taken = id(agents.cluster.state), agents.cluster.state.epoch
    agents.cluster.apply(Noop())
    waiting = [agents.done(role, agents.cluster.taken[-1]) for role in ("keeper", "publisher")]
    assert held(*taken), "the test holds the state"
    agents.cluster.taken.clear()
    assert not held(*taken)
    for one in waiting:
        one.close()


def test_a_snapshot_with_another_digest_is_stored_again(agents: Agents) -> None:
    agents.cluster.apply(TakeSnapshot())
    mark = agents.cluster.taken[-1]
    agents.left_to("keeper", replace(mark, state=replace(mark.state, name="another")))
    assert agents.begin() == EMPTY_STATE
    agents.left_to("keeper", mark)
    agents.left_to("coordinator", mark)
    assert agents.begin() == mark.state
