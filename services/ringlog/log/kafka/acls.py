"""The broker permissions (ACLs) that each kind of process needs.

``NEEDS`` is the only list: ``rules_for`` derives the ACLs of a user from it, ``acl_check`` compares them with a broker,
and a page of the reference shows it.

A process acts through the topics that it may write. Agents write the log's entries, nodes write acknowledgements, and
the CDC job writes the CDC topic. So each kind of process may write and read only the topics that it uses.

Invariants:

- Each rule names one resource. A prefix would also cover other clusters: the topics of ``shop.eu`` begin with
  ``shop.``, the prefix of the topics of ``shop``.

- The resources of two clusters differ. A topic or group is the cluster's name, a dot and a word without dots. Other
  transactional ids contain a slash, and no cluster's name does. ``READER_GROUP`` is common to all clusters. No process
  joins it, and no rule permits that.

A broker cannot restrict record keys: each node may write acknowledgements for all nodes. A MAC in the acknowledgement
proves its author (``ringlog.wire.acks``).

Source: Apache Kafka 4, ``StandardAuthorizer``. There, READ, WRITE and DELETE imply DESCRIBE.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

from ringlog.kernel.sections import CHANGE_TOPICS, EPOCHS
from ringlog.kernel.values import Value
from ringlog.log.kafka.permissions import TIMEOUT_S, answered
from ringlog.log.kafka.topics import (
    ACKS,
    AGENTS,
    CDC,
    CDC_EXPORTS,
    DEAD_LETTERS,
    LOAD,
    METADATA,
    MUTATIONS,
    REQUESTS,
    RESULTS,
    SCHEMAS,
    SNAPSHOTS,
    TOPICS,
    topic_name,
    transactional_id,
)
from ringlog.runtime.kafka.config import READER_GROUP


class BrokerUser(StrEnum):
    """The kind of process that a set of permissions is for."""

    validator = "validator"
    agent = "agent"
    node = "node"
    client = "client"
    operator = "operator"
    reader = "reader"
    cdc_reader = "cdc-reader"
    cdc_writer = "cdc-writer"
    exporter = "exporter"
    resender = "resender"
    importer = "importer"
    auditor = "auditor"
    admin = "admin"


class GivenNames(Value):
    """The names that a user chooses: topics that are not the cluster's, a consumer group, an export or instance."""

    topics: tuple[str, ...] = ()
    group: str = ""
    name: str = ""


class BrokerNeeds(Value):
    """The permissions of a kind of process.

    Attributes:
        purpose: The processes of the kind, for the reference.
        topics: Suffixes of topics by operation.
        groups: Consumer groups that the process joins, after the cluster's name and a dot.
        transactions: Transactional ids. Those with a slash begin with the cluster's name and a slash, others with the
            cluster's name and a dot. ``{group}`` and ``{name}`` stand for the given names.
        given: Operations on the given topics.
        joins: The process joins the given group, if one is given.
    """

    purpose: str
    topics: dict[str, tuple[str, ...]]
    groups: tuple[str, ...] = ()
    transactions: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    joins: bool = False


ALL_SUFFIXES: Final = tuple(spec.suffix for spec in TOPICS)
_LOG: Final = (METADATA.suffix, SNAPSHOTS.suffix)
"""Topics of a process that follows the log."""
_ASKS: Final = (*_LOG, RESULTS.suffix)
"""Topics of a process that also submits requests, and reads their results."""
_REPORTS: Final = (ACKS.suffix, LOAD.suffix, AGENTS.suffix)
"""Topics of the reports of nodes and agents."""
_ROWS: Final = (CDC.suffix, "cdc-generations", SCHEMAS.suffix)
"""Topics of a reader of CDC rows."""
_ROLES: Final = ("coordinator", "publisher", "keeper", "balancer", "rebalancer")

NEEDS: Final[dict[BrokerUser, BrokerNeeds]] = {
    BrokerUser.validator: BrokerNeeds(
        "the validator",
        {
            "read": (*_LOG, REQUESTS.suffix, RESULTS.suffix, AGENTS.suffix),
            "write": (METADATA.suffix, RESULTS.suffix, AGENTS.suffix),
            "delete": (RESULTS.suffix,),
            "describe_configs": ALL_SUFFIXES,
        },
        groups=("validator",),
        transactions=("validator",),
    ),
    BrokerUser.agent: BrokerNeeds(
        "the other five roles",
        {
            "read": (*_ASKS, *_REPORTS, MUTATIONS.suffix, SCHEMAS.suffix, *CHANGE_TOPICS),
            "write": (
                *(METADATA.suffix, REQUESTS.suffix, ACKS.suffix, AGENTS.suffix, SCHEMAS.suffix, SNAPSHOTS.suffix),
                *CHANGE_TOPICS,
            ),
            "delete": (METADATA.suffix,),
            "describe_configs": ALL_SUFFIXES,
        },
        groups=_ROLES,
        transactions=("publisher",),
    ),
    BrokerUser.node: BrokerNeeds(
        "nodes",
        {
            "read": (*_ASKS, MUTATIONS.suffix, ACKS.suffix),
            "write": (ACKS.suffix, LOAD.suffix, REQUESTS.suffix),
            "describe_configs": (METADATA.suffix,),
        },
    ),
    BrokerUser.client: BrokerNeeds(
        "programs that submit requests and write rows",
        {
            "read": _ASKS,
            "write": (REQUESTS.suffix, MUTATIONS.suffix),
            "describe_configs": (METADATA.suffix,),
        },
    ),
    BrokerUser.operator: BrokerNeeds(
        "operators",
        {
            # `status` measures the lag of CDC writers by the times of mutations, and counts dead letters. Reports of
            # agents can have the schema of a later release. `doctor` compares the settings of all topics.
            "read": (*_ASKS, *_REPORTS, MUTATIONS.suffix, DEAD_LETTERS.suffix, SCHEMAS.suffix),
            "write": (REQUESTS.suffix,),
            "describe_configs": ALL_SUFFIXES,
        },
    ),
    BrokerUser.reader: BrokerNeeds(
        "consumers of change topics",
        {"read": (*CHANGE_TOPICS, SCHEMAS.suffix)},
        joins=True,
    ),
    BrokerUser.cdc_reader: BrokerNeeds(
        "consumers of CDC rows",
        {"read": (*_LOG, *_ROWS), "describe_configs": (METADATA.suffix,)},
        joins=True,
    ),
    BrokerUser.cdc_writer: BrokerNeeds(
        "the CDC job",
        {
            "read": (*_ASKS, MUTATIONS.suffix, CDC.suffix, DEAD_LETTERS.suffix),
            "write": (CDC.suffix, DEAD_LETTERS.suffix, REQUESTS.suffix),
            "describe_configs": (METADATA.suffix, MUTATIONS.suffix, CDC.suffix, DEAD_LETTERS.suffix),
        },
    ),
    BrokerUser.exporter: BrokerNeeds(
        "`cdc export`",
        {
            "read": (*_LOG, *_ROWS, CDC_EXPORTS.suffix),
            "write": (CDC_EXPORTS.suffix,),
            "create": (CDC_EXPORTS.suffix,),
            "describe_configs": (METADATA.suffix,),
        },
        transactions=("export/{name}",),
        given=("create", "describe_configs", "write"),
    ),
    BrokerUser.resender: BrokerNeeds(
        "`cdc dead-letters`",
        {
            "read": (*_LOG, DEAD_LETTERS.suffix),
            "write": (DEAD_LETTERS.suffix, MUTATIONS.suffix),
            "describe_configs": (METADATA.suffix,),
        },
        transactions=("dead-letters/resend",),
    ),
    BrokerUser.importer: BrokerNeeds(
        "`cdc import-debezium`",
        {
            "read": _ASKS,
            "write": (MUTATIONS.suffix, DEAD_LETTERS.suffix),
            "describe_configs": (METADATA.suffix,),
        },
        transactions=("import/{group}/{name}",),
        given=("read",),
        joins=True,
    ),
    BrokerUser.auditor: BrokerNeeds(
        "`audit`",
        {
            "read": (
                *(METADATA.suffix, MUTATIONS.suffix, DEAD_LETTERS.suffix, *_ROWS),
                *("nodes", "schema", "cdc-streams", EPOCHS),
            )
        },
    ),
    BrokerUser.admin: BrokerNeeds(
        "`cluster create`, `delete`, `repair-topics`, `recover`, `cdc run --direct`",
        {"all": (*ALL_SUFFIXES, CDC_EXPORTS.suffix)},
    ),
}
IMPLIES_DESCRIBE: Final = ("read", "write", "delete", "alter", "all")


class NameMissing(ValueError):
    """The kind needs a name that the user chooses. The message has the option."""


class BrokerRule(Value):
    """An operation that is allowed on a resource. ``begins``: on all resources whose names begin so."""

    resource: str
    name: str
    operation: str
    begins: bool = False
    host: str = "*"

    def command(self, user: str, action: str = "add") -> str:
        """Return the options of ``kafka-acls.sh`` that add or remove this rule."""
        kind = self.resource.replace("_", "-")
        where = f"--{kind}" if self.resource == "cluster" else f"--{kind} '{self.name}'"
        pattern = " --resource-pattern-type prefixed" * self.begins
        host = f" --allow-host {self.host}" * (self.host != "*")
        operation = "".join(word.capitalize() for word in self.operation.split("_"))
        return f"--{action} --allow-principal 'User:{user}'{host} --operation {operation} {where}{pattern}"


def rules_for(kind: BrokerUser, cluster: str, given: GivenNames | None = None) -> tuple[BrokerRule, ...]:
    """Return all rules for a kind of process, in a fixed order. Raises NameMissing."""
    given, needs = given or GivenNames(), NEEDS[kind]
    used = " ".join(needs.transactions)
    wanted = {"--topic": needs.given and not given.topics, "--name": "{name}" in used and not given.name}
    wanted["--group"] = "{group}" in used and not given.group
    if missing := [option for option, is_missing in wanted.items() if is_missing]:
        raise NameMissing(f"--for {kind.value} also needs {', '.join(missing)}")
    return tuple(_rules(needs, cluster, given))


def _rules(needs: BrokerNeeds, cluster: str, given: GivenNames) -> Iterator[BrokerRule]:
    implied = {suffix for operation in IMPLIES_DESCRIBE for suffix in needs.topics.get(operation, ())}
    more = {"describe": tuple(suffix for suffix in needs.topics.get("describe_configs", ()) if suffix not in implied)}
    wanted = {**needs.topics, "describe": (*needs.topics.get("describe", ()), *more["describe"])}
    for operation, suffixes in wanted.items():
        for suffix in dict.fromkeys(suffixes):
            yield BrokerRule("topic", topic_name(cluster, suffix), operation)
    for topic in given.topics if needs.given else ():
        for operation in needs.given:
            yield BrokerRule("topic", topic, operation)
    yield BrokerRule("group", READER_GROUP, "describe")
    groups = [topic_name(cluster, group) for group in needs.groups] + [given.group] * bool(needs.joins and given.group)
    for group in groups:
        yield BrokerRule("group", group, "read")
    for one in needs.transactions:
        parts = one.format(group=given.group, name=given.name).split("/")
        name = transactional_id(cluster, *parts) if "/" in one else topic_name(cluster, one)
        yield BrokerRule("transactional_id", name, "write")


def apply_rules(admin: AdminClient, user: str, rules: Sequence[BrokerRule]) -> None:
    """Create the rules at the broker; existing ones stay. Raises NoAuthorizer, LogUnavailable."""
    for future in admin.create_acls([binding(user, one) for one in rules], request_timeout=TIMEOUT_S).values():
        answered(future)


def binding(user: str, rule: BrokerRule) -> AclBinding:
    """Return the rule as the client library has it."""
    return AclBinding(
        ResourceType[rule.resource.upper()],
        rule.name,
        ResourcePatternType.PREFIXED if rule.begins else ResourcePatternType.LITERAL,
        f"User:{user}",
        rule.host,
        AclOperation[rule.operation.upper()],
        AclPermissionType.ALLOW,
    )
