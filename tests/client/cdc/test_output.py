"""Changes as JSON, Debezium envelopes and CloudEvents, in the shapes of the public documentation."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from ringlog import __version__
from ringlog.client.cdc.output import change_json, cloudevents, debezium, json_value
from ringlog.client.cdc.row_changes import effects
from ringlog.client.cdc.rows import TableTypes, change_of
from ringlog.kernel.cql.types import serialize
from ringlog.kernel.values import Column, replace
from ringlog.wire.records import Cell, DeletedElements
from tests.client.cdc.changes import AT, STREAM, TABLE, change, row

NOW = AT + 2_000_000
COLUMNS = {column.name: column for column in TABLE.columns}
TIME = "04c29680-833b-11ee-"
"""First groups of the time UUID of ``AT``, as ScyllaDB's documentation computes them."""


def envelope(*rows: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    ((key, value),) = debezium(change(*rows), "shop", NOW)
    return key, value


def test_an_insert_in_the_envelope_of_debezium() -> None:
    key, value = envelope(row(2, values={"v": 5, "w": "five"}, deleted=("b",)))
    assert key == {"p": "p1", "c": 1}
    time = value["source"].pop("time")
    assert time.startswith(TIME)
    assert value == {
        "before": None,
        "after": {"p": "p1", "c": 1, "b": None, "v": 5, "w": "five"},
        "source": {
            "version": __version__,
            "connector": "ringlog",
            "name": "shop",
            "ts_ms": 1_700_000_000_123,
            "ts_us": AT,
            "ts_ns": AT * 1_000,
            "snapshot": "false",
            "db": "ks",
            "keyspace_name": "ks",
            "table_name": "t",
            "generation": 7,
            "stream_id": STREAM.hex(),
            "batch_seq_no": 0,
            "operation": "insert",
        },
        "transaction": None,
        "op": "c",
        "ts_ms": 1_700_000_002_123,
        "ts_us": NOW,
        "ts_ns": NOW * 1_000,
    }


def test_images_are_before_and_after() -> None:
    before, after = row(0, values={"v": 1}, deleted=("w",)), row(9, values={"v": 2, "w": "x"})
    key, value = envelope(before, row(1, values={"v": 2}), after)
    assert value["op"] == "u"
    assert value["before"] == {"p": "p1", "c": 1, "v": 1, "w": None}
    assert value["after"] == {"p": "p1", "c": 1, "v": 2, "w": "x"}
    assert envelope(before, row(3))[1]["before"] == {"p": "p1", "c": 1, "v": 1, "w": None}
    assert key == {"p": "p1", "c": 1}


def test_images_of_several_rows_of_one_write_find_their_rows() -> None:
    static = row(0, (), {"w": "a"})
    images = [row(0, (key,), {"v": key}) for key in (1, 2)]
    found = effects(change(static, *images, row(1, (), {"w": "b"}), row(1, (2,), {"v": 9}), row(3, (1,)), row(4, ())))
    assert [(one.operation, None if one.before is None else dict(one.before)) for one in found] == [
        ("update", {"p": "p1", "w": "a"}),
        ("update", {"p": "p1", "c": 2, "v": 2}),
        ("row_delete", {"p": "p1", "c": 1, "v": 1}),
        ("partition_delete", None),
    ]
    single = effects(change(row(0, (), {"v": 1}), row(4, ())))
    assert [one.before for one in single] == [{"p": "p1", "v": 1}]


def test_an_update_contains_only_the_changed_columns() -> None:
    _, value = envelope(row(1, values={"v": 2}), row(1, deleted=("w",)))
    assert (value["op"], value["before"], value["after"]) == ("u", None, {"p": "p1", "c": 1, "v": 2, "w": None})


@pytest.mark.parametrize(
    ("operation", "key", "wanted"),
    [(3, (1,), {"p": "p1", "c": 1}), (-3, (1,), {"p": "p1", "c": 1}), (4, (), {"p": "p1"}), (-4, (), {"p": "p1"})],
)
def test_deletes_of_rows_and_partitions(operation: int, key: tuple[int, ...], wanted: dict[str, Any]) -> None:
    found, value = envelope(row(operation, key))
    assert (found, value["op"], value["before"], value["after"]) == (wanted, "d", wanted, None)


def test_a_range_delete_is_passed_through_and_is_not_a_row_delete() -> None:
    key, value = envelope(row(6, (1,)), row(7, ()))
    assert (key, value["op"], value["message"]["prefix"]) == ({"p": "p1"}, "m", "ringlog.range_delete")
    assert {"before", "after"}.isdisjoint(value)
    assert json.loads(base64.b64decode(value["message"]["content"])) == {
        "start": {"key": {"p": "p1", "c": 1}, "inclusive": False},
        "end": {"key": {"p": "p1"}, "inclusive": True},
    }


def test_a_write_has_an_effect_for_each_row_of_the_table() -> None:
    found = effects(
        change(
            row(2, (1,), {"v": 1}, ttl=5),
            row(1, (1,), {}, deleted=("m",)),
            row(1, (1,), {"m": (("x", 1),)}),
            row(1, (2,), {"v": 3}),
            row(3, (3,)),
            row(5, (4,)),
            row(8, (9,)),
            row(4, ()),
        )
    )
    assert [(effect.operation, effect.number) for effect in found] == [
        ("insert", 0),
        ("update", 3),
        ("row_delete", 4),
        ("range_delete", 5),
        ("partition_delete", 7),
    ]
    assert dict(found[0].values) == {"v": 1, "m": (("x", 1),)}
    assert found[0].deleted == ("m",)


def test_an_event_has_the_attributes_of_cloudevents_1_0() -> None:
    (event,) = cloudevents(change(row(1, values={"v": 5})), "shop")
    time = event["id"].split("/")[1]
    assert time.startswith(TIME)
    assert event == {
        "specversion": "1.0",
        "id": f"{STREAM.hex()}/{time}/0",
        "source": "/ringlog/shop",
        "type": "ringlog.cdc.update",
        "subject": "ks.t",
        "time": "2023-11-14T22:13:20.123456Z",
        "datacontenttype": "application/json",
        "partitionkey": '["7031"]',
        "data": {
            "table": "ks.t",
            "timestamp": AT,
            "key": {"p": "p1", "c": 1},
            "values": {"v": 5},
            "deleted": [],
            "deleted_elements": {},
            "before": None,
            "after": None,
        },
    }
    # Attribute names have lower-case letters and digits, at most 20; all required ones are present and not empty.
    assert all(name.isalnum() and name == name.lower() and len(name) <= 20 for name in event)
    assert all(event[name] for name in ("specversion", "id", "source", "type"))
    (ranged,) = cloudevents(change(row(5, (1,)), row(8, (3,))), "shop")
    assert ranged["type"] == "ringlog.cdc.range_delete"
    assert ranged["data"]["end"] == {"key": {"p": "p1", "c": 3}, "inclusive": False}


def test_events_of_one_write_differ_in_their_ids_and_a_repeated_one_does_not() -> None:
    made = change(row(1, (1,), {"v": 5}), row(1, (2,), {"v": 6}))
    ids = [event["id"] for event in cloudevents(made, "shop")]
    assert len(set(ids)) == 2
    assert [event["id"] for event in cloudevents(made, "shop")] == ids


def test_plain_json_has_every_row_of_the_log() -> None:
    uuid = "04c29680-833b-11ee-8000-000000000001"
    taken = (DeletedElements("m", (b"x",)),)
    found = change_json(change(row(1, values={"l": ((uuid, 3),), "b": b"\x01\xff"}, ttl=9, deleted_elements=taken)))
    assert found["rows"] == [
        {
            "operation": "update",
            "batch_seq_no": 0,
            "ttl": 9,
            "key": {"p": "p1", "c": 1},
            "values": {"l": [[uuid, 3]], "b": "0x01ff"},
            "deleted": [],
            "deleted_elements": {"m": ["x"]},
            "undecoded": {},
        }
    ]
    assert json.loads(json.dumps(found)) == found


def test_values_that_json_lacks() -> None:
    assert [json_value(value) for value in (b"\x00", float("nan"), float("-inf"), ((1, b""),))] == [
        "0x00",
        "nan",
        "-inf",
        [[1, "0x"]],
    ]


def test_a_user_type_in_a_key_is_an_object() -> None:
    kind = "frozen<udt<street text, number int>>"
    columns = tuple(Column(name, kind if name == "c" else found.type) for name, found in COLUMNS.items())
    house = serialize(kind, {"street": "x", "number": 7})
    before, update = row(0, values={"v": 1}), row(1, values={"v": 2})
    rows = tuple(replace(one, clustering_key=(house,)) for one in (before, update))
    made = change_of(rows, TableTypes(replace(TABLE, columns=columns)), (0, 0))
    ((key, value),) = debezium(made, "shop", NOW)
    assert key == {"p": "p1", "c": {"street": "x", "number": 7}}
    assert (value["before"], value["after"]) == ({**key, "v": 1}, {**key, "v": 2})
    assert json.loads(json.dumps(key)) == key


def test_undecodable_cells_are_reported_in_every_format() -> None:
    cells = (Cell("nosuchcol", b"!"), Cell("v", b"\1"), Cell("w", b"fine"), Cell("p", b"p9"))
    odd = {"nosuchcol": "0x21", "v": "0x01", "p": "0x7039", "cdc$deleted_gone": "0x01"}
    image = row(0, deleted=("gone", "v"))
    written = change(image, row(2, cells=cells))
    plain = change_json(written)["rows"][1]
    assert (plain["key"], plain["values"], plain["deleted"]) == ({"p": "p1", "c": 1}, {"w": "fine"}, [])
    assert plain["undecoded"] == {name: odd[name] for name in ("nosuchcol", "v", "p")}
    assert change_json(written)["rows"][0]["undecoded"] == {"cdc$deleted_gone": "0x01"}
    (_, envelope), (event,) = *debezium(written, "shop", NOW), cloudevents(written, "shop")
    assert envelope["source"]["undecoded"] == event["data"]["undecoded"] == odd
    assert envelope["after"] == {"p": "p1", "c": 1, "w": "fine"}


def test_all_cells_of_an_unknown_table_are_undecoded() -> None:
    found = change_json(change(row(2, (1,), {"v": 5}, deleted=("w",)), table=None))
    assert (found["table_id"], found["epoch"]) == (None, 0)
    assert found["rows"][0]["undecoded"] == {
        "partition_0": "0x7031",
        "clustering_0": "0x00000001",
        "v": "0x00000005",
        "cdc$deleted_w": "0x01",
    }
