"""A state as editable JSON, for ``ringlog recover --export`` and ``--state``.

The document names the state that it was exported from, and contains its state sections by name. The JSON of a section
is equivalent to its canonical bytes:

- A record is an object; ``is`` names its class, and fields with their default values are absent.
- A map with text keys is an object. Any other map is ``{"is": "map", "pairs": [[key, value], …]}``.
- Bytes are ``{"is": "bytes", "hex": "…"}``.

An edited document is validated by the decoder of the state. A section that the document omits is unchanged; ``null``
empties a section.

Source: CEP-21, "Failure Recovery": a state that an operator composes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from ringlog.kernel.commands.control.recovery import FORCEABLE, ForcedPart
from ringlog.kernel.encoding.encoder import encode, encoded_parts, framed, framed_map, joined
from ringlog.kernel.model.state import ClusterState
from ringlog.operator.errors import Refused

IS: Final = "is"
BYTES, MAP = "bytes", "map"
OF: Final = ("cluster_id", "epoch", "state_id")

Json = Any


def exported(state: ClusterState) -> dict[str, Json]:
    """Return the document of a state: the sections that ``ForceState`` can replace."""
    parts = encoded_parts(state)
    shown = {name: json_of(parts[name]) for name in FORCEABLE if name in parts}
    return {name: getattr(state, name) for name in OF} | {"parts": shown}


def composed(text: str | bytes, state: ClusterState) -> tuple[ForcedPart, ...]:
    """Return the sections that an edited document changes, compared with the exported state. Raises Refused."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(f"not valid JSON: {error}") from error
    if not isinstance(found, dict) or found.keys() != {*OF, "parts"} or not isinstance(found["parts"], dict):
        raise _refused(f"an object with {', '.join(OF)} and parts is expected")
    for name in OF:
        if found[name] != getattr(state, name):
            raise _refused(f"{name} is {found[name]!r}; the copy ends with {getattr(state, name)!r}: export it again")
    if strange := sorted(found["parts"].keys() - set(FORCEABLE)):
        raise _refused(f"{strange[0]} is not a section that can be replaced")
    before = encoded_parts(state)
    parts = {name: _data(name, value) for name, value in sorted(found["parts"].items())}
    return tuple(ForcedPart(name, data) for name, data in parts.items() if data != before.get(name, b""))


def _data(name: str, value: Json) -> bytes:
    try:
        return b"" if value is None else bytes_of(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise _refused(f"{name}: {error}") from error


def _refused(why: str) -> Refused:
    return Refused("state_file_refused", why)


# ------------------------------------------------------------------------------------------------ the two notations


def json_of(data: bytes) -> Json:
    """Return the JSON of a value's canonical bytes."""
    value, end = _read(data, 0)
    assert end == len(data), "the value ends at the end of its bytes"
    return value


def bytes_of(value: Json) -> bytes:
    """Return the canonical bytes of a value's JSON. Raises ValueError or TypeError if the JSON encodes no value."""
    match value:
        case None | bool() | int() | str():
            return encode(value)
        case list():
            return joined(b"L", [bytes_of(one) for one in value])
        case {"is": "bytes", "hex": str() as digits, **rest} if not rest:
            return framed(b"B", bytes.fromhex(digits))
        case {"is": "map", "pairs": list() as pairs, **rest} if not rest:
            return framed_map((bytes_of(key), bytes_of(one)) for key, one in pairs)
        case {"is": str() as kind}:
            names = sorted(str(name) for name in value if name != IS)
            inner = [part for name in names for part in (encode(name), bytes_of(value[name]))]
            return joined(b"R", [encode(kind), *inner])
        case dict():
            return framed_map((encode(key), bytes_of(one)) for key, one in value.items())
    raise ValueError(f"{value!r} is not a value of the state")


def _read(data: bytes, at: int) -> tuple[Json, int]:
    """Read the value at offset ``at``, framed as a kind byte, the decimal length, a colon and the body.

    Returns (JSON, offset after the value).
    """
    colon = data.index(b":", at)
    end = colon + 1 + int(data[at + 1 : colon])
    return _READERS[data[at : at + 1]](data[colon + 1 : end]), end


def _items(body: bytes) -> list[Json]:
    found, at = [], 0
    while at < len(body):
        value, at = _read(body, at)
        found.append(value)
    return found


def _pairs(items: list[Json]) -> list[list[Json]]:
    return [[key, value] for key, value in zip(items[::2], items[1::2], strict=True)]


def _map(body: bytes) -> Json:
    pairs = _pairs(_items(body))
    if all(isinstance(key, str) and key != IS for key, _ in pairs):
        return dict(pairs)
    return {IS: MAP, "pairs": pairs}


def _record(body: bytes) -> Json:
    kind, *fields = _items(body)
    return {IS: kind} | dict(_pairs(fields))


_READERS: Final[dict[bytes, Callable[[bytes], Json]]] = {
    b"N": lambda _: None,
    b"T": lambda _: True,
    b"F": lambda _: False,
    b"I": int,
    b"S": lambda body: body.decode("utf-8", "surrogatepass"),
    b"B": lambda body: {IS: BYTES, "hex": body.hex()},
    b"L": _items,
    b"M": _map,
    b"R": _record,
}
