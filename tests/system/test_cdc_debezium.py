"""The import on a real broker: each event once, with several tables and a kill inside a transaction."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cdc.debezium.samples import AT_US, postgres, scylla
from tests.system.cdc_world import World, founded, now_us
from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.client.client import Client
from ringlog.kernel.commands.schema.keyspaces import CreateKeyspace
from ringlog.kernel.commands.schema.tables import CreateTable
from ringlog.kernel.values import CdcOptions, Column, Replication
from ringlog.runtime.kafka.config import QUIET
from ringlog.stack import StackInfo
from ringlog.stack.processes import choose
from ringlog.wire.records import Mutation, decode_dead_letter, decode_mutation
from ringlog_audit.sources.topics import records
from ringlog_debezium.envelope import Form
from ringlog_debezium.mutations import ImportRules, mutation_id
from ringlog_debezium.stage import Import, ImportSettings

pytestmark = pytest.mark.system

TABLES = {
    "shop.people": ({"id": "int", "first_name": "text"}, ("id",), ()),
    "ks.readings": ({"device": "text", "at": "bigint", "note": "text"}, ("device",), ("at",)),
}


class Killed(Exception):
    """The process dies here."""


def tables(world: World) -> None:
    """Create two tables, one with another name than in its source."""
    for full_name, (columns, key, clustering) in TABLES.items():
        keyspace, _, name = full_name.partition(".")
        world.apply(CreateKeyspace(keyspace, Replication("simple", 1)))
        types = tuple(Column(*column) for column in columns.items())
        world.apply(CreateTable(keyspace, name, str(uuid.uuid4()), types, key, clustering, CdcOptions(True)))


class DiesBeforeCommit:
    """A producer whose process dies before the commit: the transaction stays open."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def commit_transaction(self, *_: Any) -> None:
        self._producer.flush()
        raise Killed


def committed(world: World) -> list[Mutation]:
    """Return the committed mutations by partition and offset."""
    return [decode_mutation(item.value() or b"") for item in records(world.bootstrap, f"{world.cluster}.mutations")]


def send_events(bootstrap: str, people: str, readings: str) -> None:
    """Create both topics. Send 41 events, a tombstone and an invalid event."""
    admin = AdminClient({**QUIET, "bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(people, 1), NewTopic(readings, 2)]).values():
        made.result(30)
    producer = Producer({**QUIET, "bootstrap.servers": bootstrap})

    def send(topic: str, event: dict[str, object] | None, partition: int = 0) -> None:
        producer.produce(topic, None if event is None else json.dumps(event).encode(), b'{"id": 1}', partition)

    for number in range(30):
        send(people, postgres("c" if number == 0 else "u", None, {"id": 1, "first_name": f"n{number}"}))
    send(people, postgres("d", None, None, AT_US + 1_000_000))
    send(people, None)
    send(people, {"op": "c"})
    for number in range(10):
        send(readings, scylla("c", None, {"device": "d", "at": number, "note": {"value": "n"}}), number % 2)
    producer.flush()


def test_each_event_is_one_mutation_despite_a_kill(stack: StackInfo, cluster_name: str) -> None:
    people, readings = f"{cluster_name}-people", f"{cluster_name}-readings"
    send_events(stack.bootstrap_servers, people, readings)
    with founded(stack.bootstrap_servers, cluster_name) as world:
        world.join("n1", (0,), now_us() - 1_000_000)
        tables(world)
        options = ["--topic", people, "--topic", readings, "--table", "inventory.customers=shop.people"]
        settings = ImportSettings(
            stack.bootstrap_servers,
            cluster_name,
            (people, readings),
            "one",
            Form(),
            ImportRules({"inventory.customers": "shop.people"}),
            until_end=True,
        )
        with Client(stack.bootstrap_servers, cluster_name, "import") as client:
            first = Import(settings, client, lambda _: None)
            first._producer = DiesBeforeCommit(first._producer)  # type: ignore[assignment]
            with pytest.raises(Killed):
                first.run()
            assert committed(world) == []
            figures = Import(settings, client, lambda _: None).run()
        assert (figures.mutations, figures.refused, figures.tombstones) == (41, 1, 1)
        place = ["--bootstrap", stack.bootstrap_servers, "--cluster", cluster_name, "--group", "one", "--until-end"]
        # A second run reads no event again.
        assert CliRunner().invoke(app, ["cdc", "import-debezium", *options, *place]).exit_code == 0

        found = committed(world)
        assert len({one.mutation_id for one in found}) == len(found) == 41
        own = [one for one in found if one.table == "people"]
        assert [one.timestamp for one in own] == [*range(AT_US, AT_US + 30), AT_US + 1_000_000]
        assert [one.operation for one in own] == ["INSERT", *["UPDATE"] * 29, "ROW_DELETE"]
        assert [one.cells[0].value for one in own[:30]] == [f"n{number}".encode() for number in range(30)]
        assert own[7].mutation_id == mutation_id(people, 0, 7)
        (item,) = records(world.bootstrap, f"{world.cluster}.dead-letters")
        letter = decode_dead_letter(item.value() or b"")
        assert (letter.reason, letter.topic, letter.offset) == ("bad_envelope", people, 32)
        assert json.loads(letter.value or b"") == {"op": "c"}

        (port,) = choose(1)
        place[place.index("one")] = "two"
        more = ["--json", "--metrics-port", str(port)]
        printed = CliRunner().invoke(app, ["cdc", "import-debezium", *options, *place, *more]).stdout
        counts = {"mutations": 41, "refused": 1, "tombstones": 1, "unchanged": figures.unchanged}
        assert json.loads(printed.splitlines()[-1]) == counts
