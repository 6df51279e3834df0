"""Which rights each kind of process needs at the broker: one table, from which a broker's rules (ACLs) are made.

A topic is a claim to be who may write to it: an entry of the log is what agents decided, an acknowledgement is a
node's, a row of the CDC topic is the job's. So each kind may write what is its own, and read all that is the cluster's.

===========  =========================================================================================================
validator    the log, the results of requests, its heartbeats
agent        the log (take-overs), requests, what agents publish; the keeper deletes entries that an archive holds
node         acknowledgements, loads, requests
client       requests, and rows of base tables: asks, and commits nothing
cdc-writer   the CDC topic, dead letters, requests
===========  =========================================================================================================

What a broker cannot tell apart are keys: each node may write acknowledgements of all nodes. Whose they are, a code
says (``ringlog.wire.acks``). Who makes the topics
(``ringlog cluster found``, ``recover``) has more rights than any of these. Source: Apache Kafka 4,
``StandardAuthorizer``.
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
    """For what kind of process rights are."""

    validator = "validator"
    agent = "agent"
    node = "node"
    client = "client"
    cdc_writer = "cdc-writer"


@dataclass(frozen=True, slots=True)
class BrokerNeeds:
    """Beside reading. ``writes``, ``deletes``: suffixes of topics; ``groups``: how the names of its consumer groups
    begin, after that of the cluster; ``transacts``: it has transactional ids of the cluster.
    """

    writes: tuple[str, ...]
    deletes: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    transacts: bool = False


NEEDS: Final[dict[BrokerUser, BrokerNeeds]] = {
    BrokerUser.validator: BrokerNeeds(
        (METADATA.suffix, RESULTS.suffix, AGENTS.suffix), groups=("validator",), transacts=True
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
"""How the groups begin that readers name, and never join: the client library looks for their coordinator."""
SPARK: Final = "spark-kafka"
"""How the groups begin that Spark's source makes up."""


@dataclass(frozen=True, slots=True)
class BrokerRule:
    """One rule: what may be done with the resources of that name, or whose names begin so (``begins``)."""

    resource: str
    name: str
    begins: bool
    operation: str

    def command(self, user: str) -> str:
        """The options of ``kafka-acls.sh`` that make it."""
        kind = {"transactional_id": "transactional-id"}.get(self.resource, self.resource)
        pattern = " --resource-pattern-type prefixed" if self.begins else ""
        operation = "".join(word.capitalize() for word in self.operation.split("_"))
        return f"--add --allow-principal 'User:{user}' --operation {operation} --{kind} {self.name}{pattern}"


def rules_for(kind: BrokerUser, cluster: str) -> tuple[BrokerRule, ...]:
    """All that this kind of process needs, in a fixed order."""
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
    """Have the rules at the broker; what is there stays. Raises NoAuthorizer, LogUnavailable."""
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
