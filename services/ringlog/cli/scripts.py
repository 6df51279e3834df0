"""``ringlog token``, ``stream-id`` and ``shard``: filters for scripts, one line in, one line out, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import typer

from ringlog.kernel.model.stream_id import StreamIdError, decode
from ringlog.kernel.ring.murmur3 import token_of
from ringlog.kernel.ring.shards import IGNORE_MSB_MAX, SHARDS_MAX, shard_of
from ringlog.kernel.values import is_token


class BadScriptLine(ValueError):
    """An invalid input line; the message has the expected form."""


def token_line(line: str) -> str:
    """Return the token of a partition key in hex. An empty line is the empty key."""
    return str(token_of(_hex(line)))


def stream_id_line(line: str) -> str:
    """Return the fields of a stream id in hex, as JSON."""
    try:
        found = decode(_hex(line))
    except StreamIdError as error:
        raise BadScriptLine(str(error)) from None
    return json.dumps({"token": found.token, "random": found.random, "index": found.index, "version": found.version})


def shard_line(line: str) -> str:
    """Return the shard that owns the token of a line ``TOKEN SHARDS IGNORE_MSB``."""
    try:
        token, shards, ignore_msb = (int(part) for part in line.split())
    except ValueError:
        raise BadScriptLine("expected three whole numbers: TOKEN SHARDS IGNORE_MSB") from None
    if not (is_token(token) or token == -(2**63)):
        raise BadScriptLine(f"token {token} is not a signed 64-bit number")
    if not 1 <= shards <= SHARDS_MAX:
        raise BadScriptLine(f"shards must be 1 to {SHARDS_MAX}")
    if not 0 <= ignore_msb <= IGNORE_MSB_MAX:
        raise BadScriptLine(f"ignore_msb must be 0 to {IGNORE_MSB_MAX}")
    return str(shard_of(token, shards, ignore_msb))


def _hex(line: str) -> bytes:
    try:
        return bytes.fromhex(line.strip())
    except ValueError:
        raise BadScriptLine("expected hexadecimal bytes") from None


def answer_lines(lines: Iterable[bytes], answer: Callable[[str], str]) -> int:
    """Print the answer to each line, or ``invalid: why``. Return the exit status, 2 if a line was invalid."""
    status = 0
    for line in lines:
        try:
            typer.echo(answer(line.decode("utf-8", "replace").rstrip("\r\n")))
        except BadScriptLine as bad:
            typer.echo(f"invalid: {bad}")
            status = 2
    return status


def token() -> None:
    """Print the token of each partition key.

    Reads one key in hex per line from standard input. An empty line is the empty key.
    """
    raise typer.Exit(answer_lines(typer.get_binary_stream("stdin"), token_line))


def stream_id() -> None:
    """Print the fields of each CDC stream id.

    Reads one stream id in hex per line from standard input, and prints JSON.
    """
    raise typer.Exit(answer_lines(typer.get_binary_stream("stdin"), stream_id_line))


def shard() -> None:
    """Print the shard of each token.

    Reads lines of the form ``TOKEN SHARDS IGNORE_MSB`` from standard input.
    """
    raise typer.Exit(answer_lines(typer.get_binary_stream("stdin"), shard_line))
