"""Hypothesis strategies for all values of an Avro schema, and one fixed sample for each schema."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from hypothesis import strategies as st

from ringlog_schemas import catalog

_PRIMITIVES: Mapping[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    "bytes": st.binary(max_size=40),
}


def named_types(schema: Any, found: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the named types inside a schema by full name."""
    found = {} if found is None else found
    if isinstance(schema, list):
        for branch in schema:
            named_types(branch, found)
    elif isinstance(schema, Mapping):
        if "name" in schema:
            found[f"{schema['namespace']}.{schema['name']}"] = schema
        for field in schema.get("fields", ()):
            named_types(field["type"], found)
        named_types(schema.get("items"), found)
    return found


def values(schema: Any, types: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for all values of a schema."""
    if isinstance(schema, list):
        return st.one_of(*(values(branch, types) for branch in schema))
    if isinstance(schema, str) and schema in types:
        return values(types[schema], types)
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return st.fixed_dictionaries({field["name"]: values(field["type"], types) for field in schema["fields"]})
    if kind == "array":
        return st.lists(values(schema["items"], types), max_size=4)
    if kind == "fixed":
        return st.binary(min_size=schema["size"], max_size=schema["size"])
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    return _PRIMITIVES[kind]


@cache
def records(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for all records of a schema, by full name. Cached, because Hypothesis inspects each new
    strategy.
    """
    schema = catalog()[name]
    return values(schema, named_types(schema))


def sample(schema: Any, types: Mapping[str, Any], seed: int) -> Any:
    """Return one value with content in each field, the same in each run. Unions use their last branch."""
    if isinstance(schema, list):
        return sample(schema[-1], types, seed)
    if isinstance(schema, str) and schema in types:
        return sample(types[schema], types, seed)
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "record":
            return {
                field["name"]: sample(field["type"], types, seed * 31 + index)
                for index, field in enumerate(schema["fields"], 1)
            }
        case "array":
            return [sample(schema["items"], types, seed * 31 + index) for index in range(2)]
        case "fixed":
            return bytes((seed + index) % 256 for index in range(schema["size"]))
        case "enum":
            return schema["symbols"][seed % (len(schema["symbols"]) - 1)]
        case "boolean":
            return seed % 2 == 1
        case "int":
            return seed * 7919 % 2**31
        case "long":
            return (-1) ** seed * (seed * 104_729 % 2**62)
        case "bytes":
            return seed.to_bytes(8, "big")
        case _:
            return f"text {seed} ü"
