"""Import of recorded clusters: owners as in the source, left out objects, and refused claims of a source."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from random import Random
from typing import Any
from uuid import UUID

import pytest
from cassandra import metadata
from cassandra.pool import Host
from cassandra.util import OrderedMapSerializedKey, SortedSet

from ringlog.kernel.model.tablet_map import uniform_ends
from ringlog.operator.ddl.writing import describe
from ringlog.operator.imports.mapping import ImportedPlan, plan_of
from ringlog.operator.imports.recording import TABLES, BadSource, read_recording, recording_of
from ringlog.operator.imports.source import Endpoint, _json, read_source
from ringlog.operator.rehearsal.rehearsal import Rehearsal
from tests.tidy.files import ROOT

DATA = ROOT / "tests/testdata/imports"
REAL = DATA / "cassandra-5.0.json"
"""Recorded from three nodes of Cassandra 5.0.2, without its own tables."""
VERSION = "11111111-1111-1111-1111-111111111111"


def ids(number: int) -> str:
    return f"{number:08d}-0000-4000-8000-000000000000"


def node(number: int, tokens: list[int], datacenter: str = "dc1", rack: str = "r1") -> dict[str, Any]:
    return {
        "peer": f"10.0.0.{number}",
        "host_id": ids(number),
        "data_center": datacenter,
        "rack": rack,
        "tokens": [str(token) for token in tokens],
        "release_version": "4.1.7",
        "schema_version": VERSION,
    }


def rows_of(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tables of nodes, as Cassandra 4.1 has them: the first node answers."""
    first = {**nodes[0], "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner", "cluster_name": "shop"}
    local = first | {"broadcast_address": first.pop("peer"), "broadcast_port": 7000}
    rows: dict[str, Any] = {table: [] for table in TABLES["scylla"]}
    return rows | {"system.local": [local], "system.peers_v2": [one | {"peer_port": 7001} for one in nodes[1:]]}


def keyspace(name: str, replication: dict[str, str]) -> dict[str, Any]:
    found = {"class": f"org.apache.cassandra.locator.{replication['class']}"}
    return {"keyspace_name": name, "replication": replication | found, "durable_writes": True}


def column(name: str, kind: str, position: int, form: str = "int", table: str = "t") -> dict[str, Any]:
    place = {"keyspace_name": "ks", "table_name": table}
    return place | {"column_name": name, "kind": kind, "position": position, "type": form, "clustering_order": "none"}


def small() -> dict[str, Any]:
    """Return two nodes, a keyspace ``ks`` and a table ``t``."""
    rows = rows_of([node(1, [-10, 10]), node(2, [0, 20], rack="r2")])
    rows["system_schema.keyspaces"] = [
        keyspace("ks", {"class": "SimpleStrategy", "replication_factor": "2"}),
        keyspace("system_auth", {"class": "SimpleStrategy", "replication_factor": "1"}),
    ]
    rows["system_schema.tables"] = [
        {"keyspace_name": "ks", "table_name": "t", "id": ids(90), "flags": ["compound"], "cdc": True}
    ]
    rows["system_schema.columns"] = [column("a", "partition_key", 0), column("v", "regular", -1, "text")]
    return rows


def rehearsed(plan: ImportedPlan) -> Rehearsal:
    """Rehearse a plan. Every line must be applied."""
    rehearsal = Rehearsal()
    for number, line in enumerate(plan.text().splitlines(), start=1):
        answer = rehearsal.line(line, number)
        assert answer.get("outcome", "applied") == "applied", (line, answer)
    return rehearsal


def owners(rehearsal: Rehearsal, name: str) -> dict[tuple[int, int], set[str]]:
    shown = rehearsal.line(json.dumps({"show": "placements", "keyspace": name}), 1)
    return {(one["start"], one["end"]): set(one["replicas"]) for one in shown["read"]}


def owner_at(found: dict[tuple[int, int], set[str]], token: int) -> set[str]:
    for (start, end), nodes in found.items():
        if start < token <= end or (start >= end and (token > start or token <= end)):
            return nodes
    raise AssertionError(token)


# ---------------------------------------------------------------------------------------------- owners as in the source


def test_a_real_cluster_has_the_owners_that_its_nodetool_printed() -> None:
    rehearsal = rehearsed(plan_of(read_recording(REAL.read_text())))
    seen = 0
    for line in (DATA / "cassandra-5.0-ring.txt").read_text().splitlines()[1:]:
        name, _, end, *nodes = line.split()
        assert owner_at(owners(rehearsal, name), int(end)) == {*nodes}, line
        seen += 1
    assert seen == 24


@pytest.mark.parametrize("seed", range(4))
def test_owners_are_those_of_cassandras_strategies(seed: int) -> None:
    rng = Random(seed)
    tokens = [rng.randrange(-(2**63) + 1, 2**63) for _ in range(60)]
    nodes = [
        node(index + 1, tokens[index * 6 : index * 6 + 6], f"dc{index % 2 + 1}", f"r{rng.randrange(3)}")
        for index in range(10)
    ]
    rows = rows_of(nodes)
    factors = {"dc1": rng.randint(1, 4), "dc2": rng.randint(0, 3)}
    rows["system_schema.keyspaces"] = [
        keyspace("n", {"class": "NetworkTopologyStrategy", **{dc: str(count) for dc, count in factors.items()}}),
        keyspace("s", {"class": "SimpleStrategy", "replication_factor": "3"}),
        keyspace("e", {"class": "EverywhereStrategy"}),
    ]
    plan = plan_of(recording_of("cassandra", rows))
    rehearsal = rehearsed(plan)
    by_token = {metadata.Murmur3Token(int(token)): host(one) for one in nodes for token in one["tokens"]}
    ring = sorted(by_token)
    for name, strategy in (
        ("n", metadata.NetworkTopologyStrategy({dc: str(count) for dc, count in factors.items()})),
        ("s", metadata.SimpleStrategy({"replication_factor": "3"})),
    ):
        expected = strategy.make_token_replica_map(by_token, ring)
        found = owners(rehearsal, name)
        for token in ring:
            wanted = {one.address for one in expected[token]}
            assert owner_at(found, token.value) == wanted, (name, token)
            assert owner_at(found, token.value - 1) == wanted, (name, token)
    assert all(len(nodes) == 10 for nodes in owners(rehearsal, "e").values())
    assert plan.parts() == 3, "eight joins, two joins, the schema"


def host(one: dict[str, Any]) -> Host:
    found = Host(one["peer"], lambda *_: None, host_id=UUID(one["host_id"]))
    found.set_location_info(one["data_center"], one["rack"])
    return found


# ------------------------------------------------------------------------------------------------------------- schema


def test_the_schema_of_a_real_cluster_is_complete_except_what_is_listed() -> None:
    plan = plan_of(read_recording(REAL.read_text()))
    assert describe(rehearsed(plan).state, "shop") == (DATA / "cassandra-5.0.cql").read_text()
    assert plan.left_out == (
        "table shop.vectors: the type vector<float, 3> is not supported",
        "table shop.visits: COMPACT STORAGE and counters are not supported",
        "index shop.by_tags: unknown_column: column: shop.orders has no column values(tags)",
        "index shop.by_age: the class sai is not supported",
    )
    assert plan.differences == (
        "keyspace small: durable_writes is false. In Ringlog every write is durable",
        "table shop.orders: at is in descending order. It gets ASC",
        "table shop.orders: default_time_to_live has no equivalent",
    )


def test_only_the_named_keyspaces_are_imported() -> None:
    recording = read_recording(REAL.read_text())
    plan = plan_of(recording, ["small"])
    assert plan.keyspaces == ("small",)
    assert plan.statements == 1
    assert not plan.left_out
    with pytest.raises(BadSource, match="has no keyspace other"):
        plan_of(recording, ["other"])


def test_types_are_created_after_the_types_of_their_fields() -> None:
    rows = small()
    chain = [("a", "frozen<b>"), ("b", "frozen<c>"), ("c", "int"), ("d", "frozen<missing>")]
    rows["system_schema.types"] = [
        {"keyspace_name": "ks", "type_name": name, "field_names": ["f"], "field_types": [kind]} for name, kind in chain
    ]
    plan = plan_of(recording_of("cassandra", rows))
    assert [one["name"] for line in plan.lines for one in line.get("statements", [])] == ["ks", "c", "b", "a", "t"]
    assert [re.sub(": .*", "", one) for one in plan.left_out] == ["type ks.d"]
    rehearsed(plan)


@pytest.mark.parametrize(
    "text", ["int, evil int", "int); DROP KEYSPACE ks; CREATE TYPE ks.t (c int", "int -- ", "'a.b.C'", "frozen<"]
)
def test_text_of_a_source_never_becomes_a_statement(text: str) -> None:
    rows = small()
    rows["system_schema.columns"][1]["type"] = text
    plan = plan_of(recording_of("cassandra", rows))
    assert plan.statements == 1
    assert [one.partition(":")[0] for one in plan.left_out] == ["table ks.t"]


def test_many_objects_become_batches_and_parts_that_apply() -> None:
    rows = small()
    names = [f"t{number}" for number in range(1_700)]
    rows["system_schema.tables"] = [
        {"keyspace_name": "ks", "table_name": name, "id": ids(1000 + number), "flags": ["compound"]}
        for number, name in enumerate(names)
    ]
    rows["system_schema.columns"] = [column("a", "partition_key", 0, table=name) for name in names]
    plan = plan_of(recording_of("cassandra", rows))
    batches = [line for line in plan.lines if line.get("command") == "SchemaBatch"]
    assert max(len(one["statements"]) for one in batches) == 100
    assert plan.parts() == 3
    assert len(rehearsed(plan).state.tables) == 1_700


# ------------------------------------------------------------------------------------------------------------- scylla


def scylla() -> dict[str, Any]:
    """Return two nodes of ScyllaDB 6 with tablets, a table with a CDC log, and an index with its view."""
    rows = small()
    rows["system.peers"], rows["system.peers_v2"] = rows["system.peers_v2"], []
    rows["system_schema.keyspaces"].append(keyspace("tk", {"class": "NetworkTopologyStrategy", "dc1": "2"}))
    rows["system_schema.scylla_keyspaces"] = [{"keyspace_name": "tk", "initial_tablets": 0}]
    rows["system.topology"] = [
        {"host_id": ids(number), "node_state": "normal", "shard_count": 4, "ignore_msb": 12} for number in (1, 2)
    ] + [{"host_id": ids(3), "node_state": "left", "shard_count": 4, "ignore_msb": 12}]
    del rows["system_schema.tables"][0]["cdc"]
    log = {"keyspace_name": "ks", "table_name": "t_scylla_cdc_log", "id": ids(91), "flags": ["compound"]}
    tablets = {"keyspace_name": "tk", "table_name": "t", "id": ids(92), "flags": ["compound"]}
    rows["system_schema.tables"] += [log, tablets]
    options = {"delta": "full", "enabled": "true", "postimage": "false", "preimage": "full", "ttl": "3600"}
    rows["system_schema.scylla_tables"] = [{"keyspace_name": "ks", "table_name": "t", "cdc": options}]
    rows["system_schema.columns"] += [
        column("cdc$time", "partition_key", 0, table="t_scylla_cdc_log"),
        column("a", "partition_key", 0) | {"keyspace_name": "tk"},
        column("v", "partition_key", 0, "text", "by_v_index"),
        column("a", "clustering", 0, "int", "by_v_index"),
    ]
    index = {"keyspace_name": "ks", "table_name": "t", "index_name": "by_v", "kind": "COMPOSITES"}
    rows["system_schema.indexes"] = [index | {"options": {"target": "v"}}]
    where = {"base_table_name": "t", "where_clause": "v IS NOT NULL"}
    rows["system_schema.views"] = [{"keyspace_name": "ks", "view_name": "by_v_index", **where}]
    rows["system.tablets"] = [
        {"table_id": ids(92), "last_token": end, "replicas": [[ids(1), index], [ids(2), 3 - index]], "stage": None}
        for index, end in enumerate(uniform_ends(4))
    ][::-1]
    return rows


def test_scyllas_tablets_keep_their_places_and_its_own_tables_are_not_imported() -> None:
    plan = plan_of(recording_of("scylla", scylla()))
    assert (plan.left_out, plan.differences) == ((), ())
    rehearsal = rehearsed(plan)
    assert sorted(rehearsal.state.tables) == ["ks.t", "tk.t"]
    assert not rehearsal.state.views
    assert rehearsal.state.tables["ks.t"].cdc.preimage == "full"
    assert rehearsal.state.tables["ks.t"].cdc.ttl == 3_600
    assert {one.shards for one in rehearsal.state.nodes.values()} == {4}
    shown = rehearsal.line('{"show": "tablets", "table": "tk.t"}', 1)["tablets"]
    assert [(one["last_token"], sorted(one["replicas"])) for one in shown] == [
        (end, [["10.0.0.1", index], ["10.0.0.2", 3 - index]]) for index, end in enumerate(uniform_ends(4))
    ]


def test_uneven_tablets_are_not_placed() -> None:
    rows = scylla()
    rows["system.tablets"][2]["last_token"] += 1
    plan = plan_of(recording_of("scylla", rows))
    assert plan.differences == ("table tk.t: its tablets have different sizes. The plan does not place them",)
    assert not [line for line in plan.lines if line.get("do") == "place"]


def test_a_user_of_cassandra_may_name_a_table_like_a_log_of_scylla() -> None:
    rows = scylla()
    rows["system_schema.columns"][2]["column_name"] = "b"
    plan = plan_of(recording_of("cassandra", rows))
    assert "ks.t_scylla_cdc_log" in rehearsed(plan).state.tables


# ------------------------------------------------------------------------------------------------------ refused claims

LOCAL, PEERS, KEYSPACES, TABLETS = "system.local", "system.peers", "system_schema.keyspaces", "system.tablets"
CLAIMS: dict[str, tuple[str, int, str, Any, str, str]] = {
    "partitioner": (LOCAL, 0, "partitioner", "x.RandomPartitioner", "unsupported_source", "row 1, partitioner: Random"),
    "no id text": (PEERS, 0, "host_id", 7, "bad_source", "row 1, host_id: must be a text"),
    "no uuid": (PEERS, 0, "host_id", "x" * 36, "bad_source", "host_id: must be a UUID"),
    "same id": (PEERS, 0, "host_id", ids(1), "bad_source", "node 10.0.0.2, host_id: .* also belongs to 10.0.0.1"),
    "same address": (PEERS, 0, "peer", "10.0.0.1", "bad_source", "peer: 10.0.0.1 appears twice"),
    "no address": (PEERS, 0, "peer", "a b", "bad_source", "peer: must be an address"),
    "token too large": (PEERS, 0, "tokens", [str(2**63)], "bad_source", r"tokens\[0\]: must be a number between"),
    "token too small": (PEERS, 0, "tokens", [str(-(2**63))], "bad_source", r"tokens\[0\]: must be"),
    "no token": (PEERS, 0, "tokens", ["1", "x"], "bad_source", r"tokens\[1\]: must be"),
    "endless token": (PEERS, 0, "tokens", ["1" * 60_000], "bad_source", r"tokens\[0\]: must be"),
    "token of another": (PEERS, 0, "tokens", ["10"], "bad_source", "tokens: 10 also belongs to 10.0.0.1"),
    "many tokens": (PEERS, 0, "tokens", [str(n) for n in range(100, 1_200)], "unsupported_source", "1 to 1024 tokens"),
    "endless tokens": (PEERS, 0, "tokens", [str(n) for n in range(20_000)], "bad_source", "at most 16,384 items"),
    "rack": (PEERS, 0, "rack", "r\x1b[2J", "bad_source", "rack: must not have control characters"),
    "datacenter": (PEERS, 0, "data_center", "", "bad_source", "data_center: must be 1 to 100"),
    "long rack": (PEERS, 0, "rack", "r" * 70_000, "bad_source", "rack: must be a text of at most 65,536"),
    "port": (LOCAL, 0, "broadcast_port", 70_000, "bad_source", "broadcast_port: must be a whole number between 1"),
    "disagreement": (PEERS, 0, "schema_version", ids(5), "source_changed", "different schemas"),
    "moving": ("system.topology", 1, "node_state", "bootstrapping", "source_changed", "the node is bootstrapping"),
    "shards": ("system.topology", 1, "shard_count", 0, "bad_source", "shard_count: must be a whole number"),
    "strategy": (KEYSPACES, 0, "replication", {"class": "x.OddStrategy"}, "unsupported_source", "OddStrategy is not"),
    "no strategy": (KEYSPACES, 0, "replication", {"dc1": "1"}, "unsupported_source", "replication: "),
    "transient": (
        *(KEYSPACES, 2, "replication", {"class": "NetworkTopologyStrategy", "dc1": "3/1"}),
        *("unsupported_source", "replication.dc1: 3/1 is not a number of replicas"),
    ),
    "many replicas": (
        *(KEYSPACES, 0, "replication", {"class": "SimpleStrategy", "replication_factor": "3"}),
        *("unsupported_source", "keyspace ks: replication_impossible"),
    ),
    "other datacenter": (
        *(KEYSPACES, 2, "replication", {"class": "NetworkTopologyStrategy", "dc9": "1"}),
        *("unsupported_source", "keyspace tk: "),
    ),
    "durable": (KEYSPACES, 0, "durable_writes", "yes", "bad_source", "durable_writes: must be true or false"),
    "twice": (KEYSPACES, 1, "keyspace_name", "ks", "bad_source", "a keyspace appears twice"),
    "keyspace": (KEYSPACES, 0, "keyspace_name", "k s", "unsupported_source", "keyspace_name: must be a letter"),
    "kind": ("system_schema.columns", 0, "kind", "odd", "bad_source", "row 1, kind: must be partition_key"),
    "position": ("system_schema.columns", 0, "position", "0", "bad_source", "position: must be a whole number"),
    "replica": (TABLETS, 0, "replicas", [[ids(8), 0]], "bad_source", "replicas: must be a list of"),
    "replica form": (TABLETS, 0, "replicas", [[{}, 0]], "bad_source", "replicas: must be a list of"),
    "shard": (TABLETS, 3, "replicas", [[ids(1), 99]], "bad_source", "replicas: unknown_shard"),
    "shard form": (TABLETS, 3, "replicas", [[ids(1), "0"]], "bad_source", "replicas: bad_field"),
    "last token": (TABLETS, 0, "last_token", 2**64, "bad_source", "last_token: must be a whole number"),
    "fields": ("system_schema.types", 0, "field_types", [], "bad_source", "field_types: must be one for each"),
    "options": ("system_schema.indexes", 0, "options", [], "bad_source", "options: must be a map"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_that_breaks_a_rule_is_refused_with_field_and_rule(claim: str) -> None:
    table, row, field, value, code, message = CLAIMS[claim]
    rows = scylla()
    rows["system_schema.types"] = [
        {"keyspace_name": "ks", "type_name": "u", "field_names": ["f"], "field_types": ["int"]}
    ]
    plan_of(recording_of("scylla", deepcopy(rows)))
    rows[table][row][field] = value
    with pytest.raises(BadSource, match=message) as refused:
        plan_of(recording_of("scylla", rows))
    assert refused.value.code == code
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "must have kind and rows"),
        ('{"kind": "mysql", "rows": {}}', "kind: must be cassandra or scylla"),
        ('{"kind": "scylla", "rows": []}', "rows: must be an object"),
        ('{"kind": "scylla", "rows": {"system.local": [1]}}', "system.local: must be a list"),
        ('{"kind": "scylla", "rows": {"system.local": {}}}', "system.local: must be a list"),
        ('{"kind": "scylla", "rows": {}}', "system.local: must have one row, not 0"),
    ],
)
def test_a_damaged_recording_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadSource, match=message):
        plan_of(read_recording(text))


def test_a_node_without_tokens_is_left_out() -> None:
    rows = small()
    rows["system.peers_v2"].append(node(3, []) | {"host_id": None})
    rows["system.peers_v2"].append({"peer": "fe80::1"})
    plan = plan_of(recording_of("cassandra", rows))
    assert plan.nodes == 2
    assert plan.left_out == ("node 10.0.0.3: it owns no tokens", "node fe80--1: it owns no tokens")


def test_a_recording_is_read_back_as_it_was() -> None:
    recording = recording_of("scylla", scylla())
    again = read_recording(recording.json())
    assert again == recording
    assert plan_of(again).text() == plan_of(recording).text()


# --------------------------------------------------------------------------------------------------------- the source


def test_values_of_the_driver_become_json() -> None:
    given = {
        "id": UUID(ids(1)),
        "tokens": SortedSet(["b", "a"]),
        "options": OrderedMapSerializedKey.__new__(OrderedMapSerializedKey),
        "blob": b"\x01",
        "replicas": [(UUID(ids(2)), 3)],
    }
    given["options"].__init__(None, None)  # type: ignore[misc]
    assert _json(given) == {
        "id": ids(1),
        "tokens": ["a", "b"],
        "options": {},
        "blob": "01",
        "replicas": [[ids(2), 3]],
    }


@contextmanager
def server(answer: bytes) -> Iterator[int]:
    """Yield the port of a server that sends these bytes to each connection and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_source_that_speaks_no_cql_is_unavailable() -> None:
    with server(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10) as port:
        for tls in (None, ssl.create_default_context()):
            with pytest.raises(BadSource, match=f"127.0.0.1:{port}: ") as refused:
                read_source("cassandra", Endpoint("127.0.0.1", port, "ann", "secret", tls))
            assert refused.value.code == "source_unavailable"
            assert "secret" not in str(refused.value)
