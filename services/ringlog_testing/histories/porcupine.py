"""A second checker: porcupine, an external program in Go with its own reader and models.

Its source is in ``tests/checkers/porcupine``, so it is available in a checkout but not in an installed package. The
first use builds the program into a folder of the user's cache, named after the hash of its sources. Without Go or the
sources, ``Unavailable`` states the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ringlog.kernel.values import Value
from ringlog_testing.histories.verdict import Linearizability

SOURCES = Path(__file__).resolve().parents[3] / "tests" / "checkers" / "porcupine"
FILES = ("go.mod", "go.sum", "main.go")
GO_HOME = Path("/usr/local/go/bin/go")
"""The location used by Go's own installer. It is not always in PATH."""
BUILD_S_MAX = 300
CHECK_S_MAX = 60.0


class Unavailable(Exception):
    """Porcupine cannot run here. ``code`` is a stable word; the text says how to fix it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Opinion(Value):
    """Porcupine's verdict on the history and on each key. ``seconds``: time of the check, without reading."""

    verdict: Linearizability
    keys: Mapping[str, Linearizability]
    seconds: float


def find_go() -> Path | None:
    """Return the path of the ``go`` command, from PATH or from the location of Go's installer."""
    found = shutil.which("go")
    if found is not None:
        return Path(found)
    return GO_HOME if os.access(GO_HOME, os.X_OK) else None


def build(cache: Path) -> Path:
    """Return the program's path. Build the program if it is not in the ``cache`` folder. Raise Unavailable."""
    if not all((SOURCES / name).is_file() for name in FILES):
        raise Unavailable("no_sources", "porcupine's program exists only in a checkout, not in an installed package")
    digest = hashlib.sha256(b"\0".join((SOURCES / name).read_bytes() for name in FILES)).hexdigest()[:12]
    program = cache / "porcupine" / digest / "porcupine"
    if program.exists():
        return program
    go = find_go()
    if go is None:
        raise Unavailable("no_go", "porcupine must be compiled with Go: install Go 1.21 or newer")
    program.parent.mkdir(parents=True, exist_ok=True)
    fresh = program.with_name(f".porcupine.{os.getpid()}")
    command = [str(go), "build", "-trimpath", "-buildvcs=false", "-o", str(fresh), "."]
    try:
        built = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False)
        if built.returncode != 0:
            raise Unavailable("not_built", f"go build failed: {built.stderr.strip()}")
        fresh.replace(program)
    except subprocess.TimeoutExpired as error:
        raise Unavailable("not_built", f"go build took longer than {BUILD_S_MAX} s") from error
    finally:
        fresh.unlink(missing_ok=True)
    return program


def ask(program: Path, history: Path, limit_s: float = CHECK_S_MAX) -> Opinion:
    """Return porcupine's opinion of a well-formed history.

    ``limit_s``: limit for all keys together. Raises Unavailable if porcupine fails.
    """
    try:
        answer = subprocess.run([str(program), str(history), str(limit_s)], capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            why = answer.stderr.strip()[-400:]
            raise Unavailable("broken", f"porcupine ended with status {answer.returncode}: {why}")
        found = json.loads(answer.stdout)
        keys = {key: Linearizability(verdict) for key, verdict in found["keys"].items()}
        return Opinion(Linearizability(found["verdict"]), keys, float(found["seconds"]))
    except (OSError, ValueError, KeyError) as error:
        raise Unavailable("broken", f"porcupine returned no result: {error}") from error
