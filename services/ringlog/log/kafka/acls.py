"""The broker permissions (ACLs) that each kind of process needs.

A process acts through the topics that it may write. Agents write the log's entries, nodes write acknowledgements, and
the CDC job writes the CDC topic. So each kind of process may write only its own topics, and may read all topics of the
cluster.

===========  =========================================================================================================
validator    the log, the results of requests (it deletes old ones), its heartbeats
agent        the log (take-overs), requests, published topics; the cache writer deletes entries that an archive holds
node         acknowledgements, loads, requests
client       requests, and rows of base tables; it commits nothing itself
cdc-writer   the CDC topic, dead letters, requests
===========  =========================================================================================================

A broker cannot restrict record keys: each node may write acknowledgements for all nodes. A MAC in the acknowledgement
proves its author (``ringlog.wire.acks``). The user that creates the topics (``ringlog cluster create``, ``recover``)
needs more permissions than any of these.

Source: Apache Kafka 4, ``StandardAuthorizer``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from ringlog.kernel.changes import CHANGE_TOPICS
from ringlog.log.kafka.permissions import TIMEOUT_S, answered
from ringlog.log.kafka.topics import (
    ACKS,
    AGENTS,
    CDC,
    DEAD_LETTERS,
    LOAD,
    METADATA,
    MUTATIONS,
    REQUESTS,
    RESULTS,
    SCHEMAS,
    SNAPSHOTS,
)


class BrokerUser(StrEnum):
    """The kind of process that a set of permissions is for."""

    validator = "validator"
    agent = "agent"
    node = "node"
    client = "client"
    cdc_writer = "cdc-writer"


@dataclass(frozen=True, slots=True)
class BrokerNeeds:
    """Permissions of a kind of process in addition to reading.

    ``writes`` and ``deletes`` are topic suffixes. ``groups`` are prefixes of its consumer groups, after the cluster's
    name. ``transacts`` allows transactional ids of the cluster.
    """

    writes: tuple[str, ...]
    deletes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    transacts: bool = False


NEEDS: Final[dict[BrokerUser, BrokerNeeds]] = {
    BrokerUser.validator: BrokerNeeds(
        (METADATA.suffix, RESULTS.suffix, AGENTS.suffix),
        deletes=(RESULTS.suffix,),
        groups=("validator",),
        transacts=True,
    ),
    BrokerUser.agent: BrokerNeeds(
        (METADATA.suffix, REQUESTS.suffix, AGENTS.suffix, SCHEMAS.suffix, SNAPSHOTS.suffix, *CHANGE_TOPICS),
        deletes=(METADATA.suffix,),
        groups=("",),
        transacts=True,
    ),
    BrokerUser.node: BrokerNeeds((ACKS.suffix, LOAD.suffix, REQUESTS.suffix), groups=("node.",)),
    BrokerUser.client: BrokerNeeds((REQUESTS.suffix, MUTATIONS.suffix)),
    BrokerUser.cdc_writer: BrokerNeeds((CDC.suffix, DEAD_LETTERS.suffix, REQUESTS.suffix)),
}
READERS: Final = "ringlog"
"""Prefix of the groups that readers name but never join. The client library looks up their coordinator."""
SPARK: Final = "spark-kafka"
"""Prefix of the groups that Spark's Kafka source generates."""


@dataclass(frozen=True, slots=True)
class BrokerRule:
    """An operation that is allowed on the resource ``name``, or on all resources with that prefix (``begins``)."""

    resource: str
    name: str
    begins: bool
    operation: str

    def command(self, user: str) -> str:
        """Return the options of ``kafka-acls.sh`` that create this rule."""
        kind = {"transactional_id": "transactional-id"}.get(self.resource, self.resource)
        pattern = " --resource-pattern-type prefixed" if self.begins else ""
        operation = "".join(word.capitalize() for word in self.operation.split("_"))
        return f"--add --allow-principal 'User:{user}' --operation {operation} --{kind} {self.name}{pattern}"


def rules_for(kind: BrokerUser, cluster: str) -> tuple[BrokerRule, ...]:
    """Return all rules for a kind of process, in a fixed order."""
    return tuple(_rules(kind, NEEDS[kind], f"{cluster}."))


def _rules(kind: BrokerUser, needs: BrokerNeeds, prefix: str) -> Iterator[BrokerRule]:
    for operation in ("describe", "describe_configs", "read"):
        yield BrokerRule("topic", prefix, True, operation)
    for suffix in needs.writes:
        yield BrokerRule("topic", prefix + suffix, False, "write")
    for suffix in needs.deletes:
        yield BrokerRule("topic", prefix + suffix, False, "delete")
    yield BrokerRule("group", READERS, True, "describe")
    groups = [prefix + group for group in needs.groups] + [SPARK] * (kind is BrokerUser.cdc_writer)
    for group in groups:
        for operation in ("describe", "read"):
            yield BrokerRule("group", group, True, operation)
    if needs.transacts:
        for operation in ("describe", "write"):
            yield BrokerRule("transactional_id", prefix, True, operation)


def apply_rules(admin: AdminClient, user: str, rules: tuple[BrokerRule, ...]) -> None:
    """Create the rules at the broker; existing ones stay. Raises NoAuthorizer, LogUnavailable."""
    for future in admin.create_acls([_binding(user, one) for one in rules], request_timeout=TIMEOUT_S).values():
        answered(future)


def _binding(user: str, rule: BrokerRule) -> AclBinding:
    return AclBinding(
        ResourceType[rule.resource.upper()],
        rule.name,
        ResourcePatternType.PREFIXED if rule.begins else ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[rule.operation.upper()],
        AclPermissionType.ALLOW,
    )
