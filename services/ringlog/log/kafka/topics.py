"""The topics of a cluster: names, partitions, settings, creation, and checks.

``required`` settings are necessary for correctness and are checked at every start. ``initial`` settings are set when
the topic is created; operators may change them. The metadata topic keeps every entry in order until a ``TruncateLog``
allows a deletion. It has no retention and no compaction, and never elects a replica that lacks acknowledged records.

**Clocks.** Records carry the wall-clock time of their authors, except in ``mutations`` and ``load``, which have broker
times. A broker must not reject a record because an author's clock is wrong. So its timestamp limits are removed for
topics with author times (``ANY_CLOCK``). The start of a cluster raises them if they are lower.

**Copies.** A new cluster gets ``replication 3, min.insync.replicas 2`` with three or more brokers, and one copy if
there is one broker and no sign of another. Otherwise the operator must choose (``CopiesUndecided``): a broker that is
down for a moment must not lead to a cluster of single copies.

Of ``n`` copies, at least ``min_insync_of(n)`` must have a record before it is acknowledged, so that any two such sets
overlap. At most ``n`` may be required, or every write fails. If an operator removes copies, ``min.insync.replicas`` may
exceed their number, and the check fails. Topics with fewer copies than the brokers allow are reported, but accepted. A
single broker acknowledges before the record is on disk, so a power failure can lose the newest records.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from ringlog.kernel.sections import CHANGE_TOPICS
from ringlog.kernel.values import Value, field
from ringlog.log.errors import CopiesUndecided, LogUnavailable, TopicDenied, TopicMisconfigured, TopicMissing
from ringlog.runtime.kafka.config import connection
from ringlog.runtime.logs import get_logger

RECORD_BYTES_MAX = 2 * 1024 * 1024
REPLICATION_MAX = 3
REQUEST_TIMEOUT_S = 15.0
LOOK_AGAIN_S = 0.02

log = get_logger(__name__)

_DAY_MS = 24 * 60 * 60 * 1000
_FOREVER = {"retention.ms": "-1", "retention.bytes": "-1"}
_SAFE = {"unclean.leader.election.enable": "false"}
_NO_LIMIT = str(2**63 - 1)
ANY_CLOCK = {"message.timestamp.after.max.ms": _NO_LIMIT, "message.timestamp.before.max.ms": _NO_LIMIT}
"""No limit on the difference between a record's time and the broker's clock."""
_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
_LARGE = {"max.message.bytes": str(RECORD_BYTES_MAX)}
_DELETE = {"cleanup.policy": "delete"}
_COMPACT = {"cleanup.policy": "compact"}
_FREQUENT_COMPACTION = {"segment.ms": "600000", "max.compaction.lag.ms": "600000", "min.cleanable.dirty.ratio": "0.1"}
"""Settings of compacted topics that are read as a whole at a start, such as change topics at a take-over.

The active segment is never compacted. By default it stays active for a week or one gigabyte.
"""

_TOMBSTONE_RETENTION = {"delete.retention.ms": str(7 * _DAY_MS)}
"""Retention of deletion records. A reader that was away for less time, and continues at its position, sees all
deletions.
"""


class TopicSpec(Value):
    """One topic of a cluster. ``suffix`` follows the cluster's name and a dot."""

    suffix: str
    partitions: int
    required: Mapping[str, str]
    initial: Mapping[str, str] = field(default_factory=dict)
    at_most: Mapping[str, str] = field(default_factory=dict)
    """Upper limits of numeric settings: set at creation, and lowered at the start of a cluster if they are greater."""
    is_deduplicated: bool = False
    """Readers identify records by an id, so a duplicate record has no effect."""
    may_grow: bool = False
    """An operator may add partitions, and readers find them."""

    @property
    def at_least(self) -> Mapping[str, str]:
        """Settings that are set at creation, and raised at the start of a cluster if they are lower."""
        return {} if self.required.get("message.timestamp.type") == "LogAppendTime" else ANY_CLOCK


class TopicProfile(Value):
    """The number of copies of each record, and how many must exist before it is acknowledged."""

    replication: int
    min_insync: int


def min_insync_of(copies: int) -> int:
    """Return how many copies must have a record before it is acknowledged: a majority of three or more
    copies, else 1.
    """
    return copies // 2 + 1 if copies >= REPLICATION_MAX else 1


def _compacted(
    suffix: str,
    at_most: Mapping[str, str] | None = None,
    required: Mapping[str, str] | None = None,
    initial: Mapping[str, str] | None = None,
) -> TopicSpec:
    return TopicSpec(suffix, 1, _SAFE | _COMPACT | dict(required or {}), _LARGE | dict(initial or {}), at_most or {})


METADATA = TopicSpec(
    "metadata",
    1,
    _SAFE | _FOREVER | _DELETE | {"message.timestamp.type": "CreateTime"} | _LARGE,
    is_deduplicated=True,
)
REQUESTS = TopicSpec("requests", 1, _SAFE | _DELETE | _LARGE, {"retention.ms": str(7 * _DAY_MS)}, is_deduplicated=True)
RESULTS = TopicSpec("results", 1, _SAFE | _FOREVER | _DELETE, _LARGE)
ACKS = _compacted("acks", _FREQUENT_COMPACTION)
LOAD = _compacted("load", _FREQUENT_COMPACTION, _APPEND_TIME)
MUTATIONS = TopicSpec(
    "mutations",
    4,
    _SAFE | _DELETE | _APPEND_TIME,
    _LARGE | {"retention.ms": str(7 * _DAY_MS)},
    may_grow=True,
)
CDC = TopicSpec(
    "cdc", 8, _SAFE | _DELETE, _LARGE | _FOREVER | {"retention.ms": str(7 * _DAY_MS), "segment.ms": str(_DAY_MS)}
)
DEAD_LETTERS = TopicSpec(
    "dead-letters", 1, _SAFE | _DELETE, {"max.message.bytes": str(2 * RECORD_BYTES_MAX)} | _FOREVER
)
AGENTS = _compacted("agents", _FREQUENT_COMPACTION)
SNAPSHOTS = _compacted("snapshots", _FREQUENT_COMPACTION)
SCHEMAS = _compacted("schemas")

CDC_EXPORTS = _compacted("cdc-exports", _FREQUENT_COMPACTION)
"""The positions of exports (``ringlog.client.cdc.export``). The first export creates this topic, so it is not in
``TOPICS``.
"""

TOPICS: tuple[TopicSpec, ...] = (
    METADATA,
    REQUESTS,
    RESULTS,
    ACKS,
    LOAD,
    MUTATIONS,
    CDC,
    DEAD_LETTERS,
    AGENTS,
    SNAPSHOTS,
    SCHEMAS,
    *(_compacted(suffix, _FREQUENT_COMPACTION, initial=_TOMBSTONE_RETENTION) for suffix in CHANGE_TOPICS),
)


def topic_name(cluster: str, suffix: str) -> str:
    """Return the name of a cluster's topic, e.g. ``orders.metadata``."""
    return f"{cluster}.{suffix}"


def transactional_id(cluster: str, *parts: str) -> str:
    """Return the transactional id of a process outside the agents. Names of clusters contain no slash."""
    return "/".join((cluster, *parts))


def admin_client(bootstrap_servers: str) -> AdminClient:
    """Return an admin client for the functions of this module."""
    return AdminClient({**connection(bootstrap_servers), "socket.nagle.disable": True})


def profile_of(admin: AdminClient, cluster: str, wanted: int | None = None, named: int = 1) -> TopicProfile:
    """Return the number of copies for a cluster's topics.

    It is ``wanted`` if given, else that of the metadata topic if it exists, else the number that the brokers allow.
    ``named`` is the number of broker addresses that the caller knows. Raises CopiesUndecided, LogUnavailable.
    """
    known = _with_brokers(admin)
    up = len(known.brokers)
    metadata = known.topics.get(topic_name(cluster, METADATA.suffix))
    if wanted is None and metadata is not None and metadata.partitions:
        copies = min(len(partition.replicas) for partition in metadata.partitions.values())
        return TopicProfile(copies, copies // 2 + 1)
    holders = {one for topic in known.topics.values() for part in topic.partitions.values() for one in part.replicas}
    return choose_profile(up, max(len(holders.difference(known.brokers)), named - up, 0), wanted)


def _with_brokers(admin: AdminClient) -> ClusterMetadata:
    """Return the metadata of the Kafka cluster, with at least one broker.

    A broker that answers may briefly count as down because the controller missed its heartbeats.
    """
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        known: ClusterMetadata = _call(admin.list_topics, timeout=REQUEST_TIMEOUT_S)
        if known.brokers:
            return known
        if time.monotonic() >= deadline:
            raise LogUnavailable("a broker answers, but the controller lists no live broker", "try again")
        time.sleep(LOOK_AGAIN_S)


def choose_profile(up: int, others: int, wanted: int | None = None) -> TopicProfile:
    """Return the number of copies if ``up`` brokers are up and there are signs of ``others`` that are down.

    A sign is a copy on a broker that is down, or one more address. Raises CopiesUndecided.
    """
    if wanted is not None:
        if not 1 <= wanted <= up:
            raise CopiesUndecided(f"--kafka-replication {wanted} needs {wanted} brokers, but {_are_up(up)}")
        return TopicProfile(wanted, wanted // 2 + 1)
    if up >= REPLICATION_MAX:
        return TopicProfile(REPLICATION_MAX, min_insync_of(REPLICATION_MAX))
    if up > 1 or others:
        missing = f", and {others} more {'is' if others == 1 else 'are'} known of" if others else ""
        raise CopiesUndecided(f"{_are_up(up)}{missing}: the number of copies of each record is undecided")
    return TopicProfile(1, 1)


def _are_up(brokers: int) -> str:
    return "one broker is up" if brokers == 1 else f"{brokers} brokers are up"


def existing_topics(admin: AdminClient, cluster: str, specs: Sequence[TopicSpec] = TOPICS) -> tuple[TopicSpec, ...]:
    """Return those of the topics that exist. Raises LogUnavailable."""
    names = {topic_name(cluster, spec.suffix): spec for spec in specs}
    ids = topic_ids(admin, tuple(names), REQUEST_TIMEOUT_S)
    return tuple(spec for name, spec in names.items() if ids[name] is not None)


def create_topics(
    admin: AdminClient, cluster: str, profile: TopicProfile | None = None, specs: Sequence[TopicSpec] = TOPICS
) -> tuple[str, ...]:
    """Create the topics that do not exist yet and return their names. Existing topics do not change.

    On return every partition has a leader: a controller answers before the brokers know the topic.

    Raises:
        CopiesUndecided: See ``profile_of``.
        LogUnavailable: The broker did not answer. Repeat the call to continue.
    """
    copies = profile if profile is not None else profile_of(admin, cluster)
    wanted = [
        NewTopic(
            topic_name(cluster, spec.suffix),
            num_partitions=spec.partitions,
            replication_factor=copies.replication,
            config={
                **spec.initial,
                **spec.at_most,
                **spec.at_least,
                **spec.required,
                "min.insync.replicas": str(copies.min_insync),
            },
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
                raise LogUnavailable(f"cannot create topic {name}: {error.args[0].str()}") from error
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
            raise LogUnavailable(f"the topics exist, but have no leader yet: {', '.join(waiting)}", "try again")
        time.sleep(LOOK_AGAIN_S)


def verify_topics(
    admin: AdminClient, cluster: str, bootstrap_servers: str, specs: Sequence[TopicSpec] = TOPICS, *, tend: bool = False
) -> Mapping[str, str]:
    """Check partitions, copies and required settings of every topic. Return topic name to topic id.

    Args:
        tend: For processes that maintain the cluster. Also correct the settings ``at_least`` and ``at_most``, and log a
            warning about topics with fewer copies than the brokers allow.

    Raises:
        TopicMisconfigured: The first wrong setting, and the command that corrects it.
        TopicMissing, LogUnavailable: A topic does not exist, or the broker does not answer.
    """
    names = [topic_name(cluster, spec.suffix) for spec in specs]
    brokers = len(_call(admin.list_topics, timeout=REQUEST_TIMEOUT_S).brokers)
    described = describe(admin, names)
    found = settings_of(admin, names)
    for spec, name in zip(specs, names, strict=True):
        settings = found[name]
        lower = {key: value for key, value in spec.at_least.items() if settings.get(key, value) != value}
        if tend and lower and _set(admin, name, lower):
            settings |= lower
        greater = {key: most for key, most in spec.at_most.items() if float(settings.get(key, most)) > float(most)}
        if tend and greater:
            _set(admin, name, greater)
        _check(spec, described[name], settings, bootstrap_servers)
    few = [name for name in names if described[name].replication < min(brokers, REPLICATION_MAX)]
    if tend and few and brokers >= REPLICATION_MAX:
        mend = f"kafka-reassign-partitions.sh --bootstrap-server {bootstrap_servers} --execute (3 replicas each)"
        log.warning("few_copies", topics=few, copies=described[few[0]].replication, brokers=brokers, mend=mend)
    return {name: described[name].topic_id for name in names}


def settings_of(admin: AdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics. Raises TopicMissing, LogUnavailable."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    configs: Mapping[ConfigResource, Future[Any]] = _call(
        admin.describe_configs, resources, request_timeout=REQUEST_TIMEOUT_S
    )
    found = {resource.name: _result(future, resource.name) for resource, future in configs.items()}
    return {name: {key: entry.value for key, entry in entries.items()} for name, entries in found.items()}


def kafka_id(admin: AdminClient) -> str:
    """Return the id of the brokers' formatted storage; empty if they report none. Raises LogUnavailable."""
    return str(_call(admin.list_topics, timeout=REQUEST_TIMEOUT_S).cluster_id or "")


def delete_before(admin: AdminClient, name: str, offset: int) -> None:
    """Delete the records of partition 0 before ``offset``. Raises LogUnavailable."""
    place = TopicPartition(name, 0, offset)
    futures: Mapping[Any, Future[Any]] = _call(admin.delete_records, [place], request_timeout=REQUEST_TIMEOUT_S)
    for future in futures.values():
        _result(future, name)


def delete_topic(admin: AdminClient, name: str) -> None:
    """Delete a topic, if it exists. Raises LogUnavailable."""
    futures: Mapping[str, Future[Any]] = _call(admin.delete_topics, [name], request_timeout=REQUEST_TIMEOUT_S)
    with suppress(TopicMissing):
        _result(futures[name], name)


class FoundTopic(Value):
    """A topic at the broker.

    ``topic_id`` has 32 hex digits. ``replication`` is the smallest number of copies of any partition. ``has_leaders``
    is True if every partition has a leader.
    """

    name: str
    topic_id: str
    partitions: int
    replication: int
    has_leaders: bool


def describe(
    admin: AdminClient, names: Sequence[str], timeout_s: float = REQUEST_TIMEOUT_S
) -> Mapping[str, FoundTopic]:
    """Return the topics at the broker. Raises TopicMissing, LogUnavailable."""
    return {
        name: _found(name, _result(future, name, timeout_s)) for name, future in _asked(admin, names, timeout_s).items()
    }


def topic_ids(admin: AdminClient, names: Sequence[str], timeout_s: float) -> Mapping[str, str | None]:
    """Return the topics' ids with one request, None for a missing topic. Raises LogUnavailable."""
    ids: dict[str, str | None] = {}
    for name, future in _asked(admin, names, timeout_s).items():
        try:
            ids[name] = _hex(_result(future, name, timeout_s).topic_id)
        except TopicMissing:
            ids[name] = None
    return ids


def _asked(admin: AdminClient, names: Sequence[str], timeout_s: float) -> Mapping[str, Future[Any]]:
    futures: Mapping[str, Future[Any]] = _call(
        admin.describe_topics, TopicCollection(list(names)), request_timeout=timeout_s
    )
    return futures


def _found(name: str, topic: Any) -> FoundTopic:
    copies = min(len(partition.replicas) for partition in topic.partitions)
    led = all(partition.leader is not None and partition.leader.id >= 0 for partition in topic.partitions)
    return FoundTopic(name, _hex(topic.topic_id), len(topic.partitions), copies, led)


def copies_of(admin: AdminClient, cluster: str) -> int:
    """Return the number of copies of the metadata log. Raises TopicMissing, LogUnavailable."""
    name = topic_name(cluster, METADATA.suffix)
    return describe(admin, [name])[name].replication


def _hex(topic_id: Any) -> str:
    high = topic_id.get_most_significant_bits() % 2**64
    low = topic_id.get_least_significant_bits() % 2**64
    return f"{high:016x}{low:016x}"


def _check(spec: TopicSpec, topic: FoundTopic, settings: Mapping[str, str], bootstrap_servers: str) -> None:
    if topic.partitions < spec.partitions or (topic.partitions > spec.partitions and not spec.may_grow):
        mend = "a new cluster under another name, because partitions cannot be removed"
        if topic.partitions < spec.partitions:
            change = f"--topic {topic.name} --partitions {spec.partitions}"
            mend = f"kafka-topics.sh --bootstrap-server {bootstrap_servers} --alter {change}"
        raise TopicMisconfigured(topic.name, "partitions", str(topic.partitions), str(spec.partitions), mend)
    for name, value in _wrong(spec, topic, settings).items():
        change = f"--entity-type topics --entity-name {topic.name} --add-config {name}={value}"
        command = f"kafka-configs.sh --bootstrap-server {bootstrap_servers} --alter {change}"
        mend = f"ringlog cluster repair-topics, or {command}"
        raise TopicMisconfigured(topic.name, name, settings.get(name, "absent"), value, mend)


def _wrong(spec: TopicSpec, topic: FoundTopic, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the required settings that are wrong, with their correct values."""
    insync, copies = settings.get("min.insync.replicas", "absent"), topic.replication
    wanted = {**spec.required, **spec.at_least, "min.insync.replicas": insync}
    if not insync.isdigit() or not min_insync_of(copies) <= int(insync) <= copies:
        wanted["min.insync.replicas"] = str(min_insync_of(copies))
    return {name: value for name, value in sorted(wanted.items()) if settings.get(name, "absent") != value}


def set_required(
    admin: AdminClient, cluster: str, specs: Sequence[TopicSpec] = TOPICS
) -> Mapping[str, Mapping[str, str]]:
    """Correct the required settings that are wrong. Return the changes by topic. Raises TopicMissing,
    LogUnavailable.
    """
    names = [topic_name(cluster, spec.suffix) for spec in specs]
    described, settings = describe(admin, names), settings_of(admin, names)
    wrong = {name: _wrong(spec, described[name], settings[name]) for spec, name in zip(specs, names, strict=True)}
    return {name: values for name, values in wrong.items() if values and _set(admin, name, values)}


def _set(admin: AdminClient, name: str, values: Mapping[str, str]) -> bool:
    """Change settings of a topic. Return False if the broker does not allow that."""
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    try:
        _call(admin.incremental_alter_configs, [resource], request_timeout=REQUEST_TIMEOUT_S)[resource].result(
            timeout=REQUEST_TIMEOUT_S + 5
        )
    except (KafkaException, LogUnavailable, TimeoutError) as error:
        log.warning("setting_not_changed", topic=name, settings=sorted(values), why=str(error))
        return False
    log.info("setting_changed", topic=name, **{key.replace(".", "_"): value for key, value in values.items()})
    return True


def _call(function: Any, *args: Any, **options: Any) -> Any:
    try:
        return function(*args, **options)
    except KafkaException as error:
        raise LogUnavailable(
            f"the broker does not answer: {error.args[0].str()}", "check that the broker is up and accepts this client"
        ) from error


def _result(future: Future[Any], name: str, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
    try:
        return future.result(timeout=timeout_s + 5)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise TopicMissing(name) from error
        if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            way = "compare its permissions: ringlog cluster acls --check"
            raise TopicDenied(f"this login may not look up topic {name}", way) from error
        raise LogUnavailable(
            f"cannot look up topic {name}: {error.args[0].str()}", "check that the broker is up"
        ) from error
    except TimeoutError as error:
        raise LogUnavailable(
            f"cannot look up topic {name}: no answer in time", "check that the broker is up"
        ) from error
