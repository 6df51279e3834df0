"""Replication factors and settings of topics, without a broker."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, BrokerMetadata, ClusterMetadata

from ringlog.kernel.changes import CHANGE_TOPICS
from ringlog.log.errors import CopiesUndecided, TopicMisconfigured
from ringlog.log.kafka.topics import (
    ANY_CLOCK,
    METADATA,
    TOPICS,
    FoundTopic,
    TopicProfile,
    _check,
    choose_profile,
    min_insync_of,
    profile_of,
)


@pytest.mark.parametrize(
    ("up", "others", "wanted", "copies"),
    [
        (1, 0, None, (1, 1)),
        (3, 0, None, (3, 2)),
        (5, 1, None, (3, 2)),
        (2, 0, 2, (2, 2)),
        (2, 1, 1, (1, 1)),
        (5, 0, 5, (5, 3)),
    ],
)
def test_a_clear_number_of_copies_is_chosen(up: int, others: int, wanted: int | None, copies: tuple[int, int]) -> None:
    assert choose_profile(up, others, wanted) == TopicProfile(*copies)


@pytest.mark.parametrize(("up", "others", "wanted"), [(2, 0, None), (2, 1, None), (1, 2, None), (2, 0, 3), (3, 0, 0)])
def test_a_down_broker_does_not_reduce_the_copies(up: int, others: int, wanted: int | None) -> None:
    with pytest.raises(CopiesUndecided, match="--kafka-replication"):
        choose_profile(up, others, wanted)


class LateHeartbeats(AdminClient):
    """One broker that answers, but that the controller lists only at the third check."""

    def __init__(self) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1", "log_level": 2})
        self.looks = 0

    def list_topics(self, *_: object, **__: object) -> ClusterMetadata:
        self.looks += 1
        known = ClusterMetadata()
        known.topics = {}
        known.brokers = {} if self.looks < 3 else {1: BrokerMetadata()}
        return known


def test_a_starting_broker_is_waited_for() -> None:
    admin = LateHeartbeats()
    assert profile_of(admin, "t") == TopicProfile(1, 1)
    assert admin.looks == 3


def checked(copies: int, insync: str, **changed: str) -> None:
    settings = {**METADATA.required, **METADATA.at_least, "min.insync.replicas": insync}
    settings |= {key.replace("_", "."): value for key, value in changed.items()}
    _check(METADATA, FoundTopic("t.metadata", "", 1, copies, True), settings, "b:1")


@pytest.mark.parametrize(
    ("copies", "insync"), [(1, "1"), (2, "1"), (2, "2"), (3, "2"), (3, "3"), (4, "3"), (5, "3"), (5, "4")]
)
def test_any_two_acknowledging_sets_overlap(copies: int, insync: str) -> None:
    checked(copies, insync)
    assert copies < 3 or 2 * min_insync_of(copies) > copies


@pytest.mark.parametrize(
    ("copies", "insync", "wanted"), [(1, "2", "1"), (3, "1", "2"), (3, "4", "2"), (5, "2", "3"), (3, "absent", "2")]
)
def test_too_few_and_too_many_are_refused_with_the_command(copies: int, insync: str, wanted: str) -> None:
    """A topic of three copies with two acknowledgements that now has one copy is refused too."""
    with pytest.raises(TopicMisconfigured, match=f"--add-config min.insync.replicas={wanted}"):
        checked(copies, insync)


def test_every_topic_with_own_timestamps_accepts_any_timestamp() -> None:
    clock = "message.timestamp.after.max.ms"
    assert [spec.suffix for spec in TOPICS if not spec.at_least] == ["load", "mutations"]
    assert clock in ANY_CLOCK
    with pytest.raises(TopicMisconfigured, match=f"{clock} is 3600000"):
        checked(1, "1", message_timestamp_after_max_ms="3600000")


def test_compacted_topics_remove_replaced_records_early() -> None:
    """A publisher that takes over reads every change topic, so compacted topics remove replaced records early.
    ``schemas`` is exempt: it has one record for each schema.
    """
    compacted = [spec for spec in TOPICS if spec.required["cleanup.policy"] == "compact"]
    slow = {spec.suffix for spec in compacted if int(spec.at_most.get("segment.ms", "604800000")) > 600_000}
    assert slow == {"schemas"}


def test_tombstones_stay_readable_for_a_week() -> None:
    """The period is independent of the compaction interval; by default a broker removes such a record after a day."""
    initial = {spec.suffix: spec.initial.get("delete.retention.ms") for spec in TOPICS}
    assert {initial[suffix] for suffix in CHANGE_TOPICS} == {str(7 * 86_400_000)}


def test_the_broker_deletes_all_other_old_records() -> None:
    """Every topic is compacted or drops records older than a week. Exempt are the log, which is truncated, rejections,
    which the validator deletes, and dead letters, which the operator deletes.
    """
    week = str(7 * 86_400_000)
    kept = {spec.suffix for spec in TOPICS if spec.required["cleanup.policy"] != "compact"}
    limited = {spec.suffix for spec in TOPICS if spec.initial.get("retention.ms") == week}
    assert kept - limited == {"metadata", "results", "dead-letters"}
