"""Each kind of process works with exactly its permissions at a real broker, and a thief of its credential has the same
permissions and no others.

The broker logs each decision of its authorizer. So the test also finds permissions that a process lacks, even if the
process tolerates the refusal.
"""

from __future__ import annotations

import json
import re
import shlex
import uuid
from argparse import ArgumentParser
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.cdc.debezium.samples import postgres
from tests.system.agents_world import until
from tests.system.cdc_world import PARTITIONS, write
from tests.system.guarded_kafka import PREFIX, Guarded, allow
from tests.system.test_kafka_login import TABLE
from tests.system.user import User

from ringlog.kernel.ring.murmur3 import compose
from ringlog.log.kafka.acl_check import AclDifference, compare, found_acls
from ringlog.log.kafka.acls import (
    ALL_SUFFIXES,
    NEEDS,
    BrokerRule,
    BrokerUser,
    GivenNames,
    apply_rules,
    binding,
    rules_for,
)
from ringlog.log.kafka.topics import RECORD_BYTES_MAX
from ringlog.protocol.roles import ROLES
from ringlog.wire.records import encode_mutation, mutation_key, mutation_partition

pytestmark = [pytest.mark.system, pytest.mark.slow]
K = BrokerUser
PEOPLE = TABLE | {
    "name": "people",
    "columns": [{"name": "id", "type": "int"}, {"name": "first_name", "type": "text"}],
    "partition_key": ["id"],
    "clustering_key": [],
}
DECISION = re.compile(r"User:(\S+) is (Allowed|Denied) operation = (\w+) .* on resource = (\w+):LITERAL:(\S+) for")
NOT_USED = {
    # A status at a start that was refused; the results before the oldest one that is kept.
    K.validator: {"agents read", "results read", "results delete", "snapshots read"},
    # Acknowledgements of nodes that left; truncation of the log; pruning of table versions; change topics that were
    # damaged or have nothing to publish in this test; a status at a start that was refused.
    K.agent: {
        *("acks write", "agents read", "metadata delete", "mutations read", "schemas write"),
        *(f"{suffix} read" for suffix in ("nodes", "placements", "schema", "operations", "cdc-generations")),
        *(f"{suffix} {word}" for suffix in ("features", "service", "tablets", "zones") for word in ("read", "write")),
        "cdc-streams read",
    },
    # A start after the first snapshot.
    K.node: {"snapshots read"},
    # The status of an agent of a later release.
    K.operator: {"schemas read"},
    # The group of the reader of rows: the command joins none.
    K.cdc_reader: {"-group read"},
    # The rows of nodes; the schema of a log that lost its beginning.
    K.auditor: {"nodes read", "schema read"},
    # A second run of the export.
    K.exporter: {"cdc-exports read"},
    # Refused events.
    K.importer: {"dead-letters write"},
    # `show`, which decodes a write by the schema.
    K.resender: {"metadata describe_configs", "metadata read", "snapshots read"},
    # A start after the loss of the checkpoint.
    K.cdc_writer: {"cdc read", "dead-letters read"},
}
"""Permissions that the processes of this test do not use, with their use."""
TOO_LARGE = 2 * RECORD_BYTES_MAX + 64 * 1024
"""A record size above the limit of all topics: a client that is rejected for the size has permission to write."""
WAIT_S = 60.0


@dataclass
class Cluster:
    """A cluster whose kinds of processes have their own users. ``begin``: bytes of the broker's log before it."""

    guarded: Guarded
    user: User
    name: str = field(default_factory=lambda: f"{PREFIX}{uuid.uuid4().hex[:8]}")
    begin: int = 0

    def __post_init__(self) -> None:
        """Skip the decisions of earlier tests."""
        self.begin = self.guarded.log.stat().st_size

    def given(self, kind: BrokerUser) -> list[str]:
        """Return the names of a kind as options."""
        names, found = self.names(kind), []
        for topic in names.topics:
            found += ["--topic", topic]
        return found + ["--group", names.group] * bool(names.group) + ["--name", names.name] * bool(names.name)

    def names(self, kind: BrokerUser) -> GivenNames:
        topics = {K.exporter: (f"{self.name}-target",), K.importer: (f"{self.name}-source",)}
        group = f"{self.name}-group" if kind in (K.importer, K.reader, K.cdc_reader) else ""
        return GivenNames(topics.get(kind, ()), group, "1" if kind in topics else "")

    def by(self, kind: BrokerUser) -> list[str]:
        """Return the options of a command that logs in as a kind."""
        guarded = self.guarded
        return ["--bootstrap", guarded.users, "--cluster", self.name, "--kafka-config", str(guarded.logins[kind])]

    def acls(self, kind: BrokerUser, *words: str, status: int = 0) -> str:
        where = ["--cluster", self.name, "--bootstrap", self.guarded.tls, "--kafka-config", str(self.guarded.admin)]
        own = ["--for", kind.value, "--user", kind.value, *self.given(kind)]
        return self.user.run("cluster", "acls", *own, *where, *words, status=status)

    def rules(self, kind: BrokerUser) -> tuple[BrokerRule, ...]:
        return rules_for(kind, self.name, self.names(kind))

    def decisions(self, kind: BrokerUser) -> tuple[set[str], set[str]]:
        """Return the permitted and the denied operations of a kind."""
        found: dict[str, set[str]] = {"Allowed": set(), "Denied": set()}
        lines = self.guarded.log.read_bytes()[self.begin :].decode(errors="replace")
        for user, word, operation, _, name in DECISION.findall(lines):
            if user == kind:
                found[word].add(self.short(name, operation.lower()))
        return found["Allowed"], found["Denied"]

    def short(self, resource: str, operation: str) -> str:
        return f"{resource.removeprefix(self.name).removeprefix('.')} {operation}"


def test_each_kind_works_with_exactly_its_permissions(guarded: Guarded, user: User, tmp_path: Path) -> None:
    cluster = Cluster(guarded, user)
    _log_decisions(guarded)
    _grant(cluster)
    _use(cluster, tmp_path)
    _write(guarded, cluster.name)
    _consume_changes(cluster)
    by = cluster.by
    source, target = (cluster.names(kind).topics[0] for kind in (K.importer, K.exporter))
    group = cluster.names(K.importer).group
    options = ["--topic", source, "--group", group, "--table", "inventory.customers=shop.people", "--until-end"]
    user.run("cdc", "import-debezium", *options, *by(K.importer))
    user.run("data", "rows", "shop.orders", "c1", *by(K.client))
    job = ["cdc", "run", "--checkpoint", str(tmp_path / "checkpoint"), "--stop-when-idle", "--trigger-seconds", "0"]
    user.run(*job, "--java-options", "-XX:TieredStopAtLevel=1", *by(K.cdc_writer))
    user.run("audit", "--json", *by(K.auditor))
    assert user.run("cdc", "tail", "--json", "--until-end", *by(K.cdc_reader)).count("\n") == 19
    user.run("cdc", "export", "--topic", target, "--name", "1", "--until-end", *by(K.exporter))
    resent = json.loads(user.run("cdc", "dead-letters", "resend", "--since", "1", "--yes", "--json", *by(K.resender)))
    assert resent
    for view in ("status", "agents status", "node list", "operation list", "cdc status", "cluster settings"):
        user.run(*view.split())
    checks = {one["check"]: one for one in json.loads(user.run("doctor", "-o", "json"))["findings"]}
    assert (checks["topics"]["verdict"], checks["agents"]["verdict"]) == ("ok", "ok"), checks
    found = {kind: cluster.decisions(kind) for kind in K}
    assert {kind: denied for kind, (_, denied) in found.items() if denied} == {}
    unused = {}
    for kind in set(K) - {K.admin}:
        used = {one for one in found[kind][0] if not one.endswith(" describe")}
        needed = {cluster.short(one.name, one.operation) for one in cluster.rules(kind) if one.operation != "describe"}
        assert used <= needed, kind
        unused[kind] = needed - used - NOT_USED.get(kind, set())
    assert {kind: rest for kind, rest in unused.items() if rest} == {}


def _grant(cluster: Cluster) -> None:
    """Give each kind its ACLs, and wait until the broker has them: the controller confirms them earlier."""
    client = cluster.guarded.super_client()
    for kind in K:
        rules = cluster.rules(kind)
        apply_rules(client, kind, rules)

        def is_equal(kind: BrokerUser = kind, rules: tuple[BrokerRule, ...] = rules) -> bool:
            return compare(rules, found_acls(client, kind), cluster.name) == AclDifference((), ())

        until(is_equal, f"the ACLs of {kind}")


def _log_decisions(guarded: Guarded) -> None:
    """Let the broker log each decision of its authorizer."""
    level = ["--add-config", "kafka.authorizer.logger=DEBUG"]
    entity = ["--entity-type", "broker-loggers", "--entity-name", "1"]
    guarded.run_tool("kafka.admin.ConfigCommand", "--alter", *entity, *level)


def _use(cluster: Cluster, folder: Path) -> None:
    """Create the cluster, start agents and a node, and create tables, each as its own user."""
    user, by = cluster.user, cluster.by
    place = ["--bootstrap", cluster.guarded.users]
    user.run("cluster", "create", cluster.name, *place, *by(K.admin)[4:])
    user.run("cluster", "use", cluster.name, *place, *by(K.operator)[4:])
    for role in ROLES:
        user.begin("agent", role, *by(K.validator if role == K.validator else K.agent))
    user.join_node("--data", str(folder / "node"), *by(K.node))
    user.run("submit", '{"command": "DropKeyspace", "name": "unknown"}', status=1)
    user.run("snapshot", "take")
    user.run("keyspace", "create", "shop", "--factor", "1")
    for table in (TABLE, PEOPLE):
        user.run("submit", json.dumps(table))
    user.run("submit", '{"command": "Noop"}', *by(K.client))


def _write(guarded: Guarded, cluster: str) -> None:
    """Write rows as a client, one of them to an unknown table, and send an event to the source of the import."""
    producer = Producer(guarded.login_of(K.client) | {"enable.idempotence": True})
    for number in range(20):
        mutation = write(f"c{number % 3}", number, table="orders" if number else "unknown")
        key = mutation_key("shop", mutation.table, compose([part or b"" for part in mutation.partition_key]))
        producer.produce(f"{cluster}.mutations", encode_mutation(mutation), key, mutation_partition(key, PARTITIONS))
    assert producer.flush(WAIT_S) == 0
    client = guarded.super_client()
    client.create_topics([NewTopic(f"{cluster}-source", 1, 1)])[f"{cluster}-source"].result(WAIT_S)
    source = Producer(guarded.login_of(K.admin) | {"bootstrap.servers": guarded.users})
    allow(guarded, "admin", f"{cluster}-source", AclOperation.WRITE)
    event = postgres("c", None, {"id": 1, "first_name": "n"})
    source.produce(f"{cluster}-source", json.dumps(event).encode(), b'{"id": 1}')
    assert source.flush(WAIT_S) == 0


def _consume_changes(cluster: Cluster) -> None:
    """Read a record of each change topic that has one, as a member of a group."""
    options = {"group.id": cluster.names(K.reader).group, "auto.offset.reset": "earliest", "enable.partition.eof": True}
    consumer = Consumer(cluster.guarded.login_of(K.reader) | options)
    wanted = {f"{cluster.name}.{suffix}" for suffix in NEEDS[K.reader].topics["read"]}
    consumer.subscribe(sorted(wanted))
    read = 0
    while wanted:
        message = consumer.poll(WAIT_S)
        assert message is not None, wanted
        error = message.error()
        assert error is None or error.code() == KafkaError._PARTITION_EOF, error
        read += error is None
        wanted -= set() if error is None else {message.topic()}
    consumer.commit(asynchronous=False)
    consumer.close()
    assert read


# A thief has the credential of one kind, and tries each operation on each topic of two clusters.


def test_a_thief_of_a_credential_can_do_exactly_what_the_table_says(guarded: Guarded, user: User) -> None:
    cluster = Cluster(guarded, user)
    _grant(cluster)
    other = f"{cluster.name}.eu"
    foreign = [f"{other}.{suffix}" for suffix in ("metadata", "requests", "cdc")]
    names = [f"{cluster.name}.{suffix}" for suffix in ALL_SUFFIXES] + foreign
    client = guarded.super_client()
    made = client.create_topics([NewTopic(one, 1, 1) for one in names])
    for future in made.values():
        future.result(WAIT_S)
    for kind in K:
        rules = cluster.rules(kind)
        for operation, taken in _taken(guarded, kind, names).items():
            told = {one.name for one in rules if one.operation in (operation, "all") and one.name in names}
            assert taken == told, (kind, operation)
    ids = {one.name: kind for kind in K for one in cluster.rules(kind) if one.resource == "transactional_id"}
    ids |= {name.replace(cluster.name, other): K.admin for name in ids}
    for kind in K:
        assert {name for name in ids if _fences(guarded.login_of(kind), name)} == {
            one.name for one in cluster.rules(kind) if one.resource == "transactional_id"
        }


def _taken(guarded: Guarded, kind: BrokerUser, names: list[str]) -> dict[str, set[str]]:
    """Return the topics by operation that succeeds, or fails for another reason than the permission."""
    login = guarded.login_of(kind)
    client = AdminClient(login)
    configs = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    entry = [ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)]
    changes = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=entry) for name in names]
    return {
        "write": _writable(login, names),
        "read": _readable(login, names),
        "describe_configs": _permitted(client.describe_configs(configs)),
        "alter_configs": _permitted(client.incremental_alter_configs(changes, validate_only=True)),
        "create": _permitted(client.create_topics([NewTopic(name, 1, 1) for name in names], validate_only=True)),
        "delete": _permitted(client.delete_records([TopicPartition(name, 0, 0) for name in names])),
    }


def _permitted(answers: dict[object, object]) -> set[str]:
    found = set()
    for resource, future in answers.items():
        try:
            future.result(WAIT_S)  # type: ignore[attr-defined]
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                continue
        found.add(getattr(resource, "name", None) or getattr(resource, "topic", None) or str(resource))
    return found


def _writable(login: dict[str, str], names: Collection[str]) -> set[str]:
    """Try a record that exceeds the limit of all topics."""
    ended: list[tuple[str, int]] = []
    producer = Producer(login | {"log_level": 2, "message.max.bytes": 2 * TOO_LARGE})

    def end(error: KafkaError, message: Message) -> None:
        ended.append((message.topic(), error and error.code()))

    for name in names:
        try:
            producer.produce(name, bytes(TOO_LARGE), partition=0, on_delivery=end)
        except KafkaException as refused:  # the client knows already
            ended.append((name, refused.args[0].code()))
    assert producer.flush(WAIT_S) == 0
    refusals = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.MSG_SIZE_TOO_LARGE
    assert (len(ended), {code for _, code in ended} - {*refusals}) == (len(names), set()), "no record is written"
    return {name for name, code in ended if code == KafkaError.MSG_SIZE_TOO_LARGE}


def _readable(login: dict[str, str], names: Collection[str]) -> set[str]:
    options = {"group.id": "ringlog-assigns-and-never-joins", "enable.partition.eof": True, "log_level": 2}
    consumer = Consumer(login | options | {"enable.auto.commit": False})
    # The broker lists only topics that the login may describe; for others the library reports no error.
    visible = consumer.list_topics(timeout=WAIT_S).topics.keys() & set(names)
    consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING) for name in visible])
    readable: set[str] = set()
    refused: set[str] = set()
    while readable | refused != visible:
        message = consumer.poll(WAIT_S)
        assert message is not None, visible - readable - refused
        error = message.error()
        is_read = error is None or error.code() == KafkaError._PARTITION_EOF
        assert is_read or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
        (readable if is_read else refused).add(message.topic())
    consumer.close()
    return readable


def _fences(login: dict[str, str], transactional_id: str) -> bool:
    """Return whether the login may take a transactional id."""
    producer = Producer(login | {"transactional.id": transactional_id, "log_level": 2})
    code = None
    try:
        producer.init_transactions(WAIT_S)
    except KafkaException as error:
        code = error.args[0].code()
    assert code in (None, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return code is None


def test_the_check_finds_each_difference_and_prints_its_correction(guarded: Guarded, user: User) -> None:
    cluster = Cluster(guarded, user)
    cluster.acls(K.client, "--check", status=1)
    assert "acl_missing: client lacks" in user.told
    cluster.acls(K.client, "--apply")
    cluster.acls(K.client, "--check")
    allow(guarded, "client", f"{cluster.name}.", AclOperation.READ)
    allow(guarded, "*", PREFIX, AclOperation.DELETE)
    surplus = json.loads(cluster.acls(K.client, "--check", "--json", status=1))
    assert (surplus["code"], len(surplus["ways_out"])) == ("acl_surplus", 2)
    _run(guarded, surplus["ways_out"])
    cluster.acls(K.client, "--check")
    client = guarded.super_client()
    needed = BrokerRule("topic", f"{cluster.name}.requests", "write")
    client.delete_acls([_filter(binding("client", needed))])[_filter(binding("client", needed))].result(WAIT_S)
    missing = json.loads(cluster.acls(K.client, "--check", "--json", status=1))
    assert (missing["code"], len(missing["ways_out"])) == ("acl_missing", 1)
    _run(guarded, missing["ways_out"])
    cluster.acls(K.client, "--check")


def _run(guarded: Guarded, commands: Iterable[str]) -> None:
    """Do what Kafka's tool does with the printed commands. The test has no jar of the tool."""
    client, parser = guarded.super_client(), ArgumentParser()
    for action in ("--add", "--remove"):
        parser.add_argument(action, action="store_true")
    for option in ("--bootstrap-server", "--allow-principal", "--operation", "--topic", "--group"):
        parser.add_argument(option)
    parser.add_argument("--resource-pattern-type", default="literal")
    for command in commands:
        tool, *words = shlex.split(command)
        found = parser.parse_args(words)
        assert (tool, found.bootstrap_server) == ("kafka-acls.sh", guarded.tls)
        kind, name = ("topic", found.topic) if found.topic else ("group", found.group)
        rule = BrokerRule(kind, name, found.operation.lower(), found.resource_pattern_type == "prefixed")
        acl = binding(found.allow_principal.removeprefix("User:"), rule)
        if found.add:
            client.create_acls([acl])[acl].result(WAIT_S)
        else:
            assert client.delete_acls([_filter(acl)])[_filter(acl)].result(WAIT_S), "the ACL existed"


def _filter(acl: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        *(acl.restype, acl.name, acl.resource_pattern_type, acl.principal, acl.host, acl.operation, acl.permission_type)
    )
