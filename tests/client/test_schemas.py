"""A release's schemas against those that a cluster has: by every earlier one, and by ones that do not fit."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from ringlog.client.schemas import incompatibilities
from ringlog_schemas import CatalogueSchema, by_fingerprint, current, fingerprint_of

NODES = "ringlog.changes.NodeChange"
NO_TYPE = '{"namespace": "ringlog.changes", "name": "NodeChange", "type": "nothing"}'
NO_FIELDS = '{"namespace": "ringlog.changes", "name": "NodeChange", "type": "record"}'
NODE_OF_NOTHING = '{"namespace": "ringlog.changes", "name": "NodeChange"}'
THERE = {schema.hex: json.dumps(schema.json) for schema in current().values()}


def with_changed(full_name: str, change: Callable[[dict[str, Any]], None]) -> dict[str, CatalogueSchema]:
    """This release's schemas, with another one of this name."""
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


def test_this_release_fits_a_cluster_that_has_every_earlier_schema_and_none_of_its_own() -> None:
    own = {schema.hex for schema in current().values()}
    there = {schema.hex: json.dumps(schema.json) for schema in by_fingerprint().values() if schema.hex not in own}
    assert there
    assert incompatibilities(there, current()) == ()
    assert incompatibilities({}, with_changed(NODES, as_text)) == ()


def test_a_field_with_a_default_may_come() -> None:
    assert incompatibilities(THERE, with_changed(NODES, with_default)) == ()


@pytest.mark.parametrize(("change", "field"), [(as_text, "NodeChange.shards"), (without_default, "NodeChange.zone")])
def test_what_does_not_fit_is_named_with_its_field(change: Callable[[dict[str, Any]], None], field: str) -> None:
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
def test_what_is_no_schema_is_passed_over(key: str, text: str) -> None:
    assert incompatibilities({key: text}, with_changed(NODES, as_text)) == ()
