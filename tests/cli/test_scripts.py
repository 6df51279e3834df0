"""``token``, ``stream-id`` and ``shard``, one line in and one line out, on the facts that ScyllaDB's drivers and
documentation give."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from ringlog.cli.main import app
from tests.tidy.files import ROOT

FACTS = ROOT / "tests" / "testdata"


def facts(name: str) -> list[list[str]]:
    """The fields of every line that is no remark."""
    lines = (FACTS / name).read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def answers(command: str, typed: list[str]) -> tuple[list[str], int]:
    ended = CliRunner().invoke(app, [command], input="".join(f"{line}\n" for line in typed))
    return ended.stdout.splitlines(), ended.exit_code


def test_tokens() -> None:
    known = facts("tokens.txt")
    assert len(known) > 60
    keys = ["" if key == "-" else key for key, *_ in known]
    assert "" in keys
    assert answers("token", keys) == ([token for _, token, *_ in known], 0)


def test_stream_ids() -> None:
    known = facts("stream_ids.txt")
    found, status = answers("stream-id", [row[0].upper() for row in known])
    assert status == 0
    for (stream, token, index, *_), line in zip(known, found, strict=True):
        fields = json.loads(line)
        low = int(stream[16:], 16)
        assert fields == {"token": int(token), "random": low >> 26, "index": int(index), "version": 1}


def test_shards() -> None:
    head, *rows = facts("shards.txt")
    pairs = [column.replace("n", "").replace("k", "").split(",") for column in head[1:]]
    typed = [f"{row[0]} {shards} {ignored}" for row in rows for shards, ignored in pairs]
    assert len(typed) >= 72
    assert answers("shard", typed) == ([shard for row in rows for shard in row[1:]], 0)


@pytest.mark.parametrize(
    ("command", "bad"),
    [
        ("token", ["zz", "0", "é", "\x00"]),
        ("stream-id", ["", "00", "7ffe0c687fcce86e0783343730000002", "x" * 32]),
        ("shard", ["", "1 2", "1 0 12", "1 4 64", "9223372036854775808 4 12", "1 2 3 4", "1.5 2 3"]),
    ],
)
def test_a_bad_line_is_answered_in_its_place(command: str, bad: list[str]) -> None:
    good = {"token": "6b6579", "stream-id": "7ffe0c687fcce86e0783343730000001", "shard": "0 3 12"}[command]
    found, status = answers(command, [*bad, good])
    assert status == 2
    assert [line.startswith("invalid: ") for line in found] == [True] * len(bad) + [False]
    assert found[-1:] == answers(command, [good])[0]


def test_bytes_that_are_no_text_and_other_line_ends() -> None:
    ended = CliRunner().invoke(app, ["token"], input=b"\xff\xfe\n6b6579\r\n61")
    assert ended.stdout.splitlines()[1:] == ["-6847573755651342660", "-8839064797231613815"]
    assert ended.exit_code == 2
