"""The topics of a cluster: their names, partitions and settings, how they are made, and how wrong ones are refused.

``required`` settings are what correctness rests on and are checked at every start; ``initial`` ones are only set when
the topic is made, and operators may change them. The metadata topic keeps everything, for ever, in order: no
retention by time or size, no compaction, no election of a replica that lacks acknowledged records. Its records carry
wall clocks, and a fast clock must not make the broker refuse an entry, so the limit on timestamps ahead of the
broker's clock is lifted.

Every topic with state has ``replication 3, min.insync.replicas 2`` where there are three brokers; with fewer, one
copy. A single broker acknowledges before the record is on the disk: a power cut can lose the newest ones.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from ringlog.log.errors import LogUnavailable, TopicMisconfigured, TopicMissing

RECORD_BYTES_MAX = 2 * 1024 * 1024
REPLICATION_MAX = 3
REQUEST_TIMEOUT_S = 15.0
LOOK_AGAIN_S = 0.02

_DAY_MS = 24 * 60 * 60 * 1000
_FOREVER = {"retention.ms": "-1", "retention.bytes": "-1"}
_SAFE = {"unclean.leader.election.enable": "false"}
_ANY_CLOCK = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(2**63 - 1)}
_LARGE = {"max.message.bytes": str(RECORD_BYTES_MAX)}
_DELETE = {"cleanup.policy": "delete"}
_COMPACT = {"cleanup.policy": "compact"}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic of a cluster. ``suffix`` follows the cluster's name and a dot."""

    suffix: str
    partitions: int
    required: Mapping[str, str]
    initial: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicProfile:
    """How many copies of each record there are, and how many must exist before it is acknowledged."""

    replication: int
    min_insync: int


def _compacted(suffix: str) -> TopicSpec:
    return TopicSpec(suffix, 1, _SAFE | _COMPACT, _LARGE)


METADATA = TopicSpec("metadata", 1, _SAFE | _FOREVER | _DELETE | _ANY_CLOCK | _LARGE)
REQUESTS = TopicSpec("requests", 1, _SAFE | _DELETE | _LARGE, {"retention.ms": str(7 * _DAY_MS)})
RESULTS = TopicSpec("results", 1, _SAFE | _FOREVER | _DELETE, _LARGE)
ACKS = _compacted("acks")
MUTATIONS = TopicSpec(
    "mutations",
    4,
    _SAFE | _DELETE | {"message.timestamp.type": "LogAppendTime"},
    _LARGE | {"retention.ms": str(7 * _DAY_MS)},
)
CDC = TopicSpec(
    "cdc", 8, _SAFE | _DELETE, _LARGE | _FOREVER | {"retention.ms": str(7 * _DAY_MS), "segment.ms": str(_DAY_MS)}
)
DEAD_LETTERS = TopicSpec(
    "dead-letters", 1, _SAFE | _DELETE, {"max.message.bytes": str(2 * RECORD_BYTES_MAX)} | _FOREVER
)
AGENTS = _compacted("agents")
SCHEMAS = _compacted("schemas")

CHANGE_TOPICS = ("nodes", "placements", "schema", "operations", "cdc-generations", "cdc-streams", "epochs")

TOPICS: tuple[TopicSpec, ...] = (
    METADATA,
    REQUESTS,
    RESULTS,
    ACKS,
    MUTATIONS,
    CDC,
    DEAD_LETTERS,
    AGENTS,
    SCHEMAS,
    *(_compacted(suffix) for suffix in CHANGE_TOPICS),
)


def topic_name(cluster: str, suffix: str) -> str:
    """The name of a cluster's topic, e.g. ``orders.metadata``."""
    return f"{cluster}.{suffix}"


def admin_client(bootstrap_servers: str) -> AdminClient:
    """An admin client for these functions."""
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2, "socket.nagle.disable": True})


def profile_of(admin: AdminClient) -> TopicProfile:
    """Three copies and two acknowledgements where at least three brokers are up, else one and one."""
    brokers = len(_call(admin.list_topics, timeout=REQUEST_TIMEOUT_S).brokers)
    return TopicProfile(REPLICATION_MAX, 2) if brokers >= REPLICATION_MAX else TopicProfile(1, 1)


def create_topics(
    admin: AdminClient, cluster: str, profile: TopicProfile | None = None, specs: Sequence[TopicSpec] = TOPICS
) -> tuple[str, ...]:
    """Make the topics that do not exist yet; existing ones stay as they are. Returns the names of those made.

    When it returns, every partition has a leader: a controller answers before the brokers have heard of the topic.
    Raises LogUnavailable if the broker gives no answer; calling it again goes on where it stopped.
    """
    copies = profile if profile is not None else profile_of(admin)
    wanted = [
        NewTopic(
            topic_name(cluster, spec.suffix),
            num_partitions=spec.partitions,
            replication_factor=copies.replication,
            config={**spec.initial, **spec.required, "min.insync.replicas": str(copies.min_insync)},
        )
        for spec in specs
    ]
    futures: Mapping[str, Future[None]] = _call(admin.create_topics, wanted, request_timeout=REQUEST_TIMEOUT_S)
    made = []
    for name, future in futures.items():
        try:
            future.result(timeout=REQUEST_TIMEOUT_S + 5)
            made.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise LogUnavailable(f"topic {name} could not be made: {error.args[0].str()}") from error
    _await_leaders(admin, [topic_name(cluster, spec.suffix) for spec in specs])
    return tuple(made)


def _await_leaders(admin: AdminClient, names: Sequence[str]) -> None:
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        try:
            waiting = [topic.name for topic in describe(admin, names).values() if not topic.has_leaders]
        except TopicMissing as error:
            waiting = [error.topic]
        if not waiting:
            return
        if time.monotonic() >= deadline:
            raise LogUnavailable(f"topics were made, but are not served yet: {', '.join(waiting)}", "try again")
        time.sleep(LOOK_AGAIN_S)


def verify_topics(
    admin: AdminClient, cluster: str, bootstrap_servers: str, specs: Sequence[TopicSpec] = TOPICS
) -> Mapping[str, str]:
    """Check that every topic exists with its partitions, copies and required settings; returns name -> topic id.

    Raises TopicMissing, TopicMisconfigured (the first wrong setting, and the command that mends it), LogUnavailable.
    """
    names = [topic_name(cluster, spec.suffix) for spec in specs]
    brokers = len(_call(admin.list_topics, timeout=REQUEST_TIMEOUT_S).brokers)
    described = describe(admin, names)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    configs: Mapping[ConfigResource, Future[Any]] = _call(
        admin.describe_configs, resources, request_timeout=REQUEST_TIMEOUT_S
    )
    found = {resource.name: _result(future, resource.name) for resource, future in configs.items()}
    for spec, name in zip(specs, names, strict=True):
        settings = {key: entry.value for key, entry in found[name].items()}
        _check(spec, described[name], settings, brokers, bootstrap_servers)
    return {name: described[name].topic_id for name in names}


def delete_before(admin: AdminClient, name: str, offset: int) -> None:
    """Delete the records of partition 0 before ``offset``. Raises LogUnavailable."""
    place = TopicPartition(name, 0, offset)
    futures: Mapping[Any, Future[Any]] = _call(admin.delete_records, [place], request_timeout=REQUEST_TIMEOUT_S)
    for future in futures.values():
        _result(future, name)


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as it is.

    Its id (32 hex digits), number of partitions, the smallest number of copies, whether it is served.
    """

    name: str
    topic_id: str
    partitions: int
    replication: int
    has_leaders: bool


def describe(
    admin: AdminClient, names: Sequence[str], timeout_s: float = REQUEST_TIMEOUT_S
) -> Mapping[str, FoundTopic]:
    """The topics as they are. Raises TopicMissing, LogUnavailable."""
    futures: Mapping[str, Future[Any]] = _call(
        admin.describe_topics, TopicCollection(list(names)), request_timeout=timeout_s
    )
    found = {}
    for name, future in futures.items():
        topic = _result(future, name, timeout_s)
        copies = min(len(partition.replicas) for partition in topic.partitions)
        led = all(partition.leader is not None and partition.leader.id >= 0 for partition in topic.partitions)
        found[name] = FoundTopic(name, _hex(topic.topic_id), len(topic.partitions), copies, led)
    return found


def _hex(topic_id: Any) -> str:
    high = topic_id.get_most_significant_bits() % 2**64
    low = topic_id.get_least_significant_bits() % 2**64
    return f"{high:016x}{low:016x}"


def _check(
    spec: TopicSpec, topic: FoundTopic, settings: Mapping[str, str], brokers: int, bootstrap_servers: str
) -> None:
    if topic.partitions != spec.partitions:
        mend = "none: partitions cannot be taken away; found the cluster anew under another name"
        if topic.partitions < spec.partitions:
            change = f"--topic {topic.name} --partitions {spec.partitions}"
            mend = f"kafka-topics.sh --bootstrap-server {bootstrap_servers} --alter {change}"
        raise TopicMisconfigured(topic.name, "partitions", str(topic.partitions), str(spec.partitions), mend)
    copies = REPLICATION_MAX if brokers >= REPLICATION_MAX else 1
    if topic.replication < copies:
        mend = f"kafka-reassign-partitions.sh --bootstrap-server {bootstrap_servers} --execute (with {copies} replicas)"
        raise TopicMisconfigured(topic.name, "replication", str(topic.replication), f"at least {copies}", mend)
    insync = {"min.insync.replicas": "2" if topic.replication >= REPLICATION_MAX else "1"}
    for name, wanted in sorted({**spec.required, **insync}.items()):
        found = settings.get(name, "absent")
        if found != wanted:
            change = f"--entity-type topics --entity-name {topic.name} --add-config {name}={wanted}"
            mend = f"kafka-configs.sh --bootstrap-server {bootstrap_servers} --alter {change}"
            raise TopicMisconfigured(topic.name, name, found, wanted, mend)


def _call(function: Any, *args: Any, **options: Any) -> Any:
    try:
        return function(*args, **options)
    except KafkaException as error:
        raise LogUnavailable(f"the broker gives no answer: {error.args[0].str()}", "is it up?") from error


def _result(future: Future[Any], name: str, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
    try:
        return future.result(timeout=timeout_s + 5)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissing(name) from error
        raise LogUnavailable(
            f"topic {name} could not be looked up: {error.args[0].str()}", "is the broker up?"
        ) from error
    except TimeoutError as error:
        raise LogUnavailable(f"topic {name} could not be looked up in time", "is the broker up?") from error
