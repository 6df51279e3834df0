"""Fencing of CDC writers at the broker: permissions on the CDC topic that can be revoked permanently.

A CDC writer that seems dead may only be slow. Its process may continue a week later with records in its buffers. A
fence in the metadata log does not stop it; only the broker does.

So each grant has its own principal ``ringlog/<cluster>/<writer>/<number>``, with SCRAM credentials and an ACL for the
CDC topic and the dead letters. Names of clusters and writers contain no slash, so no two writers share a principal.
(Older principals had dots, which such names may contain. Those of a writer are still found and fenced.)

To fence a writer, every principal that it ever had gets an ACL that *denies* writing. Kafka checks the authorizer at
every produce request, even on open connections, and a denial overrides every permission.

Invariants: denials are never removed, and numbers are never reused; the denials are the record of used numbers. So a
fence is permanent.

A fence is verified. ``writable_partitions`` tries to write as the fenced principal, at the leader of every partition,
with a record that exceeds every topic's limit. A rejection because of the size proves that the principal may still
write. No record is written in either case.

Requirements: a broker with an authorizer, and a SASL listener for the writers. Super users, and clients of an
unauthenticated listener that counts as one, cannot be fenced.

Source: Apache Kafka 4, ``StandardAuthorizer``.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from ringlog.kernel.values import Value
from ringlog.log.errors import LogError, LogUnavailable
from ringlog.log.kafka.topics import CDC, DEAD_LETTERS, RECORD_BYTES_MAX, topic_name
from ringlog.runtime.kafka.config import connection, current
from ringlog.runtime.kafka.security import PLAIN

MECHANISM = "SCRAM-SHA-256"
ITERATIONS = 4_096
TIMEOUT_S = 15.0
TOO_LARGE = RECORD_BYTES_MAX + 64 * 1024
"""Size in bytes of a record that exceeds every topic's limit."""
VISIBLE_S = 15.0
"""Seconds until all brokers must apply a new ACL."""
LOOK_S = 0.1

_EVERYTHING = (CDC.suffix, DEAD_LETTERS.suffix)
_NO_AUTHORIZER = KafkaError.SECURITY_DISABLED


class NoAuthorizer(LogError):
    """The broker has no authorizer, so permissions cannot be revoked."""

    code = "no_authorizer"


class NoRights(LogError):
    """The writer never had separate permissions, so there are none to revoke."""

    code = "no_rights_granted"


class NoListener(LogError):
    """The listener for the writers is not configured."""

    code = "no_listener"


class RightsNotGone(LogError):
    """After the denial a partition's leader still accepts records of the writer."""

    code = "rights_not_gone"


class Rights(Value):
    """Credentials of a writer. ``principal`` is the user's name without ``User:``."""

    principal: str
    password: str

    def java_properties(self, protocol: str) -> dict[str, str]:
        """Return the settings of a Java client."""
        return PLAIN.as_user(protocol, MECHANISM, self.principal, self.password).java()


def grant(admin: AdminClient, cluster: str, writer: str) -> Rights:
    """Create credentials that no writer had before, with write permission. Raises NoAuthorizer, LogUnavailable."""
    made = Rights(next_principal(principals(admin, cluster, writer), cluster, writer), secrets.token_urlsafe(24))
    _bind(admin, cluster, made.principal, (AclOperation.WRITE, AclOperation.DESCRIBE), AclPermissionType.ALLOW)
    _set_password(admin, made)
    return made


def principals(admin: AdminClient, cluster: str, writer: str) -> tuple[str, ...]:
    """Return all principals that the writer ever had, oldest first. Raises NoAuthorizer, LogUnavailable."""
    anybody: Any = None
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        topic_name(cluster, CDC.suffix),
        ResourcePatternType.LITERAL,
        anybody,
        anybody,
        AclOperation.WRITE,
        AclPermissionType.ANY,
    )
    found = answered(admin.describe_acls(wanted, request_timeout=TIMEOUT_S))
    return principals_among((binding.principal.removeprefix("User:") for binding in found), cluster, writer)


def principals_among(names: Iterable[str], cluster: str, writer: str) -> tuple[str, ...]:
    """Return the names that belong to this writer of this cluster, oldest first, without duplicates."""
    prefixes = "|".join(
        re.escape(prefix) for prefix in (f"ringlog/{cluster}/{writer}/", f"ringlog.{cluster}.{writer}.")
    )
    ours = re.compile(f"(?:{prefixes})[1-9][0-9]*")
    return tuple(sorted({name for name in names if ours.fullmatch(name)}, key=_number))


def next_principal(had: Iterable[str], cluster: str, writer: str) -> str:
    """Return a principal that neither this writer nor another one ever had. ``had`` lists those of this writer."""
    return f"ringlog/{cluster}/{writer}/{max(map(_number, had), default=0) + 1}"


def _number(principal: str) -> int:
    return int(re.split("[./]", principal)[-1])


def deny(admin: AdminClient, cluster: str, principal: str) -> Rights:
    """Revoke the write permission permanently. Return new credentials, unknown to the writer. Raises LogUnavailable."""
    _bind(admin, cluster, principal, (AclOperation.WRITE,), AclPermissionType.DENY)
    changed = Rights(principal, secrets.token_urlsafe(24))
    _set_password(admin, changed)
    return changed


def await_write_denied(listener: str, protocol: str, cluster: str, rights: Rights, partitions: Sequence[int]) -> None:
    """Wait until the leader of every partition rejects a denied principal. Raises RightsNotGone."""
    deadline = time.monotonic() + VISIBLE_S
    while taking := writable_partitions(listener, protocol, cluster, rights, partitions):
        if time.monotonic() >= deadline:
            raise RightsNotGone(
                f"{rights.principal} can still write to partitions {taking} of {topic_name(cluster, CDC.suffix)}",
                "check that the principal is not a super user, and that every broker reads the ACLs",
            )
        threading.Event().wait(LOOK_S)


def writable_partitions(
    listener: str, protocol: str, cluster: str, rights: Rights, partitions: Sequence[int]
) -> tuple[int, ...]:
    """Return the partitions of the CDC topic whose leader lets the principal write. No record is written.

    Raises LogUnavailable, RightsNotGone.
    """
    options = {
        **connection(listener, current().security.as_user(protocol, MECHANISM, rights.principal, rights.password)),
        # The client must not reject the record itself, and must not retry: the broker's first answer decides.
        "message.max.bytes": 4 * TOO_LARGE,
        "message.timeout.ms": int(TIMEOUT_S * 1_000),
        "retries": 0,
        "log_level": 2,
    }
    topic = topic_name(cluster, CDC.suffix)
    return tuple(partition for partition in partitions if _may_write(options, topic, partition))


def _may_write(options: Mapping[str, Any], topic: str, partition: int) -> bool:
    """Try one partition, with a new producer: after one rejection a producer asks no other leader."""
    told: list[KafkaError | None] = []
    producer = Producer(dict(options))
    try:
        producer.produce(topic, bytes(TOO_LARGE), partition=partition, on_delivery=lambda error, _: told.append(error))
        producer.flush(TIMEOUT_S + 5)
    except KafkaException as refused:
        told.append(refused.args[0])
    error = told[0] if told else None
    if told and error is None:
        raise RightsNotGone(f"a record of {TOO_LARGE} bytes was accepted", "check max.message.bytes of the topic")
    if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return False
    if error is not None and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return True
    why = "no answer" if error is None else error.str()
    raise LogUnavailable(f"cannot test partition {partition}: {why}", "check the listener of the writers")


def _bind(
    admin: AdminClient,
    cluster: str,
    principal: str,
    operations: Sequence[AclOperation],
    permission: AclPermissionType,
) -> None:
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            topic_name(cluster, suffix),
            ResourcePatternType.LITERAL,
            f"User:{principal}",
            "*",
            operation,
            permission,
        )
        for suffix in _EVERYTHING
        for operation in operations
    ]
    for future in admin.create_acls(bindings, request_timeout=TIMEOUT_S).values():
        answered(future)


def _set_password(admin: AdminClient, rights: Rights) -> None:
    kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, ITERATIONS)
    wanted = UserScramCredentialUpsertion(rights.principal, kind, rights.password.encode())
    for future in admin.alter_user_scram_credentials([wanted], request_timeout=TIMEOUT_S).values():
        answered(future)


def answered(future: Future[Any]) -> Any:
    """Return the broker's answer to a change of permissions. Raises NoAuthorizer, LogUnavailable."""
    try:
        return future.result(timeout=TIMEOUT_S + 5)
    except KafkaException as error:
        if error.args[0].code() == _NO_AUTHORIZER:
            raise NoAuthorizer(
                "the broker has no authorizer: every client that can connect may write",
                "set authorizer.class.name, or stop the writer by other means",
            ) from error
        raise LogUnavailable(f"the broker rejected the change of ACLs: {error.args[0].str()}") from error
    except TimeoutError as error:
        raise LogUnavailable("the broker did not answer about ACLs", "check that the broker is up") from error
