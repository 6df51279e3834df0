"""The metadata log of a CDC consumer: the consumer stores its view of the log with its own position."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ringlog.client.cdc.errors import TablesForgotten
from ringlog.client.cdc.schema import SchemaFollower
from ringlog.client.cdc.stores import log_record_of
from ringlog.kernel.commands.cluster.cluster import InitializeCluster, Noop
from ringlog.kernel.commands.cluster.truncation import ConfirmSnapshot, TruncateLog
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, DropTable
from ringlog.kernel.commands.topology.movements import Join
from ringlog.kernel.values import Column, Replication
from ringlog.log.errors import LogDamaged, LogError
from ringlog.log.folding import Start
from ringlog.log.port import MetadataLog
from ringlog.log.replicas.identity import KnownEpoch, MemoryIdentityStore, record_from_json, record_to_json
from ringlog.log.replicas.replay import Replay
from ringlog.log.replicas.start_point import SnapshotTopic, StartPointFinder
from ringlog.wire.records import StoredSnapshot
from tests.fuzz.world import SEED, next_steps, node
from tests.kernel.entries import TABLE
from tests.log.test_identity import World
from tests.log.test_snapshots import Cluster
from tests.refusals import raises_code


def test_rows_are_not_read_with_tables_of_another_history(tmp_path: Path) -> None:
    world, record = World(), log_record_of(tmp_path / "place")
    world.grow(8)
    for _ in range(2):
        SchemaFollower("", "shop", record, world.log).start().close()
    world.grow(3)
    SchemaFollower("", "shop", record, world.log).start().close()
    world.log.truncate(5)
    world.grow(20, seed=b"after the power cut")
    with raises_code(LogError, "log_forked"):
        SchemaFollower("", "shop", record, world.log).start()
    SchemaFollower("", "shop", log_record_of(tmp_path / "another"), world.log).start().close()


def test_the_log_view_is_stored_with_the_position() -> None:
    """Spark stores the view as text in its offset, from one start of a query to the next."""
    world, first = World(), MemoryIdentityStore("the checkpoint")
    world.grow(8)
    SchemaFollower("", "shop", first, world.log).start().close()
    assert first.recorded is not None
    kept = record_to_json(first.recorded)
    world.grow(3)
    again = MemoryIdentityStore("the checkpoint", record_from_json(kept, "the checkpoint"))
    SchemaFollower("", "shop", again, world.log).start().close()
    assert again.recorded is not None
    assert again.recorded.position == world.log.end_offset()
    world.log.truncate(5)
    world.grow(20, seed=b"after the power cut")
    with raises_code(LogError, "log_forked", match="according to the checkpoint"):
        SchemaFollower(
            "", "shop", MemoryIdentityStore("the checkpoint", record_from_json(kept, "it")), world.log
        ).start()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"topic_id": 3, "position": 1}', '{"topic_id": "", "position": -1}'])
def test_a_position_with_other_content_is_rejected(text: str) -> None:
    with pytest.raises(LogDamaged, match="the checkpoint"):
        record_from_json(text, "the checkpoint")


def test_a_truncated_log_reports_its_missing_epochs() -> None:
    cluster, made = with_an_altered_table()
    head = let_go(cluster)
    whole, late = oldest(cluster), following(cluster)
    cluster.log.delete_before(head.position - 1)
    later = following(cluster)
    for follower in (whole, late, later):
        assert follower.at("ks.t", head.epoch) == follower.at("ks.t", 0)
        assert follower.at("ks.t", head.epoch - 1) == follower.at("ks.t", 0)
    assert whole.at("ks.t", made) != whole.at("ks.t", 0)
    for follower in (late, later):
        with pytest.raises(TablesForgotten, match=f"ks.t at epoch {made}"):
            follower.at("ks.t", made)
    for follower in (whole, late, later):
        follower.close()


def test_the_past_is_replayed_once_if_a_row_needs_it() -> None:
    """The replay starts with the newest snapshot; older versions come from the log or from the oldest snapshot."""
    cluster, made = with_an_altered_table()
    let_go(cluster)
    second = cluster.taken[0].state.epoch
    cluster.apply(AlterTable("ks", "t", (Column("later", "int"),)), DropTable("ks", "t"))
    head = cluster.store("publisher")
    begun: list[int] = []
    for first in (0, second):
        looks = Looks(cluster, begun)
        follower = SchemaFollower(
            "", "c", metadata=cluster.log, start_finder=cluster.start_finder(), past=looks
        ).start()
        cluster.apply(Noop())
        assert follower.at("ks.t", head.epoch) is None
        assert begun == []
        assert follower.table_versions.began == head.epoch
        assert follower.at("ks.t", head.epoch - 1) is None
        with_later = follower.at("ks.t", head.epoch - 2)
        assert with_later is not None
        assert [column.name for column in with_later.columns][-2:] == ["more", "later"]
        if first == 0:
            at_first = follower.at("ks.t", made)
            assert at_first is not None
            assert "more" not in [column.name for column in at_first.columns]
        else:
            with pytest.raises(TablesForgotten):
                follower.at("ks.t", made)
        assert begun == [first]
        begun.clear()
        follower.close()
        cluster.log.delete_before(cluster.taken[0].position - 1)


def test_a_long_look_back_reports_its_progress() -> None:
    cluster, made = with_an_altered_table()
    let_go(cluster)
    told, now = list[Replay](), [0.0]

    def hours() -> float:
        now[0] += 3
        return now[0]

    looks = Looks(cluster, [])
    follower = SchemaFollower(
        "",
        "c",
        metadata=cluster.log,
        start_finder=cluster.start_finder(),
        past=looks,
        on_progress=told.append,
        clock=hours,
    ).start()
    told.clear()
    assert follower.at("ks.t", made) is not None
    follower.close()
    assert len(told) > 3
    assert [one.position for one in told] == sorted(one.position for one in told)
    assert told[0].position < told[0].end == told[-1].position == cluster.taken[-1].position
    assert told[-1].epoch == cluster.taken[-1].state.epoch
    assert "newest snapshot" in str(told[0])


def with_an_altered_table() -> tuple[Cluster, int]:
    """Return the log with an altered table, and the epoch of the table's first version.

    The state no longer contains that version.
    """
    cluster = Cluster()
    cluster.apply(InitializeCluster("c"), node(1), Join(node(1).id, (5,), SEED))
    while steps := next_steps(cluster.state, 10**9):
        cluster.apply(steps[0])
    cluster.apply(CreateKeyspace("ks", Replication("simple", 1)), TABLE)
    made = cluster.state.epoch
    cluster.apply(AlterTable("ks", "t", (Column("more", "int"),)))
    return cluster, made


def let_go(cluster: Cluster) -> StoredSnapshot:
    """Create a snapshot, and let the log start there."""
    head = cluster.store("publisher")
    said = head.epoch, head.state_id, head.position, head.digest
    cluster.apply(ConfirmSnapshot(*said, ("keeper", "publisher")), TruncateLog(head.epoch))
    return head


class Looks(StartPointFinder):
    """Start as early as the log allows and record the epoch of each look-back."""

    def __init__(self, cluster: Cluster, begun: list[int]) -> None:
        super().__init__(lambda: SnapshotTopic(cluster.records), oldest=True)
        self._begun = begun

    def start(
        self, metadata: MetadataLog, identity: str, known_epochs: Callable[[str], tuple[KnownEpoch, ...]]
    ) -> Start:
        found = super().start(metadata, identity, known_epochs)
        self._begun.append(found.state.epoch)
        return found


def oldest(cluster: Cluster) -> SchemaFollower:
    return SchemaFollower("", "c", metadata=cluster.log, start_finder=Looks(cluster, [])).start()


def following(cluster: Cluster) -> SchemaFollower:
    return SchemaFollower(
        "", "c", metadata=cluster.log, start_finder=cluster.start_finder(), past=Looks(cluster, [])
    ).start()
