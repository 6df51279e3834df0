"""Comparison of the ACLs at a broker with those that a kind of process needs.

ACLs are compared by their effect on the resources of the cluster. So ALL on a topic covers READ, a prefix covers each
topic below it, and an ACL for a user's own topics is neither missing nor surplus. An ACL that is limited to one host
counts, since a process may run on that host.

A rule is *missing* if its operation is not permitted, or is denied. An ACL is *surplus* if it permits an operation on
the cluster's resources that the kind does not need. A prefix or the name ``*`` is always surplus: it also permits
operations on other clusters. ACLs of ``User:*`` apply to each user. Super users bypass ACLs, and no ACL shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from ringlog.kernel.values import Value
from ringlog.log.kafka.acls import (
    ALL_SUFFIXES,
    IMPLIES_DESCRIBE,
    NEEDS,
    BrokerRule,
    BrokerUser,
    GivenNames,
    rules_for,
)
from ringlog.log.kafka.permissions import TIMEOUT_S, answered
from ringlog.log.kafka.topics import CDC_EXPORTS, topic_name

EVERYBODY: Final = "*"
OPERATIONS: Final = {
    "topic": ("read", "write", "create", "delete", "alter", "describe", "describe_configs", "alter_configs"),
    "group": ("read", "describe", "delete", "describe_configs", "alter_configs"),
    "transactional_id": ("describe", "write"),
    "cluster": ("create", "alter", "describe", "cluster_action", "describe_configs", "alter_configs"),
}
"""The operations on each kind of resource. IDEMPOTENT_WRITE is left out: Kafka has ignored it since version 3.0."""
CLUSTER_NAME: Final = "kafka-cluster"

Permission = tuple[str, str, str]
"""Kind of resource, name, operation."""


class FoundAcl(Value):
    """An ACL at the broker: the rule, the user without ``User:``, and whether it denies."""

    user: str
    rule: BrokerRule
    denies: bool = False


class AclDifference(Value):
    """The result of a comparison."""

    missing: tuple[BrokerRule, ...]
    surplus: tuple[FoundAcl, ...]


def found_acls(admin: AdminClient, user: str) -> tuple[FoundAcl, ...]:
    """Return the ACLs of a user and of ``User:*``. Raises NoAuthorizer, LogUnavailable."""
    anything: Any = None
    found: list[AclBinding] = []
    for principal in (f"User:{user}", f"User:{EVERYBODY}"):
        wanted = AclBindingFilter(
            ResourceType.ANY,
            anything,
            ResourcePatternType.ANY,
            principal,
            anything,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        found += answered(admin.describe_acls(wanted, request_timeout=TIMEOUT_S))
    return tuple(_found(one) for one in found)


def _found(acl: AclBinding) -> FoundAcl:
    # The stubs also allow the names and numbers of the enumerations, which the library accepts as arguments.
    restype, operation = cast("ResourceType", acl.restype), cast("AclOperation", acl.operation)
    kind = "cluster" if restype is ResourceType.BROKER else restype.name.lower()
    begins = acl.resource_pattern_type is ResourcePatternType.PREFIXED
    rule = BrokerRule(kind, acl.name, operation.name.lower(), begins, acl.host)
    return FoundAcl(acl.principal.removeprefix("User:"), rule, acl.permission_type is AclPermissionType.DENY)


def compare(rules: Sequence[BrokerRule], found: Iterable[FoundAcl], cluster: str) -> AclDifference:
    """Compare the rules of a kind with the ACLs at the broker."""
    acls, names = tuple(found), {*_resources(cluster), *((one.resource, one.name) for one in rules)}
    needed = {permission for rule in rules for permission in _permitted(rule, names)}
    denied = {permission for acl in acls if acl.denies for permission in _covered(acl.rule, names)}
    permitted = {permission for acl in acls if not acl.denies for permission in _permitted(acl.rule, names)} - denied
    return AclDifference(
        tuple(rule for rule in rules if not set(_permitted(rule, names)) <= permitted),
        tuple(acl for acl in acls if not acl.denies and _is_surplus(acl.rule, names, needed)),
    )


def _is_surplus(rule: BrokerRule, names: Iterable[tuple[str, str]], needed: set[Permission]) -> bool:
    permitted = set(_permitted(rule, names))
    return bool(permitted - needed or (permitted and (rule.begins or rule.name == EVERYBODY)))


def _covered(rule: BrokerRule, names: Iterable[tuple[str, str]]) -> Iterator[Permission]:
    """Yield the permissions that a rule names, without those that Kafka derives from them."""
    for kind, name in names:
        if kind != rule.resource:
            continue
        if rule.name in (name, EVERYBODY) or (rule.begins and name.startswith(rule.name)):
            for operation in OPERATIONS[kind] if rule.operation == "all" else (rule.operation,):
                yield kind, name, operation


def _permitted(rule: BrokerRule, names: Iterable[tuple[str, str]]) -> Iterator[Permission]:
    for kind, name, operation in _covered(rule, names):
        if operation in OPERATIONS[kind]:
            yield kind, name, operation
        if operation in IMPLIES_DESCRIBE:
            yield kind, name, "describe"
        if operation == "alter_configs":
            yield kind, name, "describe_configs"


def _resources(cluster: str) -> Iterator[tuple[str, str]]:
    """Yield the resources of a cluster whose names do not depend on a user's choice, and the Kafka cluster itself."""
    yield "cluster", CLUSTER_NAME
    for suffix in (*ALL_SUFFIXES, CDC_EXPORTS.suffix):
        yield "topic", topic_name(cluster, suffix)
    for kind in BrokerUser:
        if not NEEDS[kind].given:
            yield from ((one.resource, one.name) for one in rules_for(kind, cluster, GivenNames()))
