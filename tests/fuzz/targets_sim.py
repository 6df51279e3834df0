"""Fuzz targets for the test tools: rules of the delayable log, histories, input of the quorum simulator, scripts."""

from __future__ import annotations

import json
import os
import tempfile
from functools import cache
from pathlib import Path

import typer

from ringlog.cli.shared.connection import errors
from ringlog.log.delays.control import HELD, FolderDelays
from ringlog.log.delays.rules import COMMIT, DELAY, DROP, HOLD, BadRule, Match, Rule, rule_from_json, rule_to_json
from ringlog_sim.runner.script import PROFILES, draw_script, to_json
from ringlog_sim.runner.shrink import NoScript, load
from ringlog_testing.cli.quorums import _read as read_description
from ringlog_testing.histories.events import HistoryError
from ringlog_testing.histories.operations import read_bytes
from ringlog_testing.quorums.description import BadDescription, Numbers, described, drawn, state_of
from tests.fuzz.mutate import of_json
from tests.fuzz.targets import Target


@cache
def _folder() -> Path:
    """Return a folder of this process for the files that decoders read."""
    kept = tempfile.TemporaryDirectory(prefix="ringlog-fuzz-sim-")
    _KEPT.append(kept)
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def rule(data: bytes) -> None:
    """Read and write a rule of the delayable log, and read the report of the entries that a process holds."""
    text = data.decode("utf-8", "replace")
    held = _folder() / HELD
    held.mkdir(exist_ok=True)
    (held / f"{os.getpid()}-fuzz.json").write_text(text, "utf-8")
    FolderDelays(_folder()).held()
    found = rule_from_json(text)
    assert rule_from_json(rule_to_json(found)) == found


def _rules() -> tuple[bytes, ...]:
    some = (
        Rule("a", HOLD, match=Match(kind="Noop", epoch=7)),
        Rule("b", DELAY, COMMIT, ("node-*",), seconds=1.5),
        Rule("c", DROP, COMMIT, match=Match(stage="finished", submitter="x*"), times=2, answer_only=True),
    )
    held = b'[{"participant": "p", "rule": "a", "where": "commit", "kind": "Noop", "request_id": "r", "offset": 1,'
    return (*(rule_to_json(one).encode() for one in some), held + b' "behind": 0, "since": 5}]')


def _histories() -> tuple[bytes, ...]:
    lines = (
        {"process": "a", "type": "invoke", "op": "write", "key": "x", "value": 1},
        {"process": "b", "type": "invoke", "op": "read", "key": "x"},
        {"process": "a", "type": "ok", "op": "write", "key": "x", "value": 1, "time": 5},
        {"process": "b", "type": "ok", "op": "read", "key": "x", "value": 1},
    )
    whole = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return (whole, *(whole.rpartition(b"\n")[0][:cut] for cut in (70, 150, 240)))


def description(data: bytes) -> None:
    """Read a cluster, or handwritten histories, as the command does."""
    path = _folder() / "description.json"
    path.write_bytes(data)
    before, errors.quiet = errors.quiet, True
    try:
        found = read_description(path)
    finally:
        errors.quiet = before
    if "histories" in found:
        drawn(found)
    else:
        state_of(found)


def _descriptions() -> tuple[bytes, ...]:
    views = [{"name": "a", "read": ["A"], "write": ["A"]}, {"name": "b", "read": ["A"], "write": ["A", "B"]}]
    history = {"title": "t", "views": [*views, views[0]], "datacenters": {"A": "dc2"}, "streams": {"B": ["A"]}}
    some = (described(Numbers(2, factor=1)), {"histories": [history]})
    return tuple(json.dumps(one).encode() for one in some)


def script(data: bytes) -> None:
    """Read a failing script stored as a regression test."""
    path = _folder() / "script.json"
    path.write_bytes(data)
    load(path)


def _scripts() -> tuple[bytes, ...]:
    profile = PROFILES["small"]
    return tuple(json.dumps({"rule": "r", "script": to_json(draw_script(seed, profile))}).encode() for seed in (1, 2))


TARGETS = (
    Target(
        "scripts",
        ("ringlog_sim.runner.shrink.load", "ringlog_sim.runner.script.from_json"),
        script,
        (NoScript,),
        _scripts,
        of_json,
    ),
    Target(
        "delay_rules",
        ("log.delays.rules.rule_from_json", "log.delays.control._reported"),
        rule,
        (BadRule,),
        _rules,
        of_json,
    ),
    Target(
        "histories", ("ringlog_testing.histories.events.parse_event",), read_bytes, (HistoryError,), _histories, of_json
    ),
    Target(
        "quorum_descriptions",
        ("ringlog_testing.cli.quorums._read",),
        description,
        (BadDescription, typer.Exit),
        _descriptions,
        of_json,
    ),
)
