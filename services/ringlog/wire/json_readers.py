"""Readers of JSON values: one for each kind of field, all refusing with a code, the field's path and the rule.

A reader gets the ``Source`` (state, random bits), the path of the value for messages, and the value as ``json.loads``
gave it. They check types only, and that a number fits in 64 bits: the rules of fields belong to the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NoReturn

from ringlog.kernel.commands.model import (
    CdcOptions,
    Column,
    DatacenterReplication,
    GenerationRange,
    Position,
    Replication,
    StreamReport,
    TypeField,
    Witness,
)
from ringlog.kernel.state import ClusterState
from ringlog.wire.draw import Draw


@dataclass(frozen=True, slots=True)
class Source:
    """What an author resolves names, defaults and random choices from. ``given``: the JSON object of the command."""

    state: ClusterState
    draw: Draw
    given: Mapping[str, Any]


Reader = Callable[[Source, str, Any], Any]


class InvalidJsonError(Exception):
    """JSON that is no command, for a reason that is known here."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


def bad(path: str, rule: str) -> NoReturn:
    """Refuse a field: ``bad_field``."""
    raise InvalidJsonError("bad_field", f"{path}: {rule}")


def near(word: str, known: list[str]) -> str:
    """``; did you mean X?`` for the nearest known word, else the list of them."""
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(sorted(known))}" if known else "; there are none"


def check_fields(path: str, value: Any, known: tuple[str, ...], needed: tuple[str, ...]) -> Mapping[str, Any]:
    """The object itself if all its fields are known and all needed ones are there."""
    if not isinstance(value, Mapping):
        bad(path, "must be an object")
    for name in value:
        if name not in known:
            raise InvalidJsonError("unknown_field", f"{path}.{name} is no field{near(name, list(known))}")
    for name in needed:
        if name not in value:
            raise InvalidJsonError("missing_field", f"{path}.{name} is missing")
    return value


def text(_source: Source, path: str, value: Any) -> str:
    """Text that UTF-8 can hold."""
    if not isinstance(value, str):
        bad(path, "must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        bad(path, "must be text without lone surrogates")
    return value


def number(_source: Source, path: str, value: Any) -> int:
    """An integer of 64 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        bad(path, "must be an integer of 64 bits")
    return value


def flag(_source: Source, path: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        bad(path, "must be true or false")
    return value


def hex_bytes(_source: Source, path: str, value: Any) -> bytes:
    """Bytes written in hex."""
    if isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    bad(path, "must be bytes in hex")


def node(source: Source, path: str, value: Any) -> str:
    """A node's id, given by id or by name. An unknown one stays as it is: the command's own rule rejects it."""
    given = text(source, path, value)
    return given if given in source.state.nodes else source.state.node_names.get(given, given)


def list_of(reader: Reader) -> Reader:
    """A list, each item read by ``reader``; gives a tuple."""

    def read(source: Source, path: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            bad(path, "must be a list")
        return tuple(reader(source, f"{path}[{index}]", item) for index, item in enumerate(value))

    return read


def names(source: Source, path: str, value: Any) -> tuple[str, ...]:
    """A list of names; a single one may stand without brackets."""
    return (value,) if isinstance(value, str) else list_of(text)(source, path, value)


def settings(source: Source, path: str, value: Any) -> tuple[tuple[str, int], ...]:
    """``{name: value}``, as pairs by ascending name."""
    if not isinstance(value, Mapping):
        bad(path, "must be an object of names and values")
    pairs = [(text(source, path, name), number(source, f"{path}.{name}", item)) for name, item in value.items()]
    return tuple(sorted(pairs))


def columns(source: Source, path: str, value: Any) -> tuple[Column, ...]:
    """``[{"name": ..., "type": ..., "static": flag}]`` or ``{name: "type"}``, ``{name: "type static"}``."""
    if isinstance(value, Mapping):
        value = [_named_column(name, item) for name, item in value.items()]
    return tuple(list_of(_column)(source, path, value))


def _column(source: Source, path: str, value: Any) -> Column:
    given = check_fields(path, value, ("name", "type", "static"), ("name", "type"))
    static = flag(source, f"{path}.static", given["static"]) if "static" in given else False
    return Column(text(source, f"{path}.name", given["name"]), text(source, f"{path}.type", given["type"]), static)


def _named_column(name: str, type_name: Any) -> dict[str, Any]:
    if isinstance(type_name, str) and type_name.endswith(" static"):
        return {"name": name, "type": type_name.removesuffix(" static"), "static": True}
    return {"name": name, "type": type_name}


def type_fields(source: Source, path: str, value: Any) -> tuple[TypeField, ...]:
    """``[{"name": ..., "type": ...}]`` or ``{name: "type"}``."""
    if isinstance(value, Mapping):
        value = [{"name": name, "type": item} for name, item in value.items()]
    return tuple(list_of(_type_field)(source, path, value))


def _type_field(source: Source, path: str, value: Any) -> TypeField:
    given = check_fields(path, value, ("name", "type"), ("name", "type"))
    return TypeField(text(source, f"{path}.name", given["name"]), text(source, f"{path}.type", given["type"]))


def replication(source: Source, path: str, value: Any) -> Replication:
    """``{"strategy": "simple", "factor": n}``, ``{"strategy": "network", "datacenters": {dc: factor or [racks]}}`` or
    ``{"strategy": "entire"}``. Fields of strategies that are not known are passed over.
    """
    strategy = value.get("strategy", "simple") if isinstance(value, Mapping) else "simple"
    if strategy == "network":
        return _network(source, path, value)
    if strategy == "entire":
        check_fields(path, value, ("strategy",), ())
        return Replication("entire", 0)
    if strategy != "simple":
        # Another release's strategy: what counts is that the command's own rule rejects the strategy by its name.
        return Replication(text(source, f"{path}.strategy", value["strategy"]), 1)
    return Replication(*_record(strategy=text, factor=number)(source, path, value))


def _network(source: Source, path: str, value: Any) -> Replication:
    """Datacenters by ascending name, the racks of each likewise."""
    given = check_fields(path, value, ("strategy", "datacenters"), ("datacenters",))["datacenters"]
    if not isinstance(given, Mapping):
        bad(f"{path}.datacenters", "must be an object of datacenters and factors or lists of racks")
    found = []
    for name, item in sorted(given.items()):
        where = f"{path}.datacenters.{text(source, path, name)}"
        if isinstance(item, list | tuple):
            racks = tuple(sorted(list_of(text)(source, where, item)))
            found.append(DatacenterReplication(name, len(racks), racks))
        else:
            found.append(DatacenterReplication(name, number(source, where, item)))
    total = number(source, f"{path}.datacenters", sum(local.factor for local in found))
    return Replication("network", total, tuple(found))


def cdc(source: Source, path: str, value: Any) -> CdcOptions:
    """A flag, or ``{"enabled": ..., "preimage": false | true | "full", "postimage": ..., "delta": ..., "ttl": s}``."""
    if isinstance(value, bool):
        return CdcOptions(enabled=value)
    readers: dict[str, Reader] = {
        "enabled": flag,
        "preimage": _preimage,
        "postimage": flag,
        "delta": text,
        "ttl": number,
    }
    given = check_fields(path, value, tuple(readers), ())
    return CdcOptions(**{name: readers[name](source, f"{path}.{name}", item) for name, item in given.items()})


def _preimage(source: Source, path: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return text(source, path, value)


def witness(source: Source, path: str, value: Any) -> Witness:
    """``{"node": ..., "applied": epoch, "drained": epoch}``."""
    return Witness(*_record(node=node, applied=number, drained=number)(source, path, value))


def report(source: Source, path: str, value: Any) -> StreamReport:
    """``{"node": ..., "operation": ..., "rows": n, "checksum": hex}``."""
    return StreamReport(*_record(node=node, operation=text, rows=number, checksum=text)(source, path, value))


def generation_range(source: Source, path: str, value: Any) -> GenerationRange:
    """``{"end": token, "ignore_msb": n, "streams": [hex, ...]}``, the streams in slot order."""
    read = _record(end=number, ignore_msb=number, streams=list_of(_stream_id))
    return GenerationRange(*read(source, path, value))


def _stream_id(source: Source, path: str, value: Any) -> bytes:
    data = hex_bytes(source, path, value)
    if len(data) != 16:
        bad(path, "must be 16 bytes in hex")
    return data


def positions(source: Source, path: str, value: Any) -> tuple[Position, ...]:
    """``[{"partition": p, "offset": o}]`` or ``{"p": o}``."""
    if isinstance(value, Mapping):
        if not all(key.isascii() and key.isdecimal() for key in value):
            bad(path, "must be an object of partition numbers and offsets")
        value = [{"partition": int(key), "offset": item} for key, item in value.items()]
    return tuple(Position(*parts) for parts in list_of(_record(partition=number, offset=number))(source, path, value))


def _record(**readers: Reader) -> Reader:
    """An object that has exactly these fields; gives their values in this order."""
    known = tuple(readers)

    def read(source: Source, path: str, value: Any) -> tuple[Any, ...]:
        given = check_fields(path, value, known, known)
        return tuple(reader(source, f"{path}.{name}", given[name]) for name, reader in readers.items())

    return read
