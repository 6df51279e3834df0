"""Cluster creation: the first valid entry wins, and all processes learn its author."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ringlog.client.creation.creation import ClusterCreation, CreationRefused, found
from ringlog.client.creation.schemas import incompatibilities
from ringlog.log.memory import MemoryLog
from ringlog.log.replicas.replica import LogReplica
from ringlog_schemas import CatalogueSchema, current, fingerprint_of
from tests.log.faulty_log import Fault, FaultyLog
from tests.waiting import at_once


def test_a_second_creation_reports_the_first_author() -> None:
    log = MemoryLog()
    with LogReplica(log) as replica:
        first = found(log, replica, "orders", {"history_entries": 500}, submitter="anna")
        written = log.end_offset()  # One record, or more if the machine paused.
        second = found(log, replica, "orders", submitter="bert")
    assert first.here
    assert not second.here
    assert second == ClusterCreation(first.cluster_id, "orders", "anna", first.at, False)
    assert replica.state.settings["history_entries"] == 500
    assert log.end_offset() == written


def test_exactly_one_of_several_concurrent_creations_wins() -> None:
    log = MemoryLog()
    foundings: list[ClusterCreation] = []
    together = threading.Barrier(4)

    def work(name: str) -> None:
        with LogReplica(log) as replica:
            together.wait(60)
            foundings.append(found(log, replica, "orders", submitter=name))

    at_once(work, [f"founder-{number}" for number in range(4)])
    assert [founding.here for founding in foundings].count(True) == 1
    winner = next(founding for founding in foundings if founding.here)
    assert {founding.cluster_id for founding in foundings} == {winner.cluster_id}
    assert {founding.submitter for founding in foundings} == {winner.submitter}


def test_a_second_initial_entry_is_foreign_and_harmless() -> None:
    log = FaultyLog(MemoryLog(), [Fault(late=frozenset({0}), answer_lost=True)])
    with LogReplica(log) as slow, LogReplica(log) as quick:
        waiting: list[ClusterCreation] = []
        thread = threading.Thread(target=lambda: waiting.append(found(log, slow, "orders", submitter="slow")))
        thread.start()
        other = found(log, quick, "orders", submitter="quick")
        thread.join(60)
        log.release()
        assert slow.read_barrier().epoch == quick.read_barrier().epoch == 1
        assert waiting[0].cluster_id == other.cluster_id
        assert waiting[0].here != other.here


def test_settings_against_the_rules_are_refused_before_anything_is_written() -> None:
    log = MemoryLog()
    with LogReplica(log) as replica, pytest.raises(CreationRefused) as caught:
        found(log, replica, "orders", {"history_entries": -1})
    assert caught.value.code == "bad_setting"
    assert log.end_offset() == 0


# Schemas of a release against the schemas of a cluster: all earlier ones, and incompatible ones.


NODES = "ringlog.changes.NodeChange"
NO_TYPE = '{"namespace": "ringlog.changes", "name": "NodeChange", "type": "nothing"}'
NO_FIELDS = '{"namespace": "ringlog.changes", "name": "NodeChange", "type": "record"}'
NODE_OF_NOTHING = '{"namespace": "ringlog.changes", "name": "NodeChange"}'
THERE = {schema.hex: json.dumps(schema.json) for schema in current().values()}


def with_changed(full_name: str, change: Callable[[dict[str, Any]], None]) -> dict[str, CatalogueSchema]:
    """Return this release's schemas with one schema replaced."""
    changed = copy.deepcopy(dict(current()[full_name].json))
    change(changed)
    return {**current(), full_name: CatalogueSchema(full_name, changed, fingerprint_of(changed))}


def as_text(schema: dict[str, Any]) -> None:
    (shards,) = (field for field in schema["fields"] if field["name"] == "shards")
    shards["type"] = "string"


def without_default(schema: dict[str, Any]) -> None:
    schema["fields"].append({"name": "zone", "type": "string", "doc": "It."})


def with_default(schema: dict[str, Any]) -> None:
    schema["fields"].append({"name": "zone", "type": "string", "default": "", "doc": "It."})


def test_an_empty_topic_accepts_all_schemas() -> None:
    assert incompatibilities({}, with_changed(NODES, as_text)) == ()


def test_a_field_with_a_default_may_be_added() -> None:
    assert incompatibilities(THERE, with_changed(NODES, with_default)) == ()


@pytest.mark.parametrize(("change", "field"), [(as_text, "NodeChange.shards"), (without_default, "NodeChange.zone")])
def test_an_incompatible_schema_is_reported_with_its_field(
    change: Callable[[dict[str, Any]], None], field: str
) -> None:
    found = incompatibilities(THERE, with_changed(NODES, change))
    assert found
    assert all(problem.startswith(f"{NODES} against ") and field in problem for problem in found)


def test_a_released_command_is_not_changed() -> None:
    (found,) = incompatibilities(THERE, with_changed("ringlog.commands.RegisterNode", with_default))
    assert "a changed command is a new version" in found


@pytest.mark.parametrize("key", ["0123456789abcdef", "no number"])
@pytest.mark.parametrize(
    "text", ["", "{", "7", "[]", "{}", '{"namespace": 1}', "[" * 100_000, NODE_OF_NOTHING, NO_TYPE, NO_FIELDS]
)
def test_records_without_a_schema_are_skipped(key: str, text: str) -> None:
    assert incompatibilities({key: text}, with_changed(NODES, as_text)) == ()
