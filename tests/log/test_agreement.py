"""State digests: a reader that differs from two others halts, reports it and keeps its evidence; a reader that agrees
continues.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.commands.cluster.snapshots import SNAPSHOTS_KEPT_MAX, TakeSnapshot
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot
from ringlog.kernel.encoding.decoder import decode_parts
from ringlog.kernel.encoding.encoder import digest
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import replace
from ringlog.log.errors import ReplicaHalted
from ringlog.log.replicas.replay import catch_up
from ringlog.log.replicas.replica import LogReplica
from ringlog.log.replicas.start_point import SnapshotTopic
from ringlog.log.replicas.state_agreement import DigestComparison
from tests.log.test_snapshots import Cluster, confirmation

LONG_S = 60.0


class Reader:
    """A reader of a cluster's log that computes a wrong state at a mark if ``flips`` is set."""

    def __init__(self, cluster: Cluster, folder: Path, flips: bool) -> None:
        self.evidence = folder / "disputed.state"
        self.replica = LogReplica(cluster.log).start()
        catch_up(self.replica)
        self.agreement = DigestComparison(self.replica, lambda _: self.evidence, lambda: SnapshotTopic(cluster.records))
        self.wrong = self.replica.state

        def follow(before: ClusterState, after: ClusterState, *more: object) -> None:
            """Return a state as failed memory changes it, for this mark and all later ones."""
            if flips and str(after.epoch) in after.snapshots:
                after = self.wrong = replace(after, settings=after.settings.set("ranges_max", 7))
            self.agreement.folded(before, after, *more)  # type: ignore[arg-type]

        self.replica.subscribe(follow, self.replica.halt_on_defect)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.apply(InitializeCluster("c"), Noop())
    return made


def confirm(cluster: Cluster) -> None:
    """Confirm the last mark by two readers with the log's state: first in the topic, then in the log."""
    start = cluster.taken[-1]
    topic = SnapshotTopic(cluster.records)
    head = topic.store(start, cluster.log.identity(), "keeper", 0, f"s{start.state.epoch}")
    topic.confirm(confirmation(head, "publisher"))
    cluster.apply(confirmation_of(cluster, head.digest))


def confirmation_of(cluster: Cluster, digested: str) -> ConfirmSnapshot:
    start = cluster.taken[-1]
    return ConfirmSnapshot(start.state.epoch, start.state.state_id, start.position, digested, ("keeper", "publisher"))


def test_one_reader_against_two_is_quarantined_and_keeps_its_evidence(cluster: Cluster, tmp_path: Path) -> None:
    right, wrong = (Reader(cluster, tmp_path / name, name == "wrong") for name in ("right", "wrong"))
    for reader in (right, wrong):
        reader.evidence.parent.mkdir()
    cluster.apply(Noop(), TakeSnapshot(), Noop())
    confirm(cluster)
    with pytest.raises(ReplicaHalted) as halted:
        wrong.replica.wait_for(lambda _: None, LONG_S, "it to halt")
    assert halted.value.code == "state_disputed"
    assert str(wrong.evidence) in str(halted.value)
    told = json.loads(wrong.evidence.read_text(encoding="utf-8"))
    parts = {name: bytes.fromhex(data) for name, data in told["parts"].items()}
    assert (told["epoch"], told["digest"]) == (wrong.wrong.epoch, digest(wrong.wrong))
    assert told["confirmed"] == digest(cluster.taken[-1].state) != told["digest"]
    assert decode_parts(parts).settings["ranges_max"] == 7
    assert wrong.evidence.stat().st_mode & 0o077 == 0

    cluster.apply(Noop())
    assert right.replica.read_barrier(LONG_S).epoch == cluster.state.epoch
    right.agreement.join(LONG_S)
    assert right.replica.halted is None
    assert not right.evidence.exists()
    for reader in (right, wrong):
        reader.replica.stop()


def test_a_restarted_reader_continues_and_keeps_its_first_evidence(cluster: Cluster, tmp_path: Path) -> None:
    kept = []
    for _ in range(2):
        reader = Reader(cluster, tmp_path, True)
        cluster.apply(TakeSnapshot())
        confirm(cluster)
        with pytest.raises(ReplicaHalted, match="state_disputed"):
            reader.replica.wait_for(lambda _: None, LONG_S, "it to halt")
        reader.replica.stop()
        kept.append(reader.evidence.read_bytes())
    assert kept[0] == kept[1]
    reader = Reader(cluster, tmp_path, False)
    assert reader.replica.read_barrier(LONG_S).epoch == cluster.state.epoch
    reader.replica.stop()


def test_a_reader_stays_halted_if_its_evidence_cannot_be_stored(cluster: Cluster, tmp_path: Path) -> None:
    reader = Reader(cluster, tmp_path / "no folder", True)
    cluster.apply(TakeSnapshot())
    confirm(cluster)
    with pytest.raises(ReplicaHalted, match="state_disputed"):
        reader.replica.wait_for(lambda _: None, LONG_S, "it to halt")
    reader.replica.stop()


def test_unconfirmed_marks_are_dropped(cluster: Cluster, tmp_path: Path) -> None:
    reader = Reader(cluster, tmp_path, True)
    cluster.apply(*[TakeSnapshot()] * (3 * SNAPSHOTS_KEPT_MAX))
    reader.replica.read_barrier(LONG_S)
    assert len(reader.agreement._marks) == SNAPSHOTS_KEPT_MAX
    assert reader.replica.halted is None
    reader.replica.stop()


@pytest.mark.parametrize("stored", ["nothing", "by one alone", "of another state"])
def test_a_digest_only_claimed_in_the_log_halts_no_reader(cluster: Cluster, tmp_path: Path, stored: str) -> None:
    """A client may send this request, but no stored snapshot has the digest, or no reader confirms it."""
    reader = Reader(cluster, tmp_path, stored == "by one alone")
    cluster.apply(TakeSnapshot())
    topic = SnapshotTopic(cluster.records)
    digested = "0" * 64
    if stored != "nothing":
        head = topic.store(cluster.taken[-1], cluster.log.identity(), "keeper", 0, "s")
        if stored == "by one alone":
            digested = head.digest
        else:
            topic.confirm(confirmation(head, "publisher"))
    with capture_logs() as lines:
        cluster.apply(confirmation_of(cluster, digested))
        assert reader.replica.read_barrier(LONG_S).epoch == cluster.state.epoch
        reader.agreement.join(LONG_S)
    assert reader.replica.halted is None
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["digest_unfounded"]
    reader.replica.stop()
