"""How many copies topics get, and which settings are refused: without a broker."""

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
def test_copies_that_are_clear(up: int, others: int, wanted: int | None, copies: tuple[int, int]) -> None:
    assert choose_profile(up, others, wanted) == TopicProfile(*copies)


@pytest.mark.parametrize(("up", "others", "wanted"), [(2, 0, None), (2, 1, None), (1, 2, None), (2, 0, 3), (3, 0, 0)])
def test_a_broker_that_is_down_makes_no_cluster_of_single_copies(up: int, others: int, wanted: int | None) -> None:
    with pytest.raises(CopiesUndecided, match="--replication"):
        choose_profile(up, others, wanted)


class LateHeartbeats(AdminClient):
    """Of one broker, which answers, but is up for the controller at the third look only."""

    def __init__(self) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1", "log_level": 2})
        self.looks = 0

    def list_topics(self, *_: object, **__: object) -> ClusterMetadata:
        self.looks += 1
        known = ClusterMetadata()
        known.topics = {}
        known.brokers = {} if self.looks < 3 else {1: BrokerMetadata()}
        return known


def test_a_broker_that_answers_and_is_not_up_yet_is_waited_for() -> None:
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
def test_any_two_choices_of_acknowledging_copies_share_one(copies: int, insync: str) -> None:
    checked(copies, insync)
    assert copies < 3 or 2 * min_insync_of(copies) > copies


@pytest.mark.parametrize(
    ("copies", "insync", "wanted"), [(1, "2", "1"), (3, "1", "2"), (3, "4", "2"), (5, "2", "3"), (3, "absent", "2")]
)
def test_too_few_and_too_many_are_refused_with_the_command(copies: int, insync: str, wanted: str) -> None:
    """Also a topic of three copies, two to acknowledge, that was left with one."""
    with pytest.raises(TopicMisconfigured, match=f"--add-config min.insync.replicas={wanted}"):
        checked(copies, insync)


def test_every_topic_with_times_of_our_own_takes_any() -> None:
    clock = "message.timestamp.after.max.ms"
    assert [spec.suffix for spec in TOPICS if not spec.at_least] == ["load", "mutations"]
    assert clock in ANY_CLOCK
    with pytest.raises(TopicMisconfigured, match=f"{clock} is 3600000"):
        checked(1, "1", message_timestamp_after_max_ms="3600000")


def test_what_a_start_reads_whole_does_not_grow_for_a_week() -> None:
    """A publisher that takes over reads every change topic: no compacted topic keeps what it replaces but ``schemas``,
    which has a record for each schema that ever was.
    """
    compacted = [spec for spec in TOPICS if spec.required["cleanup.policy"] == "compact"]
    slow = {spec.suffix for spec in compacted if int(spec.at_most.get("segment.ms", "604800000")) > 600_000}
    assert slow == {"schemas"}


def test_consumers_that_go_on_where_they_were_hear_for_a_week_that_a_key_is_gone() -> None:
    """However soon topics are compacted: by default such a record goes after a day."""
    initial = {spec.suffix: spec.initial.get("delete.retention.ms") for spec in TOPICS}
    assert {initial[suffix] for suffix in CHANGE_TOPICS} == {str(7 * 86_400_000)}


def test_what_nobody_deletes_is_deleted_by_the_broker() -> None:
    """Every topic is compacted, or loses what is older than a week, but those whose length is somebody's decision: the
    log is truncated, rejections are deleted by the validator, dead letters are the operator's.
    """
    week = str(7 * 86_400_000)
    kept = {spec.suffix for spec in TOPICS if spec.required["cleanup.policy"] != "compact"}
    limited = {spec.suffix for spec in TOPICS if spec.initial.get("retention.ms") == week}
    assert kept - limited == {"metadata", "results", "dead-letters"}
