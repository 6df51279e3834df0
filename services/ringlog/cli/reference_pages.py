"""Reference pages about the Python package, the HTTP API and the cache in Redis, for ``ringlog.cli.reference``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ringlog
from ringlog import commands
from ringlog.cache.projection import PARTS as HASHES
from ringlog.console.access import CODES
from ringlog.console.table import COMMON, VIEWS, Parameter
from ringlog.errors import RinglogError
from ringlog.kernel.model.state_section import WHOLE
from ringlog.kernel.sections import PARTS

_ABOUT_PYTHON = """\
`import ringlog` provides these names, and `ringlog.commands` a class for each [command of the log](log-commands.md).
They are the public interface. Modules behind them may change. [The Python client](../build/python-client.md) explains
their use.
"""
_ABOUT_CONSTRUCTORS = """\
Functions of `ringlog.commands` that choose omitted values. Those that need the state return a function of the state,
which `submit` calls. Nodes may be given by name there.
"""
_ABOUT_ERRORS = """\
All derive from `ringlog.RinglogError` and have `code` and `hint`. If `retriable` is true, the same call may succeed
later. Time-outs also derive from `TimeoutError`. [Codes](codes.md) lists all codes.
"""


Table = Callable[[Sequence[str], Sequence[Sequence[object]]], Iterator[str]]


def python_names(head: str, table: Table, prose: Callable[[str], str]) -> Iterator[str]:
    """Yield the lines of the page. ``head``, ``table`` and ``prose``: as in the other pages (``cli.reference``)."""

    def meaning(found: Any) -> str:
        name = next((name for name in _PLAIN if getattr(ringlog, name) is found), "")
        return _PLAIN.get(name) or prose(found.__doc__ or "").split("\n\n")[0]

    yield from ("# Names of the Python package", "", head, "", _ABOUT_PYTHON)
    found = {name: getattr(ringlog, name) for name in ringlog.__all__}
    errors = {name: one for name, one in found.items() if isinstance(one, type) and issubclass(one, RinglogError)}
    rows = [(f"`{name}`", meaning(one)) for name, one in found.items() if name not in errors]
    yield from table(("name", "meaning"), rows)
    yield from ("## Constructors of commands", "", _ABOUT_CONSTRUCTORS)
    made = {name: getattr(commands, name) for name in commands.__all__ if name[0].islower()}
    shown = [(f"`{name}{_arguments(one)}`", meaning(one)) for name, one in made.items()]
    yield from table(("function", "meaning"), shown)
    yield from ("## Errors", "", _ABOUT_ERRORS)
    mine = [
        (f"`{name}`", f"`{one.code}`", "yes" if one.retriable else "no", meaning(one)) for name, one in errors.items()
    ]
    yield from table(("error", "code", "retriable", "meaning"), mine)


_PLAIN = {
    "FEATURES": "Features that this release adds.",
    "Submitted": "The answer to a submission, one of three results.",
}
"""Meanings of public names that have no docstring."""


def _arguments(function: Any) -> str:
    parameters = inspect.signature(function).parameters.values()
    needed = [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    more = any(one.default is not one.empty or one.kind is one.VAR_KEYWORD for one in parameters)
    return f"({', '.join([*needed, *(['…'] if more else [])])})"


_ABOUT_REDIS = """\
The cache writer stores the state in hashes of one Redis database, or of one hash slot of a Redis cluster. Values are
JSON with sorted keys. Bytes are hex digits. Ranges are `(start, end]`, and wrap if `start >= end`.

Read `{CLUSTER}:meta` and all hashes that you need in one `MULTI`/`EXEC`. Then they belong to one epoch. An epoch that
decreases means that the cache writer started again from an older copy: read later. `counts` has the number of fields of
each hash, in the order of the second table. Do not use the hashes if a number differs. A release may add hashes and
fields. Other programs never write these keys.
"""


META_FIELDS = {
    "cluster_id": "id of the cluster",
    "epoch": "epoch of all hashes",
    "state_id": "id of the state of that epoch",
    "digest": "digest of that state",
    "offset": "offset of the log after its entry",
    "confirmed_at": "microseconds since 1970, when a cache writer last knew that the epoch was the newest",
    "counts": "number of fields of each hash, in the order of the table, separated by spaces",
}
"""The fields of the hash of metadata."""


def redis_layout(head: str, table: Table) -> Iterator[str]:
    """Yield the lines of the page about the keys and values in Redis."""
    yield from ("# Redis layout", "", head, "", _ABOUT_REDIS, "## `{CLUSTER}:meta`", "")
    yield from table(("field", "value"), [(f"`{name}`", text) for name, text in META_FIELDS.items()])
    yield from ("## Hashes", "")
    rows = []
    for part in PARTS:
        split = {one.field: one for one in part.split_fields}
        if WHOLE not in part.hidden and "" not in split:
            shown = [name for name in part.fields if name not in split]
            key = part.key or "key"
            rows.append((f"`{{CLUSTER}}:{part.name}`", key, ", ".join(f"`{name}`" for name in shown) or "a value"))
        for one in part.split_fields:
            key = f"{part.key or 'key'} `/` end or number" if one.field else part.key
            content = f"an element of `{one.field}` of `{part.name}`" if one.field else "a range with its replicas"
            rows.append((f"`{{CLUSTER}}:{one.name}`", key, content))
    assert sorted(name.partition(":")[2].strip("`") for name, *_ in rows) == list(HASHES), "the page has each hash"
    yield from table(("key", "field", "JSON value"), sorted(rows))


_ABOUT_HTTP = """\
`ringlog console` serves this interface ([web console](../operate/console.md)). `/v1/openapi.json` describes it for
programs. With `--tokens` or `--oidc`, each request needs `Authorization: Bearer TOKEN`.

The header `Ringlog-Epoch` of an answer has its epoch, and `Age` the seconds since the state was last known to have
every entry. `ETag` begins with the epoch. With `If-None-Match`, an unchanged view gives status 304. `/NAME.json` has
the same value as `/v1/NAME`, and `/NAME` is its page. Times are in microseconds since 1970 UTC.
"""
_ABOUT_CHANGES = """\
`POST /v1/rehearsals` takes one command as JSON, or `{"commands": [...], "to_end": true}`. The answer has the epoch of
the state, the outcome of each command, the resolved commands, and the difference that they make. With `to_end`, the
operations also run to their end, with every node acknowledging.

`POST /v1/commands` submits one command and waits for its outcome. A repetition is harmless with the header
`Idempotency-Key`, the request id, and `?since=EPOCH`, the epoch of the rehearsal. Send the resolved command of the
rehearsal: drawn values, such as tokens, are then the same.
"""
_ABOUT_EVENTS = """\
`GET /v1/events` is a stream of server-sent events. Each applied entry is an event `epoch`. Its id is the epoch, and its
data has `epoch`, `kind`, `at` and `sections`, the changed sections of the state. After a reconnect with `Last-Event-ID`
or `?since=EPOCH`, the stream continues after that epoch, also after a restart of the console. The event `reports` has
the age of the state; it comes every 2 s and has no id.
"""


def http_api(head: str, table: Table) -> Iterator[str]:
    """Yield the lines of the page about the HTTP API."""

    def rows(declared: Mapping[str, Parameter]) -> list[tuple[str, str, str]]:
        return [(f"`{name}`", f"`{one.kind.__name__}`", one.meaning) for name, one in declared.items()]

    yield from ("# HTTP API", "", head, "", _ABOUT_HTTP)
    yield from ("Every view accepts:", "")
    yield from table(("parameter", "type", "meaning"), rows(COMMON))
    for view in VIEWS.values():
        yield from (f"## GET /v1/{view.name}", "", view.question, "")
        if view.parameters:
            yield from table(("parameter", "type", "meaning"), rows(view.parameters))
    yield from ("## GET /v1/events", "", _ABOUT_EVENTS)
    yield from ("## POST /v1/rehearsals, POST /v1/commands", "", _ABOUT_CHANGES)
    yield from (
        "## Errors",
        "",
        "An error is a problem of RFC 9457 with the members `code`, `detail` and `ways_out`.",
        "",
    )
    codes = [(f"`{code}`", status, meaning) for code, (status, meaning) in CODES.items()]
    yield from table(("code", "status", "meaning"), codes)
    yield from (
        "A rejected command has status 409 and its own code. Errors of the log have status 503 ([codes](codes.md)).",
        "",
    )
