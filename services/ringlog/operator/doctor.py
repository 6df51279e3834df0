"""``ringlog doctor``: examine everything that a cluster stands on, each with a verdict and a remedy.

``CHECKS`` lists the checks in their order. A check yields findings. An error of a check is a finding, so a part that is
away hides no other part. Without a broker, or if the log cannot be read, later checks are skipped, except those in
``LOCAL``: each of them would wait for the same broker.

Invariant: a check changes nothing.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaException

from ringlog.agents.status import read_statuses, views_of
from ringlog.client.cdc.dead_letters import recent_counts
from ringlog.errors import RinglogError
from ringlog.files import process_data_dir
from ringlog.kernel.history import confirmed_snapshots
from ringlog.kernel.model.state import ClusterState, in_order
from ringlog.kernel.values import SECOND_US, Value
from ringlog.log.kafka.diagnosis import connection_failure
from ringlog.log.kafka.topics import TOPICS, admin_client, describe, topic_name, verify_topics
from ringlog.operator.balancing import read_load_reports
from ringlog.operator.machines import DISK_FREE_MIN, EXPIRES_SOON_US, machine_problems, machines_of
from ringlog.operator.protection import missing_protection
from ringlog.operator.views import views
from ringlog.operator.views.clocks import clock_lines, seen_until
from ringlog.operator.views.service import recovery_lines
from ringlog.operator.views.words import format_last_heard, printable, span
from ringlog.protocol.balancer.load_book import LastReports, report_times
from ringlog.protocol.roles import ROLES
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.context import ClusterContext
from ringlog.runtime.kafka.config import current as kafka_config
from ringlog.runtime.trust import certificate_source
from ringlog.runtime.trust import current as current_trust

OK, WARN, FAIL, SKIPPED = "ok", "warn", "fail", "skipped"
VERDICTS: Final = (OK, SKIPPED, WARN, FAIL)
"""From good to bad."""
MACHINES_MAX: Final = 20
"""Problems of the nodes' machines that the report lists."""
LEASE_ENDED_US: Final = 60 * SECOND_US
"""How long ago the lease of a writer may have ended. A running job extends it long before its end."""
UNCOVERED_MAX: Final = 1_000_000
"""Records after the newest confirmed snapshot that a start may read."""


class Finding(Value):
    """The result of a check. ``fixes``: commands or instructions."""

    check: str
    verdict: str
    text: str
    fixes: tuple[str, ...] = ()


@dataclass(slots=True)
class Site:
    """A cluster under examination. ``read``: reads its newest state."""

    context: ClusterContext
    read: Callable[[ClusterContext], ClusterState]
    _state: ClusterState | None = field(default=None, init=False)

    @property
    def place(self) -> tuple[str, str]:
        """Brokers and name."""
        return self.context.bootstrap, self.context.cluster

    @property
    def state(self) -> ClusterState:
        """The state when it was first needed. Raises the errors of ``read``."""
        if self._state is None:
            self._state = self.read(self.context)
        return self._state


Found = tuple[str, str, tuple[str, ...]]
"""Verdict, text and fixes of a finding."""


def examine(context: ClusterContext, read: Callable[[ClusterContext], ClusterState]) -> Iterator[Finding]:
    """Yield the findings of all checks."""
    site, is_cut_off = Site(context, read), False
    for name, check in CHECKS.items():
        if is_cut_off and name not in LOCAL:
            yield Finding(name, SKIPPED, "not examined after the failure above")
            continue
        try:
            for verdict, text, fixes in check(site):
                is_cut_off = is_cut_off or (name == "broker" and verdict == FAIL)
                yield Finding(name, verdict, text, fixes)
        except (RinglogError, KafkaException, OSError) as error:
            is_cut_off = is_cut_off or name == "log"
            code, text = getattr(error, "code", "unavailable"), getattr(error, "message", str(error))
            yield Finding(name, FAIL, f"{code}: {text}", tuple(filter(None, (getattr(error, "hint", ""),))))


def worst(findings: list[Finding]) -> str:
    """Return the worst verdict."""
    return max((one.verdict for one in findings), key=VERDICTS.index, default=OK)


def _broker(site: Site) -> Iterator[Found]:
    if why := connection_failure(site.context.bootstrap):
        fixes = (f"start the broker at {site.context.bootstrap}, or pass --bootstrap", "local stack: ringlog stack up")
        yield FAIL, why, fixes
        return
    brokers = len(admin_client(site.context.bootstrap).list_topics(timeout=10).brokers)
    yield OK, f"{brokers} broker{'' if brokers == 1 else 's'} at {site.context.bootstrap}", ()
    if lacks := missing_protection(site.context.bootstrap, kafka_config().security, current_trust()):
        fix = "pass --kafka-config and --trust-config (ringlog cluster certificates makes the files)"
        yield FAIL, f"insecure: {', '.join(lacks)}", (fix,)


def _topics(site: Site) -> Iterator[Found]:
    bootstrap, cluster = site.place
    admin = admin_client(bootstrap)
    verify_topics(admin, cluster, bootstrap)  # raises the first wrong setting, with its remedy
    names = [topic_name(cluster, spec.suffix) for spec in TOPICS]
    found = describe(admin, names)
    copies = min(topic.replication for topic in found.values())
    yield OK, f"{len(names)} topics with their settings, {copies} cop{'y' if copies == 1 else 'ies'} of each", ()
    if leaderless := [name for name, topic in found.items() if not topic.has_leaders]:
        yield FAIL, f"without a leader: {', '.join(leaderless)}", ("start the brokers that have their replicas",)


def _log(site: Site) -> Iterator[Found]:
    state = site.state
    yield OK, f"epoch {state.epoch} of cluster {state.cluster_id}", ()
    if lines := recovery_lines(state):
        yield FAIL, lines[0], tuple(lines[1:])
    if not state.principals:
        fix = "ringlog cluster certificates, then ringlog principal create ADMIN --role admin"
        yield WARN, "no principals: each writer of the topic `requests` controls the cluster", (fix,)


def _agents(site: Site) -> Iterator[Found]:
    agents = {one.role: one for one in views_of(read_statuses(*site.place), site.state.epoch, SystemClock().now_us())}
    lacking = [role for role in ROLES if role not in agents or not agents[role].is_at_work]
    if lacking:
        texts = [f"{role}: {agents[role].readiness if role in agents else 'has never reported'}" for role in lacking]
        yield FAIL, "; ".join(texts), ("ringlog agents, or see their log for the reason",)
    else:
        lag = max(agents[role].lag for role in ROLES)
        yield OK, f"{len(ROLES)} roles at work, at most {lag} epochs behind", ()


def _nodes(site: Site) -> Iterator[Found]:
    records, now = read_load_reports(*site.place), SystemClock().now_us()
    last_reports = LastReports(report_times(records), now)
    rows = [row for row in views.nodes(site.state, last_reports) if row["state"] != "left"]
    for row in rows:
        if row["silent"] or row.get("down"):
            how = "is declared down" if row.get("down") else f"is silent: last heard {format_last_heard(row)}"
            fixes = (f"start it, or remove it: ringlog node down {row['name']}, ringlog node remove {row['name']}",)
            yield FAIL, f"{row['name']} {how}", fixes
    for one in machine_problems(site.state, machines_of(records, site.state.nodes), now)[:MACHINES_MAX]:
        yield (FAIL if one.broken else WARN), one.text, (one.next,)
    yield OK, f"{len(rows)} nodes registered", ()


def _versions(site: Site) -> Iterator[Found]:
    agents = views_of(read_statuses(*site.place), site.state.epoch, SystemClock().now_us())
    owners = [(node.release, "node") for node in site.state.nodes.values() if node.state != "left"]
    owners += [(printable(agent.release), "agent") for agent in agents if agent.is_at_work and agent.release]
    releases = sorted({release for release, _ in owners})
    if len(releases) > 1:
        counts = Counter(owners)
        texts = [
            f"{release} ({counts[release, 'node']} nodes, {counts[release, 'agent']} agents)" for release in releases
        ]
        fixes = ("finish the upgrade: ringlog node list -o wide, ringlog agents status",)
        yield WARN, f"different releases: {', '.join(texts)}", fixes
    else:
        yield OK, f"release {releases[0]}" if releases else "no nodes", ()
    for feature in views.features(site.state):
        if feature["required"] is not None and feature["enabled"] is None:
            fix = f"upgrade {', '.join(feature['lacked_by'])}" if feature["lacked_by"] else "no member lacks it"
            yield WARN, f"{feature['name']} is not enabled", (f"{fix}: ringlog cluster enable-feature",)


def _clocks(site: Site) -> Iterator[Found]:
    lines = clock_lines(site.state, SystemClock().now_us(), seen_until(*site.place))
    if lines:
        yield FAIL, lines[0], tuple(line.strip() for line in lines[1:])
    else:
        yield OK, "no clock is ahead by more than 10 s", ()


def _cdc(site: Site) -> Iterator[Found]:
    now, writers = SystemClock().now_us(), [one for one in in_order(site.state.writers) if one[1].fenced is None]
    for name, writer in writers:
        if writer.horizon and now - writer.horizon > LEASE_ENDED_US:
            fixes = (f"start its job again. If it stopped permanently: ringlog cdc fence --writer {name} --reason …",)
            yield WARN, f"writer {name}: its write lease ended {span(now - writer.horizon)} ago", fixes
    if waiting := recent_counts(*site.place).waiting():
        texts = ", ".join(f"{count:,} {printable(reason)}" for reason, count in waiting.items())
        yield WARN, f"recent dead letters: {texts}", ("ringlog cdc dead-letters list",)
    yield OK, f"{len(writers)} writer{'' if len(writers) == 1 else 's'}", ()


def _snapshots(site: Site) -> Iterator[Found]:
    taken = confirmed_snapshots(site.state)
    since = site.state.epoch - taken[-1].epoch if taken else site.state.epoch
    text = f"newest at epoch {taken[-1].epoch}" if taken else "none yet"
    is_far = since > UNCOVERED_MAX
    yield (WARN if is_far else OK), f"{text}, {since:,} epochs ago", ("ringlog snapshot take",) if is_far else ()


def _certificates(_: Site) -> Iterator[Found]:
    trust = current_trust()
    if not trust.encrypts:
        yield OK, "none in use", ()
        return
    left = trust.expires * SECOND_US - SystemClock().now_us()
    text = f"{certificate_source()}: the first one ends in {span(left)}" if left > 0 else "expired"
    fix = ("ringlog cluster certificates",) if left < EXPIRES_SOON_US else ()
    yield (FAIL if left <= 0 else WARN if fix else OK), text, fix


def _disk(_: Site) -> Iterator[Found]:
    folder = process_data_dir()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    is_low = free < DISK_FREE_MIN
    fix = (f"free space in {folder}, or set RINGLOG_DATA_DIR",) if is_low else ()
    yield (FAIL if is_low else OK), f"{free / (1 << 30):,.1f} GiB free in {folder}", fix


def _cache(site: Site) -> Iterator[Found]:
    if not site.context.redis:
        yield OK, "none is configured", ()
        return
    from ringlog.cache.reader import CachedReader, CacheNotReady  # the Redis client is slow to load

    try:
        epoch = CachedReader.connect(site.context.redis, site.context.cluster).read().epoch
    except CacheNotReady as error:
        yield FAIL, str(error), ("start Redis and the cache writer: ringlog agent cache_writer",)
        return
    behind = max(site.state.epoch - epoch, 0)
    yield OK, f"Redis has epoch {epoch}, {behind} behind", ()


CHECKS: Final[dict[str, Callable[[Site], Iterator[Found]]]] = {
    "broker": _broker,
    "topics": _topics,
    "log": _log,
    "agents": _agents,
    "nodes": _nodes,
    "versions": _versions,
    "clocks": _clocks,
    "cdc": _cdc,
    "snapshots": _snapshots,
    "cache": _cache,
    "certificates": _certificates,
    "disk": _disk,
}
LOCAL: Final = frozenset({"broker", "certificates", "disk"})
"""The checks that need no broker."""
