"""``ringlog token``, ``stream-id`` and ``shard``: one line in, one line out, for scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import typer

from ringlog.operator.scripts import BadScriptLine, shard_line, stream_id_line, token_line


def answer_lines(lines: Iterable[bytes], answer: Callable[[str], str]) -> int:
    """Print the answer to each line; a bad one gets ``invalid: why`` in its place, and the exit status is 2."""
    status = 0
    for line in lines:
        try:
            typer.echo(answer(line.decode("utf-8", "replace").rstrip("\r\n")))
        except BadScriptLine as bad:
            typer.echo(f"invalid: {bad}")
            status = 2
    return status


def token() -> None:
    """Token of each partition key given in hex, one a line on standard input (an empty line is the empty key)."""
    raise typer.Exit(answer_lines(typer.get_binary_stream("stdin"), token_line))


def stream_id() -> None:
    """Fields of each CDC stream id given in hex, one a line on standard input, as JSON."""
    raise typer.Exit(answer_lines(typer.get_binary_stream("stdin"), stream_id_line))


def shard() -> None:
    """Shard of each ``TOKEN SHARDS IGNORE_MSB``, one a line on standard input."""
    raise typer.Exit(answer_lines(typer.get_binary_stream("stdin"), shard_line))
