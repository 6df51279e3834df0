"""Recovery from a clock that was ahead: unused timestamps in the log can be lowered."""

import pytest

from ringlog.kernel.changes import diff
from ringlog.kernel.commands.cdc.clock import LowerCdcWriter, LowerSettledTime, WithdrawCdcGeneration
from ringlog.kernel.commands.cdc.generations import CloseCdcGeneration
from ringlog.kernel.commands.cdc.verdicts import SettleVerdicts
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, FenceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.cluster.cluster import ChangeSettings
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, DropTable
from ringlog.kernel.generations.admission import rules_of, verdict
from ringlog.kernel.generations.describe import to_prepare
from ringlog.kernel.invariants.check import violations
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.model.tables import PastLeeway
from ringlog.kernel.schema.table_versions import NAMED_US
from ringlog.kernel.sections import CDC_GENERATIONS, CDC_STREAMS
from ringlog.kernel.values import Column, Replication, replace
from ringlog.wire.records import Mutation
from tests.kernel.commands.test_cdc import FIRST, SECOND, code, joined, joining, with_data, writer
from tests.kernel.entries import SEED, TABLE, applied, founded, uuid

FAR = 1_000_000
GONE = FenceCdcWriter("w", FIRST, (), "its clock was ahead")
LOWER = LowerCdcWriter("w", FIRST, 300, "no write was appended later")


@pytest.fixture(scope="module")
def ahead() -> ClusterState:
    """Two generations, of 100 and 200, and a writer with a lease far in the future."""
    state = joined(joined(founded(), 1, 100, -1000, 1000), 2, 200, 0)
    return applied(state, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, FAR, 150))


def test_the_lease_of_a_fenced_writer_can_be_lowered(ahead: ClusterState) -> None:
    fenced = applied(ahead, GONE)
    waiting, commit = with_data(joining(fenced, 3, 5))
    near = replace(commit, timestamp=400)
    assert code(waiting, near) == "timestamp_not_above_horizon"
    lowered = applied(waiting, LOWER)
    assert (writer(lowered).horizon, writer(lowered).floor) == (300, 100)
    assert applied(lowered, near).generations[-1].timestamp == 400
    again = writer(applied(lowered, RegisterCdcWriter("w", SECOND)))
    assert (again.horizon, again.floor, again.fenced) == (300, 300, None), "the name returns with the lowered values"


def test_lowering_the_lease_of_an_active_writer_is_rejected(ahead: ClusterState) -> None:
    assert code(ahead, LOWER) == "writer_not_fenced"
    fenced = applied(ahead, GONE)
    assert code(fenced, replace(LOWER, writer="v")) == "unknown_writer"
    assert code(fenced, replace(LOWER, incarnation=SECOND)) == "stale_incarnation"
    assert code(fenced, replace(LOWER, reason="")) == "bad_field"
    assert code(fenced, replace(LOWER, horizon=-1)) == "bad_field"
    assert code(fenced, replace(LOWER, horizon=FAR + 1)) == "horizon_not_lower"
    assert code(fenced, replace(LOWER, horizon=149)) == "horizon_below_low_watermark"
    assert applied(fenced, replace(LOWER, horizon=FAR)).writers == fenced.writers
    assert code(applied(fenced, RegisterCdcWriter("w", SECOND)), LOWER) == "stale_incarnation"


def withdrawal(state: ClusterState) -> WithdrawCdcGeneration:
    return WithdrawCdcGeneration(state.generations[-1].id, SEED, "committed by a clock that was ahead")


@pytest.fixture(scope="module")
def committed_far() -> ClusterState:
    """A generation of 100 and one far in the future, created by a join that has ended."""
    state = applied(joined(founded(), 1, 100, -1000, 1000), RegisterCdcWriter("w", FIRST))
    return joined(state, 2, FAR, 0)


def test_a_generation_far_in_the_future_is_replaced(committed_far: ClusterState) -> None:
    far = committed_far.generations[-1]
    waiting, commit = with_data(joining(committed_far, 3, 5))
    near = replace(commit, timestamp=400)
    assert code(waiting, near) == "timestamp_not_above_previous"
    gone = applied(waiting, withdrawal(waiting))
    assert [one.timestamp for one in gone.generations] == [100]
    assert gone.prepared == waiting.prepared, "the prepared generation covers all tokens"
    assert applied(gone, near).generations[-1].timestamp == 400
    records = {(record.topic, record.key) for record in diff(waiting, gone) if record.value is None}
    assert (CDC_GENERATIONS, far.id) in records
    assert {(CDC_STREAMS, f"{far.id}/{described.end}") for described in far.ranges} <= records

    alone = applied(committed_far, withdrawal(committed_far))
    prepared = to_prepare(alone)
    assert prepared is not None, "the tokens of the joined node need streams"
    assert prepared[0] != far.id


def test_a_generation_in_use_cannot_be_withdrawn(committed_far: ClusterState) -> None:
    first, _ = committed_far.generations
    assert code(committed_far, replace(withdrawal(committed_far), generation=first.id)) == "generation_not_last"
    assert code(committed_far, replace(withdrawal(committed_far), generation="none")) == "unknown_generation"
    assert code(committed_far, replace(withdrawal(committed_far), reason="")) == "bad_field"
    assert code(committed_far, replace(withdrawal(committed_far), seed=b"")) == "bad_field"
    promised = applied(committed_far, AdvanceCdcWriter("w", FIRST, FAR + 1, 100))
    assert code(promised, withdrawal(promised)) == "generation_in_use", "it may have routed a write at its start"
    fenced = applied(promised, replace(GONE, incarnation=FIRST))
    assert code(fenced, withdrawal(fenced)) == "generation_in_use"
    lowered = applied(fenced, LOWER)
    assert applied(lowered, withdrawal(lowered)).generations == (first,), "until it is known that it has not"
    done = applied(committed_far, AdvanceCdcWriter("w", FIRST, FAR, FAR))
    assert code(done, withdrawal(done)) == "generation_in_use", "it has passed the previous generation"
    closed = applied(lowered, CloseCdcGeneration(first.id, unwatched=True))
    assert code(closed, withdrawal(closed)) == "generation_in_use", "consumers may read it"


def test_a_generation_of_an_operation_cannot_be_withdrawn() -> None:
    state = joined(founded(), 1, 100, -1000, 1000)
    waiting, commit = with_data(joining(state, 2, 5))
    far = applied(waiting, replace(commit, timestamp=FAR))
    assert code(far, withdrawal(far)) == "generation_in_use"


NEAR = LowerSettledTime(300, "no write was appended later")
WRITE = Mutation(None, None, "ks", "t", 350, None, "UPDATE", (b"a",), (b"\0\0\0\1",), ())


@pytest.fixture(scope="module")
def settled_far() -> ClusterState:
    """The validation watermark is far in the future, and later decisions count from there."""
    state = joined(founded(), 1, 100, -1000, 1000)
    state = applied(state, CreateKeyspace("ks", Replication("simple", 1)), SettleVerdicts(FAR), TABLE)
    state = applied(state, AlterTable("ks", "t", (Column("later", "int"),), None))
    return applied(state, ChangeSettings((("cdc_leeway_us", 7),)), ChangeSettings((("cdc_leeway_us", 8),)))


def test_the_validation_watermark_can_be_lowered(settled_far: ClusterState) -> None:
    judged = verdict(rules_of(settled_far), WRITE, 350)
    assert judged is not None
    assert judged.code == "unknown_table"
    waiting, commit = with_data(joining(settled_far, 2, 5))
    assert code(waiting, replace(commit, timestamp=400)) == "timestamp_not_above_horizon"
    near = applied(waiting, NEAR)
    assert applied(near, replace(commit, timestamp=400)).generations[-1].timestamp == 400
    assert violations(near) == violations(near, waiting) == ()
    (lifetime,) = near.table_lives["ks.t"]
    assert [(one.since, one.end) for one in lifetime.versions] == [(300, 300 + NAMED_US), (300, None)]
    assert near.settled.leeways == (PastLeeway(5_000_000, 300),)
    before = rules_of(waiting)
    assert verdict(rules_of(near, (waiting, before)), WRITE, 350) is None, "too early"
    later = applied(near, SettleVerdicts(500))
    read = verdict(rules_of(later, (near, rules_of(near))), WRITE, 350)
    assert read is not None
    assert (read.code, read.version and read.version.id) == ("", TABLE.id)


def test_a_short_lived_table_above_the_lowered_watermark_is_removed(settled_far: ClusterState) -> None:
    dropped = applied(settled_far, SettleVerdicts(FAR + 9), DropTable("ks", "t"))
    assert [lifetime.until for lifetime in dropped.table_lives["ks.t"]] == [FAR + 9]
    assert "ks.t" not in applied(dropped, NEAR).table_lives
    again = applied(dropped, replace(TABLE, id=uuid(9, space=4)), NEAR)
    assert [lifetime.versions[0].table.id for lifetime in again.table_lives["ks.t"]] == [uuid(9, space=4)]
    assert violations(again) == ()


def test_the_validation_watermark_stays_above_past_decisions(settled_far: ClusterState) -> None:
    assert code(founded(), NEAR) == "settled_not_lower"
    assert code(settled_far, replace(NEAR, until=FAR)) == "settled_not_lower"
    assert code(settled_far, replace(NEAR, until=0)) == "bad_field"
    assert code(settled_far, replace(NEAR, reason="")) == "bad_field"
    durable = applied(settled_far, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, 300, 300))
    forgotten = applied(durable, SettleVerdicts(FAR, 300))
    assert code(forgotten, NEAR) == "settled_too_low"
    assert applied(forgotten, replace(NEAR, until=301)).settled.until == 301
    promised = applied(settled_far, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, FAR, 150))
    assert code(promised, NEAR) == "settled_too_low"
    fenced = applied(promised, GONE)
    assert code(fenced, NEAR) == "settled_too_low", "the decision is outside the watermark"
    assert applied(fenced, LOWER, NEAR).settled.until == 300
