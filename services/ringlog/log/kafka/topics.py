"""The topics of a cluster: their names, partitions and settings, how they are made, and how wrong ones are refused.

``required`` settings are what correctness rests on and are checked at every start; ``initial`` ones are only set when
the topic is made, and operators may change them. The metadata topic keeps everything, for ever, in order: no
retention by time or size, no compaction, no election of a replica that lacks acknowledged records.

**Clocks.** Records carry the wall clocks of their authors, in every topic but ``mutations``, where the broker's counts.
A clock that is wrong must not make the broker refuse a record, so its limits on timestamps are lifted wherever our own
times stand (``ANY_CLOCK``, one rule for all topics). The start of a cluster raises them where they are lower.

**Copies.** A new cluster's topics have ``replication 3, min.insync.replicas 2`` where there are three brokers, and one
copy where there is one and no other is known of. In between somebody must say (``CopiesUndecided``): a broker that is
down for a moment must not make a cluster of single copies. Of ``n`` copies at least ``least_insync(n)`` must have a
record before it is acknowledged, so that any two choices of them share one, and at most ``n``, or nothing could be
written. That setting is what remembers the founding: who takes copies away from a topic comes below it. Fewer copies
than brokers would allow are no less than at founding, and reported. A single broker acknowledges before the record is
on the disk: a power cut can lose the newest ones.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
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

from ringlog.kernel.changes import CHANGE_TOPICS
from ringlog.log.errors import CopiesUndecided, LogUnavailable, TopicMisconfigured, TopicMissing
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
"""How far the times of records may lie from the broker's clock: as far as they like."""
_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
_LARGE = {"max.message.bytes": str(RECORD_BYTES_MAX)}
_DELETE = {"cleanup.policy": "delete"}
_COMPACT = {"cleanup.policy": "compact"}
_BRISK = {"segment.ms": "600000", "max.compaction.lag.ms": "600000", "min.cleanable.dirty.ratio": "0.1"}
"""For compacted topics that grow with what happens and are read whole at a start, as change topics are by a publisher
that takes over: the segment in use is never compacted, and by default it is in use for a week, or a gigabyte long."""

_GONE_STAYS = {"delete.retention.ms": str(7 * _DAY_MS)}
"""So long a record that a key is gone stays: who was away for less, and goes on where it was, hears of it."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic of a cluster. ``suffix`` follows the cluster's name and a dot."""

    suffix: str
    partitions: int
    required: Mapping[str, str]
    initial: Mapping[str, str] = field(default_factory=dict)
    at_most: Mapping[str, str] = field(default_factory=dict)
    """Numbers: set when it is made, and lowered at the start of a cluster if they are greater."""
    counts_once: bool = False
    """A record that is there twice, at whatever distance, counts once: its readers know it by its id."""
    may_grow: bool = False
    """An operator may add partitions: readers find them."""

    @property
    def raised(self) -> Mapping[str, str]:
        """What is set when it is made, and raised at the start of a cluster if it is less."""
        return {} if self.required.get("message.timestamp.type") == "LogAppendTime" else ANY_CLOCK


@dataclass(frozen=True, slots=True)
class TopicProfile:
    """How many copies of each record there are, and how many must exist before it is acknowledged."""

    replication: int
    min_insync: int


def least_insync(copies: int) -> int:
    """How many of N copies must have a record before it is acknowledged: more than half, of three or more."""
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
    counts_once=True,
)
REQUESTS = TopicSpec("requests", 1, _SAFE | _DELETE | _LARGE, {"retention.ms": str(7 * _DAY_MS)}, counts_once=True)
RESULTS = TopicSpec("results", 1, _SAFE | _FOREVER | _DELETE, _LARGE)
ACKS = _compacted("acks", _BRISK)
LOAD = _compacted("load", _BRISK, _APPEND_TIME)
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
AGENTS = _compacted("agents", _BRISK)
SNAPSHOTS = _compacted("snapshots", _BRISK)
SCHEMAS = _compacted("schemas")

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
    *(_compacted(suffix, _BRISK, initial=_GONE_STAYS) for suffix in CHANGE_TOPICS),
)


def topic_name(cluster: str, suffix: str) -> str:
    """The name of a cluster's topic, e.g. ``orders.metadata``."""
    return f"{cluster}.{suffix}"


def admin_client(bootstrap_servers: str) -> AdminClient:
    """An admin client for these functions."""
    return AdminClient({**connection(bootstrap_servers), "socket.nagle.disable": True})


def profile_of(admin: AdminClient, cluster: str, wanted: int | None = None, named: int = 1) -> TopicProfile:
    """How many copies the topics of a cluster get: ``wanted``; else as many as its metadata topic has, if there is one;
    else what the brokers allow. ``named``: addresses that the caller knows them by.

    Raises CopiesUndecided, LogUnavailable.
    """
    known = _with_brokers(admin)
    up = len(known.brokers)
    metadata = known.topics.get(topic_name(cluster, METADATA.suffix))
    if wanted is None and metadata is not None and metadata.partitions:
        copies = min(len(partition.replicas) for partition in metadata.partitions.values())
        return TopicProfile(copies, copies // 2 + 1)
    holders = {one for topic in known.topics.values() for part in topic.partitions.values() for one in part.replicas}
    return chosen(up, max(len(holders.difference(known.brokers)), named - up, 0), wanted)


def _with_brokers(admin: AdminClient) -> ClusterMetadata:
    """What there is. Who answers counts as down where the controller missed its heartbeats: it is up again soon."""
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        known: ClusterMetadata = _call(admin.list_topics, timeout=REQUEST_TIMEOUT_S)
        if known.brokers:
            return known
        if time.monotonic() >= deadline:
            raise LogUnavailable("a broker answers, but the controller counts none as up", "try again")
        time.sleep(LOOK_AGAIN_S)


def chosen(up: int, others: int, wanted: int | None = None) -> TopicProfile:
    """The copies of new topics where ``up`` brokers are up, and there is a sign of others that are not.

    A sign is a copy on a broker that is not up, or one more address. Raises CopiesUndecided.
    """
    if wanted is not None:
        if not 1 <= wanted <= up:
            raise CopiesUndecided(f"{wanted} copies of each record need {wanted} brokers, and {_are_up(up)}")
        return TopicProfile(wanted, wanted // 2 + 1)
    if up >= REPLICATION_MAX:
        return TopicProfile(REPLICATION_MAX, least_insync(REPLICATION_MAX))
    if up > 1 or others:
        missing = f", and {others} more {'is' if others == 1 else 'are'} known of" if others else ""
        raise CopiesUndecided(f"{_are_up(up)}{missing}: how many copies shall each record have?")
    return TopicProfile(1, 1)


def _are_up(brokers: int) -> str:
    return "one broker is up" if brokers == 1 else f"{brokers} brokers are up"


def existing_topics(admin: AdminClient, cluster: str, specs: Sequence[TopicSpec] = TOPICS) -> tuple[TopicSpec, ...]:
    """Those of the topics that exist. Raises LogUnavailable."""
    names = {topic_name(cluster, spec.suffix): spec for spec in specs}
    ids = topic_ids(admin, tuple(names), REQUEST_TIMEOUT_S)
    return tuple(spec for name, spec in names.items() if ids[name] is not None)


def create_topics(
    admin: AdminClient, cluster: str, profile: TopicProfile | None = None, specs: Sequence[TopicSpec] = TOPICS
) -> tuple[str, ...]:
    """Make the topics that do not exist yet; existing ones stay as they are. Returns the names of those made.

    When it returns, every partition has a leader: a controller answers before the brokers have heard of the topic.
    Raises CopiesUndecided; LogUnavailable if the broker gives no answer: calling it again goes on where it stopped.
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
                **spec.raised,
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
    admin: AdminClient, cluster: str, bootstrap_servers: str, specs: Sequence[TopicSpec] = TOPICS, *, tend: bool = False
) -> Mapping[str, str]:
    """Check that every topic exists with its partitions, copies and required settings; returns name -> topic id.

    ``tend``: for a process that looks after the cluster. It raises the limits of ``ANY_CLOCK`` where they are lower,
    lowers the numbers of ``at_most`` where they are greater, and warns of topics with fewer copies than the brokers
    allow. Raises TopicMissing, TopicMisconfigured (the first
    wrong setting, and the command that mends it), LogUnavailable.
    """
    names = [topic_name(cluster, spec.suffix) for spec in specs]
    brokers = len(_call(admin.list_topics, timeout=REQUEST_TIMEOUT_S).brokers)
    described = describe(admin, names)
    found = _settings(admin, names)
    for spec, name in zip(specs, names, strict=True):
        settings = found[name]
        lower = {key: value for key, value in spec.raised.items() if settings.get(key, value) != value}
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


def _settings(admin: AdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    configs: Mapping[ConfigResource, Future[Any]] = _call(
        admin.describe_configs, resources, request_timeout=REQUEST_TIMEOUT_S
    )
    found = {resource.name: _result(future, resource.name) for resource, future in configs.items()}
    return {name: {key: entry.value for key, entry in entries.items()} for name, entries in found.items()}


def kafka_id(admin: AdminClient) -> str:
    """The id that the brokers' storage was formatted with; empty if they tell none. Raises LogUnavailable."""
    return str(_call(admin.list_topics, timeout=REQUEST_TIMEOUT_S).cluster_id or "")


def delete_before(admin: AdminClient, name: str, offset: int) -> None:
    """Delete the records of partition 0 before ``offset``. Raises LogUnavailable."""
    place = TopicPartition(name, 0, offset)
    futures: Mapping[Any, Future[Any]] = _call(admin.delete_records, [place], request_timeout=REQUEST_TIMEOUT_S)
    for future in futures.values():
        _result(future, name)


def delete_topic(admin: AdminClient, name: str) -> None:
    """Delete a topic; what is gone already stays so. Raises LogUnavailable."""
    futures: Mapping[str, Future[Any]] = _call(admin.delete_topics, [name], request_timeout=REQUEST_TIMEOUT_S)
    with suppress(TopicMissing):
        _result(futures[name], name)


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
    return {
        name: _found(name, _result(future, name, timeout_s)) for name, future in _asked(admin, names, timeout_s).items()
    }


def topic_ids(admin: AdminClient, names: Sequence[str], timeout_s: float) -> Mapping[str, str | None]:
    """The topics' ids by one request; None where a broker says that there is no such topic. Raises LogUnavailable."""
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
    """How many copies each entry of the metadata log has. Raises TopicMissing, LogUnavailable."""
    name = topic_name(cluster, METADATA.suffix)
    return describe(admin, [name])[name].replication


def _hex(topic_id: Any) -> str:
    high = topic_id.get_most_significant_bits() % 2**64
    low = topic_id.get_least_significant_bits() % 2**64
    return f"{high:016x}{low:016x}"


def _check(spec: TopicSpec, topic: FoundTopic, settings: Mapping[str, str], bootstrap_servers: str) -> None:
    if topic.partitions < spec.partitions or (topic.partitions > spec.partitions and not spec.may_grow):
        mend = "none: partitions cannot be taken away; found the cluster anew under another name"
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
    """The settings that correctness rests on and that are others, with the values that they must have."""
    insync, copies = settings.get("min.insync.replicas", "absent"), topic.replication
    wanted = {**spec.required, **spec.raised, "min.insync.replicas": insync}
    if not insync.isdigit() or not least_insync(copies) <= int(insync) <= copies:
        wanted["min.insync.replicas"] = str(least_insync(copies))
    return {name: value for name, value in sorted(wanted.items()) if settings.get(name, "absent") != value}


def set_required(
    admin: AdminClient, cluster: str, specs: Sequence[TopicSpec] = TOPICS
) -> Mapping[str, Mapping[str, str]]:
    """Set what is wrong of the settings that correctness rests on; what was set, by topic.

    Raises TopicMissing, LogUnavailable.
    """
    names = [topic_name(cluster, spec.suffix) for spec in specs]
    described, settings = describe(admin, names), _settings(admin, names)
    wrong = {name: _wrong(spec, described[name], settings[name]) for spec, name in zip(specs, names, strict=True)}
    return {name: values for name, values in wrong.items() if values and _set(admin, name, values)}


def _set(admin: AdminClient, name: str, values: Mapping[str, str]) -> bool:
    """Set these settings of a topic; False if the broker lets nobody do that here."""
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
            f"the broker gives no answer: {error.args[0].str()}", "is it up, and does it accept this client?"
        ) from error


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
