"""The end of a generation: it expires after its last row, is published as expired before its removal, and its id is not
reused.
"""

from __future__ import annotations

import numpy as np
import pytest

from ringlog.kernel.changes import GenerationChange, StreamsChange, diff, project
from ringlog.kernel.commands.cdc.expiry import ExpireCdcGeneration, ForgetCdcGeneration
from ringlog.kernel.commands.cdc.generations import (
    CloseCdcGeneration,
    CommitCdcGeneration,
    PublishCdcGeneration,
    PutCdcGenerationData,
)
from ringlog.kernel.commands.cdc.writers import AdvanceCdcWriter, FenceCdcWriter, RegisterCdcWriter
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import AlterTable, DropTable
from ringlog.kernel.generations.admission import rules_of
from ringlog.kernel.generations.describe import ranges_digest
from ringlog.kernel.generations.expiry import log_retention, past_ttls
from ringlog.kernel.generations.vectors import StreamTable
from ringlog.kernel.model.state import ClusterState, PastTtl
from ringlog.kernel.sections import CDC_GENERATIONS, CDC_STREAMS
from ringlog.kernel.values import SECOND_US, CdcOptions, Command, Position, Replication, replace
from tests.kernel.commands.test_cdc import FIRST, LOGGED, SECOND, code, joined, joining, with_data, writer
from tests.kernel.entries import applied, founded

CLOSED_AT = 5_000
TTL_US = 60 * SECOND_US
"""The time to live of the CDC rows of table ``LOGGED``."""
END = CLOSED_AT + TTL_US


def closed_state(*tables: Command) -> ClusterState:
    """Return two generations, of 100 and 200, the first sealed at 5,000, and a CDC table changed by ``tables``."""
    state = joined(founded(), 1, 100, -1000, 1000)
    state = applied(state, CreateKeyspace("ks", Replication("simple", 1)), LOGGED, *tables)
    state = joined(state, 2, 200, 0)
    state = applied(state, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, 300, 200))
    return applied(state, CloseCdcGeneration(state.generations[0].id, closed_at=CLOSED_AT))


@pytest.fixture(scope="module")
def closed() -> ClusterState:
    return closed_state()


def expiry(state: ClusterState, at: int) -> ExpireCdcGeneration:
    return ExpireCdcGeneration(state.generations[0].id, at)


def test_a_generation_expires_with_its_last_row(closed: ClusterState) -> None:
    first, second = closed.generations
    assert first.closed_at == CLOSED_AT
    assert code(closed, expiry(closed, END - 1)) == "retention_not_over"
    assert code(closed, expiry(closed, 0)) == "bad_field"
    assert code(closed, ExpireCdcGeneration("another", END)) == "unknown_generation"
    assert code(closed, ExpireCdcGeneration(second.id, END)) == "generation_not_closed"
    assert code(closed, ForgetCdcGeneration(first.id)) == "generation_not_expired"
    assert code(closed, ForgetCdcGeneration("another")) == "unknown_generation"
    expired = applied(closed, expiry(closed, END))
    found = expired.generations[0]
    assert (found.status, found.expired, found.expired_at, found.ranges) == (
        "expired",
        expired.epoch,
        END,
        first.ranges,
    )
    assert code(expired, expiry(closed, END + 1)) == "generation_expired"
    assert code(expired, CloseCdcGeneration(first.id)) == "generation_closed"


def test_retention_counts_from_the_next_start_if_later(closed: ClusterState) -> None:
    first = replace(closed.generations[0], closed_at=10)
    state = replace(closed, generations=(first, closed.generations[1]))
    assert code(state, expiry(state, 200 + TTL_US - 1)) == "retention_not_over"
    applied(state, expiry(state, 200 + TTL_US))


def altered(ttl: int, enabled: bool = True) -> AlterTable:
    return AlterTable("ks", "logged", (), CdcOptions(enabled=enabled, ttl=ttl))


@pytest.mark.parametrize(
    ("tables", "seconds"),
    [
        ((), 60),
        ((altered(90),), 90),
        ((altered(30),), 60),
        ((altered(90), altered(30)), 90),
        ((DropTable("ks", "logged"),), 60),
        ((altered(600, enabled=False),), 60),
        ((altered(90), DropTable("ks", "logged")), 90),
        ((altered(0),), None),
        ((altered(0), altered(30)), None),
        ((altered(0), DropTable("ks", "logged")), None),
    ],
)
def test_the_longest_time_to_live_counts(tables: tuple[Command, ...], seconds: int | None) -> None:
    state = closed_state(*tables)
    assert log_retention(state) == seconds
    if seconds is None:
        assert code(state, expiry(state, 2**50)) == "retention_not_over"
        return
    end = CLOSED_AT + seconds * SECOND_US
    assert code(state, expiry(state, end - 1)) == "retention_not_over"
    applied(state, expiry(state, end))


def test_a_generation_keeps_its_longest_time_to_live() -> None:
    assert log_retention(founded()) == 0
    state = joined(founded(), 1, 100, -1000, 1000)
    state = applied(state, CreateKeyspace("ks", Replication("simple", 1)), LOGGED, altered(0), altered(30))
    assert log_retention(state) is None
    state = joined(state, 2, 200, 0)
    assert log_retention(state) is None, "rows of the first generation never expire"
    first, *others = state.generations
    gone = replace(state, generations=(replace(first, expired=state.epoch), *others))
    assert log_retention(gone) == 30
    assert log_retention(replace(gone, generations=(gone.generations[0],))) == 30, "of later rows"


def test_times_to_live_before_the_commit_do_not_count() -> None:
    """Rows of that time belong to earlier generations, and the state keeps no unneeded time to live."""
    state = joined(founded(), 1, 100, -1000, 1000)
    state = applied(state, CreateKeyspace("ks", Replication("simple", 1)), LOGGED, altered(0), altered(30))
    assert state.past_ttls == (PastTtl(0, state.epoch),), "this one outlasts the 60 s that ended before"
    state = joined(state, 2, 200, 0)
    state = applied(state, altered(20))
    assert [entry.ttl for entry in state.past_ttls] == [30, 0]
    state = joined(state, 3, 300, 50)
    state = applied(state, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, 400, 300))
    first, second, _ = (generation.id for generation in state.generations)
    state = applied(state, CloseCdcGeneration(first, closed_at=5), CloseCdcGeneration(second, closed_at=5))
    assert code(state, ExpireCdcGeneration(first, 2**50)) == "retention_not_over", "one of its rows never expires"
    assert code(state, ExpireCdcGeneration(second, 300 + 30 * SECOND_US - 1)) == "retention_not_over"
    state = applied(state, ExpireCdcGeneration(second, 300 + 30 * SECOND_US))
    assert [entry.ttl for entry in state.past_ttls] == [30, 0], "the first generation still needs them"


def test_a_shorter_time_to_live_is_not_stored(closed: ClusterState) -> None:
    table = closed.tables["ks.logged"]
    known: tuple[PastTtl, ...] = ()
    for epoch, ttl in ((1, 10), (2, 50), (3, 20), (4, 20), (5, 30), (6, 5)):
        known = past_ttls(known, replace(table, cdc=replace(table.cdc, ttl=ttl)), None, epoch)
    assert known == (PastTtl(5, 6), PastTtl(30, 5), PastTtl(50, 2))
    assert past_ttls(known, replace(table, cdc=replace(table.cdc, ttl=0)), None, 7) == (PastTtl(0, 7),)
    assert past_ttls(known, table, table, 8) is known


def test_expired_streams_are_marked_then_deleted(closed: ClusterState) -> None:
    first = closed.generations[0]
    expired = applied(closed, expiry(closed, END))
    marked = {(one.topic, one.key): one.value for one in diff(closed, expired)}
    keys = {(CDC_STREAMS, f"{first.id}/{described.end}") for described in first.ranges}
    assert {key for key in marked if key[0] == CDC_STREAMS} == keys
    assert all(isinstance(marked[key], StreamsChange) and marked[key].expired == END for key in keys)  # type: ignore[union-attr]
    told = marked[CDC_GENERATIONS, first.id]
    assert isinstance(told, GenerationChange)
    assert (told.status, told.expired) == ("expired", END)
    forgotten = applied(expired, ForgetCdcGeneration(first.id))
    deleted = {(one.topic, one.key): one.value for one in diff(expired, forgotten)}
    assert {key for key, value in deleted.items() if value is None} == keys
    rest = project(forgotten)[CDC_GENERATIONS, first.id]
    assert isinstance(rest, GenerationChange)
    assert (rest.ranges, rest.streams, rest.digest) == (told.ranges, told.streams, ranges_digest(first.ranges))
    assert not keys & project(forgotten).keys()


def test_a_removed_generation_still_rejects_late_writes(closed: ClusterState) -> None:
    first = closed.generations[0]
    state = applied(closed, expiry(closed, END), ForgetCdcGeneration(first.id))
    assert state.generations[0].ranges == ()
    assert code(state, ForgetCdcGeneration(first.id)) == "generation_forgotten"
    assert code(state, PutCdcGenerationData(first.id, 0, 1, first.ranges)) == "generation_exists"
    assert code(state, CommitCdcGeneration(first.id, 900, "")) == "generation_exists"
    assert code(state, PublishCdcGeneration(first.id)) == "generation_published"
    assert rules_of(state).starts == rules_of(closed).starts == (100, 200)
    assert applied(state, RegisterCdcWriter("late", FIRST)).writers["late"].low_watermark == 200
    table = StreamTable([generation.ranges for generation in state.generations])
    whole = StreamTable([closed.generations[1].ranges])
    assert (table.streams == whole.streams).all()
    with pytest.raises(IndexError, match="pruned"):
        table.locate(np.array([5]), 0)


# Permanent loss of a writer: the effect of its fence, and its remaining record.


@pytest.fixture(scope="module")
def two() -> ClusterState:
    """Generations of 100 and 200, and a table with CDC."""
    state = joined(founded(), 1, 100, -1000, 1000)
    return joined(applied(state, CreateKeyspace("ks", Replication("simple", 1)), LOGGED), 2, 200, 0)


GONE = FenceCdcWriter("w", FIRST, (Position(0, 50), Position(1, 7)), "its host burnt down")


def test_a_fence_ends_an_incarnation_permanently(two: ClusterState) -> None:
    state = applied(two, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, 500, 150, (Position(0, 9),)))
    assert code(state, replace(GONE, writer="v")) == "unknown_writer"
    assert code(state, replace(GONE, incarnation=SECOND)) == "stale_incarnation"
    assert code(state, replace(GONE, reason="")) == "bad_field"
    assert code(state, replace(GONE, positions=(Position(0, 8),))) == "positions_went_back"
    fenced = applied(state, GONE)
    found = writer(fenced)
    assert (found.fenced, found.fence_reason, found.horizon) == (fenced.epoch, GONE.reason, 500)
    assert found.positions == (Position(0, 50), Position(1, 7))
    assert code(fenced, GONE) == "writer_fenced"
    assert code(fenced, AdvanceCdcWriter("w", FIRST, 600, 150)) == "writer_fenced"
    assert code(fenced, RegisterCdcWriter("w", FIRST)) == "incarnation_reused"


def test_a_fenced_writer_does_not_block_sealing(two: ClusterState) -> None:
    first, second = (generation.id for generation in two.generations)
    state = applied(two, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, 500, 150))
    state = applied(state, RegisterCdcWriter("v", FIRST), AdvanceCdcWriter("v", FIRST, 250, 200, (Position(0, 60),)))
    assert code(state, CloseCdcGeneration(first)) == "writers_behind"
    fenced = applied(state, GONE)
    closed = applied(fenced, CloseCdcGeneration(first))
    assert closed.generations[0].positions == (Position(0, 60), Position(1, 7)), "its rows are read, too"
    finer, commit = with_data(joining(closed, 3, 5))
    assert code(finer, replace(commit, timestamp=500)) == "timestamp_not_above_horizon"
    assert code(closed, CloseCdcGeneration(second)) == "next_generation_not_committed"


def test_a_generation_of_fenced_writers_only_has_no_log(two: ClusterState) -> None:
    first = two.generations[0].id
    state = applied(two, RegisterCdcWriter("w", FIRST), GONE)
    assert code(state, CloseCdcGeneration(first)) == "no_writers"
    done = applied(two, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, 500, 200), GONE)
    assert applied(done, CloseCdcGeneration(first)).generations[0].status == "closed", "it had passed the generation"


def test_a_fenced_writer_restarts_at_the_oldest_open_generation(two: ClusterState) -> None:
    state = applied(two, RegisterCdcWriter("w", FIRST), AdvanceCdcWriter("w", FIRST, 500, 200), GONE)
    again = writer(applied(state, RegisterCdcWriter("w", SECOND)))
    assert (again.fenced, again.fence_reason, again.ended) == (None, "", (FIRST,))
    assert (again.horizon, again.floor, again.low_watermark) == (500, 500, 100), "the lease of the fenced writer counts"
    assert again.positions == GONE.positions
    closed = applied(state, CloseCdcGeneration(two.generations[0].id))
    assert writer(applied(closed, RegisterCdcWriter("w", SECOND))).low_watermark == 200
    low = applied(two, RegisterCdcWriter("w", FIRST), GONE, CloseCdcGeneration(two.generations[0].id, unwatched=True))
    raised = writer(applied(low, RegisterCdcWriter("w", SECOND)))
    assert (raised.horizon, raised.floor, raised.low_watermark) == (200, 200, 200)
    state = applied(state, RegisterCdcWriter("w", SECOND))
    assert code(state, AdvanceCdcWriter("w", FIRST, 600, 200)) == "stale_incarnation"
