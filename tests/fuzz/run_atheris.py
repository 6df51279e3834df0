"""Coverage-guided fuzzing of one target: ``python -m tests.fuzz.run_atheris TARGET --seconds N --corpus DIR``.

Requires atheris, which only ``make fuzz`` installs (``requirements-fuzz.lock``). Inputs come from the target's seeds,
the committed corpus and ``DIR``. ``DIR`` keeps inputs that reach new code. libFuzzer makes half of the changes,
``tests.fuzz.mutate`` the other half.

The exit status is 0 at the end of the time. A finding is written to ``DIR/found-<hash>``, with its traceback on the
terminal and exit status 77. ``--all`` lists the targets. ``--repeat FILE`` runs one input without atheris.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import traceback
from pathlib import Path
from random import Random
from typing import Any

BYTES_MAX = 4_096
SLOW_S = 10


def main(arguments: list[str]) -> int:
    """Run the command line and return the exit status, unless libFuzzer ends the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run_atheris", description="Fuzz one decoder.")
    parser.add_argument("target", nargs="?")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--repeat", type=Path)
    parser.add_argument("--all", action="store_true")
    given = parser.parse_args(arguments)
    if given.repeat is None and not given.all:
        return _guided(given.target, given.seconds, given.corpus)
    from tests.fuzz.targets import attempt, targets

    if given.all:
        print("\n".join(targets()))
        return 0
    taken = attempt(targets()[given.target], given.repeat.read_bytes())
    print("taken" if taken else "refused, as it may be")
    return 0


def _guided(name: str, seconds: int, corpus: Path | None) -> int:
    try:
        import atheris  # type: ignore[import-untyped]
    except ImportError:
        print("atheris is missing: pip install --require-hashes -r requirements-fuzz.lock", file=sys.stderr)
        return 3
    with atheris.instrument_imports(include=["ringlog", "ringlog_cdc", "ringlog_schemas"]):
        from tests.fuzz.targets import attempt, starts, targets
    target = targets()[name]
    folder = corpus or Path(tempfile.mkdtemp(prefix=f"ringlog-fuzz-{name}-"))
    folder.mkdir(parents=True, exist_ok=True)
    seeds = starts(target)
    for data in seeds:
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)

    def one(data: bytes) -> None:
        try:
            attempt(target, data)
        except BaseException:
            found = folder / f"found-{hashlib.sha256(data).hexdigest()[:16]}"
            found.write_bytes(data)
            traceback.print_exc()
            print(f"input in {found}", file=sys.stderr)
            raise

    def mutated(data: bytes, size: int, seed: int) -> Any:
        chance = Random(seed)
        if chance.random() < 0.5:
            return atheris.Mutate(data, size)
        return target.mutate(chance, data, seeds)[:size]

    options = [f"-max_total_time={seconds}", f"-max_len={BYTES_MAX}", f"-timeout={SLOW_S}", "-rss_limit_mb=3000"]
    quiet = ["-print_final_stats=1", "-verbosity=0", f"-artifact_prefix={folder}/crash-"]
    atheris.Setup([name, *options, *quiet, str(folder)], one, custom_mutator=mutated)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
