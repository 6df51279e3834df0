"""Failing scripts as files: each is a regression test once it lies in ``tests/sim/regressions``."""

from __future__ import annotations

import json
from pathlib import Path

from ringlog.runtime.inputs import read_text
from ringlog.sim.run import RunReport
from ringlog.sim.script import Script, from_json, to_json


class NoScript(ValueError):
    """A file that holds no script; the text says why."""


def save(folder: Path, report: RunReport, script: Script) -> Path:
    """Write ``script``, which broke ``report.rule``; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.rule.replace(' ', '_')}-{script.profile}-{script.seed}.json"
    found = {"rule": report.rule, "detail": report.detail, "script": to_json(script)}
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return path


def load(path: Path) -> tuple[str, Script]:
    """(the rule that was broken when it was found, the script). Raises NoScript, OSError."""
    try:
        found = json.loads(read_text(path))
        return str(found["rule"]), from_json(found["script"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoScript(f"{path}: {type(error).__name__}: {error}") from error
